#include "ortplugin/ops/attention/engines/flash.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

int64_t Rows(const FlashConfig& config) { return int64_t{16} * config.m_tiles * config.warps; }

int64_t Blocks(const AttentionProblem& problem, const FlashConfig& config) {
  return problem.batch * problem.heads * DivideUp(problem.queries, Rows(config));
}

bool IsTf32(const AttentionProblem& problem) { return problem.dtype == DType::kFloat; }
// Whether a product of TF32 isn't enough, but takes three.
bool IsExact(const AttentionProblem& problem) { return IsTf32(problem) && !problem.allow_tf32; }

// Elements of 16 bytes.
int64_t Octet(const AttentionProblem& problem) { return IsTf32(problem) ? 4 : 8; }

int64_t SharedBytes(const AttentionProblem& problem, const FlashConfig& config) {
  const auto row = [&](int64_t size) { return RoundUp(size, int64_t{16}) * 16 / Octet(problem) + 16; };
  const int64_t keys = row(problem.head_size), values = row(problem.value_size);
  const int64_t stages = config.groups * 2 * config.block_n * (keys + values);
  // At the end, what all groups but the first have summed up: values, a maximum and a sum.
  const int64_t sums = (config.groups - 1) * Rows(config) * (RoundUp(problem.value_size, int64_t{16}) + 8) * 4;
  return Rows(config) * std::max(keys, values) + std::max(stages, sums);
}

// The elements, up to an octet, by which all that is copied begins and steps.
int Copy(const AttentionProblem& problem) {
  int64_t common = problem.head_size | problem.value_size;
  for (const AttentionProblem::View& view : {problem.q, problem.k, problem.v, problem.y})
    common |= view.offset | view.batch | view.head | view.row;
  return int(std::min(Octet(problem), common & -common));
}

}  // namespace

bool FitsFlash(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device) {
  if (problem.dtype == DType::kDouble) return false;
  // Elsewhere three MMAs of TF32 are no faster than FMAs; wider heads have too few registers for them.
  if (IsExact(problem) && (!device.has_fast_tf32() || std::max(problem.head_size, problem.value_size) > 128))
    return false;
  if (problem.has_past || !device.has_mma_m16n8k16() || !aligned) return false;
  for (const AttentionProblem::View& view : {problem.q, problem.k, problem.v, problem.y})
    if (view.column != 1) return false;
  // Rows and keys run a little past the end before they are compared with it.
  constexpr int64_t kMost = int64_t{1} << 30;
  if (problem.queries >= kMost || problem.keys >= kMost || problem.window >= kMost) return false;
  const FlashConfig config = ConfigureFlash(problem, device);
  return Blocks(problem, config) < int64_t{1} << 31 && SharedBytes(problem, config) <= device.shared_per_block;
}

FlashConfig ConfigureFlash(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const int64_t size = std::max(problem.head_size, problem.value_size);
  const bool is_exact = IsExact(problem);
  FlashConfig config{size <= 128 && !is_exact ? 64 : 32, 1, 4, 1, Copy(problem), 1};
  // A mask costs registers, and with few keys the second half of a tile is empty.
  if (problem.has_mask && size <= 32) config.block_n = 32;
  // Of wide heads, what decides which keys are seen has no registers but those of scores.
  const bool has_more = problem.causal != AttentionProblem::Causal::kNone || problem.softcap > 0;
  if (is_exact ? size > 64 && (has_more || problem.has_mask || problem.is_rotary())
               : size > 192 && (IsTf32(problem) || has_more))
    config.block_n = 16;
  // With twice the rows of a warp it reads keys and values half as often, where blocks are many all the same.
  FlashConfig tall = config;
  tall.m_tiles = 2;
  if (size > 64 || IsTf32(problem)) tall.block_n = 32;
  const bool is_long = problem.keys >= 1024 && Blocks(problem, tall) >= device.multiprocessors;
  if (is_long && !problem.has_mask && !is_exact && size <= (IsTf32(problem) ? 64 : 80)) config = tall;
  // Tiles of fp32 leave room for a second block, whose products run beside the softmax of the first.
  const auto is_crowded = [&] {
    const int64_t block = SharedBytes(problem, config) + device.reserved_shared_per_block;
    return 2 * block > device.shared_per_multiprocessor;
  };
  while (IsTf32(problem) && config.block_n > 16 && is_crowded()) config.block_n /= 2;
  // Where warps are few, several groups of them divide the keys, so that each waits for fewer tiles one after the
  // other. By the H100 (2026-11-26) that pays from four tiles on, from two where a mask or an embedding makes them
  // slow: Llama's form of 256 tokens takes 422 us in place of 439, T5's encoder of 8x128 232 in place of 244. BERT-base
  // of 1x128, two tiles without a mask, gains nothing.
  constexpr int kWarpsOfMultiprocessor = 8;
  const int64_t seen = problem.window > 0 ? problem.window + Rows(config) : problem.keys;
  const int64_t tiles = DivideUp(std::min(problem.keys, seen), int64_t{config.block_n});
  const bool is_slow = problem.has_mask || problem.is_rotary();
  for (const auto& [warps, groups] : {std::pair{2, 4}, {4, 2}}) {
    FlashConfig divided = config;
    divided.warps = warps;
    divided.groups = groups;
    const int64_t all = Blocks(problem, divided) * warps * groups;
    if (config.m_tiles == 1 && size <= 128 && tiles >= (is_slow && groups == 2 ? 2 : 4) &&
      all <= kWarpsOfMultiprocessor * int64_t{device.multiprocessors} &&
      SharedBytes(problem, divided) <= device.shared_per_block)
      return divided;
  }
  if (is_exact && size <= 64 && !problem.is_rotary() && problem.softcap <= 0) config.min_blocks = 3;
  return config;
}

std::string FlashSource(const AttentionProblem& problem, const FlashConfig& config) {
  std::ostringstream text;
  text << AttentionPreamble(problem) << kCopySource << AttentionSoftmaxSource(problem) << "\n#define OCTET "
       << Octet(problem) << (IsTf32(problem) ? "\n#define MMA_K \"8\"" : "") << "\n#define IS_EXACT "
       << IsExact(problem) << "\n#define COPY " << config.copy << "\n#define BLOCK_N " << config.block_n
       << "\n#define M_TILES " << config.m_tiles << "\n#define WARPS " << config.warps << "\n#define GROUPS "
       << config.groups << "\n#define MIN_BLOCKS " << config.min_blocks << "\n\n"
       << kMmaSource << kFlashSource;
  return text.str();
}

cuda::LaunchShape FlashLaunch(const AttentionProblem& problem, const FlashConfig& config) {
  return {unsigned(Blocks(problem, config)), unsigned(32 * config.warps * config.groups),
    unsigned(SharedBytes(problem, config))};
}

std::optional<EngineKernel> MakeFlash(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const FlashConfig config = ConfigureFlash(problem, device);
  return EngineKernel{FlashSource(problem, config), "flash", FlashLaunch(problem, config), AttentionArguments(problem)};
}

}  // namespace ortplugin
