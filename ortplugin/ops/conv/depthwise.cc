#include "ortplugin/ops/conv/depthwise.h"

#include <algorithm>
#include <cstdint>
#include <sstream>

#include "ortplugin/runtime/kernel_sources.h"

namespace ortplugin {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t Tiles(const ConvProblem& problem, const DepthwiseSchedule& schedule) {
  return problem.batch * DivideUp(problem.out_height, schedule.tile_h) * DivideUp(problem.out_width, schedule.tile_w);
}

int64_t Slices(const ConvProblem& problem, const DepthwiseSchedule& schedule) {
  return DivideUp(problem.channels, int64_t{schedule.lanes} * schedule.vector);
}

}  // namespace

bool FitsDepthwise(const Program& program, const ConvProblem& problem) {
  const int64_t kernel = problem.kernel_height;
  if (!IsOrdinary(program, problem) || problem.x_channels_first) return false;
  if (problem.group != problem.channels || problem.filters != problem.channels || problem.channels % 2 != 0)
    return false;
  if ((kernel != 3 && kernel != 5 && kernel != 7) || problem.kernel_width != kernel) return false;
  if (problem.dilations != std::array<int64_t, 2>{1, 1}) return false;
  return problem.strides[0] == problem.strides[1] && problem.strides[0] <= 2;
}

// The rule is what was fastest on an H200 for the layers of MobileNet-v3, EfficientNet-B0 and ConvNeXt. Two channels a
// thread: wider vectors leave too few threads, and too few registers for many pixels, which is what saves loads,
// conversions and addresses.
DepthwiseSchedule ScheduleDepthwise(const Program& program, const ConvProblem& problem,
                                    const cuda::DeviceFacts& device) {
  (void)program;
  const bool is_float = problem.dtype == DType::kFloat;
  const int kernel = static_cast<int>(problem.kernel_height), stride = static_cast<int>(problem.strides[0]);
  DepthwiseSchedule best{};
  best.vector = 2;
  // The largest tile that leaves so many threads for each multiprocessor.
  struct Choice {
    int tile_h, tile_w;
    int64_t threads;
    bool fits;
  };
  const bool sevens = problem.out_width % 7 == 0, one_seven = problem.out_width == 7;
  const Choice of_three[] = {{4, 4, 485, stride == 1}, {1, 7, 150, one_seven},  {2, 4, 300, true},
                             {2, 2, 83, true},         {1, 2, 68, stride == 1}, {2, 1, 68, true}};
  const Choice of_five[] = {{4, 4, 340, is_float && stride == 1},
                            {2, 7, 230, sevens},
                            {2, 8, 230, !sevens},
                            {1, 7, 110, sevens},
                            {2, 4, 150, true},
                            {2, 2, 120, true},
                            {2, 1, 83, true}};
  const Choice of_seven[] = {{4, 7, 300, is_float && sevens},
                             {2, 7, 120, sevens},
                             {2, 8, 160, !sevens},
                             {1, 7, 110, sevens},
                             {2, 4, 120, true},
                             {2, 2, 120, true},
                             {2, 1, 83, true}};
  best.tile_h = best.tile_w = 1;
  const auto choose = [&](const auto& choices) {
    for (const Choice& choice : choices) {
      DepthwiseSchedule option = best;
      option.tile_h = choice.tile_h;
      option.tile_w = choice.tile_w;
      if (!choice.fits || choice.tile_h > problem.out_height || choice.tile_w > problem.out_width) continue;
      if (Tiles(problem, option) * (problem.channels / best.vector) < choice.threads * device.multiprocessors) continue;
      best = option;
      return;
    }
  };
  kernel == 3 ? choose(of_three) : kernel == 5 ? choose(of_five) : choose(of_seven);
  const int pixels = best.tile_h * best.tile_w;
  const int64_t threads = Tiles(problem, best) * (problem.channels / best.vector);
  const bool is_large = threads >= int64_t{300} * device.multiprocessors;
  const int rows = (best.tile_h - 1) * stride + kernel;
  best.ahead = pixels >= 14 || (kernel == 3 && is_large) ? (is_large && kernel != 5 ? 1 : 2) : kernel == 7 ? 2 : rows;
  if (kernel == 5 && stride == 2 && pixels >= 7) best.ahead = pixels >= 14 ? 1 : 2;
  best.wide_weights = !is_float && kernel >= 5 && pixels >= 7;
  int64_t block = pixels >= 14 || (kernel == 3 && is_large) ? 64 : 128;
  int most_lanes = kernel == 7 ? 8 : 16;
  // A large image of which a quarter is used at a time: what counts is how memory is read.
  const int64_t bytes = problem.batch * problem.height * problem.width * problem.channels * (is_float ? 4 : 2);
  if (kernel == 3 && stride == 2 && bytes > int64_t{8} << 20 && problem.channels % 8 == 0) {
    best = {is_float ? 4 : 8, 2, 2, 0, 0, 1, false};
    block = 64;
  }

  // Threads along the channels: as few idle ones as possible, then as many side by side as possible.
  const int64_t vectors = problem.channels / best.vector;
  int64_t least = INT64_MAX;
  for (int lanes = static_cast<int>(std::min<int64_t>(most_lanes, vectors)); lanes * 2 > most_lanes || lanes == vectors;
       --lanes) {
    const int64_t covered = DivideUp(vectors, lanes) * lanes;
    if (covered >= least) continue;
    least = covered;
    best.lanes = lanes;
  }
  best.tiles = static_cast<int>(std::max<int64_t>(1, block / best.lanes));
  return best;
}

std::string DepthwiseSource(const Program& program, const ConvProblem& problem, const DepthwiseSchedule& schedule) {
  std::ostringstream text;
  text << ConvEpilogueSource(program, problem) << "#define CHANNELS " << problem.channels << "\n"
       << "#define IMAGE_H " << problem.height << "\n"
       << "#define IMAGE_W " << problem.width << "\n"
       << "#define OUT_H " << problem.out_height << "\n"
       << "#define OUT_W " << problem.out_width << "\n"
       << "#define KERNEL_H " << problem.kernel_height << "\n"
       << "#define KERNEL_W " << problem.kernel_width << "\n"
       << "#define STRIDE_H " << problem.strides[0] << "\n"
       << "#define STRIDE_W " << problem.strides[1] << "\n"
       << "#define PAD_TOP " << problem.pads[0] << "\n"
       << "#define PAD_LEFT " << problem.pads[1] << "\n"
       << "#define VECTOR " << schedule.vector << "\n"
       << "#define TILE_H " << schedule.tile_h << "\n"
       << "#define TILE_W " << schedule.tile_w << "\n"
       << "#define LANES " << schedule.lanes << "\n"
       << "#define TILES " << schedule.tiles << "\n"
       << "#define AHEAD " << schedule.ahead << "\n"
       << "#define WIDE_WEIGHTS " << schedule.wide_weights << "\n\n"
       << kDepthwiseSource;
  return text.str();
}

cuda::LaunchShape DepthwiseLaunch(const ConvProblem& problem, const DepthwiseSchedule& schedule) {
  return {static_cast<unsigned>(DivideUp(Tiles(problem, schedule), schedule.tiles) * Slices(problem, schedule)),
          static_cast<unsigned>(schedule.lanes * schedule.tiles)};
}

}  // namespace ortplugin
