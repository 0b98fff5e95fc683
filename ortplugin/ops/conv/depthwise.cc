#include "ortplugin/ops/conv/depthwise.h"

#include <algorithm>
#include <numeric>
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
  if (problem.group != problem.channels || problem.filters != problem.channels || problem.channels % 4 != 0)
    return false;
  if ((kernel != 3 && kernel != 5 && kernel != 7) || problem.kernel_width != kernel) return false;
  if (problem.dilations != std::array<int64_t, 2>{1, 1}) return false;
  return problem.strides[0] == problem.strides[1] && problem.strides[0] <= 2;
}

DepthwiseSchedule ScheduleDepthwise(const Program& program, const ConvProblem& problem,
                                    const cuda::DeviceFacts& device) {
  (void)program;
  const bool is_float = problem.dtype == DType::kFloat;
  const int64_t pixels = problem.batch * problem.out_height * problem.out_width;
  DepthwiseSchedule best{};
  best.vector = is_float || problem.channels % 8 != 0 ? 4 : 8;
  best.tile_h = 1;
  best.tile_w = problem.kernel_height == 7 ? 7 : 4;
  // A small problem is spread over the whole GPU.
  const auto threads = [&] { return pixels * problem.channels / (best.vector * best.tile_h * best.tile_w); };
  while (best.tile_w > 1 && threads() < int64_t{256} * device.multiprocessors)
    best.tile_w = best.tile_w == 7 ? 4 : best.tile_w / 2;
  best.rolled = problem.kernel_height == 7;
  best.ahead =
      best.rolled || threads() > int64_t{512} * device.multiprocessors ? 1 : static_cast<int>(problem.kernel_height);
  best.wide_weights = false;
  const int64_t vectors = problem.channels / best.vector;
  const int64_t slices = DivideUp(vectors, 16);
  best.lanes = static_cast<int>(DivideUp(vectors, slices));
  best.tiles = static_cast<int>(std::max<int64_t>(1, 128 / best.lanes));
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
       << "#define ROLLED " << schedule.rolled << "\n"
       << "#define WIDE_WEIGHTS " << schedule.wide_weights << "\n\n"
       << kDepthwiseSource;
  return text.str();
}

cuda::LaunchShape DepthwiseLaunch(const ConvProblem& problem, const DepthwiseSchedule& schedule) {
  return {static_cast<unsigned>(DivideUp(Tiles(problem, schedule), schedule.tiles) * Slices(problem, schedule)),
          static_cast<unsigned>(schedule.lanes * schedule.tiles)};
}

}  // namespace ortplugin
