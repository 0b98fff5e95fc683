// Kernels need addresses that are multiples of 16 bytes, as ONNX Runtime's are. Where the caller put a tensor elsewhere
// it is copied into scratch memory before the first kernel, or out of it after the last one.
#pragma once

#include <cstddef>
#include <vector>

#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// The numbers of the addresses that need a copy.
std::vector<size_t> UnalignedTensors(const std::vector<void*>& addresses);

// The copies of one plan. Tensors are numbered: the node's inputs, then its outputs.
class AlignedCopies {
 public:
  // Of no elements there is nothing to copy.
  void Add(size_t tensor, DType dtype, const Shape& shape, const DeviceFacts& device);
  size_t bytes() const { return bytes_; }  // of scratch memory

  // Copies those tensors to `scratch` that are inputs, the first `inputs` ones. Returns all addresses, those of the
  // copies in place of the tensors' own.
  std::vector<void*> CopyInputs(
    const DeviceFacts& device, cuda::Stream stream, size_t inputs, std::vector<void*> addresses, char* scratch) const;
  // Copies the outputs back. `addresses`: the tensors' own; `copies`: what CopyInputs returned.
  void CopyOutputs(const DeviceFacts& device, cuda::Stream stream, size_t inputs, const std::vector<void*>& addresses,
    const std::vector<void*>& copies) const;

 private:
  struct Copy {
    size_t tensor;
    size_t bytes;
    PointwisePlan plan;
  };
  std::vector<Copy> copies_;
  size_t bytes_ = 0;
};

}  // namespace ortplugin
