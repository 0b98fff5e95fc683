// The three sums of convolutions on the CPU, in float or double, channels first; reference.py has the formulas.
//
// A convolution ties a small tensor s [N, A, o..] to a large one l [N, B, i..] through weights w [A, B/group, k..]:
// Conv makes s from l and w ("gather"), ConvTranspose l from s and w ("scatter"), and both get the gradient of w from s
// and l ("weight").
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace ortplugin {

// One spatial axis. Elements of l beyond its edges count as 0.
struct ContractionAxis {
  int64_t small, large, kernel, stride, dilation, pad_begin;
};

struct Contraction {
  int64_t batch, group, a, b;  // a, b: channels of one group
  std::vector<ContractionAxis> axes;

  int64_t small_count() const;  // spatial elements
  int64_t large_count() const;
  int64_t kernel_count() const;
  int64_t weight_count() const { return group * a * b * kernel_count(); }
};

// Calls its argument for all numbers below the first one, on any threads.
using ParallelFor = std::function<void(size_t, const std::function<void(size_t)>&)>;

// T: float or double. Every element of the result is written. Sums run in an order that the shapes alone decide.
template <typename T>
void Gather(const Contraction& contraction, const T* large, const T* weight, T* small, const ParallelFor& parallel_for);
template <typename T>
void Scatter(const Contraction& contraction, const T* small, const T* weight, T* large,
             const ParallelFor& parallel_for);
// Accumulates in double beyond a block.
template <typename T>
void Weight(const Contraction& contraction, const T* small, const T* large, double* weight,
            const ParallelFor& parallel_for);

}  // namespace ortplugin
