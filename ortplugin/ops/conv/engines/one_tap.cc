#include "ortplugin/ops/conv/engines/one_tap.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int kRows = 64;                // pixels of a tile: those of a product
constexpr int kLine = 64;                // channels, or filters, that are copied and written at once
constexpr int64_t kShared = 227 << 10;   // bytes of a block
constexpr int64_t kRegisters = 1 << 16;  // of a multiprocessor

int64_t SharedBytes(const ConvProblem& problem, const OneTapSchedule& schedule) {
  const int64_t weights = schedule.slice * RoundUp(problem.channels, kLine);
  const int64_t stages = schedule.warps / 4 * schedule.stages;  // each with a tile's number
  return 2 * (weights + stages * kRows * schedule.chunk) + 4 * stages;
}

int64_t Tiles(const ConvProblem& problem) { return DivideUp(problem.batch * problem.height * problem.width, kRows); }

bool HasManyTiles(const ConvProblem& problem, const cuda::DeviceFacts& device) {
  return Tiles(problem) >= int64_t{8} * device.multiprocessors;
}

// The pixels of Y that one of X becomes.
int64_t Patch(const ConvProblem& problem) { return problem.transposed ? problem.strides[0] * problem.strides[1] : 1; }

int64_t Size(const Shape& shape, size_t axis) { return shape.size() + axis < 4 ? 1 : shape[shape.size() + axis - 4]; }
bool IsOfPixel(const Shape& shape) { return Size(shape, 1) > 1 || Size(shape, 2) > 1; }

// 32-bit registers for eight elements of each operand that differs between pixels.
int64_t OperandRegisters(const Program& program, const ConvProblem& problem) {
  int64_t bytes = 0;
  for (size_t i = 0; i < problem.operands.size(); ++i)
    if (IsOfPixel(problem.operands[i])) bytes += 8 * SizeOf(program.value(program.parameters()[i + 1]).dtype);
  return DivideUp(bytes, 4);
}

// Whether a program takes a kernel of its own behind cuDNN's.
bool IsApart(const Program& program) { return cudnn::HasErf(program) || !cudnn::RefusalOf(program).empty(); }

// Sets the most warps and stages that there are registers and shared memory for. False: there are too few.
bool Complete(const Program& program, const ConvProblem& problem, int most_warps, int most_stages,
              OneTapSchedule* schedule) {
  constexpr int64_t kBesides = 45;  // registers of a thread for addresses and the like
  const int64_t operands = schedule->group / 16 * OperandRegisters(program, problem);
  const int64_t sums = schedule->group / 2 + kBesides;
  schedule->early = sums + operands <= 255;
  const int64_t registers = sums + (schedule->early ? operands : 0);
  for (schedule->warps = most_warps; schedule->warps > 0; schedule->warps -= 4)
    for (schedule->stages = most_stages; schedule->stages > 1; --schedule->stages)
      if (registers * schedule->warps * 32 <= kRegisters && SharedBytes(problem, *schedule) <= kShared) return true;
  return false;
}

int MostWarps(const Program& program, const ConvProblem& problem, const OneTapSchedule& schedule,
              const cuda::DeviceFacts& device) {
  if (!schedule.shared_tiles) return 12;
  // Where results are most of what memory moves, eight are enough for it, and more make it slower.
  const int64_t bytes = 2 * Tiles(problem) * kRows * (problem.channels + problem.filters);
  const bool writes_more = problem.filters > problem.channels && schedule.slice >= problem.filters;
  if (Patch(problem) > 1 || (IsBare(program) && writes_more && bytes > 4 * device.l2_bytes)) return 8;
  // Few sums, or sums of few products, leave registers for more.
  return schedule.slice == kLine || problem.channels < kLine ? 16 : 12;
}

std::optional<OneTapSchedule> Schedule(const Program& program, const ConvProblem& problem,
                                       const cuda::DeviceFacts& device) {
  // Found on an H200 among all that are possible, for 24 to 512 channels and filters: within 3% of the best on average.
  // With many tiles for each multiprocessor the weights are copied seldom, and many filters meet each copy of X; with
  // few the copies of the weights count, and that there is work for all.
  const bool many = HasManyTiles(problem, device);
  const int64_t channels = RoundUp(problem.channels, kLine), filters = RoundUp(problem.filters, kLine);
  const int64_t most_slice = many ? 256 : 128, most_weights = (many ? 128 : 64) << 10;
  OneTapSchedule best{};
  best.shared_tiles = many;
  for (int64_t slices = 1; best.slice == 0 || best.slice * channels * 2 > most_weights; ++slices) {
    if (slices > filters / kLine) break;
    if (filters % (slices * kLine) == 0 && filters / slices <= most_slice)
      best.slice = static_cast<int>(filters / slices);
  }
  best.group = std::min(best.slice, many ? 128 : 64);
  while (best.slice % best.group != 0) best.group -= kLine;
  const auto complete = [&](int64_t chunk) {
    best.chunk = static_cast<int>(chunk);
    const int stages = !many ? 4 : (chunk == kLine && channels > kLine) || Patch(problem) > 1 ? 3 : 2;
    return Complete(program, problem, MostWarps(program, problem, best, device), stages, &best);
  };
  // Several groups meet a chunk, so it is all channels.
  if (best.group < best.slice) {
    if (channels <= 128 && complete(channels)) return best;
    best.group = best.slice;
  }
  if ((many && channels % 128 == 0 && complete(128)) || complete(kLine)) return best;
  return std::nullopt;
}

}  // namespace

bool FitsOneTap(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device) {
  if (!IsOrdinary(program, problem) || problem.dtype == DType::kFloat || problem.group != 1) return false;
  if (device.major != 9 || device.minor != 0) return false;  // the only ones with these products
  if (problem.kernel_height != 1 || problem.kernel_width != 1 || problem.pads != std::array<int64_t, 4>{}) return false;
  if (problem.channels % 8 != 0 || problem.filters % 8 != 0) return false;
  if (problem.x_channels_first || problem.y_channels_first) return false;
  if (!problem.transposed && problem.strides != std::array<int64_t, 2>{1, 1}) return false;
  if (problem.transposed && (DivideUp(problem.out_height, problem.strides[0]) != problem.height ||
                             DivideUp(problem.out_width, problem.strides[1]) != problem.width || Patch(problem) > 16))
    return false;
  return Schedule(program, problem, device).has_value();
}

bool IsOneTapFast(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device) {
  // Measured on an H200 against cuDNN, for 1 to 256 images of 60 layers. What may be fast here is what
  // passes/turn_conv_transpose.py turns into a convolution without a program (FEW_PRODUCTS).
  const int64_t tiles = Tiles(problem), patch = Patch(problem);
  if (patch > 1 && OperandRegisters(program, problem) > 0) return false;  // pixels between have no products to wait for
  if (patch > 1 && problem.channels > 256 && tiles < int64_t{16} * device.multiprocessors) return false;
  if (problem.filters < kLine / 2 && HasManyTiles(problem, device)) return false;
  const int64_t products = problem.channels * problem.filters, elements = problem.channels + patch * problem.filters;
  if (products <= 96 * elements) return problem.channels <= (patch > 1 ? 512 : 384);
  if (products > 210 * elements || problem.channels > 256) return false;
  // With more products cuDNN's kernels win, but where they leave the program to another kernel, or have few tiles.
  return IsApart(program) || (tiles >= 24 && tiles <= device.multiprocessors);
}

OneTapSchedule ScheduleOneTap(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device) {
  return *Schedule(program, problem, device);
}

std::string OneTapSource(const Program& program, const ConvProblem& problem, const OneTapSchedule& schedule) {
  std::ostringstream text;
  text << ConvPreamble(program, problem) << "#define TRANSPOSED " << problem.transposed << "\n"
       << "#define UP_H " << (problem.transposed ? problem.strides[0] : 1) << "\n"
       << "#define UP_W " << (problem.transposed ? problem.strides[1] : 1) << "\n"
       << "#define CHUNK " << schedule.chunk << "\n"
       << "#define GROUP " << schedule.group << "\n"
       << "#define SLICE " << schedule.slice << "\n"
       << "#define SLICES " << DivideUp(problem.filters, schedule.slice) << "\n"
       << "#define STAGES " << schedule.stages << "\n"
       << "#define WARPS " << schedule.warps << "\n"
       << "#define SHARED_TILES " << schedule.shared_tiles << "\n"
       << "#define EARLY " << schedule.early << "\n\n"
       << WgmmaSource(problem.dtype, schedule.group) << "\n"
       << kOneTapSource;
  return text.str();
}

cuda::LaunchShape OneTapLaunch(const ConvProblem& problem, const OneTapSchedule& schedule,
                               const cuda::DeviceFacts& device) {
  const int64_t slices = DivideUp(problem.filters, schedule.slice);
  const int64_t most = std::max<int64_t>(1, device.multiprocessors / slices);
  return {static_cast<unsigned>(std::min(Tiles(problem), most) * slices), static_cast<unsigned>(schedule.warps * 32),
          static_cast<unsigned>(SharedBytes(problem, schedule))};
}

}  // namespace ortplugin
