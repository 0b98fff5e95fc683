#include "ortplugin/ops/contraction.h"

#include <algorithm>
#include <utility>

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
