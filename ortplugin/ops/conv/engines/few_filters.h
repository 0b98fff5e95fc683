// Transposed convolutions with up to eight filters, such as the last of a network that makes images. Tensor cores for
// float16 and bfloat16, float32 in full precision; the result may have its channels first.
#pragma once

#include "ortplugin/ops/conv/engines/own_kernels.h"

namespace ortplugin {

struct FewFiltersSchedule {
  int chunk;           // channels in shared memory at once
  int tile_h, tile_w;  // patches of a block at once: the pixels that one pixel of X is the first to meet
  int warps;           // of a block
  int parts;           // of 16 patches that a warp works on at once; for float32 of a patch that a thread does
  int vector;          // elements of the result that a thread makes at once
  int blocks;          // that a multiprocessor should hold
};

bool FitsFewFilters(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device);
FewFiltersSchedule ScheduleFewFilters(const Program& program, const ConvProblem& problem,
                                      const cuda::DeviceFacts& device);
std::string FewFiltersSource(const Program& program, const ConvProblem& problem, const FewFiltersSchedule& schedule);
cuda::LaunchShape FewFiltersLaunch(const ConvProblem& problem, const FewFiltersSchedule& schedule,
                                   const cuda::DeviceFacts& device);

}  // namespace ortplugin
