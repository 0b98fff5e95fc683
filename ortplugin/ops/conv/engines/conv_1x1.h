// Pointwise (1x1) convolutions in fp16 and bf16, NHWC, plain or transposed, that are memory-bound.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct Conv1x1Config {
  int tile_k;  // channels of a copy
  int tile_n;  // filters of an MMA
  int block_n;  // filters of a block
  int stages;  // K tiles that are under way or in use
  int warps;  // of a block
  bool dynamic_tiles;  // dynamic tile scheduler; else each warpgroup has its tiles in advance
  bool prefetches_operands;  // operands of pixels are read while the tensor cores work, not after them
};

EngineTest FitsConv1x1, IsConv1x1Fast;
Conv1x1Config ConfigureConv1x1(const Program& program, const Contraction& problem, const DeviceFacts& device);
std::string Conv1x1Source(const Program& program, const Contraction& problem, const Conv1x1Config& config);
cuda::LaunchShape Conv1x1Launch(const Contraction& problem, const Conv1x1Config& config, const DeviceFacts& device);

EngineMake MakeConv1x1;

}  // namespace ortplugin
