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

// In which order blocks take tiles: as even as can be, and so that the keys of tiles at work at a time are in the L2
// cache.
struct FlashWgmmaOrder {
  int64_t section;  // heads whose tiles are taken at a time
  int64_t blocks;  // one after the other takes some; or as many as tiles, of which the GPU starts one as another ends
};

bool FitsFlashWgmma(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device);
FlashWgmmaConfig ConfigureFlashWgmma(const AttentionProblem& problem, const cuda::DeviceFacts& device);
FlashWgmmaOrder OrderFlashWgmma(
  const AttentionProblem& problem, const FlashWgmmaConfig& config, const cuda::DeviceFacts& device);
std::string FlashWgmmaSource(const AttentionProblem& problem, const FlashWgmmaConfig& config);
std::optional<EngineKernel> MakeFlashWgmma(const AttentionProblem& problem, const cuda::DeviceFacts& device);

}  // namespace ortplugin
