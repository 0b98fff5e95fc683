#include "ortplugin/ops/contraction.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "ortplugin/runtime/gpu/kernel_sources.h"

namespace ortplugin {

static Shape Each(const std::vector<Window>& windows, int64_t Window::* number) {
  Shape numbers;
  for (const Window& window : windows) numbers.push_back(window.*number);
  return numbers;
}

static Shape WithSpatial(Shape shape, const Shape& spatial) {
  shape.insert(shape.end(), spatial.begin(), spatial.end());
  return shape;
}

Shape ChannelsFirst(const Shape& last) {
  Shape first = last;
  if (last.size() > 2) std::rotate(first.begin() + 1, first.end() - 1, first.end());
  return first;
}

Shape ChannelsLast(const Shape& first) {
  Shape last = first;
  if (first.size() > 2) std::rotate(last.begin() + 1, last.begin() + 2, last.end());
  return last;
}

std::string WindowMacros(const Contraction& problem, bool open_sizes) {
  const Window &h = problem.rows(), &w = problem.columns();
  std::string text;
  const std::tuple<const char*, const char*, int64_t> all[] = {{"IMAGE_H", "image_h", h.size},
    {"IMAGE_W", "image_w", w.size}, {"OUT_H", "out_h", h.out}, {"OUT_W", "out_w", w.out}};
  for (const auto& [name, argument, size] : all)
    text += Joined("#define ", name, " ", open_sizes && size > 1 ? Joined("a.", argument) : std::to_string(size), "\n");
  return text +
    Defines({{"KERNEL_H", h.kernel}, {"KERNEL_W", w.kernel}, {"STRIDE_H", h.stride}, {"STRIDE_W", w.stride},
      {"PAD_TOP", h.pad_begin}, {"PAD_LEFT", w.pad_begin}, {"DILATION_H", h.dilation}, {"DILATION_W", w.dilation}});
}

Contraction::Dtypes Contraction::AllOf(DType dtype) {
  return {dtype, dtype, dtype == DType::kDouble ? DType::kDouble : DType::kFloat, dtype};
}

Contraction Contraction::Reversed() const {
  Contraction reversed = *this;
  reversed.transposed = !transposed;
  std::swap(reversed.channels, reversed.filters);
  for (Window& window : reversed.windows) std::swap(window.size, window.out);
  return reversed;
}

Contraction Contraction::WithMergedFrames() const {
  // In fp16 R(2+1)D-18 takes a third longer with two.
  if (!allow_tf32 || dtype() != DType::kFloat || windows.size() != 3 || !channels_last || x_channels_first ||
    y_channels_first)
    return *this;
  const bool is_of_frames = windows[0].is_pointwise();
  if (!is_of_frames && !(windows[1].is_pointwise() && windows[2].is_pointwise())) return *this;
  Contraction merged = *this;
  const size_t axis = is_of_frames ? 0 : 2;  // of [N, D, H, W, C]
  const Shape full = result();
  for (Shape& operand : merged.operands) {
    if (operand.size() > full.size()) return *this;
    operand.insert(operand.begin(), full.size() - operand.size(), 1);
    const bool is_whole = operand[axis] == full[axis] && operand[axis + 1] == full[axis + 1];
    if (!is_whole && operand[axis] * operand[axis + 1] != 1) return *this;
    operand[axis] *= operand[axis + 1];
    operand.erase(operand.begin() + std::ptrdiff_t(axis) + 1);
  }
  if (is_of_frames) {
    merged.batch *= windows[0].size;
    merged.windows.erase(merged.windows.begin());
  } else {
    merged.windows.pop_back();
    merged.columns().size = merged.columns().out = windows[1].size * windows[2].size;
  }
  constexpr int64_t kMost = INT32_MAX;  // of a length
  return std::max(merged.batch, merged.columns().size) > kMost ? *this : merged;
}

bool Contraction::is_empty() const { return ElementCount(x_first()) == 0 || ElementCount(w_first()) == 0; }

Shape Contraction::x_first() const { return WithSpatial({batch, channels}, Each(windows, &Window::size)); }
Shape Contraction::w_first() const {
  return WithSpatial(transposed ? Shape{channels, filters / groups} : Shape{filters, channels / groups}, kernel());
}
Shape Contraction::result_first() const { return WithSpatial({batch, filters}, Each(windows, &Window::out)); }

Shape Contraction::x() const { return channels_last && !x_channels_first ? ChannelsLast(x_first()) : x_first(); }
Shape Contraction::w() const { return channels_last ? ChannelsLast(w_first()) : w_first(); }
Shape Contraction::output() const {
  return channels_last && !y_channels_first ? ChannelsLast(result_first()) : result_first();
}
Shape Contraction::result() const { return channels_last ? ChannelsLast(result_first()) : result_first(); }

Shape Contraction::strides() const { return Each(windows, &Window::stride); }
Shape Contraction::dilations() const { return Each(windows, &Window::dilation); }
Shape Contraction::kernel() const { return Each(windows, &Window::kernel); }
Shape Contraction::pads() const {
  return WithSpatial(Each(windows, &Window::pad_begin), Each(windows, &Window::pad_end));
}

}  // namespace ortplugin
