#include "ortplugin/ops/attention/engines/decode.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kRows = 16, kKeys = 16;  // of a tile
constexpr int64_t kMostStep = int64_t{1} << 26;  // from row to row: those of a tile are offsets of 32 bits
constexpr int64_t kFewKeys = 128;  // without a cache, for which one block is enough: flash's

int64_t Padded(int64_t size) { return RoundUp(size, int64_t{16}); }

int64_t Blocks(const AttentionProblem& problem, const DecodeConfig& config) {
  return problem.batch * problem.kv_heads * config.cluster;
}

// As decode.cu lays it out: a barrier, queries, what blocks of the cluster give, each warp's stages and results.
int64_t SharedBytes(const AttentionProblem& problem, const DecodeConfig& config) {
  const int64_t keys = Padded(problem.head_size) + 8, values = Padded(problem.value_size) + 8;
  const int64_t partial = Padded(problem.value_size) + 2;
  const int64_t stages = config.stages * kKeys * (keys + values) * 2;
  const int64_t results = problem.queries * problem.group() * partial * 4;
  const int64_t given = RoundUp(DivideUp(kRows, int64_t{config.cluster}) * config.cluster * partial * 4, int64_t{16});
  return 16 + kRows * keys * 2 + given + config.warps * (stages + results);
}

// Whether all that is copied begins and steps by 16 bytes.
bool IsCopiedWide(const AttentionProblem& problem) {
  int64_t common = problem.head_size | problem.value_size;
  std::vector<AttentionProblem::View> views{problem.q, problem.k, problem.v};
  if (problem.has_past)
    views.insert(views.end(), {problem.past_key, problem.past_value, problem.present_key, problem.present_value});
  for (const AttentionProblem::View& view : views) {
    if (view.column != 1 || view.row >= kMostStep) return false;
    common |= view.offset | view.batch | view.head | view.row;
  }
  return common % 8 == 0;
}

}  // namespace

bool FitsDecode(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device) {
  if (problem.dtype != DType::kFloat16 && problem.dtype != DType::kBFloat16) return false;
  if (!device.has_mma_m16n8k16() || !device.has_clusters() || !aligned) return false;
  if (problem.queries > kRows || problem.queries * problem.group() > kRows || !IsCopiedWide(problem)) return false;
  if (problem.y.column != 1) return false;
  // NVRTC 13.5 spills registers of heads of 256 on sm_120.
  if (device.major > 10 && std::max(problem.head_size, problem.value_size) > 128) return false;
  if (!problem.has_past && (problem.keys <= kFewKeys || problem.is_rotary())) return false;
  // Keys run a little past the end before they are compared with it.
  constexpr int64_t kMost = int64_t{1} << 30;
  if (problem.keys >= kMost || problem.window >= kMost) return false;
  const DecodeConfig config = ConfigureDecode(problem, device);
  return Blocks(problem, config) < int64_t{1} << 31 && SharedBytes(problem, config) <= device.shared_per_block;
}

DecodeConfig ConfigureDecode(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const int64_t size = std::max(problem.head_size, problem.value_size);
  DecodeConfig config{1, size <= 128 ? 8 : 4, problem.has_past ? 4 : 0, size <= 128 ? 2 : 1, 1};
  // As many blocks as find a tile of keys for each of their warps, while multiprocessors are idle.
  while (config.cluster < 8 && config.cluster * config.warps * kKeys < problem.keys &&
    2 * Blocks(problem, config) <= device.multiprocessors)
    config.cluster *= 2;
  // Registers for two blocks of a multiprocessor, where there are as many.
  if (size <= 64 && Blocks(problem, config) > device.multiprocessors) {
    config.min_blocks = 2;
    config.writers = std::min(config.writers, 2);
  }
  return config;
}

std::optional<EngineKernel> MakeDecode(const AttentionProblem& problem, const cuda::DeviceFacts& device) {
  const DecodeConfig config = ConfigureDecode(problem, device);
  std::ostringstream text;
  text << AttentionPreamble(problem) << kCopySource << AttentionSoftmaxSource(problem) << "\n#define CLUSTER "
       << config.cluster << "\n#define WARPS " << config.warps << "\n#define WRITERS " << config.writers
       << "\n#define STAGES " << config.stages << "\n#define MIN_BLOCKS " << config.min_blocks << "\n#define GROUP "
       << problem.group() << "\n\n"
       << kTmaSource << kClusterSource << kMmaSource << kAttentionRowsSource << kDecodeSource;
  const cuda::LaunchShape launch{unsigned(Blocks(problem, config)), unsigned(32 * (config.warps + config.writers)),
    unsigned(SharedBytes(problem, config))};
  return EngineKernel{text.str(), "decode", launch, AttentionArguments(problem)};
}

}  // namespace ortplugin
