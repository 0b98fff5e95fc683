// The CPU evaluator and the 16-bit conversions: every operator against a long double reference over awkward and over
// dense values, in every dtype, in blocks of several sizes, and bit for bit against a scalar build of the same
// functions.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "ortplugin/runtime/half.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/program/vector_math.h"
#include "ortplugin/runtime/x86_level.h"
#include "tests/native/check.h"
#include "tests/native/evaluate.h"

// Of how many floats the dense samples take one: a prime, so that all low bits occur.
#ifndef SAMPLE_STRIDE
#define SAMPLE_STRIDE (test::IsSample() ? 65543 : 16411)
#endif

void CheckIntegers();  // test_evaluator_integers.cc

namespace {

using namespace ortplugin;
using test::Same;
using Real = long double;
using Numbers = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const char* const kFloating[] = {"float16", "bfloat16", "float", "double"};
const size_t kCounts[] = {1, 3, 511, 512};

std::string Text(double number) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.17g", number);
  return text;
}

// ---- Running one program

void PutElement(DType dtype, double number, unsigned char* element) {
  if (!test::PutFloating(dtype, number, element)) Fail("test_evaluator_integers.cc has the integers");
}

double GetElement(DType dtype, const unsigned char* element) {
  double number = 0;
  if (!test::GetFloating(dtype, element, &number)) Fail("test_evaluator_integers.cc has the integers");
  return number;
}

std::vector<Numbers> Evaluate(const std::string& text, const std::vector<Numbers>& inputs, size_t block = kBlock) {
  return test::Evaluate(text, inputs, block, PutElement, GetElement);
}

DType DTypeOf(const std::string& name) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat, DType::kDouble, DType::kBool}) {
    if (name == NameOf(dtype)) return dtype;
  }
  Fail("no dtype ", name);
}

// ---- 16-bit conversions

// The value of a half from the definition of the format.
double HalfByDefinition(unsigned half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? kInf : kNaN;
  return half >> 15 ? -value : value;
}

void CheckHalves() {
  // Every half to float and back; the float between two neighbours goes to the even one, others to the nearer.
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto half = uint16_t(bits);
    const float value = HalfToFloat(half);
    const double expected = HalfByDefinition(bits);
    CHECK(Same(double(value), expected));
    const uint16_t back = FloatToHalf(value);
    CHECK(std::isnan(value) ? back == (half | 0x200) : back == half);
    if ((bits & 0x7fff) >= 0x7c00) continue;
    const double next = (bits & 0x7fff) == 0x7bff ? std::copysign(65536, expected) : HalfByDefinition(bits + 1);
    const auto middle = float((expected + next) / 2);
    CHECK(FloatToHalf(middle) == (bits & 1 ? bits + 1 : bits));
    CHECK(FloatToHalf(std::nextafter(middle, value)) == bits);
    CHECK(FloatToHalf(std::nextafter(middle, float(next) * 2)) == bits + 1);
    // From double at once: a little off the middle that a float cannot hold.
    const double wide = double(middle);
    CHECK(RoundTo(DType::kFloat16, std::nextafter(wide, expected)) == expected);
    CHECK(RoundTo(DType::kFloat16, std::nextafter(wide, next * 2)) == HalfByDefinition(bits + 1));
  }
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto number = uint16_t(bits);
    const float value = BFloat16ToFloat(number);
    CHECK(BitCast<uint32_t>(value) == bits << 16);
    const uint16_t back = FloatToBFloat16(value);
    CHECK(std::isnan(value) ? back == (number | 0x40) : back == number);
    if ((bits & 0x7fff) >= 0x7f80) continue;
    CHECK(FloatToBFloat16(BitCast<float>((bits << 16) + 0x7fff)) == bits);
    CHECK(FloatToBFloat16(BitCast<float>((bits << 16) + 0x8000)) == (bits & 1 ? bits + 1 : bits));
    CHECK(FloatToBFloat16(BitCast<float>((bits << 16) + 0x8001)) == bits + 1);
  }
  for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7f80ffffu}) {
    CHECK(std::isnan(HalfToFloat(FloatToHalf(BitCast<float>(nan)))));
    CHECK(std::isnan(BFloat16ToFloat(FloatToBFloat16(BitCast<float>(nan)))));
    CHECK((FloatToHalf(BitCast<float>(nan)) >> 15) == nan >> 31);
  }
  CHECK(FloatToHalf(65519.996f) == 0x7bff && FloatToHalf(65520.0f) == 0x7c00 && FloatToHalf(-1e30f) == 0xfc00);
  CHECK(FloatToHalf(2.98023224e-8f) == 0 && FloatToHalf(2.9802326e-8f) == 1 && FloatToHalf(-1e-30f) == 0x8000);
  CHECK(Same(RoundTo(DType::kFloat16, 1e300), kInf) && Same(RoundTo(DType::kBFloat16, -1e300), -kInf));
  CHECK(Same(RoundTo(DType::kFloat16, -1e-300), -0.0) && Same(RoundTo(DType::kBFloat16, kNaN), kNaN));
  CHECK(RoundTo(DType::kBFloat16, 1 + std::ldexp(1, -8)) == 1);
  CHECK(RoundTo(DType::kBFloat16, 1 + std::ldexp(1, -8) + std::ldexp(1, -40)) == 1 + std::ldexp(1, -7));
}

// The vectorised loops agree with the functions, whatever the size and the alignment.
void CheckLanes() {
  std::vector<uint16_t> all(65536 + 1);
  for (size_t i = 0; i < all.size(); ++i) all[i] = uint16_t(i);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const size_t offset : {size_t{0}, size_t{1}}) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{511}, size_t{512}, size_t{65536}}) {
        std::vector<float> lanes(count + 1, 7.0f);
        LoadLanes(dtype, all.data() + offset, count, lanes.data());
        bool good = lanes[count] == 7.0f;
        for (size_t i = 0; i < count; ++i) {
          const uint16_t from = all[i + offset];
          const float expected = dtype == DType::kFloat16 ? HalfToFloat(from) : BFloat16ToFloat(from);
          good &= BitCast<uint32_t>(lanes[i]) == BitCast<uint32_t>(expected);
        }
        CHECK(good);
        std::vector<uint16_t> back(count + 1 + offset, 7);
        StoreLanes(dtype, lanes.data(), count, back.data() + offset);
        good = back[count + offset] == 7;
        for (size_t i = 0; i < count; ++i) {
          const uint16_t expected = dtype == DType::kFloat16 ? FloatToHalf(lanes[i]) : FloatToBFloat16(lanes[i]);
          good &= back[i + offset] == expected;
        }
        CHECK(good);
      }
    }
  }
  for (const char* name : {"float16", "bfloat16", "float", "double", "bool"}) {
    const DType dtype = DTypeOf(name);
    std::vector<unsigned char> lanes(513 * LaneSize(dtype), 0xee);
    unsigned char one[sizeof(double)];
    PutElement(dtype, 1, one);
    FillLanes(dtype, one, 512, lanes.data());
    std::vector<unsigned char> elements(512 * SizeOf(dtype));
    StoreLanes(dtype, lanes.data(), 512, elements.data());
    bool good = std::all_of(
      lanes.end() - std::ptrdiff_t(LaneSize(dtype)), lanes.end(), [](unsigned char byte) { return byte == 0xee; });
    for (size_t i = 0; i < 512; ++i) good &= GetElement(dtype, elements.data() + i * SizeOf(dtype)) == 1;
    CHECK_WITH(good, name);
  }
}

// A session may flush denormal floats to zero; 16-bit denormals are none and stay.
void CheckFlushing() {
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  std::vector<uint16_t> halves(1024), back(1024);
  std::vector<float> lanes(1024);
  for (size_t i = 0; i < 1024; ++i) halves[i] = uint16_t(i);
  LoadLanes(DType::kFloat16, halves.data(), 1024, lanes.data());
  StoreLanes(DType::kFloat16, lanes.data(), 1024, back.data());
  _mm_setcsr(before);
  CHECK(halves == back);
  CHECK(lanes[1] == std::ldexp(1.0f, -24));
#endif
}

// ---- The operators

const Numbers kAwkward = {kNaN, kInf, -kInf, 0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.17549435e-38, 1e-30, -1e-30,
  1e-10, -1e-10, 1e-5, -1e-5, 0.1, -0.1, 0.25, -0.25, 0.3, -0.3, 0.5, -0.5, 0.70710678, 0.75, -0.75, 0.9, -0.9, 0.92,
  1.0, -1.0, 1.4142135, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5, 3.0, -3.0, 3.5, 4.0, -4.0, 5.0, -5.0, 6.0, -6.0, 9.0, -9.0,
  10.5, -10.5, 14.0, -14.0, 17.0, -17.0, 20.0, -20.0, 20.5, 50.0, -50.0, 87.0, -87.0, 88.7, -88.7, 89.5, -89.5, 103.0,
  -103.0, 104.5, -104.5, 127.5, -128.0, 500.0, -500.0, 710.0, -746.0, 2048.0, 65504.0, -65504.0, 1e6, -1e6, 8388607.5,
  -8388609.0, 16777215.0, 1e10, -1e10, 1e20, -1e20, 1e30, -1e30, 3e38, -3.4e38, 1e300, -1e300, 5e-324, 1e-310};

// What an operator is: the exact result, how close it must come.
struct Reference {
  std::string call;  // "Elu<alpha=2>(a)": operands a, b, c
  std::function<Real(Real, Real, Real)> exact;
  double ulps = 0;  // allowed, in the last place of the compute type
  // The scalar build of the same function of float, by this file's flags and for the baseline instruction set.
  float (*lane)(float) = nullptr;
  // More ulps where an inner rounding is magnified: for instance |u| times for exp(u), u rounded.
  std::function<Real(Real, Real)> more = nullptr;
};

Real Sigmoid(Real x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
Real Softplus(Real x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
Real Elu(Real x, Real alpha) { return x > 0 ? x : alpha * std::expm1(x); }
Real MinOf(Real a, Real b) { return std::isnan(a) || std::isnan(b) ? Real(kNaN) : std::fmin(a, b); }
Real MaxOf(Real a, Real b) { return std::isnan(a) || std::isnan(b) ? Real(kNaN) : std::fmax(a, b); }
Real TanhArgument(Real x) { return std::sqrt(8 / std::acos(Real(-1))) * (x + Real(0.044715) * x * x * x); }
Real Attribute(float value) { return Real(value); }

// Sine and cosine as the evaluator has them: the C library's where the angle is large.
template <int QUARTERS>
float Angle(float x) {
  if (std::fabs(x) > lane::kMostAngle) return QUARTERS == 0 ? std::sin(x) : std::cos(x);
  return lane::SinWithin<QUARTERS>(x);
}

// Exact but for the sign of a zero, which ONNX leaves open.
constexpr double kEitherZero = 1e-6;

#define X(expression) [](Real x, Real, Real) -> Real { return expression; }
#define LANE(expression) [](float x) { return expression; }
#define AB(expression) [](Real a, Real b, Real) -> Real { return expression; }

const std::vector<Reference>& Unary() {
  static const std::vector<Reference> table = {
    {"Abs(a)", X(std::fabs(x))},
    {"Neg(a)", X(-x)},
    {"Reciprocal(a)", X(1 / x)},
    {"Sqrt(a)", X(std::sqrt(x))},
    {"Exp(a)", X(std::exp(x)), 1.6, LANE(lane::Exp(x))},
    {"Log(a)", X(std::log(x)), 1.1, LANE(lane::Log(x))},
    {"Floor(a)", X(std::floor(x))},
    {"Ceil(a)", X(std::ceil(x))},
    {"Round(a)", X(std::rint(x))},
    {"Sign(a)",
      X(x > 0      ? 1
          : x < 0  ? -1
          : x != x ? x
                   : 0)},
    {"Sin(a)", X(std::sin(x)), 2, LANE(Angle<0>(x))},
    {"Cos(a)", X(std::cos(x)), 2, LANE(Angle<1>(x))},
    {"Tan(a)", X(std::tan(x)), 2},
    {"Asin(a)", X(std::asin(x)), 2, LANE(lane::Asin(x))},
    {"Acos(a)", X(std::acos(x)), 2, LANE(lane::Acos(x))},
    {"Atan(a)", X(std::atan(x)), 2, LANE(lane::Atan(x))},
    {"Sinh(a)", X(std::sinh(x)), 3},
    {"Cosh(a)", X(std::cosh(x)), 3},
    {"Tanh(a)", X(std::tanh(x)), 2.5, LANE(lane::Tanh(x))},
    {"Asinh(a)", X(std::asinh(x)), 3},
    {"Acosh(a)", X(std::acosh(x)), 3},
    {"Atanh(a)", X(std::atanh(x)), 3},
    {"Erf(a)", X(std::erf(x)), 1.5, LANE(lane::Erf(x))},
    {"Relu(a)", X(x < 0 ? 0 : x)},
    {"Sigmoid(a)", X(Sigmoid(x)), 3, LANE(lane::Sigmoid(x))},
    {"Softplus(a)", X(Softplus(x)), 2.5, LANE(lane::Softplus(x))},
    {"Softsign(a)", X(x / (1 + std::fabs(x))), 2},
    {"HardSwish(a)", X(x * MaxOf(0, MinOf(1, x / 6 + Real(0.5)))), 3, nullptr,
      [](Real x, Real y) { return std::fabs(x * x / 6 / y); }},
    {"Mish(a)", X(x * std::tanh(Softplus(x))), 4.3, LANE(lane::Mish(x))},
    {"LeakyRelu(a)", X(x < 0 ? Attribute(0.01f) * x : x), 0.5},
    {"LeakyRelu<alpha=-3>(a)", X(x < 0 ? -3 * x : x), 0.5},
    {"Elu(a)", X(Elu(x, 1)), 2, LANE(lane::Elu(x, 1.0f))},
    {"Elu<alpha=2.5>(a)", X(Elu(x, 2.5)), 3},
    {"Celu(a)", X(MaxOf(0, x) + MinOf(0, std::expm1(x))), 2, LANE(lane::Celu(x, 1.0f))},
    {"Celu<alpha=2>(a)", X(MaxOf(0, x) + MinOf(0, 2 * std::expm1(x / 2))), 2},
    {"Celu<alpha=-0.5>(a)", X(MaxOf(0, x) + MinOf(0, Real(-0.5) * std::expm1(x / Real(-0.5)))), 2},
    {"Selu(a)", X(Attribute(1.0507010221481323f) * Elu(x, Attribute(1.6732631921768188f))), 3,
      LANE(lane::Selu(x, 1.6732631921768188f, 1.0507010221481323f))},
    {"HardSigmoid(a)", X(MaxOf(0, MinOf(1, Attribute(0.2f) * x + Real(0.5)))), 1, nullptr,
      [](Real x, Real y) { return std::fabs(x / y); }},
    {"HardSigmoid<alpha=1, beta=0>(a)", X(MaxOf(0, MinOf(1, x)))},
    {"ThresholdedRelu(a)", X(x > 1 ? x : 0)},
    {"Shrink(a)", X(x < Real(-0.5) || x > Real(0.5) ? x : 0)},
    {"Shrink<bias=1, lambd=2>(a)",
      X(x < -2    ? x + 1
          : x > 2 ? x - 1
                  : 0),
      0.5},
    {"Swish(a)", X(x * Sigmoid(x)), 3.8, LANE(lane::Swish(x, 1.0f))},
    {"Swish<alpha=-2>(a)", X(x * Sigmoid(-2 * x)), 3.5},
    {"QuickGelu(a)", X(x * Sigmoid(Attribute(1.702f) * x)), 3.5, LANE(lane::Swish(x, 1.702f)),
      [](Real x, Real) { return std::fabs(Real(1.702) * x); }},
    {"Gelu(a)", X(x * std::erfc(-x / std::sqrt(Real(2))) / 2), 4, LANE(lane::Gelu(x))},
    {"Gelu<approximate=\"tanh\">(a)", X(x * Sigmoid(TanhArgument(x))), 3.5, LANE(lane::GeluTanh(x)),
      [](Real x, Real) { return 4 * std::fabs(TanhArgument(x)); }},
    // With literals, in either place.
    {"Add(a, 1.5)", X(x + Real(1.5)), 0.5},
    {"Sub(-inf, a)", X(-Real(kInf) - x)},
    {"Mul(a, -0)", X(x * Real(-0.0))},
    {"Div(1, a)", X(1 / x), 0.5},
    {"Pow(a, 2)", X(x * x), 0.5},
    {"Pow(a, 3)", X(x * x * x), 1.5},
    {"Pow(a, 0.5)", X(std::pow(x, Real(0.5))), 1},
    {"Pow(2, a)", X(std::pow(Real(2), x)), 1},
    {"Pow(a, 0.375)", X(std::pow(x, Real(0.375))), 1, LANE(lane::Pow(x, 0.375f))},
    {"Pow(a, -7)", X(std::pow(x, Real(-7))), 1, LANE(lane::Pow(x, -7.0f))},
    {"Pow(0.75, a)", X(std::pow(Real(0.75), x)), 1, LANE(lane::Pow(0.75f, x))},
    {"Pow(-3, a)", X(std::pow(Real(-3), x)), 1, LANE(lane::Pow(-3.0f, x))},
    {"Clip(a, -1, 6)", X(MinOf(MaxOf(x, -1), 6)), kEitherZero},
    {"Clip(a, nan, 6)", X(Real(kNaN) + 0 * x)},
    {"Max(nan, a)", X(Real(kNaN) + 0 * x)},
    {"Mod<fmod=1>(a, 2.5)", X(std::fmod(x, Real(2.5)))},
    {"IsNaN(a)", X(std::isnan(x))},
    {"IsInf(a)", X(std::isinf(x))},
    {"IsInf<detect_negative=0>(a)", X(std::isinf(x) && x > 0)},
    {"IsInf<detect_positive=0>(a)", X(std::isinf(x) && x < 0)},
    {"IsInf<detect_negative=0, detect_positive=0>(a)", X(0 * (x > 0))},
  };
  return table;
}

const std::vector<Reference>& Binary() {
  static const std::vector<Reference> table = {
    {"Add(a, b)", AB(a + b), 0.5},
    {"Sub(a, b)", AB(a - b), 0.5},
    {"Mul(a, b)", AB(a * b), 0.5},
    {"Div(a, b)", AB(a / b), 0.5},
    {"Pow(a, b)", AB(std::pow(a, b)), 1},
    {"Min(a, b)", AB(MinOf(a, b)), kEitherZero},
    {"Max(a, b)", AB(MaxOf(a, b)), kEitherZero},
    {"PRelu(a, b)", AB(a < 0 ? b * a : a), 0.5},
    {"Clip(a, b, 1)", AB(MinOf(MaxOf(a, b), 1)), kEitherZero},
    {"Equal(a, b)", AB(a == b)},
    {"Less(a, b)", AB(a < b)},
    {"LessOrEqual(a, b)", AB(a <= b)},
    {"Greater(a, b)", AB(a > b)},
    {"GreaterOrEqual(a, b)", AB(a >= b)},
    {"Mod<fmod=1>(a, b)", AB(std::fmod(a, b))},
  };
  return table;
}

#undef X
#undef AB
#undef LANE

// The room for x * f(x) where f(x), an exponential tail, is below the least normal number: it was rounded to the last
// place there is before x multiplied it.
Real TailRoom(DType dtype, Real x) {
  return std::ldexp(std::fmin(std::fabs(x), Real(1000)), dtype == DType::kDouble ? -1074 : -149);
}

// The unit in the last place of `exact` in the type that the arithmetic of `dtype` runs in.
Real Ulp(DType dtype, Real exact) {
  const bool wide = dtype == DType::kDouble;
  const int digits = wide ? 53 : 24, smallest = wide ? -1074 : -149;
  if (exact == 0 || !std::isfinite(exact)) return std::ldexp(Real(1), smallest);
  return std::ldexp(Real(1), std::max(std::ilogb(exact) + 1 - digits, smallest));
}

double RoundReal(DType dtype, Real number) {
  if (dtype == DType::kFloat) return double(float(number));
  return RoundTo(dtype, double(number));
}

// Is `got` a rounding of something within `ulps` of `exact`?
bool Close(DType dtype, double got, Real exact, Real ulps, Real extra = 0) {
  if (std::isnan(exact)) return std::isnan(got);
  if (ulps == 0)
    return got == RoundReal(dtype, exact) && (got != 0 || exact != 0 || std::signbit(got) == std::signbit(exact));
  const Real room = std::isfinite(exact) ? ulps * Ulp(dtype, exact) + extra : 0;
  return RoundReal(dtype, exact - room) <= got && got <= RoundReal(dtype, exact + room);
}

// The inputs as the dtype holds them.
Numbers Rounded(DType dtype, const Numbers& numbers) {
  Numbers rounded;
  for (const double number : numbers) rounded.push_back(RoundTo(dtype, number));
  return rounded;
}

std::string ResultOf(const std::string& call, const std::string& dtype) {
  for (const char* test : {"Equal", "Less", "Greater", "IsNaN", "IsInf"}) {
    if (call.find(test) == 0) return "bool";
  }
  return dtype;
}

bool HasTail(const std::string& call) {
  return call.find("Gelu") != std::string::npos || call.find("Swish") == 0 || call.find("Mish") == 0;
}

Real Allowed(const Reference& reference, Real x, Real exact) {
  const Real more = reference.more && std::isfinite(exact) ? reference.more(x, exact) : 0;
  return reference.ulps + (std::isnan(more) ? 0 : more);
}

void CheckReference(const Reference& reference, const char* name, const Numbers& a, const Numbers& b, size_t block) {
  const DType dtype = DTypeOf(name);
  const bool binary = reference.call.find('b', reference.call.find('(')) != std::string::npos;
  const std::string result = ResultOf(reference.call, name);
  const std::string text = std::string("(") + name + " a" + (binary ? std::string(", ") + name + " b" : "") + ") => (" +
    result + " y) { y = " + reference.call + " }";
  const Numbers left = Rounded(dtype, a), right = Rounded(dtype, b);
  const Numbers got = Evaluate(text, binary ? std::vector<Numbers>{left, right} : std::vector<Numbers>{left}, block)[0];
  for (size_t i = 0; i < left.size(); ++i) {
    const Real exact = reference.exact(left[i], right[i], 0);
    Real ulps = Allowed(reference, left[i], exact);
    // The C library's erfc sees x / sqrt(2) rounded, which the tail magnifies.
    if (dtype == DType::kDouble && reference.call == "Gelu(a)") ulps += std::fmin(2 * left[i] * left[i], 1e3);
    const Real extra = HasTail(reference.call) ? TailRoom(dtype, left[i]) : 0;
    CHECK_WITH(Close(DTypeOf(result), got[i], exact, std::fmin(ulps, Real(1e6)), extra),
      std::string(name) + " " + reference.call + " of " + Text(left[i]) + ", " + Text(right[i]) + " is " +
        Text(got[i]) + ", not " + Text(double(exact)));
  }
}

void CheckOperators() {
  Numbers left, right;  // every pair
  for (const double a : kAwkward) {
    for (const double b : kAwkward) {
      left.push_back(a);
      right.push_back(b);
    }
  }
  for (const char* dtype : kFloating) {
    for (const Reference& reference : Unary()) CheckReference(reference, dtype, kAwkward, kAwkward, kBlock);
    for (const Reference& reference : Binary()) CheckReference(reference, dtype, left, right, kBlock);
  }
  // Any part of a block: the vectors' tails.
  Numbers ramp;
  for (int i = 0; i < 1100; ++i) ramp.push_back((i - 550) * 0.0173);
  Numbers reverse(ramp.rbegin(), ramp.rend());
  for (const size_t count : kCounts) {
    const Numbers a(ramp.begin() + 7, ramp.begin() + 7 + std::ptrdiff_t(count));
    for (const char* dtype : kFloating) {
      for (const Reference& reference : Unary()) CheckReference(reference, dtype, a, reverse, count);
      for (const Reference& reference : Binary()) CheckReference(reference, dtype, a, reverse, count);
    }
  }
}

void CheckLogic() {
  const Numbers c = {0, 0, 1, 1, 0}, d = {0, 1, 0, 1, 1};
  CHECK(Evaluate("(bool c, bool d) => (bool a, bool o, bool x, bool n, bool m) { a = And(c, d) o = Or(c, d) "
                 "x = Xor(c, d) n = Not(c) m = Xor(c, 1) }",
          {c, d}) ==
    std::vector<Numbers>({{0, 0, 0, 1, 0}, {0, 1, 1, 1, 1}, {0, 1, 1, 0, 1}, {1, 1, 0, 0, 1}, {1, 1, 0, 0, 1}}));
  for (const std::string dtype : kFloating) {
    const Numbers y = Evaluate(
      "(bool c, " + dtype + " a) => (" + dtype + " y) { y = Where(c, a, -0) }", {c, {1, kNaN, kNaN, kInf, 2}})[0];
    CHECK(Same(y[0], -0.0) && Same(y[1], -0.0) && Same(y[2], kNaN) && y[3] == kInf && Same(y[4], -0.0));
    const Numbers clipped = Evaluate(
      "(" + dtype + " a, " + dtype + " low, " + dtype + " high) => (" + dtype + " y) { y = Clip(a, low, high) }",
      {{5, 5, kNaN, -5, 0}, {0, kNaN, 0, 2, 1}, {3, 6, 6, 1, kNaN}})[0];
    CHECK(
      clipped[0] == 3 && Same(clipped[1], kNaN) && Same(clipped[2], kNaN) && clipped[3] == 1 && Same(clipped[4], kNaN));
  }
}

void CheckRoundings() {
  // Between statements a float16 value keeps fp32's digits; a Cast rounds it.
  const Numbers kept =
    Evaluate("(float16 a) => (float y) { b = Add(a, 1) c = Sub(b, 1) y = Cast<to=float>(c) }", {{0.00025}})[0];
  CHECK(kept[0] > 0.000249 && kept[0] < 0.000251);
  const Numbers cut =
    Evaluate("(float16 a) => (float y) { b = Add(a, 1) r = Cast<to=float16>(b) c = Sub(r, 1) y = Cast<to=float>(c) }",
      {{0.00025}})[0];
  CHECK(cut[0] == 0);
  // A literal has its dtype's value.
  CHECK(Evaluate("(float16 a) => (float y) { b = Mul(a, 0.1) y = Cast<to=float>(b) }", {{1}})[0][0] == 0.0999755859375);
  CHECK(Evaluate("(double a) => (double y) { y = Mul(a, 0.1) }", {{1}})[0][0] == 0.1);
}

// Lanes are aligned, and a core operator is not the evaluator's.
void CheckWorkspace() {
  const Program program =
    Program::Parse("(float x) => (float y) { s = Add(x, 0.5) n = LayerNormalization(s) y = Neg(n) }");
  const Evaluator prologue(program, {0});
  Evaluator::Workspace workspace(prologue);
  for (ValueId id = 0; id < program.values().size(); ++id) {
    CHECK(reinterpret_cast<uintptr_t>(workspace.lanes(id)) % 64 == 0);
  }
  CHECK(test::Contains(test::ErrorOf([&] { Evaluator(program, {1}); }), "LayerNormalization is a core operator"));
}

// ---- Accuracy and sameness over all floats

void CheckDense(const Reference& reference) {
  const std::string& call = reference.call;
  const Program program = Program::Parse("(float a) => (float y) { y = " + call + " }");
  const Evaluator evaluator(program, {0});
  Evaluator::Workspace workspace(evaluator);
  float* a = static_cast<float*>(workspace.lanes(program.parameters()[0]));
  const float* y = static_cast<const float*>(workspace.lanes(program.results()[0]));
  uint64_t bits = 0;
  double worst = 0;
  float where = 0;
  bool same = true, special = true, close = true;
  while (bits < uint64_t{1} << 32) {
    size_t count = 0;
    for (; count < kBlock && bits < uint64_t{1} << 32; ++count, bits += SAMPLE_STRIDE) {
      a[count] = BitCast<float>(uint32_t(bits));
    }
    evaluator.Run(workspace, count);
    for (size_t i = 0; i < count; ++i) {
      const float x = a[i];
      same &= BitCast<uint32_t>(y[i]) == BitCast<uint32_t>(reference.lane(x)) ||
        (std::isnan(y[i]) && std::isnan(reference.lane(x)));
      const Real expected = reference.exact(Real(x), 0, 0);
      if (std::isnan(expected) || std::isnan(y[i])) {
        special &= std::isnan(expected) == std::isnan(y[i]);
      } else if (std::isinf(y[i])) {
        special &= Same(double(float(expected)), double(y[i])) || std::fabs(expected) > Real(3.4028234e38);
      } else {
        const Real difference = std::fabs(Real(y[i]) - expected);
        const Real extra = HasTail(call) ? TailRoom(DType::kFloat, Real(x)) : 0;
        const auto error = double(std::fmax(difference - extra, Real(0)) / Ulp(DType::kFloat, expected));
        close &= error <= double(Allowed(reference, Real(x), expected));
        if (error > worst) {
          worst = error;
          where = x;
        }
      }
    }
  }
  std::printf("%-30s %6.3f ulp at %.9g\n", call.c_str(), worst, double(where));
  CHECK_WITH(same, call);
  CHECK_WITH(special, call);
  CHECK_WITH(close, call + ": " + Text(worst) + " ulp at " + Text(double(where)));
}

// 1 + Erf(a / 1.414) is computed at once, and Erf itself as ever where something else reads it.
void CheckOnePlusErf() {
  const std::string scaled = "(float a) => (float y) { s = Mul(a, 0.70710678) e = Erf(s) y = Add(1, e) }";
  Numbers a = kAwkward;
  for (int i = -8000; i <= 8000; ++i) a.push_back(i / 1024.0);
  a = Rounded(DType::kFloat, a);
  const Numbers y = Evaluate(scaled, {a})[0], erf = Evaluate("(float a) => (float y) { y = Erf(a) }", {a})[0];
  const auto both = Evaluate("(float a) => (float e, float y) { e = Erf(a) y = Add(e, 1) }", {a});
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(Same(y[i], double(lane::OnePlusErf(float(a[i])))));
    CHECK(std::isnan(a[i]) ? std::isnan(y[i]) : y[i] >= 0 && y[i] <= 2);
    CHECK(Same(both[0][i], erf[i]));
    for (const double error : {y[i] - std::erfc(a[i] * -0.70710678118654752), both[1][i] - (1 + erf[i])})
      CHECK(std::isnan(a[i]) || std::fabs(error) <= 7 * 0x1p-24);
  }
}

// C's fmod has no rounding at all: any two floats, and quotients just below a whole number.
void CheckRemainders() {
  const Program program = Program::Parse("(float a, float b) => (float y) { y = Mod<fmod=1>(a, b) }");
  const Evaluator evaluator(program, {0});
  Evaluator::Workspace workspace(evaluator);
  float* a = static_cast<float*>(workspace.lanes(program.parameters()[0]));
  float* b = static_cast<float*>(workspace.lanes(program.parameters()[1]));
  const float* y = static_cast<const float*>(workspace.lanes(program.results()[0]));
  uint64_t state = 88172645463325252;
  size_t wrong = 0;
  for (int round = 0; round < 2000; ++round) {
    for (size_t i = 0; i < kBlock; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      b[i] = BitCast<float>(uint32_t(state >> 32));
      a[i] = BitCast<float>(uint32_t(state >> 7));
      // Most blocks have no quotient that is too large for the fast way.
      if (round % 8 != 0) {
        b[i] = 1 + std::fmod(std::fabs(b[i]), 100.0f);
        if (!std::isfinite(b[i])) b[i] = 3;
        a[i] = std::nextafter(b[i] * float(state >> 50), state & 1 ? 0.0f : 1e30f);
      }
    }
    evaluator.Run(workspace, kBlock);
    for (size_t i = 0; i < kBlock; ++i) {
      wrong += Same(double(y[i]), double(std::fmod(a[i], b[i]))) ? 0 : 1;
    }
  }
  CHECK_WITH(wrong == 0, std::to_string(wrong) + " remainders are wrong");
}

void CheckAccuracy() {
  for (const Reference& reference : Unary())
    if (reference.lane != nullptr) CheckDense(reference);
}

}  // namespace

// The reductions of normalisations against sums in long double: the error of a sum of n terms in blocks of 512 is at
// most a few units of rounding of the sum of magnitudes.
template <typename T>
void CheckReductions(DType dtype, long double unit) {
  for (const size_t count : {0, 1, 3, 31, 32, 33, 511, 512, 513, 5000}) {
    std::vector<T> lanes(count), scaled(count);
    for (size_t i = 0; i < count; ++i) lanes[i] = T(1000 + std::sin(double(i)));
    long double sum = 0, squares = 0;
    for (const T x : lanes) sum += x;
    const double mean = count == 0 ? 0 : double(T(sum / static_cast<long double>(count)));
    for (const T x : lanes) squares += (x - static_cast<long double>(mean)) * (x - static_cast<long double>(mean));
    CHECK(std::fabs(SumLanes(dtype, lanes.data(), count) - sum) <= 32 * unit * sum);
    CHECK(std::fabs(SumSquaredDeviations(dtype, lanes.data(), mean, count) - squares) <= 64 * unit * squares);
    NormalizeLanes(dtype, lanes.data(), mean, 3, count, scaled.data());
    for (size_t i = 0; i < count; ++i) CHECK(scaled[i] == (lanes[i] - T(mean)) * T(3));
    if (count == 0) continue;
    lanes[count / 2] = std::numeric_limits<T>::quiet_NaN();
    CHECK(std::isnan(SumLanes(dtype, lanes.data(), count)));
    CHECK(std::isnan(SumSquaredDeviations(dtype, lanes.data(), 0, count)));
    lanes[count / 2] = std::numeric_limits<T>::infinity();
    CHECK(std::isinf(SumLanes(dtype, lanes.data(), count)));
  }
}

// ctest runs this program at each level.
int ortplugin::MostX86Level() {
  const char* level = std::getenv("ORTPLUGIN_X86_LEVEL");
  return level == nullptr ? 4 : std::atoi(level);
}

// CPUID as we read it against what GCC's runtime library makes of it.
void CheckLevel() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  __builtin_cpu_init();
  const bool has_avx2 =
    __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  CHECK(ortplugin::X86Level() == (!has_avx2 ? 2 : has_avx512 ? 4 : 3));
#endif
}

int main() {
  CheckLevel();
  CheckReductions<float>(DType::kFloat, 6e-8L);
  CheckReductions<double>(DType::kDouble, 1.2e-16L);
  CheckHalves();
  CheckLanes();
  CheckFlushing();
  CheckOperators();
  CheckLogic();
  CheckRoundings();
  CheckIntegers();
  CheckWorkspace();
  CheckRemainders();
  CheckOnePlusErf();
  CheckAccuracy();
  return test::Summary();
}
