// FusedMatMul: a matrix product with a pointwise program as its epilogue. The specification is in
// ortplugin/ops/matmul/__init__.py.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ortplugin/ops/allow_tf32.h"
#include "ortplugin/ops/contraction.h"
#include "ortplugin/ops/conv/conv_plan.h"
#include "ortplugin/ops/conv/cpu/layout.h"
#include "ortplugin/ops/conv/planned_kernel.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/ort/node_text.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/ort/standard_operator.h"
#include "ortplugin/runtime/program/epilogue.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

extern const Operator kFusedMatMul;

constexpr size_t kMatMulInputs = 2;  // A and B, before the program's operands

// A product of one run as a contraction of one-element windows.
struct MatMulProblem {
  Shape full;  // of every result: [.., N]
  // Its pixels are the rows of A: X [batch, rows, columns, K]; W is B, as [N, 1, 1, K] of a convolution, or as
  // [K, 1, 1, N] of a transposed one of stride 1. Operands are [batch, rows, columns, N], or 1 in place of each.
  Contraction contraction;
  // No such view of the rows keeps apart what the operands repeat: the contraction has no epilogue, and the program
  // runs behind it, on tensors of the shape `full`.
  bool is_apart = false;
};

// The sums alone.
Contraction WithoutProgram(Contraction contraction);

// What a node says, whatever the shapes.
struct MatMulNode {
  bool trans_b = false;
  bool gated = false;  // the input of the program's second parameter is weights, whose product with A is its value
  std::shared_ptr<const Program> program;  // its first parameter is the product's value
  std::optional<bool> allow_tf32;  // empty: as the session has it
  bool constant_weights = false;
  std::vector<bool> constant_operands;

  // `text`: the attribute `program`, on the CPU ProgramText's. Node: a ShapeContext, a NodeInfo or a NodeText.
  template <typename Node>
  static MatMulNode Read(const Node& node, const std::string& text) {
    MatMulNode read;
    const int64_t trans_b = node.int_attribute("trans_b", 0);
    if (trans_b != 0 && trans_b != 1) Fail("trans_b is ", trans_b, "; it must be 0 or 1");
    read.trans_b = trans_b == 1;
    read.program = std::make_shared<const Program>(ParseEpilogue(text));
    read.ReadGate(node.int_attribute("gated", 0));
    read.allow_tf32 = ReadAllowTf32(node);
    return read;
  }
  // The attribute `gated`. Throws Error where it is none, or the program has no such parameter.
  void ReadGate(int64_t attribute);
  // Which inputs of a node are constants.
  void ReadConstants(const NodeInfo& info);

  size_t input_count() const { return program->parameters().size() - 1 + kMatMulInputs; }
  // The inputs, in which the gate's product stands in place of its weights. Throws Error where these contradict B.
  Shapes WithGate(Shapes shapes) const;
  TensorTypes WithGate(TensorTypes inputs) const;
  // The result's shape as far as it is known. Throws Error where A and B surely contradict each other.
  TensorType Infer(const TensorType& a, const TensorType& b) const;
  // The result's shape. Throws Error where A and B contradict each other.
  Shape Result(const Shape& a, const Shape& b) const;
  // In a session that allows TF32 or does not; a gate's product is an operand. Throws Error where the shapes of A, B
  // and the operands contradict each other.
  MatMulProblem Fit(const Shapes& shapes, bool session_allows_tf32 = false) const;
  // The gate's product, of that of the node; and both as one contraction.
  Contraction GateOf(const Contraction& product) const;
  Contraction WithGateOf(Contraction product) const;
  bool follows_session() const { return !allow_tf32 && ValueType(*program) == DType::kFloat; }
};

// A node of a model, checked once: throws Error where attributes, program, inputs and outputs don't fit together as far
// as they are known early.
struct CheckedMatMulNode : MatMulNode {
  std::string algorithm;
  TensorTypes inputs;

  // `text`: the attribute `program`, on the CPU ProgramText's.
  CheckedMatMulNode(const NodeInfo& info, const std::string& text);
};

// A product and its program on the CPU.
class HostMatMul {
 public:
  HostMatMul(const NodeInfo& info, MatMulNode node);
  // `inputs`: A, B and the operands; `outputs`: of the program's results.
  void Run(ortplugin::Run& run, const std::vector<Tensor>& inputs, const std::vector<void*>& outputs) const;
  const MatMulNode& node() const { return node_; }

 private:
  // `weights`: the number of the input.
  void Multiply(ortplugin::Run& run, const std::vector<Tensor>& inputs, size_t weights, void* value) const;

  MatMulNode node_;
  DType dtype_, wide_;  // of A and B, and of what is computed
  HostScratch scratch_;
  StandardOperator gemm_;
  std::optional<HostOperand> weights_[2];  // constant ones, and a gate's, that are not used as they lie
};

// The same on the GPU, for one combination of shapes. Asynchronous, on ORT's stream.
struct MatMulPlan {
  std::optional<cuda::PackedKernel> whole;  // of a product and its gate
  std::unique_ptr<ConvPlan> product, gate;  // else; the gate's value is in scratch memory
  std::optional<PointwisePlan> program;  // where it is apart; the product's value is in scratch memory then
  size_t inputs = 0, value_bytes = 0, gate_bytes = 0, scratch_bytes = 0;

  bool holds_library_plan() const;
  // `addresses`: of the inputs, then of the outputs.
  void Run(const DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const;
};
MatMulPlan PlanMatMul(const MatMulNode& node, const ConvPlanner& planner, const DeviceFacts& device,
  const Shapes& shapes, const PlanVariant& variant);

std::unique_ptr<Kernel> CreateCpuMatMul(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaMatMul(const NodeInfo& info);

}  // namespace ortplugin
