// FusedPool on the CPU: elements become lanes (evaluator.h), float for the 16-bit dtypes, and loops over channels or
// over rows of pixels vectorise. What is added to what depends on the shapes alone.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "ortplugin/ops/pool/pool.h"
#include "ortplugin/runtime/half.h"
#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/program/operand_lanes.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/runtime/x86_level.h"

namespace ortplugin {
namespace {

constexpr int64_t kMostCounts = 65536;  // that are kept; further ones are computed
constexpr int64_t kTaskWork = 32768;  // elements that are read, about: worth a thread's waking

// `count` elements as lanes: where they lie, or in `scratch`.
template <typename T>
const T* LanesOf(DType dtype, const char* elements, size_t count, T* scratch) {
  if (IsLanes(dtype)) return reinterpret_cast<const T*>(elements);
  LoadLanes(dtype, elements, count, scratch);
  return scratch;
}

template <typename T>
T Lowest() {
  return std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}

template <bool is_max, typename T>
ORTPLUGIN_INLINE T Combine(T a, T b) {
  if constexpr (is_max) {
    const T larger = a > b ? a : b;  // b where either is NaN
    return a != a ? a : larger;
  }
  return T(a + b);
}

// ---- loops over lanes, for the vectors of the CPU at hand

// sums[i] = sums[i] combined with every taps[t][i].
template <bool is_max, typename T>
ORTPLUGIN_INLINE void AddTaps(const T* const* taps, size_t tap_count, T* __restrict sums, size_t count) {
  size_t t = 0;
  for (; t + 3 <= tap_count; t += 3) {  // each sum is read and written once for three taps
    const T *const a = taps[t], *const b = taps[t + 1], *const c = taps[t + 2];
    for (size_t i = 0; i < count; ++i)
      sums[i] = Combine<is_max>(Combine<is_max>(Combine<is_max>(sums[i], a[i]), b[i]), c[i]);
  }
  for (; t < tap_count; ++t) {
    const T* const a = taps[t];
    for (size_t i = 0; i < count; ++i) sums[i] = Combine<is_max>(sums[i], a[i]);
  }
}

// sums[i] = sums[i] combined with x[i * stride].
template <bool is_max, typename T>
ORTPLUGIN_INLINE void AddStrided(const T* x, int64_t stride, T* __restrict sums, int64_t count) {
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) sums[i] = Combine<is_max>(sums[i], x[i]);
  } else if (stride == 2) {
    for (int64_t i = 0; i < count; ++i) sums[i] = Combine<is_max>(sums[i], x[2 * i]);
  } else {
    for (int64_t i = 0; i < count; ++i) sums[i] = Combine<is_max>(sums[i], x[stride * i]);
  }
}

// The same statements for wider vectors: lane by lane they give the same bits.
template <bool is_max, typename T>
struct Loops {
  void (*taps)(const T* const*, size_t, T*, size_t);
  void (*strided)(const T*, int64_t, T*, int64_t);
};
#define ORTPLUGIN_LOOPS(Name, attribute) \
  template <bool is_max, typename T> \
  attribute void Taps##Name(const T* const* taps, size_t tap_count, T* sums, size_t count) { \
    AddTaps<is_max>(taps, tap_count, sums, count); \
  } \
  template <bool is_max, typename T> \
  attribute void Strided##Name(const T* x, int64_t stride, T* sums, int64_t count) { \
    AddStrided<is_max>(x, stride, sums, count); \
  }
ORTPLUGIN_LOOPS(Baseline, )
#if defined(__x86_64__) && defined(__GNUC__)
ORTPLUGIN_LOOPS(Avx2, __attribute__((target("avx2"))))
ORTPLUGIN_LOOPS(Avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif
#undef ORTPLUGIN_LOOPS

template <bool is_max, typename T>
Loops<is_max, T> ChooseLoops() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const int level = X86Level();
  if (level >= 4) return {TapsAvx512<is_max, T>, StridedAvx512<is_max, T>};
  if (level >= 3) return {TapsAvx2<is_max, T>, StridedAvx2<is_max, T>};
#endif
  return {TapsBaseline<is_max, T>, StridedBaseline<is_max, T>};
}

// ---------------------------------------------------------------------------------------------------------------------

// One run over a tensor [outer, spatial.., inner].
template <typename T, bool is_max>
class PoolSweep {
 public:
  PoolSweep(const PoolShape& shape, bool count_include_pad, DType dtype, const void* input, void* output)
    : shape_(shape),
      w_(shape.windows),
      dtype_(dtype),
      size_(int64_t(SizeOf(dtype))),
      count_include_pad_(count_include_pad),
      input_(static_cast<const char*>(input)),
      output_(static_cast<char*>(output)) {
    for (size_t axis = 0; axis < kMostSpatial; ++axis)
      for (int64_t o = 0; !is_max && o < std::min(w_[axis].out, kMostCounts); ++o)
        counts_[axis].push_back(w_[axis].Count(o, count_include_pad));
  }

  void Compute(Run& run) const {
    if (shape_.is_global && shape_.inner == 1) return Images(run);
    if (shape_.is_global) return GlobalChannels(run);
    // Rows of output pixels, as many as are worth a task.
    const int64_t rows = shape_.outer * w_[0].out * w_[1].out;
    double work = double(w_[2].out) * double(shape_.inner);  // of a row
    for (const PoolWindow& w : w_) work *= double(std::clamp<int64_t>(w.size, 1, w.kernel));
    const int64_t step = std::max<int64_t>(1, int64_t(double(kTaskWork) / work));
    const auto task = [&](size_t number) {
      HostVector<T> lanes(size_t(w_[2].size + w_[2].out));
      const int64_t first = int64_t(number) * step;
      for (int64_t row = first; row < std::min(rows, first + step); ++row)
        shape_.inner == 1 ? RowOfPixels(row, lanes.data()) : RowOfChannels(row, lanes);
    };
    Tasks(run, DivideUp(rows, step), task);
  }

 private:
  static void Tasks(Run& run, int64_t count, const std::function<void(size_t)>& task) {
    if (count == 1) return task(0);
    run.parallel_for(size_t(count), task);
  }

  static T Start() { return is_max ? Lowest<T>() : T(0); }

  using Taps = PoolWindow::Taps;

  // For each row of the input that a row of output pixels needs.
  template <typename Body>
  void ForRows(int64_t row, Body body) const {
    const int64_t h = row % w_[1].out, d = row / w_[1].out % w_[0].out, image = row / (w_[1].out * w_[0].out);
    const Taps taps_d = w_[0].Inside(d), taps_h = w_[1].Inside(h);
    for (int64_t kd = taps_d.first; kd < taps_d.last; ++kd)
      for (int64_t kh = taps_h.first; kh < taps_h.last; ++kh) {
        const int64_t at_d = d * w_[0].stride - w_[0].pad_begin + kd * w_[0].dilation;
        const int64_t at_h = h * w_[1].stride - w_[1].pad_begin + kh * w_[1].dilation;
        body(input_ + ((image * w_[0].size + at_d) * w_[1].size + at_h) * w_[2].size * shape_.inner * size_);
      }
  }

  int64_t Count(size_t axis, int64_t o) const {
    return o < kMostCounts ? counts_[axis][size_t(o)] : w_[axis].Count(o, count_include_pad_);
  }
  int64_t RowCount(int64_t row) const { return Count(0, row / w_[1].out % w_[0].out) * Count(1, row % w_[1].out); }

  static void Divide(T* lanes, int64_t count, int64_t by) {
    const T divisor = T(std::max<int64_t>(1, by));
    for (int64_t i = 0; i < count; ++i) lanes[i] = T(lanes[i] / divisor);
  }

  // Channels first: a row of pixels at a time. `lanes`: room for a row of the input and one of the output.
  void RowOfPixels(int64_t row, T* lanes) const {
    T* const sums = lanes + w_[2].size;
    const PoolWindow& w = w_[2];
    std::fill_n(sums, w.out, Start());
    ForRows(row, [&](const char* elements) {
      const T* x = LanesOf(dtype_, elements, size_t(w.size), lanes);
      const Taps taps = w.InsideAny();
      if (taps.last - taps.first > w.out * std::min(w.kernel, w.size)) {  // windows far apart, most of them padding
        for (int64_t o = 0; o < w.out; ++o) {
          const Taps inside = w.Inside(o);
          for (int64_t k = inside.first; k < inside.last; ++k)
            sums[o] = Combine<is_max>(sums[o], x[o * w.stride - w.pad_begin + k * w.dilation]);
        }
        return;
      }
      for (int64_t k = taps.first; k < taps.last; ++k) {
        const int64_t offset = k * w.dilation - w.pad_begin;
        const int64_t first = offset >= 0 ? 0 : DivideUp(-offset, w.stride);
        const int64_t last = offset >= w.size ? 0 : std::min(w.out, (w.size - 1 - offset) / w.stride + 1);
        if (first < last) loops_.strided(x + first * w.stride + offset, w.stride, sums + first, last - first);
      }
    });
    if constexpr (!is_max) {
      const int64_t count = RowCount(row);
      for (int64_t o = 0; o < w.out; ++o) Divide(sums + o, 1, count * Count(2, o));
    }
    StoreLanes(dtype_, sums, size_t(w.out), output_ + row * w.out * size_);
  }

  // Channels last: the channels of a pixel at a time. The rows of the input become lanes first, in `memory`.
  void RowOfChannels(int64_t row, HostVector<T>& memory) const {
    const PoolWindow& w = w_[2];
    const auto channels = size_t(shape_.inner), width = size_t(w.size) * channels;
    std::vector<const char*> stored;
    ForRows(row, [&](const char* elements) { stored.push_back(elements); });
    memory.resize(channels + (IsLanes(dtype_) ? 0 : stored.size() * width));
    T* const sums = memory.data();
    std::vector<const T*> rows, taps;
    for (const char* elements : stored)
      rows.push_back(LanesOf(dtype_, elements, width, sums + channels + rows.size() * width));
    for (int64_t o = 0; o < w.out; ++o) {
      const Taps inside = w.Inside(o);
      taps.clear();
      for (const T* x : rows)
        for (int64_t k = inside.first; k < inside.last; ++k)
          taps.push_back(x + size_t(o * w.stride - w.pad_begin + k * w.dilation) * channels);
      std::fill_n(sums, channels, Start());
      loops_.taps(taps.data(), taps.size(), sums, channels);
      if constexpr (!is_max) Divide(sums, shape_.inner, RowCount(row) * Count(2, o));
      StoreLanes(dtype_, sums, channels, output_ + (row * w.out + o) * shape_.inner * size_);
    }
  }

  // What sums over many elements run in.
  using Sum = std::conditional_t<is_max, T, double>;

  void Store(Sum total, T count, char* to) const {
    T lane = T(total);
    if constexpr (!is_max) lane = T(total / double(count));
    StoreLanes(dtype_, &lane, 1, to);
  }

  // Channels first, each image one window: its elements lie side by side.
  void Images(Run& run) const {
    const int64_t pixels = shape_.pixels(), step = std::max<int64_t>(1, kTaskWork / pixels);
    Tasks(run, DivideUp(shape_.outer, step), [&](size_t task) {
      std::vector<T> lanes(kBlock);
      const int64_t first = int64_t(task) * step;
      for (int64_t image = first; image < std::min(shape_.outer, first + step); ++image) {
        Sum total = is_max ? static_cast<Sum>(Lowest<T>()) : Sum(0);
        for (int64_t at = 0; at < pixels; at += kBlock) {
          const auto count = size_t(std::min<int64_t>(kBlock, pixels - at));
          const T* x = LanesOf(dtype_, input_ + (image * pixels + at) * size_, count, lanes.data());
          if constexpr (is_max) {
            for (size_t i = 0; i < count; ++i) total = Combine<true>(total, x[i]);
          } else {
            total += SumLanes(dtype_, x, count);
          }
        }
        Store(total, T(pixels), output_ + image * size_);
      }
    });
  }

  // Channels last, each image one window. An image is cut into parts by its size alone; parts are added in order.
  void GlobalChannels(Run& run) const {
    constexpr int64_t kSegment = 64;  // pixels whose sum is taken in T
    const int64_t pixels = shape_.pixels(), blocks = DivideUp(shape_.inner, kBlock);
    const int64_t width = std::min<int64_t>(kBlock, shape_.inner);
    const int64_t part = DivideUp(std::max<int64_t>(kSegment, 2 * kTaskWork / width), kSegment) * kSegment;
    const int64_t parts = DivideUp(pixels, part);
    HostVector<Sum> totals(size_t(shape_.outer * parts * shape_.inner));
    Tasks(run, shape_.outer * parts * blocks, [&](size_t task) {
      const auto number = int64_t(task);
      const int64_t c = number % blocks * int64_t(kBlock), first = number / blocks % parts * part;
      const int64_t image = number / (blocks * parts), last = std::min(pixels, first + part);
      const int64_t count = std::min<int64_t>(kBlock, shape_.inner - c);
      Sum* const total = totals.data() + number / blocks * shape_.inner + c;
      std::fill_n(total, count, is_max ? static_cast<Sum>(Lowest<T>()) : Sum(0));
      std::vector<T> lanes(2 * kBlock);
      T* const sums = lanes.data() + kBlock;
      for (int64_t at = first; at < last; at += kSegment) {
        std::fill_n(sums, count, Start());
        for (int64_t pixel = at; pixel < std::min(last, at + kSegment); ++pixel) {
          const T* x = LanesOf(
            dtype_, input_ + ((image * pixels + pixel) * shape_.inner + c) * size_, size_t(count), lanes.data());
          loops_.strided(x, 1, sums, count);
        }
        for (int64_t i = 0; i < count; ++i) total[i] = Combine<is_max>(total[i], static_cast<Sum>(sums[i]));
      }
    });
    for (int64_t image = 0; image < shape_.outer; ++image)
      for (int64_t c = 0; c < shape_.inner; ++c) {
        const Sum* const first = totals.data() + image * parts * shape_.inner + c;
        Sum total = first[0];
        for (int64_t p = 1; p < parts; ++p) total = Combine<is_max>(total, first[p * shape_.inner]);
        Store(total, T(pixels), output_ + (image * shape_.inner + c) * size_);
      }
  }

  const PoolShape& shape_;
  const std::array<PoolWindow, kMostSpatial>& w_;
  DType dtype_;
  int64_t size_;
  bool count_include_pad_;
  const char* input_;
  char* output_;
  const Loops<is_max, T> loops_ = ChooseLoops<is_max, T>();
  std::vector<int64_t> counts_[kMostSpatial];  // of an average: the elements of the first windows along an axis
};

class CpuPool : public Kernel {
 public:
  explicit CpuPool(const NodeInfo& info) : attributes_(PoolAttributes::Parse(info)) {
    const TensorType input = info.input(0);
    if (input.type != ort::kUndefined) CheckPoolType(attributes_, input.type);
  }

  void Compute(Run& run) const override {
    const Tensor input = run.input(0);
    CheckPoolType(attributes_, input.type);
    const PoolShape shape = FitPool(attributes_, input.shape);
    void* output = run.output(0, shape.output, SizeOf(*FromOrt(input.type)));
    if (ElementCount(shape.output) == 0) return;
    switch (*FromOrt(input.type)) {
      case DType::kDouble: return Pool<double>(run, shape, input, output);
      case DType::kInt8: return PoolSweep<int8_t, true>(shape, false, DType::kInt8, input.data, output).Compute(run);
      case DType::kUInt8: return PoolSweep<uint8_t, true>(shape, false, DType::kUInt8, input.data, output).Compute(run);
      default: return Pool<float>(run, shape, input, output);
    }
  }

 private:
  template <typename T>
  void Pool(Run& run, const PoolShape& shape, const Tensor& input, void* output) const {
    const DType dtype = *FromOrt(input.type);
    if (attributes_.is_max) {
      PoolSweep<T, true>(shape, false, dtype, input.data, output).Compute(run);
    } else {
      PoolSweep<T, false>(shape, attributes_.count_include_pad, dtype, input.data, output).Compute(run);
    }
  }

  PoolAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuPool(const NodeInfo& info) { return std::make_unique<CpuPool>(info); }

}  // namespace ortplugin
