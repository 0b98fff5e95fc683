// The evaluator's integers and casts: every operator in every dtype, and every pair of dtypes, against a scalar
// reference in 128 bits and in long double, over the edges of the ranges, over random values, and over all pairs of
// 8-bit values. Part of test_evaluator.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ortplugin/runtime/program/evaluator.h"
#include "tests/native/check.h"
#include "tests/native/evaluate.h"
#include "tests/native/random.h"

namespace {

using namespace ortplugin;
using Real = long double;  // holds every value of every dtype
using Reals = std::vector<Real>;
__extension__ typedef __int128 Wide;

static_assert(std::numeric_limits<Real>::digits >= 64, "the reference needs a long double of 64 bits");

constexpr DType kIntegers[] = {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kUInt8, DType::kUInt16,
  DType::kUInt32, DType::kUInt64};
constexpr DType kAll[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat, DType::kDouble, DType::kBool, DType::kInt8,
  DType::kInt16, DType::kInt32, DType::kInt64, DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64};

int Bits(DType dtype) { return int(8 * SizeOf(dtype)); }
Wide Lowest(DType dtype) { return IsSigned(dtype) ? -(Wide{1} << (Bits(dtype) - 1)) : Wide{0}; }
Wide Highest(DType dtype) { return (Wide{1} << (Bits(dtype) - (IsSigned(dtype) ? 1 : 0))) - 1; }

// The value modulo 2^bits that the dtype has.
Wide Wrap(DType dtype, Wide value) {
  const Wide modulus = Wide{1} << Bits(dtype);
  value = ((value % modulus) + modulus) % modulus;
  return value > Highest(dtype) ? value - modulus : value;
}

// Rounds to `digits` binary digits, ties to even, with the exponents of the format.
Real RoundTo(Real value, int digits, int least_exponent, Real largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  const Real unit = std::ldexp(Real(1), std::max(std::ilogb(value), least_exponent) - digits + 1);
  const Real rounded = std::nearbyint(value / unit) * unit;
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<Real>::infinity(), value) : rounded;
}

// What the dtype makes of a value: Cast's definition.
Real CastTo(DType dtype, Real value) {
  switch (dtype) {
    case DType::kFloat16: return RoundTo(value, 11, -14, 65504);
    case DType::kBFloat16: return RoundTo(value, 8, -126, std::ldexp(Real(255), 120));
    case DType::kFloat: return RoundTo(value, 24, -126, Real(std::numeric_limits<float>::max()));
    case DType::kDouble: return RoundTo(value, 53, -1022, Real(std::numeric_limits<double>::max()));
    case DType::kBool: return value != 0 ? 1 : 0;
    default: break;
  }
  if (std::isnan(value)) return 0;
  return std::fmin(std::fmax(std::trunc(value), Real(Lowest(dtype))), Real(Highest(dtype)));
}

// One element of a tensor, of a value that the dtype has.
void PutElement(DType dtype, Real value, unsigned char* element) {
  if (test::PutFloating(dtype, value, element)) return;
  const auto bits = uint64_t(Wide(value));
  std::memcpy(element, &bits, SizeOf(dtype));
}

Real GetElement(DType dtype, const unsigned char* element) {
  Real value = 0;
  if (test::GetFloating(dtype, element, &value)) return value;
  uint64_t bits = 0;
  std::memcpy(&bits, element, SizeOf(dtype));
  return Real(Wrap(dtype, Wide(bits)));
}

std::string Text(Real value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.21Lg", value);
  return text;
}

// What a program's first result is.
Reals Evaluate(const std::string& text, const std::vector<Reals>& inputs, size_t block = kBlock) {
  return test::Evaluate(text, inputs, block, PutElement, GetElement)[0];
}

test::Random random;

// The edges of the range and of the powers of two, small numbers, random ones of every length.
Reals Values(DType dtype) {
  std::vector<Wide> values;
  for (Wide value = -9; value <= 9; ++value) values.push_back(value);
  for (int bit = 3; bit <= 64; ++bit) {
    for (const Wide near : {-1, 0, 1}) {
      values.push_back((Wide{1} << bit) + near);
      values.push_back(-(Wide{1} << bit) + near);
    }
  }
  for (int i = 0; i < 64; ++i) {
    values.push_back(Wide(random() >> i));
    values.push_back(-Wide(random() >> i));
  }
  Reals in_range;
  for (const Wide value : values) {
    if (value >= Lowest(dtype) && value <= Highest(dtype)) in_range.push_back(Real(value));
  }
  return in_range;
}

// ---- The operators

struct Reference {
  std::string call;  // of a and b
  std::function<Wide(Wide, Wide, DType)> exact;  // not yet modulo 2^bits
};

Wide Quotient(Wide a, Wide b) { return b == 0 ? 0 : a / b; }
Wide Remainder(Wide a, Wide b) { return b == 0 ? 0 : a % b; }
// Modulo 2^128: unsigned, for uint64's product overflows a signed one.
Wide Product(Wide a, Wide b) {
  __extension__ typedef unsigned __int128 Unsigned;
  return Wide(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
}
Wide Modulo(Wide a, Wide b) {
  const Wide remainder = Remainder(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

#define EXACT(expression) \
  [](Wide a, Wide b, DType dtype) -> Wide { \
    (void)a, (void)b, (void)dtype; \
    return expression; \
  }

const std::vector<Reference>& References() {
  static const std::vector<Reference> references = {
    {"Abs(a)", EXACT(a < 0 ? -a : a)},
    {"Neg(a)", EXACT(-a)},
    {"Sign(a)",
      EXACT(a > 0 ? 1
          : a < 0 ? -1
                  : 0)},
    {"Relu(a)", EXACT(a > 0 ? a : 0)},
    {"BitwiseNot(a)", EXACT(-a - 1)},
    {"Add(a, b)", EXACT(a + b)},
    {"Sub(a, b)", EXACT(a - b)},
    {"Mul(a, b)", EXACT(Product(a, b))},
    {"Div(a, b)", EXACT(Quotient(a, b))},
    {"Mod(a, b)", EXACT(Modulo(a, b))},
    {"Mod<fmod=1>(a, b)", EXACT(Remainder(a, b))},
    {"Min(a, b)", EXACT(a < b ? a : b)},
    {"Max(a, b)", EXACT(a > b ? a : b)},
    {"Clip(a, b, 100)", EXACT(std::min(std::max(a, b), Wide{100}))},
    {"Clip(a, 3, b)", EXACT(std::min(std::max(a, Wide{3}), b))},
    {"BitwiseAnd(a, b)", EXACT(a & b)},
    {"BitwiseOr(a, b)", EXACT(a | b)},
    {"BitwiseXor(a, b)", EXACT(a ^ b)},
    {"BitShift<direction=\"LEFT\">(a, b)", EXACT(b >= Bits(dtype) ? 0 : Product(a, Wide{1} << b))},
    {"BitShift<direction=\"RIGHT\">(a, b)", EXACT(b >= Bits(dtype) ? 0 : (a >> b))},
    {"Equal(a, b)", EXACT(a == b)},
    {"Less(a, b)", EXACT(a < b)},
    {"LessOrEqual(a, b)", EXACT(a <= b)},
    {"Greater(a, b)", EXACT(a > b)},
    {"GreaterOrEqual(a, b)", EXACT(a >= b)},
    // A literal in either place.
    {"Sub(100, a)", EXACT(100 - a)},
    {"Div(a, 7)", EXACT(a / 7)},
    {"Div(a, 0)", EXACT(0)},
    {"Mod(a, 0)", EXACT(0)},
    {"Mod(100, a)", EXACT(Modulo(100, a))},
  };
  return references;
}
#undef EXACT

bool IsTest(const std::string& call) {
  return call.rfind("Equal", 0) == 0 || call.rfind("Less", 0) == 0 || call.rfind("Greater", 0) == 0;
}

std::string ProgramOf(DType dtype, const std::string& call, DType result) {
  const std::string name = NameOf(dtype);
  const bool binary = call.find('b', call.find('(')) != std::string::npos;
  return "(" + name + " a" + (binary ? ", " + name + " b" : "") + ") => (" + NameOf(result) + " y) { y = " + call +
    " }";
}

void CheckReference(DType dtype, const Reference& reference, const Reals& a, const Reals& b, size_t block) {
  const DType result = IsTest(reference.call) ? DType::kBool : dtype;
  const std::string text = ProgramOf(dtype, reference.call, result);
  const bool binary = text.find(" b)") != std::string::npos;
  const Reals got = Evaluate(text, binary ? std::vector<Reals>{a, b} : std::vector<Reals>{a}, block);
  size_t wrong = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const Wide exact = reference.exact(Wide(a[i]), Wide(b[i]), dtype);
    const Real expected = Real(result == DType::kBool ? exact : Wrap(dtype, exact));
    if (got[i] == expected) continue;
    if (++wrong < 3)
      std::printf("%s of %s, %s: %s\n", text.c_str(), Text(a[i]).c_str(), Text(b[i]).c_str(), Text(got[i]).c_str());
  }
  CHECK_WITH(wrong == 0, text + ": " + std::to_string(wrong) + " of " + std::to_string(a.size()) + " are wrong");
}

// Of a sample one pair in five, and all with a small second number.
bool IsPairTaken(Real b) { return !test::IsSample() || std::fabs(b) <= 2 || random() % 5 == 0; }

void CheckOperators() {
  for (const DType dtype : kIntegers) {
    const Reals values = Values(dtype);
    Reals left, right;
    if (SizeOf(dtype) == 1) {
      for (Wide a = Lowest(dtype); a <= Highest(dtype); ++a) {
        for (Wide b = Lowest(dtype); b <= Highest(dtype); ++b) {
          if (!IsPairTaken(Real(b))) continue;
          left.push_back(Real(a));
          right.push_back(Real(b));
        }
      }
    } else {
      for (const Real a : values) {
        for (const Real b : values) {
          if (!IsPairTaken(b)) continue;
          left.push_back(a);
          right.push_back(b);
        }
      }
      // Dividends next to a multiple of the divisor, where a rounded quotient would be off by one.
      for (int i = 0; i < 20000; ++i) {
        const Wide b = Wrap(dtype, Wide(random() >> random() % 64));
        if (b == 0) continue;
        const Wide a = Highest(dtype) / b * b - Wide(random() % 2);
        left.push_back(Real(Wrap(dtype, a)));
        right.push_back(Real(b));
      }
    }
    const auto few = std::ptrdiff_t(std::min<size_t>(values.size(), 80));
    for (const Reference& reference : References()) {
      if (reference.call.rfind("BitShift", 0) == 0 && IsSigned(dtype)) continue;
      CheckReference(dtype, reference, left, right, kBlock);
      // The vectors' tails.
      for (const size_t count : {size_t{1}, size_t{3}, size_t{511}}) {
        CheckReference(dtype, reference, Reals(values.begin(), values.begin() + few),
          Reals(values.rbegin(), values.rbegin() + few), count);
      }
    }
    // Literals of all 64 bits.
    for (const Wide literal : {Lowest(dtype), Highest(dtype), Highest(dtype) - 1}) {
      const bool negative = literal < 0;
      const std::string digits = std::to_string(uint64_t(negative ? -literal : literal));
      const std::string text = ProgramOf(dtype, "BitwiseXor(a, " + (negative ? "-" + digits : digits) + ")", dtype);
      CHECK_WITH(Evaluate(text, {{0, 1}}) == (Reals{Real(literal), Real(literal ^ 1)}), text);
    }
  }
}

// x^y, saturated; good for results that a double holds exactly.
Wide Power(DType dtype, Wide x, Wide y) {
  const bool is_odd = y % 2 != 0;
  if (x == 1 || y == 0) return 1;
  if (x == -1) return is_odd ? -1 : 1;
  if (y < 0) return x == 0 ? Highest(dtype) : 0;
  if (x == 0) return 0;
  const bool is_negative = x < 0 && is_odd;
  const Wide base = x < 0 ? -x : x;
  Wide power = 1;
  for (; y > 0; --y) {
    if (power > (Wide{1} << 64) / base) return is_negative ? Lowest(dtype) : Highest(dtype);
    power *= base;
  }
  return std::max(std::min(is_negative ? -power : power, Highest(dtype)), Lowest(dtype));
}

void CheckPowers() {
  for (const DType dtype : kIntegers) {
    const Reals values = Values(dtype);
    Reals left, right;
    for (const Real a : values) {
      for (const Real b : values) {
        if (!IsPairTaken(b)) continue;
        left.push_back(a);
        right.push_back(b);
      }
      for (const Real b : {Real(2), Real(3), Real(11), Real(20)}) {
        left.push_back(a);
        right.push_back(b);
      }
    }
    const auto compare = [&](const std::string& call, const Reals& exponents) {
      const std::string text = ProgramOf(dtype, call, dtype);
      const bool binary = text.find(" b)") != std::string::npos;
      const Reals got = Evaluate(text, binary ? std::vector<Reals>{left, exponents} : std::vector<Reals>{left});
      for (size_t i = 0; i < left.size(); ++i) {
        const Wide exact = Power(dtype, Wide(left[i]), Wide(exponents[i]));
        const Real expected = Real(exact);
        const Real room = std::fabs(expected) < std::ldexp(Real(1), 53) ? 0 : std::fabs(expected) * 16e-16L;
        CHECK_WITH(std::fabs(got[i] - expected) <= room,
          text + " of " + Text(left[i]) + ", " + Text(exponents[i]) + " is " + Text(got[i]) + ", not " +
            Text(expected));
      }
    };
    compare("Pow(a, b)", right);
    compare("Pow(a, 2)", Reals(left.size(), 2));
    compare("Pow(a, 3)", Reals(left.size(), 3));
    compare("Pow(a, 0)", Reals(left.size(), 0));
  }
}

// ---- Casts

Reals ValuesOf(DType dtype) {
  if (dtype == DType::kBool) return {0, 1, 1, 0};
  if (IsInteger(dtype)) return Values(dtype);
  const Real infinity = std::numeric_limits<Real>::infinity();
  // The edges of the formats, and what lies next to the middle of two of their values.
  Reals candidates = {std::numeric_limits<Real>::quiet_NaN(), infinity, -infinity, 0, Real(-0.0), 0.49999L, 1e-30L,
    -1e-30L, 1e30L, -1e30L, 3.4e38L, 1e300L, -1e300L, 5e-324L, 1e-45L, 1e-40L, 65519, 65520, 5.96e-8L, 2.98e-8L,
    1.00390625L, 1.00390625000001L, 1 + std::ldexp(Real(1), -11) + std::ldexp(Real(1), -30),
    1 + std::ldexp(Real(1), -24) + std::ldexp(Real(1), -50)};
  for (const DType integer : kIntegers) {
    for (const Real value : Values(integer)) {
      for (const Real off : {Real(0), Real(0.25), Real(0.5), Real(0.999)}) {
        candidates.push_back(value + off);
        candidates.push_back(value - off);
      }
    }
    for (const Real edge : {Real(Highest(integer)), Real(Highest(integer)) + 1}) {
      for (const double near : {0.0, std::numeric_limits<double>::infinity()}) {
        candidates.push_back(Real(std::nextafter(double(edge), near)));
        candidates.push_back(Real(std::nextafter(float(edge), float(near))));
      }
    }
  }
  Reals values;
  for (const Real candidate : candidates) values.push_back(CastTo(dtype, candidate));
  return values;
}

void CheckCasts() {
  for (const DType from : kAll) {
    Reals values = ValuesOf(from);
    if (from == DType::kInt64 || from == DType::kUInt64) {
      // Next to what lies halfway between two values of bfloat16 and float, in the bits that a double drops.
      for (int bit = 40; bit < 63; ++bit) {
        for (const Wide off : {-1, 0, 1}) {
          for (const int digits : {8, 24}) {
            const Wide halfway = (Wide{1} << bit) + (Wide{1} << (bit - digits));
            values.push_back(Real(halfway + off));
            values.push_back(Real(Wrap(from, -halfway + off)));
          }
        }
      }
    }
    for (const DType to : kAll) {
      const std::string text = ProgramOf(from, std::string("Cast<to=") + NameOf(to) + ">(a)", to);
      for (const size_t block : {kBlock, size_t{5}}) {
        const Reals got = Evaluate(text, {values}, block);
        for (size_t i = 0; i < values.size(); ++i) {
          Real expected = CastTo(to, values[i]);
          // Integers keep their low bits.
          if (IsInteger(to) && !IsFloating(from)) {
            expected = Real(Wrap(to, Wide(values[i])));
          }
          const bool same = std::isnan(expected)
            ? std::isnan(got[i])
            : got[i] == expected && (std::signbit(got[i]) == std::signbit(expected) || !IsFloating(to));
          CHECK_WITH(same, text + " of " + Text(values[i]) + " is " + Text(got[i]) + ", not " + Text(expected));
        }
      }
    }
  }
}

}  // namespace

void CheckIntegers() {
  CheckOperators();
  CheckPowers();
  CheckCasts();
}
