#include "ortplugin/ops/conv/engines/pixel_shuffle.h"

#include <numeric>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kParts = 4;  // vectors of a thread: so many loads are on their way at once

// Elements of a load: as many as fit 16 bytes and divide the channels.
int64_t VectorOf(const Contraction& problem) {
  return std::gcd(problem.filters, int64_t(16 / SizeOf(problem.dtype())));
}

}  // namespace

bool FitsPixelShuffle(const Contraction& contraction) {
  if (!contraction.transposed || !contraction.channels_last || contraction.y_channels_first) return false;
  if (contraction.windows.size() != 2 || contraction.groups != 1) return false;
  int64_t gemm_elements = contraction.batch * contraction.filters;
  for (const Window& window : contraction.windows) {
    if (window.kernel > window.stride || (window.kernel > 1 && window.dilation > 1)) return false;
    gemm_elements *= window.size * window.kernel;
  }
  // With stride 1 every pixel is where it belongs.
  if (contraction.windows[0].stride == 1 && contraction.windows[1].stride == 1) return false;
  return gemm_elements < int64_t{1} << 30 && FitsEngines(*contraction.program, contraction);
}

// The kernels that cuDNN compiles for a transposed convolution with a program are up to twice as slow. Its ready-made
// ones without a program are faster than writing and reading P where it does not stay in the cache.
bool IsPixelShuffleFast(const Contraction& contraction, const DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  const int64_t size = int64_t(SizeOf(contraction.dtype()));
  if (size != 2 || contraction.channels % 8 != 0 || contraction.filters % 8 != 0) return false;
  return !IsIdentity(*contraction.program) ||
    ElementCount(contraction.result()) * size <= target->limits.pixel_shuffle_most_bytes;
}

cudnn::Problem GemmProblem(const Contraction& contraction) {
  const Window &rows = contraction.windows[0], &columns = contraction.windows[1];
  const int64_t width = rows.kernel * columns.kernel * contraction.filters;
  cudnn::Problem problem;
  problem.direction = cudnn::Direction::kDataGradient;
  problem.dtype = contraction.dtype();
  problem.allow_tf32 = contraction.allow_tf32;
  problem.x = cudnn::ChannelsLast({contraction.batch, width, rows.size, columns.size});
  problem.w = cudnn::ChannelsLast({contraction.channels, width, 1, 1});
  problem.y = cudnn::ChannelsLast({contraction.batch, contraction.channels, rows.size, columns.size});
  problem.pads_begin = problem.pads_end = {0, 0};
  problem.strides = problem.dilations = {1, 1};
  return problem;
}

size_t GemmBytes(const Contraction& contraction) {
  return size_t(ElementCount(GemmProblem(contraction).x.dims)) * SizeOf(contraction.dtype());
}

EngineKernel PixelShuffleKernel(const Contraction& contraction) {
  const int64_t vector = VectorOf(contraction);
  std::ostringstream text;
  text << ConvPreamble(*contraction.program, contraction)
       << Defines({{"VECTOR", vector}, {"PARTS", kParts}, {"THREADS", kThreads}}) << "\n"
       << kPixelShuffleSource;
  const int64_t vectors = ElementCount(contraction.result()) / vector, each = kThreads * kParts;
  return EngineKernel{
    text.str(), "pixel_shuffle", {DivideUp(vectors, each), kThreads}, ConvArguments(*contraction.program, contraction)};
}

}  // namespace ortplugin
