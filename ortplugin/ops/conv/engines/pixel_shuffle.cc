#include "ortplugin/ops/conv/engines/pixel_shuffle.h"

#include <numeric>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kParts = 4;  // vectors of a thread: so many loads are on their way at once

// Elements of a load: as many as fit 16 bytes and divide the channels.
int64_t VectorOf(const ConvProblem& problem) {
  return std::gcd(problem.filters, static_cast<int64_t>(16 / SizeOf(problem.dtype)));
}

}  // namespace

bool FitsPixelShuffle(const ConvCase& the, const ConvShape& shape) {
  if (!the.attributes.transposed || !shape.channels_last || the.attributes.turns_output) return false;
  if (shape.windows.size() != 2 || shape.groups != 1) return false;
  int64_t products = shape.batch * shape.filters;
  for (const Window& window : shape.windows) {
    if (window.kernel > window.stride || (window.kernel > 1 && window.dilation > 1)) return false;
    products *= window.size * window.kernel;
  }
  // With stride 1 every pixel is where it belongs.
  if (shape.windows[0].stride == 1 && shape.windows[1].stride == 1) return false;
  return products < int64_t{1} << 30 && IsOrdinary(*the.program, OwnProblem(the, shape));
}

// Measured on an H200 with cuDNN 9.19, float16: 2x2 / 2 of U-Net's decoder and 1x1 / 2 of ResNet-50, batch 8 and 256.
// The kernels that cuDNN compiles for a transposed convolution with a program are up to twice as slow. Its ready-made
// ones without a program are faster than writing and reading the products where these do not stay in the cache.
bool IsPixelShuffleFast(const ConvCase& the, const ConvShape& shape) {
  constexpr int64_t kMostCached = 16 << 20;  // bytes of the result
  const int64_t size = static_cast<int64_t>(SizeOf(ValueType(*the.program)));
  if (size != 2 || shape.channels % 8 != 0 || shape.filters % 8 != 0) return false;
  return !IsBare(*the.program) || ElementCount(shape.result()) * size <= kMostCached;
}

cudnn::Problem ProductsProblem(const ConvCase& the, const ConvShape& shape) {
  const Window &rows = shape.windows[0], &columns = shape.windows[1];
  const int64_t width = rows.kernel * columns.kernel * shape.filters;
  cudnn::Problem problem;
  problem.direction = cudnn::Direction::kDataGradient;
  problem.dtype = ValueType(*the.program);
  problem.allow_tf32 = the.allow_tf32;
  problem.x = cudnn::ChannelsLast({shape.batch, width, rows.size, columns.size});
  problem.w = cudnn::ChannelsLast({shape.channels, width, 1, 1});
  problem.y = cudnn::ChannelsLast({shape.batch, shape.channels, rows.size, columns.size});
  problem.pads_begin = problem.pads_end = {0, 0};
  problem.strides = problem.dilations = {1, 1};
  return problem;
}

size_t ProductsBytes(const ConvCase& the, const ConvShape& shape) {
  return static_cast<size_t>(ElementCount(ProductsProblem(the, shape).x.dims)) * SizeOf(ValueType(*the.program));
}

OwnKernel PixelShuffleKernel(const ConvCase& the, const ConvShape& shape) {
  const ConvProblem problem = OwnProblem(the, shape);
  const int64_t vector = VectorOf(problem);
  std::ostringstream text;
  text << ConvPreamble(*the.program, problem) << "#define VECTOR " << vector << "\n"
       << "#define PARTS " << kParts << "\n"
       << "#define THREADS " << kThreads << "\n\n"
       << kPixelShuffleSource;
  const int64_t vectors = ElementCount(problem.output_shape()) / vector, each = kThreads * kParts;
  return OwnKernel{text.str(),
                   "pixel_shuffle",
                   {static_cast<unsigned>(DivideUp(vectors, each)), static_cast<unsigned>(kThreads)},
                   ConvArguments(*the.program, problem)};
}

}  // namespace ortplugin
