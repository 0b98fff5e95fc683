#include "ortplugin/ops/conv/engines/gemv.h"

#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {

bool FitsGemv(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (!FitsEngines(program, problem, true) || problem.groups != 1 || problem.transposed) return false;
  if (problem.channels * problem.filters >= int64_t{1} << 30) return false;
  // What is far from a matrix-vector product is no case for --tune either.
  const TargetLimits& limits = LimitsNear(device);
  if (problem.batch > limits.gemv_most_batch) return false;
  if (problem.batch > 1 && problem.batch * problem.channels * problem.filters > limits.gemv_most_multiply_adds)
    return false;
  return problem.rows().size == 1 && problem.columns().size == 1 && problem.rows().kernel == 1 &&
    problem.columns().kernel == 1 && problem.rows().out == 1 && problem.columns().out == 1 &&
    problem.pads() == Shape(4);
}

bool IsGemvFast(const Program&, const Contraction& problem, const DeviceFacts& device) {
  // Of one image each weight is read once and used once, so that nothing is left to gain but where it is read.
  if (problem.batch == 1) return true;
  const MeasuredGpu* const target = FindTarget(device);
  return target != nullptr &&
    (problem.dtype() == DType::kFloat ||
      problem.batch * problem.channels * problem.filters <= target->limits.gemv_fast_multiply_adds);
}

namespace {

struct GemvConfig {
  int vector;  // channels of an access
  int lanes;  // threads that share an output's sum: a power of two, at most the block's
  int rows;  // of X for each weight that is read: a power of two, at most lanes
  int threads;  // of a block
};

GemvConfig ConfigureGemv(const Contraction& problem, const DeviceFacts& device) {
  GemvConfig best{};
  best.vector = int(std::gcd(problem.channels, int64_t{problem.dtype() == DType::kFloat ? 4 : 8}));
  best.lanes = 1;
  while (best.lanes < 32 && best.lanes * best.vector < problem.channels) best.lanes *= 2;
  // Each weight serves several rows, once there is work for the whole GPU.
  best.rows = 1;
  const auto warps = [&](int rows) { return problem.filters * DivideUp(problem.batch, rows) * best.lanes / 32; };
  while (best.rows < 4 && best.rows < best.lanes && best.rows < problem.batch &&
    warps(2 * best.rows) >= LimitsNear(device).gemv_rows_least_warps * device.multiprocessors)
    best.rows *= 2;
  best.threads = 128;
  // Several warps share a long row, where that leaves work for all: each has less to wait for.
  constexpr int64_t kFewSteps = 4, kWarps = 16;
  while (best.lanes >= 32 && best.lanes < best.threads && problem.channels > kFewSteps * best.lanes * best.vector &&
    warps(best.rows) < kWarps * device.multiprocessors)
    best.lanes *= 2;
  return best;
}

constexpr int64_t kMostImages = 8, kGemvFilters = 8, kGemvChunk = 32;  // of gemv_mma.cu
constexpr int64_t kMostLoads = 8, kMostOfNorm = 4;  // at once, of a thread
constexpr int64_t kImageBytes = 36 << 10;  // of a block's 48 KiB

std::string GemvSource(const Program& program, const Contraction& problem, const NormTail* norm,
  const std::vector<std::pair<const char*, int64_t>>& sizes, const std::string& kernel) {
  std::ostringstream text;
  text << ConvPreamble(program, problem, norm) << Defines({{"HAS_NORM", norm != nullptr}});
  for (const auto& [name, value] : sizes) text << "#define " << name << " " << value << "\n";
  if (norm != nullptr) text << NormConstants(*norm->norm) << kGemvNormSource;
  text << kernel;
  return text.str();
}

EngineKernel OnCores(
  const Program& program, const Contraction& problem, const GemvConfig& config, const NormTail* norm = nullptr) {
  const std::string source = GemvSource(program, problem, norm,
    {{"VECTOR", config.vector}, {"LANES", config.lanes}, {"ROWS", config.rows}, {"THREADS", config.threads}},
    kGemvSource);
  const int64_t threads = problem.filters * DivideUp(problem.batch, config.rows) * config.lanes;
  return {
    source, "gemv", {DivideUp(threads, config.threads), config.threads}, ConvArguments(program, problem, 1, 1, norm)};
}

// None where the GPU or the problem has no such MMAs.
std::optional<EngineKernel> OnTensorCores(
  const Program& program, const Contraction& problem, const DeviceFacts& device, const NormTail* norm = nullptr) {
  if (problem.dtype() == DType::kFloat || !device.has_mma_m16n8k16() || problem.channels % 8 != 0) return {};
  int64_t rows = 1, warps = 1;
  while (rows < problem.batch) rows *= 2;
  if (rows > kMostImages || rows * problem.channels * 2 > kImageBytes) return {};
  const int64_t chunks = DivideUp(problem.channels, kGemvChunk);
  while (warps < 16 &&
    ((warps < 4 && warps < chunks) || 32 * warps < kGemvFilters * rows ||
      DivideUp(chunks, warps) * (1 + problem.gated) > kMostLoads))
    warps *= 2;
  if (norm != nullptr && rows * DivideUp(problem.channels, 8 * 32 * warps) > kMostOfNorm) return {};
  const char* const type = problem.dtype() == DType::kFloat16 ? "f16" : "bf16";
  const std::string source =
    GemvSource(program, problem, norm, {{"VECTOR", 8}, {"ROWS", rows}, {"WARPS", warps}, {"THREADS", 32 * warps}},
      Joined("#define MMA_TYPE \"", type, "\"\n", kMmaSource, kGemvMmaSource));
  return EngineKernel{
    source, "gemv", {DivideUp(problem.filters, kGemvFilters), 32 * warps}, ConvArguments(program, problem, 1, 1, norm)};
}

}  // namespace

std::optional<EngineKernel> MakeGemvNorm(
  const Program& program, const Contraction& problem, const NormTail& norm, const DeviceFacts& device) {
  if (!FitsGemv(program, problem, device)) return {};
  if (auto made = OnTensorCores(program, problem, device, &norm)) return made;
  GemvConfig config = ConfigureGemv(problem, device);
  config.threads = 256;  // the more, the fewer blocks normalise each row
  const int64_t steps = DivideUp(problem.channels, int64_t{config.lanes} * config.vector);
  if (steps * config.rows * (1 + problem.gated) > kMostLoads) return {};
  if (problem.batch > config.rows && problem.filters % (config.threads / config.lanes) != 0) return {};
  return OnCores(program, problem, config, &norm);
}

EngineKernel MakeGemv(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  if (auto made = OnTensorCores(program, problem, device)) return *std::move(made);
  return OnCores(program, problem, ConfigureGemv(problem, device));
}

}  // namespace ortplugin
