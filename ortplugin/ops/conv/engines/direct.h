// Direct convolution: two-dimensional, NCHW, fp32, few channels (direct.cu). Libraries make such a convolution a GEMM
// that is too narrow to be fast, and write the result before bias and activation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ortplugin/ops/conv/engines/engine.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

struct DirectConfig {
  int images, rows;  // of a tile
  int maps, strip;  // of a thread: channels, and pixels of a row
  int block_maps;  // channels of a block
  int chunk;  // input channels in shared memory at a time
  int row_pitch, image_pitch;  // in shared memory, in elements
  int vector;  // elements of an access to operands and results
  bool wide;  // indices have 64 bits
  bool is_short;  // the kernel takes a few microseconds
  int threads, min_blocks;
  int64_t tiles, map_blocks;  // map_blocks: of all groups
};

// Whether the kernel can do it at all, if there is a tile configuration.
bool FitsDirect(const Contraction& conv);
// Whether it is the fastest there is, as measured.
bool IsDirectFast(const Contraction& conv, const DeviceFacts& gpu);

// `axes`: of y's shape; strides of the program's parameters, the first of which is the convolution's value.
// `most_vector`: the most elements of an access that every operand's and result's address is good for.
// Empty where no tile fits the memory of a block.
std::optional<DirectConfig> ConfigureDirect(const Contraction& conv, const DeviceFacts& gpu, int most_vector);
std::string DirectSource(const Contraction& conv, const Program& program, const Axes& axes, const DirectConfig& config);
// The kernel's argument block: addresses of the node's inputs (X, W, operands) and outputs, still 0, then numbers.
std::vector<uint64_t> DirectArguments(
  const Contraction& conv, const Program& program, const Axes& axes, const DirectConfig& config);
cuda::LaunchShape DirectLaunch(const DirectConfig& config, const DeviceFacts& gpu);

// The engine's line in the table.
EngineTest FitsDirect, IsDirectFast;
EngineTry MakeDirect;

}  // namespace ortplugin
