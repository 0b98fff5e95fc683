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

// cuDNN's problem: the convolution alone, and with the program.
cudnn::Problem ProblemWithoutEpilogue(const Contraction& contraction);
cudnn::Problem ProblemWithEpilogue(const Contraction& contraction);

// Every algorithm that the GPU offers, as the attribute's texts, the likeliest first.
std::vector<std::string> ListConvAlgorithms(const Contraction& contraction, const DeviceFacts& gpu);

}  // namespace ortplugin
