// Weight gradients of two-dimensional convolutions of few channels on our engine (weight_grad.cu), with the program
// that makes dZ fused in front and the bias's gradient beside them. Libraries make them GEMMs of very many columns for
// very few results, and read dZ again for the bias.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ortplugin/ops/contraction.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// The weight gradient of the convolution that the contraction is, from x to z of its dtype.
struct WeightGrad : Contraction {
  DType weight_dtype;  // of dW and dB
  bool stores_z, makes_bias;  // what it writes besides dW
};

struct WeightGradConfig {
  int images, rows;  // of a tile
  int maps, depth, tap_rows;  // of a thread: channels of z and of x, rows of taps
  int strip, segment;  // pixels of a row, and rows, that a thread takes at a time
  int block_maps, block_channels;
  int x_row, x_pitch, z_pitch;  // in shared memory, in elements
  int vector;  // elements of an access to z's operands
  int batch;  // such accesses to each of them that a thread asks for before it needs the first
  int threads, min_blocks;
  int64_t tiles, blocks, chunks;  // blocks: of one tile; chunks: what the tiles are shared among
  int64_t sums;  // of all blocks of a tile: what each chunk leaves to be added up
  int adders;
};

// Whether the program can be drawn in: it makes z of parameters that have z's shape or one element, and nothing else;
// with `makes_bias`, z is nothing that rounding to its dtype changes, for db is summed from what is not rounded.
// `axes`: of z's shape; strides of the parameters.
bool IsWeightGradProgram(const Program& program, const Axes& axes, bool makes_bias);
// Whether the kernel can do it at all, if there is a tile configuration.
bool FitsWeightGrad(const WeightGrad& grad);
// Whether it is the fastest there is, as measured on this GPU.
bool IsWeightGradFast(const WeightGrad& grad, const DeviceFacts& gpu);

// Empty where no tile fits the memory of a block.
std::optional<WeightGradConfig> ConfigureWeightGrad(
  const WeightGrad& grad, const Program& program, const DeviceFacts& gpu);
std::string WeightGradSource(
  const WeightGrad& grad, const Program& program, const Axes& axes, const WeightGradConfig& config);

// Ready to launch. Every address must be a multiple of 16.
struct WeightGradPlan {
  cuda::Function multiply, add;
  cuda::LaunchShape multiply_launch, add_launch;
  size_t scratch_bytes;
  int64_t images, chunks;
};
WeightGradPlan PlanWeightGrad(const WeightGrad& grad, const Program& program, const Axes& axes,
  const WeightGradConfig& config, const DeviceFacts& gpu);
// Asynchronous. `operands`: of the program. `z`, `db`: null where they are not made.
void RunWeightGrad(const WeightGradPlan& plan, const DeviceFacts& gpu, cuda::Stream stream, const void* x,
  const std::vector<const void*>& operands, void* z, void* dw, void* db, void* scratch);

}  // namespace ortplugin
