// A CUDA driver without a GPU, for test_launch.cc: it captures what is launched, and shows the graph.
#pragma once

#include <cstddef>
#include <vector>

#include "ortplugin/runtime/cuda_driver.h"

namespace fake {

struct GraphNode {
  int type = ortplugin::cuda::kKernelNode;
  std::vector<GraphNode*> from;
  std::vector<ortplugin::cuda::EdgeData> edges;  // from each of them
  unsigned next_waits = 0;                       // the second argument of a kernel that has two
  void* arguments[2] = {nullptr, nullptr};
};

struct Stream {
  bool is_capturing = false;
  unsigned long long capture = 0;
  std::vector<GraphNode*> last;                  // what comes next depends on these,
  std::vector<ortplugin::cuda::EdgeData> edges;  // by these edges
  size_t launches = 0;
};

// Functions of the library, by dlsym. A kernel whose Function is kTwoParameters has two.
using BeginCapture = Stream* (*)();
using AddNode = GraphNode* (*)(int type, unsigned char edge_type);
constexpr long kOneParameter = 1, kTwoParameters = 2;

}  // namespace fake
