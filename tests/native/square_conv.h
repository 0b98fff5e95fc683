// Convolutions of square images by square filters, as most tests of engines take them.
#pragma once

#include <cstdint>

#include "ortplugin/ops/conv/engines/engine.h"

namespace test {

// `out`: the result's height and width.
inline ortplugin::ConvProblem SquareConv(ortplugin::DType dtype, bool transposed, int64_t batch, int64_t size,
                                         int64_t channels, int64_t filters, int64_t kernel, int64_t stride, int64_t pad,
                                         int64_t out) {
  ortplugin::ConvProblem problem;
  problem.dtype = dtype;
  problem.transposed = transposed;
  problem.batch = batch;
  problem.height = problem.width = size;
  problem.channels = channels;
  problem.filters = filters;
  problem.kernel_height = problem.kernel_width = kernel;
  problem.strides = {stride, stride};
  problem.pads = {pad, pad, pad, pad};
  problem.out_height = problem.out_width = out;
  return problem;
}

}  // namespace test
