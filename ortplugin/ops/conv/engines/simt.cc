#include "ortplugin/ops/conv/engines/simt.h"

#include <algorithm>
#include <limits>

#include "ortplugin/ops/conv/engines/split_k.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kTileK = 32, kThreads = 256;
constexpr int kMostQuadsM = 2, kMostQuadsN = 4, kMostQuads = 6, kMostSplit = 4, kMostStages = 4;

int64_t Rows(const Contraction& problem) { return problem.batch * problem.rows().out * problem.columns().out; }

int64_t KTiles(const Contraction& problem) {
  return problem.rows().kernel * problem.columns().kernel * DivideUp(problem.channels, kTileK);
}

int64_t Tiles(const Contraction& problem, const SimtConfig& config) {
  return DivideUp(Rows(problem), int64_t{config.tile_m()}) * DivideUp(problem.filters, int64_t{config.tile_n()});
}

// Quads of four sums that each thread has, and what the parts of a sum exchange of them.
int64_t Quads(const SimtConfig& config) { return int64_t{4} * config.quads_m * config.quads_n; }
int64_t ExchangedBytes(const SimtConfig& config) {
  const int64_t parts = int64_t{2} * config.split_k;
  return (parts - 1) * DivideUp(Quads(config), parts) * kThreads * 16;
}

int64_t StageBytes(const SimtConfig& config) { return (config.tile_m() + config.tile_n()) * kTileK * 4; }

int64_t SharedBytes(const SimtConfig& config) {
  return std::max(config.stages * StageBytes(config), ExchangedBytes(config));
}

// Cycles, by an estimate: what a warp issues for a quad of channels are an FMA for each of its products, loads from
// shared memory, which take two cycles, and some arithmetic; beginning and program take as long as some 2,000.
double Cost(const Contraction& problem, const SimtConfig& config, const DeviceFacts& device) {
  constexpr double kRest = 2000, kExchange = 1500, kOverhead = 8;
  const int m = config.quads_m, n = config.quads_n;
  const double of_quad = 64.0 * m * n + 2 * 4 * (m + n) + kOverhead;
  const int64_t k_tiles = DivideUp(KTiles(problem), int64_t{config.split_k});
  const int64_t turns = DivideUp(Tiles(problem, config) * config.split_k, int64_t{device.multiprocessors});
  // Eight quads of a K tile, by four warps; the multiprocessor issues four instructions in a cycle.
  const double of_tile = double(k_tiles) * 8 * of_quad;
  return double(turns) * (of_tile + kRest) + (config.split_k > 1 ? kExchange : 0);
}

// Filters that are read and written at once.
int64_t Vector(const Contraction& problem) { return std::min<int64_t>(4, problem.filters & -problem.filters); }

}  // namespace

bool FitsSimt(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem) || problem.dtype() != DType::kFloat || problem.allow_tf32) return false;
  if (problem.groups != 1 || problem.transposed || problem.x_channels_first || problem.y_channels_first) return false;
  if (problem.channels % 4 != 0 || !device.has_mma_m16n8k16()) return false;  // which came with cp.async
  constexpr int64_t kMostReach = 1 << 29;  // a row of X that does not exist is this far above the first, twice
  return (problem.rows().kernel - 1) * problem.rows().dilation < kMostReach && problem.rows().pad_begin < kMostReach;
}

bool IsSimtFast(const Program&, const Contraction&, const DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  return target != nullptr && target->limits.simt_pays != 0;
}

SimtConfig ConfigureSimt(const Contraction& problem, const DeviceFacts& device) {
  SimtConfig best{};
  double least = std::numeric_limits<double>::infinity();
  for (int m = 1; m <= kMostQuadsM; ++m)
    for (int n = 1; n <= std::min(kMostQuadsN, kMostQuads / m); ++n)  // more are more sums than a thread has registers
      for (int split_k = 1; split_k <= kMostSplit; ++split_k) {
        SimtConfig config{m, n, split_k, kMostStages};
        const bool may_divide = device.has_clusters() && split_k <= KTiles(problem) && 2 * split_k <= Quads(config) &&
          Tiles(problem, config) * split_k <= RoomForClusters(split_k, device);
        if (split_k > 1 && !may_divide) continue;
        while (config.stages > 2 && SharedBytes(config) > device.shared_per_block) --config.stages;
        if (SharedBytes(config) > device.shared_per_block) continue;
        if (const double cost = Cost(problem, config, device); cost < least) {
          least = cost;
          best = config;
        }
      }
  return best;
}

std::string SimtSource(const Program& program, const Contraction& problem, const SimtConfig& config) {
  return Joined(ConvPreamble(program, problem),
    Defines({{"QUADS_M", config.quads_m}, {"QUADS_N", config.quads_n}, {"SPLIT_K", config.split_k},
      {"STAGES", config.stages}, {"VECTOR", Vector(problem)}}),
    "\n#define CLUSTER SPLIT_K\n\n", kClusterSource, "\n", kSimtSource);
}

cuda::LaunchShape SimtLaunch(const Contraction& problem, const SimtConfig& config) {
  return {Tiles(problem, config) * config.split_k, kThreads, SharedBytes(config)};
}

EngineKernel MakeSimt(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const SimtConfig config = ConfigureSimt(problem, device);
  return {SimtSource(program, problem, config), "simt", SimtLaunch(problem, config), ConvArguments(program, problem)};
}

}  // namespace ortplugin
