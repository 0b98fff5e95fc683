// FusedPointwise: any pointwise program over tensors that broadcast together. The specification is in
// ortplugin/ops/pointwise/__init__.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

extern const Operator kFusedPointwise;

// Throws Error where the text is no program of this operator.
Program ParsePointwise(const std::string& text);

// The shapes of one run.
struct PointwiseShape {
  Shape shape;  // what all inputs broadcast to, and every result has
  int64_t count;
  Axes axes;  // strides: of each parameter
};

// Throws Error where the inputs' shapes don't broadcast together.
PointwiseShape FitPointwise(const Program& program, const Shapes& inputs);

// What both kernels check when they are created: throws Error where inputs, outputs or the shapes that are known early
// don't fit the program. Returns the inputs' types.
TensorTypes CheckPointwise(const Program& program, const NodeInfo& info);

std::unique_ptr<Kernel> CreateCudaPointwise(const NodeInfo& info);

// The whole CUDA C++ of one variant of the kernel, for tests as well as for launches.
struct PointwiseConfig {
  int vector;  // elements of an access
  int items;  // vectors of a thread
  bool across;  // vectors cross the ends of rows: tensors that are repeated are read element by element
  bool tail;  // elements are left after the last whole vector
  bool wide;  // indices have 64 bits
  int threads;  // of a block
  int64_t tiles;  // of threads * items vectors
};

// `most_vector`: the most elements, a power of two, of an access that every tensor's address is good for.
PointwiseConfig ConfigurePointwise(
  const Program& program, const PointwiseShape& shape, const DeviceFacts& gpu, int most_vector);
std::string PointwiseSource(const Program& program, const PointwiseShape& shape, const PointwiseConfig& config);

// A kernel for one combination of input shapes, ready to launch.
struct PointwisePlan {
  cuda::Function kernel;
  cuda::LaunchShape launch;
  std::vector<uint64_t> arguments;  // addresses of inputs and outputs are filled in at each launch
};

// Compiles the kernel. `shape` has at least one element.
PointwisePlan PlanPointwise(
  const Program& program, const PointwiseShape& shape, const DeviceFacts& gpu, int most_vector);
// Asynchronous. A result may lie where an input of the full shape and its dtype does.
void RunPointwise(const PointwisePlan& plan, const DeviceFacts& gpu, cuda::Stream stream,
  const std::vector<const void*>& inputs, const std::vector<void*>& outputs);
// The most elements, a power of two, of an access that an address is good for.
int MostVector(const void* address, size_t size);
constexpr int kMostVector = 16;

}  // namespace ortplugin
