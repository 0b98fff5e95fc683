// The pointwise operators on one lane, float and double, written so that a loop over lanes vectorises.
//
// The float versions of the functions that models use are without branches and tables: range reduction as in Moshier's
// Cephes library (expf, logf), then a minimax polynomial, its coefficients from a Remez exchange in 50 digits, rounded
// to float. They use no fused multiply-add, so that every machine gives the same bits. The largest error found by
// tests/native/test_evaluator.cc over every 61st and every 251st float, in units in the last place of the exact result:
//
//   Exp 0.96   Log 0.82   Pow 0.51   Tanh 2.42   Erf 1.40   Sigmoid 2.31   Softplus 1.64   Mish 3.84
//   Gelu 3.79   Swish 3.09   Elu 0.84   Celu 0.84   Selu 2.04
//
// Results that are denormal are within that plus |x| * 2^-149 for Gelu, Swish and Mish, whose tails multiply x by a
// denormal, and exact to the last place for the rest. Gelu's tanh form and QuickGelu round the argument u of an
// exponential, which adds up to |u| units: that is what the formula itself costs.
//
// The others, and all of double, are the C library's.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "ortplugin/runtime/half.h"

namespace ortplugin::lane {

// ---- Small things -----------------------------------------------------------------------------------------------

template <typename T>
ORTPLUGIN_INLINE T Abs(T x) {
  return std::fabs(x);
}
template <typename T>
ORTPLUGIN_INLINE T Neg(T x) {
  return -x;
}
template <typename T>
ORTPLUGIN_INLINE T Reciprocal(T x) {
  return T(1) / x;
}
template <typename T>
ORTPLUGIN_INLINE T Sqrt(T x) {
  return std::sqrt(x);
}
template <typename T>
ORTPLUGIN_INLINE T Floor(T x) {
  return std::floor(x);
}
template <typename T>
ORTPLUGIN_INLINE T Ceil(T x) {
  return std::ceil(x);
}
template <typename T>
ORTPLUGIN_INLINE T Round(T x) {
  return std::rint(x);  // ties to even
}
template <typename T>
ORTPLUGIN_INLINE T Sign(T x) {
  return x > 0 ? T(1) : (x < 0 ? T(-1) : x);  // NaN and zeros are kept
}
template <typename T>
ORTPLUGIN_INLINE T Min(T a, T b) {
  const T smaller = a < b ? a : b;  // b if either is NaN
  return a != a ? a : smaller;      // so NaN in either gives NaN
}
template <typename T>
ORTPLUGIN_INLINE T Max(T a, T b) {
  const T larger = a > b ? a : b;
  return a != a ? a : larger;
}
template <typename T>
ORTPLUGIN_INLINE T Clip(T x, T low, T high) {
  return Min(Max(x, low), high);
}
template <typename T>
ORTPLUGIN_INLINE T Relu(T x) {
  return x < 0 ? T(0) : x;
}
template <typename T>
ORTPLUGIN_INLINE T Softsign(T x) {
  return x / (T(1) + Abs(x));
}
template <typename T>
ORTPLUGIN_INLINE T HardSigmoid(T x, T alpha, T beta) {
  return Clip(alpha * x + beta, T(0), T(1));
}
template <typename T>
ORTPLUGIN_INLINE T HardSwish(T x) {
  return x * HardSigmoid(x, T(1) / T(6), T(0.5));
}
template <typename T>
ORTPLUGIN_INLINE T LeakyRelu(T x, T alpha) {
  const T scaled = alpha * x;
  return x < 0 ? scaled : x;
}
template <typename T>
ORTPLUGIN_INLINE T ThresholdedRelu(T x, T alpha) {
  return x > alpha ? x : T(0);
}
template <typename T>
ORTPLUGIN_INLINE T Shrink(T x, T bias, T lambd) {
  const T up = x + bias, down = x - bias;
  return x < -lambd ? up : (x > lambd ? down : T(0));
}
template <typename T>
ORTPLUGIN_INLINE bool IsNaN(T x) {
  return x != x;
}
template <typename T>
constexpr T Infinity() {
  return std::numeric_limits<T>::infinity();
}

// ---- Rare functions, and all of double: the C library -------------------------------------------------------------

#define ORTPLUGIN_LIBRARY(Name, function) \
  template <typename T>                   \
  inline T Name(T x) {                    \
    return std::function(x);              \
  }
ORTPLUGIN_LIBRARY(Sin, sin)
ORTPLUGIN_LIBRARY(Cos, cos)
ORTPLUGIN_LIBRARY(Tan, tan)
ORTPLUGIN_LIBRARY(Asin, asin)
ORTPLUGIN_LIBRARY(Acos, acos)
ORTPLUGIN_LIBRARY(Atan, atan)
ORTPLUGIN_LIBRARY(Sinh, sinh)
ORTPLUGIN_LIBRARY(Cosh, cosh)
ORTPLUGIN_LIBRARY(Asinh, asinh)
ORTPLUGIN_LIBRARY(Acosh, acosh)
ORTPLUGIN_LIBRARY(Atanh, atanh)
#undef ORTPLUGIN_LIBRARY

inline double Exp(double x) { return std::exp(x); }
inline double Log(double x) { return std::log(x); }
inline double Expm1(double x) { return std::expm1(x); }
inline double Log1p(double x) { return std::log1p(x); }
inline double Tanh(double x) { return std::tanh(x); }
inline double Erf(double x) { return std::erf(x); }
inline double NormalCdf(double x) { return 0.5 * std::erfc(x * -0.70710678118654752440); }
inline double Pow(double x, double y) { return std::pow(x, y); }

// ---- float: exponentials ------------------------------------------------------------------------------------------

constexpr float kFloatInf = std::numeric_limits<float>::infinity();
constexpr float kFloatNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLog2E = 1.44269504089f;
constexpr float kLn2High = 0.693359375f;  // few bits: a whole number up to 2^15 times it is exact
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves a whole number in the mantissa's low bits

// 2^n for n from -126 to 127; any other n gives some float.
ORTPLUGIN_INLINE float PowerOfTwo(int32_t n) { return BitCast<float>((static_cast<uint32_t>(n) + 127u) << 23); }

// x = n * ln 2 + r with n a whole number and |r| < 0.35.
struct Reduced {
  float r;
  int32_t n;
};
ORTPLUGIN_INLINE Reduced ReduceByLn2(float x, float low) {
  const float shifted = (x + low) * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const uint32_t whole = BitCast<uint32_t>(shifted) - BitCast<uint32_t>(kRounder);
  return {((x - n * kLn2High) - n * kLn2Low) + low, static_cast<int32_t>(whole)};
}

// factor * exp(x + low), |low| much less than 1: for an argument known to more than float's precision. The factor comes
// in before exp's last rounding.
ORTPLUGIN_INLINE float ScaledExp(float x, float low, float factor) {
  x = Select(x < -104.0f, -104.0f, x);  // 0 from here
  x = Select(x > 89.0f, 89.0f, x);      // infinity from here; NaN passes
  const Reduced reduced = ReduceByLn2(x, low);
  const float r = reduced.r;
  const float p =
      (((0.0013814496342092752f * r + 0.0083687799051404f) * r + 0.04166839271783829f) * r + 0.1666651964187622f) * r +
      0.4999999403953552f;
  const float minus_one = p * (r * r) + r;
  const float power = factor * minus_one + factor;
  // 2^n in two steps: n is from -151 to 129. The second rounds, where the result is denormal.
  const int32_t half = reduced.n >> 1;
  return power * PowerOfTwo(half) * PowerOfTwo(reduced.n - half);
}

ORTPLUGIN_INLINE float Exp(float x) { return ScaledExp(x, 0.0f, 1.0f); }

// exp(x) - 1 without cancellation.
ORTPLUGIN_INLINE float Expm1(float x) {
  const float clamped = Select(x < -18.0f, -18.0f, Select(x > 89.0f, 89.0f, x));  // -1 from -18
  const Reduced reduced = ReduceByLn2(clamped, 0.0f);
  const float r = reduced.r;
  const float p = ((((0.0001991433382499963f * r + 0.0013941102661192417f) * r + 0.008333273231983185f) * r +
                    0.04166635498404503f) *
                       r +
                   0.1666666716337204f) *
                      r +
                  0.5f;
  const float minus_one = p * (r * r) + r;
  // 2^n (e^r - 1) + (2^n - 1), at half its size so that n = 128 does not overflow too early.
  const float scale = PowerOfTwo(reduced.n - 1);
  const float result = 2.0f * (scale * minus_one + (scale - 0.5f));
  return Select(reduced.n == 0, Select(x == 0, x, minus_one), result);
}

// ---- float: logarithms --------------------------------------------------------------------------------------------

// x = m * 2^e with m from sqrt(1/2) to sqrt(2), for positive finite x, denormals included.
struct Split {
  float m;
  int32_t e;
};
ORTPLUGIN_INLINE Split SplitExponent(float x) {
  const bool tiny = x < std::numeric_limits<float>::min();
  const float scaled = x * 8388608.0f;
  const uint32_t bits = BitCast<uint32_t>(Select(tiny, scaled, x));
  const uint32_t offset = bits - 0x3f3504f3u;  // the bits of sqrt(1/2)
  const int32_t e = static_cast<int32_t>(offset) >> 23;
  const float m = BitCast<float>((offset & 0x7fffffu) + 0x3f3504f3u);
  return {m, e - static_cast<int32_t>(tiny) * 23};
}

// log(m * 2^e) + low.
ORTPLUGIN_INLINE float LogOfSplit(Split split, float low) {
  const float f = split.m - 1.0f;
  const float e = static_cast<float>(split.e);
  const float p =
      (((((((0.06746625900268555f * f - 0.11675631254911423f) * f + 0.11888153105974197f) * f - 0.1240558996796608f) *
              f +
          0.14219553768634796f) *
             f -
         0.1666799634695053f) *
            f +
        0.2000211924314499f) *
           f -
       0.25000008940696716f) *
          f +
      0.3333331346511841f;
  const float square = f * f;
  const float tail = p * (square * f) + (e * kLn2Low + low) - 0.5f * square;
  return (f + tail) + e * kLn2High;
}

ORTPLUGIN_INLINE float Log(float x) {
  float result = LogOfSplit(SplitExponent(x), 0.0f);
  result = Select(x == kFloatInf, x, result);
  result = Select(x == 0, -kFloatInf, result);
  return Select(x < 0, kFloatNaN, Select(x != x, x, result));
}

// log(1 + x) for x from 0 to 1, NaN included.
ORTPLUGIN_INLINE float Log1pOfFraction(float x) {
  const float sum = 1.0f + x;
  const float lost = x - (sum - 1.0f);  // what the sum rounded away
  const float result = LogOfSplit(SplitExponent(sum), lost / sum);
  return Select(x != x, x, result);
}
ORTPLUGIN_INLINE double Log1pOfFraction(double x) { return std::log1p(x); }

// ---- float: the error function ------------------------------------------------------------------------------------

// Below 0.92 x * P(x^2); above it 1 - exp(Q(|x|)), Q the logarithm of erfc (the form is N. Juffa's).
ORTPLUGIN_INLINE float Erf(float x) {
  const float a = Abs(x);
  const float s = x * x;
  const float p =
      ((((-0.000599940714892f * s + 0.004994831047952175f) * s - 0.02676772139966488f) * s + 0.11281845718622208f) * s -
       0.3761249780654907f) *
          s +
      0.12837915122509003f;
  const float small = x * p + x;
  const float t = Select(a > 4.0f, 4.0f, a);  // 1 from here
  const float q =
      (((((0.0001959317160071805f * t - 0.0030431656632572412f) * t + 0.0222267247736454f) * t - 0.10393121093511581f) *
            t -
        0.6371826529502869f) *
           t -
       1.1276754140853882f) *
          t -
      0.00019572782912291586f;
  const float large = std::copysign(1.0f - Exp(q), x);
  return Select(a < 0.92f, small, large);
}

// Phi(-a) for a >= 0 is exp(-a^2/2) / (c a + P(a) / Q(a)), c near sqrt(2 pi), with one division. All coefficients are
// positive, so nothing cancels in either tail, and where a is large the error of Q does.
ORTPLUGIN_INLINE float NormalCdf(float x) {
  float a = Abs(x);
  a = Select(a > 15.0f, 15.0f, a);  // 0 from here
  // a^2 as a sum: the upper half of a squares exactly.
  const float upper = BitCast<float>(BitCast<uint32_t>(a) & 0xfffff000u);
  const float lower = a - upper;
  const float p = (((1.33133317e-05f * a + 0.0182292368f) * a + 0.185809672f) * a + 0.753173113f) * a + 1.78486407f;
  const float q = (((0.00737375114f * a + 0.0727042556f) * a + 0.327581525f) * a + 0.783013523f) * a + 0.892432034f;
  const float ratio = q / ((2.50660014f * a) * q + p);
  const float tail = ScaledExp(-0.5f * (upper * upper), -0.5f * (lower * (a + upper)), ratio);
  return Select(x < 0, tail, 1.0f - tail);
}

// ---- float: power -------------------------------------------------------------------------------------------------

// 2^(y log2 |x|) in double, 2^-37 exact, then the special cases of C's pow.
ORTPLUGIN_INLINE float Pow(float x, float y) {
  const float a = Abs(x);
  const Split split = SplitExponent(a);
  const double m = static_cast<double>(split.m);
  const double s = (m - 1.0) / (m + 1.0);
  const double q = s * s;
  const double p =
      ((((0.28292090594425146 * q + 0.3199043220953216) * q + 0.4122092838686123) * q + 0.5770779420752854) * q +
       0.9617966941142516) *
          q +
      2.8853900817778495;
  double log2 = static_cast<double>(split.e) + s * p;
  log2 = a == 0 ? -static_cast<double>(kFloatInf) : log2;
  log2 = a == kFloatInf ? static_cast<double>(kFloatInf) : log2;
  double t = static_cast<double>(y) * log2;
  t = t > 130.0 ? 130.0 : (t < -160.0 ? -160.0 : t);
  t = t != t ? 0.0 : t;                                  // decided below
  constexpr double kDoubleRounder = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = t + kDoubleRounder;
  const double r = t - (shifted - kDoubleRounder);
  const double e = ((((((1.520191098871058e-05 * r + 0.00015469317608382983) * r + 0.0013333922821731415) * r +
                       0.009618027171298638) *
                          r +
                      0.055504103528558904) *
                         r +
                     0.24022651198779285) *
                        r +
                    0.6931471807287178) *
                       r +
                   0.9999999999616102;
  const uint64_t n = BitCast<uint64_t>(shifted) - BitCast<uint64_t>(kDoubleRounder);
  float result = static_cast<float>(e * BitCast<double>((n + 1023u) << 52));

  float whole = Select(y > 16777216.0f, 16777216.0f, Select(y < -16777216.0f, -16777216.0f, y));  // all even from 2^24
  whole = Select(y != y, 0.0f, whole);
  const int32_t integer = static_cast<int32_t>(whole);
  const bool is_integer = static_cast<float>(integer) == whole;
  const uint32_t odd = Select(is_integer, static_cast<uint32_t>(integer) << 31, 0u);  // the sign's bit if y is odd
  result = BitCast<float>(BitCast<uint32_t>(result) | (BitCast<uint32_t>(x) & odd));
  const bool undefined = (x < 0) & (a != kFloatInf) & !is_integer;
  const bool unordered = (x != x) | (y != y);
  result = Select(undefined, kFloatNaN, result);
  result = Select(unordered, x + y, result);
  const bool one = (y == 0) | (x == 1.0f) | ((a == 1.0f) & (Abs(y) == kFloatInf));
  return Select(one, 1.0f, result);
}

// ---- Functions of exponentials, both types ------------------------------------------------------------------------

// 1 / (1 + exp(-x)), from exp(-|x|), which does not overflow.
template <typename T>
ORTPLUGIN_INLINE T Sigmoid(T x) {
  const T z = Exp(-Abs(x));
  return Select(x < 0, z, T(1)) / (T(1) + z);
}

// tanh(a) = expm1(2a) / (expm1(2a) + 2).
ORTPLUGIN_INLINE float Tanh(float x) {
  float a = Abs(x);
  a = Select(a > 10.0f, 10.0f, a);
  const float z = Expm1(a + a);
  return std::copysign(z / (z + 2.0f), x);
}

// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)).
template <typename T>
ORTPLUGIN_INLINE T Softplus(T x) {
  return Relu(x) + Log1pOfFraction(Exp(-Abs(x)));
}

// x tanh(log(1 + exp(x))) = x n / (n + 2), n = exp(x) (exp(x) + 2); from x = 20 on that is x, in double too.
template <typename T>
ORTPLUGIN_INLINE T Mish(T x) {
  const T z = Exp(Select(x > T(20), T(20), x));
  const T n = z * z + (z + z);
  const T y = x * (n / (n + T(2)));
  return Select(x > T(20), x, y);
}

template <typename T>
ORTPLUGIN_INLINE T Elu(T x, T alpha) {
  const T below = alpha * Expm1(x);
  return Select(x > 0, x, below);
}
template <typename T>
ORTPLUGIN_INLINE T Celu(T x, T alpha) {
  return Max(T(0), x) + Min(T(0), alpha * Expm1(x / alpha));
}
template <typename T>
ORTPLUGIN_INLINE T Selu(T x, T alpha, T gamma) {
  return gamma * Elu(x, alpha);
}
template <typename T>
ORTPLUGIN_INLINE T Swish(T x, T alpha) {
  return x * Sigmoid(alpha * x);
}
template <typename T>
ORTPLUGIN_INLINE T Gelu(T x) {
  return x * NormalCdf(x);
}
// x (1 + tanh(u)) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename T>
ORTPLUGIN_INLINE T GeluTanh(T x) {
  const T cubic = T(0.044715) * (x * x * x);
  return x * Sigmoid(T(1.59576912160573071176) * (x + cubic));
}

}  // namespace ortplugin::lane
