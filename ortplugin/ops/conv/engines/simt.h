// Matrix products and convolutions in float32 without tensor cores, NHWC: an implicit GEMM of FMAs, for sessions that
// forbid TF32.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

struct SimtConfig {
  int quads_m, quads_n;  // of a thread's rows and columns: a tile has 64 rows and 32 columns for each
  int split_k;  // blocks of a cluster, which divide K among them
  int stages;  // K tiles that are under way or in use

  int tile_m() const { return 64 * quads_m; }
  int tile_n() const { return 32 * quads_n; }
};

EngineTest FitsSimt, IsSimtFast;
SimtConfig ConfigureSimt(const Contraction& problem, const DeviceFacts& device);
std::string SimtSource(const Program& program, const Contraction& problem, const SimtConfig& config);
cuda::LaunchShape SimtLaunch(const Contraction& problem, const SimtConfig& config);

EngineMake MakeSimt;

}  // namespace ortplugin
