// Grouped convolutions, fp16 and bf16 on tensor cores, NHWC, of any width of the groups.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

bool FitsGrouped(const Program& program, const Contraction& problem, const DeviceFacts& device);
bool IsGroupedFast(const Program& program, const Contraction& problem, const DeviceFacts& device);
// Nothing where no tile fits the GPU's shared memory.
std::optional<EngineKernel> MakeGrouped(const Program& program, const Contraction& problem, const DeviceFacts& device);

}  // namespace ortplugin
