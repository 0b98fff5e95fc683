// Depthwise convolutions (group = C, M a multiple of it) of any small filter, NHWC, memory-bound.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct DepthwiseConfig {
  int vector;  // channels of a thread
  int tile_h, tile_w;  // pixels of a thread
  int lanes;  // threads side by side along the channels
  int tiles;  // of a block: threads = lanes * tiles
  int ahead;  // rows of the image that are loaded before they are needed
  bool float_weights;  // weights are fp32 in shared memory
};

EngineTest FitsDepthwise;
DepthwiseConfig ConfigureDepthwise(const Program& program, const Contraction& problem, const DeviceFacts& device);
std::string DepthwiseSource(const Program& program, const Contraction& problem, const DepthwiseConfig& config);
cuda::LaunchShape DepthwiseLaunch(const Contraction& problem, const DepthwiseConfig& config);

EngineMake MakeDepthwise;

}  // namespace ortplugin
