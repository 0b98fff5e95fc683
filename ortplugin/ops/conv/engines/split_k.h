// Split-K convolutions (implicit GEMM) in fp16, bf16 and TF32, NHWC, for those that are little work for a GPU: small
// images in small batches.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct SplitKConfig {
  int tile_n;  // filters of a tile
  int split_k;  // blocks of a cluster, which divide K among them
  int warps;  // of a block: each warpgroup has its own part of K
  int stages;  // K tiles of 128 bytes of channels that are under way or in use, for each warpgroup
};

// The blocks that are at work at the same time: those of a cluster on neighbouring multiprocessors, and some are left
// over. Measured: 28 clusters of four find room on an H200, but not 32; 16 of six, but not 20.
int64_t RoomForClusters(int blocks, const DeviceFacts& device);

EngineTest FitsSplitK, IsSplitKFast;
SplitKConfig ConfigureSplitK(const Contraction& problem, const DeviceFacts& device);
std::string SplitKSource(const Program& program, const Contraction& problem, const SplitKConfig& config);
cuda::LaunchShape SplitKLaunch(const Contraction& problem, const SplitKConfig& config);

EngineMake MakeSplitK;

}  // namespace ortplugin
