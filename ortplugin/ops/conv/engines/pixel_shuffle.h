// Transposed convolutions whose kernels do not overlap (kernel <= stride, some stride above 1), channels last: a matrix
// product, each row of which has the kernel's whole result for one pixel of X, and a kernel of ours that puts these
// pixels in their places, with the program.
//
//   P[n, i, j, (k, l, m)] = sum over c of X[n, i, j, c] W[c, k, l, m]      cuDNN's
//   Y[n, i SH + k - top, j SW + l - left, m] = program(P[n, i, j, (k, l, m)]), program(0) where there is no such k or l
#pragma once

#include <optional>
#include <string>

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv/engines/own_kernels.h"

namespace ortplugin {

// Whether a node is one of these, of two dimensions, one group and a dtype that the kernel takes.
bool FitsPixelShuffle(const ConvCase& the, const ConvShape& shape);

// Whether this is known to be faster than cuDNN's transposed convolution.
bool IsPixelShuffleFast(const ConvCase& the, const ConvShape& shape);

// The product, without the program: the data gradient of a convolution of one pixel, for which W is in order as it is.
cudnn::Problem ProductsProblem(const ConvCase& the, const ConvShape& shape);
size_t ProductsBytes(const ConvCase& the, const ConvShape& shape);

// The kernel after it: OwnKernel::arguments as own_kernels.h says, but P's address stands in X's place.
OwnKernel PixelShuffleKernel(const ConvCase& the, const ConvShape& shape);

}  // namespace ortplugin
