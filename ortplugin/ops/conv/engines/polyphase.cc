#include "ortplugin/ops/conv/engines/polyphase.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kTileK = 64;  // channels of a tap that are copied at once

// The taps along one axis that each phase meets: of pixel j stride + phase the first one is `first`, which stands on
// pixel j + shift of X; the next ones are `apart` taps further and `back` pixels before it.
struct Axis {
  struct Taps {
    int64_t first, shift, count;
  };
  std::vector<Taps> phases;
  int64_t apart, back;

  Axis(int64_t kernel, int64_t stride, int64_t dilation, int64_t pad) {
    const int64_t common = std::gcd(stride, dilation);
    apart = stride / common;
    back = dilation / common;
    for (int64_t phase = 0; phase < stride; ++phase) {
      int64_t tap = 0;
      while (tap < apart && (phase + pad - tap * dilation) % stride != 0) ++tap;
      const bool has_any = tap < apart && tap < kernel;
      phases.push_back(
        {tap, has_any ? (phase + pad - tap * dilation) / stride : 0, has_any ? DivideUp(kernel - tap, apart) : 0});
    }
  }

  std::string ToString() const {
    std::ostringstream text;
    for (const Taps& taps : phases) text << "{" << taps.first << ", " << taps.shift << ", " << taps.count << "}, ";
    return text.str();
  }
};

Axis Rows(const Contraction& problem) {
  return {problem.rows().kernel, problem.rows().stride, problem.rows().dilation, problem.rows().pad_begin};
}
Axis Columns(const Contraction& problem) {
  return {problem.columns().kernel, problem.columns().stride, problem.columns().dilation, problem.columns().pad_begin};
}

// What the kernel needs to know of two neighbouring elements of all results: their words of 32 bits, and how four such
// pairs become eight elements.
std::string PairSource(const Program& program) {
  std::ostringstream words, joins;
  size_t count = 0;
  for (size_t r = 0; r < program.results().size(); ++r) {
    const size_t size = SizeOf(program.result(r).dtype) / 2;
    words << "  if (i < " << count + size << ") return pair.r" << r << ".words[i - " << count << "];\n";
    joins << "#pragma unroll\n  for (int i = 0; i < " << 4 * size << "; ++i) all.r" << r << ".words[i] = pairs[i / "
          << size << "].r" << r << ".words[i % " << size << "];\n";
    count += size;
  }
  return "#define RESULT_WORDS " + std::to_string(count) + "\nDEVICE unsigned& word_of(Results<2>& pair, int i) {\n" +
    words.str() +
    "  return pair.r0.words[0];\n}\n"
    "DEVICE void join(Results<8>& all, const Results<2> (&pairs)[4]) {\n" +
    joins.str() + "}\n";
}

int64_t TileM(const PolyphaseConfig& config) { return 16 * config.warps * config.m_tiles; }

int64_t Phases(const Contraction& problem) { return problem.rows().stride * problem.columns().stride; }

int64_t Tiles(const Contraction& problem, const PolyphaseConfig& config) {
  const int64_t height = problem.rows().stride, width = problem.columns().stride;
  const int64_t pixels = problem.batch * DivideUp(problem.rows().out, height) * DivideUp(problem.columns().out, width);
  return DivideUp(pixels, TileM(config)) * DivideUp(problem.filters, config.tile_n);
}

int64_t Blocks(const Contraction& problem, const PolyphaseConfig& config, const DeviceFacts& device) {
  // All phases of a tile begin together.
  const int64_t room = int64_t{device.multiprocessors} * config.min_blocks / Phases(problem);
  return std::min(Tiles(problem, config), std::max<int64_t>(1, room)) * Phases(problem);
}

// Microseconds but for what is the same in all configurations: what the slowest block's steps and tiles take, either
// alone or, where the multiprocessor's blocks compete, by the bytes that come from shared memory and the results.
double Cost(const Contraction& problem, const PolyphaseConfig& config, const DeviceFacts& device) {
  const TargetLimits& limits = LimitsNear(device);
  const double rows = double(TileM(config)), columns = config.tile_n;
  const int64_t blocks = Blocks(problem, config, device), units = Tiles(problem, config) * Phases(problem);
  const double share = double(std::min<int64_t>(config.min_blocks, DivideUp(blocks, int64_t(device.multiprocessors))));
  const double step = std::max(limits.polyphase_step + limits.polyphase_step_latency / (config.stages - 2),
    share * (limits.polyphase_step_edge * (rows + columns) + limits.polyphase_step_area * rows * columns));
  const double tile = std::max(limits.polyphase_tile + limits.polyphase_tile_columns * columns * config.m_tiles,
    share * limits.polyphase_tile_area * rows * columns);
  std::vector<int64_t> steps;
  for (const Axis::Taps& down : Rows(problem).phases)
    for (const Axis::Taps& right : Columns(problem).phases)
      steps.push_back(DivideUp(problem.channels, kTileK) * down.count * right.count);
  const int64_t phases = Phases(problem), all = std::accumulate(steps.begin(), steps.end(), int64_t{0});
  double worst = 0;
  for (int64_t block = 0; block < phases; ++block) {
    const int64_t rounds = DivideUp(units - block, blocks);
    int64_t made = rounds / phases * all;
    for (int64_t round = 0; round < rounds % phases; ++round) made += steps[size_t((block + round) % phases)];
    worst = std::max(worst, double(made) * step + double(rounds) * tile);
  }
  return worst;
}

}  // namespace

bool FitsPolyphase(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem) || problem.dtype() == DType::kFloat || problem.groups != 1) return false;
  if (!device.has_wgmma() || !problem.transposed) return false;
  if (problem.channels % engine_limits::wgmma_vector != 0 || problem.filters % engine_limits::wgmma_vector != 0)
    return false;
  for (const ValueId result : program.results())
    if (SizeOf(program.value(result).dtype) < 2) return false;
  if (problem.x_channels_first || problem.y_channels_first) return false;
  constexpr int64_t kMost = 1 << 13, kMostPhases = 16;  // a pixel's row and column, and how far taps reach, in 16 bits
  const int64_t rows = DivideUp(problem.rows().out, problem.rows().stride);
  const int64_t columns = DivideUp(problem.columns().out, problem.columns().stride);
  for (const int64_t each :
    {problem.rows().size, problem.columns().size, rows, columns, problem.rows().pad_begin, problem.columns().pad_begin,
      problem.rows().kernel * problem.rows().dilation, problem.columns().kernel * problem.columns().dilation})
    if (each >= kMost) return false;
  // Offsets of pixels of a phase, where X may end before it does, in bytes in 32 bits.
  const int64_t last = ((problem.batch - 1) * problem.rows().size + rows) * problem.columns().size + columns;
  if (last * problem.channels >= int64_t{1} << 31) return false;
  return Phases(problem) > 1 && Phases(problem) <= kMostPhases;
}

bool IsPolyphaseFast(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  const TargetLimits& limits = target->limits;
  const int64_t taps = problem.rows().kernel * problem.columns().kernel;
  const int64_t multiply_adds =
    problem.batch * problem.rows().size * problem.columns().size * taps * problem.channels * problem.filters;
  // A program cuDNN leaves to a kernel behind it.
  return !IsIdentity(program) || multiply_adds < limits.polyphase_much || problem.filters >= limits.polyphase_wide;
}

PolyphaseConfig ConfigurePolyphase(const Contraction& problem, const DeviceFacts& device) {
  constexpr PolyphaseConfig kConfigs[] = {
    {256, 1, 8, 4, 1},
    {128, 2, 8, 4, 1},
    {128, 1, 8, 4, 1},
    {64, 1, 8, 4, 2},
    {64, 1, 4, 4, 3},
    {64, 1, 4, 5, 2},
    {64, 1, 4, 7, 1},
  };
  return *std::min_element(std::begin(kConfigs), std::end(kConfigs),
    [&](const auto& one, const auto& other) { return Cost(problem, one, device) < Cost(problem, other, device); });
}

std::string PolyphaseSource(const Program& program, const Contraction& problem, const PolyphaseConfig& config) {
  const Axis rows = Rows(problem), columns = Columns(problem);
  return Joined(ConvPreamble(program, problem),
    Defines({{"TILE_N", config.tile_n}, {"M_TILES", config.m_tiles}, {"WARPS", config.warps}, {"STAGES", config.stages},
      {"MIN_BLOCKS", config.min_blocks}, {"TAPS_APART_H", rows.apart}, {"TAPS_APART_W", columns.apart},
      {"SHIFT_H", rows.back}, {"SHIFT_W", columns.back}}),
    "// A phase's first tap, the pixel of X that it meets, for the phase's first pixel, and how many taps there "
    "are.\n",
    "struct Taps {\n  int first, shift, count;\n};\n", "__constant__ const Taps taps_h[] = {", rows.ToString(), "};\n",
    "__constant__ const Taps taps_w[] = {", columns.ToString(), "};\n\n", PairSource(program),
    WgmmaSource(problem.dtype(), config.tile_n, true), "\n", kPolyphaseSource);
}

cuda::LaunchShape PolyphaseLaunch(
  const Contraction& problem, const PolyphaseConfig& config, const DeviceFacts& device) {
  return {
    Blocks(problem, config, device), config.warps * 32, config.stages * (TileM(config) + config.tile_n) * kTileK * 2};
}

EngineKernel MakePolyphase(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const PolyphaseConfig config = ConfigurePolyphase(problem, device);
  return {PolyphaseSource(program, problem, config), "polyphase", PolyphaseLaunch(problem, config, device),
    ConvArguments(program, problem, problem.rows().stride, problem.columns().stride)};
}

}  // namespace ortplugin
