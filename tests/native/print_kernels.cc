// Prints the kernels that engines of convolutions, products and attention have for a node, for
// tests/unit/test_kernels.py, which runs them on the CPU. Reads a node (node_text.h) from standard input; writes for
// each engine its name, the kernel's, blocks, threads, bytes of shared memory, arguments, their number first, and
// tensor maps on a line, then the text, ended by a NUL.
//
//   print_kernels sm_90 132                       an H200; with fewer multiprocessors each has more to do

#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "ortplugin/ops/attention/engines/engine.h"
#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv_transpose/conv_transpose.h"
#include "ortplugin/ops/matmul/matmul.h"
#include "ortplugin/runtime/ort/node_text.h"
#include "tests/native/gpus.h"

using namespace ortplugin;

namespace {

void Print(const char* engine, const std::optional<EngineKernel>& kernel) {
  if (!kernel) return;
  std::cout << engine << " " << kernel->entry << " " << kernel->launch.blocks << " " << kernel->launch.threads << " "
            << kernel->launch.shared_bytes << " " << kernel->arguments.size();
  for (const uint64_t argument : kernel->arguments) std::cout << " " << argument;
  std::cout << " " << kernel->maps.size();
  for (const cuda::TensorMap& map : kernel->maps) {
    std::cout << " " << map.word << " " << map.address << " " << int(map.element) << " " << map.offset << " "
              << map.box_rows << " " << map.box_matrices;
    for (size_t i = 0; i < 4; ++i) std::cout << " " << (i < map.sizes.size() ? map.sizes[i] : 1);
    for (size_t i = 0; i < 4; ++i) std::cout << " " << (i == 0 ? 1 : i <= map.steps.size() ? map.steps[i - 1] : 0);
    const auto pixels = map.im2col.value_or(cuda::Im2col{{0, 0}, {0, 0}, {0, 0}});
    for (int i = 0; i < 2; ++i)
      std::cout << " " << pixels.lower[i] << " " << pixels.upper[i] << " " << pixels.strides[i];
  }
  std::cout << "\n" << kernel->source << '\0';
}

void PrintAll(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  for (const Engine& engine : EngineTable())
    if (engine.fits(program, problem, device)) Print(engine.name, engine.make(program, problem, device));
}

}  // namespace

int main(int, char** arguments) {
  DeviceFacts device = test::GpuOf(arguments[1]);
  device.multiprocessors = std::stoi(arguments[2]);
  const NodeText node(std::string(std::istreambuf_iterator<char>(std::cin), {}));
  if (node.op() == "FusedMatMul") {
    MatMulNode product = MatMulNode::Read(node, node.string_attribute("program"));
    product.constant_weights = node.constant()[1];
    product.constant_operands.assign(node.constant().begin() + 2, node.constant().end());
    const MatMulProblem problem = product.Fit(node.shapes());
    if (problem.is_apart) return 0;
    const Contraction& alone = problem.contraction;
    return PrintAll(*product.program, product.gated ? product.WithGateOf(alone) : alone, device), 0;
  }
  if (node.op() == "FusedAttention") {
    const AttentionAttributes attributes = AttentionAttributes::Parse(node);
    AttentionProblem problem = FitAttention(attributes, node.shapes()).problem;
    problem.allow_tf32 = attributes.allow_tf32.value_or(false);
    for (const AttentionEngine& engine : AttentionEngines())
      if (engine.fits(problem, true, device)) Print(engine.name, engine.make(problem, device));
    return 0;
  }
  ConvNode conv;
  conv.attributes = ReadConvAttributes(node, node.op() == kFusedConvTranspose.name);
  conv.program = std::make_shared<const Program>(ParseEpilogue(node.string_attribute("program")));
  conv.constant_weights = node.constant()[1];
  PrintAll(*conv.program, conv.Fit(node.shapes(), false), device);
}
