// Convolutions and transposed convolutions on the GPU: on one of our engines, or on cuDNN, with the program fused into
// its kernel where that can be.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ortplugin/ops/conv/algorithm.h"
#include "ortplugin/ops/conv/conv.h"
#include "ortplugin/ops/conv/engines/engine.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/program/operands.h"

namespace ortplugin {

// FusedConv; with `transposed`, FusedConvTranspose. Throws Error where the node is wrong, or where cuDNN is needed and
// missing.
std::unique_ptr<Kernel> CreateCudaConvolution(const NodeInfo& info, bool transposed);

// What a node computes in a run.
struct ConvCase {
  ConvAttributes attributes;
  std::shared_ptr<const Program> program;
  bool allow_tf32;
  std::vector<Shape> shapes;  // of X, W and the operands
  bool constant_weights;
  std::vector<bool> constant_operands = {};
};

// The problem that our engines are asked for: two dimensions, in the node's layout.
ConvProblem MakeConvProblem(const ConvCase& conv_case, const ConvShape& shape);

// The convolution alone, and with the program.
cudnn::Problem ProblemWithoutEpilogue(const ConvCase& conv_case, const ConvShape& shape);
cudnn::Problem ProblemWithEpilogue(const ConvCase& conv_case, const ConvShape& shape);

// The CUDA C++ of `transpose`, for elements of 1, 2, 4 or 8 bytes.
std::string TransposeSource(size_t element_bytes);

// Every algorithm that the GPU offers for these shapes, as the attribute's texts, the likeliest first.
std::vector<std::string> ListConvAlgorithms(const ConvCase& conv_case, const cuda::DeviceFacts& gpu);

}  // namespace ortplugin
