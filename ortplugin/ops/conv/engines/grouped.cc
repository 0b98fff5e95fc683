#include "ortplugin/ops/conv/engines/grouped.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>

#include "ortplugin/ops/conv/engines/gemm.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kMostFilter = 7;  // rows and columns of a filter
constexpr int64_t kMostOctets = 64;  // of a chunk's sums, which are unrolled
constexpr int64_t kMostSums = 64;  // registers of a thread
constexpr int64_t kMostRagged = 64;  // channels and filters of one group
constexpr int64_t kMostReach = 1 << 20;  // pixels of a filter or pad: far more than shared memory holds

// Sizes of grouped.cu, which has their meaning, by the names of its macros.
struct Tiling {
  bool flat;
  int64_t merged, chunk, columns, item_units, block_units, block_subs;  // the work of a block, by channels
  int64_t tile_h, tile_w, parts, warps_m, warps_n, stages, min_blocks;
  // What follows from them.
  int64_t taps, unit_channels, unit_filters, units, chunks, subs, slices, items, step_h, step_w, pixels, w_rows;
  int64_t octet, x_vector, w_vector, vector, shared_bytes, tiles;
};

// Elements of 16 bytes.
int64_t OctetOf(const Contraction& problem) { return 16 / int64_t(SizeOf(problem.dtype())); }

// From one row of X that matters to the next.
int64_t StepOf(const Window& window) {
  return window.kernel == 1 ? window.stride : std::gcd(window.stride, window.dilation);
}

void Complete(const Contraction& problem, Tiling* t) {
  const Window &rows = problem.rows(), &columns = problem.columns();
  t->taps = rows.kernel * columns.kernel;
  t->unit_channels = t->merged * problem.group_channels();
  t->unit_filters = t->merged * problem.group_filters();
  t->units = DivideUp(problem.groups, t->merged);
  t->chunks = DivideUp(DivideUp(t->unit_channels, OctetOf(problem)), t->chunk);
  t->subs = DivideUp(t->unit_filters, t->columns * 8);
  t->slices = DivideUp(t->units, t->block_units) * DivideUp(t->subs, t->block_subs);
  t->items = t->block_units / t->item_units * t->block_subs;
  t->step_h = StepOf(rows);
  t->step_w = StepOf(columns);
  const int64_t move_w = columns.stride / t->step_w;
  t->pixels = ((t->tile_h - 1) * (rows.stride / t->step_h) + (rows.kernel - 1) * (rows.dilation / t->step_h) + 1) *
    (t->tile_w + (columns.kernel - 1) * (columns.dilation / t->step_w) / move_w) * move_w;
  t->w_rows = t->block_units * t->block_subs * t->columns * 8;
  t->octet = OctetOf(problem);
  t->x_vector = std::gcd(std::gcd(t->unit_channels, problem.channels), t->octet);
  t->w_vector = std::gcd(problem.group_channels(), t->octet);
  t->vector = std::gcd(std::gcd(t->unit_filters, problem.filters), int64_t{8});
  const int64_t x = t->pixels * (t->block_units * t->chunk | 1) * 16,
                w = t->w_rows * (t->taps * t->chunk | 1) * 16 + 16;
  const int64_t sums = 16 * (t->item_units * t->columns | 1) * 8 * 4;
  t->shared_bytes = t->stages * x + (t->chunks > 1 ? t->stages : 1) * w + t->warps_m * t->warps_n * sums;
  t->tiles = t->flat ? DivideUp(problem.batch * rows.out * columns.out, t->tile_w)
                     : problem.batch * DivideUp(rows.out, t->tile_h) * DivideUp(columns.out, t->tile_w);
}

// How many groups make a unit: the fewest multiplications, of those the fewest octets of channels.
int64_t MergedOf(const Contraction& problem) {
  const auto cost = [&](int64_t merged) {
    const int64_t channels = merged * problem.group_channels(), filters = merged * problem.group_filters();
    return double(DivideUp(channels, OctetOf(problem)) * (8 * DivideUp(filters, 8) + 1)) / double(merged);
  };
  int64_t best = 1;
  for (int64_t merged = 2; merged <= std::min<int64_t>(8, problem.groups); ++merged)
    if (cost(merged) < cost(best)) best = merged;
  return best;
}

int64_t Resident(const Contraction& problem, const Tiling& t, const DeviceFacts& device) {
  // Registers of a thread, about: narrow vectors of results are several at once.
  const int64_t sums = t.parts * t.item_units * t.columns * 4;
  const int64_t sizes = problem.has_open_sizes ? 48 : 0;  // the most that NVRTC 13.5 was seen to need for them
  const int64_t registers =
    std::min(RoundUp(sums + (t.vector <= 2 ? 112 : 104) + (t.octet == 4 ? 8 : 0), 8), int64_t{168}) + sizes;
  // A multiprocessor has four files of registers, whose warps are whole.
  const int64_t warps = device.registers_per_multiprocessor / 4 / (32 * registers) * 4;
  const int64_t most = std::min<int64_t>(8, warps / (t.warps_m * t.warps_n));
  return std::min(most, device.ResidentBlocks(t.warps_m * t.warps_n * 32, registers, t.shared_bytes));
}

// About the cycles that the convolution takes: what the busiest multiprocessor issues and moves, of which copies,
// multiplications and results overlap as far as it holds several tiles, and the latency of tiles one after another.
double Cost(const Tiling& t, int64_t resident, const DeviceFacts& device) {
  // Cycles but for the last: bytes of a cycle.
  constexpr double kTile = 1500, kChunk = 600, kCopy = 14.0 / 128, kMma = 1.6, kMatrices = 4, kBytes = 32;
  // Bytes that neighbouring elements move of memory, which has sectors of 32.
  const int64_t size = 16 / t.octet;
  const auto moved = [&](int64_t elements) { return RoundUp(elements * size, 32) + (elements * size % 32 ? 32 : 0); };
  const auto copied = [&](int64_t vectors, int64_t bytes) { return std::max(vectors * kCopy, bytes / kBytes); };
  const int64_t columns = t.item_units * t.columns, w = t.w_rows * t.taps * t.chunk * t.octet;
  const int64_t x = t.pixels * t.block_units * t.chunk * t.octet, filters = t.item_units * t.unit_filters;
  const double copy_w = copied(w / t.w_vector, w * size);
  const double copy_x =
    copied(x / t.x_vector, t.pixels * moved(t.chunks > 1 ? t.chunk * t.octet : t.block_units * t.unit_channels));
  const double copy = (copy_x + (t.chunks > 1 ? copy_w : 0)) * t.chunks;
  const double matrices = (t.item_units + 0.5 * columns / t.parts) * kMatrices;
  const int64_t parts = RoundUp(t.items, t.warps_n) * t.warps_m * t.parts;
  const double multiply = 0.5 * parts * t.chunks * t.taps * t.chunk * std::max(matrices, columns * kMma);
  const double results =
    parts * std::max(columns * (5 + 24.0 / t.vector), 16 * moved(std::min(columns * 8, filters)) / kBytes);
  const double sum = copy + multiply + results, most = std::max(copy, multiply + results);

  const int64_t blocks = t.tiles * t.slices, busiest = DivideUp(blocks, device.multiprocessors);
  const int64_t held = std::min(busiest, resident), warps = held * t.warps_m * std::min(t.warps_n, t.items);
  // A few warps alone do not keep a multiprocessor busy.
  const double tile = (most + (sum - most) / (held * t.stages)) * std::max(1.0, 8.0 / warps);
  const double waves = std::max(1.0, 1.0 * blocks / (device.multiprocessors * resident));
  return busiest * tile + (t.chunks > 1 ? 0 : held * copy_w) + waves * (kTile + kChunk * (t.chunks - 1));
}

struct Best {
  std::optional<Tiling> tiling;
  double cost = std::numeric_limits<double>::max();
};

void Consider(const Contraction& problem, const DeviceFacts& device, Tiling t, Best* best) {
  if (t.warps_m > 1 && (t.warps_m - 1) * t.parts * 16 >= t.tile_h * t.tile_w) return;  // a warp would be idle
  for (t.stages = 1; t.stages <= 2; ++t.stages) {
    Complete(problem, &t);
    const int64_t resident = Resident(problem, t, device), blocks = t.tiles * t.slices;
    // A second stage is for the next chunk or tile.
    if (resident < 1 || (t.stages == 2 && t.chunks == 1 && blocks <= resident * device.multiprocessors)) return;
    const double cost = Cost(t, resident, device);
    if (cost >= best->cost) continue;
    t.min_blocks = std::min(resident, DivideUp(blocks, device.multiprocessors));
    *best = {t, cost};
  }
}

// Of a block whose channels are chosen: its warps and pixels.
void TryTiles(const Contraction& problem, const DeviceFacts& device, Tiling t, Best* best) {
  const int64_t height = problem.rows().out, width = problem.columns().out;
  Complete(problem, &t);
  for (const auto& [m, n] : {std::pair{4, 1}, {2, 2}, {1, 4}, {8, 1}, {4, 2}, {2, 4}, {1, 8}, {2, 1}, {1, 2}, {1, 1}}) {
    // Of several chunks the sums stay in registers.
    if (n > t.items || (t.chunks > 1 && n < t.items)) continue;
    t.warps_m = m;
    t.warps_n = n;
    for (t.parts = 1; t.parts <= 2 && t.parts * t.item_units * t.columns * 4 <= kMostSums; ++t.parts) {
      const int64_t most = m * t.parts * 16;
      t.tile_h = 1;
      t.tile_w = most;
      if (t.flat) Consider(problem, device, t, best);
      for (int64_t pieces = DivideUp(width, most); !t.flat; ++pieces) {
        t.tile_w = DivideUp(width, pieces);
        t.tile_h = DivideUp(height, DivideUp(height, std::min(most / t.tile_w, height)));
        Consider(problem, device, t, best);
        if (t.tile_w < 6) break;
      }
    }
  }
}

std::optional<Tiling> Configure(const Contraction& problem, const DeviceFacts& device) {
  Tiling t{};
  t.merged = MergedOf(problem);
  t.flat = IsPointwise(problem);
  t.tile_h = t.tile_w = t.stages = 1;
  const int64_t units = DivideUp(problem.groups, t.merged);
  const int64_t octets = DivideUp(t.merged * problem.group_channels(), OctetOf(problem));
  const int64_t columns = DivideUp(t.merged * problem.group_filters(), 8);
  const int64_t taps = problem.rows().kernel * problem.columns().kernel;
  // The size of one of `count` even pieces of a whole.
  const auto piece = [](int64_t whole, int64_t size) { return DivideUp(whole, DivideUp(whole, size)); };
  Best best;
  for (const int64_t most : {8, 7, 4, 2}) {
    t.columns = piece(columns, most);
    const int64_t subs = DivideUp(columns, t.columns), most_units = subs > 1 ? 1 : std::max<int64_t>(1, 4 / t.columns);
    for (t.item_units = 1; t.item_units <= std::min(most_units, units); t.item_units *= 2)
      for (t.chunk = std::min(octets, std::max<int64_t>(1, kMostOctets / taps)); t.chunk > 0; --t.chunk) {
        if (piece(octets, t.chunk) != t.chunk) continue;
        for (t.block_subs = 1; t.block_subs <= std::min<int64_t>(subs, 8); ++t.block_subs) {
          if (piece(subs, t.block_subs) != t.block_subs) continue;
          t.block_units = t.item_units;
          do {
            TryTiles(problem, device, t, &best);
            t.block_units *= 2;
          } while (t.block_subs == subs && t.block_units <= std::min<int64_t>(units, 16));
        }
      }
  }
  return best.tiling;
}

bool IsRagged(const Contraction& problem) {
  return problem.group_channels() % OctetOf(problem) != 0 || problem.group_filters() % OctetOf(problem) != 0;
}

}  // namespace

bool FitsGrouped(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem) || !device.has_mma_m16n8k16()) return false;
  if (problem.dtype() == DType::kFloat && !problem.allow_tf32) return false;
  if (problem.transposed || problem.x_channels_first || problem.y_channels_first) return false;
  if (problem.groups == problem.channels && problem.filters == problem.channels) return false;  // depthwise
  // One group is for the engines of convolutions, but for narrow ones that tensor cores take in our way alone.
  const int64_t taps = problem.rows().kernel * problem.columns().kernel;
  const bool is_ragged = problem.channels > 4 && IsRagged(problem);
  if (problem.groups == 1 && (!is_ragged || taps == 1 || std::max(problem.channels, problem.filters) > kMostRagged))
    return false;
  for (const Window& window : problem.windows)
    if (window.kernel > kMostFilter || std::max({window.extent(), window.stride, window.pad_begin}) > kMostReach)
      return false;
  return Configure(problem, device).has_value();
}

bool IsGroupedFast(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  // cuDNN's tensor cores take a group's channels by 16 bytes; what others it pads or computes without them.
  if (IsRagged(problem)) return true;
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  const int64_t channels = problem.group_channels(), filters = problem.group_filters();
  const bool suits_cudnn = channels == filters && (channels & (channels - 1)) == 0;
  const TargetLimits& limits = target->limits;
  const int64_t most = !suits_cudnn    ? limits.grouped_most_channels_uneven
    : problem.dtype() == DType::kFloat ? limits.grouped_most_channels_tf32
                                       : limits.grouped_most_channels;
  const int64_t wide = std::max(channels, filters);
  if (wide > limits.grouped_most_channels && FitsGemm(program, problem, device)) return false;  // it is faster
  return wide <= most;
}

std::optional<EngineKernel> MakeGrouped(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const std::optional<Tiling> found = Configure(problem, device);
  if (!found) return std::nullopt;
  const Tiling& t = *found;
  std::ostringstream text;
  text << ConvPreamble(program, problem) << "#define MMA_TYPE "
       << (t.octet == 4                            ? "\"tf32\"\n#define MMA_K \"8\""
              : problem.dtype() == DType::kFloat16 ? "\"f16\""
                                                   : "\"bf16\"")
       << "\n#define MMA_HALF_K " << (t.octet == 4 ? "\"4\"" : "\"8\"") << "\n"
       << Defines({{"GROUP_CHANNELS", problem.group_channels()}, {"GROUP_FILTERS", problem.group_filters()},
            {"OCTET", t.octet}, {"FLAT", t.flat}, {"MERGED", t.merged}, {"CHUNK", t.chunk}, {"COLUMNS", t.columns},
            {"ITEM_UNITS", t.item_units}, {"BLOCK_UNITS", t.block_units}, {"BLOCK_SUBS", t.block_subs},
            {"TILE_H", t.tile_h}, {"TILE_W", t.tile_w}, {"STEP_H", t.step_h}, {"STEP_W", t.step_w}, {"PARTS", t.parts},
            {"WARPS_M", t.warps_m}, {"WARPS_N", t.warps_n}, {"STAGES", t.stages}, {"X_VECTOR", t.x_vector},
            {"W_VECTOR", t.w_vector}, {"VECTOR", t.vector}, {"MIN_BLOCKS", t.min_blocks},
            {"UNROLL", std::max<int64_t>(1, t.taps * t.chunk / 2)}})
       << kMmaSource << kGroupedSource;
  const int64_t most = std::max<int64_t>(1, t.min_blocks * device.multiprocessors / t.slices);
  const cuda::LaunchShape launch{
    t.slices * std::min(t.tiles, most), t.warps_m * t.warps_n * 32, t.shared_bytes, cuda::NextStarts::kAtTrigger};
  return EngineKernel{text.str(), "grouped", launch, ConvArguments(program, problem, t.tile_h, t.tile_w)};
}

}  // namespace ortplugin
