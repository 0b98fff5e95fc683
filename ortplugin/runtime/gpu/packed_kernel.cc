#include "ortplugin/runtime/gpu/packed_kernel.h"

#include <algorithm>
#include <array>

#include "ortplugin/runtime/gpu/cuda_driver.h"

namespace ortplugin::cuda {

// CUtensorMapDataType and the enumerations beside it.
constexpr int kMapUint16 = 1, kMapFloat = 7, kMapTf32 = 11, kMapPlain = 0, kMapSwizzle128 = 3, kMapPromote128 = 2,
              kMapZeros = 0;

static void Encode(const TensorMap& map, uint64_t address, uint64_t* words) {
  const Driver& driver = TheDriver();
  if (driver.cuTensorMapEncodeTiled == nullptr) Fail("the CUDA driver has no tensor maps: update it to 12.0 or later");
  const uint32_t size = map.element == Element::kHalf ? 2 : 4;
  std::vector<uint64_t> pitches(map.steps);
  for (uint64_t& pitch : pitches) pitch *= size;
  std::vector<uint32_t> box(map.sizes.size(), 1), steps(map.sizes.size(), 1);
  box[0] = 128 / size;
  box[1] = map.box_rows;
  if (box.size() > 2) box[2] = map.box_matrices;
  alignas(64) uint64_t encoded[kTensorMapWords];
  const int dtype = std::array{kMapUint16, kMapTf32, kMapFloat}[size_t(map.element)];
  const auto rank = uint32_t(map.sizes.size());
  void* const from = reinterpret_cast<void*>(address + size * map.offset);
  if (map.im2col) {
    std::copy(map.im2col->strides, map.im2col->strides + 2, steps.begin() + 1);
    CheckDriver(
      driver.cuTensorMapEncodeIm2col(encoded, dtype, rank, from, map.sizes.data(), pitches.data(), map.im2col->lower,
        map.im2col->upper, box[0], box[1], steps.data(), kMapPlain, kMapSwizzle128, kMapPromote128, kMapZeros),
      "cuTensorMapEncodeIm2col");
  } else {
    CheckDriver(driver.cuTensorMapEncodeTiled(encoded, dtype, rank, from, map.sizes.data(), pitches.data(), box.data(),
                  steps.data(), kMapPlain, kMapSwizzle128, kMapPromote128, kMapZeros),
      "cuTensorMapEncodeTiled");
  }
  std::copy(encoded, encoded + kTensorMapWords, words);
}

void PackedKernel::Launch(const DeviceFacts& device, Stream stream, const void* const* addresses, size_t count) const {
  std::vector<uint64_t> numbers = arguments;
  std::transform(addresses, addresses + count, numbers.begin(),
    [](const void* address) { return reinterpret_cast<uintptr_t>(address); });
  for (const TensorMap& map : maps) Encode(map, numbers[map.address], numbers.data() + map.word);
  void* parameters[] = {numbers.data()};
  cuda::Launch(device, function, launch, stream, parameters);
}

}  // namespace ortplugin::cuda
