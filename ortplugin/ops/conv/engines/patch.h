// Convolutions of stride 1 of up to 64 channels by small filters in fp16 and bf16, NHWC: an image's patch is copied
// once for all taps.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

EngineTest FitsPatch, IsPatchFast;
EngineMake MakePatch;

}  // namespace ortplugin
