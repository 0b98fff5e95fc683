#include "ortplugin/ops/conv/engines/depthwise.h"

#include <algorithm>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

int64_t Tiles(const Contraction& problem, const DepthwiseConfig& config) {
  return problem.batch * DivideUp(problem.rows().out, config.tile_h) * DivideUp(problem.columns().out, config.tile_w);
}

int64_t Slices(const Contraction& problem, const DepthwiseConfig& config) {
  return DivideUp(problem.filters, int64_t{config.lanes} * config.vector);
}

// Whether layers like this one were measured: square filters of 3, 5 or 7, one for each of an even number of channels.
bool IsMeasured(const Contraction& problem) {
  const Window &rows = problem.rows(), &columns = problem.columns();
  const int64_t kernel = rows.kernel;
  return problem.filters == problem.channels && problem.channels % 2 == 0 && columns.kernel == kernel &&
    (kernel == 3 || kernel == 5 || kernel == 7) && problem.dilations() == Shape{1, 1} &&
    rows.stride == columns.stride && rows.stride <= 2;
}

// A tile that is taken where it leaves so many threads for each multiprocessor.
struct Choice {
  int tile_h, tile_w;
  int64_t threads;
  bool fits;
};

// `config` with the first tile that is taken, or of one pixel.
DepthwiseConfig WithTile(
  const Contraction& problem, const DeviceFacts& device, DepthwiseConfig config, const std::vector<Choice>& choices) {
  const int64_t height = problem.rows().out, width = problem.columns().out;
  for (const Choice& choice : choices) {
    config.tile_h = choice.tile_h;
    config.tile_w = choice.tile_w;
    if (!choice.fits || choice.tile_h > height || choice.tile_w > width) continue;
    if (Tiles(problem, config) * (problem.filters / config.vector) < choice.threads * device.multiprocessors) continue;
    // A tile that hangs over the edges wastes work.
    const int64_t covered =
      DivideUp(height, choice.tile_h) * choice.tile_h * DivideUp(width, choice.tile_w) * choice.tile_w;
    if (choice.tile_h * choice.tile_w < 7 || covered * 5 <= height * width * 6) return config;
  }
  config.tile_h = config.tile_w = 1;
  return config;
}

// Threads along the channels: together they read whole sectors of memory, and as few as possible are idle.
int LanesOf(int64_t vectors, int64_t most) {
  const int64_t lanes = std::min(most, vectors);
  return int(RoundUp(vectors, 8) < RoundUp(vectors, lanes) ? 8 : lanes);
}

// Filters that no network was measured for at length: bands (1x11), large ones, dilated ones, several for a channel.
DepthwiseConfig ConfigureAnyFilter(const Contraction& problem, const DeviceFacts& device) {
  const Window &rows = problem.rows(), &columns = problem.columns();
  const int64_t multiplier = problem.filters / problem.channels;
  DepthwiseConfig best{};
  best.vector = problem.filters % 2 == 0 && (multiplier == 1 || multiplier % 2 == 0) ? 2 : 1;
  // Registers of a row: a pixel's channels are one or, in fp32, two.
  const int64_t most_columns = problem.dtype() == DType::kFloat ? 12 : 20;
  std::vector<Choice> choices;
  const bool is_tall = rows.kernel > 2 * columns.kernel;
  const std::vector<std::pair<int, int>> wide = {{2, 8}, {2, 7}, {2, 4}, {1, 8}, {1, 7}, {1, 4}, {1, 2}};
  const std::vector<std::pair<int, int>> tall = {{8, 2}, {7, 2}, {4, 2}, {4, 1}, {2, 1}};
  for (const auto& [h, w] : is_tall ? tall : wide) {
    // With a dilation or a stride beyond the filter neighbouring pixels of the result share nothing.
    const bool has_rows = h == 1 || (rows.dilation == 1 && rows.stride <= std::min<int64_t>(2, rows.kernel));
    const bool has_columns = w == 1 || (columns.dilation == 1 && columns.stride <= 2);
    const bool is_small = w == 1 || (w - 1) * columns.stride + columns.kernel <= most_columns;
    const bool is_short = h * w * rows.kernel * columns.kernel <= 1024;  // the loops are unrolled
    choices.push_back({h, w, h * w >= 7 ? 200 : 120, has_rows && has_columns && is_small && is_short});
  }
  best = WithTile(problem, device, best, choices);
  const int64_t tile_rows = (best.tile_h - 1) * rows.stride + rows.kernel;
  const int64_t tile_columns = (best.tile_w - 1) * columns.stride + columns.kernel;
  best.ahead = int(std::clamp<int64_t>(most_columns / tile_columns, 1, std::min<int64_t>(tile_rows, 4)));
  best.lanes = LanesOf(problem.filters / best.vector, 16);
  best.tiles = std::max(1, 128 / best.lanes);
  return best;
}

}  // namespace

bool FitsDepthwise(const Program& program, const Contraction& problem, const DeviceFacts&) {
  if (!FitsEngines(program, problem) || problem.x_channels_first || problem.transposed) return false;
  if (problem.groups != problem.channels || problem.filters % problem.channels != 0) return false;
  int64_t reached = problem.channels;  // elements from one end of an image and its surroundings to the other, an int
  for (const Window& window : problem.windows) {
    const int64_t around = std::max({window.extent(), window.stride, window.pad_begin});
    if (window.kernel > engine_limits::depthwise_most_filter || around >= 1 << 24) return false;
    reached *= window.size + 2 * around;
    if (reached >= int64_t{1} << 31) return false;
  }
  return problem.rows().kernel * problem.columns().kernel <= engine_limits::depthwise_most_taps;
}

// The rule is what was fastest on an H200 for the layers of MobileNet-v3, EfficientNet-B0 and ConvNeXt. Two channels a
// thread: wider vectors leave too few threads, and too few registers for many pixels, which is what saves loads,
// conversions and addresses.
DepthwiseConfig ConfigureDepthwise(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  (void)program;
  if (!IsMeasured(problem)) return ConfigureAnyFilter(problem, device);
  const bool is_float = problem.dtype() == DType::kFloat, is_strided = problem.rows().stride == 2;
  const int kernel = int(problem.rows().kernel);
  const bool sevens = problem.columns().out % 7 == 0, is_seven = problem.columns().out == 7;
  const std::vector<Choice> of_three = {{2, 8, 300, is_strided && !is_float},
    {1, 7, 300, is_strided && is_float && sevens}, {4, 7, 480, !is_strided && sevens}, {4, 4, 400, !is_strided},
    {1, 7, 150, is_seven}, {2, 4, 300, true}, {2, 2, 83, true}, {1, 2, 68, !is_strided}, {2, 1, 68, true}};
  const std::vector<Choice> of_five = {{4, 4, 340, !is_strided}, {2, 7, 230, sevens}, {2, 8, 230, !sevens},
    {1, 7, 110, sevens}, {2, 4, 150, true}, {2, 2, 120, true}, {2, 1, 83, true}};
  const std::vector<Choice> of_seven = {{4, 7, 300, sevens}, {2, 7, 120, sevens}, {2, 8, 160, !sevens},
    {1, 7, 110, sevens}, {2, 4, 120, true}, {2, 2, 120, true}, {2, 1, 83, true}};
  DepthwiseConfig best{};
  best.vector = 2;
  best = WithTile(problem, device, best, kernel == 3 ? of_three : kernel == 5 ? of_five : of_seven);
  const int64_t vectors = problem.channels / best.vector;
  const int pixels = best.tile_h * best.tile_w;
  const bool is_large = pixels >= 7;
  // Rows ahead hide the latency of memory; where there are threads enough for that, registers are worth more.
  if (pixels < 7) {
    best.ahead = kernel == 7 ? 2 : (best.tile_h - 1) * int(problem.rows().stride) + kernel;
  } else if (best.tile_h == 1) {
    best.ahead = kernel == 7 || is_strided ? (kernel == 3 ? 3 : 2) : kernel;
  } else {
    const bool is_crowded =
      Tiles(problem, best) * vectors >= LimitsNear(device).depthwise_crowded * device.multiprocessors;
    best.ahead = (is_strided && pixels >= 14) || (kernel == 7 && is_crowded) || (kernel == 3 && pixels == 8) ? 1 : 2;
  }
  best.float_weights = !is_float && kernel >= 5 && is_large;

  best.lanes = LanesOf(vectors, kernel == 7 && best.tile_h < 4 ? 8 : 16);
  best.tiles = !is_large ? std::max(1, 128 / best.lanes) : kernel == 7 && best.lanes > 8 ? 4 : 8;
  return best;
}

std::string DepthwiseSource(const Program& program, const Contraction& problem, const DepthwiseConfig& config) {
  return Joined(ConvPreamble(program, problem),
    Defines({{"VECTOR", config.vector}, {"TILE_H", config.tile_h}, {"TILE_W", config.tile_w}, {"LANES", config.lanes},
      {"TILES", config.tiles}, {"AHEAD", config.ahead}, {"FLOAT_WEIGHTS", config.float_weights}}),
    "\n", kDepthwiseSource);
}

cuda::LaunchShape DepthwiseLaunch(const Contraction& problem, const DepthwiseConfig& config) {
  return {DivideUp(Tiles(problem, config), config.tiles) * Slices(problem, config), config.lanes * config.tiles, 0,
    cuda::NextStarts::kAtTrigger};
}

EngineKernel MakeDepthwise(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const DepthwiseConfig config = ConfigureDepthwise(program, problem, device);
  return {DepthwiseSource(program, problem, config), "depthwise", DepthwiseLaunch(problem, config),
    ConvArguments(program, problem, config.tile_h, config.tile_w)};
}

}  // namespace ortplugin
