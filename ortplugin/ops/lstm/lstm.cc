#include "ortplugin/ops/lstm/lstm.h"

#include <algorithm>

#include "ortplugin/ops/allow_tf32.h"
#include "ortplugin/runtime/ort/choose.h"

namespace ortplugin {
namespace {

constexpr int64_t kGates = 4, kUnknown = -1, kLargest = (int64_t{1} << 31) - 1;
constexpr const char* kInputs[] = {"G", "R", "h0", "c0"};

template <typename Source>
LstmAttributes ParseLstm(const Source& source) {
  LstmAttributes attributes{};
  const size_t inputs = source.input_count();
  if (inputs != 2 && inputs != 4) Fail("the node has ", inputs, " inputs, but takes 2, G and R, or 4 with h0 and c0");
  attributes.has_states = inputs == 4;
  attributes.hidden = source.int_attribute("hidden_size", 0);
  if (attributes.hidden < 1 || attributes.hidden > kLargest)
    Fail("the attribute 'hidden_size' is ", attributes.hidden, " but must be from 1 to ", kLargest);
  const DType dtypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat};
  attributes.dtype = dtypes[Choose("dtype", source.string_attribute("dtype"),
    {NameOf(DType::kFloat16), NameOf(DType::kBFloat16), NameOf(DType::kFloat)})];
  // On the CPU ONNX Runtime makes a float16 node a float one where no neighbour is float16, attributes aside.
  if (attributes.dtype == DType::kFloat16 && source.input(0).type == ort::kFloat) attributes.dtype = DType::kFloat;
  attributes.direction = static_cast<LstmAttributes::Direction>(
    Choose("direction", source.string_attribute("direction", "forward"), {"forward", "reverse", "bidirectional"}));
  const int64_t batch_first = source.int_attribute("batch_first", 0);
  if (batch_first != 0 && batch_first != 1) Fail("the attribute 'batch_first' is ", batch_first, " but must be 0 or 1");
  attributes.batch_first = batch_first != 0;
  attributes.allow_tf32 = ReadAllowTf32(source);
  for (size_t i = 0; i < inputs; ++i) attributes.CheckType(i, source.input(i).type);
  return attributes;
}

// What is known of the batch, which all shapes agree on: kUnknown in `wanted` fits any length.
void CheckShape(size_t input, const Shape& shape, const Shape& wanted) {
  bool fits = shape.size() == wanted.size();
  for (size_t axis = 0; fits && axis < shape.size(); ++axis)
    fits = shape[axis] == wanted[axis] || wanted[axis] == kUnknown || shape[axis] == kUnknown;
  if (!fits) Fail(kInputs[input], " has the shape ", ToString(shape), ", but must have ", ToString(wanted));
}

// `inputs`: their shapes, of which [] is an unknown one.
void CheckShapes(const LstmAttributes& attributes, const Shapes& inputs) {
  const int64_t d = attributes.directions(), h = attributes.hidden;
  int64_t batch = kUnknown;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].empty()) continue;
    Shape wanted = i == 1 ? Shape{d, kGates * h, h} : Shape{d, batch, h};
    if (i == 0) {
      wanted.assign(std::max<size_t>(3, inputs[i].size()), kUnknown);
      wanted.back() = d * h * kGates;
    }
    CheckShape(i, inputs[i], wanted);
    if (i > 0) continue;
    batch = 1;
    for (size_t axis = 0; axis + 1 < inputs[i].size(); ++axis) {
      const int64_t length = inputs[i][axis];
      if (axis != (attributes.batch_first ? 1 : 0))
        batch = batch == kUnknown || length == kUnknown ? kUnknown : batch * length;
    }
  }
}

void Infer(ShapeContext& context) {
  const LstmAttributes attributes = LstmAttributes::Parse(context);
  Shapes shapes;
  for (size_t i = 0; i < context.input_count(); ++i) {
    TensorType input = context.input(i);
    // A size of 0 is not known: onnx's inference says 0 of the open lengths of an Attention.
    std::replace(input.shape.begin(), input.shape.end(), int64_t{0}, kUnknown);
    shapes.push_back(input.has_shape ? input.shape : Shape{});
  }
  CheckShapes(attributes, shapes);
  TensorType y = context.input(0);
  y.type = ToOrt(attributes.dtype);
  if (!shapes[0].empty()) {
    y.shape = shapes[0];
    y.shape.back() = attributes.directions() * attributes.hidden;
    if (y.symbols.size() == y.shape.size()) y.symbols.back().clear();
  }
  context.set_output(0, y);  // Y_h's and Y_c's are the model's: nothing here tells whether the node has them
}

}  // namespace

LstmAttributes LstmAttributes::Parse(const NodeInfo& info) {
  LstmAttributes attributes = ParseLstm(info);
  attributes.outputs = info.output_count();
  if (attributes.outputs < 1 || attributes.outputs > 3)
    Fail("the node has ", attributes.outputs, " outputs, but must have 1 to 3: Y, Y_h and Y_c");
  return attributes;
}
LstmAttributes LstmAttributes::Parse(const ShapeContext& context) { return ParseLstm(context); }

void LstmAttributes::CheckType(size_t input, ort::ElementType type) const {
  if (type != ort::kUndefined && type != ToOrt(dtype))
    Fail(kInputs[input], " is ", NameOfOrt(type), ", but the attribute 'dtype' is ", NameOf(dtype), "; cast it");
}

LstmShape FitLstm(const LstmAttributes& attributes, const Shapes& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].empty()) Fail(kInputs[i], " has the shape [], but must have 3 dimensions");
    ElementCount(inputs[i]);
  }
  CheckShapes(attributes, inputs);
  const Shape& g = inputs[0];
  LstmShape shape{g[attributes.batch_first ? 1 : 0], 1, 1, g, {}};
  for (size_t axis = attributes.batch_first ? 2 : 1; axis + 1 < g.size(); ++axis) shape.inner *= g[axis];
  shape.batch = shape.inner * (attributes.batch_first ? g[0] : 1);
  shape.y.back() = attributes.directions() * attributes.hidden;
  shape.state = {attributes.directions(), shape.batch, attributes.hidden};
  return shape;
}

LstmRun PrepareLstm(const LstmAttributes& attributes, Run& run, bool on_cpu) {
  LstmRun made{};
  const void** const inputs[] = {&made.g, &made.r, &made.h0, &made.c0};
  Shapes shapes;
  for (size_t i = 0; i < (attributes.has_states ? 4 : 2); ++i) {
    Tensor input = run.input(i);
    attributes.CheckType(i, input.type);
    *inputs[i] = input.data;
    shapes.push_back(std::move(input.shape));
  }
  made.shape = FitLstm(attributes, shapes);
  void** const outputs[] = {&made.y, &made.y_h, &made.y_c};
  for (size_t i = 0; i < attributes.outputs; ++i) {
    const Shape& shape = i == 0 ? made.shape.y : made.shape.state;
    *outputs[i] = on_cpu ? run.output(i, shape, SizeOf(attributes.dtype)) : run.output(i, shape);
  }
  return made;
}

const Operator kFusedLSTM = {
  "FusedLSTM",
  Infer,
  CreateCpuLstm,
  CreateCudaLstm,
};

}  // namespace ortplugin
