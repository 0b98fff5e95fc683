#include "ortplugin/runtime/program/operand_lanes.h"

#include <algorithm>
#include <cstring>

namespace ortplugin {
namespace {

// Elements [first, first + count) of what a tensor is broadcast to.
template <typename T>
void Gather(const Axes& axes, const Shape& strides, const void* data, int64_t first, size_t count, void* gathered) {
  const T* elements = static_cast<const T*>(data);
  T* to = static_cast<T*>(gathered);
  const bool is_repeated = strides[axes.count() - 1] == 0;
  ForEachRun(axes, strides, first, count, [&](int64_t row, int64_t column, size_t size) {
    if (is_repeated) {
      std::fill_n(to, size, elements[row]);
    } else {
      std::copy_n(elements + row + column, size, to);  // a dense tensor's last axis has stride 1
    }
    to += size;
  });
}

void Gather(
  size_t size, const Axes& axes, const Shape& strides, const void* data, int64_t first, size_t count, void* gathered) {
  const auto gather = size == 1 ? Gather<uint8_t>
    : size == 2                 ? Gather<uint16_t>
    : size == 4                 ? Gather<uint32_t>
                                : Gather<uint64_t>;
  gather(axes, strides, data, first, count, gathered);
}

}  // namespace

void BlockOperand::Load(
  int64_t first, size_t count, ValueId value, Evaluator::Workspace& workspace, void* scratch) const {
  const size_t size = SizeOf(dtype_);
  const auto* elements = static_cast<const char*>(data_);
  switch (kind_) {
    case Kind::kScalar: return;
    case Kind::kBound: return workspace.Bind(value, elements + size_t(first) * size);
    case Kind::kCopied: return LoadLanes(dtype_, elements + size_t(first) * size, count, workspace.lanes(value));
    case Kind::kPeriodic: return workspace.Bind(value, lanes_.data() + size_t(first % period_) * LaneSize(dtype_));
    case Kind::kGathered: break;
  }
  if (IsLanes(dtype_)) return Gather(size, axes_, strides_, data_, first, count, workspace.lanes(value));
  if (!lanes_.empty())
    return Gather(LaneSize(dtype_), axes_, strides_, lanes_.data(), first, count, workspace.lanes(value));
  Gather(size, axes_, strides_, data_, first, count, scratch);
  LoadLanes(dtype_, scratch, count, workspace.lanes(value));
}

void BlockOperand::Prepare() {
  int64_t elements = 1, suffix = 1;
  bool is_suffix = true;  // repeated over leading axes only
  for (size_t i = axes_.count(); i-- > 0;) {
    is_suffix = is_suffix &&
      (strides_[i] == suffix ||
        std::all_of(
          strides_.begin(), strides_.begin() + std::ptrdiff_t(i) + 1, [](int64_t stride) { return stride == 0; }));
    if (strides_[i] != 0) elements *= axes_.sizes[i];
    suffix *= axes_.sizes[i];
  }
  kind_ = is_suffix && elements <= kSmall ? Kind::kPeriodic : Kind::kGathered;
  if (elements > kSmall || (kind_ == Kind::kGathered && IsLanes(dtype_))) return;
  period_ = elements;
  const size_t lane = LaneSize(dtype_), bytes = size_t(elements) * lane;
  lanes_.resize(kind_ == Kind::kPeriodic ? bytes + kBlock * lane : bytes);
  LoadLanes(dtype_, data_, size_t(elements), lanes_.data());
  for (size_t at = bytes; at < lanes_.size(); at += bytes)
    std::memcpy(lanes_.data() + at, lanes_.data(), std::min(bytes, lanes_.size() - at));
}

}  // namespace ortplugin
