#include "ortplugin/ops/conv/engines/gemm.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int kColumns = 32;  // of a warp's rows that pass through shared memory at once
constexpr int kPitch = kColumns + 8;
constexpr int64_t kStaticShared = 256;  // barriers
constexpr int kMostStages = 10;

// Tile configurations, and what they cost on an H200 in microseconds: a launch; 64 channels of a tile; what else a tile
// takes. Fitted to 28 products of 128 to 25,088 rows (2026-11-25), of which the model's choice took 6% longer than the
// best of 26 at most, 0.4% on average.
struct Tile {
  int tile_n, consumers, tile_k, min_blocks;
  double launch, step, tile;
};
constexpr Tile kTiles[] = {
    {64, 1, 128, 1, 1.57, 0.140, 0.98}, {96, 1, 128, 1, 1.29, 0.162, 1.56}, {96, 1, 64, 2, 1.85, 0.174, 0.95},
    {128, 1, 64, 2, 1.51, 0.196, 1.49}, {160, 1, 64, 1, 0.61, 0.230, 2.89}, {192, 1, 64, 1, 0.37, 0.265, 3.37},
    {64, 2, 64, 2, 1.85, 0.253, 0.81},  {96, 2, 64, 2, 1.58, 0.299, 1.30},  {96, 2, 64, 1, 1.15, 0.259, 2.10},
    {128, 2, 64, 1, 0.91, 0.322, 2.83}, {160, 2, 64, 1, 0.78, 0.385, 3.53}, {192, 2, 64, 1, 0.57, 0.465, 4.10},
    {256, 2, 64, 1, 0.15, 0.654, 5.50},
};

int64_t Rows(const Contraction& problem) { return problem.batch * problem.rows().size * problem.columns().size; }

int64_t Tiles(const Contraction& problem, int64_t tile_m, int64_t tile_n) {
  return DivideUp(Rows(problem), tile_m) * DivideUp(problem.filters, tile_n);
}

// Columns that are read and written at once.
int64_t Vector(const Contraction& problem) { return std::min<int64_t>(8, problem.filters & -problem.filters); }

double Cost(const Contraction& problem, const Tile& tile, const cuda::DeviceFacts& device) {
  constexpr int kWide = 160;  // what else a thread has in registers leaves too few for operands one by one
  if (Vector(problem) < 4 && (tile.tile_n > kWide || tile.min_blocks > 1))
    return std::numeric_limits<double>::infinity();
  const auto turns =
      static_cast<double>(DivideUp(Tiles(problem, 64 * tile.consumers, tile.tile_n), int64_t{device.multiprocessors}));
  return tile.launch + turns * (tile.step * static_cast<double>(DivideUp(problem.channels, 64)) + tile.tile);
}

int64_t StageBytes(const GemmConfig& config) { return (64 * config.consumers + config.tile_n) * config.tile_k * 2; }
int64_t StagingBytes(const GemmConfig& config) { return int64_t{config.consumers} * 4 * 16 * kPitch * 4; }

// Where operands, as the kernel finds them, stand in its parameter, and the two maps behind them.
size_t MapWord(const Program& program, const Contraction& problem) {
  return static_cast<size_t>(RoundUp(static_cast<int64_t>(ConvArguments(program, problem).size()), 8));
}

}  // namespace

bool IsPointwise(const Contraction& problem) {
  return std::all_of(problem.windows.begin(), problem.windows.end(), [](const Window& window) {
    return window.kernel == 1 && window.stride == 1 && window.pad_begin == 0 && window.pad_end == 0;
  });
}

bool FitsGemm(const Program& program, const Contraction& problem, const cuda::DeviceFacts& device) {
  if (!FitsEngines(program, problem) || problem.dtype() == DType::kFloat || problem.groups != 1) return false;
  if (!device.has_wgmma() || problem.transposed || problem.x_channels_first || problem.y_channels_first) return false;
  if (problem.channels % engine_limits::wgmma_vector != 0) return false;  // rows begin at multiples of 16 bytes
  return IsPointwise(problem);
}

bool IsGemmFast(const Program&, const Contraction& problem, const cuda::DeviceFacts& device) {
  // A matrix product; of images it was not measured.
  return FindTarget(device) != nullptr && problem.rows().size * problem.columns().size == 1;
}

GemmConfig ConfigureGemm(const Contraction& problem, const cuda::DeviceFacts& device) {
  const Tile& best = *std::min_element(std::begin(kTiles), std::end(kTiles), [&](const Tile& a, const Tile& b) {
    return Cost(problem, a, device) < Cost(problem, b, device);
  });
  GemmConfig config{best.tile_n, best.consumers, best.tile_k, best.min_blocks, 0, Rows(problem) < problem.filters};
  const int64_t room = config.min_blocks == 1
                           ? device.shared_per_block
                           : device.shared_per_multiprocessor / config.min_blocks - device.reserved_shared_per_block;
  const int64_t stages = (room - kStaticShared - StagingBytes(config)) / StageBytes(config);
  config.stages = static_cast<int>(std::min<int64_t>(kMostStages, stages));
  return config;
}

Contraction WithRowsAsBatch(const Contraction& problem) {
  if (problem.is_empty()) return problem;
  Contraction flat = problem;
  const int64_t rows = Rows(problem);
  flat.batch = rows;
  flat.rows() = flat.columns() = Window();
  for (Shape& operand : flat.operands) {
    const int64_t count = ElementCount(operand);
    if (count == rows * problem.filters)
      operand = flat.result();
    else if (count == problem.filters && operand.back() == count)
      operand = {count};
    else if (count == rows && rows > 1 && (operand.back() == 1))
      operand = {rows, 1, 1, 1};
    else if (count == 1)
      operand = {1};
    else
      return problem;
  }
  return flat;
}

std::string GemmSource(const Program& program, const Contraction& problem, const GemmConfig& config) {
  std::ostringstream text;
  text << ConvPreamble(program, problem) << "#define TILE_N " << config.tile_n << "\n"
       << "#define TILE_K " << config.tile_k << "\n"
       << "#define CONSUMERS " << config.consumers << "\n"
       << "#define STAGES " << config.stages << "\n"
       << "#define MIN_BLOCKS " << config.min_blocks << "\n"
       << "#define ROWS_FIRST " << config.rows_first << "\n"
       << "#define COLUMNS " << kColumns << "\n"
       << "#define VECTOR " << Vector(problem) << "\n\n"
       << WgmmaSource(problem.dtype(), config.tile_n) << "\n"
       << kTmaSource << "\n"
       << kGemmSource;
  return text.str();
}

cuda::LaunchShape GemmLaunch(const Contraction& problem, const GemmConfig& config, const cuda::DeviceFacts& device) {
  const int64_t most = int64_t{device.multiprocessors} * config.min_blocks;
  return {static_cast<unsigned>(std::min(Tiles(problem, 64 * config.consumers, config.tile_n), most)),
          static_cast<unsigned>(config.consumers * 128 + 64),
          static_cast<unsigned>(config.stages * StageBytes(config) + StagingBytes(config))};
}

EngineKernel MakeGemm(const Program& program, const Contraction& given, const cuda::DeviceFacts& device) {
  const Contraction problem = WithRowsAsBatch(given);
  const GemmConfig config = ConfigureGemm(problem, device);
  std::vector<uint64_t> arguments = ConvArguments(program, problem);
  const size_t word = MapWord(program, problem);
  arguments.resize(word + 2 * cuda::kTensorMapWords);
  const auto channels = static_cast<uint64_t>(problem.channels);
  const auto rows_of_tile = static_cast<uint32_t>(64 * config.consumers);
  return {GemmSource(program, problem, config),
          "gemm",
          GemmLaunch(problem, config, device),
          arguments,
          {{word, 0, {channels, static_cast<uint64_t>(Rows(problem))}, {channels}, rows_of_tile},
           {word + cuda::kTensorMapWords,
            1,
            {channels, static_cast<uint64_t>(problem.filters)},
            {channels},
            static_cast<uint32_t>(config.tile_n)}}};
}

}  // namespace ortplugin
