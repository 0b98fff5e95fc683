#include "ortplugin/ops/attention/engines/flash_wgmma.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>
#include <vector>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kBoxColumns = 64;  // of 128 bytes

int64_t Rows(const FlashWgmmaConfig& config) { return int64_t{64} * config.consumers; }

int64_t Tiles(const AttentionProblem& problem, const FlashWgmmaConfig& config) {
  return problem.batch * problem.heads * DivideUp(problem.queries, Rows(config));
}

int64_t SharedBytes(const AttentionProblem& problem, const FlashWgmmaConfig& config) {
  const int64_t keys = DivideUp(problem.head_size, kBoxColumns), values = DivideUp(problem.value_size, kBoxColumns);
  return 128 *
    (config.q_stages * Rows(config) * std::max(keys, values) +
      int64_t{config.stages} * config.tile_n * (keys + values));
}

// A tensor that TMA reads or writes: elements of a head side by side, all else in steps of 16 bytes.
bool HasMap(const AttentionProblem::View& view) {
  constexpr int64_t kOctet = 8, kMost = int64_t{1} << 39;
  const auto fits = [](int64_t step) { return step % kOctet == 0 && step < kMost; };
  return view.column == 1 && fits(view.offset) && fits(view.batch) && fits(view.head) && fits(view.row);
}

cuda::TensorMap Map(const AttentionProblem& problem, size_t address, const AttentionProblem::View& view, int64_t heads,
  int64_t rows, int64_t columns, int64_t box_rows) {
  cuda::TensorMap map{0, address, {}, {}, uint32_t(box_rows), uint64_t(view.offset)};
  for (const int64_t size : {columns, rows, heads, problem.batch}) map.sizes.push_back(uint64_t(size));
  for (const int64_t step : {view.row, view.head, view.batch}) map.steps.push_back(uint64_t(step));
  return map;
}

// Whether a warpgroup may have tiles of keys that none of its queries sees while others of its block do.
bool Skips(const AttentionProblem& problem, const FlashWgmmaConfig& config) {
  const bool is_short = RoundUp(problem.queries, Rows(config)) - problem.queries >= 64;
  return config.consumers > 1 && (is_short || problem.causal != AttentionProblem::Causal::kNone);
}

// What there is to do for each tile of a head, in tiles of 128 keys: `rest` for what is not done for its keys.
std::vector<double> WorkOfTiles(const AttentionProblem& problem, const FlashWgmmaConfig& config, double rest) {
  const bool is_causal = problem.causal != AttentionProblem::Causal::kNone;
  const int64_t behind = problem.last_seen();
  std::vector<double> work;
  for (int64_t row = 0; row < problem.queries; row += Rows(config)) {
    const int64_t first = problem.window > 0 ? std::max<int64_t>(0, row + behind + 1 - problem.window) : 0;
    int64_t tiles = 0;  // of all warpgroups, each of which leaves out what none of its queries sees
    for (int64_t own = row; own < std::min(row + Rows(config), problem.queries); own += 64) {
      const int64_t last = std::min(own + 64, problem.queries) + behind;
      const int64_t end = is_causal ? std::clamp<int64_t>(last, 0, problem.keys) : problem.keys;
      tiles += std::max<int64_t>(0, DivideUp(end, int64_t{config.tile_n}) - first / config.tile_n);
    }
    work.push_back(double(tiles * config.tile_n) / double(128 * config.consumers) + rest);
  }
  return work;
}

// What is done when the last block ends, of so many that are at work at a time, as Schedule (flash_wgmma.cu) divides
// tiles among them. `is_open`: each has one tile, and another block begins where it ends.
double MostWork(const std::vector<double>& work, int64_t heads, int64_t section, int64_t blocks, bool is_open) {
  std::vector<double> loads(size_t(blocks), 0.0);
  size_t at = 0;
  bool backwards = false;
  for (int64_t first = 0; first < heads; first += section)
    for (size_t number = work.size(); number-- > 0;)
      for (int64_t head = first; head < std::min(heads, first + section); ++head) {
        if (is_open) {  // a heap, whose first one ends first
          std::pop_heap(loads.begin(), loads.end(), std::greater<>());
          loads.back() += work[number];
          std::push_heap(loads.begin(), loads.end(), std::greater<>());
          continue;
        }
        loads[backwards ? loads.size() - 1 - at : at] += work[number];
        if (++at < loads.size()) continue;
        at = 0;
        backwards = !backwards;
      }
  return *std::max_element(loads.begin(), loads.end());
}

}  // namespace

bool FitsFlashWgmma(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device) {
  if (problem.dtype != DType::kFloat16 && problem.dtype != DType::kBFloat16) return false;
  if (!device.has_wgmma() || !aligned || problem.has_past || problem.has_position) return false;
  if (problem.has_mask || problem.is_rotary()) return false;
  if (problem.head_size % 8 != 0 || problem.value_size % 8 != 0) return false;
  for (const AttentionProblem::View& view : {problem.q, problem.k, problem.v, problem.y})
    if (!HasMap(view)) return false;
  // Rows and keys run a little past the end before they are compared with it, and so do tiles.
  constexpr int64_t kMost = int64_t{1} << 30;
  if (problem.queries >= kMost || problem.keys >= kMost || problem.window >= kMost) return false;
  if (problem.batch >= kMost || problem.batch * problem.heads >= kMost) return false;
  const TargetLimits& limits = LimitsNear(device);
  if (problem.keys < limits.flash_wgmma_least_keys || problem.queries < limits.flash_wgmma_least_queries) return false;
  return Tiles(problem, ConfigureFlashWgmma(problem, device)) < kMost;
}

FlashWgmmaConfig ConfigureFlashWgmma(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const int64_t size = RoundUp(std::max(problem.head_size, problem.value_size), kBoxColumns);
  // They take registers that fewer keys or warpgroups leave.
  const bool has_extras = problem.window > 0 || problem.softcap > 0;
  if (size > 128) return {2, has_extras ? 48 : 80, 2, 1, 1, true};
  if (size > 64) return {2, 128, 2, 2, 1, true};
  // Three warpgroups share keys and values, where these are many and each block has work; one alone, of which a
  // multiprocessor has two or three, has smaller tiles to divide. In between are four, where queries fill their tiles,
  // or two: with 128 keys in the same case, else with 64, twice on a multiprocessor. Measured: attention.py, H200,
  // 2026-11-28.
  constexpr FlashWgmmaConfig kTall{3, 128, 2, 2, 1, true}, kPair{1, 128, 2, 1, 2, true}, kTriple{1, 64, 3, 1, 3, true},
    kDouble{2, 64, 3, 2, 2, true}, kWhole{2, 128, 2, 2, 1, true}, kFour{4, 64, 4, 2, 1, true};
  const bool is_causal = problem.causal != AttentionProblem::Causal::kNone;
  const bool is_narrow = std::max(problem.head_size, problem.value_size) <= 32;
  const bool is_crowded = Tiles(problem, kDouble) >= int64_t{4} * device.multiprocessors;
  const int64_t many = is_causal ? (is_narrow ? 2048 : 512) : is_narrow || !is_crowded ? 1024 : 257;
  if (!has_extras && problem.keys >= many && Tiles(problem, kTall) >= device.multiprocessors) return kTall;
  if (Tiles(problem, kPair) <= int64_t{2} * device.multiprocessors) return kPair;
  if (has_extras || !is_crowded) return kTriple;
  if (is_causal || is_narrow) return kDouble;
  const auto fills = [&](int64_t rows) { return RoundUp(problem.queries, rows) - problem.queries <= rows / 4; };
  if (fills(256)) return kFour;
  if (problem.keys <= 256 && fills(128)) return kWhole;
  return kDouble;
}

// Measured on an H200, 2026-11-28, with 128 to 16,384 keys and heads of 64 and 128, causal: sections whose keys take a
// sixth of the cache are the fastest, those of half of it 7% slower; a block of its own costs a tile what 1.4 tiles of
// 128 keys take.
FlashWgmmaOrder OrderFlashWgmma(
  const AttentionProblem& problem, const FlashWgmmaConfig& config, const cuda::DeviceFacts& device) {
  constexpr double kBest = 1.0 / 6, kMost = 1.0 / 2, kSlower = 0.2;  // of the cache
  constexpr double kRest = 1.0, kRestOfBlock = 2.4;
  constexpr double kEven = 1.035;  // times the average: as good as it gets where blocks have few tiles
  constexpr int64_t kMostTiles = 4096;  // that are looked at
  const int64_t tiles = Tiles(problem, config), of_head = DivideUp(problem.queries, Rows(config));
  FlashWgmmaOrder best{1, std::min(tiles, int64_t{device.multiprocessors} * config.min_blocks)};
  if (of_head == 1) return best;
  if (of_head > kMostTiles) return {1, tiles};
  const int64_t group = problem.group();  // heads that share keys count as one
  const int64_t heads = std::min(problem.batch * problem.heads, std::max(group, kMostTiles / of_head));
  const double share = double(2 * problem.keys * (problem.head_size + problem.value_size)) / double(device.l2_bytes);
  const auto within = [&](double part) {
    return std::clamp<int64_t>(int64_t(part / share) * group, group, RoundUp(heads, group));
  };
  const std::vector<double> work = WorkOfTiles(problem, config, kRest);
  const double average = std::accumulate(work.begin(), work.end(), 0.0) * double(heads) / double(best.blocks);
  double least = std::numeric_limits<double>::infinity();
  const auto is_even = [&](int64_t section) {
    const double most = MostWork(work, heads, section, best.blocks, false);
    const double cost = most * (1 + kSlower * std::max(0.0, share * double(section / group) - kBest));
    if (cost < 0.997 * least) {
      least = cost;
      best.section = section;
    }
    return most <= kEven * average;
  };
  const bool is_causal = problem.causal != AttentionProblem::Causal::kNone;
  if (!is_causal && is_even(group)) return best;
  for (int64_t section = within(kBest); section >= group; section -= group)
    if (is_even(section)) return best;
  for (int64_t section = within(kBest) + group; section <= within(kMost); section += group)
    if (is_even(section)) return best;
  const std::vector<double> apart = WorkOfTiles(problem, config, kRestOfBlock);
  const double open = MostWork(apart, heads, within(kBest), best.blocks, true);
  return open < least ? FlashWgmmaOrder{within(kBest), tiles} : best;
}

std::string FlashWgmmaSource(const AttentionProblem& problem, const FlashWgmmaConfig& config) {
  const int value_size = int(problem.value_size);
  std::ostringstream text;
  text << AttentionPreamble(problem) << AttentionSoftmaxSource(problem) << "\n#define CONSUMERS " << config.consumers
       << "\n#define TILE_N " << config.tile_n << "\n#define STAGES " << config.stages << "\n#define Q_STAGES "
       << config.q_stages << "\n#define MIN_BLOCKS " << config.min_blocks << "\n#define TURNS " << config.turns
       << "\n#define SKIPS " << Skips(problem, config) << "\n\n"
       << kWgmmaSource << "\n"
       << kTmaSource << "\n"
       << WgmmaFunction("multiply_keys", problem.dtype, config.tile_n, WgmmaA::kShared, false)
       << WgmmaWait("multiply_keys", config.tile_n)
       << WgmmaFunction("add_values", problem.dtype, value_size, WgmmaA::kRegisters, true)
       << WgmmaWait("add_values", value_size) << "\n"
       << kFlashWgmmaSource;
  return text.str();
}

std::optional<EngineKernel> MakeFlashWgmma(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const FlashWgmmaConfig config = ConfigureFlashWgmma(problem, device);
  const FlashWgmmaOrder order = OrderFlashWgmma(problem, config, device);
  std::vector<uint64_t> arguments = AttentionArguments(problem);
  arguments.push_back(uint64_t(problem.batch * problem.heads));
  arguments.push_back(uint64_t(order.section));
  std::vector<cuda::TensorMap> maps = {
    Map(problem, 0, problem.q, problem.heads, problem.queries, problem.head_size, 64),
    Map(problem, 1, problem.k, problem.kv_heads, problem.keys, problem.head_size, config.tile_n),
    Map(problem, 2, problem.v, problem.kv_heads, problem.keys, problem.value_size, config.tile_n),
    Map(problem, 3, problem.y, problem.heads, problem.queries, problem.value_size, 64),
  };
  for (cuda::TensorMap& map : maps) {
    map.word = size_t(RoundUp(int64_t(arguments.size()), 8));
    arguments.resize(map.word + cuda::kTensorMapWords);
  }
  const cuda::LaunchShape launch{
    unsigned(order.blocks), unsigned(128 * (config.consumers + 1)), unsigned(SharedBytes(problem, config))};
  return EngineKernel{FlashWgmmaSource(problem, config), "flash_wgmma", launch, arguments, maps};
}

}  // namespace ortplugin
