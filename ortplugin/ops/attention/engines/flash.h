// Attention in fp16, bf16, TF32 and, by three products of TF32, fp32 on tensor cores (mma.sync), with tiles of keys in
// shared memory.
#pragma once

#include "ortplugin/ops/attention/engines/engine.h"

namespace ortplugin {

struct FlashConfig {
  int block_n;  // keys of a tile
  int m_tiles;  // of 16 queries, of a warp
  int warps;  // of a group
  int groups;  // of a block, which take tiles of keys in turns
  int copy;  // elements that are copied at once
  int min_blocks;  // of a multiprocessor
};

bool FitsFlash(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device);
FlashConfig ConfigureFlash(const AttentionProblem& problem, const cuda::DeviceFacts& device);
std::string FlashSource(const AttentionProblem& problem, const FlashConfig& config);
cuda::LaunchShape FlashLaunch(const AttentionProblem& problem, const FlashConfig& config);
std::optional<EngineKernel> MakeFlash(const AttentionProblem& problem, const cuda::DeviceFacts& device);

}  // namespace ortplugin
