#include "ortplugin/ops/conv/engines/grouped.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kMostFilter = 7;       // rows and columns of a filter
constexpr int64_t kMostOctets = 64;      // of a chunk's sums, which are unrolled
constexpr int64_t kMostSums = 64;        // registers of a thread
constexpr int64_t kMostReach = 1 << 20;  // pixels that a filter or its pads span: far more than shared memory holds

// The sizes that grouped.cu works out from its macros, which have the same names.
struct Sizes {
  int64_t taps, unit_channels, unit_filters, units, unit_octets, chunks, subs, slices, items;
  int64_t step_h, step_w, part_h, part_w, pitch, w_pitch, w_rows, x_vector, w_vector, vector;
  int64_t shared_bytes, tiles;
};

// From one row of X that matters to the next.
int64_t StepOf(const Window& window) {
  return window.kernel == 1 ? window.stride : std::gcd(window.stride, window.dilation);
}

Sizes SizesOf(const Contraction& problem, const GroupedConfig& config) {
  const Window &rows = problem.rows(), &columns = problem.columns();
  Sizes sizes{};
  sizes.taps = rows.kernel * columns.kernel;
  sizes.unit_channels = config.merged * problem.group_channels();
  sizes.unit_filters = config.merged * problem.group_filters();
  sizes.units = DivideUp(problem.groups, config.merged);
  sizes.unit_octets = DivideUp(sizes.unit_channels, 8);
  sizes.chunks = DivideUp(sizes.unit_octets, config.chunk);
  sizes.subs = DivideUp(sizes.unit_filters, config.columns * 8);
  sizes.slices = DivideUp(sizes.units, config.block_units) * DivideUp(sizes.subs, config.block_subs);
  sizes.items = config.block_units / config.item_units * config.block_subs;
  sizes.step_h = StepOf(rows);
  sizes.step_w = StepOf(columns);
  const int64_t move_w = columns.stride / sizes.step_w;
  sizes.part_h =
      (config.tile_h - 1) * (rows.stride / sizes.step_h) + (rows.kernel - 1) * (rows.dilation / sizes.step_h) + 1;
  sizes.part_w = (config.tile_w + (columns.kernel - 1) * (columns.dilation / sizes.step_w) / move_w) * move_w;
  sizes.pitch = (config.block_units * config.chunk) | 1;
  sizes.w_pitch = (sizes.taps * config.chunk) | 1;
  sizes.w_rows = int64_t{config.block_units} * config.block_subs * config.columns * 8;
  sizes.x_vector = std::gcd(std::gcd(sizes.unit_channels, problem.channels), int64_t{8});
  sizes.w_vector = std::gcd(problem.group_channels(), int64_t{8});
  sizes.vector = std::gcd(std::gcd(sizes.unit_filters, problem.filters), int64_t{8});
  const int64_t item_columns = config.item_units * config.columns;
  const int64_t x = sizes.part_h * sizes.part_w * sizes.pitch * 16, w = sizes.w_rows * sizes.w_pitch * 16;
  const int64_t sums = 16 * (item_columns + (item_columns % 2 == 0)) * 8 * 4;
  sizes.shared_bytes =
      config.stages * x + (sizes.chunks > 1 ? config.stages : 1) * w + int64_t{config.warps_m} * config.warps_n * sums;
  sizes.tiles = config.flat ? DivideUp(problem.batch * rows.out * columns.out, config.tile_w)
                            : problem.batch * DivideUp(rows.out, config.tile_h) * DivideUp(columns.out, config.tile_w);
  return sizes;
}

// How many groups make a unit: the fewest multiplications, of those the fewest octets of channels.
int MergedOf(const Contraction& problem) {
  int best = 1;
  double least = std::numeric_limits<double>::max();
  for (int merged = 1; merged <= std::min<int64_t>(8, problem.groups); ++merged) {
    const double octets = DivideUp(merged * problem.group_channels(), int64_t{8});
    const double cost = octets * (DivideUp(merged * problem.group_filters(), int64_t{8}) + 0.125) / merged;
    if (cost < least) best = merged;
    least = std::min(least, cost);
  }
  return best;
}

// Registers of a thread, about.
int64_t Registers(const GroupedConfig& config) {
  return std::min<int64_t>(RoundUp(config.parts * config.item_units * config.columns * 4 + 88, 8), 168);
}

int64_t Resident(const Sizes& sizes, const GroupedConfig& config, const cuda::DeviceFacts& device) {
  return std::min<int64_t>(
      8, device.ResidentBlocks(config.warps_m * config.warps_n * 32, Registers(config), sizes.shared_bytes));
}

// About the cycles that the convolution takes: what the busiest multiprocessor issues and moves, and the latency of
// its tiles, as far as blocks do not hide each other's.
double Cost(const GroupedConfig& config, const Sizes& sizes, int64_t resident, const cuda::DeviceFacts& device) {
  constexpr double kLatency = 1500, kCopy = 14.0 / 128, kMma = 1.6, kMatrices = 4, kL2 = 32;  // bytes
  const double chunks = static_cast<double>(sizes.chunks), octets = static_cast<double>(sizes.taps * config.chunk);
  const double columns = config.item_units * config.columns, vector = static_cast<double>(sizes.vector);
  const double x = static_cast<double>(sizes.part_h * sizes.part_w * config.block_units * config.chunk) * 8;
  const double w = static_cast<double>(sizes.w_rows) * octets * 8;
  const auto copied = [&](double elements, int64_t width) {
    return std::max(elements / static_cast<double>(width) * kCopy, elements * 2 / kL2);
  };
  const double copy_x = copied(x, sizes.x_vector), copy_w = copied(w, sizes.w_vector);
  const double items = static_cast<double>(RoundUp(sizes.items, config.warps_n));
  const double parts = items * config.warps_m * config.parts;  // 16 pixels of an item
  const double steps = chunks * octets / 2;
  const double right = config.item_units * config.columns / 2.0;
  const double matrices = parts * steps * (config.item_units + right / config.parts) * kMatrices;
  const double multiply = std::max(matrices, parts * steps * columns * kMma);
  const double results = parts * 16 * columns * 8 * (3 + 24 / vector + 2) / 128;
  const double tile = (copy_x + (chunks > 1 ? copy_w : 0)) * chunks + multiply + results;
  const double blocks = static_cast<double>(sizes.tiles * sizes.slices), all = device.multiprocessors;
  const double busiest = static_cast<double>(DivideUp(sizes.tiles * sizes.slices, device.multiprocessors));
  const double held = std::min(busiest, static_cast<double>(resident));
  const double waves = std::max(1.0, blocks / (all * static_cast<double>(resident)));
  const double latency = kLatency * (1 + 0.4 * (chunks - 1));
  // A warp alone does not keep a multiprocessor busy.
  const double warps = held * config.warps_m * std::min<double>(config.warps_n, static_cast<double>(sizes.items));
  const double idle = std::max(1.0, 8 / warps);
  return busiest * tile * idle + (chunks > 1 ? 0 : held * copy_w) + waves * latency;
}

}  // namespace

bool FitsGrouped(const Program& program, const Contraction& problem, const cuda::DeviceFacts& device) {
  if (!FitsEngines(program, problem) || problem.dtype() == DType::kFloat || !device.has_mma_m16n8k16()) return false;
  if (problem.transposed || problem.x_channels_first || problem.y_channels_first || problem.groups == 1) return false;
  if (problem.groups == problem.channels && problem.filters == problem.channels) return false;  // depthwise
  for (const Window& window : {problem.rows(), problem.columns()})
    if (window.kernel > kMostFilter || window.extent() > kMostReach || window.stride > kMostReach ||
        window.pad_begin > kMostReach)
      return false;
  return ConfigureGrouped(problem, device).has_value();
}

bool IsGroupedFast(const Program&, const Contraction& problem, const cuda::DeviceFacts&) {
  // cuDNN's tensor cores take channels of a group by eight; what others it pads or computes without them.
  return problem.group_channels() % 8 != 0 || problem.group_filters() % 8 != 0;
}

std::optional<GroupedConfig> ConfigureGrouped(const Contraction& problem, const cuda::DeviceFacts& device) {
  const Window &rows = problem.rows(), &columns = problem.columns();
  const auto is_plain = [](const Window& window) {
    return window.kernel == 1 && window.stride == 1 && window.size == window.out && window.pad_begin == 0;
  };
  GroupedConfig option{};
  option.tile_h = option.tile_w = option.stages = 1;
  option.merged = MergedOf(problem);
  option.flat = is_plain(rows) && is_plain(columns);
  const int64_t units = DivideUp(problem.groups, option.merged), taps = rows.kernel * columns.kernel;
  const int64_t unit_octets = DivideUp(option.merged * problem.group_channels(), int64_t{8});
  const int64_t unit_columns = DivideUp(option.merged * problem.group_filters(), int64_t{8});
  std::optional<GroupedConfig> best;
  double least = std::numeric_limits<double>::max();

  const auto consider = [&] {
    const int64_t pixels = int64_t{option.tile_h} * option.tile_w;
    if (option.warps_m > 1 && (option.warps_m - 1) * option.parts * 16 >= pixels) return;  // a warp would be idle
    option.stages = 1;
    Sizes sizes = SizesOf(problem, option);
    if (sizes.chunks > 1) {
      option.stages = 2;
      sizes = SizesOf(problem, option);
    }
    const int64_t resident = Resident(sizes, option, device);
    if (resident < 1) return;
    const double cost = Cost(option, sizes, resident, device);
    if (cost >= least) return;
    least = cost;
    best = option;
    best->min_blocks =
        static_cast<int>(std::min(resident, DivideUp(sizes.tiles * sizes.slices, device.multiprocessors)));
  };
  const auto with_tiles = [&] {
    const int64_t most = int64_t{option.warps_m} * option.parts * 16;
    option.tile_h = 1;
    option.tile_w = static_cast<int>(most);
    if (option.flat) return consider();
    for (int64_t pieces = 1, last = 0; pieces <= columns.out; ++pieces) {
      const int64_t width = DivideUp(columns.out, pieces);
      if (width == last || width > most) continue;
      last = width;
      const int64_t height = std::min(most / width, rows.out);
      option.tile_w = static_cast<int>(width);
      option.tile_h = static_cast<int>(DivideUp(rows.out, DivideUp(rows.out, height)));
      consider();
      if (width < 6) break;
    }
  };
  const auto with_warps = [&] {
    const Sizes sizes = SizesOf(problem, option);
    for (const auto& [m, n] :
         {std::pair{4, 1}, {2, 2}, {1, 4}, {8, 1}, {4, 2}, {2, 4}, {1, 8}, {2, 1}, {1, 2}, {1, 1}}) {
      // Of several chunks the sums stay in registers.
      if (n > sizes.items || (sizes.chunks > 1 && n < sizes.items)) continue;
      option.warps_m = m;
      option.warps_n = n;
      for (option.parts = 1; option.parts <= 2; ++option.parts)
        if (option.parts * option.item_units * option.columns * 4 <= kMostSums) with_tiles();
    }
  };
  int last_columns = 0;
  for (const int64_t limit : {8, 7, 4, 2}) {
    option.columns = static_cast<int>(DivideUp(unit_columns, DivideUp(unit_columns, limit)));
    if (option.columns == last_columns) continue;
    last_columns = option.columns;
    const int subs = static_cast<int>(DivideUp(unit_columns, option.columns));
    const int most_units = subs > 1 ? 1 : std::max(1, 4 / option.columns);
    for (option.item_units = 1; option.item_units <= std::min<int64_t>(most_units, units); option.item_units *= 2) {
      int last_chunk = 0;
      for (int64_t chunks = 1; chunks <= unit_octets; ++chunks) {
        option.chunk = static_cast<int>(DivideUp(unit_octets, chunks));
        if (option.chunk == last_chunk || option.chunk * taps > std::max(kMostOctets, taps)) continue;
        last_chunk = option.chunk;
        for (option.block_subs = 1; option.block_subs <= std::min(subs, 8); ++option.block_subs) {
          if (DivideUp(subs, DivideUp(subs, option.block_subs)) != option.block_subs) continue;
          option.block_units = option.item_units;
          do {
            with_warps();
            option.block_units *= 2;
          } while (option.block_subs == subs && option.block_units <= units && option.block_units <= 16);
        }
      }
    }
  }
  return best;
}

std::string GroupedSource(const Program& program, const Contraction& problem, const GroupedConfig& config) {
  const Sizes sizes = SizesOf(problem, config);
  std::ostringstream text;
  text << ConvPreamble(program, problem) << "#define DILATION_H " << problem.rows().dilation << "\n"
       << "#define DILATION_W " << problem.columns().dilation << "\n"
       << "#define GROUP_CHANNELS " << problem.group_channels() << "\n"
       << "#define GROUP_FILTERS " << problem.group_filters() << "\n"
       << "#define MMA_TYPE " << (problem.dtype() == DType::kFloat16 ? "\"f16\"" : "\"bf16\"") << "\n"
       << "#define MERGED " << config.merged << "\n"
       << "#define CHUNK " << config.chunk << "\n"
       << "#define COLUMNS " << config.columns << "\n"
       << "#define ITEM_UNITS " << config.item_units << "\n"
       << "#define BLOCK_UNITS " << config.block_units << "\n"
       << "#define BLOCK_SUBS " << config.block_subs << "\n"
       << "#define FLAT " << config.flat << "\n"
       << "#define TILE_H " << config.tile_h << "\n"
       << "#define TILE_W " << config.tile_w << "\n"
       << "#define STEP_H " << sizes.step_h << "\n"
       << "#define STEP_W " << sizes.step_w << "\n"
       << "#define PARTS " << config.parts << "\n"
       << "#define WARPS_M " << config.warps_m << "\n"
       << "#define WARPS_N " << config.warps_n << "\n"
       << "#define STAGES " << config.stages << "\n"
       << "#define X_VECTOR " << sizes.x_vector << "\n"
       << "#define W_VECTOR " << sizes.w_vector << "\n"
       << "#define VECTOR " << sizes.vector << "\n"
       << "#define MIN_BLOCKS " << config.min_blocks << "\n"
       << "#define UNROLL " << std::max<int64_t>(1, sizes.taps * config.chunk / 2) << "\n\n"
       << kMmaSource << kGroupedSource;
  return text.str();
}

cuda::LaunchShape GroupedLaunch(const Contraction& problem, const GroupedConfig& config,
                                const cuda::DeviceFacts& device) {
  const Sizes sizes = SizesOf(problem, config);
  const int64_t most = std::max<int64_t>(1, int64_t{config.min_blocks} * device.multiprocessors / sizes.slices);
  return {static_cast<unsigned>(sizes.slices * std::min(sizes.tiles, most)),
          static_cast<unsigned>(config.warps_m * config.warps_n * 32), static_cast<unsigned>(sizes.shared_bytes),
          cuda::NextStarts::kAtTrigger};
}

std::optional<EngineKernel> MakeGrouped(const Program& program, const Contraction& problem,
                                        const cuda::DeviceFacts& device) {
  const std::optional<GroupedConfig> config = ConfigureGrouped(problem, device);
  if (!config) return std::nullopt;
  return EngineKernel{GroupedSource(program, problem, *config), "grouped", GroupedLaunch(problem, *config, device),
                      ConvArguments(program, problem)};
}

}  // namespace ortplugin
