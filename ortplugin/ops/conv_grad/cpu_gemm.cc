#include "ortplugin/ops/conv_grad/cpu_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/runtime/x86_level.h"

namespace ortplugin {
namespace {

// ---- Matrix product

constexpr int64_t kRows = 4;  // of a tile that stays in registers; with 32 of these, twice as many
constexpr int64_t kVectors = 2;  // its columns, of 64 bytes each
constexpr int64_t kDepth = 256;  // products that are added before they leave the registers
template <typename T>
constexpr int64_t kColumns = kVectors * 64 / int64_t(sizeof(T));

// c[i, j] += sum over k of a[i * a_row + k * a_column] * b[k * b_row + j] for kColumns columns and `rows` rows.
template <typename T, int64_t rows>
__attribute__((always_inline)) inline void Tile(
  const T* a, int64_t a_row, int64_t a_column, const T* b, int64_t b_row, int64_t depth, T* c, int64_t c_row) {
  T sums[rows][kColumns<T>] = {};
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < kColumns<T>; ++j)
        sums[i][j] = std::fma(a[i * a_row + k * a_column], b[k * b_row + j], sums[i][j]);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < kColumns<T>; ++j) c[i * c_row + j] += sums[i][j];
}

// c [m, n] += a [m, depth] b [depth, n]; rows of b and c are contiguous, the steps between rows are given. `most` are
// the rows of a tile, which change no sum.
template <int64_t most, typename T>
__attribute__((always_inline)) inline void Product(int64_t m, int64_t n, int64_t depth, const T* a, int64_t a_row,
  int64_t a_column, const T* b, int64_t b_row, T* c, int64_t c_row) {
  constexpr int64_t kWidth = kColumns<T>;
  alignas(64) T edge[kDepth * kWidth];
  alignas(64) T result[most * kWidth];
  for (int64_t k = 0; k < depth; k += kDepth) {
    const int64_t block = std::min(kDepth, depth - k);
    for (int64_t j = 0; j < n; j += kWidth) {
      const int64_t width = std::min(kWidth, n - j);
      const T* right = b + k * b_row + j;
      int64_t right_row = b_row;
      if (width < kWidth) {  // the last columns, padded with zeros
        for (int64_t row = 0; row < block; ++row) {
          std::memcpy(edge + row * kWidth, right + row * b_row, size_t(width) * sizeof(T));
          std::memset(edge + row * kWidth + width, 0, size_t(kWidth - width) * sizeof(T));
        }
        right = edge;
        right_row = kWidth;
      }
      for (int64_t i = 0, rows = 0; i < m; i += rows) {
        rows = m - i >= most ? most : std::min(kRows, m - i);
        const T* left = a + i * a_row + k * a_column;
        const bool whole = width == kWidth;
        T* target = whole ? c + i * c_row + j : result;
        const int64_t target_row = whole ? c_row : kWidth;
        if (!whole) std::memset(result, 0, sizeof(result));
        switch (rows) {
          case 1: Tile<T, 1>(left, a_row, a_column, right, right_row, block, target, target_row); break;
          case 2: Tile<T, 2>(left, a_row, a_column, right, right_row, block, target, target_row); break;
          case 3: Tile<T, 3>(left, a_row, a_column, right, right_row, block, target, target_row); break;
          case kRows: Tile<T, kRows>(left, a_row, a_column, right, right_row, block, target, target_row); break;
          default: Tile<T, most>(left, a_row, a_column, right, right_row, block, target, target_row);
        }
        for (int64_t row = 0; row < (whole ? 0 : rows); ++row)
          for (int64_t column = 0; column < width; ++column)
            c[(i + row) * c_row + j + column] += result[row * kWidth + column];
      }
    }
  }
}

// The same code for the vectors that a machine has. Each product is fused with its sum, so every one gives the same
// bits; one without the instruction (before 2013) is slow.
#if defined(__x86_64__) && defined(__GNUC__)
#define ORTPLUGIN_VERSIONS(NAME, TARGET, MOST) \
  __attribute__((target(TARGET))) void NAME(int64_t m, int64_t n, int64_t depth, const float* a, int64_t a_row, \
    int64_t a_column, const float* b, int64_t b_row, float* c, int64_t c_row) { \
    Product<MOST>(m, n, depth, a, a_row, a_column, b, b_row, c, c_row); \
  } \
  __attribute__((target(TARGET))) void NAME(int64_t m, int64_t n, int64_t depth, const double* a, int64_t a_row, \
    int64_t a_column, const double* b, int64_t b_row, double* c, int64_t c_row) { \
    Product<MOST>(m, n, depth, a, a_row, a_column, b, b_row, c, c_row); \
  }
ORTPLUGIN_VERSIONS(ProductAvx2, "avx2,fma", kRows)
ORTPLUGIN_VERSIONS(ProductAvx512, "avx512f,fma", 2 * kRows)
#undef ORTPLUGIN_VERSIONS
#endif

}  // namespace

template <typename T>
void Multiply(int64_t m, int64_t n, int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* b,
  int64_t b_row, T* c, int64_t c_row) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const int level = X86Level();
  if (level >= 4) return ProductAvx512(m, n, depth, a, a_row, a_column, b, b_row, c, c_row);
  if (level >= 3) return ProductAvx2(m, n, depth, a, a_row, a_column, b, b_row, c, c_row);
#endif
  Product<kRows>(m, n, depth, a, a_row, a_column, b, b_row, c, c_row);
}

namespace {

// Elements in the spatial dimensions of s, l or a filter.
int64_t Count(const Contraction& problem, int64_t Window::* size) {
  int64_t count = 1;
  for (const Window& window : problem.windows) count *= window.*size;
  return count;
}

// ---- Columns: what meets each element of s, as a matrix

// Calls body(o, coordinates, count) for stretches of `count` elements of s along the last axis, o being the number of
// the first and `coordinates` its index, that make up [first, first + total).
template <typename Body>
void ForStretches(const Contraction& problem, int64_t first, int64_t total, const Body& body) {
  const size_t rank = problem.windows.size();
  const int64_t row = problem.windows.back().out;
  std::vector<int64_t> at(rank);
  for (int64_t o = first; o < first + total;) {
    int64_t rest = o;
    for (size_t axis = rank; axis-- > 0; rest /= problem.windows[axis].out) at[axis] = rest % problem.windows[axis].out;
    const int64_t count = std::min(row - at.back(), first + total - o);
    body(o, at, count);
    o += count;
  }
}

// Calls body(k, start, from, to) for each kernel position k that a stretch's row meets: elements [from, to) of the
// stretch meet those of l at start + element * stride. Positions that meet nothing have from == to.
template <typename Body>
void ForKernel(const Contraction& problem, const std::vector<int64_t>& at, int64_t count, const Body& body) {
  const size_t rank = problem.windows.size();
  const Window& last = problem.windows.back();
  const int64_t kernels = Count(problem, &Window::kernel);
  std::vector<int64_t> position(rank);
  for (int64_t k = 0; k < kernels; ++k) {
    int64_t rest = k;
    for (size_t axis = rank; axis-- > 0; rest /= problem.windows[axis].kernel)
      position[axis] = rest % problem.windows[axis].kernel;
    int64_t offset = 0;
    bool inside = true;
    for (size_t axis = 0; axis + 1 < rank; ++axis) {
      const Window& each = problem.windows[axis];
      const int64_t place = at[axis] * each.stride + position[axis] * each.dilation - each.pad_begin;
      inside = inside && place >= 0 && place < each.size;
      offset = offset * each.size + place;
    }
    const int64_t start = at.back() * last.stride + position.back() * last.dilation - last.pad_begin;
    int64_t from = start >= 0 ? 0 : (-start + last.stride - 1) / last.stride;
    int64_t to = last.size - start <= 0 ? 0 : (last.size - start - 1) / last.stride + 1;
    from = std::min(from, count);
    to = inside ? std::clamp(to, from, count) : from;
    body(k, offset * last.size + start, from, to);
  }
}

// Calls body(column, count, k, start, from, to) for each stretch of [first, first + total), whose elements have the
// numbers from `column` on there, and for each kernel position; see ForKernel.
template <typename Body>
void ForMeetings(const Contraction& problem, int64_t first, int64_t total, const Body& body) {
  ForStretches(problem, first, total, [&](int64_t o, const std::vector<int64_t>& at, int64_t count) {
    ForKernel(problem, at, count,
      [&](int64_t k, int64_t start, int64_t from, int64_t to) { body(o - first, count, k, start, from, to); });
  });
}

// columns[(c, k), o - first] of the channels [0, channels) of one image's group; zeros where s meets nothing.
template <typename T>
void FillColumns(
  const Contraction& problem, const T* large, int64_t channels, int64_t first, int64_t total, T* columns) {
  const int64_t kernels = Count(problem, &Window::kernel), image = Count(problem, &Window::size),
                stride = problem.windows.back().stride;
  const auto meet = [&](int64_t column, int64_t count, int64_t k, int64_t start, int64_t from, int64_t to) {
    for (int64_t c = 0; c < channels; ++c) {
      T* target = columns + (c * kernels + k) * total + column;
      std::fill(target, target + from, T{0});
      const T* source = large + c * image + start;
      for (int64_t i = from; i < to; ++i) target[i] = source[i * stride];
      std::fill(target + to, target + count, T{0});
    }
  };
  ForMeetings(problem, first, total, meet);
}

// The same transposed: rows[o - first, (c, k)].
template <typename T>
void FillRows(const Contraction& problem, const T* large, int64_t first, int64_t total, T* rows) {
  const int64_t kernels = Count(problem, &Window::kernel), image = Count(problem, &Window::size),
                stride = problem.windows.back().stride;
  const int64_t width = problem.group_channels() * kernels;
  std::fill(rows, rows + total * width, T{0});
  const auto meet = [&](int64_t column, int64_t, int64_t k, int64_t start, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const T* source = large + start + i * stride;
      T* target = rows + (column + i) * width + k;
      for (int64_t c = 0; c < problem.group_channels(); ++c) target[c * kernels] = source[c * image];
    }
  };
  ForMeetings(problem, first, total, meet);
}

// Adds columns to what they were taken from.
template <typename T>
void AddColumns(
  const Contraction& problem, const T* columns, int64_t channels, int64_t first, int64_t total, T* large) {
  const int64_t kernels = Count(problem, &Window::kernel), image = Count(problem, &Window::size),
                stride = problem.windows.back().stride;
  const auto meet = [&](int64_t column, int64_t, int64_t k, int64_t start, int64_t from, int64_t to) {
    for (int64_t c = 0; c < channels; ++c) {
      const T* source = columns + (c * kernels + k) * total + column;
      T* target = large + c * image + start;
      for (int64_t i = from; i < to; ++i) target[i * stride] += source[i];
    }
  };
  ForMeetings(problem, first, total, meet);
}

// Elements of s whose columns of `height` numbers make up a matrix that stays in the L2 cache.
int64_t Block(const Contraction& problem, int64_t height) {
  constexpr int64_t kNumbers = 65536;
  const int64_t count = Count(problem, &Window::out);
  return std::clamp<int64_t>(kNumbers / std::max<int64_t>(1, height) / 32 * 32, 32, std::max<int64_t>(count, 32));
}

constexpr int64_t kTasks = 16;  // about as many are worth while

}  // namespace

template <typename T>
void Forward(const Contraction& problem, const T* large, const T* weight, T* small, const ParallelFor& parallel_for) {
  const int64_t outputs = Count(problem, &Window::out), image = Count(problem, &Window::size),
                height = problem.group_channels() * Count(problem, &Window::kernel);
  const int64_t block = Block(problem, height), blocks = DivideUp(outputs, block);
  parallel_for(size_t(problem.batch * problem.groups * blocks), [&](size_t task) {
    const int64_t number = int64_t(task), part = number / blocks, first = number % blocks * block;
    const int64_t count = std::min(block, outputs - first);
    HostVector<T> columns(size_t(height * count));
    FillColumns(
      problem, large + part * problem.group_channels() * image, problem.group_channels(), first, count, columns.data());
    T* target = small + part * problem.group_filters() * outputs + first;
    for (int64_t row = 0; row < problem.group_filters(); ++row)
      std::fill(target + row * outputs, target + row * outputs + count, T{0});
    Multiply<T>(problem.group_filters(), count, height,
      weight + part % problem.groups * problem.group_filters() * height, height, 1, columns.data(), count, target,
      outputs);
  });
}

template <typename T>
void DataGradient(
  const Contraction& problem, const T* small, const T* weight, T* large, const ParallelFor& parallel_for) {
  const int64_t outputs = Count(problem, &Window::out), image = Count(problem, &Window::size),
                kernels = Count(problem, &Window::kernel);
  const int64_t height = problem.group_channels() * kernels, parts = problem.batch * problem.groups;
  // Where there are few images and groups, tasks share out the channels.
  const int64_t channels = DivideUp(
    problem.group_channels(), std::clamp<int64_t>(kTasks / std::max<int64_t>(1, parts), 1, problem.group_channels()));
  const int64_t slices = DivideUp(problem.group_channels(), channels);
  parallel_for(size_t(parts * slices), [&](size_t task) {
    const int64_t number = int64_t(task), part = number / slices, channel = number % slices * channels;
    const int64_t width = std::min(channels, problem.group_channels() - channel), rows = width * kernels;
    T* target = large + (part * problem.group_channels() + channel) * image;
    std::fill(target, target + width * image, T{0});
    const int64_t block = Block(problem, rows);
    HostVector<T> columns(size_t(rows * std::min(block, outputs)));
    for (int64_t first = 0; first < outputs; first += block) {
      const int64_t count = std::min(block, outputs - first);
      std::fill(columns.data(), columns.data() + rows * count, T{0});
      Multiply<T>(rows, count, problem.group_filters(),
        weight + part % problem.groups * problem.group_filters() * height + channel * kernels, 1, height,
        small + part * problem.group_filters() * outputs + first, outputs, columns.data(), count);
      AddColumns(problem, columns.data(), width, first, count, target);
    }
  });
}

template <typename T>
void WeightGradient(
  const Contraction& problem, const T* small, const T* large, double* weight, const ParallelFor& parallel_for) {
  const int64_t outputs = Count(problem, &Window::out), image = Count(problem, &Window::size),
                height = problem.group_channels() * Count(problem, &Window::kernel);
  // Tasks share out groups and rows of w; where these are few, images too, whose sums are added afterwards.
  constexpr int64_t kTaskRows = 64;
  const int64_t slices = DivideUp(problem.group_filters(), kTaskRows);
  const int64_t wanted =
    std::clamp<int64_t>(kTasks / (problem.groups * slices), 1, std::max<int64_t>(1, problem.batch));
  const int64_t images = DivideUp(std::max<int64_t>(1, problem.batch), wanted),
                chunks = DivideUp(problem.batch, images);
  const int64_t whole = problem.filters * height;
  std::fill(weight, weight + whole, 0.0);
  if (problem.batch == 0 || outputs == 0 || height == 0) return;
  HostVector<double> partial(size_t(whole * (chunks - 1)));
  parallel_for(size_t(problem.groups * slices * chunks), [&](size_t task) {
    const int64_t number = int64_t(task), chunk = number % chunks;
    const int64_t slice = number / chunks % slices * kTaskRows, group = number / chunks / slices;
    const int64_t rows = std::min(kTaskRows, problem.group_filters() - slice), block = Block(problem, height);
    double* totals = chunk == 0 ? weight : partial.data() + (chunk - 1) * whole;
    totals += (group * problem.group_filters() + slice) * height;
    HostVector<T> columns(size_t(std::min(block, outputs) * height));
    HostVector<T> sums(size_t(rows * height));
    for (int64_t n = chunk * images; n < std::min(problem.batch, (chunk + 1) * images); ++n) {
      const int64_t part = n * problem.groups + group;
      for (int64_t first = 0; first < outputs; first += block) {
        const int64_t count = std::min(block, outputs - first);
        FillRows(problem, large + part * problem.group_channels() * image, first, count, columns.data());
        std::fill(sums.begin(), sums.end(), T{0});
        Multiply<T>(rows, height, count, small + (part * problem.group_filters() + slice) * outputs + first, outputs, 1,
          columns.data(), height, sums.data(), height);
        for (int64_t i = 0; i < rows * height; ++i) totals[i] += double(sums[size_t(i)]);
      }
    }
  });
  for (int64_t chunk = 0; chunk + 1 < chunks; ++chunk)
    for (int64_t i = 0; i < whole; ++i) weight[i] += partial[size_t(chunk * whole + i)];
}

template void Multiply(
  int64_t, int64_t, int64_t, const float*, int64_t, int64_t, const float*, int64_t, float*, int64_t);
template void Multiply(
  int64_t, int64_t, int64_t, const double*, int64_t, int64_t, const double*, int64_t, double*, int64_t);
template void Forward(const Contraction&, const float*, const float*, float*, const ParallelFor&);
template void Forward(const Contraction&, const double*, const double*, double*, const ParallelFor&);
template void DataGradient(const Contraction&, const float*, const float*, float*, const ParallelFor&);
template void DataGradient(const Contraction&, const double*, const double*, double*, const ParallelFor&);
template void WeightGradient(const Contraction&, const float*, const float*, double*, const ParallelFor&);
template void WeightGradient(const Contraction&, const double*, const double*, double*, const ParallelFor&);

}  // namespace ortplugin
