// One contraction: what a convolution, a transposed convolution and their gradients have in common in one run. A matrix
// product is one with windows of one element, its rows the pixels (passes/conv/matmul_to_conv.py) or the batch
// (gemm_to_conv.py).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// One spatial dimension.
struct Window {
  int64_t kernel = 1, stride = 1, dilation = 1;
  int64_t pad_begin = 0, pad_end = 0;  // the padding; what is cut off the ends of a transposed convolution's result
  int64_t size = 1, out = 1;  // of input and result
  int64_t extent() const { return (kernel - 1) * dilation + 1; }
  // Whether every element of the input is one of the result.
  bool is_pointwise() const { return kernel * stride == 1 && pad_begin == 0 && pad_end == 0 && size == out; }
};

struct Contraction {
  // Every sum is made in `accumulator` and rounded to `value`, which the program gets as its first parameter.
  struct Dtypes {
    DType x, w, accumulator, value;
  };
  Dtypes dtypes = AllOf(DType::kFloat16);
  bool allow_tf32 = false;  // of float32: products of operands rounded to 10 bits of mantissa

  bool transposed = false;  // each element of X is added to a window of the result, in place of the reverse
  int64_t batch = 1, groups = 1, channels = 1, filters = 1;  // channels: of X; filters: of the result
  std::vector<Window> windows;

  // The layout of X, W, the operands and the result: with channels last [N, .., C] and W [M, .., C/groups], else
  // [N, C, ..] and W [M, C/groups, ..]. With channels last X, or the outputs of a transposed convolution, may still
  // have them first.
  bool channels_last = true, x_channels_first = false, y_channels_first = false;

  // The epilogue. Its operands are the program's second parameter and on; they broadcast to the result's shape.
  std::shared_ptr<const Program> program;
  Shapes operands;
  // The program's second parameter is the value of X with one more W, the input behind W. Of gemm and gemv; it is none
  // of `operands`.
  bool gated = false;
  bool constant_weights = false;  // W is an initializer, so no kernel in front writes it; with a gate both are
  std::vector<bool> constant_operands;  // which of the operands are; empty: none
  // W is that of the convolution that this one is the data gradient of: [channels, filters/groups, ..], rotated by 180
  // degrees.
  bool rotated_weights = false;
  // Kernels of our NHWC engines are given heights and widths in each launch: one kernel is for all of them then, and up
  // to a tenth slower than one that is compiled for its size (H100, 2026-11-27: split_k 3%, depthwise 10%).
  bool has_open_sizes = false;

  // Those of operands that have `dtype`, whose sums are made in float32, of double in double.
  static Dtypes AllOf(DType dtype);
  // The dtype that X, W and the value have, as every kernel so far wants it.
  DType dtype() const { return dtypes.x; }

  // Of two spatial dimensions.
  Window& rows() { return windows[0]; }
  Window& columns() { return windows[1]; }
  const Window& rows() const { return windows[0]; }
  const Window& columns() const { return windows[1]; }

  // With X and the result in each other's place.
  Contraction Reversed() const;
  // Of three spatial dimensions two, in TF32 where channels are last and every operand allows it: frames in which
  // nothing moves are images of the batch, and images in which nothing does are one row each. cuDNN knows two best
  // there.
  Contraction WithMergedFrames() const;

  int64_t group_channels() const { return channels / groups; }
  int64_t group_filters() const { return filters / groups; }
  bool is_empty() const;  // every sum is one of nothing
  Shape x() const;  // as they lie
  Shape w() const;
  Shape output() const;
  Shape result() const;  // what the operands broadcast to: the outputs' shape in the node's layout
  Shape x_first() const, w_first() const, result_first() const;  // with channels first, whatever the layout
  Shape strides() const, dilations() const, pads() const, kernel() const;  // as ONNX's attributes
};

// A shape with channels last, of data or weights, with channels first, and back.
Shape ChannelsFirst(const Shape& last);
Shape ChannelsLast(const Shape& first);
// For a kernel in two dimensions: IMAGE_H, .., PAD_LEFT. `open_sizes`: lengths of more than one element are read from
// its Arguments `a`.
std::string WindowMacros(const Contraction& problem, bool open_sizes = false);

}  // namespace ortplugin
