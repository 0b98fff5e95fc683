#include "ortplugin/ops/conv_transpose/few_filters.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/runtime/kernel_sources.h"

namespace ortplugin {
namespace {

constexpr int64_t kMostShared = 48 << 10, kMostWeights = 32 << 10;  // bytes
constexpr int64_t kMostSums = 32;                                   // registers of a thread
constexpr int kWarps = 4;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The sizes that few_filters.cu works out from its macros.
struct Sizes {
  bool matrix;
  int64_t octet, taps_h, taps_w, groups;
  bool cuts;                     // the pads cut a patch at the left
  int64_t patches_h, patches_w;  // of the result
};

Sizes SizesOf(const ConvProblem& problem) {
  Sizes sizes{};
  sizes.matrix = problem.dtype != DType::kFloat;
  sizes.octet = sizes.matrix ? 8 : 4;
  sizes.taps_h = DivideUp(problem.kernel_height, problem.strides[0]);
  sizes.taps_w = DivideUp(problem.kernel_width, problem.strides[1]);
  sizes.groups = DivideUp(problem.strides[0] * problem.strides[1] * problem.filters, sizes.octet);
  sizes.cuts = problem.pads[1] % problem.strides[1] != 0;
  const auto patches = [](int64_t out, int64_t pad, int64_t stride) {
    return (out - 1 + pad) / stride - pad / stride + 1;
  };
  sizes.patches_h = patches(problem.out_height, problem.pads[0], problem.strides[0]);
  sizes.patches_w = DivideUp(problem.out_width, problem.strides[1]) + sizes.cuts;
  return sizes;
}

int64_t WeightBytes(const ConvProblem& problem, int64_t chunk) {
  const Sizes sizes = SizesOf(problem);
  const int64_t chunks = problem.channels / chunk, octets = sizes.taps_h * sizes.taps_w * (chunk / sizes.octet);
  return chunks * sizes.groups * (sizes.matrix ? DivideUp(octets, 2) * 256 : octets * 64);
}

int64_t SharedBytes(const ConvProblem& problem, const FewFiltersSchedule& schedule) {
  const Sizes sizes = SizesOf(problem);
  const int64_t vectors = schedule.chunk / sizes.octet, pitch = vectors + (vectors % 2 == 0);
  const int64_t part = (schedule.tile_h + sizes.taps_h - 1) * (schedule.tile_w + sizes.taps_w - 1) * pitch * 16;
  const int64_t row = sizes.groups * sizes.octet + (sizes.groups % 2 == 0 ? sizes.octet : 0);
  const int64_t sums = schedule.warps * schedule.parts * (sizes.matrix ? 16 : 32) * row * 4;
  return WeightBytes(problem, schedule.chunk) + 16 + std::max(part, sums);
}

// Patches that a block can work on.
int64_t Room(const ConvProblem& problem, const FewFiltersSchedule& schedule) {
  return int64_t{schedule.warps} * schedule.parts * (SizesOf(problem).matrix ? 16 : 32);
}

// Elements of a row of the result that tiles of this width make.
int64_t Line(const ConvProblem& problem, const FewFiltersSchedule& schedule) {
  const int64_t width = (schedule.tile_w - SizesOf(problem).cuts) * problem.strides[1];
  return problem.y_channels_first ? width : width * problem.filters;
}

int64_t Tiles(const ConvProblem& problem, const FewFiltersSchedule& schedule) {
  const Sizes sizes = SizesOf(problem);
  return problem.batch * DivideUp(sizes.patches_h, schedule.tile_h) *
         DivideUp(problem.out_width, (schedule.tile_w - sizes.cuts) * problem.strides[1]);
}

// The most channels, a divisor of all, that fit.
int ChunkOf(const ConvProblem& problem, FewFiltersSchedule schedule) {
  const int64_t octet = SizesOf(problem).octet;
  for (int64_t chunk = std::min(problem.channels, 8 * octet); chunk > 0; chunk -= octet) {
    schedule.chunk = static_cast<int>(chunk);
    if (problem.channels % chunk == 0 && WeightBytes(problem, chunk) <= kMostWeights &&
        SharedBytes(problem, schedule) <= kMostShared)
      return schedule.chunk;
  }
  return 0;
}

// The least that a block can work on.
FewFiltersSchedule Least(const ConvProblem& problem) {
  const Sizes sizes = SizesOf(problem);
  FewFiltersSchedule least{};
  least.tile_h = 1;
  least.tile_w = static_cast<int>(std::min<int64_t>(sizes.patches_w, 16));
  least.warps = kWarps;
  least.parts = 1;
  least.vector = 1;
  return least;
}

}  // namespace

bool FitsFewFilters(const Program& program, const ConvProblem& problem, const cuda::DeviceFacts& device) {
  if (!IsOrdinary(program, problem) || !problem.transposed || problem.group != 1 || problem.filters > 8) return false;
  if (problem.dilations != std::array<int64_t, 2>{1, 1} || problem.x_channels_first) return false;
  if (std::max(problem.kernel_height, problem.kernel_width) > 7) return false;
  if (std::max(problem.strides[0], problem.strides[1]) > 4) return false;
  const Sizes sizes = SizesOf(problem);
  if (sizes.matrix && device.major < 8) return false;  // Turing's tensor cores multiply smaller matrices
  if (problem.channels % sizes.octet != 0 || sizes.groups * 4 > kMostSums) return false;
  return ChunkOf(problem, Least(problem)) > 0;
}

FewFiltersSchedule ScheduleFewFilters(const Program& program, const ConvProblem& problem,
                                      const cuda::DeviceFacts& device) {
  (void)program;
  const Sizes sizes = SizesOf(problem);
  FewFiltersSchedule best = Least(problem);
  best.chunk = ChunkOf(problem, best);
  // Whole rows of patches, as many as there is room for: neighbouring tiles read the same pixels. Few images leave
  // less to each block.
  const auto widen = [&](int parts) {
    FewFiltersSchedule wide = best;
    wide.parts = parts;
    for (int64_t pieces = 1;; ++pieces) {
      const int64_t width = DivideUp(sizes.patches_w - sizes.cuts, pieces) + sizes.cuts;
      wide.tile_w = static_cast<int>(width);
      for (int64_t rows = std::min(Room(problem, wide) / width, sizes.patches_h); rows > 0; --rows) {
        wide.tile_h = static_cast<int>(DivideUp(sizes.patches_h, DivideUp(sizes.patches_h, rows)));
        wide.chunk = ChunkOf(problem, wide);
        if (wide.chunk >= best.chunk || (rows == 1 && wide.chunk > 0)) return wide;
      }
      if (width <= best.tile_w) return best;
    }
  };
  const int most_parts = sizes.groups * 8 <= kMostSums ? 2 : 1;
  best = widen(most_parts);
  if (most_parts > 1 && Tiles(problem, best) < int64_t{2} * device.multiprocessors) best = widen(1);
  while (best.tile_h > 1 && Tiles(problem, best) < int64_t{2} * device.multiprocessors) best.tile_h = best.tile_h / 2;

  const int64_t row = problem.y_channels_first ? problem.out_width : problem.out_width * problem.filters;
  best.vector = 4;
  while (row % best.vector != 0 || Line(problem, best) % best.vector != 0) best.vector /= 2;
  best.blocks = best.parts * sizes.groups > 4 ? 4 : 6;
  return best;
}

std::string FewFiltersSource(const Program& program, const ConvProblem& problem, const FewFiltersSchedule& schedule) {
  const Sizes sizes = SizesOf(problem);
  const int64_t products = DivideUp(sizes.taps_h * sizes.taps_w * (schedule.chunk / sizes.octet), 2);
  std::ostringstream text;
  text << ConvEpilogueSource(program, problem) << "#define CHANNELS " << problem.channels << "\n"
       << "#define FILTERS " << problem.filters << "\n"
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
       << "#define CHANNELS_FIRST " << problem.y_channels_first << "\n"
       << "#define MATRIX " << sizes.matrix << "\n"
       << "#define MATRIX_TYPE " << (problem.dtype == DType::kFloat16 ? "\"f16\"" : "\"bf16\"") << "\n"
       << "#define CHUNK " << schedule.chunk << "\n"
       << "#define TILE_H " << schedule.tile_h << "\n"
       << "#define TILE_W " << schedule.tile_w << "\n"
       << "#define WARPS " << schedule.warps << "\n"
       << "#define PARTS " << schedule.parts << "\n"
       << "#define VECTOR " << schedule.vector << "\n"
       << "#define BLOCKS " << schedule.blocks << "\n"
       << "#define UNROLL " << (products <= 32 ? products : 4) << "\n\n"
       << kFewFiltersSource;
  return text.str();
}

cuda::LaunchShape FewFiltersLaunch(const ConvProblem& problem, const FewFiltersSchedule& schedule,
                                   const cuda::DeviceFacts& device) {
  const int64_t most = int64_t{schedule.blocks} * device.multiprocessors;
  return {static_cast<unsigned>(std::min(Tiles(problem, schedule), most)), static_cast<unsigned>(schedule.warps * 32)};
}

}  // namespace ortplugin
