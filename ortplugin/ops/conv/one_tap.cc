#include "ortplugin/ops/conv/one_tap.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/runtime/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// Elements between rows in shared memory, as one_tap.cu works them out.
int64_t Pitch(int64_t channels) { return channels + (channels % 64 == 0 ? 32 : 0); }

int64_t SharedBytes(const ConvProblem& problem, const OneTapSchedule& schedule) {
  const int64_t weights = schedule.slice * Pitch(RoundUp(problem.channels, 32));
  const int64_t tile = schedule.rows * Pitch(schedule.chunk);
  return 2 * (weights + schedule.warps * schedule.stages * tile);
}

// Whether an operand differs between the images of a batch but not between pixels.
bool IsOfImage(const Shape& shape, const Shape& full) {
  const auto size = [&](size_t axis) { return shape.size() + axis < 4 ? 1 : shape[shape.size() + axis - 4]; };
  return full[0] > 1 && size(0) > 1 && size(1) == 1 && size(2) == 1;
}

}  // namespace

OneTapSchedule ScheduleOneTap(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device) {
  (void)program;
  (void)device;
  OneTapSchedule best{};
  best.rows = 32;
  best.chunk = problem.channels % 64 == 0 ? 64 : 32;
  best.group = best.slice = static_cast<int>(RoundUp(problem.filters, 32));
  best.stages = 3;
  best.warps = 8;
  best.blocks = 1;
  return best;
}

std::string OneTapSource(const Program& program, const ConvProblem& problem, const OneTapSchedule& schedule) {
  const Shape full = problem.output_shape();
  const bool of_image = std::any_of(problem.operands.begin(), problem.operands.end(),
                                    [&](const Shape& shape) { return IsOfImage(shape, full); });
  std::ostringstream text;
  text << ConvPreamble(program, problem) << "#define TRANSPOSED " << problem.transposed << "\n"
       << "#define UP_H " << (problem.transposed ? problem.strides[0] : 1) << "\n"
       << "#define UP_W " << (problem.transposed ? problem.strides[1] : 1) << "\n"
       << "#define MATRIX_TYPE " << (problem.dtype == DType::kFloat16 ? "\"f16\"" : "\"bf16\"") << "\n"
       << "#define OF_IMAGE " << of_image << "\n"
       << "#define ROWS " << schedule.rows << "\n"
       << "#define CHUNK " << schedule.chunk << "\n"
       << "#define GROUP " << schedule.group << "\n"
       << "#define SLICE " << schedule.slice << "\n"
       << "#define SLICES " << DivideUp(problem.filters, schedule.slice) << "\n"
       << "#define STAGES " << schedule.stages << "\n"
       << "#define WARPS " << schedule.warps << "\n"
       << "#define BLOCKS " << schedule.blocks << "\n"
       << "#define EARLY " << schedule.early << "\n\n"
       << kOneTapSource;
  return text.str();
}

cuda::LaunchShape OneTapLaunch(const ConvProblem& problem, const OneTapSchedule& schedule,
                               const cuda::DeviceFacts& device) {
  const int64_t slices = DivideUp(problem.filters, schedule.slice);
  const int64_t tiles = DivideUp(problem.batch * problem.height * problem.width, schedule.rows);
  const int64_t most = std::max<int64_t>(1, int64_t{schedule.blocks} * device.multiprocessors / slices);
  return {static_cast<unsigned>(std::min(tiles, most) * slices), static_cast<unsigned>(schedule.warps * 32),
          static_cast<unsigned>(SharedBytes(problem, schedule))};
}

}  // namespace ortplugin
