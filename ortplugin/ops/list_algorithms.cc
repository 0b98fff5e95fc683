// What `optimize-model --tune` asks of the library: the algorithms that the GPU at hand has for a node.

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv_grad/grad_engines.h"
#include "ortplugin/ops/conv_transpose/conv_transpose.h"
#include "ortplugin/ops/matmul/matmul.h"
#include "ortplugin/runtime/ort/node_text.h"
#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

// Those of its own and the program's parameters.
void CheckInputs(const NodeText& text, size_t own, const Program& program) {
  const size_t wanted = own + program.parameters().size();
  if (text.shapes().size() != wanted) Fail("the node has ", text.shapes().size(), " inputs, but must have ", wanted);
}

Contraction ContractionOf(const NodeText& text, bool transposed) {
  ConvNode node;
  node.attributes = ReadConvAttributes(text, transposed);
  node.program = std::make_shared<const Program>(ParseEpilogue(text.string_attribute("program")));
  node.allow_tf32 = ReadAllowTf32(text);
  CheckInputs(text, kConvInputs - 1, *node.program);
  node.constant_weights = text.constant()[1];
  node.constant_operands.assign(text.constant().begin() + kConvInputs, text.constant().end());
  // What is chosen by name must be right in every session.
  return node.Fit(text.shapes(), false);
}

std::vector<std::string> List(const NodeText& text, int device) {
  const std::string& op = text.op();
  if (op == kConvGrad.name) {
    const GradNode node = GradNode::Read(text);
    CheckInputs(text, node.operands(), node.program);
    return ListGradAlgorithms(node, text.shapes(), cuda::Device(device));
  }
  if (op == kFusedMatMul.name) {
    MatMulNode node = MatMulNode::Read(text, text.string_attribute("program"));
    CheckInputs(text, kMatMulInputs - 1, *node.program);
    node.constant_weights = text.constant()[1];
    node.constant_operands.assign(text.constant().begin() + kMatMulInputs, text.constant().end());
    const MatMulProblem problem = node.Fit(text.shapes());
    return ListConvAlgorithms(problem.contraction, cuda::Device(device));
  }
  const bool transposed = op == kFusedConvTranspose.name;
  if (transposed || op == kFusedConv.name) {
    const Contraction contraction = ContractionOf(text, transposed);
    return ListConvAlgorithms(contraction, cuda::Device(device));
  }
  Fail("the operator ", Quoted(op), " has no algorithms");
}

}  // namespace
}  // namespace ortplugin

// `node`: NodeText's. Calls `answer` once, with one algorithm a line, of a gradient "attribute=algorithm", or with what
// went wrong. 0: success.
extern "C" __attribute__((visibility("default"))) int OrtPluginListAlgorithms(
  const char* node, int device, void (*answer)(const char*)) {
  try {
    std::string lines;
    for (const std::string& each : ortplugin::List(ortplugin::NodeText(node), device)) lines += each + "\n";
    answer(lines.c_str());
    return 0;
  } catch (const std::exception& error) {
    answer(error.what());
    return 1;
  }
}
