// FusedResize on the CPU. Linearly in between: the rows of the input that a row of the output lies between become one,
// then neighbouring pixels of it, so that each element of the input is converted once for a row.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ortplugin/ops/pool/pool.h"
#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// Where one element of the output lies along an axis: between two elements of the input, or on one, which is then both.
struct Place {
  int64_t low, high;
  float weight;  // of the second
};

constexpr int64_t kSegment = 16384;  // elements of a row whose places are kept

Place PlaceOf(const ResizeAttributes& attributes, const ResizeAxis& axis, int64_t o) {
  if (!attributes.is_linear) {
    const int64_t nearest = NearestOf(attributes.nearest, axis.At(o), axis.size);
    return {nearest, nearest, 0};
  }
  const float at = std::clamp(axis.At(o), 0.0f, float(axis.size - 1));
  const auto low = std::min(int64_t(at), axis.size - 1);
  return {low, std::min(low + 1, axis.size - 1), at - float(low)};
}

// Of the elements [first, last) of a row.
std::vector<Place> Places(const ResizeAttributes& attributes, const ResizeAxis& axis, int64_t first, int64_t last) {
  std::vector<Place> places;
  for (int64_t o = first; o < last; ++o) places.push_back(PlaceOf(attributes, axis, o));
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
    const DType dtype = *FromOrt(input.type);
    const ResizeShape shape = FitResize(attributes_, input.shape);
    auto* output = static_cast<char*>(run.output(0, shape.output, SizeOf(dtype)));
    if (ElementCount(shape.output) == 0) return;
    // A task has some rows, or a segment of one: what it keeps does not grow with the image.
    const ResizeAxis& last = shape.axes[2];
    const int64_t rows = shape.outer * shape.axes[0].out * shape.axes[1].out, segments = DivideUp(last.out, kSegment);
    const int64_t step = segments > 1 ? 1 : std::max<int64_t>(1, kSegment / (last.out * shape.inner));
    const std::vector<Place> whole = Places(attributes_, last, 0, segments > 1 ? 0 : last.out);
    run.parallel_for(size_t(DivideUp(rows, step) * segments), [&](size_t task) {
      HostVector<double> memory;  // for lanes of either type
      const int64_t number = int64_t(task), first = number / segments * step;
      const int64_t first_out = number % segments * kSegment;
      const std::vector<Place> segment = segments > 1
        ? Places(attributes_, last, first_out, std::min(last.out, first_out + kSegment))
        : std::vector<Place>();
      const std::vector<Place>& places = segments > 1 ? segment : whole;
      for (int64_t row = first; row < std::min(rows, first + step); ++row) {
        const Line line{PlaceOf(attributes_, shape.axes[0], row / shape.axes[1].out % shape.axes[0].out),
          PlaceOf(attributes_, shape.axes[1], row % shape.axes[1].out), row / (shape.axes[1].out * shape.axes[0].out),
          places};
        char* const y = output + size_t((row * last.out + first_out) * shape.inner) * SizeOf(dtype);
        const auto* const x = static_cast<const char*>(input.data);
        if (!attributes_.is_linear) {
          Nearest(shape, line, SizeOf(dtype), x, y);
        } else if (dtype == DType::kDouble) {
          Linear<double>(shape, line, dtype, x, memory, y);
        } else {
          Linear<float>(shape, line, dtype, x, memory, y);
        }
      }
    });
  }

 private:
  // A row of the output, or a segment of one.
  struct Line {
    Place d, h;
    int64_t image;
    const std::vector<Place>& places;
  };

  // Elements before a row of the input.
  static int64_t RowOf(const ResizeShape& shape, const Line& line, int64_t d, int64_t h) {
    return ((line.image * shape.axes[0].size + d) * shape.axes[1].size + h) * shape.axes[2].size * shape.inner;
  }

  static void Nearest(const ResizeShape& shape, const Line& line, size_t size, const char* input, char* y) {
    const auto width = size_t(shape.inner) * size;
    const char* const x = input + size_t(RowOf(shape, line, line.d.low, line.h.low)) * size;
    switch (width) {
      case 1: return Gather<uint8_t>(line.places, x, y);
      case 2: return Gather<uint16_t>(line.places, x, y);
      case 4: return Gather<uint32_t>(line.places, x, y);
      default:
        for (const Place& place : line.places) {
          std::memcpy(y, x + size_t(place.low) * width, width);
          y += width;
        }
    }
  }

  template <typename T>
  static void Gather(const std::vector<Place>& places, const char* x, char* y) {
    for (const Place& place : places) {
      std::memcpy(y, x + size_t(place.low) * sizeof(T), sizeof(T));
      y += sizeof(T);
    }
  }

  // An element that a place lies beside takes part even where its weight is 0, as in ONNX Runtime: NaN and infinity
  // times 0 are NaN. One that is beyond the edge is not there: `high` is `low`, which counts once.
  template <typename T>
  static void Linear(
    const ResizeShape& shape, const Line& line, DType dtype, const char* input, HostVector<double>& memory, char* y) {
    const std::vector<Place>& places = line.places;
    const int64_t first_out = places.front().low, inner = shape.inner;  // places ascend
    const int64_t width = (places.back().high - first_out + 1) * inner;
    const auto out_width = int64_t(places.size()) * inner;
    memory.resize(size_t(2 * width + out_width));
    T* const blended = reinterpret_cast<T*>(memory.data());
    T *const loaded = blended + width, *const made = loaded + width;
    bool is_first = true;
    for (const auto& [at_d, weight_d] : Sides<T>(line.d))
      for (const auto& [at_h, weight_h] : Sides<T>(line.h)) {
        const int64_t from = RowOf(shape, line, at_d, at_h) + first_out * inner;
        LoadLanes(dtype, input + size_t(from) * SizeOf(dtype), size_t(width), loaded);
        const T weight = weight_d * weight_h;
        if (is_first) {
          for (int64_t i = 0; i < width; ++i) blended[i] = weight * loaded[i];
        } else {
          for (int64_t i = 0; i < width; ++i) blended[i] += weight * loaded[i];
        }
        is_first = false;
      }
    T* to = made;
    for (const Place& place : places) {
      const T *const low = blended + (place.low - first_out) * inner,
                     *const high = blended + (place.high - first_out) * inner;
      const T weight = T(place.weight), rest = 1 - weight;
      if (inner == 1) {
        *to = low == high ? *low : rest * *low + weight * *high;
      } else if (low == high) {
        std::copy_n(low, inner, to);
      } else {
        for (int64_t c = 0; c < inner; ++c) to[c] = rest * low[c] + weight * high[c];
      }
      to += inner;
    }
    StoreLanes(dtype, made, size_t(out_width), y);
  }

  // The one or two elements of a place, with their weights.
  template <typename T>
  static std::vector<std::pair<int64_t, T>> Sides(const Place& place) {
    if (place.low == place.high) return {{place.low, T(1)}};
    return {{place.low, 1 - T(place.weight)}, {place.high, T(place.weight)}};
  }

  ResizeAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuResize(const NodeInfo& info) { return std::make_unique<CpuResize>(info); }

}  // namespace ortplugin
