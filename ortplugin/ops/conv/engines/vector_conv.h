// 1x1 convolutions of images of one pixel: y[n, m] = sum over c of x[n, c] w[m, c], for few n. Squeeze-excite's two
// layers and classifiers.
#pragma once

#include "ortplugin/ops/conv/engines/own_kernels.h"

namespace ortplugin {

struct VectorConvSchedule {
  int vector;   // channels of an access
  int lanes;    // threads that share an output's sum: a power of two, at most 32
  int rows;     // of X for each weight that is read: a power of two, at most lanes
  int threads;  // of a block
};

bool FitsVectorConv(const Program& program, const ConvProblem& problem);
VectorConvSchedule ScheduleVectorConv(const Program& program, const ConvProblem& problem,
                                      const cuda::DeviceFacts& device);
std::string VectorConvSource(const Program& program, const ConvProblem& problem, const VectorConvSchedule& schedule);
cuda::LaunchShape VectorConvLaunch(const ConvProblem& problem, const VectorConvSchedule& schedule);

}  // namespace ortplugin
