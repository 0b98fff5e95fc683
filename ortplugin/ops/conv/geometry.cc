#include "ortplugin/ops/conv/geometry.h"

#include <algorithm>

#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

constexpr int64_t kUnknown = -1;
constexpr int64_t kLargest = INT32_MAX;  // of every number: sums of products of two have no overflow
constexpr size_t kMostSpatial = 3;
constexpr const char* kAutoPads[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};

bool IsSame(AutoPad auto_pad) { return auto_pad == AutoPad::kSameUpper || auto_pad == AutoPad::kSameLower; }

void CheckList(const char* name, const Shape& values, size_t wanted, size_t spatial, int64_t least) {
  if (values.empty()) return;
  if (values.size() != wanted)
    Fail(name, " has ", values.size(), " numbers, ", ToString(values), "; for ", spatial,
      " spatial dimensions it takes ", wanted);
  for (const int64_t value : values)
    if (value < least || value > kLargest)
      Fail(name, " is ", ToString(values), "; its numbers must be from ", least, " to ", kLargest);
}

// Node: a ShapeContext, a NodeInfo or a NodeText.
template <typename Node>
ConvAttributes Read(const Node& node, bool transposed) {
  ConvAttributes attributes{};
  attributes.transposed = transposed;
  const std::string auto_pad = node.string_attribute("auto_pad", kAutoPads[0]);
  const auto* const known = std::find(std::begin(kAutoPads), std::end(kAutoPads), auto_pad);
  if (known == std::end(kAutoPads))
    Fail("auto_pad is ", Quoted(auto_pad), "; it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID");
  attributes.auto_pad = static_cast<AutoPad>(known - std::begin(kAutoPads));
  const std::string layout = node.string_attribute("layout", "NCHW");
  attributes.channels_last = layout == "NHWC";
  if (!attributes.channels_last && layout != "NCHW") Fail("layout is ", Quoted(layout), "; it must be NCHW or NHWC");
  const std::string input_layout = transposed ? layout : node.string_attribute("input_layout", layout.c_str());
  attributes.x_channels_first = input_layout != layout;
  if (attributes.x_channels_first && input_layout != "NCHW")
    Fail("input_layout is ", Quoted(input_layout), "; with the layout ", layout, " it must be ", layout,
      attributes.channels_last ? " or NCHW" : "");
  const std::string output_layout = transposed ? node.string_attribute("output_layout", layout.c_str()) : layout;
  attributes.y_channels_first = output_layout != layout;
  if (attributes.y_channels_first && output_layout != "NCHW")
    Fail("output_layout is ", Quoted(output_layout), "; with the layout ", layout, " it must be ", layout,
      attributes.channels_last ? " or NCHW" : "");
  attributes.groups = node.int_attribute("group", 1);
  if (attributes.groups < 1 || attributes.groups > kLargest)
    Fail("group is ", attributes.groups, "; it must be at least 1");
  attributes.kernel_shape = node.ints_attribute("kernel_shape");
  attributes.strides = node.ints_attribute("strides");
  attributes.dilations = node.ints_attribute("dilations");
  attributes.pads = node.ints_attribute("pads");
  if (transposed) {
    attributes.output_padding = node.ints_attribute("output_padding");
    attributes.output_shape = node.ints_attribute("output_shape");
  }
  const size_t spatial = attributes.spatial();
  if (spatial > kMostSpatial || (spatial == 0 && !attributes.pads.empty()))
    Fail("the attributes are of ", spatial, " spatial dimensions; there must be 1 to ", kMostSpatial);
  CheckList("kernel_shape", attributes.kernel_shape, spatial, spatial, 1);
  CheckList("strides", attributes.strides, spatial, spatial, 1);
  CheckList("dilations", attributes.dilations, spatial, spatial, 1);
  CheckList("pads", attributes.pads, 2 * spatial, spatial, 0);
  CheckList("output_padding", attributes.output_padding, spatial, spatial, 0);
  CheckList("output_shape", attributes.output_shape, spatial, spatial, 0);
  if (attributes.auto_pad != AutoPad::kNotSet &&
    std::any_of(attributes.pads.begin(), attributes.pads.end(), [](int64_t pad) { return pad != 0; }))
    Fail("pads is ", ToString(attributes.pads), " beside auto_pad ", auto_pad, "; remove one of them");
  if (attributes.channels_last && attributes.kernel_shape.empty())
    Fail("kernel_shape is missing; with the layout NHWC it must be given");
  return attributes;
}

int64_t At(const Shape& values, size_t axis, int64_t absent) { return values.empty() ? absent : values[axis]; }

// The size of a transposed convolution's result before anything is cut off.
int64_t WholeSize(const ConvAttributes& attributes, const Window& window, size_t axis) {
  return (window.size - 1) * window.stride + At(attributes.output_padding, axis, 0) + window.extent();
}

// Splits padding between begin and end. Of an odd one SAME_UPPER gives more to the end, everything else to the begin.
void Split(const ConvAttributes& attributes, int64_t total, Window* window) {
  const int64_t small = total / 2;
  window->pad_begin = attributes.auto_pad == AutoPad::kSameUpper ? small : total - small;
  window->pad_end = total - window->pad_begin;
}

// Sets padding and `out`, which are kUnknown where they depend on a size that is. `kernel` may be unknown too.
void Pad(const ConvAttributes& attributes, size_t axis, Window* window) {
  window->pad_begin = window->pad_end = 0;
  if (attributes.auto_pad == AutoPad::kNotSet && !attributes.pads.empty()) {
    window->pad_begin = attributes.pads[axis];
    window->pad_end = attributes.pads[axis + attributes.pads.size() / 2];
  }
  if (!IsSame(attributes.auto_pad)) return;
  const int64_t size = window->size == kUnknown && window->stride == 1 ? 1 : window->size;
  if (size == kUnknown || window->kernel == kUnknown) {
    window->pad_begin = window->pad_end = kUnknown;
    return;
  }
  const int64_t out = (size + window->stride - 1) / window->stride;
  Split(attributes, std::max<int64_t>((out - 1) * window->stride + window->extent() - size, 0), window);
}

void PadTransposed(const ConvAttributes& attributes, size_t axis, Window* window) {
  if (!IsSame(attributes.auto_pad) && attributes.output_shape.empty()) return Pad(attributes, axis, window);
  window->pad_begin = window->pad_end = kUnknown;
  if (window->size == kUnknown || window->kernel == kUnknown) return;
  const int64_t wanted = At(attributes.output_shape, axis, window->size * window->stride);
  Split(attributes, std::max<int64_t>(WholeSize(attributes, *window, axis) - wanted, 0), window);
}

void Size(const ConvAttributes& attributes, size_t axis, Window* window) {
  window->out = kUnknown;
  if (IsSame(attributes.auto_pad)) {
    if (window->size != kUnknown) window->out = (window->size + window->stride - 1) / window->stride;
    return;
  }
  if (window->size == kUnknown || window->kernel == kUnknown) return;
  const int64_t padded = window->size + window->pad_begin + window->pad_end;
  if (padded < window->extent())
    Fail("the kernel covers ", window->extent(), " elements of spatial axis ", axis,
      ", whose size with its padding is ", padded, "; pad more, or use a smaller kernel or dilation");
  window->out = (padded - window->extent()) / window->stride + 1;
}

void SizeTransposed(const ConvAttributes& attributes, size_t axis, Window* window) {
  window->out = At(attributes.output_shape, axis, kUnknown);
  if (!attributes.output_shape.empty() || window->size == kUnknown || window->kernel == kUnknown) return;
  const int64_t out = WholeSize(attributes, *window, axis) - window->pad_begin - window->pad_end;
  if (out < 0 || (out == 0 && window->size > 0))
    Fail("spatial axis ", axis, " of the result would have the size ", out, "; lower its pads");
  window->out = out;
}

// Checks X and W, channels first, sizes that may be unknown, against each other; gives the spatial dimensions.
std::vector<Window> Windows(const ConvAttributes& attributes, const Shape& x, const Shape& w) {
  if (x.size() != w.size() || x.size() < 3 || x.size() > kMostSpatial + 2)
    Fail("X has the shape ", ToString(x), " and W ", ToString(w),
      ", channels first; both must have one rank from 3 to ", kMostSpatial + 2);
  const size_t spatial = x.size() - 2;
  if (attributes.spatial() != 0 && attributes.spatial() != spatial)
    Fail("the attributes are of ", attributes.spatial(), " spatial dimensions, X and W of ", spatial);
  for (const Shape& shape : {x, w})
    for (const int64_t size : shape)
      if (size > kLargest) Fail("the shape ", ToString(shape), " has a size above ", kLargest);
  if (w[0] != kUnknown && w[0] % attributes.groups != 0)
    Fail("W has ", w[0], attributes.transposed ? " input" : " output", " channels, which ", attributes.groups,
      " groups do not divide");
  const int64_t wanted = attributes.transposed ? w[0] : w[1] == kUnknown ? kUnknown : w[1] * attributes.groups;
  if (x[1] != kUnknown && wanted != kUnknown && x[1] != wanted)
    Fail("X has ", x[1], " channels, W with ", attributes.groups, " groups is for ", wanted);
  std::vector<Window> windows;
  for (size_t axis = 0; axis < spatial; ++axis) {
    int64_t kernel = w[axis + 2];
    if (!attributes.kernel_shape.empty()) {
      if (kernel != kUnknown && kernel != attributes.kernel_shape[axis])
        Fail("kernel_shape is ", ToString(attributes.kernel_shape), ", but W has the shape ", ToString(w),
          ", channels first");
      kernel = attributes.kernel_shape[axis];
    }
    if (kernel == 0) Fail("W has the shape ", ToString(w), "; each size of its kernel must be at least 1");
    Window window{kernel, attributes.stride(axis), attributes.dilation(axis), 0, 0, x[axis + 2], 0};
    if (attributes.transposed) {
      PadTransposed(attributes, axis, &window);
      SizeTransposed(attributes, axis, &window);
    } else {
      Pad(attributes, axis, &window);
      Size(attributes, axis, &window);
    }
    windows.push_back(window);
  }
  return windows;
}

// Whether a size that is not known is that of the result too.
bool Keeps(const ConvAttributes& attributes, size_t axis, const Window& window) {
  if (window.stride != 1 || window.kernel == kUnknown) return false;
  if (IsSame(attributes.auto_pad)) return !attributes.transposed;
  const int64_t cut = window.pad_begin + window.pad_end;
  return window.extent() - 1 == (attributes.transposed ? cut - At(attributes.output_padding, axis, 0) : cut);
}

template <typename T>
std::vector<T> ToFirst(const std::vector<T>& last) {
  std::vector<T> first = last;
  if (last.size() > 2) std::rotate(first.begin() + 1, first.end() - 1, first.end());
  return first;
}

template <typename T>
std::vector<T> ToLast(const std::vector<T>& first) {
  std::vector<T> last = first;
  if (first.size() > 2) std::rotate(last.begin() + 1, last.begin() + 2, last.end());
  return last;
}

}  // namespace

size_t ConvAttributes::spatial() const {
  for (const Shape* values : {&kernel_shape, &strides, &dilations, &output_padding, &output_shape})
    if (!values->empty()) return values->size();
  return pads.size() / 2;
}

ConvAttributes ReadConvAttributes(const ShapeContext& node, bool transposed) { return Read(node, transposed); }
ConvAttributes ReadConvAttributes(const NodeInfo& node, bool transposed) { return Read(node, transposed); }
ConvAttributes ReadConvAttributes(const NodeText& node, bool transposed) { return Read(node, transposed); }

Contraction FitConv(const ConvAttributes& attributes, const Shape& x, const Shape& w) {
  const bool is_last = attributes.channels_last && !attributes.x_channels_first;
  const Shape data = is_last ? ToFirst(x) : x;
  const Shape weights = attributes.channels_last ? ToFirst(w) : w;
  Contraction contraction;
  contraction.transposed = attributes.transposed;
  contraction.windows = Windows(attributes, data, weights);
  contraction.batch = data[0];
  contraction.channels = data[1];
  contraction.groups = attributes.groups;
  contraction.filters = attributes.transposed ? weights[1] * attributes.groups : weights[0];
  contraction.channels_last = attributes.channels_last;
  contraction.x_channels_first = attributes.x_channels_first;
  contraction.y_channels_first = attributes.y_channels_first;
  ElementCount(contraction.result());
  return contraction;
}

TensorType InferConv(const ConvAttributes& attributes, const TensorType& x, const TensorType& w) {
  // ORT may show a tensor of unknown shape as a scalar, which neither X nor W can be. A kernel refuses a real one
  // before it gets here: whoever indexes a shape that a model gives has checked its rank.
  const bool has_x = x.has_shape && !x.shape.empty(), has_w = w.has_shape && !w.shape.empty();
  size_t rank = attributes.spatial() == 0 ? 0 : attributes.spatial() + 2;
  if (has_w) rank = w.shape.size();
  if (has_x) rank = x.shape.size();
  TensorType result;
  if (rank == 0) return result;
  const Shape nothing(rank, kUnknown);
  const bool last = attributes.channels_last, x_last = last && !attributes.x_channels_first;
  Shape data = !has_x ? nothing : x_last ? ToFirst(x.shape) : x.shape;
  for (size_t axis = 2; axis < data.size(); ++axis)
    if (data[axis] == 0) data[axis] = kUnknown;  // onnx's inference says 0 of the open lengths of an Attention
  const Shape weights = !has_w ? nothing : last ? ToFirst(w.shape) : w.shape;
  std::vector<std::string> symbols(rank);
  if (has_x) symbols = x_last ? ToFirst(x.symbols) : x.symbols;
  const std::vector<Window> windows = Windows(attributes, data, weights);
  result.has_shape = true;
  result.shape = {data[0], attributes.transposed ? weights[1] : weights[0]};
  if (attributes.transposed && weights[1] != kUnknown) result.shape[1] *= attributes.groups;
  result.symbols = {symbols[0], ""};
  for (size_t axis = 0; axis < windows.size(); ++axis) {
    result.shape.push_back(windows[axis].out);
    result.symbols.push_back(Keeps(attributes, axis, windows[axis]) ? symbols[axis + 2] : "");
  }
  if (last) {
    result.shape = ToLast(result.shape);
    result.symbols = ToLast(result.symbols);
  }
  return result;
}

TensorType InferOutput(const ConvAttributes& attributes, const TensorType& result) {
  TensorType output = result;
  if (!attributes.y_channels_first || !result.has_shape) return output;
  output.shape = ToFirst(result.shape);
  output.symbols = ToFirst(result.symbols);
  return output;
}

}  // namespace ortplugin
