#include "ortplugin/ops/conv/engines/patch.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kChannels = 64, kFilters = 64, kPatchW = 16, kTileH = 8;
constexpr int64_t kPixelBytes = 128;
constexpr int64_t kConsumers = 3;
constexpr int64_t kChunk = 32;  // pixels that pass through shared memory at once
constexpr int64_t kPitch = 20;  // floats of a pixel, of which a warp's 16 filters are stored in different banks
constexpr int64_t kStagingBytes = kConsumers * 4 * kChunk * kPitch * 4, kStaticShared = 256;
constexpr int64_t kBehind = 1024;  // a patch, of which the last tap reads some
constexpr int64_t kMostStages = 6;
constexpr int kAhead = 2;  // chunks of operands that are on their way at once

int64_t Taps(const Contraction& problem) { return problem.rows().kernel * problem.columns().kernel; }
int64_t PatchH(const Contraction& problem) { return kTileH + problem.rows().kernel - 1; }
int64_t PatchBytes(const Contraction& problem) { return PatchH(problem) * kPatchW * kPixelBytes; }
int64_t WeightBytes(const Contraction& problem) { return Taps(problem) * kFilters * kPixelBytes; }
int64_t FilterTiles(const Contraction& problem) { return DivideUp(problem.filters, kFilters); }

// Of results.
int64_t TileW(const Contraction& problem) { return kPatchW - problem.columns().kernel + 1; }
int64_t Tiles(const Contraction& problem) {
  return problem.batch * DivideUp(problem.rows().out, kTileH) * DivideUp(problem.columns().out, TileW(problem));
}

int64_t Stages(const Contraction& problem, const DeviceFacts& device) {
  const int64_t room = device.shared_per_block - kStaticShared - WeightBytes(problem) - kBehind - kStagingBytes;
  return std::min(kMostStages, room / PatchBytes(problem));
}

// Filters that are read and written at once.
int64_t Vector(const Contraction& problem) { return problem.filters % 8 == 0 ? 8 : 4; }

}  // namespace

bool FitsPatch(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem) || problem.dtype() == DType::kFloat || problem.groups != 1) return false;
  if (!device.has_wgmma() || problem.transposed || problem.x_channels_first || problem.y_channels_first) return false;
  if (problem.channels % 8 != 0 || problem.channels > kChannels || problem.filters % 4 != 0) return false;
  const auto is_plain = [](const Window& window) {
    return window.stride == 1 && window.dilation == 1 && window.kernel <= 5;
  };
  return std::all_of(problem.windows.begin(), problem.windows.end(), is_plain) && Stages(problem, device) >= 2 &&
    FilterTiles(problem) <= device.multiprocessors;
}

bool IsPatchFast(const Program&, const Contraction& problem, const DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  const TargetLimits& limits = target->limits;
  const int64_t tiles = Tiles(problem), filter_tiles = FilterTiles(problem);
  const auto pixels = double(problem.batch * problem.rows().out * problem.columns().out);
  const double least = filter_tiles == 1 ? limits.patch_least_tiles : limits.patch_least_tiles_wide;
  return problem.channels >= limits.patch_least_channels &&
    pixels >= limits.patch_least_fill * double(tiles * kTileH * TileW(problem)) &&
    double(tiles * filter_tiles) >= least * device.multiprocessors;
}

EngineKernel MakePatch(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const int64_t stages = Stages(problem, device), filter_tiles = FilterTiles(problem);
  std::ostringstream text;
  text << ConvPreamble(program, problem)
       << Defines({{"STAGES", stages}, {"CONSUMERS", kConsumers}, {"TILE_H", kTileH}, {"PATCH_W", kPatchW},
            {"TILE_FILTERS", kFilters}, {"CHUNK", kChunk}, {"PITCH", kPitch}, {"VECTOR", Vector(problem)},
            {"AHEAD", kAhead}})
       << WgmmaSource(problem.dtype(), int(kTileH * kPatchW)) << "\n"
       << kTmaSource << "\n"
       << kPatchSource;
  std::vector<uint64_t> arguments = ConvArguments(program, problem, kTileH, TileW(problem));
  const auto word = size_t(RoundUp(int64_t(arguments.size()), 8));  // of the maps
  arguments.resize(word + 2 * cuda::kTensorMapWords);
  const auto channels = uint64_t(problem.channels), filters = uint64_t(problem.filters), taps = uint64_t(Taps(problem));
  const auto columns = uint64_t(problem.columns().size), rows = uint64_t(problem.rows().size);
  cuda::TensorMap x{word, 0, {channels, columns, rows, uint64_t(problem.batch)},
    {channels, columns * channels, rows * columns * channels}, uint32_t(kPatchW)};
  x.box_matrices = uint32_t(PatchH(problem));
  const cuda::TensorMap w{word + cuda::kTensorMapWords, 1, {channels, filters, taps, 1},
    {taps * channels, channels, filters * taps * channels}, uint32_t(kFilters)};
  const int64_t blocks = std::min(Tiles(problem), device.multiprocessors / filter_tiles) * filter_tiles;
  return {text.str(), "patch",
    {blocks, (kConsumers + 1) * 128, WeightBytes(problem) + stages * PatchBytes(problem) + kBehind + kStagingBytes},
    arguments, {x, w}};
}

}  // namespace ortplugin
