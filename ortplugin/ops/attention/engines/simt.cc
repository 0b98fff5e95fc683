#include "ortplugin/ops/attention/engines/simt.h"

#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// Of a launch. Counted so that no product overflows: there may be 2^48 elements in Y, but a head has at least one.
int64_t Blocks(const AttentionProblem& problem, const AttentionSimtConfig& config) {
  return problem.batch * problem.heads * DivideUp(problem.queries, int64_t{config.rows} * config.warps);
}

}  // namespace

AttentionSimtConfig ConfigureAttentionSimt(const AttentionProblem& problem) {
  AttentionSimtConfig config{4, 4, problem.dtype == DType::kDouble ? 32 : 64};
  if (problem.queries <= config.warps) config.rows = 1;
  return config;
}

std::string AttentionSimtSource(const AttentionProblem& problem, const AttentionSimtConfig& config) {
  std::ostringstream text;
  text << AttentionPreamble(problem) << "#define ROWS_OF_WARP " << config.rows << "\n#define WARPS " << config.warps
       << "\n#define CHUNK " << config.chunk << "\n#define IS_NARROW " << (SizeOf(problem.dtype) == 2) << "\n\n"
       << kAttentionRowsSource << kAttentionSimtSource;
  return text.str();
}

bool FitsAttentionSimt(const AttentionProblem& problem, bool, const cuda::DeviceFacts&) {
  return !problem.has_past && Blocks(problem, ConfigureAttentionSimt(problem)) < int64_t{1} << 31;
}

std::optional<EngineKernel> MakeAttentionSimt(const AttentionProblem& problem, const cuda::DeviceFacts&) {
  const AttentionSimtConfig config = ConfigureAttentionSimt(problem);
  const cuda::LaunchShape launch{unsigned(Blocks(problem, config)), unsigned(32 * config.warps)};
  return EngineKernel{AttentionSimtSource(problem, config), "attention_simt", launch, AttentionArguments(problem)};
}

}  // namespace ortplugin
