#include "ortplugin/ops/matmul/matmul_norm.h"

#include <cstddef>
#include <utility>

#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/ort/choose.h"

namespace ortplugin {
namespace {

// Node: a ShapeContext or a NodeInfo.
template <typename Node>
MatMulNormNode ReadNode(const Node& node) {
  const std::string text = ProgramText(node, 0, kMatMulInputs);
  std::string norm = node.string_attribute("norm");
  // Where ONNX Runtime gives float for float16, the product's values are float, too.
  if (text != node.string_attribute("program")) norm = WithFloatForHalf(norm);
  MatMulNormNode read{MatMulNode::Read(node, text), NormProgram::Parse(norm), false, {}};
  if (read.product.gated) Fail("gated is 1; it must be 0, as a product with a norm has no gate");
  const int64_t keeps_product = node.int_attribute("keeps_product", 0);
  if (keeps_product != 0 && keeps_product != 1) Fail("keeps_product is ", keeps_product, "; it must be 0 or 1");
  read.keeps_product = keeps_product == 1;
  read.algorithm = static_cast<MatMulNormNode::Algorithm>(
    Choose("algorithm", node.string_attribute("algorithm", "auto"), {"auto", "whole", "apart"}));
  const std::vector<ValueId>&parameters = read.norm.program.parameters(), &results = read.product.program->results();
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
    type.type = ToOrt(program.value(program.results()[r]).dtype);
    context->set_output(first + r, type);
  }
}

void Infer(ShapeContext& context) {
  const MatMulNormNode node = ReadNode(context);
  if (context.input_count() != node.input_count())
    Fail("with its programs the node takes ", node.input_count(), " inputs; it has ", context.input_count());
  std::vector<TensorType> inputs;
  for (size_t i = 0; i < node.input_count(); ++i) {
    inputs.push_back(context.input(i));
    if (inputs[i].type != ort::kUndefined) node.CheckInput(i, inputs[i].type);
  }
  const TensorType value = node.product.Infer(inputs[0], inputs[1]);
  if (node.keeps_product) SetOutputs(*node.product.program, 0, value, &context);
  std::vector<TensorType> added;
  for (const size_t i : node.norm.prologue_operands.parameters)
    added.push_back(i < node.values() ? value : inputs[node.product.input_count() + i - node.values()]);
  SetOutputs(node.norm.program, node.keeps_product ? node.values() : 0, Broadcast(added), &context);
}

class CpuMatMulNorm : public Kernel {
 public:
  explicit CpuMatMulNorm(const NodeInfo& info) : CpuMatMulNorm(info, MatMulNormNode::Read(info, nullptr)) {}

  void Compute(Run& run) const override {
    std::vector<Tensor> inputs;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < node_.input_count(); ++i) {
      inputs.push_back(run.input(i));
      node_.CheckInput(i, inputs[i].type);
      shapes.push_back(inputs[i].shape);
    }
    const Program &product = *node_.product.program, &program = node_.norm.program;
    const std::vector<Shape> norm_shapes = node_.NormShapes(shapes);
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
        owned.emplace_back(static_cast<size_t>(ElementCount(full)) * SizeOf(dtype));
        values.push_back(owned.back().data());
      }
      operands.push_back({values.back(), ToOrt(dtype), full});
    }
    const auto split = inputs.begin() + static_cast<std::ptrdiff_t>(node_.product.input_count());
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

  MatMulNormNode node_;
  HostMatMul product_;
  HostNorm norm_;
};

}  // namespace

void MatMulNormNode::CheckInput(size_t input, ort::ElementType type) const {
  if (input < product.input_count()) return ortplugin::CheckInput(*product.program, kMatMulInputs, input, type);
  const Value& parameter = norm.program.value(norm.program.parameters()[input - product.input_count() + values()]);
  if (ToOrt(parameter.dtype) != type)
    Fail("input ", input, " is ", NameOfOrt(type), " but the norm's parameter '", parameter.name, "' is ",
      NameOf(parameter.dtype));
}

std::vector<Shape> MatMulNormNode::ProductShapes(const std::vector<Shape>& shapes) const {
  return {shapes.begin(), shapes.begin() + static_cast<std::ptrdiff_t>(product.input_count())};
}

std::vector<Shape> MatMulNormNode::NormShapes(const std::vector<Shape>& shapes) const {
  std::vector<Shape> found(values(), product.Result(shapes[0], shapes[1]));
  found.insert(found.end(), shapes.begin() + static_cast<std::ptrdiff_t>(product.input_count()), shapes.end());
  return found;
}

MatMulNormNode MatMulNormNode::Read(const NodeInfo& info, std::vector<TensorType>* inputs) {
  MatMulNormNode node = ReadNode(info);
  const size_t outputs = node.norm.program.results().size() + (node.keeps_product ? node.values() : 0);
  if (info.input_count() != node.input_count() || info.output_count() != outputs)
    Fail("with its programs the node takes ", node.input_count(), " inputs and has ", outputs, " outputs, not ",
      info.input_count(), " and ", info.output_count());
  std::vector<TensorType> types;
  for (size_t i = 0; i < node.input_count(); ++i) {
    types.push_back(info.input(i));
    node.CheckInput(i, types[i].type);
  }
  node.product.ReadConstants(info);
  node.product.Infer(types[0], types[1]);  // for what is known
  const std::optional<std::vector<Shape>> shapes = KnownShapes(types);
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
