// Attention of every dtype, head size and layout on every GPU, without tensor cores.
#pragma once

#include "ortplugin/ops/attention/engines/engine.h"

namespace ortplugin {

struct AttentionSimtConfig {
  int rows;  // queries of a warp
  int warps;  // of a block
  int chunk;  // of a head, that is in shared memory at a time
};

AttentionSimtConfig ConfigureAttentionSimt(const AttentionProblem& problem);
std::string AttentionSimtSource(const AttentionProblem& problem, const AttentionSimtConfig& config);

bool FitsAttentionSimt(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device);
std::optional<EngineKernel> MakeAttentionSimt(const AttentionProblem& problem, const cuda::DeviceFacts& device);

}  // namespace ortplugin
