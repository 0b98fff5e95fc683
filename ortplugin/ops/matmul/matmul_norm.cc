#include "ortplugin/ops/matmul/matmul_norm.h"

#include <cstddef>
#include <utility>

#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/ort/choose.h"

namespace ortplugin {
namespace {

// Node: a ShapeContext or a NodeInfo.
template <typename Node>
bool ReadFlag(const Node& node, const char* name) {
  const int64_t given = node.int_attribute(name, 0);
  if (given != 0 && given != 1) Fail(name, " is ", given, "; it must be 0 or 1");
  return given == 1;
}

template <typename Node>
MatMulNormNode ReadNode(const Node& node) {
  const std::string text = ProgramText(node, 0, kMatMulInputs);
  std::string norm = node.string_attribute("norm");
  // Where ONNX Runtime gives float for float16, the product's values are float, too.
  if (text != node.string_attribute("program")) norm = WithFloatForHalf(norm);
  MatMulNormNode read{MatMulNode::Read(node, text), NormProgram::Parse(norm), ReadFlag(node, "norm_first"),
    ReadFlag(node, "keeps_product"), {}};
  if (read.product.gated && !read.norm_first) Fail("gated is 1; it must be 0, as a norm of a product has no gate");
  read.algorithm = static_cast<MatMulNormNode::Algorithm>(
    Choose("algorithm", node.string_attribute("algorithm", "auto"), {"auto", "whole", "apart"}));
  const std::vector<ValueId>&parameters = read.norm.program.parameters(), &results = read.product.program->results();
  if (read.norm_first) {
    const std::vector<ValueId>& normalized = read.norm.program.results();
    const DType wanted = ValueType(*read.product.program), dtype = read.norm.program.value(normalized[0]).dtype;
    if (read.keeps_product || normalized.size() != 1 || dtype != wanted)
      Fail("with norm_first=1 the norm has ", normalized.size(), " results, the first in ", NameOf(dtype),
        ", and keeps_product is ", read.keeps_product, "; it must have one, in ", NameOf(wanted), ", and 0");
    return read;
  }
  if (parameters.size() < results.size())
    Fail("the product's program has ", results.size(), " results, more than the norm's has parameters, ",
      parameters.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const Value &to = read.norm.program.value(parameters[i]), &from = read.product.program->value(results[i]);
    if (to.dtype != from.dtype)
      Fail("the norm's parameter '", to.name, "' is ", NameOf(to.dtype), ", the product's result '", from.name, "' ",
        NameOf(from.dtype));
  }
  return read;
}

// The program's results as outputs from `first` on.
void SetOutputs(const Program& program, size_t first, TensorType type, ShapeContext* context) {
  for (size_t r = 0; r < program.results().size(); ++r) {
    type.type = ToOrt(program.result(r).dtype);
    context->set_output(first + r, type);
  }
}

void Infer(ShapeContext& context) {
  const MatMulNormNode node = ReadNode(context);
  if (context.input_count() != node.input_count())
    Fail("with its programs the node takes ", node.input_count(), " inputs; it has ", context.input_count());
  TensorTypes inputs;
  for (size_t i = 0; i < node.input_count(); ++i) {
    inputs.push_back(context.input(i));
    if (inputs[i].type != ort::kUndefined) node.CheckInput(i, inputs[i].type);
  }
  if (node.norm_first) {
    TensorTypes read, given(inputs.begin(), inputs.begin() + std::ptrdiff_t(node.product.input_count()));
    for (const size_t i : node.norm.prologue_operands.parameters)
      read.push_back(inputs[i == 0 ? 0 : node.product.input_count() + i - 1]);
    given[0] = Broadcast(read);
    given = node.product.WithGate(std::move(given));
    return SetOutputs(*node.product.program, 0, node.product.Infer(given[0], given[1]), &context);
  }
  const TensorType value = node.product.Infer(inputs[0], inputs[1]);
  if (node.keeps_product) SetOutputs(*node.product.program, 0, value, &context);
  TensorTypes added;
  for (const size_t i : node.norm.prologue_operands.parameters)
    added.push_back(i < node.values() ? value : inputs[node.product.input_count() + i - node.values()]);
  SetOutputs(node.norm.program, node.keeps_product ? node.values() : 0, Broadcast(added), &context);
}

class CpuMatMulNorm : public Kernel {
 public:
  explicit CpuMatMulNorm(const NodeInfo& info) : CpuMatMulNorm(info, MatMulNormNode::Read(info, nullptr)) {}

  void Compute(Run& run) const override {
    std::vector<Tensor> inputs;
    Shapes shapes;
    for (size_t i = 0; i < node_.input_count(); ++i) {
      inputs.push_back(run.input(i));
      node_.CheckInput(i, inputs[i].type);
      shapes.push_back(inputs[i].shape);
    }
    const Program &product = *node_.product.program, &program = node_.norm.program;
    const auto split = inputs.begin() + std::ptrdiff_t(node_.product.input_count());
    if (node_.norm_first) return NormalizeFirst(run, shapes, inputs);
    const Shapes norm_shapes = node_.NormShapes(shapes);
    const Shape& full = norm_shapes[0];
    const NormShape shape = FitShapes(node_.norm, norm_shapes);
    std::vector<HostVector<char>> owned;
    std::vector<void*> values;
    std::vector<Tensor> operands;
    for (const ValueId result : product.results()) {
      const DType dtype = product.value(result).dtype;
      if (node_.keeps_product) {
        values.push_back(run.output(values.size(), full, SizeOf(dtype)));
      } else {
        owned.emplace_back(size_t(ElementCount(full)) * SizeOf(dtype));
        values.push_back(owned.back().data());
      }
      operands.push_back({values.back(), ToOrt(dtype), full});
    }
    product_.Run(run, {inputs.begin(), split}, values);
    operands.insert(operands.end(), split, inputs.end());
    std::vector<char*> outputs;
    for (const ValueId result : program.results())
      outputs.push_back(static_cast<char*>(run.output(
        outputs.size() + (node_.keeps_product ? values.size() : 0), shape.shape, SizeOf(program.value(result).dtype))));
    norm_.Run(run, shape, operands, outputs);
  }

 private:
  CpuMatMulNorm(const NodeInfo& info, MatMulNormNode node)
    : node_(std::move(node)), product_(info, node_.product), norm_(node_.norm) {}

  void NormalizeFirst(Run& run, const Shapes& shapes, std::vector<Tensor> inputs) const {
    const Program& product = *node_.product.program;
    const DType dtype = node_.norm.program.result(0).dtype;
    const NormShape shape = FitShapes(node_.norm, node_.NormShapes(shapes));
    const Shape full = node_.product.Result(shape.shape, shapes[1]);
    std::vector<void*> outputs;
    for (const ValueId result : product.results())
      outputs.push_back(run.output(outputs.size(), full, SizeOf(product.value(result).dtype)));
    HostVector<char> normalized(size_t(ElementCount(shape.shape)) * SizeOf(dtype));
    const auto split = inputs.begin() + std::ptrdiff_t(node_.product.input_count());
    std::vector<Tensor> of_norm(split, inputs.end());
    of_norm.insert(of_norm.begin(), inputs[0]);
    norm_.Run(run, shape, of_norm, {normalized.data()});
    inputs.resize(node_.product.input_count());
    inputs[0] = {normalized.data(), ToOrt(dtype), shape.shape};
    product_.Run(run, inputs, outputs);
  }

  MatMulNormNode node_;
  HostMatMul product_;
  HostNorm norm_;
};

}  // namespace

void MatMulNormNode::CheckInput(size_t input, ort::ElementType type) const {
  if (input < product.input_count() && !(norm_first && input == 0))
    return ortplugin::CheckInput(*product.program, kMatMulInputs, input, type);
  const size_t number = input == 0 ? 0 : input - product.input_count() + values();
  const Value& parameter = norm.program.parameter(number);
  if (ToOrt(parameter.dtype) != type)
    Fail("input ", input, " is ", NameOfOrt(type), " but the norm's parameter '", parameter.name, "' is ",
      NameOf(parameter.dtype));
}

Shapes MatMulNormNode::ProductShapes(const Shapes& shapes) const {
  Shapes found(shapes.begin(), shapes.begin() + std::ptrdiff_t(product.input_count()));
  if (norm_first) found[0] = FitShapes(norm, NormShapes(shapes)).shape;
  return found;
}

Shapes MatMulNormNode::NormShapes(const Shapes& shapes) const {
  Shapes found(values(), norm_first ? shapes[0] : product.Result(shapes[0], shapes[1]));
  found.insert(found.end(), shapes.begin() + std::ptrdiff_t(product.input_count()), shapes.end());
  return found;
}

MatMulNormNode MatMulNormNode::Read(const NodeInfo& info, TensorTypes* inputs) {
  MatMulNormNode node = ReadNode(info);
  const size_t outputs = node.norm_first
    ? node.product.program->results().size()
    : node.norm.program.results().size() + (node.keeps_product ? node.values() : 0);
  if (info.input_count() != node.input_count() || info.output_count() != outputs)
    Fail("with its programs the node takes ", node.input_count(), " inputs and has ", outputs, " outputs, not ",
      info.input_count(), " and ", info.output_count());
  TensorTypes types;
  for (size_t i = 0; i < node.input_count(); ++i) {
    types.push_back(info.input(i));
    node.CheckInput(i, types[i].type);
  }
  node.product.ReadConstants(info);
  if (!node.norm_first) node.product.Infer(types[0], types[1]);  // for what is known
  const std::optional<Shapes> shapes = KnownShapes(types);
  // A rank that is not known looks like a scalar's, which an operand may be.
  if (shapes && !(*shapes)[0].empty() && !(*shapes)[1].empty()) {
    node.product.Fit(node.ProductShapes(*shapes));
    FitShapes(node.norm, node.NormShapes(*shapes));
  }
  if (inputs != nullptr) *inputs = std::move(types);
  return node;
}

const Operator kFusedMatMulNorm = {
  "FusedMatMulNorm",
  Infer,
  [](const NodeInfo& info) -> std::unique_ptr<Kernel> { return std::make_unique<CpuMatMulNorm>(info); },
  CreateCudaMatMulNorm,
};

}  // namespace ortplugin
