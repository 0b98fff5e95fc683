// Depthwise convolutions (group = C = M) of 3x3, 5x5 and 7x7, channels last, at the speed of memory.
#pragma once

#include "ortplugin/ops/conv/engines/own_kernels.h"

namespace ortplugin {

struct DepthwiseSchedule {
  int vector;          // channels of a thread
  int tile_h, tile_w;  // pixels of a thread
  int lanes;           // threads side by side along the channels
  int tiles;           // of a block: threads = lanes * tiles
  int ahead;           // rows of the image that are loaded before they are needed
  bool wide_weights;   // weights stand as float in shared memory
};

bool FitsDepthwise(const Program& program, const ConvProblem& problem);
DepthwiseSchedule ScheduleDepthwise(const Program& program, const ConvProblem& problem,
                                    const cuda::DeviceFacts& device);
std::string DepthwiseSource(const Program& program, const ConvProblem& problem, const DepthwiseSchedule& schedule);
cuda::LaunchShape DepthwiseLaunch(const ConvProblem& problem, const DepthwiseSchedule& schedule);

}  // namespace ortplugin
