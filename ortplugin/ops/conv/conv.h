// FusedConv: a convolution with a pointwise program as its epilogue. The specification is in
// ortplugin/ops/conv/__init__.py.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ortplugin/ops/allow_tf32.h"
#include "ortplugin/ops/conv/geometry.h"
#include "ortplugin/runtime/ort/node_text.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/epilogue.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

extern const Operator kFusedConv;

constexpr size_t kConvInputs = 2;  // X and W, before the program's operands

// What a node says, whatever the shapes.
struct ConvNode {
  ConvAttributes attributes{};
  std::shared_ptr<const Program> program;  // its first parameter is the convolution's value
  std::optional<bool> allow_tf32;  // empty: as the session has it
  bool constant_weights = false;
  std::vector<bool> constant_operands;

  // Its contraction for these shapes of X, W and the operands, in a session that allows TF32 or does not. Throws Error
  // where they contradict each other.
  Contraction Fit(const Shapes& shapes, bool session_allows_tf32) const;
  bool follows_session() const { return !allow_tf32 && ValueType(*program) == DType::kFloat; }
};

// A node of a model, checked once: throws Error where attributes, program, inputs and outputs don't fit together as far
// as they are known early.
struct CheckedConvNode : ConvNode {
  std::string algorithm;
  TensorTypes inputs;

  // `text`: the attribute `program`, on the CPU ProgramText's.
  CheckedConvNode(const NodeInfo& info, const std::string& text, bool transposed = false);
};

std::unique_ptr<Kernel> CreateCpuConv(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaConv(const NodeInfo& info);

}  // namespace ortplugin
