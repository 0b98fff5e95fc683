#include "ortplugin/ops/conv/conv.h"

#include <algorithm>

namespace ortplugin {
namespace {

void Infer(ShapeContext& context) {
  const ConvAttributes attributes = ReadConvAttributes(context, false);
  const Program program = ParseEpilogue(ProgramText(context, 0, kConvInputs));
  const std::vector<TensorType> inputs = EpilogueInputs(program, kConvInputs, context);
  InferEpilogue(program, kConvInputs, inputs, InferConv(attributes, inputs[0], inputs[1]), &context);
}

// A length of 0 need not be one (InferConv).
bool IsKnown(const TensorType& type) {
  return !type.shape.empty() && *std::min_element(type.shape.begin(), type.shape.end()) > 0;
}

}  // namespace

ConvNode::ConvNode(const NodeInfo& info, const std::string& text, bool transposed)
    : attributes(ReadConvAttributes(info, transposed)),
      program(ParseEpilogue(text)),
      allow_tf32(false),
      algorithm(info.string_attribute("algorithm", "auto")),
      inputs(CheckEpilogue(program, kConvInputs, info)) {
  const int64_t tf32 = info.int_attribute("allow_tf32", 0);
  if (tf32 != 0 && tf32 != 1) Fail("allow_tf32 is ", tf32, "; it must be 0 or 1");
  allow_tf32 = tf32 == 1;
  for (size_t i = 0; i < kConvInputs; ++i)
    if (inputs[i].has_shape && inputs[i].shape.empty())
      Fail(i == 0 ? "X" : "W", " is a scalar; it must have two dimensions and one to three spatial ones");
  InferConv(attributes, inputs[0], inputs[1]);  // for what is known
  if (!std::all_of(inputs.begin(), inputs.end(), IsKnown)) return;
  std::vector<Shape> shapes;
  for (const TensorType& type : inputs) shapes.push_back(type.shape);
  EpilogueAxes(program, kConvInputs, FitConv(attributes, shapes[0], shapes[1]).result(), shapes);
}

const Operator kFusedConv = {
    "FusedConv",
    Infer,
    CreateCpuConv,
    CreateCudaConv,
};

}  // namespace ortplugin
