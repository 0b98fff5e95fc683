#include "ortplugin/ops/attention/engines/flash_wgmma.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kStaticShared = 256;  // barriers
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

// The heads whose keys and values half of the L2 cache keeps, at least one; all that share keys count as one.
int64_t Section(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const int64_t bytes = 2 * problem.keys * (problem.head_size + problem.value_size);
  return std::max<int64_t>(1, device.l2_bytes / 2 / bytes) * problem.group();
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
  // multiprocessor has two or three, has smaller tiles to divide. In between are two: with 128 keys where queries fill
  // their tiles, else with 64, twice on a multiprocessor. Measured: attention.py, H100, 2026-11-26.
  constexpr FlashWgmmaConfig kTall{3, 128, 2, 2, 1, true}, kPair{1, 128, 2, 1, 2, true}, kTriple{1, 64, 3, 1, 3, true},
    kDouble{2, 64, 3, 2, 2, true}, kWhole{2, 128, 2, 2, 1, true};
  const bool is_causal = problem.causal != AttentionProblem::Causal::kNone;
  const bool is_narrow = std::max(problem.head_size, problem.value_size) <= 32;
  const bool is_crowded = Tiles(problem, kDouble) >= int64_t{4} * device.multiprocessors;
  const int64_t many = is_causal ? (is_narrow ? 2048 : 1400) : is_narrow || !is_crowded ? 1024 : 257;
  if (!has_extras && problem.keys >= many && Tiles(problem, kTall) >= device.multiprocessors) return kTall;
  if (Tiles(problem, kPair) <= int64_t{2} * device.multiprocessors) return kPair;
  if (has_extras || !is_crowded) return kTriple;
  if (is_narrow) return kDouble;
  if (problem.keys <= 256 && RoundUp(problem.queries, int64_t{128}) - problem.queries <= 32) return kWhole;
  return is_causal ? kTriple : kDouble;
}

std::string FlashWgmmaSource(const AttentionProblem& problem, const FlashWgmmaConfig& config) {
  const int value_size = int(problem.value_size);
  std::ostringstream text;
  text << AttentionPreamble(problem) << AttentionSoftmaxSource(problem) << "\n#define CONSUMERS " << config.consumers
       << "\n#define TILE_N " << config.tile_n << "\n#define STAGES " << config.stages << "\n#define Q_STAGES "
       << config.q_stages << "\n#define MIN_BLOCKS " << config.min_blocks << "\n#define TURNS " << config.turns
       << "\n\n"
       << kWgmmaSource << "\n"
       << kTmaSource << "\n"
       << WgmmaFunction("multiply_keys", problem.dtype, config.tile_n, WgmmaA::kShared, false)
       << WgmmaWait("multiply_keys", config.tile_n)
       << WgmmaFunction("add_values", problem.dtype, value_size, WgmmaA::kRegisters, true)
       << WgmmaWait("add_values", value_size) << "\n"
       << kFlashWgmmaSource;
  return text.str();
}

cuda::LaunchShape FlashWgmmaLaunch(
  const AttentionProblem& problem, const FlashWgmmaConfig& config, const cuda::DeviceFacts& device) {
  const int64_t blocks = std::min(Tiles(problem, config), int64_t{device.multiprocessors} * config.min_blocks);
  return {unsigned(blocks), unsigned(128 * (config.consumers + 1)), unsigned(SharedBytes(problem, config))};
}

std::optional<EngineKernel> MakeFlashWgmma(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const FlashWgmmaConfig config = ConfigureFlashWgmma(problem, device);
  std::vector<uint64_t> arguments = AttentionArguments(problem);
  arguments.push_back(uint64_t(problem.batch * problem.heads));
  arguments.push_back(uint64_t(Section(problem, device)));
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
  return EngineKernel{
    FlashWgmmaSource(problem, config), "flash_wgmma", FlashWgmmaLaunch(problem, config, device), arguments, maps};
}

}  // namespace ortplugin
