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
int64_t VectorOf(const ConvProblem& problem) {
  return std::gcd(problem.filters, static_cast<int64_t>(16 / SizeOf(problem.dtype)));
}

}  // namespace

bool FitsPixelShuffle(const ConvCase& conv_case, const ConvShape& shape) {
  if (!conv_case.attributes.transposed || !shape.channels_last || conv_case.attributes.y_channels_first) return false;
  if (shape.windows.size() != 2 || shape.groups != 1) return false;
  int64_t gemm_elements = shape.batch * shape.filters;
  for (const Window& window : shape.windows) {
    if (window.kernel > window.stride || (window.kernel > 1 && window.dilation > 1)) return false;
    gemm_elements *= window.size * window.kernel;
  }
  // With stride 1 every pixel is where it belongs.
  if (shape.windows[0].stride == 1 && shape.windows[1].stride == 1) return false;
  return gemm_elements < int64_t{1} << 30 && FitsEngines(*conv_case.program, MakeConvProblem(conv_case, shape));
}

// The kernels that cuDNN compiles for a transposed convolution with a program are up to twice as slow. Its ready-made
// ones without a program are faster than writing and reading P where it does not stay in the cache.
bool IsPixelShuffleFast(const ConvCase& conv_case, const ConvShape& shape, const cuda::DeviceFacts& device) {
  const MeasuredGpu* const target = FindTarget(device);
  if (target == nullptr) return false;
  const int64_t size = static_cast<int64_t>(SizeOf(ValueType(*conv_case.program)));
  if (size != 2 || shape.channels % 8 != 0 || shape.filters % 8 != 0) return false;
  return !IsIdentity(*conv_case.program) ||
         ElementCount(shape.result()) * size <= target->limits.pixel_shuffle_most_bytes;
}

cudnn::Problem GemmProblem(const ConvCase& conv_case, const ConvShape& shape) {
  const Window &rows = shape.windows[0], &columns = shape.windows[1];
  const int64_t width = rows.kernel * columns.kernel * shape.filters;
  cudnn::Problem problem;
  problem.direction = cudnn::Direction::kDataGradient;
  problem.dtype = ValueType(*conv_case.program);
  problem.allow_tf32 = conv_case.allow_tf32;
  problem.x = cudnn::ChannelsLast({shape.batch, width, rows.size, columns.size});
  problem.w = cudnn::ChannelsLast({shape.channels, width, 1, 1});
  problem.y = cudnn::ChannelsLast({shape.batch, shape.channels, rows.size, columns.size});
  problem.pads_begin = problem.pads_end = {0, 0};
  problem.strides = problem.dilations = {1, 1};
  return problem;
}

size_t GemmBytes(const ConvCase& conv_case, const ConvShape& shape) {
  return static_cast<size_t>(ElementCount(GemmProblem(conv_case, shape).x.dims)) *
         SizeOf(ValueType(*conv_case.program));
}

EngineKernel PixelShuffleKernel(const ConvCase& conv_case, const ConvShape& shape) {
  const ConvProblem problem = MakeConvProblem(conv_case, shape);
  const int64_t vector = VectorOf(problem);
  std::ostringstream text;
  text << ConvPreamble(*conv_case.program, problem) << "#define VECTOR " << vector << "\n"
       << "#define PARTS " << kParts << "\n"
       << "#define THREADS " << kThreads << "\n\n"
       << kPixelShuffleSource;
  const int64_t vectors = ElementCount(problem.output_shape()) / vector, each = kThreads * kParts;
  return EngineKernel{text.str(),
                      "pixel_shuffle",
                      {static_cast<unsigned>(DivideUp(vectors, each)), static_cast<unsigned>(kThreads)},
                      ConvArguments(*conv_case.program, problem)};
}

}  // namespace ortplugin
