// The stem: the first convolution of an image network, in fp16 and bf16 on tensor cores. Up to four input channels,
// which may be NCHW. Where strides let neighbouring pixels meet memory at odd elements, two of them are worked on as
// one.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct StemConfig {
  int filters;  // of a warp: 16 or 32
  int warps;  // of a block
  int tile_h, tile_w;  // pixels of a block, or pairs of them
  int buffers;  // parts of the image at once: 1, or 2 to copy one while the other is used
  int parts;  // of 16 pixels that a warp works on at once
  int min_blocks;  // that a multiprocessor should hold
};

EngineTest FitsStem, IsStemFast;
StemConfig ConfigureStem(const Program& program, const Contraction& problem, const DeviceFacts& device);
std::string StemSource(const Program& program, const Contraction& problem, const StemConfig& config);
cuda::LaunchShape StemLaunch(const Contraction& problem, const StemConfig& config, const DeviceFacts& device);

EngineMake MakeStem;

}  // namespace ortplugin
