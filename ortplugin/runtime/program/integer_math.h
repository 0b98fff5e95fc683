// The pointwise operators on one integer lane, written so that a loop over lanes vectorises. Arithmetic wraps modulo
// 2^bits: it runs in unsigned types, in which that is defined. Nothing traps.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "ortplugin/runtime/half.h"

namespace ortplugin::lane {

// An unsigned type of at least 32 bits: narrower ones would be promoted to int, whose overflow is undefined.
template <typename T>
using Wide = std::conditional_t<(sizeof(T) < sizeof(uint32_t)), uint32_t, std::make_unsigned_t<T>>;

template <typename T>
ORTPLUGIN_INLINE T WrappingAdd(T a, T b) {
  return T(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
}
template <typename T>
ORTPLUGIN_INLINE T WrappingSub(T a, T b) {
  return T(static_cast<Wide<T>>(a) - static_cast<Wide<T>>(b));
}
template <typename T>
ORTPLUGIN_INLINE T WrappingMul(T a, T b) {
  return T(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
}
template <typename T>
ORTPLUGIN_INLINE T WrappingNeg(T x) {
  return WrappingSub(T(0), x);
}
template <typename T>
ORTPLUGIN_INLINE T IntegerAbs(T x) {
  return x < T(0) ? WrappingNeg(x) : x;  // the lowest value stays
}
template <typename T>
ORTPLUGIN_INLINE T IntegerSign(T x) {
  return T(int(x > T(0)) - int(x < T(0)));
}
template <typename T>
ORTPLUGIN_INLINE T IntegerMin(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
ORTPLUGIN_INLINE T IntegerMax(T a, T b) {
  return a > b ? a : b;
}

// What replaces a divisor that has no quotient: by zero the result is decided by the caller, the lowest value by -1 is
// itself, as by 1.
template <typename T>
ORTPLUGIN_INLINE T SafeDivisor(T a, T b) {
  const bool overflows = std::is_signed_v<T> && a == std::numeric_limits<T>::min() && b == T(-1);
  return (b == T(0)) | overflows ? T(1) : b;
}

// a / b truncated, for b that SafeDivisor gave. Up to 32 bits there are vectors of floating divisions but none of
// integer ones, and their quotient truncates right: the exact one is either whole or at least 1/|b| off the next
// integer, |a| times more than a rounding of the quotient.
template <typename T>
ORTPLUGIN_INLINE T Quotient(T a, T b) {
  if constexpr (sizeof(T) <= 2) {
    return T(int32_t(float(a) / float(b)));
  } else if constexpr (sizeof(T) == 4 && std::is_signed_v<T>) {
    return T(double(a) / double(b));
  } else {
    return T(a / b);
  }
}
template <typename T>
ORTPLUGIN_INLINE T IntegerDiv(T a, T b) {
  const T quotient = Quotient(a, SafeDivisor(a, b));
  return b == T(0) ? T(0) : quotient;
}
// The remainder with the sign of a, 0 for b = 0.
template <typename T>
ORTPLUGIN_INLINE T Remainder(T a, T b) {
  const T divisor = SafeDivisor(a, b);
  return WrappingSub(a, WrappingMul(Quotient(a, divisor), divisor));  // a divisor of 1 leaves 0
}
// With the sign of b.
template <typename T>
ORTPLUGIN_INLINE T Modulo(T a, T b) {
  const T remainder = Remainder(a, b);
  const bool differs = (remainder != T(0)) & ((remainder < T(0)) != (b < T(0)));
  return differs ? WrappingAdd(remainder, b) : remainder;
}

template <typename T>
ORTPLUGIN_INLINE T ShiftLeft(T x, T by) {
  constexpr T kBits = sizeof(T) * 8;
  const T shifted = T(static_cast<Wide<T>>(x) << (by & (kBits - 1)));
  return by < kBits ? shifted : T(0);
}
template <typename T>
ORTPLUGIN_INLINE T ShiftRight(T x, T by) {
  constexpr T kBits = sizeof(T) * 8;
  const T shifted = T(static_cast<Wide<T>>(x) >> (by & (kBits - 1)));
  return by < kBits ? shifted : T(0);
}

// x^y in double by repeated squaring: exact where the result is below 2^53. (The C library's pow need not be.)
template <typename T>
inline double PowerOfIntegers(T x, T y) {
  const double base = double(x);
  if (y < T(0)) {
    if (x == T(0)) return std::numeric_limits<double>::infinity();
    if (x == T(1)) return 1;
    return x == T(-1) ? ((y & T(1)) != T(0) ? -1 : 1) : 0;
  }
  double power = 1, square = base;
  for (auto left = static_cast<std::make_unsigned_t<T>>(y); left != 0; left = static_cast<decltype(left)>(left >> 1)) {
    if ((left & 1) != 0) power *= square;
    square *= square;
  }
  return power;
}

// ---- Conversions

// A floating value as an integer: truncated towards zero; beyond the range the nearest end of it, NaN 0. The number is
// brought within the range before it is converted, for the conversion of any other is undefined.
template <typename T, typename F>
ORTPLUGIN_INLINE T Saturate(F x) {
  using Limits = std::numeric_limits<T>;
  // 2^digits, one more than the largest value; F has it, but maybe not the largest value.
  constexpr F kBeyond = static_cast<F>(Limits::max() / 2 + 1) * 2;
  constexpr F kLowest = static_cast<F>(Limits::min());
  const bool is_large = x >= kBeyond;
  F inside = x > kLowest ? x : kLowest;  // NaN too
  inside = is_large ? kLowest : inside;
  T whole;
  if constexpr (sizeof(T) <= 2) {
    whole = T(int32_t(inside));
  } else if constexpr (std::is_signed_v<T>) {
    whole = T(inside);
  } else {
    // Through the signed type, which every machine converts to.
    constexpr F kHalf = kBeyond / 2;
    const bool is_upper = inside >= kHalf;
    const F lower = is_upper ? inside - kHalf : inside;
    const T upper = is_upper ? Limits::max() / 2 + 1 : 0;
    whole = T(static_cast<std::make_signed_t<T>>(lower)) + upper;
  }
  whole = is_large ? Limits::max() : whole;
  return x != x ? T(0) : whole;
}

// An integer as the float that rounding further to bfloat16 makes the nearest of: rounded to odd.
template <typename T>
ORTPLUGIN_INLINE float IntegerToOdd(T x) {
  if constexpr (sizeof(T) <= 2) {
    return float(x);
  } else if constexpr (sizeof(T) == 4) {
    return RoundToOdd(double(x));
  } else {
    // What a double cannot hold, the low bits of a large number, becomes one bit that says whether there is any.
    const uint64_t magnitude = uint64_t(IntegerAbs(x));
    const uint64_t sticky = (magnitude & 0xffffffu) != 0 ? 0x800000u : 0u;
    const uint64_t folded = magnitude >> 40 != 0 ? (magnitude & ~uint64_t{0xffffff}) | sticky : magnitude;
    const float rounded = RoundToOdd(double(folded));
    return x < T(0) ? -rounded : rounded;
  }
}

}  // namespace ortplugin::lane
