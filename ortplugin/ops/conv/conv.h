// FusedConv: a convolution with a pointwise program as its epilogue. The specification is in
// ortplugin/ops/conv/__init__.py.
#pragma once

#include <memory>
#include <vector>

#include "ortplugin/ops/conv/geometry.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/epilogue.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

extern const Operator kFusedConv;

constexpr size_t kConvInputs = 2;  // X and W, before the program's operands

// A node, checked once: throws Error where attributes, program, inputs and outputs don't fit together as far as they
// are known early.
struct ConvNode {
  ConvAttributes attributes;
  Program program;  // its first parameter is the convolution's value
  bool allow_tf32;
  std::string algorithm;
  std::vector<TensorType> inputs;

  // `text`: the attribute `program`, on the CPU ProgramText's.
  ConvNode(const NodeInfo& info, const std::string& text, bool transposed = false);
};

std::unique_ptr<Kernel> CreateCpuConv(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaConv(const NodeInfo& info);

}  // namespace ortplugin
