#include "ortplugin/ops/scatter/scatter.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

// ---- attributes

// The place of `word` in `words`.
template <typename Enum, size_t N>
Enum Choose(const char* attribute, const std::string& word, const char* const (&words)[N]) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (word == words[i]) return static_cast<Enum>(i);
    known += (i ? ", " : "") + std::string(words[i]);
  }
  Fail("the attribute '", attribute, "' is ", Quoted(word), " but must be one of ", known);
}

constexpr const char* kReductions[] = {"none", "add", "mul", "min", "max"};
constexpr const char* kAlgorithms[] = {"auto", "sequential", "parallel", "sorting"};

template <typename Source>
bool Flag(const Source& source, const char* name, int64_t absent) {
  const int64_t value = source.int_attribute(name, absent);
  if (value != 0 && value != 1) Fail("the attribute '", name, "' is ", value, " but must be 0 or 1");
  return value != 0;
}

template <typename Source>
ScatterAttributes ParseAttributes(ScatterKind kind, const Source& source) {
  ScatterAttributes attributes;
  attributes.kind = kind;
  if (kind == ScatterKind::kSlice) {
    attributes.axes = source.ints_attribute("axes");
    attributes.steps = source.ints_attribute("steps");
    if (attributes.axes.empty()) Fail("the attribute 'axes' is missing or empty");
    for (size_t i = 0; i < attributes.axes.size(); ++i) {
      if (attributes.axes[i] < 0) Fail("the attribute 'axes' has ", attributes.axes[i], ", which is negative");
      if (std::count(attributes.axes.begin(), attributes.axes.end(), attributes.axes[i]) > 1)
        Fail("the attribute 'axes' has ", attributes.axes[i], " twice");
    }
    if (attributes.steps.empty()) attributes.steps.assign(attributes.axes.size(), 1);
    if (attributes.steps.size() != attributes.axes.size())
      Fail("there are ", attributes.axes.size(), " axes but ", attributes.steps.size(), " steps");
    for (const int64_t step : attributes.steps)
      if (step == 0 || step == INT64_MIN) Fail("the attribute 'steps' has ", step, ", which is no step");
    attributes.unique = true;  // a slice has no place twice
    return attributes;
  }
  attributes.reduction = Choose<Reduction>("reduction", source.string_attribute("reduction", "none"), kReductions);
  attributes.algorithm =
    Choose<ScatterAlgorithm>("algorithm", source.string_attribute("algorithm", "auto"), kAlgorithms);
  attributes.unique = Flag(source, "unique", 0);
  attributes.deterministic = Flag(source, "deterministic", 1);
  if (kind == ScatterKind::kElements) attributes.axis = source.int_attribute("axis", 0);
  return attributes;
}

const char* NameOfInput(const ScatterAttributes& attributes, size_t input) {
  return input == 0                          ? "data"
    : input == attributes.updates()          ? "updates"
    : attributes.kind == ScatterKind::kSlice ? "starts"
                                             : "indices";
}

bool IsArithmetic(ort::ElementType type) {
  switch (type) {
    case ort::kFloat:
    case ort::kUInt8:
    case ort::kInt8:
    case ort::kUInt16:
    case ort::kInt16:
    case ort::kInt32:
    case ort::kInt64:
    case ort::kFloat16:
    case ort::kDouble:
    case ort::kUInt32:
    case ort::kUInt64:
    case ort::kBFloat16: return true;
    default: return false;
  }
}

// ---- shapes

// How a number that counts the elements of `sizes` in row-major order gives the sum of coordinate times stride, in as
// few terms as possible.
std::vector<Term> MakeTerms(const Shape& sizes, const std::vector<int64_t>& strides) {
  std::vector<Term> terms;  // innermost first
  int64_t divisor = 1;
  for (size_t axis = sizes.size(); axis-- > 0; divisor *= sizes[axis]) {
    if (sizes[axis] == 1) continue;
    // An axis that goes on where the one inside it ends is one with it.
    if (!terms.empty() && terms.back().divisor * terms.back().modulus == divisor &&
      terms.back().stride * terms.back().modulus == strides[axis]) {
      terms.back().modulus *= sizes[axis];
    } else {
      terms.push_back({divisor, sizes[axis], strides[axis]});
    }
  }
  for (Term& term : terms)
    if (term.divisor * term.modulus == divisor) term.modulus = 0;
  terms.erase(
    std::remove_if(terms.begin(), terms.end(), [](const Term& term) { return term.stride == 0; }), terms.end());
  return terms;
}

// Elements between neighbours along each axis.
std::vector<int64_t> StridesOf(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

// The strides of a tensor that broadcasts: 0 where it has one element only.
std::vector<int64_t> BroadcastStrides(const Shape& shape) {
  std::vector<int64_t> strides = StridesOf(shape);
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] == 1) strides[axis] = 0;
  return strides;
}

Shape Head(const Shape& shape, size_t count) { return Shape(shape.begin(), shape.begin() + int64_t(count)); }
Shape Tail(const Shape& shape, size_t first) { return Shape(shape.begin() + int64_t(first), shape.end()); }

constexpr Term kNoSteps{1, 0, 0};

void FitND(const Shape& indices, const Shape& updates, ScatterShape* fit) {
  const Shape& data = fit->shape;
  if (indices.empty()) Fail("indices is a scalar but must have an axis for the components of an index");
  const int64_t depth = indices.back();
  if (data.empty() || depth < 1 || depth > int64_t(data.size()))
    Fail("the indices' shape ", ToString(indices), " asks for indices of ", depth, " components into data of shape ",
      ToString(data));
  const auto count = size_t(depth);
  Shape wanted = Head(indices, indices.size() - 1);
  const Shape rest = Tail(data, count);
  fit->units = ElementCount(wanted);
  wanted.insert(wanted.end(), rest.begin(), rest.end());
  if (updates != wanted)
    Fail("updates has the shape ", ToString(updates), " but indices ", ToString(indices), " into data ", ToString(data),
      " take ", ToString(wanted));
  fit->width = ElementCount(rest);
  const Shape head = Head(data, count);
  fit->slots = ElementCount(head);
  const std::vector<int64_t> strides = StridesOf(head);
  for (size_t c = 0; c < count; ++c) fit->components.push_back({head[c], strides[c], kNoSteps});
  fit->index = {{1, 0, depth}};
  fit->update = {{1, 0, fit->width}};
}

void FitElements(int64_t given_axis, const Shape& indices, const Shape& updates, ScatterShape* fit) {
  const Shape& data = fit->shape;
  const auto rank = int64_t(data.size());
  const int64_t axis = given_axis < 0 ? given_axis + rank : given_axis;
  if (axis < 0 || axis >= rank) Fail("axis ", given_axis, " is out of range for data of shape ", ToString(data));
  if (indices.size() != data.size() || updates.size() != data.size())
    Fail("data ", ToString(data), ", indices ", ToString(indices), " and updates ", ToString(updates),
      " must have one rank");
  const auto along = size_t(axis);
  for (size_t i = 0; i < data.size(); ++i) {
    if (indices[i] != updates[i] && indices[i] != 1)
      Fail("indices of shape ", ToString(indices), " are not, and do not broadcast to, the updates' shape ",
        ToString(updates));
    if (i != along && updates[i] > data[i])
      Fail("updates of shape ", ToString(updates), " are larger than data ", ToString(data), " on axis ", i);
  }
  // Axes inside that are written whole, all with one index, make a unit's width.
  size_t outer = data.size();
  while (outer - 1 > along && indices[outer - 1] == 1 && updates[outer - 1] == data[outer - 1]) --outer;
  fit->width = ElementCount(Tail(data, outer));
  const Shape units = Head(updates, outer), slots = Head(data, outer);
  fit->units = ElementCount(units);
  fit->slots = ElementCount(slots);
  std::vector<int64_t> strides = StridesOf(slots);
  fit->components = {{data[along], strides[along], kNoSteps}};
  strides[along] = 0;
  fit->base = MakeTerms(units, strides);
  fit->index = MakeTerms(units, BroadcastStrides(Head(indices, outer)));
  fit->update = {{1, 0, fit->width}};
}

void FitSlice(const ScatterAttributes& attributes, const Shape& starts, const Shape& updates, ScatterShape* fit) {
  const Shape& data = fit->shape;
  const std::vector<int64_t>& axes = attributes.axes;
  const bool is_scalar = starts.empty() && axes.size() == 1;
  if (!is_scalar && (starts.size() != 1 || starts[0] != int64_t(axes.size())))
    Fail("starts has the shape ", ToString(starts), " but must have an element for each of the ", axes.size(), " axes");
  if (updates.size() != data.size())
    Fail("updates ", ToString(updates), " and data ", ToString(data), " must have one rank");
  Shape region = data;
  std::vector<size_t> component(data.size(), axes.size());  // of each axis; axes.size(): it has none
  for (size_t c = 0; c < axes.size(); ++c) {
    if (axes[c] >= int64_t(data.size())) Fail("axis ", axes[c], " is out of range for data of shape ", ToString(data));
    const auto axis = size_t(axes[c]);
    component[axis] = c;
    region[axis] = updates[axis];
    int64_t span = 0;
    if (updates[axis] > 0 &&
      (__builtin_mul_overflow(updates[axis] - 1, std::abs(attributes.steps[c]), &span) || span >= data[axis]))
      Fail("updates of shape ", ToString(updates), " with step ", attributes.steps[c], " reach beyond data ",
        ToString(data), " on axis ", axis);
  }
  for (size_t i = 0; i < data.size(); ++i)
    if (component[i] == axes.size() && updates[i] != data[i] && updates[i] != 1)
      Fail("updates of shape ", ToString(updates), " must have data's size or 1 on axis ", i, ", which is not sliced; ",
        "data is ", ToString(data));
  size_t outer = data.size();
  while (outer > 0 && component[outer - 1] == axes.size() && updates[outer - 1] == data[outer - 1]) --outer;
  fit->width = ElementCount(Tail(data, outer));
  const Shape units = Head(region, outer), slots = Head(data, outer);
  fit->units = ElementCount(units);
  fit->slots = ElementCount(slots);
  std::vector<int64_t> strides = StridesOf(slots);
  for (size_t c = 0; c < axes.size(); ++c) {
    const auto axis = size_t(axes[c]);
    std::vector<int64_t> steps(units.size(), 0);
    steps[axis] = attributes.steps[c];
    const std::vector<Term> terms = MakeTerms(units, steps);
    fit->components.push_back({data[axis], strides[axis], terms.empty() ? kNoSteps : terms[0]});
    strides[axis] = 0;
  }
  fit->base = MakeTerms(units, strides);
  std::vector<int64_t> update_strides = BroadcastStrides(updates);
  update_strides.resize(outer);
  fit->update = MakeTerms(units, update_strides);
}

// ---- shape inference

constexpr size_t kInputs = 3;

// Refuses what is known to be wrong.
void CheckKnown(const ScatterAttributes& attributes, const TensorTypes& inputs) {
  std::vector<ort::ElementType> types;
  for (const TensorType& input : inputs) types.push_back(input.type);
  CheckScatterTypes(attributes, types);
  if (const std::optional<Shapes> shapes = KnownShapes(inputs)) FitScatter(attributes, *shapes);
}

void CheckCounts(size_t inputs, size_t outputs) {
  if (inputs != kInputs || outputs != 1)
    Fail("the operator has ", kInputs, " inputs and one output, the node ", inputs, " and ", outputs);
}

template <ScatterKind kind>
void Infer(ShapeContext& context) {
  const ScatterAttributes attributes = ScatterAttributes::Parse(kind, context);
  CheckCounts(context.input_count(), 1);
  TensorTypes inputs;
  for (size_t i = 0; i < kInputs; ++i) inputs.push_back(context.input(i));
  CheckKnown(attributes, inputs);
  context.set_output(0, inputs[0]);
}

template <ScatterKind kind>
constexpr Operator MakeOperator(const char* name) {
  return {
    name,
    Infer<kind>,
    [](const NodeInfo& info) { return CreateCpuScatter(kind, info); },
    [](const NodeInfo& info) { return CreateCudaScatter(kind, info); },
    InPlace<1, 1>,
  };
}

}  // namespace

ScatterAttributes ScatterAttributes::Parse(ScatterKind kind, const ShapeContext& context) {
  return ParseAttributes(kind, context);
}

ScatterAttributes ScatterAttributes::Parse(ScatterKind kind, const NodeInfo& info) {
  return ParseAttributes(kind, info);
}

size_t ScatterBytes(ort::ElementType type) {
  switch (type) {
    case ort::kUInt8:
    case ort::kInt8:
    case ort::kBool:
    case ort::kFloat8E4M3FN:
    case ort::kFloat8E4M3FNUZ:
    case ort::kFloat8E5M2:
    case ort::kFloat8E5M2FNUZ: return 1;
    case ort::kUInt16:
    case ort::kInt16:
    case ort::kFloat16:
    case ort::kBFloat16: return 2;
    case ort::kFloat:
    case ort::kInt32:
    case ort::kUInt32: return 4;
    case ort::kInt64:
    case ort::kUInt64:
    case ort::kDouble:
    case ort::kComplex64: return 8;
    case ort::kComplex128: return 16;
    default: return 0;
  }
}

void CheckScatterTypes(const ScatterAttributes& attributes, const std::vector<ort::ElementType>& types) {
  const ort::ElementType data = types[0], updates = types[attributes.updates()], indices = types[attributes.indices()];
  if (data != ort::kUndefined) {
    if (ScatterBytes(data) == 0)
      Fail("data is of dtype ", NameOfOrt(data),
        ", whose elements are not whole bytes of fixed number; leave the node ", "to ONNX's own operator");
    if (attributes.reduction != Reduction::kNone && !IsArithmetic(data))
      Fail("data is of dtype ", NameOfOrt(data), ", which has no reduction '", kReductions[int(attributes.reduction)],
        "'");
    if (updates != ort::kUndefined && updates != data)
      Fail("updates is of dtype ", NameOfOrt(updates), " but data of ", NameOfOrt(data));
  }
  const bool may_be_int32 = attributes.kind == ScatterKind::kElements;
  if (indices != ort::kUndefined && indices != ort::kInt64 && !(may_be_int32 && indices == ort::kInt32))
    Fail(NameOfInput(attributes, attributes.indices()), " is of dtype ", NameOfOrt(indices), " but must be int64",
      may_be_int32 ? " or int32" : "");
}

ScatterShape FitScatter(const ScatterAttributes& attributes, const Shapes& inputs) {
  ScatterShape fit{};
  fit.shape = inputs[0];
  fit.elements = ElementCount(fit.shape);
  const Shape &indices = inputs[attributes.indices()], &updates = inputs[attributes.updates()];
  ElementCount(indices);
  ElementCount(updates);
  switch (attributes.kind) {
    case ScatterKind::kND: FitND(indices, updates, &fit); break;
    case ScatterKind::kElements: FitElements(attributes.axis, indices, updates, &fit); break;
    case ScatterKind::kSlice: FitSlice(attributes, indices, updates, &fit); break;
  }
  return fit;
}

TensorTypes CheckScatterNode(const ScatterAttributes& attributes, const NodeInfo& info) {
  CheckCounts(info.input_count(), info.output_count());
  TensorTypes inputs;
  for (size_t i = 0; i < kInputs; ++i) inputs.push_back(info.input(i));
  CheckKnown(attributes, inputs);
  return inputs;
}

const Operator kScatterND = MakeOperator<ScatterKind::kND>("ScatterND");
const Operator kScatterElements = MakeOperator<ScatterKind::kElements>("ScatterElements");
const Operator kUpdateSlice = MakeOperator<ScatterKind::kSlice>("UpdateSlice");

}  // namespace ortplugin
