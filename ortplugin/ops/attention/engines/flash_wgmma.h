// Attention in fp16 and bf16 on Hopper's tensor cores (wgmma) and copy engine: persistent and warp-specialized.
#pragma once

#include "ortplugin/ops/attention/engines/engine.h"

namespace ortplugin {

struct FlashWgmmaConfig {
  int consumers;  // warpgroups that multiply, each 64 queries of a tile
  int tile_n;  // keys of a tile
  int stages;  // of keys, and of values
  int q_stages;  // of queries: with two, those of the next tile come while this one ends
  int min_blocks;  // of a multiprocessor
  bool turns;  // the warpgroups issue their MMAs one after the other
};

bool FitsFlashWgmma(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device);
FlashWgmmaConfig ConfigureFlashWgmma(const AttentionProblem& problem, const cuda::DeviceFacts& device);
std::string FlashWgmmaSource(const AttentionProblem& problem, const FlashWgmmaConfig& config);
cuda::LaunchShape FlashWgmmaLaunch(
  const AttentionProblem& problem, const FlashWgmmaConfig& config, const cuda::DeviceFacts& device);
std::optional<EngineKernel> MakeFlashWgmma(const AttentionProblem& problem, const cuda::DeviceFacts& device);

}  // namespace ortplugin
