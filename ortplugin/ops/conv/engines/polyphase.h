// Transposed convolutions in fp16 and bf16, NHWC, with a stride above 1. Each phase of the result, the pixels that lie
// a stride apart, is a convolution of its own.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct PolyphaseConfig {
  int tile_n;  // filters of a tile
  int m_tiles;  // MMAs of 64 pixels that a warpgroup has of a tile
  int warps;  // of a block
  int stages;  // K tiles of 64 channels of a tap that are under way or in use
  int min_blocks;  // blocks that a multiprocessor should hold
};

EngineTest FitsPolyphase, IsPolyphaseFast;
PolyphaseConfig ConfigurePolyphase(const Contraction& problem, const DeviceFacts& device);
std::string PolyphaseSource(const Program& program, const Contraction& problem, const PolyphaseConfig& config);
cuda::LaunchShape PolyphaseLaunch(const Contraction& problem, const PolyphaseConfig& config, const DeviceFacts& device);

EngineMake MakePolyphase;

}  // namespace ortplugin
