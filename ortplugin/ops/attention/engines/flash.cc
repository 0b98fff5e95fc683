#include "ortplugin/ops/attention/engines/flash.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

int64_t Rows(const FlashConfig& config) { return int64_t{16} * config.m_tiles * config.warps; }

int64_t Blocks(const AttentionProblem& problem, const FlashConfig& config) {
  return problem.batch * problem.heads * DivideUp(problem.queries, Rows(config));
}

// Elements of a row in shared memory.
int64_t Pitch(int64_t size) { return RoundUp(size, int64_t{16}) + 8; }

int64_t SharedBytes(const AttentionProblem& problem, const FlashConfig& config) {
  const int64_t keys = Pitch(problem.head_size), values = Pitch(problem.value_size);
  return 2 * (Rows(config) * std::max(keys, values) + 2 * config.block_n * (keys + values));
}

// The elements, up to eight, by which all that is copied begins and steps.
int Copy(const AttentionProblem& problem) {
  int64_t common = problem.head_size | problem.value_size;
  for (const AttentionProblem::View& view : {problem.q, problem.k, problem.v, problem.y})
    common |= view.offset | view.batch | view.head | view.row;
  return static_cast<int>(std::min<int64_t>(8, common & -common));
}

}  // namespace

bool FitsFlash(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device) {
  if (problem.dtype != DType::kFloat16 && problem.dtype != DType::kBFloat16) return false;
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
  FlashConfig config{size <= 128 ? 64 : 32, 1, 4, Copy(problem), 1};
  // A mask costs registers, and with few keys the second half of a tile is empty.
  if (problem.has_mask && size <= 32) config.block_n = 32;
  // Of wide heads, what decides which keys are seen has no registers but those of scores.
  if (size > 192 && (problem.causal != AttentionProblem::Causal::kNone || problem.softcap > 0)) config.block_n = 16;
  // With twice the rows of a warp it reads keys and values half as often, where blocks are many all the same.
  FlashConfig tall = config;
  tall.m_tiles = 2;
  if (size > 64) tall.block_n = 32;
  const bool is_long = problem.keys >= 1024 && Blocks(problem, tall) >= device.multiprocessors;
  if (is_long && !problem.has_mask && size <= 80) config = tall;
  return config;
}

std::string FlashSource(const AttentionProblem& problem, const FlashConfig& config) {
  std::ostringstream text;
  text << AttentionPreamble(problem) << kCopySource << AttentionSoftmaxSource(problem) << "\n#define COPY "
       << config.copy << "\n#define BLOCK_N " << config.block_n << "\n#define M_TILES " << config.m_tiles
       << "\n#define WARPS " << config.warps << "\n#define MIN_BLOCKS " << config.min_blocks << "\n\n"
       << kMmaSource << kFlashSource;
  return text.str();
}

cuda::LaunchShape FlashLaunch(const AttentionProblem& problem, const FlashConfig& config) {
  return {static_cast<unsigned>(Blocks(problem, config)), static_cast<unsigned>(32 * config.warps),
          static_cast<unsigned>(SharedBytes(problem, config))};
}

std::optional<EngineKernel> MakeFlash(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const FlashConfig config = ConfigureFlash(problem, device);
  return EngineKernel{FlashSource(problem, config), "flash", FlashLaunch(problem, config), AttentionArguments(problem)};
}

}  // namespace ortplugin
