// The engines for dX and dW on the GPU: cuDNN's problems, and, for few channels, ours.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ortplugin/ops/conv_grad/conv_grad.h"
#include "ortplugin/ops/conv_grad/weight_grad.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/packed_kernel.h"

namespace ortplugin {

// dW on our engine.
struct WeightGradEngine {
  WeightGradPlan plan;
  bool draws_in;  // the program, and makes dB and what is stored of dZ as well
  bool stores_z;
};

// What the node's algorithm takes of our engines: with "own" any that can do it, with "auto" one that is known to be
// the fastest, else none. `shapes`: of the node's inputs. dX is FusedConv's direct convolution; its addresses are those
// of dZ, W and dX.
std::optional<cuda::PackedKernel> FindDataGradEngine(
  const GradNode& node, const GradShape& shape, const DeviceFacts& gpu);
std::optional<WeightGradEngine> FindWeightGradEngine(
  const GradNode& node, const GradShape& shape, const Shapes& shapes, const DeviceFacts& gpu);

cudnn::Problem DataProblem(const GradNode& node, const GradShape& shape);
// The first that cuDNN has a plan for is taken. X and dZ are converted to a problem's dtype; what it writes is in
// weight_dtype where it has a program, else in its dtype and converted.
std::vector<cudnn::Problem> WeightProblems(const GradNode& node, const GradShape& shape);
// Whether WeightProblems have the padding in the larger tensor, since cuDNN 9.19 computes weight gradients wrongly, and
// reads beyond the tensor, where the padding before differs from that behind.
bool IsUneven(const cudnn::Problem& forward);

// "data_algorithm=own", "weight_algorithm=engine=3;k2=1": what the GPU offers for these shapes of the node's inputs, of
// each attribute the likeliest first.
std::vector<std::string> ListGradAlgorithms(const GradNode& node, const Shapes& shapes, const DeviceFacts& gpu);

}  // namespace ortplugin
