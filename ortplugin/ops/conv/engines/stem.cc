#include "ortplugin/ops/conv/engines/stem.h"

#include <algorithm>
#include <numeric>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

int64_t Step(const Contraction& problem) {
  return problem.columns().stride * (problem.x_channels_first ? 1 : problem.channels);
}
bool IsPaired(const Contraction& problem) { return Step(problem) % 2 != 0; }
int64_t Together(const Contraction& problem) { return 1 + IsPaired(problem); }
// Of the result, counted by these.
int64_t Columns(const Contraction& problem) { return DivideUp(problem.columns().out, Together(problem)); }

// The sizes that stem.cu works out from its macros.
struct Sizes {
  int64_t copy, step, k_steps, line_pitch, image_lines;
};

Sizes SizesOf(const Contraction& problem, int64_t tile_h, int64_t tile_w) {
  Sizes sizes{};
  const int64_t pixel = problem.x_channels_first ? 1 : problem.channels;
  sizes.copy = std::gcd(problem.columns().size * pixel, int64_t{8});
  sizes.step = Step(problem) * Together(problem);
  const int64_t lead = (sizes.copy - problem.columns().pad_begin * pixel % sizes.copy) % sizes.copy;
  const int64_t run = problem.columns().kernel * pixel + IsPaired(problem) * Step(problem);
  const int64_t pairs = DivideUp(lead % 2 + run, 2);
  const int64_t planes = problem.x_channels_first ? problem.channels : 1;
  const int64_t slots = DivideUp(pairs, 4), lines = planes * problem.rows().kernel;
  const int64_t packed = DivideUp(lines * pairs, 8), apart = DivideUp(lines * slots, 2);
  sizes.k_steps = packed * 5 <= apart * 4 ? packed : apart;
  sizes.image_lines = planes * ((tile_h - 1) * problem.rows().stride + problem.rows().kernel);
  sizes.line_pitch = RoundUp(lead - lead % 2 + (tile_w - 1) * sizes.step + slots * 8, 8);
  return sizes;
}

int64_t SharedBytes(const Contraction& problem, const StemConfig& config) {
  const Sizes sizes = SizesOf(problem, config.tile_h, config.tile_w);
  const int64_t image = sizes.image_lines * sizes.line_pitch * 2;
  const int64_t weights = Together(problem) * problem.filters * sizes.k_steps * 32;
  return image + std::max(weights, config.buffers == 2 ? image : 0);
}

constexpr int64_t kMostWeights = 96;  // registers of a thread
constexpr int64_t kMostFilters = 128;  // all weights are in shared memory

int64_t FiltersOfWarp(const Contraction& problem) {
  const int64_t k_steps = SizesOf(problem, 1, 8).k_steps;
  return problem.filters % 32 == 0 && k_steps * 8 <= kMostWeights ? 32 : 16;
}

int64_t Tiles(const Contraction& problem, const StemConfig& config) {
  return problem.batch * DivideUp(problem.rows().out, config.tile_h) * DivideUp(Columns(problem), config.tile_w);
}

}  // namespace

bool FitsStem(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem) || problem.dtype() == DType::kFloat || problem.transposed) return false;
  if (!device.has_mma_m16n8k16()) return false;
  if (problem.channels > 4 || problem.groups != 1 || problem.filters % 16 != 0 ||
    Together(problem) * problem.filters > kMostFilters)
    return false;
  if (problem.dilations() != Shape{1, 1}) return false;
  const Sizes sizes = SizesOf(problem, 1, 8);
  if (sizes.copy < 2) return false;
  return sizes.k_steps * FiltersOfWarp(problem) / 4 <= kMostWeights &&
    SharedBytes(problem, {0, 0, 1, 8, 1, 1, 1}) <= cuda::kStaticSharedBytes;
}

bool IsStemFast(const Program&, const Contraction& problem, const DeviceFacts& device) {
  // An image that is NCHW a library needs transposed first: one more kernel, which writes the image and reads it again.
  // Pairs were measured of such an image alone.
  return problem.x_channels_first || (FindTarget(device) != nullptr && !IsPaired(problem));
}

StemConfig ConfigureStem(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  (void)program;
  StemConfig best{};
  best.filters = int(FiltersOfWarp(problem));
  const int groups = int(Together(problem) * problem.filters) / best.filters;
  // Of a large kernel a block takes two rows, which its warps share evenly, and copies the next part of the image while
  // one works; of a small one several rows, as far as every multiprocessor has a block. Measured on an H200.
  const bool is_small = SizesOf(problem, 1, 8).k_steps <= 5;
  best.buffers = is_small ? 1 : 2;
  best.tile_h = is_small ? 4 : 2;
  best.parts = is_small && groups == 1 ? 2 : 1;
  best.warps = groups *
    (is_small ? std::max(1,
                  (groups == 1      ? 4
                      : groups == 2 ? 8
                                    : 12) /
                    groups)
              : std::max(1, 4 / groups));
  best.min_blocks = is_small ? (best.warps > 8 ? 1 : best.warps > 4 ? 2 : 4) : 3;
  const int most_width = is_small && groups != 2 ? 64 : 128;
  const auto set_width = [&] {
    for (int64_t pieces = 1;; ++pieces) {
      best.tile_w = int(RoundUp(DivideUp(Columns(problem), pieces), 8));
      if (best.tile_w == 8) break;
      const bool is_spread =
        !is_small || best.tile_w <= 16 || Tiles(problem, best) * 5 >= int64_t{4} * device.multiprocessors;
      if (best.tile_w <= most_width && is_spread && SharedBytes(problem, best) <= cuda::kStaticSharedBytes) break;
    }
  };
  set_width();
  // Beside very many weights there is room for a row alone.
  if (!is_small &&
    (SharedBytes(problem, best) > cuda::kStaticSharedBytes || (best.tile_w < 32 && Columns(problem) >= 32))) {
    best.tile_h = best.buffers = 1;
    set_width();
  }
  // A multiprocessor that has a single block needs more warps in it.
  if (!is_small && Tiles(problem, best) <= device.multiprocessors) {
    best.warps = groups * std::max(1, 8 / groups);
    best.min_blocks = 1;
  }
  // With much to do and several groups, copying ahead pays for a small one, too.
  if (is_small && groups > 2 &&
    Tiles(problem, best) >= LimitsNear(device).stem_copy_ahead_tiles * device.multiprocessors) {
    StemConfig steady = best;
    steady.warps = groups;
    steady.tile_h = 1;
    steady.parts = steady.buffers = 2;
    steady.min_blocks = 4;
    if (SharedBytes(problem, steady) <= cuda::kStaticSharedBytes) best = steady;
  }
  const int64_t resident = device.ResidentBlocks(best.warps * 32, 0, SharedBytes(problem, best));
  best.min_blocks = int(std::clamp<int64_t>(resident, 1, best.min_blocks));
  return best;
}

std::string StemSource(const Program& program, const Contraction& problem, const StemConfig& config) {
  return Joined(ConvPreamble(program, problem),
    Defines({{"CHANNELS_FIRST", problem.x_channels_first}, {"PAIRED", IsPaired(problem)},
      {"COPY", SizesOf(problem, 1, 8).copy}}),
    "#define MMA_TYPE ", (problem.dtype() == DType::kFloat16 ? "\"f16\"" : "\"bf16\""), "\n",
    Defines({{"WARP_FILTERS", config.filters}, {"WARPS", config.warps}, {"TILE_H", config.tile_h},
      {"TILE_W", Together(problem) * config.tile_w}, {"BUFFERS", config.buffers}, {"PARTS", config.parts},
      {"MIN_BLOCKS", config.min_blocks}}),
    "\n", kMmaSource, kStemSource);
}

cuda::LaunchShape StemLaunch(const Contraction& problem, const StemConfig& config, const DeviceFacts& device) {
  const int64_t most = int64_t{config.min_blocks} * device.multiprocessors;
  return {std::min(Tiles(problem, config), most), config.warps * 32, 0, cuda::NextStarts::kAtTrigger};
}

EngineKernel MakeStem(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const StemConfig config = ConfigureStem(program, problem, device);
  return {StemSource(program, problem, config), "stem", StemLaunch(problem, config, device),
    ConvArguments(program, problem, config.tile_h, Together(problem) * config.tile_w)};
}

}  // namespace ortplugin
