// Transposed convolutions whose filter does not overlap itself (kernel <= stride, some stride above 1), NHWC: a GEMM,
// each row of which has all that one pixel of X becomes, and our kernel, which puts these pixels in their places and
// runs the program.
//
//   P[n, i, j, (k, l, m)] = sum over c of X[n, i, j, c] W[c, k, l, m]      cuDNN's
//   Y[n, i SH + k - top, j SW + l - left, m] = program(P[n, i, j, (k, l, m)]), program(0) where there is no such k or l
#pragma once

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

// Whether a node is one of these, of two dimensions, one group and a dtype that the kernel takes.
bool FitsPixelShuffle(const Contraction& contraction);

// Whether this is known to be faster than cuDNN's transposed convolution.
bool IsPixelShuffleFast(const Contraction& contraction, const DeviceFacts& device);

// The GEMM, without the program: the data gradient of a 1x1 convolution, for which W is in order as it is.
cudnn::Problem GemmProblem(const Contraction& contraction);
size_t GemmBytes(const Contraction& contraction);

// The kernel after it: EngineKernel::arguments as engine.h says, but P's address stands in X's place.
EngineKernel PixelShuffleKernel(const Contraction& contraction);

}  // namespace ortplugin
