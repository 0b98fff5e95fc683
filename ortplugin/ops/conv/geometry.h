// The geometry of convolutions and transposed convolutions: attributes, padding and sizes, as ONNX has them. The same
// is in Python in ortplugin/graph/conv_geometry.py.
#pragma once

#include <cstdint>

#include "ortplugin/ops/contraction.h"
#include "ortplugin/runtime/ort/node_text.h"
#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

enum class AutoPad : uint8_t { kNotSet, kSameUpper, kSameLower, kValid };

// The attributes of a node, checked against each other. Those that are absent are empty.
struct ConvAttributes {
  bool transposed;
  AutoPad auto_pad;
  bool channels_last;
  bool x_channels_first;  // X is NCHW although the layout is NHWC
  bool y_channels_first;  // so has every output, of a transposed convolution
  int64_t groups;
  Shape kernel_shape, strides, dilations, pads;  // pads: all begins, then all ends
  Shape output_padding, output_shape;  // of a transposed convolution

  size_t spatial() const;  // dimensions; 0 where no attribute says how many
  int64_t stride(size_t axis) const { return strides.empty() ? 1 : strides[axis]; }
  int64_t dilation(size_t axis) const { return dilations.empty() ? 1 : dilations[axis]; }
};

// Throws Error with the attribute and its value where one is none of the operator's.
ConvAttributes ReadConvAttributes(const ShapeContext& node, bool transposed);
ConvAttributes ReadConvAttributes(const NodeInfo& node, bool transposed);
ConvAttributes ReadConvAttributes(const NodeText& node, bool transposed);

// Batch, groups, channels, windows and layouts of a run. Throws Error where X, W and the attributes contradict each
// other, or a size has no end.
Contraction FitConv(const ConvAttributes& attributes, const Shape& x, const Shape& w);

// The result's shape as far as it is known early, without an element type. Throws Error as FitConv.
TensorType InferConv(const ConvAttributes& attributes, const TensorType& x, const TensorType& w);

// The outputs', from the result's.
TensorType InferOutput(const ConvAttributes& attributes, const TensorType& result);

}  // namespace ortplugin
