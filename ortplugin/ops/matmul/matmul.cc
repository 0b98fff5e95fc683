#include "ortplugin/ops/matmul/matmul.h"

#include "ortplugin/runtime/program/operands.h"

namespace ortplugin {
namespace {

constexpr int64_t kUnknown = -1;
constexpr int64_t kLargest = INT32_MAX;  // of every length of the contraction
// Up to so many rows are images of one pixel each, which the engine for matrix-vector products (gemv) asks for.
constexpr int64_t kFewRows = 64;

void Infer(ShapeContext& context) {
  const MatMulNode node = MatMulNode::Read(context, ProgramText(context, 0, kMatMulInputs));
  const TensorTypes inputs = node.WithGate(EpilogueInputs(*node.program, kMatMulInputs, context));
  InferEpilogue(*node.program, kMatMulInputs, inputs, node.Infer(inputs[0], inputs[1]), &context);
}

Shape Without(Shape shape) {
  if (!shape.empty()) shape.pop_back();
  return shape;
}

// The axes of the rows, [.., N] without N, as the operands need them.
Axes RowAxes(const Shape& full, const Shapes& shapes) {
  Shapes rows;
  for (size_t i = kMatMulInputs; i < shapes.size(); ++i) rows.push_back(Without(shapes[i]));
  return JoinAxes(Without(full), rows);
}

// Where the axes of the rows stand in [batch, rows, columns].
std::vector<size_t> PlacesOf(const Shape& sizes) {
  if (sizes.size() == 1) return {sizes[0] <= kFewRows ? size_t{0} : size_t{2}};
  if (sizes.size() == 2) return {0, 2};
  return {0, 1, 2};
}

[[noreturn]] void FailGate(const Shape& gate, const Shape& b) {
  Fail("the gate's weights have the shape ", ToString(gate), "; it must be B's, ", ToString(b));
}

}  // namespace

Contraction WithoutProgram(Contraction contraction) {
  const std::string dtype = NameOf(contraction.dtype());
  contraction.program = std::make_shared<const Program>(Program::Parse("(" + dtype + " c) => (" + dtype + " c) {}"));
  contraction.operands.clear();
  contraction.constant_operands.clear();
  return contraction;
}

void MatMulNode::ReadGate(int64_t attribute) {
  if (attribute != 0 && attribute != 1) Fail("gated is ", attribute, "; it must be 0 or 1");
  gated = attribute == 1;
  const std::vector<ValueId>& parameters = program->parameters();
  if (gated && (parameters.size() < 2 || program->value(parameters[1]).dtype != ValueType(*program)))
    Fail("with gated=1 the program's second parameter is the value of the gate, and must be ",
      NameOf(ValueType(*program)), " as the first is");
}

Shapes MatMulNode::WithGate(Shapes shapes) const {
  if (!gated) return shapes;
  Shape& gate = shapes[kMatMulInputs];
  if (gate != shapes[1]) FailGate(gate, shapes[1]);
  gate = Result(shapes[0], shapes[1]);
  return shapes;
}

TensorTypes MatMulNode::WithGate(TensorTypes inputs) const {
  if (!gated) return inputs;
  TensorType &gate = inputs[kMatMulInputs], &b = inputs[1];
  if (gate.has_shape && b.has_shape) {
    bool fits = gate.shape.size() == b.shape.size();
    for (size_t i = 0; fits && i < b.shape.size(); ++i)
      fits = gate.shape[i] == b.shape[i] || gate.shape[i] <= 0 || b.shape[i] <= 0;
    if (!fits) FailGate(gate.shape, b.shape);
  }
  const ort::ElementType type = gate.type;
  gate = Infer(inputs[0], b);
  gate.type = type;
  return inputs;
}

// 0 is not known either (InferConv).
TensorType MatMulNode::Infer(const TensorType& a, const TensorType& b) const {
  const bool has_a = a.has_shape && !a.shape.empty(), has_b = b.has_shape && !b.shape.empty();
  if (has_b && b.shape.size() != 2)
    Fail("B has the shape ", ToString(b.shape), "; it must have two dimensions: ", trans_b ? "[N, K]" : "[K, N]");
  const int64_t k = has_b ? b.shape[trans_b ? 1 : 0] : kUnknown;
  if (has_a && a.shape.back() > 0 && k > 0 && a.shape.back() != k)
    Fail("A has the shape ", ToString(a.shape), " and B ", ToString(b.shape), ", which is ",
      trans_b ? "[N, K]" : "[K, N]", "; A's last length must be K, ", k);
  TensorType result;
  if (!has_a) return result;
  result.has_shape = true;
  result.shape = a.shape;
  result.symbols = a.symbols;
  result.symbols.resize(result.shape.size());
  for (int64_t& length : result.shape)
    if (length == 0) length = kUnknown;
  const size_t n = trans_b ? 0 : 1;
  result.shape.back() = has_b && b.shape[n] > 0 ? b.shape[n] : kUnknown;
  result.symbols.back() = has_b && n < b.symbols.size() ? b.symbols[n] : "";
  return result;
}

void MatMulNode::ReadConstants(const NodeInfo& info) {
  constant_weights = info.constant_input(1).has_value();
  for (size_t i = kMatMulInputs; i < input_count(); ++i)
    constant_operands.push_back(info.constant_input(i).has_value());
}

Shape MatMulNode::Result(const Shape& a, const Shape& b) const {
  if (a.empty()) Fail("A is a scalar; it must have one dimension at least, the last of length K");
  if (b.size() != 2 || a.back() != b[trans_b ? 1 : 0])
    Fail("A has the shape ", ToString(a), " and B ", ToString(b), "; they must be [.., K] and ",
      trans_b ? "[N, K]" : "[K, N]");
  Shape full = a;
  full.back() = b[trans_b ? 0 : 1];
  ElementCount(full);
  return full;
}

MatMulProblem MatMulNode::Fit(const Shapes& given, bool session_allows_tf32) const {
  const Shapes shapes = WithGate(given);
  MatMulProblem problem;
  problem.full = Result(shapes[0], shapes[1]);
  EpilogueAxes(*program, kMatMulInputs, problem.full, shapes);  // throws where one does not broadcast
  Axes axes = RowAxes(problem.full, shapes);
  problem.is_apart = axes.count() > 3;
  if (problem.is_apart) axes = {{ElementCount(Without(problem.full))}, {}};
  Shape pixels(3, 1);
  const std::vector<size_t> places = PlacesOf(axes.sizes);
  for (size_t i = 0; i < places.size(); ++i) pixels[places[i]] = axes.sizes[i];

  Contraction& contraction = problem.contraction;
  contraction.dtypes = Contraction::AllOf(ValueType(*program));
  contraction.allow_tf32 = follows_session() ? session_allows_tf32 : allow_tf32.value_or(false);
  contraction.transposed = !trans_b;
  contraction.batch = pixels[0];
  contraction.windows.resize(2);
  contraction.rows().size = contraction.rows().out = pixels[1];
  contraction.columns().size = contraction.columns().out = pixels[2];
  contraction.channels = shapes[0].back();
  contraction.filters = problem.full.back();
  for (const Shape& shape : {contraction.x(), contraction.w(), contraction.result()})
    for (const int64_t size : shape)
      if (size > kLargest) Fail("A has the shape ", ToString(shapes[0]), ": more than ", kLargest, " rows or columns");
  contraction.constant_weights = constant_weights;
  if (problem.is_apart) {
    contraction = WithoutProgram(contraction);
    return problem;
  }
  contraction.program = program;
  contraction.constant_operands = constant_operands;
  if (gated && !constant_operands.empty()) contraction.constant_operands[0] = false;  // a value, not its weights
  for (size_t i = kMatMulInputs; i < shapes.size(); ++i) {
    Shape operand(4, 1);
    const Shape& strides = axes.strides[i - kMatMulInputs];
    for (size_t axis = 0; axis < places.size(); ++axis)
      if (strides[axis] != 0) operand[places[axis]] = axes.sizes[axis];
    if (!shapes[i].empty()) operand[3] = shapes[i].back();
    contraction.operands.push_back(std::move(operand));
  }
  return problem;
}

Contraction MatMulNode::GateOf(const Contraction& product) const {
  Contraction gate = WithoutProgram(product);
  gate.constant_weights = constant_operands[0];
  return gate;
}

Contraction MatMulNode::WithGateOf(Contraction product) const {
  product.gated = true;
  product.operands.erase(product.operands.begin());
  product.constant_weights = product.constant_weights && constant_operands[0];
  product.constant_operands.erase(product.constant_operands.begin());
  return product;
}

CheckedMatMulNode::CheckedMatMulNode(const NodeInfo& info, const std::string& text)
  : MatMulNode(Read(info, text)), algorithm(info.string_attribute("algorithm", "auto")) {
  inputs = CheckEpilogue(*program, kMatMulInputs, info);
  ReadConstants(info);
  Infer(inputs[0], inputs[1]);  // for what is known
  const std::optional<Shapes> shapes = KnownShapes(inputs);
  // A rank that is not known looks like a scalar's, which an operand may be.
  if (shapes && !(*shapes)[0].empty() && !(*shapes)[1].empty()) Fit(*shapes);
}

const Operator kFusedMatMul = {
  "FusedMatMul",
  Infer,
  CreateCpuMatMul,
  CreateCudaMatMul,
};

}  // namespace ortplugin
