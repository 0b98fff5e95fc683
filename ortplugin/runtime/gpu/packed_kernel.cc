#include "ortplugin/runtime/gpu/packed_kernel.h"

#include <algorithm>

#include "ortplugin/runtime/gpu/cuda_driver.h"

namespace ortplugin::cuda {

// CUtensorMapDataType and the enumerations beside it.
constexpr int kMapUint16 = 1, kMapPlain = 0, kMapSwizzle128 = 3, kMapPromote128 = 2, kMapZeros = 0;

static void Encode(const TensorMap& map, uint64_t address, uint64_t* words) {
  const Driver& driver = TheDriver();
  if (driver.cuTensorMapEncodeTiled == nullptr) Fail("the CUDA driver has no tensor maps: update it to 12.0 or later");
  constexpr uint32_t kBoxColumns = 64;
  const uint64_t sizes[] = {map.columns, map.rows}, pitches[] = {map.columns * 2};
  const uint32_t box[] = {kBoxColumns, map.box_rows}, steps[] = {1, 1};
  alignas(64) uint64_t encoded[kTensorMapWords];
  CheckDriver(driver.cuTensorMapEncodeTiled(encoded, kMapUint16, 2, reinterpret_cast<void*>(address), sizes, pitches,
                                            box, steps, kMapPlain, kMapSwizzle128, kMapPromote128, kMapZeros),
              "cuTensorMapEncodeTiled");
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
