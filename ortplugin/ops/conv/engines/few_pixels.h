// Convolutions in 16 bits, channels last, that are little work for a GPU: small images in small batches. Their sums are
// divided. One of the kernels of own_kernels.h.
#pragma once

#include "ortplugin/ops/conv/engines/own_kernels.h"

namespace ortplugin {

struct FewPixelsSchedule {
  int columns;  // filters of a tile
  int split;    // blocks that divide the sums of a tile, a cluster
  int warps;    // of a block: each four sum a part of their own
  int stages;   // copies of 64 channels of a tile that are under way or in use, in each part
};

bool FitsFewPixels(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device);
// Whether it is known to be faster than cuDNN.
bool IsFewPixelsFast(const ConvProblem& problem, const cuda::DeviceFacts& device);
FewPixelsSchedule ScheduleFewPixels(const ConvProblem& problem, const cuda::DeviceFacts& device);
std::string FewPixelsSource(const Program& program, const ConvProblem& problem, const FewPixelsSchedule& schedule);
cuda::LaunchShape FewPixelsLaunch(const ConvProblem& problem, const FewPixelsSchedule& schedule);

}  // namespace ortplugin
