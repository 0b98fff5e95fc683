#include "ortplugin/ops/conv/conv.h"

#include <algorithm>

namespace ortplugin {
namespace {

void Infer(ShapeContext& context) {
  const ConvAttributes attributes = ReadConvAttributes(context, false);
  const Program program = ParseEpilogue(ProgramText(context, 0, kConvInputs));
  const TensorTypes inputs = EpilogueInputs(program, kConvInputs, context);
  InferEpilogue(program, kConvInputs, inputs, InferConv(attributes, inputs[0], inputs[1]), &context);
}

// A length of 0 need not be one (InferConv).
bool IsKnown(const TensorType& type) {
  return !type.shape.empty() && *std::min_element(type.shape.begin(), type.shape.end()) > 0;
}

}  // namespace

Contraction ConvNode::Fit(const Shapes& shapes, bool session_allows_tf32) const {
  Contraction contraction = FitConv(attributes, shapes[0], shapes[1]);
  contraction.dtypes = Contraction::AllOf(ValueType(*program));
  contraction.allow_tf32 = follows_session() ? session_allows_tf32 : allow_tf32.value_or(false);
  contraction.program = program;
  contraction.operands.assign(shapes.begin() + kConvInputs, shapes.end());
  contraction.constant_weights = constant_weights;
  contraction.constant_operands = constant_operands;
  return contraction;
}

CheckedConvNode::CheckedConvNode(const NodeInfo& info, const std::string& text, bool transposed)
  : algorithm(info.string_attribute("algorithm", "auto")) {
  attributes = ReadConvAttributes(info, transposed);
  program = std::make_shared<const Program>(ParseEpilogue(text));
  inputs = CheckEpilogue(*program, kConvInputs, info);
  allow_tf32 = ReadAllowTf32(info);
  constant_weights = info.constant_input(1).has_value();
  for (size_t i = kConvInputs; i < inputs.size(); ++i) constant_operands.push_back(info.constant_input(i).has_value());
  for (size_t i = 0; i < kConvInputs; ++i)
    if (inputs[i].has_shape && inputs[i].shape.empty())
      Fail(i == 0 ? "X" : "W", " is a scalar; it must have two dimensions and one to three spatial ones");
  InferConv(attributes, inputs[0], inputs[1]);  // for what is known
  if (!std::all_of(inputs.begin(), inputs.end(), IsKnown)) return;
  Shapes shapes;
  for (const TensorType& type : inputs) shapes.push_back(type.shape);
  EpilogueAxes(*program, kConvInputs, Fit(shapes, false).result(), shapes);
}

const Operator kFusedConv = {
  "FusedConv",
  Infer,
  CreateCpuConv,
  CreateCudaConv,
};

}  // namespace ortplugin
