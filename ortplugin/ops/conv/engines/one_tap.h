// Convolutions with a kernel of one element in 16 bits, channels last, plain or transposed, whose time is that of their
// tensors' way through memory. One of the kernels of own_kernels.h.
#pragma once

#include "ortplugin/ops/conv/engines/own_kernels.h"

namespace ortplugin {

struct OneTapSchedule {
  int chunk;          // channels that are copied at a time
  int group;          // filters that are summed at a time
  int slice;          // filters of a block
  int stages;         // chunks that are under way or in use
  int warps;          // of a block
  bool shared_tiles;  // taken as they go, but for the first ones
  bool early;         // operands of pixels are read while the products are made, not after them
};

bool FitsOneTap(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device);
// Whether it is known to be faster than cuDNN.
bool IsOneTapFast(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device);
OneTapSchedule ScheduleOneTap(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device);
std::string OneTapSource(const Program& program, const ConvProblem& problem, const OneTapSchedule& schedule);
cuda::LaunchShape OneTapLaunch(const ConvProblem& problem, const OneTapSchedule& schedule,
                               const cuda::DeviceFacts& device);

}  // namespace ortplugin
