// Convolutions of square images by square filters, as most tests of engines take them, and what engines refuse.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "ortplugin/ops/conv/engines/engine.h"
#include "tests/native/check.h"

namespace test {

constexpr const char* kFloatRelu = "(float c, float b) => (float y) {\n  s = Add(c, b)\n  y = Relu(s)\n}";

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
  problem.has_open_sizes = (size + channels) % 3 == 0;  // of a third of the cases
  return problem;
}

// Fails where an engine takes what `known`, which it takes, becomes by a change.
class Refusals {
 public:
  using Fits = std::function<bool(const ortplugin::Contraction&)>;
  Refusals(const ortplugin::Contraction& known, Fits fits) : known_(known), fits_(std::move(fits)) {
    CHECK(fits_(known_));
  }
  void Check(const char* what, void (*change)(ortplugin::Contraction*)) const {
    ortplugin::Contraction other = known_;
    change(&other);
    CHECK_WITH(!fits_(other), what);
  }

 private:
  ortplugin::Contraction known_;
  Fits fits_;
};

}  // namespace test
