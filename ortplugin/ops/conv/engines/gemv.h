// Matrix-vector (GEMV) convolutions: 1x1 on images of one pixel, y[n, m] = sum over c of x[n, c] w[m, c], for few n.
// Squeeze-excite's two layers and classifiers.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct GemvConfig {
  int vector;  // channels of an access
  int lanes;  // threads that share an output's sum: a power of two, at most the block's
  int rows;  // of X for each weight that is read: a power of two, at most lanes
  int threads;  // of a block
};

EngineTest FitsGemv;
// Whether it is known to be faster than a GEMM.
EngineTest IsGemvFast;
GemvConfig ConfigureGemv(const Program& program, const Contraction& problem, const DeviceFacts& device);

EngineMake MakeGemv;
// With a norm of X; none where its threads could not hold their parts of the rows.
std::optional<EngineKernel> MakeGemvNorm(
  const Program& program, const Contraction& problem, const NormTail& norm, const DeviceFacts& device);

}  // namespace ortplugin
