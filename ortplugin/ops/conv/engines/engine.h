// Our engines for convolutions. Tensors are two-dimensional and NHWC but for the image that the stem reads and the
// result that few_output_channels may write.
//
//   depthwise.h            depthwise 3x3, 5x5, 7x7
//   stem.h                 the first convolution of an image network, up to four input channels
//   gemv.h                 1x1 on one pixel: matrix-vector products
//   split_k.h              little work for the GPU: implicit GEMM with split K (Hopper)
//   conv_1x1.h             pointwise (1x1) convolution, memory-bound, plain or transposed (Hopper)
//   few_output_channels.h  transposed convolution for few output channels
//   polyphase.h            transposed convolution with strides (Hopper)
//
// How FusedConv uses them, once for each combination of shapes:
//
//   ConvProblem problem{...};                              // every address must be a multiple of 16 bytes
//   std::optional<EngineKernel> kernel = FindEngineKernel(program, problem, device, true);
//   if (kernel) function = kernel->Load(device);
//
// and in each run: fill kernel->arguments[i] with the address of the node's input i (X, W, then the operands) and the
// next ones with those of the outputs, in order; then
//
//   void* parameters[] = {arguments.data()};
//   cuda::Launch(device, function, kernel->launch, stream, parameters);
//
// Kernels wait for the kernel before them (griddepcontrol.wait) before they write, and before they read anything but
// weights that are `constant_weights`. The only exception is the table of tile schedulers that conv_1x1.cu keeps in its
// module. They need no workspace and give the same bits in every run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

struct ConvProblem {
  DType dtype = DType::kFloat16;  // of X, W and the program's first parameter
  bool transposed = false;
  int64_t batch = 1, height = 1, width = 1;      // of X
  int64_t channels = 1, filters = 1, group = 1;  // C and M
  int64_t kernel_height = 1, kernel_width = 1;
  std::array<int64_t, 4> pads{};  // top, left, bottom, right; of a transposed one, what is cut off there
  std::array<int64_t, 2> strides{1, 1}, dilations{1, 1};
  int64_t out_height = 1, out_width = 1;
  bool x_channels_first = false;  // X is [N, C, H, W]; W [M, kh, kw, C/group] and Y [N, H, W, M] are not
  bool y_channels_first = false;  // every result is [N, M, H, W]; the operands are not. Transposed ones alone
  bool allow_tf32 = false;
  bool constant_weights = false;  // W is an initializer, so no kernel in front writes it
  std::vector<Shape> operands;    // of the program's second parameter and on; they broadcast to Y's shape

  Shape output_shape() const { return {batch, out_height, out_width, filters}; }
};

struct EngineKernel {
  std::string source;
  const char* entry;
  cuda::LaunchShape launch;
  std::vector<uint64_t> arguments;  // addresses of the inputs and outputs, which are still 0, then numbers

  cuda::Function Load(const cuda::DeviceFacts& device) const;
};

// The kernel of the first engine that fits this problem, or, with `only_where_fast`, that is also known to be faster
// than cuDNN; none where there is no such engine. `program` has one parameter, the convolution's value, and one more
// for each of problem.operands.
std::optional<EngineKernel> FindEngineKernel(const Program& program, const ConvProblem& problem,
                                             const cuda::DeviceFacts& device, bool only_where_fast);

// ---- What the engines share -----------------------------------------------------------------------------------------

// All indices and offsets of the problem's tensors fit 31 bits, and nothing is empty or of a dtype without an engine.
bool FitsEngines(const Program& program, const ConvProblem& problem);

// CUDA C++ in front of an engine's kernel: the problem's sizes as macros (CHANNELS, .., PAD_LEFT), CONSTANT_WEIGHTS,
// OF_IMAGE, whether TileOperands depend on n, and for the epilogue:
//   struct Arguments { const void* in[]; void* out[]; int batch; }
//   TileOperands<N>:  load(a, n, m): operands that do not depend on the pixel (a bias, a scale of each channel)
//   PixelOperands<N>: load(a, n, y, x, m, offset): the others; `offset` is that of the pixel's channel m in Y
//   Results<N>:       store(a, offset)
//   apply(tile, pixel, j, value, results): the program for channel m + j and the convolution's value of it; with one
//     argument more its results are set in that place instead of j
// N channels from m on, a multiple of N, are read and written at once; N must divide M. Also storage_t, X's type.
std::string ConvPreamble(const Program& program, const ConvProblem& problem);

// Room for the addresses, then `batch`.
std::vector<uint64_t> ConvArguments(const Program& program, const ConvProblem& problem);

}  // namespace ortplugin
