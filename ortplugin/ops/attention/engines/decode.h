// Attention of few queries in fp16 and bf16: the keys of a head divided among the blocks of a cluster.
#pragma once

#include "ortplugin/ops/attention/engines/engine.h"

namespace ortplugin {

struct DecodeConfig {
  int cluster;  // blocks that share the keys of a head of K and V
  int warps;  // of a block, that compute
  int writers;  // and that write what is present
  int stages;  // tiles of 16 keys of a warp that are in shared memory
  int min_blocks;  // of a multiprocessor
};

bool FitsDecode(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device);
DecodeConfig ConfigureDecode(const AttentionProblem& problem, const cuda::DeviceFacts& device);
std::optional<EngineKernel> MakeDecode(const AttentionProblem& problem, const cuda::DeviceFacts& device);

}  // namespace ortplugin
