// Matrix-vector (GEMV) convolutions: 1x1 on images of one pixel, y[n, m] = sum over c of x[n, c] w[m, c], for few n.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

EngineTest FitsGemv;
// Whether it is known to be faster than a GEMM.
EngineTest IsGemvFast;
EngineMake MakeGemv;
// With a norm of X; none where its threads could not hold their parts of the rows.
std::optional<EngineKernel> MakeGemvNorm(
  const Program& program, const Contraction& problem, const NormTail& norm, const DeviceFacts& device);

}  // namespace ortplugin
