// Layouts of the CPU: how tensors lie in host memory, changed on all of ONNX Runtime's threads. dtype, order of axes,
// and what of X a convolution meets.
#pragma once

#include <cstdint>

#include "ortplugin/ops/conv/geometry.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/ort/standard_operator.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// The same `count` matrices [rows, columns] as [columns, rows], elements of `size` bytes: 1, 2, 4 or 8. The two must
// not overlap. Without `run`, on this thread.
void Transpose(Run* run, const void* from, void* to, int64_t count, int64_t rows, int64_t columns, size_t size);

// Elements of a floating dtype as float, those of double as they are.
void Widen(Run* run, DType dtype, const void* from, void* to, int64_t count);

// A tensor's elements as the CPU's kernels of convolutions take them: float, or double, channels first.
class HostOperand {
 public:
  // `shape`: as the tensor lies, channels last where `channels_last` says so. Keeps `data` where nothing changes.
  HostOperand(
    Run* run, const HostScratch& scratch, DType dtype, const void* data, const Shape& shape, bool channels_last);
  const void* data() const { return data_; }

 private:
  const void* data_;
  HostScratch::Buffer owned_, between_;
};

// Columns [channels * taps, pixels of the result] of one image, channels first: the matrix that the weights multiply.
void Unfold(Run& run, const Contraction& shape, const double* image, double* columns);

// Of X, channels last, the pixels of `bytes` each that the strides of a 1x1 convolution leave.
void KeepPixels(Run& run, const Contraction& shape, size_t bytes, const void* from, void* to);

}  // namespace ortplugin
