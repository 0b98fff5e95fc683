#include "ortplugin/ops/conv/engines/nchw.h"

#include <algorithm>
#include <sstream>

#include "ortplugin/device/wgmma.h"
#include "ortplugin/ops/conv/engines/gemm.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int kThreads = 256;  // of nchw_few
constexpr int kColumns = 32, kTileK = 64;  // of nchw_gemm
constexpr int64_t kStagingBytes = int64_t{4} * 16 * (kColumns + 8) * 4;  // of a warpgroup

// Both of a problem with pixels last: its columns are this convolution's filters, its filters the pixels.
int64_t Rows(const Contraction& flat) { return flat.columns().out; }
int64_t Pixels(const Contraction& flat) { return flat.filters; }

bool Fits(const Program& program, const std::optional<Contraction>& flat) {
  constexpr int64_t kMost = (int64_t{1} << 31) - (int64_t{1} << 20);
  return flat && FitsEngines(program, *flat) && flat->batch * flat->channels * Pixels(*flat) < kMost;
}

int64_t Tiles(const Contraction& flat, const NchwGemmConfig& config) {
  return flat.batch * DivideUp(Rows(flat), 64 * config.consumers) * DivideUp(Pixels(flat), config.tile_n);
}

}  // namespace

std::optional<Contraction> WithPixelsLast(const Contraction& problem) {
  if (problem.channels_last || problem.transposed || problem.groups != 1 || problem.is_empty()) return std::nullopt;
  if (!IsPointwise(problem)) return std::nullopt;
  Contraction flat = problem;
  flat.channels_last = true;
  flat.has_open_sizes = false;  // what stands for them are the filters
  flat.rows() = flat.columns() = Window();
  flat.columns().size = flat.columns().out = problem.filters;
  flat.filters = problem.rows().out * problem.columns().out;
  for (Shape& operand : flat.operands) {
    operand.insert(operand.begin(), 4 - std::min<size_t>(4, operand.size()), 1);
    const int64_t pixels = operand[2] * operand[3];
    if (pixels != 1 && pixels != flat.filters) return std::nullopt;
    operand = {operand[0], 1, operand[1], pixels};
  }
  return flat;
}

bool FitsNchwFew(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  (void)device;
  const std::optional<Contraction> flat = WithPixelsLast(problem);
  return Fits(program, flat) && flat->channels <= engine_limits::nchw_few_most_channels &&
    Rows(*flat) <= engine_limits::nchw_few_most_channels;
}

EngineKernel MakeNchwFew(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const Contraction flat = *WithPixelsLast(problem);
  const int64_t vector = std::min(16 / Size(flat), Pixels(flat) & -Pixels(flat));
  std::ostringstream text;
  text << ConvPreamble(program, flat) << Defines({{"THREADS", kThreads}, {"VECTOR", vector}}) << "\n" << kNchwFewSource;
  // Enough blocks for the latency of memory; more would only load the weights more often.
  constexpr int64_t kResident = 8;
  const int64_t blocks =
    std::min(DivideUp(flat.batch * Pixels(flat) / vector, int64_t{kThreads}), kResident * device.multiprocessors);
  return {text.str(), "nchw_few", {blocks, kThreads}, ConvArguments(program, flat)};
}

bool FitsNchwGemm(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const std::optional<Contraction> flat = WithPixelsLast(problem);
  if (!device.has_wgmma() || !Fits(program, flat) || problem.dtype() == DType::kFloat) return false;
  // Pairs of weights are read at once; rows of pixels begin at multiples of 16 bytes.
  return flat->channels <= engine_limits::nchw_gemm_most_channels && flat->channels % 2 == 0 &&
    Pixels(*flat) % engine_limits::nchw_gemm_pixels == 0;
}

NchwGemmConfig ConfigureNchwGemm(const Contraction& problem, const DeviceFacts& device) {
  const Contraction flat = *WithPixelsLast(problem);
  // The largest tiles of which there is one for each multiprocessor.
  for (const NchwGemmConfig config : {NchwGemmConfig{128, 2}, {64, 2}})
    if (Rows(flat) > 64 && Tiles(flat, config) >= device.multiprocessors) return config;
  return {Rows(flat) <= 64 && Tiles(flat, {128, 1}) >= device.multiprocessors ? 128 : 64, 1};
}

EngineKernel MakeNchwGemm(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  const Contraction flat = *WithPixelsLast(problem);
  const NchwGemmConfig config = ConfigureNchwGemm(problem, device);
  std::ostringstream text;
  text << ConvPreamble(program, flat) << Defines({{"TILE_N", config.tile_n}, {"CONSUMERS", config.consumers}})
       << "#define M_TILES 1\n"
       << "#define COLUMNS " << kColumns << "\n"
       << "#define AHEAD 2\n"
       << "#define VECTOR " << engine_limits::nchw_gemm_pixels << "\n\n"
       << WgmmaFunction("wgmma", flat.dtype(), config.tile_n, WgmmaA::kRegisters, true)
       << WgmmaWait("wgmma", config.tile_n) << kWgmmaSource << "\n"
       << kTmaSource << "\n"
       << kGemmEpilogueSource << "\n"
       << kNchwGemmSource;
  std::vector<uint64_t> arguments = ConvArguments(program, flat);
  const auto word = size_t(RoundUp(int64_t(arguments.size()), 8));
  arguments.resize(word + cuda::kTensorMapWords);
  const auto pixels = uint64_t(Pixels(flat)), channels = uint64_t(flat.channels), batch = uint64_t(flat.batch);
  const int64_t tile_bytes = DivideUp(flat.channels, int64_t{kTileK}) * kTileK * config.tile_n * Size(flat);
  return {text.str(), "nchw_gemm",
    {Tiles(flat, config), config.consumers * 128, tile_bytes + config.consumers * kStagingBytes}, arguments,
    {{word, 0, {pixels, channels, batch, 1}, {pixels, channels * pixels, batch * channels * pixels}, kTileK}}};
}

}  // namespace ortplugin
