#include "ortplugin/ops/conv/engines/few_pixels.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kRows = 64;   // pixels of a tile
constexpr int64_t kChunk = 64;  // channels of a tap that are copied at once

int64_t Chunks(const ConvProblem& problem) {
  return problem.kernel_height * problem.kernel_width * DivideUp(problem.channels, kChunk);
}

int64_t Tiles(const ConvProblem& problem, const FewPixelsSchedule& schedule) {
  const int64_t pixels = problem.batch * problem.out_height * problem.out_width;
  return DivideUp(pixels, kRows) * DivideUp(problem.filters, schedule.columns);
}

int64_t Blocks(const ConvProblem& problem, const FewPixelsSchedule& schedule) {
  return Tiles(problem, schedule) * schedule.split;
}

int64_t CopiedBytes(const ConvProblem& problem, const FewPixelsSchedule& schedule) {
  return DivideUp(Chunks(problem), schedule.split) * kChunk * (kRows + schedule.columns) * 2;
}

// What takes time, in nanoseconds, but for what is the same in all schedules: measured on an H200.
int64_t Cost(const ConvProblem& problem, const FewPixelsSchedule& schedule, const cuda::DeviceFacts& device) {
  constexpr int64_t kBytes = 62;  // copied in a nanosecond
  const int64_t clusters = schedule.split > 1 ? 700 + 100 * schedule.split : 0;
  const int64_t sums = schedule.columns > 64 ? 1700 : schedule.columns > 32 ? 300 : 0;
  const int64_t waves = DivideUp(Blocks(problem, schedule), device.multiprocessors);
  return waves * CopiedBytes(problem, schedule) / kBytes + clusters + sums;
}

// The blocks that are at work at the same time: those of a cluster on neighbouring multiprocessors, and some are left
// over. Measured: 28 clusters of four find room on an H200, but not 32; 16 of six, but not 20.
int64_t Room(int split, const cuda::DeviceFacts& device) {
  return split <= 4 ? device.multiprocessors * 7 / 8 : device.multiprocessors * 5 / 6;
}

// Pixels of a tile whose sums a block adds.
int64_t Share(const FewPixelsSchedule& schedule) { return DivideUp(kRows, schedule.split); }

// Copies and sums.
int64_t SharedBytes(const FewPixelsSchedule& schedule) {
  const int64_t teams = schedule.warps / 4;
  return teams * (schedule.stages * (kRows + schedule.columns) * kChunk * 2 +
                  schedule.split * Share(schedule) * (schedule.columns + 8) * 4);
}

// Filters that a thread writes at once: few enough that all threads have some.
int64_t Vector(const FewPixelsSchedule& schedule) {
  const int64_t sums = Share(schedule) * schedule.columns, threads = schedule.warps * 32;
  return sums <= 2 * threads ? 2 : sums <= 4 * threads ? 4 : 8;
}

}  // namespace

bool FitsFewPixels(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device) {
  if (!IsOrdinary(program, problem) || problem.dtype == DType::kFloat || problem.group != 1) return false;
  if (device.major != 9 || device.minor != 0 || problem.transposed) return false;  // the only ones with these products
  if (problem.channels % 8 != 0 || problem.filters % 8 != 0) return false;
  constexpr int64_t kMostReach = 1 << 29;  // a row of X that does not exist is this far above the first, twice
  if ((problem.kernel_height - 1) * problem.dilations[0] >= kMostReach || problem.pads[0] >= kMostReach) return false;
  return !problem.x_channels_first && !problem.y_channels_first;
}

bool IsFewPixelsFast(const ConvProblem& problem, const cuda::DeviceFacts& device) {
  // Measured on an H200 against cuDNN, for 1 to 16 images of 54 layers of ResNet-50, DenseNet, EfficientNet and
  // ConvNeXt: 1.05 to 2.1 times as fast where this says so.
  constexpr int64_t kLong = 64;
  const bool is_plain =
      problem.kernel_height == 1 && problem.kernel_width == 1 && problem.strides == std::array<int64_t, 2>{1, 1};
  const int64_t most = is_plain ? 200 : Chunks(problem) >= kLong ? 450 : 400;  // KiB
  const FewPixelsSchedule schedule = ScheduleFewPixels(problem, device);
  return Blocks(problem, schedule) <= device.multiprocessors && CopiedBytes(problem, schedule) <= most << 10;
}

FewPixelsSchedule ScheduleFewPixels(const ConvProblem& problem, const cuda::DeviceFacts& device) {
  // Found on an H200 among some thirty for each of 32 layers.
  constexpr int64_t kMostSplit = 6;
  FewPixelsSchedule best{};
  for (const int columns : {32, 64, 128}) {
    FewPixelsSchedule schedule{columns, 1, 4, 2};
    const int64_t tiles = Tiles(problem, schedule);
    for (; schedule.split == 1 || (schedule.split <= std::min(kMostSplit, Chunks(problem)) &&
                                   tiles * schedule.split <= Room(schedule.split, device));
         ++schedule.split)
      if (best.columns == 0 || Cost(problem, schedule, device) < Cost(problem, best, device)) best = schedule;
  }
  const int64_t chunks = DivideUp(Chunks(problem), best.split);
  const bool is_small = best.columns == 32 && best.split == 1;
  const int64_t teams = std::min<int64_t>(is_small ? 4 : 2, Chunks(problem) / best.split);
  best.warps = static_cast<int>(4 * teams);
  const int most_stages = is_small || best.columns == 128 ? 3 : 4;
  best.stages = static_cast<int>(std::min<int64_t>(most_stages, DivideUp(chunks, teams) + 1));
  return best;
}

std::string FewPixelsSource(const Program& program, const ConvProblem& problem, const FewPixelsSchedule& schedule) {
  std::ostringstream text;
  text << ConvPreamble(program, problem) << "#define DILATION_H " << problem.dilations[0] << "\n"
       << "#define DILATION_W " << problem.dilations[1] << "\n"
       << "#define COLUMNS " << schedule.columns << "\n"
       << "#define SPLIT " << schedule.split << "\n"
       << "#define WARPS " << schedule.warps << "\n"
       << "#define STAGES " << schedule.stages << "\n"
       << "#define VECTOR " << Vector(schedule) << "\n\n"
       << WgmmaSource(problem.dtype, schedule.columns) << "\n"
       << kFewPixelsSource;
  return text.str();
}

cuda::LaunchShape FewPixelsLaunch(const ConvProblem& problem, const FewPixelsSchedule& schedule) {
  return {static_cast<unsigned>(Blocks(problem, schedule)), static_cast<unsigned>(schedule.warps * 32),
          static_cast<unsigned>(SharedBytes(schedule))};
}

}  // namespace ortplugin
