// The first convolution of a network for images: up to four channels in, which may lie channels first, and strides that
// let neighbouring pixels meet memory at even elements. Tensor cores, float16 and bfloat16.
#pragma once

#include "ortplugin/ops/conv/engines/own_kernels.h"

namespace ortplugin {

struct StemSchedule {
  int filters;         // of a warp: 16 or 32
  int warps;           // of a block
  int tile_h, tile_w;  // pixels of a block
  int buffers;         // parts of the image at once: 1, or 2 to copy one while the other is used
  int parts;           // of 16 pixels that a warp works on at once
  int blocks;          // that a multiprocessor should hold
};

bool FitsStem(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device);
StemSchedule ScheduleStem(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device);
std::string StemSource(const Program& program, const ConvProblem& problem, const StemSchedule& schedule);
cuda::LaunchShape StemLaunch(const ConvProblem& problem, const StemSchedule& schedule, const cuda::DeviceFacts& device);

}  // namespace ortplugin
