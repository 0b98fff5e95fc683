#include "ortplugin/ops/conv/engines/gemm.h"

#include <algorithm>
#include <cstddef>
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

// Tiles of a kind, and what they cost on an H200 in microseconds. Of a tile of n columns the MMAs of 128 bytes of
// channels take step + step_n * n, and what else there is to it takes rest + rest_n * n; a launch comes once. Fitted to
// 37 products of 256 to 25,088 rows in fp16 (2026-11-25), of which the model's choice took 1.2% longer than the best on
// average, 16% at most.
struct TileKind {
  int consumers, bytes_k;  // of a copy's channels
  bool take_turns;
  int least_n, most_n;  // in steps of 16
  double launch, step, step_n, rest, rest_n;
};
constexpr int kStepN = 16;
constexpr TileKind kTileKinds[] = {
  {1, 256, false, 64, 128, 1.30, -0.008, 0.00195, 1.01, 0.0037},
  {1, 128, false, 144, 192, 0.60, 0.055, 0.00109, 0.49, 0.0150},
  {2, 128, false, 96, 256, 1.15, -0.115, 0.00394, 1.94, 0.0023},
  {2, 128, true, 96, 160, 0.30, 0.082, 0.00276, 0.77, 0.0245},
};

int64_t TileM(int consumers, bool take_turns) { return take_turns ? 128 : 64 * consumers; }

int64_t Rows(const Contraction& problem) { return problem.batch * problem.rows().size * problem.columns().size; }

int64_t Tiles(const Contraction& problem, int64_t tile_m, int64_t tile_n) {
  return DivideUp(Rows(problem), tile_m) * DivideUp(problem.filters, tile_n);
}

int64_t Size(const Contraction& problem) { return static_cast<int64_t>(SizeOf(problem.dtype())); }

// Columns that are read and written at once.
int64_t Vector(const Contraction& problem) { return std::min(16 / Size(problem), problem.filters & -problem.filters); }

double Cost(const Contraction& problem, const TileKind& kind, int tile_n, const cuda::DeviceFacts& device) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  constexpr int kWide = 160, kWideFloat = 240;  // what else a thread has in registers leaves too few for operands
  if (Vector(problem) < 4 && (kind.take_turns ? tile_n > 96 : tile_n > kWide)) return kNever;
  if (Size(problem) == 4 && tile_n > kWideFloat) return kNever;
  const int64_t tiles = DivideUp(
    Tiles(problem, TileM(kind.consumers, kind.take_turns), tile_n), int64_t{device.multiprocessors});  // of a block
  // One warpgroup with wide tiles waits for its program between them.
  if (kind.consumers == 1 && tile_n > 128 && tiles > 1) return kNever;
  const double mmas =
    static_cast<double>(DivideUp(problem.channels * Size(problem), 128)) * (kind.step + kind.step_n * tile_n);
  const double rest = kind.rest + kind.rest_n * tile_n;
  const auto count = static_cast<double>(tiles);
  if (!kind.take_turns) return kind.launch + count * (mmas + rest);
  // The tensor cores are what there is least of, or each warpgroup's own tiles.
  const auto own = static_cast<double>(DivideUp(tiles, int64_t{2}));
  return kind.launch + std::max(count * mmas + rest, own * (mmas + rest) + (tiles % 2 == 0 ? mmas : 0));
}

int64_t StageBytes(const Contraction& problem, const GemmConfig& config) {
  return (config.tile_m() + config.tile_n) * config.tile_k * Size(problem);
}
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
  if (!FitsEngines(program, problem) || problem.groups != 1) return false;
  if (problem.dtype() == DType::kFloat && !problem.allow_tf32) return false;
  if (!device.has_wgmma() || problem.transposed || problem.x_channels_first || problem.y_channels_first) return false;
  if (problem.channels * Size(problem) % 16 != 0) return false;  // rows begin at multiples of 16 bytes
  return IsPointwise(problem);
}

bool IsGemmFast(const Program&, const Contraction& problem, const cuda::DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr || (problem.dtype() == DType::kFloat && target->limits.matmul_tf32_pays == 0)) return false;
  // A matrix product; of images it was not measured.
  return problem.rows().size * problem.columns().size == 1;
}

GemmConfig ConfigureGemm(const Contraction& problem, const cuda::DeviceFacts& device) {
  GemmConfig config{};
  double least = std::numeric_limits<double>::infinity();
  for (const TileKind& kind : kTileKinds)
    for (int tile_n = kind.least_n; tile_n <= kind.most_n; tile_n += kStepN) {
      const double cost = Cost(problem, kind, tile_n, device);
      if (cost >= least) continue;
      least = cost;
      const int tile_k = kind.bytes_k / static_cast<int>(Size(problem));
      config = {tile_n, kind.consumers, tile_k, kind.take_turns, 0, Rows(problem) < problem.filters};
    }
  const int64_t room = device.shared_per_block - kStaticShared - StagingBytes(config);
  config.stages = static_cast<int>(std::min<int64_t>(kMostStages, room / StageBytes(problem, config)));
  return config;
}

Contraction WithTwoWindows(const Contraction& problem) {
  if (problem.windows.size() == 2 || !IsPointwise(problem)) return problem;
  Contraction plane = problem;
  plane.windows.assign(2, Window());
  for (const Window& window : problem.windows) plane.columns().size *= window.out;
  plane.columns().out = plane.columns().size;
  const size_t spatial = problem.windows.size();
  for (Shape& operand : plane.operands) {
    if (operand.size() > spatial + 2) return problem;
    operand.insert(operand.begin(), spatial + 2 - operand.size(), 1);
    const auto first = operand.begin() + (problem.channels_last ? 1 : 2);
    const int64_t pixels = ElementCount(Shape(first, first + static_cast<std::ptrdiff_t>(spatial)));
    if (pixels != 1 && pixels != plane.columns().out) return problem;
    operand =
      problem.channels_last ? Shape{operand[0], 1, pixels, operand.back()} : Shape{operand[0], operand[1], 1, pixels};
  }
  return plane;
}

Contraction WithRowsAsBatch(const Contraction& problem) {
  // With channels first the pixels of an image are no rows.
  if (problem.is_empty() || !problem.channels_last || problem.x_channels_first || problem.y_channels_first)
    return problem;
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
       << "#define TAKE_TURNS " << config.take_turns << "\n"
       << "#define M_TILES " << (config.take_turns ? 2 : 1) << "\n"
       << "#define ROWS_FIRST " << config.rows_first << "\n"
       << "#define COLUMNS " << kColumns << "\n"
       << "#define VECTOR " << Vector(problem) << "\n\n"
       << WgmmaSource(problem.dtype(), config.tile_n) << "\n"
       << kTmaSource << "\n"
       << kGemmEpilogueSource << "\n"
       << kGemmSource;
  return text.str();
}

cuda::LaunchShape GemmLaunch(const Contraction& problem, const GemmConfig& config, const cuda::DeviceFacts& device) {
  const int64_t tiles = Tiles(problem, config.tile_m(), config.tile_n);
  return {static_cast<unsigned>(std::min<int64_t>(tiles, device.multiprocessors)),
    static_cast<unsigned>(config.consumers * 128 + (config.take_turns ? 128 : 64)),
    static_cast<unsigned>(config.stages * StageBytes(problem, config) + StagingBytes(config))};
}

EngineKernel MakeGemm(const Program& program, const Contraction& given, const cuda::DeviceFacts& device) {
  const Contraction problem = WithRowsAsBatch(given);
  const GemmConfig config = ConfigureGemm(problem, device);
  std::vector<uint64_t> arguments = ConvArguments(program, problem);
  const size_t word = MapWord(program, problem);
  arguments.resize(word + 2 * cuda::kTensorMapWords);
  const auto channels = static_cast<uint64_t>(problem.channels);
  const auto rows_of_tile = static_cast<uint32_t>(config.tile_m());
  const bool tf32 = problem.dtype() == DType::kFloat;
  return {GemmSource(program, problem, config), "gemm", GemmLaunch(problem, config, device), arguments,
    {{word, 0, {channels, static_cast<uint64_t>(Rows(problem))}, {channels}, rows_of_tile, 0, tf32},
      {word + cuda::kTensorMapWords, 1, {channels, static_cast<uint64_t>(problem.filters)}, {channels},
        static_cast<uint32_t>(config.tile_n), 0, tf32}}};
}

}  // namespace ortplugin
