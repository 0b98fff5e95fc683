#include "ortplugin/ops/conv/engines/split_k.h"

#include <algorithm>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/ops/conv/engines/gemm.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kTileM = 64;  // pixels of a tile
constexpr int64_t kTileBytes = 128;  // of a tap's channels that are copied at once

int64_t KTiles(const Contraction& problem) {
  return problem.rows().kernel * problem.columns().kernel * DivideUp(problem.channels * Size(problem), kTileBytes);
}

int64_t Tiles(const Contraction& problem, const SplitKConfig& config) {
  const int64_t pixels = problem.batch * problem.rows().out * problem.columns().out;
  return DivideUp(pixels, kTileM) * DivideUp(problem.filters, config.tile_n);
}

int64_t Blocks(const Contraction& problem, const SplitKConfig& config) {
  return Tiles(problem, config) * config.split_k;
}

int64_t CopiedBytes(const Contraction& problem, const SplitKConfig& config) {
  return DivideUp(KTiles(problem), config.split_k) * kTileBytes * (kTileM + config.tile_n);
}

// Nanoseconds, but for what is the same in all configurations.
int64_t Cost(const Contraction& problem, const SplitKConfig& config, const DeviceFacts& device) {
  const TargetLimits& limits = LimitsNear(device);
  const int64_t clusters =
    config.split_k > 1 ? limits.split_k_cost_cluster + limits.split_k_cost_block * config.split_k : 0;
  const int64_t sums = config.tile_n > 64 ? limits.split_k_cost_wide_tile
    : config.tile_n > 32                  ? limits.split_k_cost_middle_tile
                                          : 0;
  const int64_t waves = DivideUp(Blocks(problem, config), device.multiprocessors);
  return waves * CopiedBytes(problem, config) / limits.split_k_bytes_of_nanosecond + clusters + sums;
}

// Pixels of a tile whose sums a block adds.
int64_t ReducedRows(const SplitKConfig& config) { return DivideUp(kTileM, config.split_k); }

// Copies and sums.
int64_t SharedBytes(const SplitKConfig& config) {
  const int64_t warpgroups = config.warps / 4;
  return warpgroups *
    (config.stages * (kTileM + config.tile_n) * kTileBytes +
      config.split_k * ReducedRows(config) * (config.tile_n + 8) * 4);
}

// Filters that a thread writes at once: few enough that all threads have some.
int64_t Vector(const Contraction& problem, const SplitKConfig& config) {
  const int64_t sums = ReducedRows(config) * config.tile_n, threads = config.warps * 32;
  return sums <= 2 * threads ? 2 : sums <= 4 * threads ? 4 : 16 / Size(problem);
}

}  // namespace

int64_t RoomForClusters(int blocks, const DeviceFacts& device) {
  return blocks <= 4 ? device.multiprocessors * 7 / 8 : device.multiprocessors * 5 / 6;
}

bool FitsSplitK(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem) || problem.groups != 1) return false;
  if (problem.dtype() == DType::kFloat && !problem.allow_tf32) return false;
  if (!device.has_wgmma() || !device.has_clusters() || problem.transposed) return false;
  if (problem.channels * Size(problem) % 16 != 0 || problem.filters % engine_limits::wgmma_vector != 0) return false;
  constexpr int64_t kMostReach = 1 << 29;  // a row of X that does not exist is this far above the first, twice
  if ((problem.rows().kernel - 1) * problem.rows().dilation >= kMostReach || problem.rows().pad_begin >= kMostReach)
    return false;
  return !problem.x_channels_first && !problem.y_channels_first;
}

bool IsSplitKFast(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  const TargetLimits& limits = target->limits;
  const SplitKConfig config = ConfigureSplitK(problem, device);
  if (Blocks(problem, config) > device.multiprocessors) return false;
  const bool is_product = problem.rows().out * problem.columns().out == 1;
  const bool are_few = problem.batch <= limits.split_k_few_rows;
  if (is_product && problem.dtype() != DType::kFloat &&
    (!are_few || problem.channels * Size(problem) <= limits.split_k_short_sum) && FitsGemm(program, problem, device) &&
    IsGemmFast(program, problem, device))
    return false;
  if (is_product && are_few) return problem.dtype() != DType::kFloat || limits.matmul_tf32_pays != 0;
  if (problem.dtype() == DType::kFloat) return false;
  const bool is_plain = problem.rows().kernel == 1 && problem.columns().kernel == 1 && problem.strides() == Shape{1, 1};
  const int64_t most = is_plain              ? limits.split_k_most_kib_1x1
    : KTiles(problem) >= limits.split_k_long ? limits.split_k_most_kib_long
                                             : limits.split_k_most_kib;
  return CopiedBytes(problem, config) <= (most << 10);
}

SplitKConfig ConfigureSplitK(const Contraction& problem, const DeviceFacts& device) {
  const int64_t most_split_k = LimitsNear(device).split_k_most_blocks;
  SplitKConfig best{};
  for (const int tile_n : {32, 64, 128}) {
    SplitKConfig config{tile_n, 1, 4, 2};
    const int64_t tiles = Tiles(problem, config);
    for (; config.split_k == 1 ||
      (config.split_k <= std::min(most_split_k, KTiles(problem)) &&
        tiles * config.split_k <= RoomForClusters(config.split_k, device));
      ++config.split_k)
      if (best.tile_n == 0 || Cost(problem, config, device) < Cost(problem, best, device)) best = config;
  }
  const int64_t k_tiles = DivideUp(KTiles(problem), best.split_k);
  const bool is_small = best.tile_n == 32 && best.split_k == 1;
  const int64_t warpgroups = std::min<int64_t>(is_small ? 4 : 2, KTiles(problem) / best.split_k);
  best.warps = int(4 * warpgroups);
  const int most_stages = is_small || best.tile_n == 128 ? 3 : 4;
  best.stages = int(std::min<int64_t>(most_stages, DivideUp(k_tiles, warpgroups) + 1));
  return best;
}

std::string SplitKSource(const Program& program, const Contraction& problem, const SplitKConfig& config) {
  return Joined(ConvPreamble(program, problem),
    Defines({{"TILE_N", config.tile_n}, {"SPLIT_K", config.split_k}, {"WARPS", config.warps}, {"STAGES", config.stages},
      {"VECTOR", Vector(problem, config)}}),
    "\n", WgmmaSource(problem.dtype(), config.tile_n), "\n", "#define CLUSTER SPLIT_K\n\n", kClusterSource, "\n",
    kSplitKSource);
}

cuda::LaunchShape SplitKLaunch(const Contraction& problem, const SplitKConfig& config) {
  return {Blocks(problem, config), config.warps * 32, SharedBytes(config)};
}

EngineKernel MakeSplitK(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const SplitKConfig config = ConfigureSplitK(problem, device);
  return {
    SplitKSource(program, problem, config), "split_k", SplitKLaunch(problem, config), ConvArguments(program, problem)};
}

}  // namespace ortplugin
