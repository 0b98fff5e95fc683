// Grouped convolutions, fp16 and bf16 on tensor cores, NHWC, of any width of the groups.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct GroupedConfig {
  int merged;                   // groups of a unit, whose weights are block-diagonal
  int chunk;                    // octets of a unit's channels in shared memory at once
  int columns;                  // octets of filters in a sub
  int item_units;               // that a warp works on at once
  int block_units, block_subs;  // a block's slice
  bool flat;                    // pixels of all images are one row
  int tile_h, tile_w;           // pixels of a block at once
  int parts;                    // of 16 pixels that a warp works on at once
  int warps_m, warps_n;         // of a block, along pixels and filters
  int stages;                   // parts of X at once: 1, or 2 to copy one while the other is used
  int min_blocks;               // that a multiprocessor should hold
};

bool FitsGrouped(const Program& program, const Contraction& problem, const cuda::DeviceFacts& device);
// Whether it is known to be faster than cuDNN.
bool IsGroupedFast(const Program& program, const Contraction& problem, const cuda::DeviceFacts& device);
// Nothing where no tile fits the GPU's shared memory.
std::optional<GroupedConfig> ConfigureGrouped(const Contraction& problem, const cuda::DeviceFacts& device);
std::string GroupedSource(const Program& program, const Contraction& problem, const GroupedConfig& config);
cuda::LaunchShape GroupedLaunch(const Contraction& problem, const GroupedConfig& config,
                                const cuda::DeviceFacts& device);

std::optional<EngineKernel> MakeGrouped(const Program& program, const Contraction& problem,
                                        const cuda::DeviceFacts& device);

}  // namespace ortplugin
