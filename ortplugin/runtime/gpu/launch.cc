// Launches, and the rule under which kernels overlap.
//
// Programmatic dependent launch is a contract of two kernels: the first lets the second become resident early, and the
// second waits (griddepcontrol.wait) before it touches memory. Kernels of libraries break it. cuDNN 9.19 launches
// generated convolutions with programmatic stream serialization of which the warps that load tiles wait, but not those
// of the epilogue, which read the residual ahead: right only behind a kernel that lets nobody start early. So:
//
//   1. A kernel of ours lets nobody start early by itself. What follows it on a stream, launched by whomever with
//      whatever attributes, starts when it has completed.
//   2. Each of ours waits before it touches memory that others write. What no operator of ours in the graph has written
//      so far (Written) it may read before: kernels that ONNX Runtime launches have full edges on both sides.
//   3. Overlap is an edge of a captured graph, drawn by the launch that knows both ends. Where one kernel comes behind
//      all that the stream holds, and is ours or what 4 put there, the edge leaves that kernel's launch-completion
//      port or its trigger: let_next_start, which an argument of the captured kernel switches on then.
//   4. What a library launches for us has full edges only, so nothing that comes before its last kernel is still
//      running when that one has completed, and ours may overlap it as it waits. A graph that allocates memory lets
//      no edge be removed; there an empty node, which nobody can overlap, comes before the library's first kernel, and
//      ours do not overlap its last.
//
// A stream that is not captured does not tell what it holds, so there nothing of ours overlaps.

#include <algorithm>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/cuda_driver.h"
#include "ortplugin/runtime/written.h"

namespace ortplugin::cuda {
namespace {

// The capture under way on a stream, and the nodes on which what comes next will depend.
struct Capture {
  bool is_active = false;
  uint64_t id = 0;  // unique in the process
  Graph graph = nullptr;
  std::vector<Node> last;
};

Capture CaptureOf(Stream stream) {
  Capture capture;
  if (!TheDriver().has_edge_data()) return capture;
  int status = 0;
  const Node* nodes = nullptr;
  const EdgeData* edges = nullptr;
  size_t count = 0;
  CheckDriver(TheDriver().cuStreamGetCaptureInfo(stream, &status, &capture.id, &capture.graph, &nodes, &edges, &count),
    "cuStreamGetCaptureInfo");
  capture.is_active = status == kCaptureActive;
  if (capture.is_active) capture.last.assign(nodes, nodes + count);
  return capture;
}

// The kernel that this thread put last into a graph, which the next one of ours may overlap.
struct LastKernel {
  uint64_t capture = 0;  // no capture has this id
  Node node = nullptr;
  NextStarts next_starts = NextStarts::kAtEnd;
  bool has_switch = false;  // of its trigger
};
thread_local LastKernel last_kernel;

// Draws the edge from the last kernel to what is launched next.
void Overlap(Stream stream) {
  if (last_kernel.next_starts == NextStarts::kAtEnd) return;
  const Driver& driver = TheDriver();
  if (last_kernel.has_switch) {
    KernelNodeParams params{};
    CheckDriver(driver.cuGraphKernelNodeGetParams(last_kernel.node, &params), "cuGraphKernelNodeGetParams");
    unsigned next_waits = 1;
    void* arguments[] = {params.arguments[0], &next_waits};
    params.arguments = arguments;
    CheckDriver(driver.cuGraphKernelNodeSetParams(last_kernel.node, &params), "cuGraphKernelNodeSetParams");
  }
  EdgeData edge{};
  edge.type = kProgrammaticEdge;
  edge.from_port = last_kernel.next_starts == NextStarts::kAtLaunch ? kPortLaunchCompletion : kPortProgrammatic;
  CheckDriver(driver.cuStreamUpdateCaptureDependencies(stream, &last_kernel.node, &edge, 1, kSetCaptureDependencies),
    "cuStreamUpdateCaptureDependencies");
}

// Makes every edge full by which `node` depends on others; returns these others.
std::vector<Node> MakeFull(Graph graph, Node node) {
  const Driver& driver = TheDriver();
  size_t count = 0;
  CheckDriver(driver.cuGraphNodeGetDependencies(node, nullptr, nullptr, &count), "cuGraphNodeGetDependencies");
  std::vector<Node> from(count);
  std::vector<EdgeData> edges(count);
  CheckDriver(driver.cuGraphNodeGetDependencies(node, from.data(), edges.data(), &count), "cuGraphNodeGetDependencies");
  for (size_t i = 0; i < count; ++i) {
    if (edges[i].type != kProgrammaticEdge) continue;
    const EdgeData full{};
    CheckDriver(driver.cuGraphRemoveDependencies(graph, &from[i], &node, &edges[i], 1), "cuGraphRemoveDependencies");
    CheckDriver(driver.cuGraphAddDependencies(graph, &from[i], &node, &full, 1), "cuGraphAddDependencies");
  }
  return from;
}

// Whether the graph allocates or frees memory, as ONNX Runtime's does where an operator's kernel uses cudaMallocAsync:
// CUDA removes no edge of it.
bool KeepsItsEdges(Graph graph) {
  const Driver& driver = TheDriver();
  size_t count = 0;
  CheckDriver(driver.cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<Node> nodes(count);
  CheckDriver(driver.cuGraphGetNodes(graph, nodes.data(), &count), "cuGraphGetNodes");
  return std::any_of(nodes.begin(), nodes.end(), [&](Node node) {
    int type = 0;
    CheckDriver(driver.cuGraphNodeGetType(node, &type), "cuGraphNodeGetType");
    return type == kAllocationNode || type == kFreeNode;
  });
}

// Makes what is launched next depend on an empty node behind all that the stream holds.
void FollowEmptyNode(Stream stream, const Capture& capture) {
  Node empty = nullptr;
  CheckDriver(TheDriver().cuGraphAddEmptyNode(&empty, capture.graph, capture.last.data(), capture.last.size()),
    "cuGraphAddEmptyNode");
  const EdgeData full{};
  CheckDriver(TheDriver().cuStreamUpdateCaptureDependencies(stream, &empty, &full, 1, kSetCaptureDependencies),
    "cuStreamUpdateCaptureDependencies");
}

}  // namespace

void Launch(const DeviceFacts& device, Function function, const LaunchShape& shape, Stream stream, void** arguments) {
  const ContextScope scope(device);
  Capture capture;
  if (device.has_pdl()) capture = CaptureOf(stream);
  if (capture.is_active && capture.id == last_kernel.capture && capture.last == std::vector<Node>{last_kernel.node})
    Overlap(stream);
  const bool has_switch = shape.next_starts == NextStarts::kAtTrigger;
  unsigned next_waits = 0;  // as far as is known
  void* with_switch[] = {arguments[0], &next_waits};
  CheckDriver(TheDriver().cuLaunchKernel(function, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes, stream,
                has_switch ? with_switch : arguments, nullptr),
    "cuLaunchKernel");
  last_kernel = {};
  if (!capture.is_active) return Written::Forget();
  capture = CaptureOf(stream);
  if (capture.last.size() == 1) last_kernel = {capture.id, capture.last[0], shape.next_starts, has_switch};
}

void LaunchForeign(const DeviceFacts& device, Stream stream, const std::function<void()>& call) {
  const ContextScope scope(device);
  const Capture before = CaptureOf(stream);
  last_kernel = {};
  const bool keeps_edges = before.is_active && KeepsItsEdges(before.graph);
  if (keeps_edges) FollowEmptyNode(stream, before);
  call();
  if (!before.is_active) Written::Forget();
  if (!before.is_active || keeps_edges) return;
  const Capture after = CaptureOf(stream);
  std::vector<Node> known = before.last;
  std::vector<Node> added = after.last;
  for (size_t i = 0; i < added.size(); ++i) {  // grows by what each depends on
    if (std::find(known.begin(), known.end(), added[i]) != known.end()) continue;
    known.push_back(added[i]);
    const std::vector<Node> from = MakeFull(after.graph, added[i]);
    added.insert(added.end(), from.begin(), from.end());
  }
  int type = kKernelNode + 1;
  if (after.last.size() == 1 && after.last != before.last)
    CheckDriver(TheDriver().cuGraphNodeGetType(after.last[0], &type), "cuGraphNodeGetType");
  if (type == kKernelNode) last_kernel = {after.id, after.last[0], NextStarts::kAtTrigger, false};
}

bool IsCapturing(const DeviceFacts& device, Stream stream) {
  const ContextScope scope(device);
  int status = 0;
  CheckDriver(TheDriver().cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status != 0;
}

void RefuseCapture(const DeviceFacts& device, Stream stream) {
  if (IsCapturing(device, stream))
    Fail(
      "these input shapes come for the first time while a CUDA graph is captured, when nothing can be compiled: "
      "run once with them before the capture");
}

}  // namespace ortplugin::cuda
