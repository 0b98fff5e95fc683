// Transposed convolutions for few output channels, up to eight, such as the last of a network that makes images. fp16
// and bf16 on tensor cores, fp32 in full precision. The result may be NCHW.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct FewOutputChannelsConfig {
  int chunk;  // channels in shared memory at once
  int tile_h, tile_w;  // patches of a block at once: the pixels that one pixel of X is the first to meet
  int warps;  // of a block
  int parts;  // of 16 patches that a warp works on at once; for float32 of a patch that a thread does
  int vector;  // elements of the result that a thread makes at once
  int min_blocks;  // that a multiprocessor should hold
};

EngineTest FitsFewOutputChannels;
FewOutputChannelsConfig ConfigureFewOutputChannels(
  const Program& program, const Contraction& problem, const DeviceFacts& device);
std::string FewOutputChannelsSource(
  const Program& program, const Contraction& problem, const FewOutputChannelsConfig& config);
cuda::LaunchShape FewOutputChannelsLaunch(
  const Contraction& problem, const FewOutputChannelsConfig& config, const DeviceFacts& device);

EngineMake MakeFewOutputChannels;

}  // namespace ortplugin
