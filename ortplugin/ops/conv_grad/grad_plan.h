// How dX and dW of one combination of shapes are made on the GPU, ready to run: on an engine of ours, or on cuDNN with
// what its plan needs around it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ortplugin/ops/conv_grad/conv_grad.h"
#include "ortplugin/ops/conv_grad/grad_engines.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/ops/sum_to/sum_to.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin {

// A kernel over one tensor of the full shape: its elements in another dtype.
struct Conversion {
  size_t bytes;  // of what it writes
  PointwisePlan plan;
};

// A tensor with zeros around it, in memory of its own.
struct Padding {
  size_t bytes;
  Shape shape;  // with them, in the node's layout
  cuda::PackedKernel kernel;
};

// dX or dW for one combination of shapes.
struct GradPart {
  std::optional<SumPlan> zeros;  // where there is nothing to add up
  std::shared_ptr<const cudnn::Plan> plan;
  std::optional<Conversion> first_conversion, second_conversion;  // of the plan's inputs
  std::optional<Padding> padding;  // of the first input
  std::optional<Conversion> result_conversion;  // from what the plan writes
  size_t made_bytes = 0;  // of that, where it is converted
  std::optional<cuda::PackedKernel> engine;  // instead of the plan, of dX

  size_t scratch_bytes() const;
  // Asynchronous, on ORT's stream. `first`, `second`: dZ and W for dX; the larger and the smaller tensor for dW.
  void Run(const DeviceFacts& device, cuda::Stream stream, const void* first, const void* second, void* result,
    char* scratch) const;
};

// Makes a node's parts. It warns once where an algorithm is not to be had.
class GradPlanner {
 public:
  GradPlanner(std::string name, const GradNode& node, const DeviceFacts& device)
    : name_(std::move(name)), node_(node), device_(device) {}

  // Throws Error where cuDNN is needed and has no plan.
  GradPart MakeData(const GradShape& shape) const;
  // Where our engine does not make it.
  GradPart MakeWeight(const GradShape& shape) const;

  // Starts to build the cuDNN plans that these will ask for. `shapes`: of the node's inputs.
  void Prepare(const GradShape& shape, const Shapes& shapes) const;

 private:
  size_t FindPlan(const std::vector<cudnn::Problem>& problems, const std::string& algorithm, GradPart* part) const;
  void Warn(const std::string& reason) const;
  void WarnOfOwn(const char* gradient) const;

  std::string name_;
  const GradNode& node_;
  const DeviceFacts& device_;
  mutable std::atomic<bool> warned_{false};
};

}  // namespace ortplugin
