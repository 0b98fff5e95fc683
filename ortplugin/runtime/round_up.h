// Counts rounded up, as tiles, blocks and memory need them. Nothing is negative, and divisors are not 0.
#pragma once

#include <cstdint>

namespace ortplugin {

constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// To a multiple of `unit`.
constexpr int64_t RoundUp(int64_t n, int64_t unit) { return DivideUp(n, unit) * unit; }

// To a power of two; 1 for less.
constexpr int64_t PowerUp(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

}  // namespace ortplugin
