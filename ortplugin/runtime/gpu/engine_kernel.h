// What an engine makes for one problem: a kernel as text, and how it is launched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/packed_kernel.h"

namespace ortplugin {

struct EngineKernel {
  std::string source;
  const char* entry;
  cuda::LaunchShape launch;
  std::vector<uint64_t> arguments;  // addresses of the inputs and outputs, which are still 0, then numbers
  std::vector<cuda::TensorMap> maps = {};

  // Compiled and loaded, ready to launch.
  cuda::PackedKernel Load(const DeviceFacts& device) const;
};

}  // namespace ortplugin
