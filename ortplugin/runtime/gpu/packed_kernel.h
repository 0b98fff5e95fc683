// A kernel whose one parameter is an array of numbers: addresses, which differ from launch to launch, and the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin::cuda {

// A convolution's images [N, H, W, C], as TMA reads them for one tap: in place of rows the pixels that results see of
// it, one after another over all images, of which those beyond the edges are zero. In the order W, H.
struct Im2col {
  int lower[2], upper[2];  // where the first tap of the first result is, and of the last one, from the last pixel on
  uint32_t strides[2];
};

// Of 16 bits, or of fp32, which kTf32 rounds.
enum class Element { kHalf, kTf32, kFloat };

// A tensor as Hopper's copy engine (TMA) reads and writes it: in
// boxes of 128 bytes of the innermost dimension and `box_rows` of the next one, with the 128-byte swizzle, zeros where
// the tensor ends.
struct TensorMap {
  size_t word;  // of the array: where its 16 words stand, a multiple of 8
  size_t address;  // which of the addresses is the tensor's
  std::vector<uint64_t> sizes;  // two to five, the innermost dimension's first, whose elements are neighbours
  std::vector<uint64_t> steps;  // of the other dimensions, in elements: multiples of 16 bytes below 2^40
  uint32_t box_rows;  // up to 256
  uint64_t offset = 0;  // where the tensor begins, in elements: a multiple of 16 bytes
  Element element = Element::kHalf;
  uint32_t box_matrices = 1;  // of rows, of the third dimension
  std::optional<Im2col> im2col = {};  // of the sizes C, W, H, N; the images have 128 KiB at least
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
