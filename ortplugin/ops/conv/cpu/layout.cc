#include "ortplugin/ops/conv/cpu/layout.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "ortplugin/runtime/program/evaluator.h"

namespace ortplugin {
namespace {

constexpr int64_t kTile = 32;  // rows and columns: two tiles of doubles are half of an L1 cache
constexpr int64_t kWidenedAtOnce = 16384;  // elements

void ForEach(Run* run, int64_t tasks, const std::function<void(size_t)>& body) {
  if (run != nullptr && tasks > 1) return run->parallel_for(size_t(tasks), body);
  for (int64_t task = 0; task < tasks; ++task) body(size_t(task));
}

template <typename T>
void TransposeRows(const T* from, T* to, int64_t rows, int64_t columns, int64_t first, int64_t last) {
  for (int64_t column = 0; column < columns; column += kTile) {
    const int64_t last_column = std::min(columns, column + kTile);
    for (int64_t c = column; c < last_column; ++c)
      for (int64_t r = first; r < last; ++r) to[c * rows + r] = from[r * columns + c];
  }
}

template <typename T>
void TransposeAll(Run* run, const void* from, void* to, int64_t count, int64_t rows, int64_t columns) {
  const int64_t strips = (rows + kTile - 1) / kTile;
  ForEach(run, count * strips, [&](size_t task) {
    const int64_t matrix = int64_t(task) / strips, first = int64_t(task) % strips * kTile;
    const int64_t offset = matrix * rows * columns;
    TransposeRows(static_cast<const T*>(from) + offset, static_cast<T*>(to) + offset, rows, columns, first,
      std::min(rows, first + kTile));
  });
}

// For each of a window's outputs, the elements of one row of pixels that a tap meets.
void Row(const double* from, const Window& window, int64_t tap, double* to) {
  const int64_t start = tap * window.dilation - window.pad_begin;
  for (int64_t out = 0; out < window.out; ++out) {
    const int64_t at = start + out * window.stride;
    to[out] = at >= 0 && at < window.size ? from[at] : 0.0;
  }
}

}  // namespace

void Transpose(Run* run, const void* from, void* to, int64_t count, int64_t rows, int64_t columns, size_t size) {
  const auto transpose = size == 1 ? TransposeAll<uint8_t>
    : size == 2                    ? TransposeAll<uint16_t>
    : size == 4                    ? TransposeAll<uint32_t>
                                   : TransposeAll<uint64_t>;
  transpose(run, from, to, count, rows, columns);
}

void Widen(Run* run, DType dtype, const void* from, void* to, int64_t count) {
  const size_t narrow = SizeOf(dtype), wide = LaneSize(dtype);
  ForEach(run, (count + kWidenedAtOnce - 1) / kWidenedAtOnce, [&](size_t task) {
    const int64_t first = int64_t(task) * kWidenedAtOnce;
    LoadLanes(dtype, static_cast<const char*>(from) + size_t(first) * narrow,
      size_t(std::min(kWidenedAtOnce, count - first)), static_cast<char*>(to) + size_t(first) * wide);
  });
}

HostOperand::HostOperand(
  Run* run, const HostScratch& scratch, DType dtype, const void* data, const Shape& shape, bool channels_last)
  : data_(data), owned_(nullptr, {&scratch}), between_(nullptr, {&scratch}) {
  const int64_t count = ElementCount(shape);
  if (count == 0) return;
  if (channels_last && shape.size() < 2) Fail("a tensor of shape ", ToString(shape), " has no channels");
  const int64_t channels = channels_last ? shape.back() : 1, pixels = channels_last ? count / shape[0] / channels : 1;
  const bool transposes = channels > 1 && pixels > 1, widens = LaneSize(dtype) != SizeOf(dtype);
  if (transposes) {
    between_ = scratch.Take(size_t(count) * SizeOf(dtype));
    Transpose(run, data_, between_.get(), shape[0], pixels, channels, SizeOf(dtype));
    data_ = between_.get();
  }
  if (!widens) return;
  owned_ = scratch.Take(size_t(count) * LaneSize(dtype));
  Widen(run, dtype, data_, owned_.get(), count);
  data_ = owned_.get();
  between_.reset();
}

void Unfold(Run& run, const Contraction& shape, const double* image, double* columns) {
  int64_t taps = 1, pixels = 1, size = 1;
  for (const Window& window : shape.windows) {
    taps *= window.kernel;
    pixels *= window.out;
    size *= window.size;
  }
  const Window& last = shape.windows.back();
  run.parallel_for(size_t(shape.channels * taps), [&](size_t task) {
    const int64_t channel = int64_t(task) / taps;
    int64_t tap = int64_t(task) % taps;
    std::vector<int64_t> taps_of(shape.windows.size());
    for (size_t axis = shape.windows.size(); axis-- > 0; tap /= shape.windows[axis].kernel)
      taps_of[axis] = tap % shape.windows[axis].kernel;
    double* to = columns + int64_t(task) * pixels;
    for (int64_t row = 0; row < pixels / last.out; ++row, to += last.out) {
      int64_t offset = 0, stride = last.size, rest = row;
      bool inside = true;
      for (size_t axis = shape.windows.size() - 1; axis-- > 0;) {
        const Window& window = shape.windows[axis];
        const int64_t at = rest % window.out * window.stride + taps_of[axis] * window.dilation - window.pad_begin;
        rest /= window.out;
        inside = inside && at >= 0 && at < window.size;
        offset += at * stride;
        stride *= window.size;
      }
      if (inside) {
        Row(image + channel * size + offset, last, taps_of.back(), to);
      } else {
        std::fill_n(to, last.out, 0.0);
      }
    }
  });
}

void KeepPixels(Run& run, const Contraction& shape, size_t bytes, const void* from, void* to) {
  const Window& last = shape.windows.back();
  const int64_t rows = ElementCount(shape.result()) / shape.filters / last.out;
  run.parallel_for(size_t(rows), [&](size_t task) {
    int64_t rest = int64_t(task), offset = 0, stride = last.size;
    for (size_t axis = shape.windows.size() - 1; axis-- > 0;) {
      const Window& window = shape.windows[axis];
      offset += rest % window.out * window.stride * stride;
      rest /= window.out;
      stride *= window.size;
    }
    const char* pixel = static_cast<const char*>(from) + size_t(offset + rest * stride) * bytes;
    char* kept = static_cast<char*>(to) + task * size_t(last.out) * bytes;
    for (int64_t out = 0; out < last.out; ++out, kept += bytes, pixel += size_t(last.stride) * bytes)
      std::memcpy(kept, pixel, bytes);
  });
}

}  // namespace ortplugin
