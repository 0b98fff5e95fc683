// FusedResize on the CPU. Linearly in between: the rows of the input that a row of the output lies between become one,
// then neighbouring pixels of it, so that each element of the input is converted once for a row.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ortplugin/ops/pool/pool.h"
#include "ortplugin/runtime/evaluator.h"
#include "ortplugin/runtime/operand_lanes.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// Where one element of the output lies along an axis: between two elements of the input, or at the first.
struct Place {
  int64_t low, high;
  float weight;  // of the second
};

std::vector<Place> Places(const ResizeAttributes& attributes, const ResizeAxis& axis) {
  std::vector<Place> places;
  for (int64_t o = 0; o < axis.out; ++o) {
    if (!attributes.is_linear) {
      places.push_back({NearestOf(attributes.nearest, axis.At(o), axis.size), 0, 0});
      continue;
    }
    const float at = std::clamp(axis.At(o), 0.0f, static_cast<float>(axis.size - 1));
    const auto low = std::min(static_cast<int64_t>(at), axis.size - 1);
    places.push_back({low, std::min(low + 1, axis.size - 1), at - static_cast<float>(low)});
  }
  return places;
}

class CpuResize : public Kernel {
 public:
  explicit CpuResize(const NodeInfo& info) : attributes_(ResizeAttributes::Parse(info)) {
    const TensorType input = info.input(0);
    if (input.type != ort::kUndefined) CheckResizeType(attributes_, input.type);
  }

  void Compute(Run& run) const override {
    const Tensor input = run.input(0);
    CheckResizeType(attributes_, input.type);
    const ResizeShape shape = FitResize(attributes_, input.shape);
    auto* output = static_cast<char*>(run.output(0, shape.output));
    if (shape.outer == 0 || shape.inner == 0) return;
    std::array<std::vector<Place>, kMostSpatial> places;
    for (size_t axis = 0; axis < kMostSpatial; ++axis) places[axis] = Places(attributes_, shape.axes[axis]);
    const DType dtype = *FromOrt(input.type);
    const int64_t rows = shape.outer * shape.axes[0].out * shape.axes[1].out;
    const int64_t step = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.axes[2].out * shape.inner));
    run.parallel_for(static_cast<size_t>(DivideUp(rows, step)), [&](size_t task) {
      std::vector<double> memory;  // for lanes of either type
      const int64_t first = static_cast<int64_t>(task) * step;
      for (int64_t row = first; row < std::min(rows, first + step); ++row) {
        if (!attributes_.is_linear) {
          Nearest(shape, places, SizeOf(dtype), static_cast<const char*>(input.data), row, output);
        } else if (dtype == DType::kDouble) {
          Linear<double>(shape, places, dtype, static_cast<const char*>(input.data), row, memory, output);
        } else {
          Linear<float>(shape, places, dtype, static_cast<const char*>(input.data), row, memory, output);
        }
      }
    });
  }

 private:
  using AllPlaces = std::array<std::vector<Place>, kMostSpatial>;

  static const Place& At(const ResizeShape& shape, const AllPlaces& places, size_t axis, int64_t row) {
    const int64_t along = axis == 1 ? row % shape.axes[1].out : row / shape.axes[1].out % shape.axes[0].out;
    return places[axis][static_cast<size_t>(along)];
  }
  // Elements before a row of the input.
  static int64_t RowOf(const ResizeShape& shape, int64_t row, int64_t d, int64_t h) {
    const int64_t image = row / (shape.axes[1].out * shape.axes[0].out);
    return ((image * shape.axes[0].size + d) * shape.axes[1].size + h) * shape.axes[2].size * shape.inner;
  }

  static void Nearest(const ResizeShape& shape, const AllPlaces& places, size_t size, const char* input, int64_t row,
                      char* output) {
    const int64_t from = RowOf(shape, row, At(shape, places, 0, row).low, At(shape, places, 1, row).low);
    const auto width = static_cast<size_t>(shape.inner) * size;
    const char* const x = input + static_cast<size_t>(from) * size;
    char* y = output + static_cast<size_t>(row * shape.axes[2].out) * width;
    switch (width) {
      case 1:
        return Gather<uint8_t>(places[2], x, y);
      case 2:
        return Gather<uint16_t>(places[2], x, y);
      case 4:
        return Gather<uint32_t>(places[2], x, y);
      default:
        for (const Place& place : places[2]) {
          std::memcpy(y, x + static_cast<size_t>(place.low) * width, width);
          y += width;
        }
    }
  }

  template <typename T>
  static void Gather(const std::vector<Place>& places, const char* x, char* y) {
    for (const Place& place : places) {
      std::memcpy(y, x + static_cast<size_t>(place.low) * sizeof(T), sizeof(T));
      y += sizeof(T);
    }
  }

  template <typename T>
  static void Linear(const ResizeShape& shape, const AllPlaces& places, DType dtype, const char* input, int64_t row,
                     std::vector<double>& memory, char* output) {
    const int64_t width = shape.axes[2].size * shape.inner, out_width = shape.axes[2].out * shape.inner;
    memory.resize(static_cast<size_t>(2 * width + out_width));
    T* const blended = reinterpret_cast<T*>(memory.data());
    T *const loaded = blended + width, *const made = loaded + width;
    const Place &d = At(shape, places, 0, row), &h = At(shape, places, 1, row);
    bool is_first = true;
    for (const auto& [at_d, at_h, weight] : {std::tuple(d.low, h.low, (1 - T(d.weight)) * (1 - T(h.weight))),
                                             {d.low, h.high, (1 - T(d.weight)) * T(h.weight)},
                                             {d.high, h.low, T(d.weight) * (1 - T(h.weight))},
                                             {d.high, h.high, T(d.weight) * T(h.weight)}}) {
      if (weight == 0) continue;
      const int64_t from = RowOf(shape, row, at_d, at_h);
      LoadLanes(dtype, input + static_cast<size_t>(from) * SizeOf(dtype), static_cast<size_t>(width), loaded);
      if (is_first) {
        for (int64_t i = 0; i < width; ++i) blended[i] = weight * loaded[i];
      } else {
        for (int64_t i = 0; i < width; ++i) blended[i] += weight * loaded[i];
      }
      is_first = false;
    }
    T* y = made;
    for (const Place& place : places[2]) {
      const T *const low = blended + place.low * shape.inner, *const high = blended + place.high * shape.inner;
      const T weight = static_cast<T>(place.weight), rest = 1 - weight;
      if (shape.inner == 1) {
        *y = weight == 0 ? *low : rest * *low + weight * *high;
      } else if (weight == 0) {
        std::copy_n(low, shape.inner, y);
      } else {
        for (int64_t c = 0; c < shape.inner; ++c) y[c] = rest * low[c] + weight * high[c];
      }
      y += shape.inner;
    }
    StoreLanes(dtype, made, static_cast<size_t>(out_width),
               output + static_cast<size_t>(row * out_width) * SizeOf(dtype));
  }

  ResizeAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuResize(const NodeInfo& info) { return std::make_unique<CpuResize>(info); }

}  // namespace ortplugin
