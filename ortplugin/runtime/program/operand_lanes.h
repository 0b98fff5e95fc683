// What a tensor that broadcasts gives an Evaluator: the lanes of its elements, block by block of the full shape.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/program/operands.h"

namespace ortplugin {

// Goes over the elements [first, first + count) of what a tensor of these strides broadcasts to, in runs along the last
// axis: visit(row, column, size), where `row` is the offset that the tensor has by its other axes.
template <typename Visit>
void ForEachRun(const Axes& axes, const Shape& strides, int64_t first, size_t count, const Visit& visit) {
  const size_t last = axes.count() - 1;
  thread_local Shape index;
  index.resize(axes.count());
  int64_t row = 0;
  for (size_t i = axes.count(); i-- > 0; first /= axes.sizes[i]) {
    index[i] = first % axes.sizes[i];
    if (i < last) row += index[i] * strides[i];
  }
  while (true) {
    const size_t size = std::min(count, size_t(axes.sizes[last] - index[last]));
    visit(row, index[last], size);
    count -= size;
    if (count == 0) return;
    index[last] = 0;
    for (size_t i = last; i-- > 0;) {
      row += strides[i];
      if (++index[i] < axes.sizes[i]) break;
      row -= strides[i] * axes.sizes[i];
      index[i] = 0;
    }
  }
}

// Whether a tensor's elements are lanes as they lie.
inline bool IsLanes(DType dtype) { return SizeOf(dtype) == LaneSize(dtype); }

// Where the lanes of one parameter come from, block by block. Made once for a run; blocks on all threads share it.
class BlockOperand {
 public:
  enum class Kind {
    kScalar,  // filled once for each workspace
    kBound,  // its elements are lanes where they lie
    kCopied,  // a linear tensor, converted, or taken out of the way of a result that overwrites it
    kPeriodic,  // lanes of one period and a block, made once
    kGathered,
  };

  BlockOperand(DType dtype, const Axes& axes, size_t parameter, const void* data, bool is_overwritten)
    : dtype_(dtype), axes_(axes), strides_(axes.strides[parameter]), data_(data) {
    if (axes_.is_scalar(parameter)) {
      kind_ = Kind::kScalar;
    } else if (axes_.is_linear(parameter)) {
      kind_ = IsLanes(dtype) && !is_overwritten ? Kind::kBound : Kind::kCopied;
    } else {
      Prepare();
    }
  }

  Kind kind() const { return kind_; }

  // Makes the parameter's lanes in the workspace those of the elements [first, first + count).
  void Load(int64_t first, size_t count, ValueId value, Evaluator::Workspace& workspace, void* scratch) const;
  void Fill(ValueId value, Evaluator::Workspace& workspace) const {
    FillLanes(dtype_, data_, kBlock, workspace.lanes(value));
  }

 private:
  // A tensor that is repeated and not large is converted once, before the threads start; a larger one is left to them.
  static constexpr int64_t kSmall = 65536;

  void Prepare();

  DType dtype_;
  const Axes& axes_;
  const Shape& strides_;
  const void* data_;
  Kind kind_;
  int64_t period_ = 0;
  std::vector<char> lanes_;
};

}  // namespace ortplugin
