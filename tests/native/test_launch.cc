// The rule under which kernels overlap (launch.cc), by a driver that captures without a GPU: argv[1].
#include <dlfcn.h>

#include "ortplugin/runtime/written.h"
#include "tests/native/check.h"
#include "tests/native/fake_cuda.h"

using namespace ortplugin;
using cuda::EdgeData;
using cuda::NextStarts;
using fake::GraphNode;

namespace {

fake::BeginCapture begin_capture;
fake::AddNode add_node;
fake::Stream* stream;
constexpr int kMemset = 2;
constexpr NextStarts kAtLaunch = NextStarts::kAtLaunch, kAtTrigger = NextStarts::kAtTrigger;

void Launch(NextStarts next_starts, int ordinal = 0) {
  void* value = stream;
  void* arguments[] = {&value};
  const bool has_switch = next_starts == kAtTrigger;
  const auto function = reinterpret_cast<cuda::Function>(has_switch ? fake::kTwoParameters : fake::kOneParameter);
  cuda::Launch(cuda::Device(ordinal), function, {1, 32, 0, next_starts}, nullptr, arguments);
}

template <typename Work>
void LaunchForeign(const Work& work) {
  cuda::LaunchForeign(cuda::Device(0), nullptr, work);
}

GraphNode* Last() { return stream->last.at(0); }
bool IsFull(const EdgeData& edge) { return edge.type == 0 && edge.from_port == 0; }
bool LastIsFull() { return IsFull(Last()->edges.at(0)); }
bool LeavesFrom(const EdgeData& edge, unsigned char port) {
  return edge.type == cuda::kProgrammaticEdge && edge.from_port == port && edge.to_port == 0;
}

void OursAfterOurs() {
  stream = begin_capture();
  Launch(kAtLaunch);
  CHECK(Last()->from.empty());
  Launch(kAtTrigger);
  CHECK(LeavesFrom(Last()->edges.at(0), cuda::kPortLaunchCompletion));
  GraphNode* const with_switch = Last();
  CHECK(with_switch->next_waits == 0);
  Launch(NextStarts::kAtEnd);
  CHECK(LeavesFrom(Last()->edges.at(0), cuda::kPortProgrammatic));
  CHECK(with_switch->next_waits == 1);
  CHECK(with_switch->arguments[0] == stream);
  Launch(kAtLaunch);
  CHECK(Last()->edges.size() == 1 && IsFull(Last()->edges[0]));
}

void OthersAfterOurs() {
  stream = begin_capture();
  for (const NextStarts next_starts : {kAtLaunch, kAtTrigger}) {
    Launch(next_starts);
    const GraphNode* const ours = Last();
    add_node(cuda::kKernelNode, cuda::kProgrammaticEdge);  // a stranger that does not wait
    CHECK(ours->next_waits == 0);
    Launch(kAtLaunch);  // and what comes after it knows nothing of it
    CHECK(LastIsFull());
    CHECK(ours->next_waits == 0);
    Launch(next_starts);
    const GraphNode* const again = Last();
    add_node(kMemset, 0);
    Launch(kAtLaunch);
    CHECK(LastIsFull() && again->next_waits == 0);
  }
}

void SeveralBefore() {
  stream = begin_capture();
  Launch(kAtLaunch);
  GraphNode* const ours = Last();
  stream->last = {add_node(cuda::kKernelNode, 0), ours};  // two branches meet
  stream->edges = {EdgeData{}, EdgeData{}};
  Launch(kAtLaunch);
  CHECK(Last()->edges.size() == 2 && IsFull(Last()->edges[0]) && IsFull(Last()->edges[1]));
}

void AnotherCapture() {
  stream = begin_capture();
  Launch(kAtTrigger);
  GraphNode* const earlier = Last();
  stream = begin_capture();
  stream->last = {earlier};  // the address of a node may come again
  stream->edges = {EdgeData{}};
  Launch(kAtLaunch);
  CHECK(LastIsFull() && earlier->next_waits == 0);
}

void Foreign() {
  stream = begin_capture();
  Launch(kAtTrigger);
  GraphNode* const ours = Last();
  GraphNode *first = nullptr, *second = nullptr;
  LaunchForeign([&] {
    first = add_node(cuda::kKernelNode, cuda::kProgrammaticEdge);
    second = add_node(cuda::kKernelNode, cuda::kProgrammaticEdge);
  });
  CHECK(first->from.size() == 1 && first->from[0] == ours && IsFull(first->edges.at(0)));
  CHECK(second->from.size() == 1 && second->from[0] == first && IsFull(second->edges.at(0)));
  CHECK(ours->next_waits == 0);
  Launch(kAtLaunch);  // waits for `second`, before which all has completed
  CHECK(LeavesFrom(Last()->edges.at(0), cuda::kPortProgrammatic));
  GraphNode* const before = Last();
  LaunchForeign([] {});
  Launch(kAtLaunch);
  CHECK(Last()->from.at(0) == before && LastIsFull());
  LaunchForeign([] { add_node(kMemset, 0); });
  Launch(kAtLaunch);
  CHECK(LastIsFull());
}

// CUDA removes no edge of a graph that allocates memory.
void ForeignInAGraphThatAllocates() {
  stream = begin_capture();
  Launch(kAtLaunch);
  add_node(cuda::kAllocationNode, 0);
  Launch(kAtTrigger);
  GraphNode* const ours = Last();
  GraphNode* first = nullptr;
  LaunchForeign([&] {
    CHECK(Last()->type == cuda::kEmptyNode);
    first = add_node(cuda::kKernelNode, 0);  // what depends on no kernel has a full edge, whatever its attributes
    add_node(cuda::kKernelNode, cuda::kProgrammaticEdge);
  });
  GraphNode* const empty = first->from.at(0);
  CHECK(empty->type == cuda::kEmptyNode && empty->from.size() == 1 && empty->from[0] == ours);
  CHECK(IsFull(empty->edges.at(0)) && ours->next_waits == 0);
  Launch(kAtLaunch);  // the edges among the library's kernels are its own, so nothing overlaps them
  CHECK(LastIsFull());
  Launch(kAtLaunch);
  CHECK(LeavesFrom(Last()->edges.at(0), cuda::kPortLaunchCompletion));
}

// The second GPU knows no programmatic dependent launch.
void WithoutPdl() {
  stream = begin_capture();
  Launch(kAtTrigger, 1);
  GraphNode* const first = Last();
  Launch(kAtLaunch, 1);
  CHECK(Last()->from.at(0) == first && LastIsFull() && first->next_waits == 0);
  Launch(kAtLaunch, 1);
  CHECK(LastIsFull());
}

void OutputsOfACapture() {
  stream = begin_capture();
  char memory[64];
  Written::Note(memory + 16, 16);
  for (int i = 0; i < 2; ++i) {
    CHECK(Written::Meets(memory, 17) && Written::Meets(memory + 31, 1) && Written::Meets(memory, 64));
    CHECK(!Written::Meets(memory, 16) && !Written::Meets(memory + 32, 32));
    Launch(kAtLaunch);
    LaunchForeign([] { add_node(cuda::kKernelNode, 0); });
  }
}

void WithoutCapture() {
  stream->is_capturing = false;
  for (const bool is_foreign : {false, true}) {
    Written::Note(&stream, 1);
    CHECK(Written::Meets(&stream, 1));
    is_foreign ? LaunchForeign([] {}) : Launch(kAtLaunch);
    CHECK(!Written::Meets(&stream, 1));
  }
  const size_t before = stream->launches;
  Launch(kAtLaunch);
  LaunchForeign([] {});
  Launch(kAtTrigger);
  CHECK(stream->launches == before + 2);
  CHECK(!cuda::IsCapturing(cuda::Device(0), nullptr));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  void* const library = fake::Open(arguments[1]);
  if (library == nullptr) return test::Summary();
  begin_capture = reinterpret_cast<fake::BeginCapture>(dlsym(library, "FakeBeginCapture"));
  add_node = reinterpret_cast<fake::AddNode>(dlsym(library, "FakeAddNode"));
  cuda::Device(0);
  reinterpret_cast<fake::TheAnswers>(dlsym(library, "FakeAnswers"))()->gpu = test::GpuOf("sm_89");
  OursAfterOurs();
  OthersAfterOurs();
  SeveralBefore();
  AnotherCapture();
  Foreign();
  WithoutPdl();
  OutputsOfACapture();
  ForeignInAGraphThatAllocates();  // last of those that capture: see fake_cuda.cc
  WithoutCapture();
  return test::Summary();
}
