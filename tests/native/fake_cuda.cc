#include "tests/native/fake_cuda.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>

using namespace ortplugin::cuda;  // the driver's types

namespace {

constexpr Result kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED
fake::Stream stream;
fake::Answers answers;
std::vector<std::unique_ptr<fake::GraphNode>> nodes;

fake::GraphNode* Of(Node node) { return reinterpret_cast<fake::GraphNode*>(node); }
Node As(fake::GraphNode* node) { return reinterpret_cast<Node>(node); }

fake::GraphNode* Add(int type) {
  nodes.push_back(std::make_unique<fake::GraphNode>());
  fake::GraphNode* const node = nodes.back().get();
  node->type = type;
  node->from = stream.last;
  node->edges = stream.edges;
  stream.last = {node};
  stream.edges = {EdgeData{}};
  return node;
}

}  // namespace

#define DRIVER extern "C" __attribute__((visibility("default")))

DRIVER fake::Stream* FakeBeginCapture() {
  stream.is_capturing = true;
  stream.capture += 1;
  stream.last.clear();
  stream.edges.clear();
  return &stream;
}

// What another library, or ONNX Runtime, adds; `edge_type`: of the edges by which it depends on what is there.
DRIVER fake::GraphNode* FakeAddNode(int type, unsigned char edge_type) {
  for (EdgeData& edge : stream.edges) {
    edge.type = edge_type;
    edge.from_port = edge_type;
  }
  return Add(type);
}

DRIVER fake::Answers* FakeAnswers() { return &answers; }

DRIVER Result cuInit(unsigned) { return 0; }
DRIVER Result cuDriverGetVersion(int* version) { return *version = answers.version, 0; }
DRIVER Result cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
DRIVER Result cuDeviceGetAttribute(int* value, Attribute which, int) {
  // By cuda.h's numbers, not by our names of them.
  const DeviceFacts& gpu = answers.gpu;
  const std::map<int, int64_t> figures = {{1, gpu.threads_per_block}, {16, gpu.multiprocessors}, {38, gpu.l2_bytes},
    {39, gpu.threads_per_multiprocessor}, {75, gpu.major}, {76, gpu.minor}, {81, gpu.shared_per_multiprocessor},
    {82, gpu.registers_per_multiprocessor}, {97, gpu.shared_per_block}, {106, gpu.blocks_per_multiprocessor},
    {111, gpu.reserved_shared_per_block}};
  const auto figure = figures.find(int(which));
  if (figure == figures.end()) return 1;
  *value = int(figure->second);
  return 0;
}
DRIVER Result cuDevicePrimaryCtxRetain(Context* context, int) { return *context = nullptr, 0; }
DRIVER Result cuCtxGetCurrent(Context* context) { return *context = nullptr, 0; }
DRIVER Result cuCtxPushCurrent_v2(Context) { return 0; }
DRIVER Result cuCtxPopCurrent_v2(Context*) { return 0; }
DRIVER Result cuModuleLoadData(Module* module, const void* code) {
  answers.loaded = std::string(static_cast<const char*>(code), 4);
  if (answers.load == 0) *module = reinterpret_cast<Module>(&answers);
  return answers.load;
}
DRIVER Result cuModuleGetFunction(Function* function, Module module, const char*) {
  *function = reinterpret_cast<Function>(fake::kOneParameter);
  return module == reinterpret_cast<Module>(&answers) ? 0 : 1;
}
DRIVER Result cuFuncSetAttribute(Function, FunctionAttribute, int) { return 1; }
DRIVER Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int*, Function, int, size_t) { return 1; }
DRIVER Result cuThreadExchangeStreamCaptureMode(int*) { return 0; }
DRIVER Result cuGetErrorName(Result, const char** text) { return *text = "FAKE", 0; }
DRIVER Result cuGetErrorString(Result, const char** text) { return *text = "a fake driver's error", 0; }

DRIVER Result cuLaunchKernel(Function function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
  ortplugin::cuda::Stream, void** arguments, void**) {
  if (answers.launch != 0) return answers.launch;
  ++stream.launches;
  if (!stream.is_capturing) return 0;
  fake::GraphNode* const node = Add(kKernelNode);
  node->arguments[0] = *static_cast<void**>(arguments[0]);
  if (reinterpret_cast<intptr_t>(function) == fake::kTwoParameters)
    node->next_waits = *static_cast<unsigned*>(arguments[1]);
  return 0;
}

DRIVER Result cuStreamIsCapturing(ortplugin::cuda::Stream, int* status) { return *status = stream.is_capturing, 0; }

DRIVER Result cuStreamGetCaptureInfo_v3(ortplugin::cuda::Stream, int* status, uint64_t* id, Graph* graph,
  const Node** last, const EdgeData** edges, size_t* count) {
  *status = stream.is_capturing ? kCaptureActive : 0;
  *id = stream.capture;
  *graph = nullptr;
  *last = reinterpret_cast<const Node*>(stream.last.data());
  *edges = stream.edges.data();
  *count = stream.last.size();
  return 0;
}

DRIVER Result cuStreamUpdateCaptureDependencies_v2(
  ortplugin::cuda::Stream, Node* last, const EdgeData* edges, size_t count, unsigned flags) {
  if (flags != kSetCaptureDependencies) return 1;
  stream.last.clear();
  for (size_t i = 0; i < count; ++i) stream.last.push_back(Of(last[i]));
  stream.edges.assign(edges, edges + count);
  return 0;
}

// All nodes of all captures, which is enough: a capture that allocates is the last one of its test.
DRIVER Result cuGraphGetNodes(Graph, Node* all, size_t* count) {
  for (size_t i = 0; all != nullptr && i < nodes.size(); ++i) all[i] = As(nodes[i].get());
  return *count = nodes.size(), 0;
}

DRIVER Result cuGraphAddEmptyNode(Node* node, Graph, const Node* from, size_t count) {
  nodes.push_back(std::make_unique<fake::GraphNode>());
  fake::GraphNode* const made = nodes.back().get();
  made->type = kEmptyNode;
  for (size_t i = 0; i < count; ++i) made->from.push_back(Of(from[i]));
  made->edges.resize(count);
  return *node = As(made), 0;
}

DRIVER Result cuGraphNodeGetType(Node node, int* type) { return *type = Of(node)->type, 0; }

DRIVER Result cuGraphKernelNodeGetParams_v2(Node node, KernelNodeParams* params) {
  static void* pointers[2];
  pointers[0] = &Of(node)->arguments[0];
  pointers[1] = &Of(node)->next_waits;
  *params = {};
  params->arguments = pointers;
  return 0;
}

DRIVER Result cuGraphKernelNodeSetParams_v2(Node node, const KernelNodeParams* params) {
  Of(node)->arguments[0] = *static_cast<void**>(params->arguments[0]);
  Of(node)->next_waits = *static_cast<unsigned*>(params->arguments[1]);
  return 0;
}

DRIVER Result cuGraphNodeGetDependencies_v2(Node node, Node* from, EdgeData* edges, size_t* count) {
  const fake::GraphNode& graph_node = *Of(node);
  for (size_t i = 0; from != nullptr && i < graph_node.from.size(); ++i) {
    from[i] = As(graph_node.from[i]);
    edges[i] = graph_node.edges[i];
  }
  *count = graph_node.from.size();
  return 0;
}

DRIVER Result cuGraphAddDependencies_v2(Graph, const Node* from, const Node* to, const EdgeData* edges, size_t) {
  Of(*to)->from.push_back(Of(*from));
  Of(*to)->edges.push_back(*edges);
  return 0;
}

DRIVER Result cuGraphRemoveDependencies_v2(Graph, const Node* from, const Node* to, const EdgeData* edges, size_t) {
  for (const auto& node : nodes)
    if (node->type == kAllocationNode || node->type == kFreeNode) return kNotSupported;
  fake::GraphNode& graph_node = *Of(*to);
  const auto found = std::find(graph_node.from.begin(), graph_node.from.end(), Of(*from));
  const auto at = found - graph_node.from.begin();
  if (found == graph_node.from.end() || graph_node.edges[at].type != edges->type ||
    graph_node.edges[at].from_port != edges->from_port)
    return 1;
  graph_node.from.erase(found);
  graph_node.edges.erase(graph_node.edges.begin() + at);
  return 0;
}
