#include "ortplugin/ops/conv/engines/depthwise.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

int64_t Tiles(const Contraction& problem, const DepthwiseConfig& config) {
  return problem.batch * DivideUp(problem.rows().out, config.tile_h) * DivideUp(problem.columns().out, config.tile_w);
}

int64_t Slices(const Contraction& problem, const DepthwiseConfig& config) {
  return DivideUp(problem.channels, int64_t{config.lanes} * config.vector);
}

}  // namespace

bool FitsDepthwise(const Program& program, const Contraction& problem, const cuda::DeviceFacts&) {
  const int64_t kernel = problem.rows().kernel;
  if (!FitsEngines(program, problem) || problem.x_channels_first || problem.transposed) return false;
  if (problem.groups != problem.channels || problem.filters != problem.channels || problem.channels % 2 != 0)
    return false;
  if (kernel < engine_limits::depthwise_least_filter || kernel > engine_limits::depthwise_most_filter) return false;
  if (kernel % 2 == 0 || problem.columns().kernel != kernel) return false;
  if (problem.dilations() != Shape{1, 1}) return false;
  return problem.rows().stride == problem.columns().stride && problem.rows().stride <= 2;
}

// The rule is what was fastest on an H200 for the layers of MobileNet-v3, EfficientNet-B0 and ConvNeXt. Two channels a
// thread: wider vectors leave too few threads, and too few registers for many pixels, which is what saves loads,
// conversions and addresses.
DepthwiseConfig ConfigureDepthwise(const Program& program, const Contraction& problem,
                                   const cuda::DeviceFacts& device) {
  (void)program;
  const bool is_float = problem.dtype() == DType::kFloat, is_strided = problem.rows().stride == 2;
  const int kernel = static_cast<int>(problem.rows().kernel);
  // The first tile that leaves so many threads for each multiprocessor.
  struct Choice {
    int tile_h, tile_w;
    int64_t threads;
    bool fits;
  };
  const bool sevens = problem.columns().out % 7 == 0, is_seven = problem.columns().out == 7;
  const std::vector<Choice> of_three = {{2, 8, 300, is_strided && !is_float},
                                        {1, 7, 300, is_strided && is_float && sevens},
                                        {4, 7, 480, !is_strided && sevens},
                                        {4, 4, 400, !is_strided},
                                        {1, 7, 150, is_seven},
                                        {2, 4, 300, true},
                                        {2, 2, 83, true},
                                        {1, 2, 68, !is_strided},
                                        {2, 1, 68, true}};
  const std::vector<Choice> of_five = {{4, 4, 340, !is_strided}, {2, 7, 230, sevens}, {2, 8, 230, !sevens},
                                       {1, 7, 110, sevens},      {2, 4, 150, true},   {2, 2, 120, true},
                                       {2, 1, 83, true}};
  const std::vector<Choice> of_seven = {{4, 7, 300, sevens}, {2, 7, 120, sevens}, {2, 8, 160, !sevens},
                                        {1, 7, 110, sevens}, {2, 4, 120, true},   {2, 2, 120, true},
                                        {2, 1, 83, true}};
  DepthwiseConfig best{};
  best.vector = 2;
  best.tile_h = best.tile_w = 1;
  const int64_t vectors = problem.channels / best.vector;
  for (const Choice& choice : kernel == 3 ? of_three : kernel == 5 ? of_five : of_seven) {
    if (!choice.fits || choice.tile_h > problem.rows().out || choice.tile_w > problem.columns().out) continue;
    DepthwiseConfig option = best;
    option.tile_h = choice.tile_h;
    option.tile_w = choice.tile_w;
    if (Tiles(problem, option) * vectors < choice.threads * device.multiprocessors) continue;
    // A tile that hangs over the edges wastes work.
    const int64_t covered = DivideUp(problem.rows().out, choice.tile_h) * choice.tile_h *
                            DivideUp(problem.columns().out, choice.tile_w) * choice.tile_w;
    if (choice.tile_h * choice.tile_w >= 7 && covered * 5 > problem.rows().out * problem.columns().out * 6) continue;
    best = option;
    break;
  }
  const int pixels = best.tile_h * best.tile_w;
  const bool is_large = pixels >= 7;
  // Rows ahead hide the latency of memory; where there are threads enough for that, registers are worth more.
  if (pixels < 7) {
    best.ahead = kernel == 7 ? 2 : (best.tile_h - 1) * static_cast<int>(problem.rows().stride) + kernel;
  } else if (best.tile_h == 1) {
    best.ahead = kernel == 7 || is_strided ? (kernel == 3 ? 3 : 2) : kernel;
  } else {
    const bool is_crowded =
        Tiles(problem, best) * vectors >= LimitsNear(device).depthwise_crowded * device.multiprocessors;
    best.ahead = (is_strided && pixels >= 14) || (kernel == 7 && is_crowded) || (kernel == 3 && pixels == 8) ? 1 : 2;
  }
  best.float_weights = !is_float && kernel >= 5 && is_large;

  // Threads along the channels: together they read whole sectors of memory, and as few as possible are idle.
  const int64_t most_lanes = kernel == 7 && best.tile_h < 4 ? 8 : 16;
  best.lanes = static_cast<int>(std::min(most_lanes, vectors));
  if (RoundUp(vectors, 8) < RoundUp(vectors, best.lanes)) best.lanes = 8;
  best.tiles = !is_large ? std::max(1, 128 / best.lanes) : kernel == 7 && best.lanes > 8 ? 4 : 8;
  return best;
}

std::string DepthwiseSource(const Program& program, const Contraction& problem, const DepthwiseConfig& config) {
  std::ostringstream text;
  text << ConvPreamble(program, problem) << "#define VECTOR " << config.vector << "\n"
       << "#define TILE_H " << config.tile_h << "\n"
       << "#define TILE_W " << config.tile_w << "\n"
       << "#define LANES " << config.lanes << "\n"
       << "#define TILES " << config.tiles << "\n"
       << "#define AHEAD " << config.ahead << "\n"
       << "#define FLOAT_WEIGHTS " << config.float_weights << "\n\n"
       << kDepthwiseSource;
  return text.str();
}

cuda::LaunchShape DepthwiseLaunch(const Contraction& problem, const DepthwiseConfig& config) {
  return {static_cast<unsigned>(DivideUp(Tiles(problem, config), config.tiles) * Slices(problem, config)),
          static_cast<unsigned>(config.lanes * config.tiles), 0, cuda::NextStarts::kAtTrigger};
}

EngineKernel MakeDepthwise(const Program& program, const Contraction& problem, const cuda::DeviceFacts& device) {
  const DepthwiseConfig config = ConfigureDepthwise(program, problem, device);
  return {DepthwiseSource(program, problem, config), "depthwise", DepthwiseLaunch(problem, config),
          ConvArguments(program, problem)};
}

}  // namespace ortplugin
