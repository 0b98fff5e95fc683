// Convolutions of square images by square filters, as most tests of engines take them.
#pragma once

#include <cstdint>

#include "ortplugin/ops/conv/engines/engine.h"

namespace test {

// `out`: the result's height and width.
inline ortplugin::Contraction SquareConv(ortplugin::DType dtype, bool transposed, int64_t batch, int64_t size,
  int64_t channels, int64_t filters, int64_t kernel, int64_t stride, int64_t pad, int64_t out) {
  ortplugin::Contraction problem;
  problem.dtypes = ortplugin::Contraction::AllOf(dtype);
  problem.transposed = transposed;
  problem.batch = batch;
  problem.channels = channels;
  problem.filters = filters;
  problem.windows.assign(2, {kernel, stride, 1, pad, pad, size, out});
  return problem;
}

}  // namespace test
