// FusedMatMul: a matrix product with a pointwise program as its epilogue. The specification is in
// ortplugin/ops/matmul/__init__.py.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ortplugin/ops/contraction.h"
#include "ortplugin/runtime/ort/node_text.h"
#include "ortplugin/runtime/ort/ort.h"
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

// What a node says, whatever the shapes.
struct MatMulNode {
  bool trans_b = false;
  std::shared_ptr<const Program> program;  // its first parameter is the product's value
  std::optional<bool> allow_tf32;  // empty: as the session has it
  bool constant_weights = false;
  std::vector<bool> constant_operands;

  MatMulNode() = default;
  explicit MatMulNode(const NodeText& text);

  // The result's shape. Throws Error where A and B contradict each other.
  Shape Result(const Shape& a, const Shape& b) const;
  // In a session that allows TF32 or does not. Throws Error where the shapes of A, B and the operands contradict each
  // other.
  MatMulProblem Fit(const std::vector<Shape>& shapes, bool session_allows_tf32 = false) const;
  bool follows_session() const { return !allow_tf32 && ValueType(*program) == DType::kFloat; }
};

// A node of a model, checked once: throws Error where attributes, program, inputs and outputs don't fit together as far
// as they are known early.
struct CheckedMatMulNode : MatMulNode {
  std::string algorithm;
  std::vector<TensorType> inputs;

  // `text`: the attribute `program`, on the CPU ProgramText's.
  CheckedMatMulNode(const NodeInfo& info, const std::string& text);
};

std::unique_ptr<Kernel> CreateCpuMatMul(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaMatMul(const NodeInfo& info);

}  // namespace ortplugin
