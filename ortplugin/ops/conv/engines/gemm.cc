#include "ortplugin/ops/conv/engines/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/ops/conv/engines/split_k.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int kColumns = 32;  // of a warp's rows that pass through shared memory at once
constexpr int kPitch = kColumns + 8;
constexpr int64_t kStaticShared = 256;  // barriers
constexpr int kMostStages = 10;
constexpr int kBand = 16;  // tiles of columns after which blocks go on to the next rows, of twice as many and more
constexpr int kMostCluster = 8;  // that every GPU with clusters takes
constexpr int kMostSplit = 6;  // the largest that was measured
// A product with its norm may take so many microseconds more than alone, and so many times as long, and must keep half
// of the multiprocessors busy. On an H100 (2026-11-26) BERT-base of 8x128 tokens is 7% faster so, by products of 1.28
// times the cost, and ViT-B/16 6%; Llama's of 256 rows, 1.7 times in 32 blocks, would be 9% slower.
constexpr double kNormCost = 3.5, kNormFactor = 1.3;

// Microseconds in which the blocks of a cluster begin together, and exchange the sums of a tile: from 56 products of
// 128 to 392 rows in fp16 on an H100 (2026-11-27), with a deviation of 0.6.
constexpr double kExchange = 0.7, kExchangeOfBlock = 0.2;

// Tiles of a kind, and what they cost on an H200 in microseconds. Of a tile of n columns the MMAs of 128 bytes of
// channels take step + step_n * n, and what else there is to it takes rest + rest_n * n; a launch comes once. Where all
// multiprocessors are busy each MMA takes crowd_n * n longer, and turn_n * n is what a tile's program takes from the
// MMAs of the other warpgroup. Fitted to 37 products of 256 to 25,088 rows in fp16 (2026-11-25; those of two
// warpgroups to 13 on an H100, 2026-11-26, of which the choice takes 15% longer than the best at most), and to 27 of 8
// to 25,088 rows in TF32 (2026-11-26), of which it took 1.7% longer on average, 27% at most (of 8 rows).
struct TileKind {
  int consumers, bytes_k;  // of a copy's channels
  bool take_turns;
  int m_tiles;  // of a warpgroup
  int least_n, most_n;  // in steps of 16
  double launch, step, step_n, rest, rest_n;
  double crowd_n = 0, turn_n = 0;
};
constexpr int kStepN = 16;
constexpr TileKind kHalfTiles[] = {
  {1, 256, false, 1, 64, 128, 1.30, -0.008, 0.00195, 1.01, 0.0037},
  {1, 128, false, 1, 144, 192, 0.60, 0.055, 0.00109, 0.49, 0.0150},
  {2, 128, false, 1, 96, 256, 1.40, 0.038, 0.00200, 0.39, 0.0101, 0.0004},
  {2, 128, true, 2, 96, 160, 0.00, 0.061, 0.00205, 1.39, 0.0000, 0, 0.0105},
};
constexpr TileKind kFloatTiles[] = {
  {1, 256, false, 1, 64, 128, -1.433, 0.2089, -0.00032, -1.457, 0.04717},
  {1, 128, false, 1, 96, 192, -1.112, 0.1826, 0.00037, -0.162, 0.03118},
  {2, 128, false, 1, 96, 224, -2.425, 0.0453, 0.00203, 2.502, 0.02836},
  {2, 128, true, 2, 96, 160, -5.589, -0.0268, 0.00281, 5.287, 0.05335},
  {2, 256, false, 1, 96, 144, 0.829, -0.0112, 0.00304, -0.723, 0.03023},
};
// Of filters of several taps, or with strides, on an H100 (2026-11-27), in fp16 and TF32.
constexpr TileKind kImplicitTiles[] = {
  {1, 256, false, 1, 32, 128, 1.30, 0.120, 0.00050, 0.20, 0.0120},
  {1, 128, false, 1, 32, 128, 1.30, 0.120, 0.00050, 0.20, 0.0120},
  {2, 128, false, 1, 32, 256, 1.40, 0.100, 0.00160, 0.39, 0.0101, 0.0004},
  {2, 128, false, 2, 32, 128, 1.40, 0.080, 0.00450, 2.60, 0.0000},
  {2, 128, true, 2, 64, 160, 0.00, 0.061, 0.00205, 1.39, 0.0000, 0, 0.0105},
  {3, 128, false, 1, 64, 128, 1.40, 0.030, 0.00300, 1.00, 0.0200, 0.0007},
};

// Of fp32 without TF32, by an estimate: three MMAs in place of one.
constexpr TileKind kExactTiles[] = {
  {1, 128, false, 1, 32, 128, 2.00, 0.250, 0.00300, 0.50, 0.0150},
  {2, 128, false, 1, 64, 128, 2.00, 0.150, 0.00800, 0.50, 0.0150},
};

// Rows of a tile.
int64_t TileM(const TileKind& kind) { return 64 * kind.m_tiles * (kind.take_turns ? 1 : kind.consumers); }

int64_t Rows(const Contraction& problem) { return problem.batch * problem.rows().out * problem.columns().out; }

int64_t Taps(const Contraction& problem) { return problem.rows().kernel * problem.columns().kernel; }

// Of the result, in a tile of so many columns: the others are the gate's.
int64_t Columns(const Contraction& problem, int64_t tile_n) { return problem.gated ? tile_n / 2 : tile_n; }

int64_t Tiles(const Contraction& problem, int64_t tile_m, int64_t tile_n) {
  return DivideUp(Rows(problem), tile_m) * problem.groups * DivideUp(problem.group_filters(), Columns(problem, tile_n));
}

// fp32 without TF32.
bool IsExact(const Contraction& problem) { return problem.dtype() == DType::kFloat && !problem.allow_tf32; }

// Columns that are read and written at once.
int64_t Vector(const Contraction& problem) {
  return std::min(16 / Size(problem), problem.group_filters() & -problem.group_filters());
}

double Cost(const Contraction& problem, const TileKind& kind, int tile_n, int split_k, const DeviceFacts& device) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  constexpr int kWide = 160;  // what else a thread has in registers leaves too few for operands
  if (Vector(problem) < 4 && (kind.take_turns ? tile_n > 96 : tile_n > kWide)) return kNever;
  // What else a copy holds are the next group's channels, of which 0 times infinity would be NaN.
  const int64_t bytes = problem.group_channels() * Size(problem);
  if (problem.groups > 1 && bytes % kind.bytes_k != 0) return kNever;
  const auto all = double(Tiles(problem, TileM(kind), tile_n) * split_k);
  const auto tiles = int64_t(std::ceil(all / device.multiprocessors));  // of a block
  if (kind.take_turns && tiles == 1) return kNever;  // nobody to take turns with
  const double busy = std::min(1.0, all / device.multiprocessors);
  // One warpgroup with wide tiles waits for its program between them, and for copies where all multiprocessors have
  // some: of 1576 x 3072 x 768, 125 blocks with 160 columns take 18.7 us, 104 of two with 96 columns 16.1 (H100).
  if (kind.consumers == 1 && tile_n > 128 && (tiles > 1 || busy > 0.9)) return kNever;
  const int64_t taps = Taps(problem),
                copies = DivideUp(taps * DivideUp(bytes, int64_t{kind.bytes_k}), int64_t{split_k});
  const int64_t whole = copies * (kind.bytes_k / 128);
  const double mmas = double(taps > 1 ? whole : std::min(whole, DivideUp(bytes, 128))) *
      (kind.step + (kind.step_n + kind.crowd_n * busy) * tile_n) +
    kind.turn_n * busy * tile_n;
  const double rest = kind.rest + kind.rest_n * tile_n;
  const auto count = double(tiles);
  const double exchange = split_k > 1 ? kExchange + kExchangeOfBlock * split_k : 0;
  if (!kind.take_turns) return kind.launch + count * (mmas + rest) + exchange;
  // The tensor cores are what there is least of, or each warpgroup's own tiles.
  const auto own = double(DivideUp(tiles, int64_t{2}));
  return kind.launch + std::max(count * mmas + rest, own * (mmas + rest) + (tiles % 2 == 0 ? mmas : 0));
}

int64_t StageBytes(const Contraction& problem, const GemmConfig& config) {
  return (config.tile_m() + config.tile_n) * config.tile_k * Size(problem) * (1 + IsExact(problem));
}
// Whether the program may run where the sums are: it reads nothing of a row, and has one result, of 16 bits. What is
// read of the only row is of a pixel (engine.cc).
bool RunsFirst(const Program& program, const Contraction& problem) {
  const auto is_of_columns = [](const Shape& shape) {
    return ElementCount(shape) == (shape.empty() ? 1 : shape.back());
  };
  return Size(problem) == 2 && problem.group_filters() % 8 == 0 && program.results().size() == 1 &&
    SizeOf(program.result(0).dtype) == 2 && (Rows(problem) > 1 || problem.operands.empty()) &&
    std::all_of(problem.operands.begin(), problem.operands.end(), is_of_columns);
}

int64_t StagingBytes(const GemmConfig& config) { return int64_t{config.consumers} * 4 * 16 * kPitch * 4; }

// Chunks of a block: all of a tile, or its share of them.
int64_t Chunks(const Contraction& problem, const GemmConfig& config) {
  return DivideUp(DivideUp(Columns(problem, config.tile_n), int64_t{kColumns}), int64_t{config.split_k});
}

// Where the blocks of a tile leave each other their sums.
int64_t PartsBytes(const Contraction& problem, const GemmConfig& config) {
  if (config.split_k == 1) return 0;
  return config.split_k * (1 + problem.gated) * Chunks(problem, config) * config.consumers * 64 * kColumns * 4;
}

// Registers of a thread that hold what the program reads for a chunk of columns.
int64_t OperandRegisters(const Program& program, const Contraction& problem) {
  const int64_t vector = Vector(problem), items = 16 * kColumns / vector / 32;
  int64_t registers = 0;
  for (size_t i = 0; i < problem.operands.size(); ++i) {
    const Shape& shape = problem.operands[i];
    const int64_t columns = shape.empty() || shape.back() != problem.filters ? 1 : vector;
    const ValueId parameter = program.parameters()[i + 1 + problem.gated];
    const auto size = int64_t(SizeOf(program.value(parameter).dtype));
    const bool is_of_rows = !shape.empty() && ElementCount(shape) > shape.back();
    registers += DivideUp(columns * size, int64_t{4}) * (is_of_rows ? items : 1);
  }
  return registers;
}

// How many such chunks fit beside the accumulators, what a norm keeps of them, and some thirty registers more.
int64_t ChunksAhead(
  const Program& program, const Contraction& problem, const GemmConfig& config, bool runs_first, bool is_normalized) {
  const int64_t tiles = config.m_tiles;
  const int64_t chunks = Chunks(problem, config) * (runs_first ? 1 : tiles);
  const int64_t kept = is_normalized ? config.tile_n / 2 + 24
    : runs_first                     ? (program.statements().size() > 1 ? 24 : 20)
    : problem.gated                  ? 16
                                     : 0;
  const int64_t of_two = runs_first ? 176 : 146;  // where the program runs there is less else in registers
  const int64_t room = (config.take_turns || config.consumers == 1 ? 200
                           : config.consumers == 2                 ? of_two
                                                                   : 96) -
    tiles * (1 + IsExact(problem)) * config.tile_n / 2 - kept;
  if (Vector(problem) < 4) return 1;
  return std::clamp(room / std::max<int64_t>(1, OperandRegisters(program, problem)), int64_t{1}, chunks);
}

struct Choice {
  GemmConfig config;  // but for its stages
  double cost;
};

// Of tiles in any number, or where `most_cluster` is not 0, of those of which clusters of up to so many blocks have
// whole rows, each block one tile. Of few tiles a cluster may have one.
Choice FindCheapest(const Contraction& problem, int most_cluster, const DeviceFacts& device) {
  Choice best{{}, std::numeric_limits<double>::infinity()};
  const int64_t bytes = Taps(problem) * problem.channels * Size(problem);
  const auto consider = [&](const TileKind& kind, int tile_n, int cluster, int split_k) {
    if (tile_n < kind.least_n || tile_n > kind.most_n) return;
    // Others read more of X than their last tile has use for: of 1568 x 4608 x 512, 125 blocks of 112 columns take
    // 19 us, 100 of 128 columns 14 (H100).
    const int64_t filters = problem.group_filters();
    if (!IsPointwise(problem) && tile_n % 64 != 0 && filters % tile_n != 0 && tile_n < filters) return;
    const double cost = Cost(problem, kind, tile_n, split_k, device);
    if (cost >= best.cost) return;
    const int tile_k = kind.bytes_k / int(Size(problem));
    const bool rows_first = most_cluster == 0 && Rows(problem) < problem.filters;
    best = {{tile_n, kind.consumers, tile_k, kind.take_turns, 0, rows_first, cluster, split_k, kind.m_tiles}, cost};
  };
  const auto consider_all = [&](const TileKind& kind) {
    if (most_cluster == 0)
      for (int tile_n = kind.least_n; tile_n <= kind.most_n; tile_n += kStepN) {
        const int64_t tiles = Tiles(problem, TileM(kind), tile_n), copies = DivideUp(bytes, int64_t{kind.bytes_k});
        const bool may_divide = kind.consumers == 1 && problem.groups == 1;
        for (int split_k = 1; split_k <= (may_divide ? std::min<int64_t>(kMostSplit, copies) : 1); ++split_k) {
          // Two have multiprocessors beside each other, of which none is left over.
          const int64_t room = split_k == 2 ? device.multiprocessors : RoomForClusters(split_k, device);
          if (split_k == 1 || tiles * split_k <= room) consider(kind, tile_n, 1, split_k);
        }
      }
    for (int cluster = 1; cluster <= std::min(most_cluster, kMostCluster) && !kind.take_turns; ++cluster) {
      const int64_t tiles = Tiles(problem, TileM(kind), problem.filters) * cluster;
      if (problem.filters % (int64_t{cluster} * kColumns) == 0 && tiles <= device.multiprocessors)
        consider(kind, int(std::min<int64_t>(problem.filters / cluster, INT32_MAX)), cluster, 1);
    }
  };
  if (IsExact(problem))
    std::for_each(std::begin(kExactTiles), std::end(kExactTiles), consider_all);
  else if (!IsPointwise(problem))
    std::for_each(std::begin(kImplicitTiles), std::end(kImplicitTiles), consider_all);
  else if (Size(problem) == 4)
    std::for_each(std::begin(kFloatTiles), std::end(kFloatTiles), consider_all);
  else
    std::for_each(std::begin(kHalfTiles), std::end(kHalfTiles), consider_all);
  return best;
}

int Stages(const Contraction& problem, const GemmConfig& config, const DeviceFacts& device, int64_t rest) {
  const int64_t room = device.shared_per_block - rest - StagingBytes(config) - PartsBytes(problem, config);
  return int(std::min<int64_t>(kMostStages, room / StageBytes(problem, config)));
}

const char* Entry(const Contraction& problem) { return IsPointwise(problem) ? "gemm" : "implicit_gemm"; }

// What X is read by: of several taps, or with strides, im2col.
cuda::TensorMap MapOfX(const Contraction& problem, const GemmConfig& config, size_t word) {
  const Window &h = problem.rows(), &w = problem.columns();
  const auto channels = uint64_t(problem.channels), columns = uint64_t(w.size), rows = uint64_t(h.size);
  cuda::TensorMap map{word, 0, {channels, uint64_t(Rows(problem))}, {channels}, uint32_t(config.tile_m())};
  if (problem.dtype() == DType::kFloat) map.element = IsExact(problem) ? cuda::Element::kFloat : cuda::Element::kTf32;
  if (IsPointwise(problem)) return map;
  map.sizes = {channels, columns, rows, uint64_t(problem.batch)};
  map.steps = {channels, columns * channels, rows * columns * channels};
  const auto last = [](const Window& window) { return int(window.pad_end - window.extent() + 1); };
  map.im2col = {{int(-w.pad_begin), int(-h.pad_begin)}, {last(w), last(h)}, {uint32_t(w.stride), uint32_t(h.stride)}};
  return map;
}

EngineKernel Make(const Program& program, const Contraction& problem, const GemmConfig& config, const NormTail* tail,
  const DeviceFacts& device) {
  std::vector<uint64_t> arguments = ConvArguments(program, problem, 1, 1, tail);
  const auto word = size_t(RoundUp(int64_t(arguments.size()), 8));  // of the maps
  const auto channels = uint64_t(problem.group_channels()), filters = uint64_t(problem.filters);
  const auto taps = uint64_t(Taps(problem));
  const auto rows = uint32_t(config.is_pair ? config.tile_n / 2 : Columns(problem, config.tile_n));
  std::vector<cuda::TensorMap> maps{MapOfX(problem, config, word)};
  for (size_t input = 1; input <= 1u + problem.gated; ++input) {
    maps.push_back({word + input * cuda::kTensorMapWords, input, {channels, filters, taps, 1},
      {taps * channels, channels, filters * taps * channels}, rows});
    maps.back().element = maps[0].element;
  }
  arguments.resize(word + maps.size() * cuda::kTensorMapWords);
  return {
    GemmSource(program, problem, config, tail), Entry(problem), GemmLaunch(problem, config, device), arguments, maps};
}

// What FitsGemm and FitsImplicitGemm have in common.
bool FitsMaps(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem, true)) return false;
  if (!device.has_wgmma() || problem.transposed || problem.x_channels_first || problem.y_channels_first) return false;
  if (problem.group_channels() * Size(problem) % 16 != 0) return false;  // rows begin at multiples of 16 bytes
  return problem.groups == 1 || problem.group_channels() * Size(problem) % 128 == 0;  // as Cost wants
}

}  // namespace

bool IsPointwise(const Contraction& problem) {
  return std::all_of(
    problem.windows.begin(), problem.windows.end(), [](const Window& window) { return window.is_pointwise(); });
}

bool FitsGemm(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  return FitsMaps(program, problem, device) && IsPointwise(problem);
}

bool FitsImplicitGemm(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsMaps(program, problem, device) || problem.gated || IsPointwise(problem)) return false;
  constexpr int64_t kLeastBytes = 128 << 10;  // on less drivers up to CUDA 13.1 err, as CUTLASS notes
  if (ElementCount(problem.x()) * Size(problem) < kLeastBytes) return false;
  // What an im2col map and its copies take for two spatial dimensions.
  return std::all_of(problem.windows.begin(), problem.windows.end(), [](const Window& window) {
    return window.stride <= 8 && window.pad_begin <= 127 && window.pad_end <= 127 && window.extent() <= 128;
  });
}

bool IsImplicitGemmFast(const Program&, const Contraction& problem, const DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  const TargetLimits& limits = target->limits;
  const int64_t bytes = problem.group_channels() * Size(problem);
  if (double(bytes) < limits.implicit_gemm_least_fill * double(RoundUp(bytes, 128))) return false;
  if (IsExact(problem)) return limits.matmul_exact_pays != 0;
  if (Size(problem) == 4)
    return ElementCount(problem.x()) + ElementCount(problem.result()) <= limits.implicit_gemm_most_elements_tf32;
  return Taps(problem) * problem.group_channels() < limits.implicit_gemm_long_sum ||
    ConfigureGemm(problem, device).split_k == 1;
}

bool IsGemmFast(const Program&, const Contraction& problem, const DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  if (IsExact(problem)) return target->limits.matmul_exact_pays != 0;
  if (problem.dtype() == DType::kFloat) return target->limits.matmul_tf32_pays != 0;
  const bool is_product = problem.rows().size * problem.columns().size == 1;
  return is_product || problem.groups > 1 ||
    Rows(problem) * problem.channels * problem.filters <= target->limits.gemm_most_multiply_adds;
}

GemmConfig ConfigureGemm(const Contraction& problem, const DeviceFacts& device) {
  GemmConfig config = FindCheapest(problem, 0, device).config;
  config.stages = Stages(problem, config, device, kStaticShared);
  // Where pairs don't leave blocks more tiles. In TF32 ViT-B/16 is 3% slower so, by filters of several taps U-Net 2%.
  const auto tiles_of_block = [&](int64_t together) {
    return DivideUp(
      Tiles(problem, config.tile_m() * together, config.tile_n), int64_t{device.multiprocessors / together});
  };
  config.is_pair = config.take_turns && Size(problem) == 2 && IsPointwise(problem) && device.multiprocessors > 1 &&
    tiles_of_block(2) <= tiles_of_block(1);
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
    const int64_t pixels = ElementCount(Shape(first, first + std::ptrdiff_t(spatial)));
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

std::string GemmSource(
  const Program& program, const Contraction& problem, const GemmConfig& config, const NormTail* tail) {
  const bool runs_first = tail == nullptr && RunsFirst(program, problem);
  std::ostringstream text;
  text << ConvPreamble(program, problem, tail)
       << Defines({{"RUNS_FIRST", runs_first}, {"TILE_N", config.tile_n}, {"TILE_K", config.tile_k},
            {"CONSUMERS", config.consumers}, {"STAGES", config.stages}, {"GROUP_CHANNELS", problem.group_channels()},
            {"GROUP_FILTERS", problem.group_filters()}, {"TAKE_TURNS", config.take_turns}, {"M_TILES", config.m_tiles},
            {"IS_IMPLICIT", !IsPointwise(problem)}, {"ROWS_FIRST", config.rows_first}, {"BAND", kBand},
            {"COLUMNS", kColumns}, {"AHEAD", ChunksAhead(program, problem, config, runs_first, tail != nullptr)},
            {"VECTOR", Vector(problem)}, {"SPLIT_K", config.split_k}, {"CLUSTER", config.together()},
            {"IS_PAIR", config.is_pair}, {"IS_NORMALIZED", tail != nullptr}, {"IS_EXACT", IsExact(problem)}})
       << "#define ENTRY " << Entry(problem) << "\n\n"
       << WgmmaSource(problem.dtype(), config.tile_n) << "\n"
       << kTmaSource << "\n"
       << kClusterSource << "\n"
       << kGemmEpilogueSource << "\n";
  if (tail != nullptr) {
    text << "#define TILE_ROWS " << config.tile_m() << "\n"
         << NormConstants(*tail->norm) << "#define STORES_VALUES " << tail->stores_values << "\n"
         << kGemmNormSource;
  }
  text << kGemmSource;
  return text.str();
}

cuda::LaunchShape GemmLaunch(const Contraction& problem, const GemmConfig& config, const DeviceFacts& device) {
  const int64_t tiles_m = 1 + config.is_pair;
  const int64_t blocks = Tiles(problem, config.tile_m() * tiles_m, config.tile_n) * tiles_m * config.split_k;
  const int64_t others = IsExact(problem) ? 256 : config.take_turns ? 128 : 64;
  return {std::min<int64_t>(blocks, device.multiprocessors / tiles_m * tiles_m), config.consumers * 128 + others,
    config.stages * StageBytes(problem, config) + StagingBytes(config) + PartsBytes(problem, config)};
}

EngineKernel MakeGemm(const Program& program, const Contraction& given, const DeviceFacts& device) {
  const Contraction problem = WithRowsAsBatch(given);
  return Make(program, problem, ConfigureGemm(problem, device), nullptr, device);
}

EngineKernel MakeImplicitGemm(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  return Make(program, problem, ConfigureGemm(problem, device), nullptr, device);
}

std::optional<GemmConfig> ConfigureGemmNorm(const Program& program, const Contraction& problem, const NormTail& tail,
  int most_cluster, bool only_where_fast, const DeviceFacts& device) {
  const NormProgram& norm = *tail.norm;
  const std::vector<size_t>&before = norm.prologue_operands.parameters, &behind = norm.epilogue_operands.parameters;
  if (program.results().size() != 1 || before != std::vector<size_t>{0} || !norm.prologue_operands.results.empty() ||
    std::find(behind.begin(), behind.end(), 0) != behind.end() || norm.axis != -1 || !norm.axes.empty() ||
    norm.groups > 0)
    return {};
  if (!FitsGemm(program, problem, device) || problem.groups > 1 || IsExact(problem)) return {};
  const Choice apart = FindCheapest(problem, 0, device), whole = FindCheapest(problem, most_cluster, device);
  if (whole.cost == std::numeric_limits<double>::infinity()) return {};
  GemmConfig config = whole.config;
  if (only_where_fast &&
    (whole.cost > std::min(apart.cost + kNormCost, apart.cost * kNormFactor) ||
      2 * Tiles(problem, config.tile_m(), config.tile_n) < device.multiprocessors))
    return {};
  config.stages = Stages(problem, config, device, kStaticShared + int64_t{config.cluster} * config.tile_m() * 8);
  return config;
}

EngineKernel MakeGemmNorm(const Program& program, const Contraction& problem, const GemmConfig& config,
  const NormTail& tail, const DeviceFacts& device) {
  return Make(program, problem, config, &tail, device);
}

}  // namespace ortplugin
