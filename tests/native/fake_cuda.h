// A CUDA driver without a GPU, for test_launch.cc, test_device_facts.cc and test_cuda_errors.cc: it captures what is
// launched, shows the graph, and fails as it is told.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda_driver.h"
#include "tests/native/check.h"
#include "tests/native/gpus.h"

namespace fake {

struct GraphNode {
  int type = ortplugin::cuda::kKernelNode;
  std::vector<GraphNode*> from;
  std::vector<ortplugin::cuda::EdgeData> edges;  // from each of them
  unsigned next_waits = 0;  // the second argument of a kernel that has two
  void* arguments[2] = {nullptr, nullptr};
};

struct Stream {
  bool is_capturing = false;
  unsigned long long capture = 0;
  std::vector<GraphNode*> last;  // what comes next depends on these,
  std::vector<ortplugin::cuda::EdgeData> edges;  // by these edges
  size_t launches = 0;
};

// What the driver answers, until it is told otherwise.
struct Answers {
  int version = 13000;  // CUDA's, as cuDriverGetVersion gives it
  ortplugin::DeviceFacts gpu = test::H200();
  ortplugin::cuda::Result load = 1, launch = 0;
  std::string loaded;  // the first bytes of the code that was to be loaded
};

// Functions of the library, by dlsym. A kernel whose Function is kTwoParameters has two.
using BeginCapture = Stream* (*)();
using AddNode = GraphNode* (*)(int type, unsigned char edge_type);
using TheAnswers = Answers* (*)();
constexpr long kOneParameter = 1, kTwoParameters = 2;

// Opens the library. By its name it takes the place of the driver, which cuda_driver.cc opens later.
inline void* Open(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  CHECK_WITH(library != nullptr, std::string("no fake driver: ") + path);
  return library;
}

}  // namespace fake
