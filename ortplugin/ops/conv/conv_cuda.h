// Convolutions and transposed convolutions on the GPU: on cuDNN, with the program fused into it where it can be, or on
// kernels of our own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ortplugin/ops/conv/algorithm.h"
#include "ortplugin/ops/conv/geometry.h"
#include "ortplugin/runtime/cudnn.h"
#include "ortplugin/runtime/operands.h"

namespace ortplugin {

// FusedConv; with `transposed`, FusedConvTranspose. Throws Error where the node is wrong, or where cuDNN is needed and
// missing.
std::unique_ptr<Kernel> CreateCudaConv(const NodeInfo& info, bool transposed);

// What a node computes, with the shapes of one run: of X, W and the operands.
struct ConvNode {
  ConvAttributes attributes;
  std::shared_ptr<const Program> program;
  bool allow_tf32;
  std::vector<Shape> shapes;
  bool constant_weights;
};

// The convolution alone, and with the program.
cudnn::Problem BareProblem(const ConvNode& node, const ConvShape& shape);
cudnn::Problem FusedProblem(const ConvNode& node, const ConvShape& shape);

// Every algorithm that the GPU offers for these shapes, as the attribute's texts, the likeliest first.
std::vector<std::string> ListConvAlgorithms(const ConvNode& node, const cuda::DeviceFacts& gpu);

}  // namespace ortplugin
