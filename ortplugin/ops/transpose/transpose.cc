#include "ortplugin/ops/transpose/transpose.h"

#include <algorithm>

#include "ortplugin/ops/scatter/scatter.h"

namespace ortplugin {
namespace {

constexpr size_t kMostAxes = 16;
constexpr int64_t kUnknown = -1;

template <typename Source>
TransposeAttributes ParseTranspose(const Source& source) {
  TransposeAttributes attributes;
  attributes.perm = source.ints_attribute("perm");
  const size_t rank = attributes.perm.size();
  if (rank == 0 || rank > kMostAxes)
    Fail("the attribute 'perm' has ", rank, " numbers; there must be 1 to ", kMostAxes);
  std::vector<int64_t> sorted = attributes.perm;
  std::sort(sorted.begin(), sorted.end());
  for (size_t axis = 0; axis < rank; ++axis)
    if (sorted[axis] != int64_t(axis))
      Fail("the attribute 'perm' is ", ToString(attributes.perm), ", which is no order of the axes 0 to ", rank - 1);
  attributes.starts = source.ints_attribute("starts");
  attributes.ends = source.ints_attribute("ends");
  if (attributes.starts.empty() && attributes.ends.empty()) {
    attributes.starts.assign(rank, 0);
    attributes.ends.assign(rank, INT64_MAX);
  }
  for (const auto& [name, numbers] : {std::pair{"starts", &attributes.starts}, {"ends", &attributes.ends}})
    if (numbers->size() != rank)
      Fail("the attribute '", name, "' has ", numbers->size(), " numbers, but perm has ", rank);
  return attributes;
}

// A bound of a Slice, within the axis.
int64_t Bound(int64_t bound, int64_t size) { return bound < 0 ? std::max(bound, -size) + size : std::min(bound, size); }

void CheckRank(const TransposeAttributes& attributes, size_t rank) {
  if (rank != attributes.perm.size())
    Fail("the input has ", rank, " dimensions, but perm is ", ToString(attributes.perm));
}

void CheckOne(const char* what, size_t count) {
  if (count != 1) Fail("the node has ", count, " ", what, "s, but must have 1");
}

void Infer(ShapeContext& context) {
  const TransposeAttributes attributes = TransposeAttributes::Parse(context);
  CheckOne("input", context.input_count());
  const TensorType x = context.input(0);
  if (x.type != ort::kUndefined) CheckTransposeType(x.type);
  TensorType y = x;
  if (x.has_shape) {
    CheckRank(attributes, x.shape.size());
    y.symbols.assign(x.shape.size(), "");
    for (size_t i = 0; i < attributes.perm.size(); ++i) {
      const auto axis = size_t(attributes.perm[i]);
      const int64_t size = x.shape[axis], start = attributes.starts[axis], end = attributes.ends[axis];
      const bool is_whole = start == 0 && end == INT64_MAX;
      // A size of 0 is not known: onnx's inference says 0 of the open lengths of an Attention.
      y.shape[i] = size <= 0 ? kUnknown : std::max<int64_t>(0, Bound(end, size) - Bound(start, size));
      if (is_whole && axis < x.symbols.size()) y.symbols[i] = x.symbols[axis];
    }
  }
  context.set_output(0, y);
}

}  // namespace

TransposeAttributes TransposeAttributes::Parse(const NodeInfo& info) {
  // Shape inference refuses it too, but ORT goes on without it.
  CheckOne("input", info.input_count());
  CheckOne("output", info.output_count());
  return ParseTranspose(info);
}
TransposeAttributes TransposeAttributes::Parse(const ShapeContext& context) { return ParseTranspose(context); }

int64_t CheckTransposeType(ort::ElementType type) {
  const size_t bytes = ScatterBytes(type);
  if (bytes == 0) Fail("the input is ", NameOfOrt(type), ", which the operator lacks; leave it to ai.onnx's Transpose");
  return int64_t(bytes);
}

TransposeShape FitTranspose(const TransposeAttributes& attributes, const Shape& input, int64_t element) {
  const size_t rank = input.size();
  CheckRank(attributes, rank);
  ElementCount(input);
  std::vector<int64_t> steps(rank, element);
  for (size_t axis = rank; axis-- > 1;) steps[axis - 1] = steps[axis] * input[axis];
  TransposeShape shape{{}, {}, 0, element};
  for (const int64_t perm : attributes.perm) {
    const auto axis = size_t(perm);
    const int64_t start = Bound(attributes.starts[axis], input[axis]);
    const int64_t length = std::max<int64_t>(0, Bound(attributes.ends[axis], input[axis]) - start);
    shape.output.push_back(length);
    shape.offset += start * steps[axis];
    if (length == 1) continue;
    // An axis that goes on where the one inside it ends is one with it.
    if (!shape.axes.empty() && shape.axes.back().from == length * steps[axis]) {
      shape.axes.back().length *= length;
      shape.axes.back().from = steps[axis];
    } else {
      shape.axes.push_back({length, steps[axis], 0});
    }
  }
  int64_t to = element;
  for (size_t axis = shape.axes.size(); axis-- > 0; to *= shape.axes[axis].length) shape.axes[axis].to = to;
  return shape;
}

int64_t TransposeShape::count() const {
  int64_t count = 1;
  for (const TransposeAxis& axis : axes) count *= axis.length;
  return count;
}

void TransposeShape::FoldRun(int64_t alignment) {
  if (axes.empty() || axes.back().from != element) return;
  const int64_t run = axes.back().length * element;
  if (run > 16 || (run & (run - 1)) != 0 || alignment % run != 0 || offset % run != 0) return;
  for (size_t axis = 0; axis + 1 < axes.size(); ++axis)
    if (axes[axis].from % run != 0) return;
  axes.pop_back();
  element = run;
}

const Operator kFusedTranspose = {
  "FusedTranspose",
  Infer,
  CreateCpuTranspose,
  CreateCudaTranspose,
};

}  // namespace ortplugin
