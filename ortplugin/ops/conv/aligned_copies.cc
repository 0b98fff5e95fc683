#include "ortplugin/ops/conv/aligned_copies.h"

#include <cstdint>
#include <string>

#include "ortplugin/runtime/ort/scratch.h"

namespace ortplugin {

std::vector<size_t> UnalignedTensors(const std::vector<void*>& addresses) {
  constexpr uintptr_t kAlignment = 16;
  std::vector<size_t> tensors;
  for (size_t i = 0; i < addresses.size(); ++i)
    if (reinterpret_cast<uintptr_t>(addresses[i]) % kAlignment != 0) tensors.push_back(i);
  return tensors;
}

void AlignedCopies::Add(size_t tensor, DType dtype, const Shape& shape, const DeviceFacts& device) {
  if (ElementCount(shape) == 0) return;
  const std::string name = NameOf(dtype);
  const Program copy = Program::Parse("(" + name + " x) => (" + name + " x) {}");
  const size_t bytes = ScratchBytes(size_t(ElementCount(shape)) * SizeOf(dtype));
  copies_.push_back({tensor, bytes, PlanPointwise(copy, FitPointwise(copy, {shape}), device, 1)});
  bytes_ += bytes;
}

std::vector<void*> AlignedCopies::CopyInputs(
  const DeviceFacts& device, cuda::Stream stream, size_t inputs, std::vector<void*> addresses, char* scratch) const {
  for (const Copy& copy : copies_) {
    void*& address = addresses[copy.tensor];
    if (copy.tensor < inputs) RunPointwise(copy.plan, device, stream, {address}, {scratch});
    address = scratch;
    scratch += copy.bytes;
  }
  return addresses;
}

void AlignedCopies::CopyOutputs(const DeviceFacts& device, cuda::Stream stream, size_t inputs,
  const std::vector<void*>& addresses, const std::vector<void*>& copies) const {
  for (const Copy& copy : copies_)
    if (copy.tensor >= inputs) RunPointwise(copy.plan, device, stream, {copies[copy.tensor]}, {addresses[copy.tensor]});
}

}  // namespace ortplugin
