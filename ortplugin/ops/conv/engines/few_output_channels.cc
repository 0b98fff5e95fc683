#include "ortplugin/ops/conv/engines/few_output_channels.h"

#include <algorithm>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kMostWeights = 32 << 10;  // bytes of shared memory

// The sizes that few_output_channels.cu works out from its macros.
struct Sizes {
  bool tensor_cores;
  int64_t octet, taps_h, taps_w, groups;  // an octet: channels in 16 bytes, and columns of a group
  bool cuts;  // the pads cut a patch at the left
  int64_t patches_h, patches_w;  // of the result
};

Sizes SizesOf(const Contraction& problem) {
  Sizes sizes{};
  sizes.tensor_cores = problem.dtype() != DType::kFloat;
  sizes.octet =
    sizes.tensor_cores ? engine_limits::few_output_channels_vector : engine_limits::few_output_channels_vector_fp32;
  sizes.taps_h = DivideUp(problem.rows().kernel, problem.rows().stride);
  sizes.taps_w = DivideUp(problem.columns().kernel, problem.columns().stride);
  sizes.groups = DivideUp(problem.rows().stride * problem.columns().stride * problem.filters, sizes.octet);
  sizes.cuts = problem.columns().pad_begin % problem.columns().stride != 0;
  const auto patches = [](int64_t out, int64_t pad, int64_t stride) {
    return (out - 1 + pad) / stride - pad / stride + 1;
  };
  sizes.patches_h = patches(problem.rows().out, problem.rows().pad_begin, problem.rows().stride);
  sizes.patches_w = DivideUp(problem.columns().out, problem.columns().stride) + sizes.cuts;
  return sizes;
}

int64_t WeightBytes(const Contraction& problem, int64_t chunk) {
  const Sizes sizes = SizesOf(problem);
  const int64_t chunks = problem.channels / chunk, octets = sizes.taps_h * sizes.taps_w * (chunk / sizes.octet);
  return chunks * sizes.groups * (sizes.tensor_cores ? DivideUp(octets, 2) * 256 : octets * 64);
}

int64_t SharedBytes(const Contraction& problem, const FewOutputChannelsConfig& config) {
  const Sizes sizes = SizesOf(problem);
  const int64_t vectors = config.chunk / sizes.octet, pitch = vectors + (vectors % 2 == 0);
  const int64_t part = (config.tile_h + sizes.taps_h - 1) * (config.tile_w + sizes.taps_w - 1) * pitch * 16;
  const int64_t row = sizes.groups * sizes.octet + (sizes.groups % 2 == 0 ? sizes.octet : 0);
  const int64_t sums = config.warps * config.parts * (sizes.tensor_cores ? 16 : 32) * row * 4;
  return WeightBytes(problem, config.chunk) + 16 + std::max(part, sums);
}

// Elements of a row of the result that tiles of this width make.
int64_t Line(const Contraction& problem, const FewOutputChannelsConfig& config) {
  const int64_t width = (config.tile_w - SizesOf(problem).cuts) * problem.columns().stride;
  return problem.y_channels_first ? width : width * problem.filters;
}

int64_t Tiles(const Contraction& problem, const FewOutputChannelsConfig& config) {
  const Sizes sizes = SizesOf(problem);
  return problem.batch * DivideUp(sizes.patches_h, config.tile_h) *
    DivideUp(problem.columns().out, (config.tile_w - sizes.cuts) * problem.columns().stride);
}

// The most channels, a divisor of all, that fit.
int ChunkOf(const Contraction& problem, FewOutputChannelsConfig config) {
  const int64_t octet = SizesOf(problem).octet;
  for (int64_t chunk = std::min(problem.channels, 8 * octet); chunk > 0; chunk -= octet) {
    config.chunk = int(chunk);
    if (problem.channels % chunk == 0 && WeightBytes(problem, chunk) <= kMostWeights &&
      SharedBytes(problem, config) <= cuda::kStaticSharedBytes)
      return config.chunk;
  }
  return 0;
}

// Sets how many warps work on a tile of this form, and how much of it at once. False: it is too large.
bool Complete(const Contraction& problem, FewOutputChannelsConfig* config) {
  const bool tensor_cores = SizesOf(problem).tensor_cores;
  const int64_t patches = int64_t{config->tile_h} * config->tile_w;
  if (patches > (tensor_cores ? 128 : 256)) return false;
  config->parts = !tensor_cores && patches > 128 ? 2 : 1;
  // Four at least: they also bring the weights.
  config->warps = int(std::max<int64_t>(4, DivideUp(patches, (tensor_cores ? 16 : 32) * config->parts)));
  config->chunk = ChunkOf(problem, *config);
  return config->chunk > 0;
}

// About the instructions of a warp that a tile takes: to copy its part of X, to multiply, for the results, and besides.
int64_t Cost(const Contraction& problem, const FewOutputChannelsConfig& config) {
  const Sizes sizes = SizesOf(problem);
  const int64_t pixels = (config.tile_h + sizes.taps_h - 1) * (config.tile_w + sizes.taps_w - 1);
  const int64_t taps = problem.channels * sizes.taps_h * sizes.taps_w, warps = int64_t{config.warps} * config.parts;
  const int64_t multiply = sizes.tensor_cores ? taps / 8 * (1 + 2 * sizes.groups) / 2 : taps * sizes.groups * 5;
  const int64_t results = int64_t{config.tile_h} * config.tile_w * sizes.groups * sizes.octet;
  const int64_t again = (problem.channels / config.chunk - 1) * 1000;  // another wait for memory
  return pixels * (problem.channels / sizes.octet) * 2 / 3 + warps * multiply + results + again + 500;
}

}  // namespace

bool FitsFewOutputChannels(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  // What passes/layout/image_output.py asks as well, so that it writes no image that this engine does not.
  using namespace engine_limits;
  if (!FitsEngines(program, problem) || !problem.transposed || problem.x_channels_first) return false;
  if (problem.groups != few_output_channels_groups || problem.filters > few_output_channels_most_filters) return false;
  for (const int64_t dilation : problem.dilations())
    if (dilation != few_output_channels_dilation) return false;
  if (std::max(problem.rows().kernel, problem.columns().kernel) > few_output_channels_most_filter) return false;
  if (std::max(problem.rows().stride, problem.columns().stride) > few_output_channels_most_stride) return false;
  const Sizes sizes = SizesOf(problem);
  if (sizes.tensor_cores && !device.has_mma_m16n8k16()) return false;
  if (problem.channels % sizes.octet != 0 || sizes.groups > few_output_channels_most_columns) return false;
  FewOutputChannelsConfig least{};
  least.tile_h = 1;
  least.tile_w = 1 + sizes.cuts;
  return Complete(problem, &least);
}

FewOutputChannelsConfig ConfigureFewOutputChannels(
  const Program& program, const Contraction& problem, const DeviceFacts& device) {
  (void)program;
  const Sizes sizes = SizesOf(problem);
  // The form of tiles that takes the fewest instructions in all, on an H200 the fastest of those that were tried: 9.6
  // us for 64 images [64, 32, 32] to [3, 64, 64], 4 x 4 / 2, 14 with tiles of one row. Few images leave less to each
  // block.
  FewOutputChannelsConfig best{};
  int64_t least = INT64_MAX;
  for (int64_t pieces = 1;; ++pieces) {
    FewOutputChannelsConfig option{};
    option.tile_w = int(DivideUp(sizes.patches_w - sizes.cuts, pieces) + sizes.cuts);
    for (option.tile_h = 1; option.tile_h <= sizes.patches_h && Complete(problem, &option); ++option.tile_h) {
      const int64_t cost = Tiles(problem, option) * Cost(problem, option);
      if (cost < least) best = option;
      least = std::min(least, cost);
    }
    if (option.tile_w == 1 + sizes.cuts || (option.tile_w < 16 && best.tile_h > 0)) break;
  }
  while (best.tile_h > 1 &&
    Tiles(problem, best) < LimitsNear(device).few_output_channels_least_tiles * device.multiprocessors) {
    best.tile_h /= 2;
    Complete(problem, &best);
  }
  const int64_t row = problem.y_channels_first ? problem.columns().out : problem.columns().out * problem.filters;
  best.vector = 4;
  while (row % best.vector != 0 || Line(problem, best) % best.vector != 0) best.vector /= 2;
  // The warps that registers are enough for.
  const int warps = best.parts * sizes.groups <= 2 ? 36 : best.parts * sizes.groups <= 4 ? 24 : 16;
  best.min_blocks = std::max(1, std::min(8, warps / best.warps));
  return best;
}

std::string FewOutputChannelsSource(
  const Program& program, const Contraction& problem, const FewOutputChannelsConfig& config) {
  const Sizes sizes = SizesOf(problem);
  const int64_t k_steps = DivideUp(sizes.taps_h * sizes.taps_w * (config.chunk / sizes.octet), 2);
  return Joined(ConvPreamble(program, problem),
    Defines({{"CHANNELS_FIRST", problem.y_channels_first}, {"TENSOR_CORES", sizes.tensor_cores}}), "#define MMA_TYPE ",
    (problem.dtype() == DType::kFloat16 ? "\"f16\"" : "\"bf16\""), "\n",
    Defines({{"CHUNK", config.chunk}, {"TILE_H", config.tile_h}, {"TILE_W", config.tile_w}, {"WARPS", config.warps},
      {"PARTS", config.parts}, {"VECTOR", config.vector}, {"MIN_BLOCKS", config.min_blocks},
      {"UNROLL", k_steps <= 32 ? k_steps : 4}}),
    "\n", kMmaSource, kFewOutputChannelsSource);
}

cuda::LaunchShape FewOutputChannelsLaunch(
  const Contraction& problem, const FewOutputChannelsConfig& config, const DeviceFacts& device) {
  const int64_t most = int64_t{config.min_blocks} * device.multiprocessors;
  return {std::min(Tiles(problem, config), most), config.warps * 32, 0, cuda::NextStarts::kAtTrigger};
}

EngineKernel MakeFewOutputChannels(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const FewOutputChannelsConfig config = ConfigureFewOutputChannels(program, problem, device);
  return {FewOutputChannelsSource(program, problem, config), "few_output_channels",
    FewOutputChannelsLaunch(problem, config, device), ConvArguments(program, problem)};
}

}  // namespace ortplugin
