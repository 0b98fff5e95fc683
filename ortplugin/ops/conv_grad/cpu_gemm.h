// Convolutions and their gradients on the CPU as GEMMs, in float or double, channels first; reference.py has the
// formulas.
//
// A convolution, whose contraction is given, ties a small tensor s [N, M, o..], its result, to a large one l [N, C,
// i..], its input, through weights w [M, C/groups, k..]: Conv makes s from l and w (forward), ConvTranspose l from s
// and w (data gradient), and both get the gradient of w from s and l.
#pragma once

#include <cstdint>
#include <functional>

#include "ortplugin/ops/contraction.h"

namespace ortplugin {

// Calls its argument for all numbers below the first one, on any threads.
using ParallelFor = std::function<void(size_t, const std::function<void(size_t)>&)>;

// c [m, n] += a [m, depth] b [depth, n], of float or double: a[i, k] is a[i * a_row + k * a_column], rows of b and c
// are contiguous.
template <typename T>
void Multiply(int64_t m, int64_t n, int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* b,
  int64_t b_row, T* c, int64_t c_row);

// T: float or double. Every element of the result is written. Sums run in an order that the shapes alone decide.
template <typename T>
void Forward(const Contraction& problem, const T* large, const T* weight, T* small, const ParallelFor& parallel_for);
template <typename T>
void DataGradient(
  const Contraction& problem, const T* small, const T* weight, T* large, const ParallelFor& parallel_for);
// Accumulates in double beyond a block.
template <typename T>
void WeightGradient(
  const Contraction& problem, const T* small, const T* large, double* weight, const ParallelFor& parallel_for);

}  // namespace ortplugin
