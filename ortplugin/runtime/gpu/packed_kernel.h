// A kernel whose one parameter is an array of numbers: addresses, which differ from launch to launch, and the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin::cuda {

// A matrix of elements of 16 bits, row by row without gaps, as Hopper's copy engine (TMA) reads it: in boxes of
// `box_rows` rows and 128 bytes of each, with the 128-byte swizzle, zeros where the matrix ends.
struct TensorMap {
  size_t word;     // of the array: where its 16 words stand, a multiple of 8
  size_t address;  // which of the addresses is the matrix's
  uint64_t rows, columns;
  uint32_t box_rows;
};
constexpr size_t kTensorMapWords = 16;

struct PackedKernel {
  Function function = nullptr;
  LaunchShape launch{};
  std::vector<uint64_t> arguments;  // addresses first, which are still 0
  std::vector<TensorMap> maps = {};

  // Asynchronous, on ORT's stream.
  void Launch(const DeviceFacts& device, Stream stream, const void* const* addresses, size_t count) const;
};

}  // namespace ortplugin::cuda
