#include "ortplugin/ops/conv/engines/conv_1x1.h"

#include <algorithm>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/ops/conv/engines/gemm.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int kTileM = 64;  // pixels of a tile: the M of an MMA
constexpr int kLine = 64;  // channels, or filters, that are copied and written at once

int64_t SharedBytes(const Contraction& problem, const Conv1x1Config& config) {
  const int64_t weights = config.block_n * RoundUp(problem.channels, kLine);
  const int64_t stages = config.warps / 4 * config.stages;  // each with a tile's number
  return 2 * (weights + stages * kTileM * config.tile_k) + 4 * stages;
}

int64_t Tiles(const Contraction& problem) {
  return DivideUp(problem.batch * problem.rows().size * problem.columns().size, kTileM);
}

bool HasManyTiles(const Contraction& problem, const DeviceFacts& device) {
  return Tiles(problem) >= LimitsNear(device).conv_1x1_dynamic_tiles * device.multiprocessors;
}

// The pixels of Y that one of X becomes.
int64_t Patch(const Contraction& problem) {
  return problem.transposed ? problem.rows().stride * problem.columns().stride : 1;
}

int64_t Size(const Shape& shape, size_t axis) { return shape.size() + axis < 4 ? 1 : shape[shape.size() + axis - 4]; }
bool IsOfPixel(const Shape& shape) { return Size(shape, 1) > 1 || Size(shape, 2) > 1; }

// 32-bit registers for eight elements of each operand that differs between pixels.
int64_t OperandRegisters(const Program& program, const Contraction& problem) {
  int64_t bytes = 0;
  for (size_t i = 0; i < problem.operands.size(); ++i)
    if (IsOfPixel(problem.operands[i])) bytes += 8 * SizeOf(program.parameter(i + 1).dtype);
  return DivideUp(bytes, 4);
}

// Whether a program takes a kernel of its own behind cuDNN's.
bool IsApart(const Program& program) { return cudnn::HasErf(program) || !cudnn::RefusalOf(program).empty(); }

// Sets the most warps and stages that there are registers and shared memory for. False: there are too few.
bool Complete(const Program& program, const Contraction& problem, const DeviceFacts& device, int most_warps,
  int most_stages, Conv1x1Config* config) {
  constexpr int64_t kBesides = 45;  // registers of a thread for addresses and the like
  const int64_t operands = config->tile_n / 16 * OperandRegisters(program, problem);
  const int64_t sums = config->tile_n / 2 + kBesides;
  config->prefetches_operands = sums + operands <= cuda::kRegistersPerThread;
  const int64_t registers = sums + (config->prefetches_operands ? operands : 0);
  for (config->warps = most_warps; config->warps > 0; config->warps -= 4)
    for (config->stages = most_stages; config->stages > 1; --config->stages)
      if (registers * config->warps * 32 <= device.registers_per_multiprocessor &&
        SharedBytes(problem, *config) <= device.shared_per_block)
        return true;
  return false;
}

int MostWarps(
  const Program& program, const Contraction& problem, const Conv1x1Config& config, const DeviceFacts& device) {
  if (!config.dynamic_tiles) return 12;
  // Where results are most of what memory moves, eight are enough for it, and more make it slower.
  const int64_t bytes = 2 * Tiles(problem) * kTileM * (problem.channels + problem.filters);
  const bool writes_more = problem.filters > problem.channels && config.block_n >= problem.filters;
  if (Patch(problem) > 1 || (IsIdentity(program) && writes_more && bytes > 4 * device.l2_bytes)) return 8;
  // Few accumulators, or few channels, leave registers for more.
  return config.block_n == kLine || problem.channels < kLine ? 16 : 12;
}

std::optional<Conv1x1Config> Configure(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  // Found on an H200 among all that are possible, for 24 to 512 channels and filters: within 3% of the best on average.
  // With many tiles for each multiprocessor the weights are copied seldom, and many filters meet each copy of X; with
  // few the copies of the weights count, and that there is work for all.
  const bool many = HasManyTiles(problem, device);
  const int64_t channels = RoundUp(problem.channels, kLine), filters = RoundUp(problem.filters, kLine);
  const int64_t most_block_n = many ? 256 : 128, most_weights = (many ? 128 : 64) << 10;
  Conv1x1Config best{};
  best.dynamic_tiles = many;
  for (int64_t blocks_n = 1; best.block_n == 0 || best.block_n * channels * 2 > most_weights; ++blocks_n) {
    if (blocks_n > filters / kLine) break;
    if (filters % (blocks_n * kLine) == 0 && filters / blocks_n <= most_block_n) best.block_n = int(filters / blocks_n);
  }
  best.tile_n = std::min(best.block_n, many ? 128 : 64);
  while (best.block_n % best.tile_n != 0) best.tile_n -= kLine;
  const auto complete = [&](int64_t tile_k) {
    best.tile_k = int(tile_k);
    const int stages = !many ? 4 : (tile_k == kLine && channels > kLine) || Patch(problem) > 1 ? 3 : 2;
    return Complete(program, problem, device, MostWarps(program, problem, best, device), stages, &best);
  };
  // Several groups meet a chunk, so it is all channels.
  if (best.tile_n < best.block_n) {
    if (channels <= 128 && complete(channels)) return best;
    best.tile_n = best.block_n;
  }
  if ((many && channels % 128 == 0 && complete(128)) || complete(kLine)) return best;
  return std::nullopt;
}

}  // namespace

bool FitsConv1x1(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem) || problem.dtype() == DType::kFloat || problem.groups != 1) return false;
  if (!device.has_wgmma()) return false;
  if (problem.rows().kernel != 1 || problem.columns().kernel != 1 || problem.pads() != Shape(4)) return false;
  if (problem.channels % engine_limits::wgmma_vector != 0 || problem.filters % engine_limits::wgmma_vector != 0)
    return false;
  if (problem.x_channels_first || problem.y_channels_first) return false;
  if (!problem.transposed && problem.strides() != Shape{1, 1}) return false;
  if (problem.transposed &&
    (DivideUp(problem.rows().out, problem.rows().stride) != problem.rows().size ||
      DivideUp(problem.columns().out, problem.columns().stride) != problem.columns().size || Patch(problem) > 16))
    return false;
  return Configure(program, problem, device).has_value();
}

bool IsConv1x1Fast(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  const TargetLimits& limits = target->limits;
  const int64_t tiles = Tiles(problem), patch = Patch(problem);
  if (patch > 1 && OperandRegisters(program, problem) > 0) return false;  // pixels between have no MMA to wait for
  const bool has_many_tiles = tiles >= limits.conv_1x1_many_tiles * device.multiprocessors;
  if (patch > 1 && problem.channels > limits.conv_1x1_many_channels && !has_many_tiles) return false;
  if (problem.filters < limits.conv_1x1_least_filters && HasManyTiles(problem, device)) return false;
  // Each block of filters reads X. Where filters divide into many narrow ones alone gemm is faster: 10 us in place of
  // 17 for 25,088 rows of 96 channels and 288 filters.
  if (ConfigureConv1x1(program, problem, device).block_n == kLine && problem.filters > 3 * kLine &&
    FitsGemm(program, problem, device) && IsGemmFast(program, problem, device))
    return false;
  const int64_t multiply_adds = problem.channels * problem.filters,
                elements = problem.channels + patch * problem.filters;
  if (multiply_adds <= limits.conv_1x1_low_intensity * elements)
    return problem.channels <= (patch > 1 ? limits.conv_1x1_most_channels_transposed : limits.conv_1x1_most_channels);
  // Up to here passes/conv/turn_conv_transpose.py makes a transposed convolution a plain one for this engine.
  if (multiply_adds > limits.conv_1x1_most_intensity * elements) return false;
  if (problem.channels > limits.conv_1x1_most_channels_intense) return false;
  // With a higher arithmetic intensity cuDNN's kernels win, but where they leave the program to another kernel, or have
  // few tiles.
  return IsApart(program) || (tiles >= limits.conv_1x1_least_tiles && tiles <= device.multiprocessors);
}

Conv1x1Config ConfigureConv1x1(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  return *Configure(program, problem, device);
}

std::string Conv1x1Source(const Program& program, const Contraction& problem, const Conv1x1Config& config) {
  return Joined(ConvPreamble(program, problem),
    Defines({{"TRANSPOSED", problem.transposed}, {"UP_H", problem.transposed ? problem.rows().stride : 1},
      {"UP_W", problem.transposed ? problem.columns().stride : 1}, {"TILE_K", config.tile_k}, {"TILE_N", config.tile_n},
      {"BLOCK_N", config.block_n}, {"BLOCKS_N", DivideUp(problem.filters, config.block_n)}, {"STAGES", config.stages},
      {"WARPS", config.warps}, {"DYNAMIC_TILES", config.dynamic_tiles},
      {"PREFETCH_OPERANDS", config.prefetches_operands}}),
    "\n", WgmmaSource(problem.dtype(), config.tile_n), "\n", kConv1x1Source);
}

cuda::LaunchShape Conv1x1Launch(const Contraction& problem, const Conv1x1Config& config, const DeviceFacts& device) {
  const int64_t blocks_n = DivideUp(problem.filters, config.block_n);
  const int64_t most = std::max<int64_t>(1, device.multiprocessors / blocks_n);
  return {std::min(Tiles(problem), most) * blocks_n, config.warps * 32, SharedBytes(problem, config)};
}

EngineKernel MakeConv1x1(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const Conv1x1Config config = ConfigureConv1x1(program, problem, device);
  return {Conv1x1Source(program, problem, config), "conv_1x1", Conv1x1Launch(problem, config, device),
    ConvArguments(program, problem)};
}

}  // namespace ortplugin
