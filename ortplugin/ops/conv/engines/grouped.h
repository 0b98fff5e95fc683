// Grouped convolutions, fp16 and bf16 on tensor cores, NHWC, of any width of the groups.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

EngineTest FitsGrouped, IsGroupedFast;
EngineTry MakeGrouped;

}  // namespace ortplugin
