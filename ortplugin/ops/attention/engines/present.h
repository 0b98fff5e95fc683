// The copy of past and new keys and values to what is present, before attention over that.
#pragma once

#include "ortplugin/ops/attention/engines/engine.h"

namespace ortplugin {

// `aligned`: every address is a multiple of 16 bytes. There are elements to write.
EngineKernel MakePresent(const AttentionProblem& problem, bool aligned);

}  // namespace ortplugin
