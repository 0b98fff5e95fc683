// The pointwise operators on one lane, float and double, written so that a loop over lanes vectorises.
//
// The float versions of the functions that models use are without branches and tables: range reduction as in Moshier's
// Cephes library (expf, logf), then a minimax polynomial, its coefficients from a Remez exchange in 40 digits, rounded
// to float. Where a product is fused with a sum std::fma says so and nothing else is fused, so that every machine gives
// the same bits; one without the instruction (before 2013) is slow. The largest error found by
// tests/native/test_evaluator.cc over every 251st float (SAMPLE_STRIDE), in units in the last place of the exact
// result:
//
//   Exp 1.49   Log 0.81   Pow 0.51   Tanh 2.34   Erf 1.11   Sigmoid 2.90   Softplus 2.33   Mish 4.07
//   Gelu 3.56   Swish 3.61   Elu 0.85   Celu 0.85   Selu 1.89   Sin 1.53   Cos 1.57   Asin 1.81   Acos 1.24   Atan 1.37
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

// ---- Small things

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
  return x > 0 ? T(1) : (x < 0 ? T(-1) : x != x ? x : T(0));  // NaN is kept, -0 becomes 0
}
template <typename T>
ORTPLUGIN_INLINE T Min(T a, T b) {
  const T smaller = a < b ? a : b;  // b if either is NaN
  return a != a ? a : smaller;  // so NaN in either gives NaN
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

// The polynomial of x with these coefficients, the highest first, by Horner's rule.
template <typename T, typename... Lower>
ORTPLUGIN_INLINE T Polynomial(T x, T highest, Lower... lower) {
  T value = highest;
  ((value = std::fma(value, x, lower)), ...);
  return value;
}

// ---- Rare functions, and all of double: the C library

#define ORTPLUGIN_LIBRARY(Name, function) \
  template <typename T> \
  inline T Name(T x) { \
    return std::function(x); \
  }
ORTPLUGIN_LIBRARY(Tan, tan)
ORTPLUGIN_LIBRARY(Sinh, sinh)
ORTPLUGIN_LIBRARY(Cosh, cosh)
ORTPLUGIN_LIBRARY(Asinh, asinh)
ORTPLUGIN_LIBRARY(Acosh, acosh)
ORTPLUGIN_LIBRARY(Atanh, atanh)
#undef ORTPLUGIN_LIBRARY

inline double Asin(double x) { return std::asin(x); }
inline double Acos(double x) { return std::acos(x); }
inline double Atan(double x) { return std::atan(x); }
inline double Exp(double x) { return std::exp(x); }
inline double Log(double x) { return std::log(x); }
inline double Expm1(double x) { return std::expm1(x); }
inline double Log1p(double x) { return std::log1p(x); }
inline double Tanh(double x) { return std::tanh(x); }
inline double Erf(double x) { return std::erf(x); }
inline double NormalCdf(double x) { return 0.5 * std::erfc(x * -0.70710678118654752440); }
inline double Pow(double x, double y) { return std::pow(x, y); }

// ---- float: exponentials

constexpr float kFloatInf = std::numeric_limits<float>::infinity();
constexpr float kFloatNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLog2E = 1.44269504089f;
constexpr float kLn2High = 0.693147182f;  // ln 2 rounded, and what that leaves
constexpr float kLn2Low = -1.90465421e-09f;
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves a whole number in the mantissa's low bits

// 2^n from n + kRounder, for n from -126 to 127; any other n gives some float.
ORTPLUGIN_INLINE float PowerOfTwo(float shifted) {
  return BitCast<float>((BitCast<uint32_t>(shifted) << 23) + (127u << 23));
}

// x = n * ln 2 + r with n a multiple of STEP and |r| < 0.35 * STEP.
struct Reduced {
  float r;
  float shifted;  // n / STEP + kRounder
};
template <int STEP>
ORTPLUGIN_INLINE Reduced ReduceByLn2(float x) {
  constexpr float kStep = float(STEP);
  const float shifted = std::fma(x, kLog2E / kStep, kRounder);
  const float n = shifted - kRounder;
  return {std::fma(n, -kStep * kLn2Low, std::fma(n, -kStep * kLn2High, x)), shifted};
}

// factor * exp(x + low) for x from -170 to 89, |low| much less than 1: for an argument known to more than float's
// precision. The factor comes in before exp's last rounding.
ORTPLUGIN_INLINE float ScaledExp(float x, float low, float factor) {
  const Reduced reduced = ReduceByLn2<2>(x);
  const float r = reduced.r + low;
  const float p = Polynomial(r, 0.00019611601601354778f, 0.0014104472938925028f, 0.008336103521287441f,
    0.04166126996278763f, 0.16666613519191742f, 0.5000003576278687f);
  const float power = std::fma(factor, std::fma(p, r * r, r), factor);
  // n is even, so that 2^n is a square of what is no overflow and no denormal. The second product rounds, where the
  // result is denormal.
  const float half = PowerOfTwo(reduced.shifted);
  return power * half * half;
}

// exp(x) for x from -170 to 89, NaN included.
ORTPLUGIN_INLINE float ExpWithin(float x) {
  const Reduced reduced = ReduceByLn2<2>(x);
  const float r = reduced.r;
  const float p = Polynomial(r, 0.00019611601601354778f, 0.0014104472938925028f, 0.008336103521287441f,
    0.04166126996278763f, 0.16666613519191742f, 0.5000003576278687f, 1.0f, 1.0f);
  const float half = PowerOfTwo(reduced.shifted);
  return p * half * half;
}

ORTPLUGIN_INLINE float Exp(float x) {
  x = x < -104.0f ? -104.0f : x;  // 0 from here
  x = x > 89.0f ? 89.0f : x;  // infinity from here; NaN passes
  return ExpWithin(x);
}
// For x <= 0 or NaN.
ORTPLUGIN_INLINE float ExpOfNegative(float x) { return ExpWithin(x < -104.0f ? -104.0f : x); }
ORTPLUGIN_INLINE double ExpOfNegative(double x) { return std::exp(x); }

// expm1(r) for |r| < 0.35.
ORTPLUGIN_INLINE float Expm1OfSmall(float r) {
  const float p = Polynomial(r, 0.00019845883070956916f, 0.001394074410200119f, 0.008333389647305012f,
    0.04166635870933533f, 0.1666666567325592f, 0.5f);
  return std::fma(p, r * r, r);
}

// exp(x) - 1 without cancellation.
ORTPLUGIN_INLINE float Expm1(float x) {
  float clamped = x > 89.0f ? 89.0f : x;
  clamped = clamped < -18.0f ? -18.0f : clamped;  // -1 from here
  const Reduced reduced = ReduceByLn2<1>(clamped);
  const float minus_one = Expm1OfSmall(reduced.r);
  // 2^n (e^r - 1) + (2^n - 1), at half its size so that n = 128 does not overflow too early.
  const float scale = PowerOfTwo(reduced.shifted - 1.0f);
  const float result = 2.0f * std::fma(scale, minus_one, scale - 0.5f);
  // For n = 0 without the detour, which would lose the sign of zero and a denormal's last bit.
  const float small = x == 0 ? x : minus_one;
  return reduced.shifted == kRounder ? small : result;
}

// ---- float: logarithms

// x = m * 2^e with m from sqrt(1/2) to sqrt(2), for positive finite x, denormals included.
struct Split {
  float m;
  int32_t e;
};
ORTPLUGIN_INLINE Split SplitExponent(float x) {
  const bool tiny = x < std::numeric_limits<float>::min();
  const float scaled = x * 8388608.0f;
  const uint32_t bits = BitCast<uint32_t>(tiny ? scaled : x);
  const uint32_t offset = bits - 0x3f3504f3u;  // the bits of sqrt(1/2)
  const int32_t e = int32_t(offset) >> 23;
  const float m = BitCast<float>((offset & 0x7fffffu) + 0x3f3504f3u);
  return {m, tiny ? e - 23 : e};
}

// log(m * 2^e) + low.
ORTPLUGIN_INLINE float LogOfSplit(Split split, float low) {
  const float f = split.m - 1.0f;
  const float e = float(split.e);
  const float p = Polynomial(f, 0.06746625900268555f, -0.11675631254911423f, 0.11888153105974197f, -0.1240558996796608f,
    0.14219553768634796f, -0.1666799634695053f, 0.2000211924314499f, -0.25000008940696716f, 0.3333331346511841f);
  const float square = f * f;
  const float tail = std::fma(p, square * f, std::fma(-0.5f, square, std::fma(e, kLn2Low, low)));
  return std::fma(e, kLn2High, f + tail);
}

ORTPLUGIN_INLINE float Log(float x) {
  const float result = LogOfSplit(SplitExponent(x), 0.0f);
  // Infinity and NaN are kept.
  const float other = x == 0 ? -kFloatInf : (x < 0 ? kFloatNaN : x);
  return (x > 0) & (x < kFloatInf) ? result : other;
}

// log(1 + x) for x from 0 to 1, NaN included.
ORTPLUGIN_INLINE float Log1pOfFraction(float x) {
  const float sum = 1.0f + x;
  const float lost = x - (sum - 1.0f);  // what the sum rounded away
  const float result = LogOfSplit(SplitExponent(sum), lost / sum);
  return x != x ? x : result;
}
ORTPLUGIN_INLINE double Log1pOfFraction(double x) { return std::log1p(x); }

// ---- float: the error function

// Below 0.92 x * P(x^2); above it 1 - exp(Q(|x|)), Q the logarithm of erfc (the form is N. Juffa's).
ORTPLUGIN_INLINE float Erf(float x) {
  const float a = Abs(x);
  const float s = x * x;
  const float p = Polynomial(s, -0.000599940714892f, 0.004994831047952175f, -0.02676772139966488f, 0.11281845718622208f,
    -0.3761249780654907f, 0.12837915122509003f);
  const float small = std::fma(x, p, x);
  const float t = a > 4.0f ? 4.0f : a;  // 1 from here
  const float q = Polynomial(t, 0.0001959317160071805f, -0.0030431656632572412f, 0.0222267247736454f,
    -0.10393121093511581f, -0.6371826529502869f, -1.1276754140853882f, -0.00019572782912291586f);
  const float large = std::copysign(1.0f - ExpWithin(q), x);
  return a < 0.92f ? small : large;
}

// Phi(-a) for a >= 0 is exp(-a^2/2) / (c a + P(a) / Q(a)), c near sqrt(2 pi), with one division. All coefficients are
// positive, so nothing cancels in either tail, and where a is large the error of Q does.
ORTPLUGIN_INLINE float NormalCdf(float x) {
  float a = Abs(x);
  a = a > 15.0f ? 15.0f : a;  // 0 from here
  const float square = a * a;
  const float lost = std::fma(a, a, -square);  // what the square rounded away
  const float p = Polynomial(a, 1.33133317e-05f, 0.0182292368f, 0.185809672f, 0.753173113f, 1.78486407f);
  const float q = Polynomial(a, 0.00737375114f, 0.0727042556f, 0.327581525f, 0.783013523f, 0.892432034f);
  const float ratio = q / std::fma(2.50660014f * a, q, p);
  const float tail = ScaledExp(-0.5f * square, -0.5f * lost, ratio);
  return x < 0 ? tail : 1.0f - tail;
}

// 1 + erf(x / sqrt(2)) to 6 * 2^-24, in a third of the time that Erf takes: 1 + x P(x^2) / Q(x^2), all coefficients
// positive, up to 5.5, from where on it is 0 or 2.
ORTPLUGIN_INLINE float OnePlusErf(float x) {
  float square = x * x;
  square = square < 30.25f ? square : 30.25f;
  const float p =
    Polynomial(square, 4.549867e-08f, 1.2704265e-05f, 0.00033765414f, 0.009354538f, 0.06770556f, 0.79788446f);
  const float q = Polynomial(square, 1.1975042e-06f, 7.364798e-05f, 0.0018844528f, 0.028645948f, 0.25152224f, 1.0f);
  float y = std::fma(x, p / q, 1.0f);
  y = y < 0 ? 0.0f : y;
  return y > 2.0f ? 2.0f : y;
}

// ---- float: angles

constexpr double kDoubleRounder = 6755399441055744.0;  // 1.5 * 2^52
constexpr float kHalfPi = 1.57079637f;  // rounded, and what that leaves
constexpr float kHalfPiRest = -4.37113883e-08f;

// SinWithin<0> is the sine, SinWithin<1> the cosine, for |x| up to kMostAngle or NaN: x less a multiple of pi / 2,
// which takes a double and a half. (Beyond that it would take more.)
constexpr float kMostAngle = 268435456.0f;
template <int QUARTERS>
ORTPLUGIN_INLINE float SinWithin(float x) {
  const double wide = double(x);
  const double shifted = std::fma(wide, 0.63661977236758134308, kDoubleRounder);
  const double n = shifted - kDoubleRounder;
  const double rest = std::fma(n, -6.123233995736766036e-17, std::fma(n, -1.57079632679489655800, wide));
  const float r = float(rest);
  const uint32_t quarter = uint32_t(BitCast<uint64_t>(shifted)) + QUARTERS;
  const float z = r * r;
  const float p = Polynomial(z, -0.00019515218446031213f, 0.00833216030150652f, -0.16666655242443085f);
  const float sine = std::fma(p, z * r, r);
  const float q = Polynomial(z, 2.4433082217001356e-05f, -0.0013887315290048718f, 0.04166664555668831f);
  const float cosine = std::fma(q, z * z, std::fma(-0.5f, z, 1.0f));
  const float y = BitCast<float>(BitCast<uint32_t>((quarter & 1) != 0 ? cosine : sine) ^ (quarter & 2) << 30);
  return QUARTERS == 0 && x == 0 ? x : y;  // -0 is kept
}

ORTPLUGIN_INLINE float Atan(float x) {
  const float a = Abs(x);
  const bool is_steep = a > 1.0f;
  const float t = (is_steep ? 1.0f : a) / (is_steep ? a : 1.0f);
  const float z = t * t;
  const float p =
    Polynomial(z, -0.0017936296062543988f, 0.010914637707173824f, -0.03117789886891842f, 0.057957638055086136f,
      -0.0840345248579979f, 0.10952186584472656f, -0.14264242351055145f, 0.19998548924922943f, -0.33333298563957214f);
  const float angle = std::fma(p, z * t, t);
  const float steep = (kHalfPi - angle) + kHalfPiRest;
  return std::copysign(is_steep ? steep : angle, x);
}

// asin(a) for a up to 1/2; above it asin(sqrt((1 - a) / 2)), a half of acos(a).
ORTPLUGIN_INLINE float AsinOfPart(float a) {
  const float z = a > 0.5f ? 0.5f * (1.0f - a) : a * a;
  const float t = a > 0.5f ? std::sqrt(z) : a;
  const float p = Polynomial(
    z, 0.04217822849750519f, 0.02417295053601265f, 0.04547160863876343f, 0.07495288550853729f, 0.16666752099990845f);
  return std::fma(p, z * t, t);
}
ORTPLUGIN_INLINE float Asin(float x) {
  const float a = Abs(x);
  const float part = AsinOfPart(a);
  const float large = std::fma(-2.0f, part, kHalfPi) + kHalfPiRest;
  return std::copysign(a > 0.5f ? large : part, x);
}
ORTPLUGIN_INLINE float Acos(float x) {
  const float a = Abs(x);
  const float part = AsinOfPart(a);
  const float middle = (kHalfPi - std::copysign(part, x)) + kHalfPiRest;
  const float twice = part + part;
  const float below = (2.0f * kHalfPi - twice) + 2.0f * kHalfPiRest;
  return a > 0.5f ? (x < 0 ? below : twice) : middle;
}

// ---- float: remainder and power

// Whether FmodWithin has the answer: the quotient is less than 2^29.
ORTPLUGIN_INLINE bool IsModerateQuotient(float a, float b) {
  return (Abs(a) < 536870912.0f * Abs(b)) & (Abs(b) < kFloatInf);
}
// C's fmod: the quotient is a double, times b exact, and rounded up at most to the next whole number.
ORTPLUGIN_INLINE float FmodWithin(float a, float b) {
  const double dividend = double(Abs(a)), divisor = double(Abs(b));
  const double rest = std::fma(-std::trunc(dividend / divisor), divisor, dividend);
  const double remainder = rest < 0 ? rest + divisor : rest;
  return std::copysign(float(remainder), a);
}

// 2^(y log2 |x|) in double, 2^-37 exact, then the special cases of C's pow.
ORTPLUGIN_INLINE float Pow(float x, float y) {
  const float a = Abs(x);
  const Split split = SplitExponent(a);
  const double m = double(split.m);
  const double s = (m - 1.0) / (m + 1.0);
  const double q = s * s;
  const double p = Polynomial(q, 0.28292090594425146, 0.3199043220953216, 0.4122092838686123, 0.5770779420752854,
    0.9617966941142516, 2.8853900817778495);
  double log2 = std::fma(s, p, double(split.e));
  log2 = a == 0 ? -double(kFloatInf) : log2;
  log2 = a == kFloatInf ? double(kFloatInf) : log2;
  double t = double(y) * log2;
  t = t > 130.0 ? 130.0 : t;
  t = t < -160.0 ? -160.0 : t;
  t = t != t ? 0.0 : t;  // decided below
  const double shifted = t + kDoubleRounder;
  const double r = t - (shifted - kDoubleRounder);
  const double e = Polynomial(r, 1.520191098871058e-05, 0.00015469317608382983, 0.0013333922821731415,
    0.009618027171298638, 0.055504103528558904, 0.24022651198779285, 0.6931471807287178, 0.9999999999616102);
  const uint64_t n = BitCast<uint64_t>(shifted) - BitCast<uint64_t>(kDoubleRounder);
  float result = float(e * BitCast<double>((n + 1023u) << 52));

  float whole = y > 16777216.0f ? 16777216.0f : y;  // all even from 2^24
  whole = whole < -16777216.0f ? -16777216.0f : whole;
  whole = y != y ? 0.0f : whole;
  const int32_t integer = int32_t(whole);
  const bool is_integer = float(integer) == whole;
  const uint32_t odd = is_integer ? uint32_t(integer) << 31 : 0u;  // the sign's bit if y is odd
  result = BitCast<float>(BitCast<uint32_t>(result) | (BitCast<uint32_t>(x) & odd));
  const bool undefined = (x < 0) & (a != kFloatInf) & !is_integer;
  const bool unordered = (x != x) | (y != y);
  result = undefined ? kFloatNaN : result;
  result = unordered ? x + y : result;
  const bool one = (y == 0) | (x == 1.0f) | ((a == 1.0f) & (Abs(y) == kFloatInf));
  return one ? 1.0f : result;
}

// ---- Functions of exponentials, both types

// 1 / (1 + exp(-x)), from exp(-|x|), which does not overflow.
template <typename T>
ORTPLUGIN_INLINE T Sigmoid(T x) {
  const T z = ExpOfNegative(-Abs(x));
  return (x < 0 ? z : T(1)) / (T(1) + z);
}

// tanh(a) = expm1(2a) / (expm1(2a) + 2).
ORTPLUGIN_INLINE float Tanh(float x) {
  float a = Abs(x);
  a = a > 10.0f ? 10.0f : a;  // 1 from here
  const Reduced reduced = ReduceByLn2<1>(a + a);
  const float scale = PowerOfTwo(reduced.shifted);
  const float z = std::fma(scale, Expm1OfSmall(reduced.r), scale - 1.0f);
  return std::copysign(z / (z + 2.0f), x);
}

// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)).
template <typename T>
ORTPLUGIN_INLINE T Softplus(T x) {
  return Relu(x) + Log1pOfFraction(ExpOfNegative(-Abs(x)));
}

// x tanh(log(1 + exp(x))) = x n / (n + 2), n = exp(x) (exp(x) + 2); from x = 20 on that is x, in double too.
template <typename T>
ORTPLUGIN_INLINE T Mish(T x) {
  const T z = Exp(x > T(20) ? T(20) : x);
  const T n = std::fma(z, z, z + z);
  const T y = x * (n / (n + T(2)));
  return x > T(20) ? x : y;
}

template <typename T>
ORTPLUGIN_INLINE T Elu(T x, T alpha) {
  const T below = alpha * Expm1(x);
  return x > 0 ? x : below;
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
