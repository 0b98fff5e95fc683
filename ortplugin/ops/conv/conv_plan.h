// A plan: all that one combination of input shapes needs on the GPU, ready to run. Which engine makes it is chosen
// here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ortplugin/ops/conv/aligned_copies.h"
#include "ortplugin/ops/conv/algorithm.h"
#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin {

struct ConvPlan {
  size_t inputs;  // of the node: X, W and the operands
  Shape shape;  // of every result in the node's layout
  Shape output;  // and as it is given out
  // Our engine's kernel, where there is one; with `convolution` it reads what that made instead of X.
  std::optional<cuda::PackedKernel> engine;
  // Else cuDNN's plan, with the program in it or without; or zeros, the sums of nothing.
  std::shared_ptr<const cudnn::Plan> convolution;
  std::optional<PointwisePlan> zeros;
  bool is_split = false;
  PointwisePlan epilogue;  // where it is split
  std::optional<size_t> value_result;  // the result in whose place the convolution's value is, else it is in scratch

  AlignedCopies copies;
  // Tensors that are NCHW where cuDNN has NHWC: X made from what it is, outputs from what they become, both in scratch
  // memory.
  struct Transposition {
    size_t tensor;  // number of the input, or behind these of the output
    size_t bytes;
    cuda::PackedKernel kernel;
  };
  std::vector<Transposition> transpositions;
  size_t value_bytes = 0, scratch_bytes = 0;

  bool holds_library_plan() const { return convolution != nullptr; }
  // Asynchronous, on ORT's stream. `addresses`: of the inputs, then of the outputs; `scratch`: scratch_bytes.
  void Run(const DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const;

 private:
  void RunCudnn(const DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& addresses, void* workspace,
    void* value) const;
};

// Makes a node's plans. It warns once where its algorithm is not to be had.
class ConvPlanner {
 public:
  ConvPlanner(std::string node, ConvAlgorithm algorithm, const DeviceFacts& device)
    : node_(std::move(node)), algorithm_(std::move(algorithm)), device_(device) {}

  bool is_auto() const { return algorithm_.kind == ConvAlgorithm::Kind::kAuto; }

  // `unaligned`: the numbers of the tensors that are copied. Throws Error where cuDNN is needed and has no plan.
  std::unique_ptr<ConvPlan> Make(const Contraction& given, const std::vector<size_t>& unaligned) const;

  // Starts to build the cuDNN plan that Make will ask for. False: it will ask for none.
  bool Prepare(const Contraction& given) const;

 private:
  // Of the engine that the node's algorithm and the GPU leave, if one fits.
  std::optional<EngineKernel> FindOwnKernel(const Contraction& contraction) const;
  bool IsShuffled(const Contraction& contraction) const;
  std::string FindShuffle(const Contraction& contraction, ConvPlan* plan) const;
  void FindCudnn(const Contraction& contraction, ConvPlan* plan) const;
  void Split(const Contraction& contraction, ConvPlan* plan) const;
  void AddTransposition(size_t tensor, DType dtype, int64_t rows, int64_t columns, int64_t count, ConvPlan* plan) const;
  void WarnOfAlgorithm(const std::string& reason) const;

  std::string node_;
  ConvAlgorithm algorithm_;
  const DeviceFacts& device_;
  mutable std::atomic<bool> warned_{false};
};

}  // namespace ortplugin
