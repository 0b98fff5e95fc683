// Matrix products and convolutions in fp16, bf16, TF32 and, by three products of TF32, fp32, NHWC: a persistent,
// warp-specialized GEMM on Hopper's tensor cores and copy engine, which reads a convolution's pixels in place (implicit
// GEMM).
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
  int cluster = 1;  // blocks that share rows, for a norm of these
  int split_k = 1;  // or blocks that share a tile, each with a part of K
  int m_tiles = 1;  // MMAs of 64 rows of a warpgroup
  bool is_pair = false;  // two blocks have tiles one below the other, and share w

  // Blocks of a cluster.
  int together() const { return cluster * split_k * (1 + is_pair); }

  int tile_m() const { return 64 * m_tiles * (take_turns ? 1 : consumers); }
};

EngineTest FitsGemm, IsGemmFast;  // of what is pointwise
EngineTest FitsImplicitGemm, IsImplicitGemmFast;  // of every other filter
GemmConfig ConfigureGemm(const Contraction& problem, const DeviceFacts& device);
std::string GemmSource(
  const Program& program, const Contraction& problem, const GemmConfig& config, const NormTail* tail = nullptr);
cuda::LaunchShape GemmLaunch(const Contraction& problem, const GemmConfig& config, const DeviceFacts& device);

// Whether filters have one element, and every pixel is one of the result.
bool IsPointwise(const Contraction& problem);

// The problem with two spatial dimensions, where it is pointwise and no operand tells its pixels apart by some of their
// axes alone; else as it is.
Contraction WithTwoWindows(const Contraction& problem);

// The problem with its rows as the batch, where all channels are last and no operand tells an image's pixels apart: one
// kernel for all numbers of rows.
Contraction WithRowsAsBatch(const Contraction& problem);

EngineMake MakeGemm, MakeImplicitGemm;

// One kernel for a product and a norm of its rows, which `problem` has as its batch (WithRowsAsBatch): each cluster, of
// up to `most_cluster` blocks, has one tile of whole rows. Empty where that is not computed, where more tiles than the
// GPU has multiprocessors are needed, and with `only_where_fast` where it is not known to be faster than two kernels.
std::optional<GemmConfig> ConfigureGemmNorm(const Program& program, const Contraction& problem, const NormTail& tail,
  int most_cluster, bool only_where_fast, const DeviceFacts& device);
EngineKernel MakeGemmNorm(const Program& program, const Contraction& problem, const GemmConfig& config,
  const NormTail& tail, const DeviceFacts& device);

}  // namespace ortplugin
