// Transposed convolutions in 16 bits, channels last, with a stride above 1: each phase of the result, the pixels that
// lie a stride apart, is a convolution of its own. One of the kernels of conv/own_kernels.h.
#pragma once

#include "ortplugin/ops/conv/engines/own_kernels.h"

namespace ortplugin {

struct PolyphaseSchedule {
  int columns;   // filters of a tile
  int per;       // times 64 pixels of a tile for each four warps
  int warps;     // of a block
  int stages;    // copies of 64 channels of a tap that are under way or in use
  int resident;  // blocks that a multiprocessor should hold
};

bool FitsPolyphase(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device);
// Whether it is known to be faster than cuDNN.
bool IsPolyphaseFast(const Program& program, const ConvProblem& problem);
PolyphaseSchedule SchedulePolyphase(const ConvProblem& problem, const cuda::DeviceFacts& device);
std::string PolyphaseSource(const Program& program, const ConvProblem& problem, const PolyphaseSchedule& schedule);
cuda::LaunchShape PolyphaseLaunch(const ConvProblem& problem, const PolyphaseSchedule& schedule,
                                  const cuda::DeviceFacts& device);

}  // namespace ortplugin
