// FusedSumTo: sums over some axes of what a pointwise program computes, and such values themselves. The specification
// is in ortplugin/ops/sum_to/__init__.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

extern const Operator kFusedSumTo;

// A node's program, taken apart.
struct SumProgram {
  struct Sum {
    ValueId operand, value;
    std::vector<int64_t> axes;  // of S, ascending
    bool keepdims;
    std::vector<uint32_t> casts;  // statements
    std::vector<size_t> results;  // numbers of those that are this sum or a Cast of it
  };

  Program program;
  std::vector<Sum> sums;
  std::vector<size_t> whole;  // numbers of the results of the shape S

  // Throws Error where the text is no program of this operator.
  static SumProgram Parse(const std::string& text);
};

// The shapes of one run.
struct SumShape {
  Shape shape;  // S, what all inputs broadcast to
  int64_t count;
  Shapes results;
  // Strides of each parameter, then of each sum as a tensor that broadcasts to S: 0 along the axes summed over.
  Axes axes;
};

// Throws Error where the inputs' shapes don't broadcast together, or have no axis that is summed over.
SumShape FitSums(const SumProgram& program, const Shapes& inputs);

// What both kernels check when they are created: throws Error where inputs, outputs or the shapes that are known early
// don't fit the program. Returns the inputs' types.
TensorTypes CheckSums(const SumProgram& program, const NodeInfo& info);

// On the CPU: the program's results, in order, into `outputs`.
void ComputeSums(const SumProgram& program, const SumShape& shape, const std::vector<Tensor>& inputs,
  const std::vector<char*>& outputs, Run& run);

std::unique_ptr<Kernel> CreateCudaSumTo(const NodeInfo& info);

// What one launch computes: the sums over the same axes, and with the first of them the results of the shape S.
struct SumGroup {
  std::vector<size_t> sums;  // numbers of sums
  std::vector<size_t> results;  // numbers of results of the shape S
  std::vector<size_t> parameters;  // numbers of those that it reads
  std::vector<uint32_t> statements;
  Axes axes;  // strides: of each of `parameters`, then those of a tensor of the shape S
  std::vector<size_t> kept, summed;  // axes
  int64_t kept_elements, summed_elements;
};
std::vector<SumGroup> GroupSums(const SumProgram& program, const SumShape& shape, const Shapes& inputs);

// The whole CUDA C++ of one variant of the kernel, for tests as well as for launches.
struct SumConfig {
  bool along;  // vectors and neighbouring threads lie along axes that are summed over, else along kept ones
  int vector;  // elements of an access
  int items;  // accesses of a thread at once
  int kept_threads, summed_threads;  // of a block
  bool wide;  // indices have 64 bits
  bool stream;  // the data outgrows the cache and need not stay in it
};
SumConfig ConfigureSums(const SumProgram& program, const SumGroup& group, const DeviceFacts& gpu, bool aligned);
std::string SumSource(const SumProgram& program, const SumGroup& group, const SumConfig& config);

// How the blocks of a launch share the work.
struct SumPieces {
  int64_t kept_blocks, chunk_size, chunks;
};
// `resident`: blocks that the GPU runs at once.
SumPieces CutSums(const SumGroup& group, const SumConfig& config, int64_t resident);
// The kernel's arguments behind its pointers. Axes that are summed over may be empty: such a sum is 0, and is launched.
std::vector<uint64_t> SumNumbers(const SumGroup& group, const SumConfig& config, const SumPieces& pieces);

// One group, ready to launch.
struct SumStage {
  std::vector<size_t> inputs, outputs;  // of the node, in the order of the arguments
  cuda::Function sum, add;  // add: null where there is one chunk
  cuda::LaunchShape sum_launch, add_launch;
  std::vector<uint64_t> arguments;  // pointers are filled in at each launch
  std::vector<size_t> partial;  // where each sum's chunks are in the scratch memory, in bytes
};

// All groups for one combination of input shapes.
struct SumPlan {
  Shapes results;
  std::vector<SumStage> stages;
  size_t scratch_bytes;
};

// Compiles the kernels. `aligned`: every tensor's address is a multiple of 16.
SumPlan PlanSums(const SumProgram& program, const Shapes& inputs, const DeviceFacts& gpu, bool aligned);
// Asynchronous. `scratch`: the plan's bytes, aligned to 16.
void RunSums(const SumPlan& plan, const DeviceFacts& gpu, cuda::Stream stream, const std::vector<const void*>& inputs,
  const std::vector<void*>& outputs, char* scratch);

}  // namespace ortplugin
