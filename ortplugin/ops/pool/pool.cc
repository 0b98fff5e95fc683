#include "ortplugin/ops/pool/pool.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ortplugin/runtime/round_up.h"
#include "ortplugin/runtime/ort/choose.h"

namespace ortplugin {
namespace {

constexpr int64_t kLargest = (int64_t{1} << 31) - 1;  // of every number: products of two have no overflow then

template <typename Source>
bool Flag(const Source& source, const char* name) {
  const int64_t value = source.int_attribute(name, 0);
  if (value != 0 && value != 1) Fail("the attribute '", name, "' is ", value, " but must be 0 or 1");
  return value != 0;
}

// `count` numbers; `absent` of them where the attribute is.
template <typename Source>
std::vector<int64_t> Numbers(const Source& source, const char* name, size_t count, int64_t least, int64_t absent) {
  std::vector<int64_t> numbers = source.ints_attribute(name);
  if (numbers.empty()) return std::vector<int64_t>(count, absent);
  if (numbers.size() != count)
    Fail("the attribute '", name, "' has ", numbers.size(), " numbers, ", ToString(numbers), ", but takes ", count);
  for (const int64_t number : numbers)
    if (number < least || number > kLargest)
      Fail("the attribute '", name, "' is ", ToString(numbers), "; its numbers must be from ", least, " to ", kLargest);
  return numbers;
}

constexpr const char* kLayouts[] = {"NCHW", "NHWC"};

void CheckSpatial(const char* name, size_t spatial) {
  if (spatial == 0 || spatial > kMostSpatial)
    Fail("the attribute '", name, "' has ", spatial, " numbers; there must be 1 to ", kMostSpatial);
}

template <typename Source>
PoolAttributes ParsePool(const Source& source) {
  constexpr const char* kKinds[] = {"max", "average", "global_average", "global_max"};
  constexpr const char* kAutoPads[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
  PoolAttributes attributes;
  const size_t kind = Choose("kind", source.string_attribute("kind"), kKinds);
  attributes.is_max = kind == 0 || kind == 3;
  attributes.is_global = kind >= 2;
  attributes.channels_last = Choose("layout", source.string_attribute("layout", "NCHW"), kLayouts) == 1;
  attributes.auto_pad = kAutoPads[Choose("auto_pad", source.string_attribute("auto_pad", "NOTSET"), kAutoPads)];
  attributes.ceil_mode = Flag(source, "ceil_mode");
  attributes.count_include_pad = Flag(source, "count_include_pad");
  attributes.kernel = source.ints_attribute("kernel_shape");
  if (attributes.is_global) {
    bool has_windows = attributes.auto_pad != "NOTSET" || attributes.ceil_mode || attributes.count_include_pad ||
      !attributes.kernel.empty();
    for (const char* name : {"strides", "dilations", "pads"})
      has_windows = has_windows || !source.ints_attribute(name).empty();
    if (has_windows) Fail("attributes of windows stand beside kind '", kKinds[kind], "', which has none; remove them");
    return attributes;
  }
  if (attributes.kernel.empty()) Fail("the attribute 'kernel_shape' is missing");
  const size_t spatial = attributes.kernel.size();
  CheckSpatial("kernel_shape", spatial);
  attributes.kernel = Numbers(source, "kernel_shape", spatial, 1, 1);
  attributes.strides = Numbers(source, "strides", spatial, 1, 1);
  attributes.dilations = Numbers(source, "dilations", spatial, 1, 1);
  attributes.pads = Numbers(source, "pads", 2 * spatial, 0, 0);
  if (attributes.is_max && attributes.count_include_pad)
    Fail("count_include_pad is 1 beside kind 'max', which counts nothing; remove it");
  const bool is_same = attributes.auto_pad == "SAME_UPPER" || attributes.auto_pad == "SAME_LOWER";
  if (attributes.auto_pad != "NOTSET" && *std::max_element(attributes.pads.begin(), attributes.pads.end()) > 0)
    Fail("pads is ", ToString(attributes.pads), " beside auto_pad ", attributes.auto_pad, "; remove one of them");
  if (is_same && *std::max_element(attributes.dilations.begin(), attributes.dilations.end()) > 1)
    Fail("dilations is ", ToString(attributes.dilations), " beside auto_pad ", attributes.auto_pad,
      "; write the pads instead");
  for (size_t i = 0; i < attributes.pads.size(); ++i)
    if (attributes.pads[i] >= attributes.kernel[i % spatial])
      Fail("pads is ", ToString(attributes.pads), ", but each must be smaller than the kernel, ",
        ToString(attributes.kernel));
  return attributes;
}

PoolWindow WindowOf(const PoolAttributes& attributes, size_t axis, int64_t size) {
  if (size > kLargest) Fail("spatial axis ", axis, " of the input has ", size, " elements, more than ", kLargest);
  PoolWindow window;
  window.size = size;
  if (attributes.is_global) {
    window.kernel = std::max<int64_t>(1, size);
    window.pad_end = window.kernel - size;  // of no elements: one window, of padding alone
    return window;
  }
  window.kernel = attributes.kernel[axis];
  window.stride = attributes.strides[axis];
  window.dilation = attributes.dilations[axis];
  window.pad_begin = attributes.pads[axis];
  window.pad_end = attributes.pads[axis + attributes.kernel.size()];
  const int64_t extent = (window.kernel - 1) * window.dilation + 1;
  if (attributes.auto_pad == "SAME_UPPER" || attributes.auto_pad == "SAME_LOWER") {
    const int64_t outs = (size + window.stride - 1) / window.stride;
    const int64_t total = std::max<int64_t>((outs - 1) * window.stride + extent - size, 0);
    window.pad_begin = attributes.auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    window.pad_end = total - window.pad_begin;
  }
  // Where the kernel is larger than the padded input, ONNX Runtime rounds toward 0: so there may be a window that
  // reaches beyond, or none. It refuses what would be less than none.
  const int64_t room = size + window.pad_begin + window.pad_end - extent;
  window.out = room / window.stride + 1;
  if (window.out < 0)
    Fail("the kernel spans ", extent, " elements on spatial axis ", axis, ", but the padded input has only ",
      size + window.pad_begin + window.pad_end);
  if (attributes.ceil_mode) {
    if (room > 0) window.out = DivideUp(room, window.stride) + 1;
    if ((window.out - 1) * window.stride >= size + window.pad_begin) --window.out;  // it would begin in the padding
  }
  return window;
}

// Where an input of `rank` dimensions has its spatial ones. Throws Error where it has another number than `spatial`; 0:
// 1 to 3.
size_t FirstSpatial(size_t rank, size_t spatial, bool channels_last) {
  const bool fits = spatial > 0 ? rank == spatial + 2 : rank > 2 && rank <= kMostSpatial + 2;
  if (!fits && spatial > 0) Fail("the input has ", rank, " dimensions, but must have ", spatial + 2);
  if (!fits) Fail("the input has ", rank, " dimensions, but must have 3 to ", kMostSpatial + 2);
  return channels_last ? 1 : 2;
}

// Calls out(axis, size) for each spatial size that is known and puts its result in its place. A size of 0 is not known:
// onnx's inference says 0 of the open lengths of an Attention.
template <typename Out>
void SetSizes(TensorType& type, size_t spatial, bool channels_last, int64_t unknown, Out out) {
  const size_t first = FirstSpatial(type.shape.size(), spatial, channels_last);
  for (size_t axis = 0; axis + 2 < type.shape.size(); ++axis) {
    int64_t& size = type.shape[first + axis];
    size = size > 0 ? out(axis, size) : unknown > 0 ? out(axis, unknown) : -1;
    if (first + axis < type.symbols.size()) type.symbols[first + axis].clear();
  }
}

// The output's type, of a node with one input; the rest as SetSizes has it.
template <typename Attributes, typename Out>
void Infer(ShapeContext& context, const Attributes& attributes, void (*check)(const Attributes&, ort::ElementType),
  size_t spatial, int64_t unknown, Out out) {
  if (context.input_count() != 1) Fail("the node has ", context.input_count(), " inputs, but must have 1");
  TensorType type = context.input(0);
  if (type.type != ort::kUndefined) check(attributes, type.type);
  if (type.has_shape) SetSizes(type, spatial, attributes.channels_last, unknown, out);
  context.set_output(0, type);
}

void InferPool(ShapeContext& context) {
  const PoolAttributes attributes = PoolAttributes::Parse(context);
  Infer(context, attributes, CheckPoolType, attributes.kernel.size(), attributes.is_global ? 1 : 0,
    [&](size_t axis, int64_t size) { return WindowOf(attributes, axis, size).out; });
}

template <typename Source>
ResizeAttributes ParseResize(const Source& source) {
  constexpr const char* kModes[] = {"nearest", "linear"};
  constexpr const char* kCoordinates[] = {"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"};
  constexpr const char* kNearestModes[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
  const char* const kCoordinate = "coordinate_transformation_mode";
  ResizeAttributes attributes;
  attributes.is_linear = Choose("mode", source.string_attribute("mode", "nearest"), kModes) == 1;
  attributes.coordinates =
    static_cast<Coordinates>(Choose(kCoordinate, source.string_attribute(kCoordinate, "half_pixel"), kCoordinates));
  attributes.nearest = static_cast<NearestMode>(
    Choose("nearest_mode", source.string_attribute("nearest_mode", "round_prefer_floor"), kNearestModes));
  attributes.channels_last = Choose("layout", source.string_attribute("layout", "NCHW"), kLayouts) == 1;
  attributes.sizes = source.ints_attribute("sizes");
  attributes.scales = source.floats_attribute("scales");
  if (attributes.sizes.empty() == attributes.scales.empty())
    Fail("it needs the attribute 'sizes' or 'scales', and not both");
  CheckSpatial(attributes.sizes.empty() ? "scales" : "sizes", attributes.spatial());
  if (!attributes.sizes.empty()) attributes.sizes = Numbers(source, "sizes", attributes.sizes.size(), 1, 1);
  for (const float scale : attributes.scales)
    if (!(scale > 0) || scale > std::numeric_limits<float>::max())
      Fail("the attribute 'scales' has ", scale, "; its numbers must be positive");
  return attributes;
}

// As in ONNX Runtime an axis without elements has none whatever its scale, and a small scale may leave none.
int64_t OutSize(const ResizeAttributes& attributes, size_t axis, int64_t size) {
  if (size > kLargest) Fail("spatial axis ", axis, " of the input has ", size, " elements, more than ", kLargest);
  if (!attributes.sizes.empty()) {
    if (size == 0)
      Fail("spatial axis ", axis, " of the input has no elements, of which 'sizes' asks for ", attributes.sizes[axis]);
    return attributes.sizes[axis];
  }
  const float out = float(size) * attributes.scales[axis];
  if (!(out <= float(kLargest)))
    Fail("the scale ", attributes.scales[axis], " makes ", out, " elements of the ", size, " on spatial axis ", axis,
      "; there must be at most ", kLargest);
  return int64_t(out);
}

void InferResize(ShapeContext& context) {
  const ResizeAttributes attributes = ResizeAttributes::Parse(context);
  Infer(context, attributes, CheckResizeType, attributes.spatial(), attributes.sizes.empty() ? 0 : 1,
    [&](size_t axis, int64_t size) { return OutSize(attributes, axis, size); });
}

}  // namespace

// Shape inference refuses it too, but ORT goes on without it.
static const NodeInfo& OneInput(const NodeInfo& info) {
  if (info.input_count() != 1 || info.output_count() != 1)
    Fail("the node has ", info.input_count(), " inputs and ", info.output_count(), " outputs, but must have 1 of each");
  return info;
}

PoolAttributes PoolAttributes::Parse(const NodeInfo& info) { return ParsePool(OneInput(info)); }
PoolAttributes PoolAttributes::Parse(const ShapeContext& context) { return ParsePool(context); }
ResizeAttributes ResizeAttributes::Parse(const NodeInfo& info) { return ParseResize(OneInput(info)); }
ResizeAttributes ResizeAttributes::Parse(const ShapeContext& context) { return ParseResize(context); }

void CheckPoolType(const PoolAttributes& attributes, ort::ElementType type) {
  const std::optional<DType> dtype = FromOrt(type);
  const bool is_byte = type == ort::kInt8 || type == ort::kUInt8;
  if (dtype && (IsFloating(*dtype) || (is_byte && attributes.is_max))) return;
  Fail("the input is ", NameOfOrt(type), ", of which there is no ", attributes.is_max ? "maximum" : "average",
    "; cast it");
}

void CheckResizeType(const ResizeAttributes& attributes, ort::ElementType type) {
  const std::optional<DType> dtype = FromOrt(type);
  const bool is_integer = type == ort::kInt8 || type == ort::kUInt8 || type == ort::kInt32;
  if (dtype && (IsFloating(*dtype) || (is_integer && !attributes.is_linear))) return;
  Fail("the input is ", NameOfOrt(type), ", of which there is no ", attributes.is_linear ? "linear" : "nearest",
    " resizing; cast it");
}

PoolShape FitPool(const PoolAttributes& attributes, const Shape& input) {
  const size_t first = FirstSpatial(input.size(), attributes.kernel.size(), attributes.channels_last);
  const size_t spatial = input.size() - 2;
  PoolShape shape{input, input[0], 1, {}, true};
  (attributes.channels_last ? shape.inner : shape.outer) *= attributes.channels_last ? input.back() : input[1];
  for (size_t axis = 0; axis < spatial; ++axis) {
    if (input[first + axis] == 0 && input[0] > 0 && !attributes.is_global)  // as in ONNX Runtime
      Fail("spatial axis ", axis, " of the input has no elements, so nothing can be pooled");
    const PoolWindow window = WindowOf(attributes, axis, input[first + axis]);
    shape.windows[kMostSpatial - spatial + axis] = window;
    shape.output[first + axis] = window.out;
    shape.is_global = shape.is_global && window.out == 1 && window.pad_begin == 0 && window.pad_end == 0 &&
      window.dilation == 1 && window.kernel == window.size;
  }
  ElementCount(shape.output);
  return shape;
}

ResizeShape FitResize(const ResizeAttributes& attributes, const Shape& input) {
  const size_t first = FirstSpatial(input.size(), attributes.spatial(), attributes.channels_last);
  const size_t spatial = input.size() - 2;
  ResizeShape shape{input, input[0], 1, {}};
  (attributes.channels_last ? shape.inner : shape.outer) *= attributes.channels_last ? input.back() : input[1];
  bool is_copy = true;
  for (size_t axis = 0; axis < spatial; ++axis) {
    ResizeAxis& resized = shape.axes[kMostSpatial - spatial + axis];
    resized.size = input[first + axis];
    resized.out = shape.output[first + axis] = OutSize(attributes, axis, resized.size);
    const float scale = attributes.scales.empty() ? float(resized.out) / float(resized.size) : attributes.scales[axis];
    is_copy = is_copy && scale == 1;
    resized.divisor = scale;
    resized.is_constant = false;
    switch (attributes.coordinates) {
      case Coordinates::kHalfPixel: resized.shift = 0.5f; break;
      case Coordinates::kPyTorchHalfPixel:
        resized.shift = 0.5f;
        resized.is_constant = resized.out == 1;
        break;
      case Coordinates::kAsymmetric: break;
      case Coordinates::kAlignCorners:
        resized.factor = float(resized.size - 1);
        resized.divisor = float(resized.out - 1);
        resized.is_constant = resized.out == 1;
        break;
    }
  }
  ElementCount(shape.output);
  if (is_copy) {  // of whole images, as in ONNX Runtime: no element meets another, not even with weight 0
    shape.inner *= shape.pixels();
    shape.axes = {};
  }
  return shape;
}

float ResizeAxis::At(int64_t o) const { return is_constant ? 0 : (float(o) + shift) * factor / divisor - shift; }

int64_t NearestOf(NearestMode mode, float at, int64_t size) {
  constexpr float kTie = 1e-6f;  // what counts as in the middle of two elements, as in ONNX Runtime: see pool.h
  const float below = std::floor(at), part = at - below;  // both exact
  bool is_next = false;
  switch (mode) {
    case NearestMode::kRoundPreferFloor: is_next = part - 0.5f > kTie; break;
    case NearestMode::kRoundPreferCeil: is_next = part - 0.5f >= -kTie; break;
    case NearestMode::kFloor: break;
    case NearestMode::kCeil: is_next = part > 0; break;
  }
  return std::clamp(int64_t(below) + (is_next ? 1 : 0), int64_t{0}, size - 1);
}

const Operator kFusedPool = {
  "FusedPool",
  InferPool,
  CreateCpuPool,
  CreateCudaPool,
};

const Operator kFusedResize = {
  "FusedResize",
  InferResize,
  CreateCpuResize,
  CreateCudaResize,
};

}  // namespace ortplugin
