// FusedTranspose on the CPU: runs that stay together are copied whole; else tiles of the innermost axis of x and that
// of y, so that the lines of neither leave the cache half used.

#include <algorithm>
#include <cstring>

#include "ortplugin/ops/transpose/transpose.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kTaskBytes = 64 << 10;
constexpr int64_t kTile = 32;  // elements

// Goes over the elements of some axes in order.
class Places {
 public:
  Places(std::vector<TransposeAxis> axes, int64_t first) : axes_(std::move(axes)), at_(axes_.size()) {
    for (size_t axis = axes_.size(); axis-- > 0; first /= axes_[axis].length) {
      at_[axis] = first % axes_[axis].length;
      from += at_[axis] * axes_[axis].from;
      to += at_[axis] * axes_[axis].to;
    }
  }

  void Next() {
    for (size_t axis = axes_.size(); axis-- > 0;) {
      from += axes_[axis].from;
      to += axes_[axis].to;
      if (++at_[axis] < axes_[axis].length) return;
      from -= at_[axis] * axes_[axis].from;
      to -= at_[axis] * axes_[axis].to;
      at_[axis] = 0;
    }
  }

  int64_t from = 0, to = 0;  // bytes

 private:
  std::vector<TransposeAxis> axes_;
  std::vector<int64_t> at_;
};

int64_t CountOf(const std::vector<TransposeAxis>& axes) {
  int64_t count = 1;
  for (const TransposeAxis& axis : axes) count *= axis.length;
  return count;
}

// copy(number, from, to) for each place of the axes, of `bytes` each, on ORT's threads; from and to in bytes.
template <typename Copy>
void ForPlaces(Run& run, const std::vector<TransposeAxis>& axes, int64_t bytes, Copy copy) {
  const int64_t count = CountOf(axes), step = std::max<int64_t>(1, kTaskBytes / bytes);
  const auto task = [&](size_t number) {
    const int64_t first = int64_t(number) * step, last = std::min(count, first + step);
    Places places(axes, first);
    for (int64_t i = first; i < last; ++i, places.Next()) copy(i, places.from, places.to);
  };
  if (count <= step) return task(0);
  run.parallel_for(size_t(DivideUp(count, step)), task);
}

template <typename T>
void CopyTile(const char* x, char* y, const TransposeAxis& columns, const TransposeAxis& rows, int64_t column_count,
  int64_t row_count) {
  for (int64_t column = 0; column < column_count; ++column)
    for (int64_t row = 0; row < row_count; ++row)
      std::memcpy(y + column * columns.to + row * rows.to, x + column * columns.from + row * rows.from, sizeof(T));
}

struct Complex {
  double parts[2];
};

class CpuTranspose : public Kernel {
 public:
  explicit CpuTranspose(const NodeInfo& info) : attributes_(TransposeAttributes::Parse(info)) {
    const TensorType x = info.input(0);
    if (x.type != ort::kUndefined) CheckTransposeType(x.type);
  }

  void Compute(Run& run) const override {
    const Tensor x = run.input(0);
    const int64_t element = CheckTransposeType(x.type);
    TransposeShape shape = FitTranspose(attributes_, x.shape, element);
    char* const y = static_cast<char*>(run.output(0, shape.output, size_t(element)));
    if (shape.count() == 0) return;
    const char* const from = static_cast<const char*>(x.data) + shape.offset;
    shape.offset = 0;
    shape.FoldRun(16);
    switch (shape.element) {
      case 1: return Copy<uint8_t>(run, shape, from, y);
      case 2: return Copy<uint16_t>(run, shape, from, y);
      case 4: return Copy<uint32_t>(run, shape, from, y);
      case 8: return Copy<uint64_t>(run, shape, from, y);
      default: return Copy<Complex>(run, shape, from, y);
    }
  }

 private:
  template <typename T>
  static void Copy(Run& run, const TransposeShape& shape, const char* x, char* y) {
    std::vector<TransposeAxis> axes = shape.axes;
    if (axes.empty()) axes.push_back({1, shape.element, shape.element});
    const TransposeAxis rows = axes.back();
    axes.pop_back();
    if (rows.from == shape.element) {
      const int64_t run_bytes = rows.length * shape.element;
      ForPlaces(run, axes, run_bytes,
        [&](int64_t, int64_t from, int64_t to) { std::memcpy(y + to, x + from, size_t(run_bytes)); });
      return;
    }
    const auto by_step = [](const TransposeAxis& a, const TransposeAxis& b) { return a.from < b.from; };
    const auto found = std::min_element(axes.begin(), axes.end(), by_step);
    const TransposeAxis columns = found == axes.end() ? TransposeAxis{1, 0, 0} : *found;
    if (found != axes.end()) axes.erase(found);
    const int64_t column_tiles = DivideUp(columns.length, kTile), row_tiles = DivideUp(rows.length, kTile);
    axes.push_back({column_tiles, kTile * columns.from, kTile * columns.to});
    axes.push_back({row_tiles, kTile * rows.from, kTile * rows.to});
    ForPlaces(run, axes, kTile * kTile * shape.element, [&](int64_t number, int64_t from, int64_t to) {
      const int64_t row = number % row_tiles * kTile, column = number / row_tiles % column_tiles * kTile;
      CopyTile<T>(
        x + from, y + to, columns, rows, std::min(kTile, columns.length - column), std::min(kTile, rows.length - row));
    });
  }

  TransposeAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuTranspose(const NodeInfo& info) { return std::make_unique<CpuTranspose>(info); }

}  // namespace ortplugin
