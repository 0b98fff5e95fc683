// A kernel whose one parameter is an array of numbers: addresses, which differ from launch to launch, and the rest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin::cuda {

struct PackedKernel {
  Function function = nullptr;
  LaunchShape launch{};
  std::vector<uint64_t> arguments;  // addresses first, which are still 0

  // Asynchronous, on ORT's stream.
  void Launch(const DeviceFacts& device, Stream stream, const void* const* addresses, size_t count) const {
    std::vector<uint64_t> numbers = arguments;
    std::transform(addresses, addresses + count, numbers.begin(),
                   [](const void* address) { return reinterpret_cast<uintptr_t>(address); });
    void* parameters[] = {numbers.data()};
    cuda::Launch(device, function, launch, stream, parameters);
  }
};

}  // namespace ortplugin::cuda
