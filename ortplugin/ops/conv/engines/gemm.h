// Matrix products and pointwise (1x1) convolutions of stride 1 in fp16, bf16 and TF32, NHWC: a persistent,
// warp-specialized GEMM on Hopper's tensor cores and copy engine.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct GemmConfig {
  int tile_n;  // columns of a tile
  int consumers;  // warpgroups that multiply
  int tile_k;  // channels of a copy
  bool take_turns;  // each consumer has tiles of its own: the program of one runs beside the MMAs of the other
  int stages;
  bool rows_first;  // neighbouring tiles have the same columns

  int tile_m() const { return take_turns ? 128 : 64 * consumers; }
};

bool FitsGemm(const Program& program, const Contraction& problem, const cuda::DeviceFacts& device);
// Whether it is known to be faster than a library's engine.
bool IsGemmFast(const Program& program, const Contraction& problem, const cuda::DeviceFacts& device);
GemmConfig ConfigureGemm(const Contraction& problem, const cuda::DeviceFacts& device);
std::string GemmSource(const Program& program, const Contraction& problem, const GemmConfig& config);
cuda::LaunchShape GemmLaunch(const Contraction& problem, const GemmConfig& config, const cuda::DeviceFacts& device);

// Whether filters have one element, and every pixel is one of the result.
bool IsPointwise(const Contraction& problem);

// The problem with two spatial dimensions, where it is pointwise and no operand tells its pixels apart by some of their
// axes alone; else as it is.
Contraction WithTwoWindows(const Contraction& problem);

// The problem with its rows as the batch, where all channels are last and no operand tells an image's pixels apart: one
// kernel for all numbers of rows.
Contraction WithRowsAsBatch(const Contraction& problem);

EngineKernel MakeGemm(const Program& program, const Contraction& problem, const cuda::DeviceFacts& device);

}  // namespace ortplugin
