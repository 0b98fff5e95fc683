// One loop per operator and dtype, over the lanes of a block; the compiler vectorises them. Every loop exists once per
// instruction set that is worth it, and the best one of the machine is chosen at run time; all give the same bits.
//
// Compile with -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math: the last two let square roots, roundings and
// selections vectorise, and change no result. GCC also with -fno-thread-jumps: it would else copy what comes before a
// selection behind each side of another one, and vectorise all the copies.
#include "ortplugin/runtime/program/evaluator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "ortplugin/runtime/half.h"
#include "ortplugin/runtime/program/integer_math.h"
#include "ortplugin/runtime/program/vector_math.h"
#include "ortplugin/runtime/x86_level.h"

#ifdef __FAST_MATH__
#error "the evaluator promises IEEE 754: compile it without -ffast-math"
#endif

namespace ortplugin {
namespace {

// Lanes of different values never overlap in part: they are distinct blocks, or the very same one.
// ORTPLUGIN_EACH is a loop over `count` of them. GCC takes two vectors a turn where both types are float: it is faster.
#if defined(__clang__)
#define ORTPLUGIN_EACH(T, R, ...) \
  _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < count; ++i) __VA_ARGS__
#elif defined(__GNUC__)
#define ORTPLUGIN_EACH(T, R, ...) \
  if constexpr (std::is_same_v<T, float> && std::is_same_v<R, float>) { \
    _Pragma("GCC ivdep") _Pragma("GCC unroll 2") for (size_t i = 0; i < count; ++i) __VA_ARGS__; \
  } else { \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; ++i) __VA_ARGS__; \
  }
#else
#define ORTPLUGIN_EACH(T, R, ...) \
  for (size_t i = 0; i < count; ++i) __VA_ARGS__
#endif

// What a loop does to one lane: inlined into every copy of the loop, or the loop does not vectorise.
#if defined(__GNUC__)
#define ORTPLUGIN_LANE __attribute__((always_inline))
#else
#define ORTPLUGIN_LANE
#endif

// Of a function that selects one of many loops. GCC guesses how often each is reached, and vectorises none that it
// expects in less than one call of a thousand: behind two or three selections, that is any.
#if defined(__GNUC__)
#define ORTPLUGIN_HOT __attribute__((hot))
#else
#define ORTPLUGIN_HOT
#endif

// Bytes of bool lanes hold 0 or 1.
using Bool = uint8_t;

// ---- The loops, inlined into each instruction set's copy
// The count is a variable of the loop's function: read from memory that the stores may change, it would have clang
// leave the loop scalar.

struct Job {
  const Statement* statement;
  DType from;  // of the last operand: T, or what Cast reads
  DType to;  // of the result
  // How a Pow by a literal is computed: 0 for any exponent, 2 and 3 by multiplication.
  int power;
  float scale;  // of a, where an Add is OnePlusErf of that; else 0
  const void* a;
  const void* b;
  const void* c;
  void* result;
  size_t count;
};

template <typename A, typename R, typename F>
ORTPLUGIN_INLINE void Map(const Job& job, F f) {
  const A* a = static_cast<const A*>(job.a);
  R* result = static_cast<R*>(job.result);
  const size_t count = job.count;
  ORTPLUGIN_EACH(A, R, result[i] = static_cast<R>(f(a[i])));
}

template <typename A, typename R, typename F>
ORTPLUGIN_INLINE void Map2(const Job& job, F f) {
  const A* a = static_cast<const A*>(job.a);
  const A* b = static_cast<const A*>(job.b);
  R* result = static_cast<R*>(job.result);
  const size_t count = job.count;
  ORTPLUGIN_EACH(A, R, result[i] = static_cast<R>(f(a[i], b[i])));
}

// Of a function that never vectorises, the C library's: one loop, for all instruction sets.
template <typename A, typename R, typename F>
[[gnu::noinline]] void MapScalar(const Job& job, F f) {
  Map<A, R>(job, f);
}

template <typename A, typename R, typename F>
[[gnu::noinline]] void Map2Scalar(const Job& job, F f) {
  Map2<A, R>(job, f);
}

// Map, but of double one loop for all instruction sets.
template <typename T, typename F>
ORTPLUGIN_INLINE void MapFloat(const Job& job, F f) {
  if constexpr (std::is_same_v<T, float>) {
    Map<T, T>(job, f);
  } else {
    MapScalar<T, T>(job, f);
  }
}

// For a function f that vectorises but is right only for lanes that are `within` its range; `otherwise` is right for
// every one, and slow.
template <typename T, typename Within, typename F, typename Otherwise>
ORTPLUGIN_INLINE void MapWithin(const Job& job, Within within, F f, Otherwise otherwise) {
  const T* a = static_cast<const T*>(job.a);
  const T* b = static_cast<const T*>(job.b != nullptr ? job.b : job.a);
  const size_t count = job.count;
  uint32_t outside = 0;
  for (size_t i = 0; i < count; ++i) outside += within(a[i], b[i]) ? 0 : 1;
  if (outside == 0) return Map2<T, T>({job.statement, job.from, job.to, 0, 0, a, b, nullptr, job.result, count}, f);
  T* result = static_cast<T*>(job.result);
  for (size_t i = 0; i < count; ++i) result[i] = within(a[i], b[i]) ? f(a[i], b[i]) : otherwise(a[i], b[i]);
}

template <typename A, typename T, typename F>
ORTPLUGIN_INLINE void Map3(const Job& job, F f) {
  const A* a = static_cast<const A*>(job.a);
  const T* b = static_cast<const T*>(job.b);
  const T* c = static_cast<const T*>(job.c);
  T* result = static_cast<T*>(job.result);
  const size_t count = job.count;
  ORTPLUGIN_EACH(T, T, result[i] = f(a[i], b[i], c[i]));
}

// Numbers of this type leave to the unsigned ones what is the same for both.
template <typename T>
constexpr bool kIsSigned = std::is_integral_v<T> && std::is_signed_v<T>;

// The dtypes whose loop runs a statement, of its last operand and its result. What two's complement makes the same for
// signed and unsigned numbers runs as unsigned, and so does all that bool's bytes do.
DType Unsigned(DType dtype) {
  const auto number = uint8_t(dtype), first = uint8_t(DType::kInt8);
  if (dtype == DType::kBool) return DType::kUInt8;
  return DType::kInt8 <= dtype && dtype <= DType::kInt64 ? static_cast<DType>(number - first + uint8_t(DType::kUInt8))
                                                         : dtype;
}
std::pair<DType, DType> Signless(Op op, DType from, DType to) {
  switch (op) {
    case Op::kCast: {
      const bool widens = SizeOf(to) > SizeOf(from) || IsFloating(to);
      if (IsFloating(from)) return {from, to};
      return {from == DType::kBool || !widens ? Unsigned(from) : from, to == DType::kBool ? to : Unsigned(to)};
    }
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kNeg:
    case Op::kEqual:
    case Op::kBitwiseAnd:
    case Op::kBitwiseOr:
    case Op::kBitwiseXor:
    case Op::kBitwiseNot: return {Unsigned(from), to};
    default: return {from == DType::kBool ? DType::kUInt8 : from, to};
  }
}

// A lane of any operand dtype as the float that rounding further to a 16-bit dtype makes the nearest of.
ORTPLUGIN_INLINE float Narrow(float x) { return x; }
ORTPLUGIN_INLINE float Narrow(double x) { return RoundToOdd(x); }
template <typename T>
ORTPLUGIN_INLINE float Narrow(T x) {
  return lane::IntegerToOdd(x);
}

// To an integer: of an integer the low bits, of a floating value the nearest of the range. (Unsigned: see Signless.)
template <typename T, typename A>
ORTPLUGIN_INLINE void RunCastToInteger(const Job& job) {
  if constexpr (std::is_integral_v<A>) {
    if constexpr (std::is_unsigned_v<T> && (std::is_unsigned_v<A> || sizeof(T) > sizeof(A)))
      return Map<A, T>(job, [](A x) ORTPLUGIN_LANE { return T(x); });
  } else {
    return Map<A, T>(job, [](A x) ORTPLUGIN_LANE { return lane::Saturate<T>(x); });
  }
}

// A is a lane's type; bool's bytes are numbers like any other here.
template <typename A>
ORTPLUGIN_INLINE void RunCast(const Job& job) {
  switch (job.to) {
    case DType::kFloat16:
      return Map<A, float>(job, [](A x) ORTPLUGIN_LANE { return HalfToFloat(FloatToHalf(Narrow(x))); });
    case DType::kBFloat16:
      return Map<A, float>(job, [](A x) ORTPLUGIN_LANE { return BFloat16ToFloat(FloatToBFloat16(Narrow(x))); });
    case DType::kFloat: return Map<A, float>(job, [](A x) ORTPLUGIN_LANE { return float(x); });
    case DType::kDouble: return Map<A, double>(job, [](A x) ORTPLUGIN_LANE { return double(x); });
    case DType::kBool:
      if constexpr (!kIsSigned<A>) return Map<A, Bool>(job, [](A x) ORTPLUGIN_LANE { return x != A(0); });
      return;
    case DType::kInt8: return RunCastToInteger<int8_t, A>(job);
    case DType::kInt16: return RunCastToInteger<int16_t, A>(job);
    case DType::kInt32: return RunCastToInteger<int32_t, A>(job);
    case DType::kInt64: return RunCastToInteger<int64_t, A>(job);
    case DType::kUInt8: return RunCastToInteger<uint8_t, A>(job);
    case DType::kUInt16: return RunCastToInteger<uint16_t, A>(job);
    case DType::kUInt32: return RunCastToInteger<uint32_t, A>(job);
    case DType::kUInt64: return RunCastToInteger<uint64_t, A>(job);
  }
}

// What is the same for every dtype of one size.
template <typename T>
ORTPLUGIN_INLINE void RunWhere(const Job& job) {
  Map3<Bool, T>(job, [](Bool a, T b, T c) ORTPLUGIN_LANE { return a != 0 ? b : c; });
}

// What is one operator of C++ for every type of numbers.
template <typename T>
ORTPLUGIN_INLINE void RunComparison(const Job& job) {
  switch (job.statement->op) {
    case Op::kEqual:
      if constexpr (!kIsSigned<T>) return Map2<T, Bool>(job, [](T a, T b) ORTPLUGIN_LANE { return a == b; });
      return;
    case Op::kLess: return Map2<T, Bool>(job, [](T a, T b) ORTPLUGIN_LANE { return a < b; });
    case Op::kLessOrEqual: return Map2<T, Bool>(job, [](T a, T b) ORTPLUGIN_LANE { return a <= b; });
    case Op::kGreater: return Map2<T, Bool>(job, [](T a, T b) ORTPLUGIN_LANE { return a > b; });
    case Op::kGreaterOrEqual: return Map2<T, Bool>(job, [](T a, T b) ORTPLUGIN_LANE { return a >= b; });
    default: return;
  }
}

template <typename T>
ORTPLUGIN_INLINE void RunInteger(const Job& job) {
  switch (job.statement->op) {
    case Op::kAbs: return Map<T, T>(job, [](T x) ORTPLUGIN_LANE { return lane::IntegerAbs(x); });
    case Op::kSign: return Map<T, T>(job, [](T x) ORTPLUGIN_LANE { return lane::IntegerSign(x); });
    case Op::kRelu: return Map<T, T>(job, [](T x) ORTPLUGIN_LANE { return lane::IntegerMax(x, T(0)); });
    case Op::kDiv: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::IntegerDiv(a, b); });
    case Op::kMod:
      if (job.statement->attributes[0] != 0)
        return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::Remainder(a, b); });
      return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::Modulo(a, b); });
    case Op::kPow:
      return Map2Scalar<T, T>(
        job, [](T a, T b) ORTPLUGIN_LANE { return lane::Saturate<T>(lane::PowerOfIntegers(a, b)); });
    case Op::kMin: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::IntegerMin(a, b); });
    case Op::kMax: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::IntegerMax(a, b); });
    case Op::kClip:
      return Map3<T, T>(
        job, [](T x, T low, T high) ORTPLUGIN_LANE { return lane::IntegerMin(lane::IntegerMax(x, low), high); });
    case Op::kCast: return RunCast<T>(job);
    default: return RunComparison<T>(job);
  }
}

// Of numbers without a sign, which have more operators; a bool's bytes are some. See Signless.
template <typename T>
ORTPLUGIN_INLINE void RunUnsigned(const Job& job) {
  switch (job.statement->op) {
    case Op::kNeg: return Map<T, T>(job, [](T x) ORTPLUGIN_LANE { return lane::WrappingNeg(x); });
    case Op::kAdd: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::WrappingAdd(a, b); });
    case Op::kSub: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::WrappingSub(a, b); });
    case Op::kMul: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::WrappingMul(a, b); });
    case Op::kAnd:
    case Op::kBitwiseAnd: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return a & b; });
    case Op::kOr:
    case Op::kBitwiseOr: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return a | b; });
    case Op::kXor:
    case Op::kBitwiseXor: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return a ^ b; });
    case Op::kNot: return Map<T, T>(job, [](T x) ORTPLUGIN_LANE { return x ^ 1; });
    case Op::kBitwiseNot: return Map<T, T>(job, [](T x) ORTPLUGIN_LANE { return ~x; });
    case Op::kBitShift:
      if (job.statement->attributes[0] != 0)
        return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::ShiftRight(a, b); });
      return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::ShiftLeft(a, b); });
    default: return RunInteger<T>(job);
  }
}

// Sine (0 QUARTERS of a turn on) and cosine (1).
template <int QUARTERS, typename T>
ORTPLUGIN_INLINE void RunAngle(const Job& job) {
  const auto library = [](T x, T) ORTPLUGIN_LANE { return QUARTERS == 0 ? std::sin(x) : std::cos(x); };
  if constexpr (std::is_same_v<T, float>) {
    return MapWithin<T>(
      job, [](T x, T) ORTPLUGIN_LANE { return !(lane::Abs(x) > lane::kMostAngle); },
      [](T x, T) ORTPLUGIN_LANE { return lane::SinWithin<QUARTERS>(x); }, library);
  } else {
    return MapScalar<T, T>(job, [](T x) ORTPLUGIN_LANE { return QUARTERS == 0 ? std::sin(x) : std::cos(x); });
  }
}

template <typename T>
ORTPLUGIN_INLINE void RunFmod(const Job& job) {
  const auto library = [](T a, T b) ORTPLUGIN_LANE { return std::fmod(a, b); };
  if constexpr (std::is_same_v<T, float>) {
    return MapWithin<T>(
      job, [](T a, T b) ORTPLUGIN_LANE { return lane::IsModerateQuotient(a, b); },
      [](T a, T b) ORTPLUGIN_LANE { return lane::FmodWithin(a, b); }, library);
  } else {
    return Map2Scalar<T, T>(job, library);
  }
}

// The operators of T, float or double, in three groups; each leaves to the one above what it does not have. First those
// of one operand, without attributes.
template <typename T>
ORTPLUGIN_INLINE void RunFunction(const Job& job) {
  switch (job.statement->op) {
#define ORTPLUGIN_UNARY(Name) \
  case Op::k##Name: return Map<T, T>(job, [](T x) ORTPLUGIN_LANE { return lane::Name(x); });
#define ORTPLUGIN_FLOAT(Name) \
  case Op::k##Name: return MapFloat<T>(job, [](T x) ORTPLUGIN_LANE { return lane::Name(x); });
#define ORTPLUGIN_SCALAR(Name) \
  case Op::k##Name: return MapScalar<T, T>(job, [](T x) ORTPLUGIN_LANE { return lane::Name(x); });
    ORTPLUGIN_UNARY(Abs)
    ORTPLUGIN_UNARY(Neg)
    ORTPLUGIN_UNARY(Reciprocal)
    ORTPLUGIN_UNARY(Sqrt)
    ORTPLUGIN_FLOAT(Exp)
    ORTPLUGIN_FLOAT(Log)
    ORTPLUGIN_UNARY(Floor)
    ORTPLUGIN_UNARY(Ceil)
    ORTPLUGIN_UNARY(Round)
    ORTPLUGIN_UNARY(Sign)
    ORTPLUGIN_SCALAR(Tan)
    ORTPLUGIN_FLOAT(Asin)
    ORTPLUGIN_FLOAT(Acos)
    ORTPLUGIN_FLOAT(Atan)
    ORTPLUGIN_SCALAR(Sinh)
    ORTPLUGIN_SCALAR(Cosh)
    ORTPLUGIN_FLOAT(Tanh)
    ORTPLUGIN_SCALAR(Asinh)
    ORTPLUGIN_SCALAR(Acosh)
    ORTPLUGIN_SCALAR(Atanh)
    ORTPLUGIN_FLOAT(Erf)
    ORTPLUGIN_UNARY(Relu)
    ORTPLUGIN_FLOAT(Sigmoid)
    ORTPLUGIN_FLOAT(Softplus)
    ORTPLUGIN_UNARY(Softsign)
    ORTPLUGIN_UNARY(HardSwish)
    ORTPLUGIN_UNARY(Mish)
#undef ORTPLUGIN_UNARY
#undef ORTPLUGIN_FLOAT
#undef ORTPLUGIN_SCALAR
    case Op::kSin: return RunAngle<0, T>(job);
    case Op::kCos: return RunAngle<1, T>(job);
    default: return RunComparison<T>(job);
  }
}

// Those of one operand, with attributes.
template <typename T>
ORTPLUGIN_INLINE void RunParametric(const Job& job) {
  const T p = T(job.statement->attributes[0]);
  const T q = T(job.statement->attributes[1]);
  switch (job.statement->op) {
    case Op::kLeakyRelu: return Map<T, T>(job, [p](T x) ORTPLUGIN_LANE { return lane::LeakyRelu(x, p); });
    case Op::kElu: return MapFloat<T>(job, [p](T x) ORTPLUGIN_LANE { return lane::Elu(x, p); });
    case Op::kCelu: return MapFloat<T>(job, [p](T x) ORTPLUGIN_LANE { return lane::Celu(x, p); });
    case Op::kSelu: return MapFloat<T>(job, [p, q](T x) ORTPLUGIN_LANE { return lane::Selu(x, p, q); });
    case Op::kHardSigmoid: return Map<T, T>(job, [p, q](T x) ORTPLUGIN_LANE { return lane::HardSigmoid(x, p, q); });
    case Op::kThresholdedRelu: return Map<T, T>(job, [p](T x) ORTPLUGIN_LANE { return lane::ThresholdedRelu(x, p); });
    case Op::kShrink: return Map<T, T>(job, [p, q](T x) ORTPLUGIN_LANE { return lane::Shrink(x, p, q); });
    case Op::kSwish:
    case Op::kQuickGelu: return MapFloat<T>(job, [p](T x) ORTPLUGIN_LANE { return lane::Swish(x, p); });
    case Op::kGelu:
      if (p != 0) return MapFloat<T>(job, [](T x) ORTPLUGIN_LANE { return lane::GeluTanh(x); });
      return MapFloat<T>(job, [](T x) ORTPLUGIN_LANE { return lane::Gelu(x); });
    case Op::kIsInf: {
      const Bool negative = p != 0, positive = q != 0;
      return Map<T, Bool>(job, [negative, positive](T a) ORTPLUGIN_LANE {
        return static_cast<Bool>((a == -lane::Infinity<T>()) & negative) |
          static_cast<Bool>((a == lane::Infinity<T>()) & positive);
      });
    }
    default: return RunFunction<T>(job);
  }
}

template <typename T>
ORTPLUGIN_INLINE void RunFloating(const Job& job) {
  switch (job.statement->op) {
    case Op::kAdd:
      if constexpr (std::is_same_v<T, float>) {
        const float scale = job.scale;
        if (scale != 0) return Map<T, T>(job, [scale](T x) ORTPLUGIN_LANE { return lane::OnePlusErf(x * scale); });
      }
      return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return a + b; });
    case Op::kSub: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return a - b; });
    case Op::kMul: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return a * b; });
    case Op::kDiv: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return a / b; });
    case Op::kMod: return RunFmod<T>(job);
    case Op::kPow:
      if (job.power == 2) return Map<T, T>(job, [](T a) ORTPLUGIN_LANE { return a * a; });
      if (job.power == 3) return Map<T, T>(job, [](T a) ORTPLUGIN_LANE { return a * a * a; });
      return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::Pow(a, b); });
    case Op::kMin: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::Min(a, b); });
    case Op::kMax: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::Max(a, b); });
    case Op::kPRelu: return Map2<T, T>(job, [](T a, T b) ORTPLUGIN_LANE { return lane::LeakyRelu(a, b); });
    case Op::kClip: return Map3<T, T>(job, [](T a, T b, T c) ORTPLUGIN_LANE { return lane::Clip(a, b, c); });
    case Op::kIsNaN: return Map<T, Bool>(job, [](T a) ORTPLUGIN_LANE { return lane::IsNaN(a); });
    case Op::kCast: return RunCast<T>(job);
    default: return RunParametric<T>(job);
  }
}

ORTPLUGIN_INLINE void RunWhereOf(const Job& job) {
  switch (LaneSize(job.to)) {
    case 1: return RunWhere<uint8_t>(job);
    case 2: return RunWhere<uint16_t>(job);
    case 4: return RunWhere<uint32_t>(job);
    default: return RunWhere<uint64_t>(job);
  }
}

// 16-bit elements to lanes and back; the other dtypes are copied.
ORTPLUGIN_INLINE void LoadHalves(const uint16_t* elements, size_t count, float* lanes) {
  ORTPLUGIN_EACH(float, float, lanes[i] = HalfToFloat(elements[i]));
}
ORTPLUGIN_INLINE void LoadBFloats(const uint16_t* elements, size_t count, float* lanes) {
  ORTPLUGIN_EACH(float, float, lanes[i] = BFloat16ToFloat(elements[i]));
}
ORTPLUGIN_INLINE void StoreHalves(const float* lanes, size_t count, uint16_t* elements) {
  ORTPLUGIN_EACH(float, float, elements[i] = FloatToHalf(lanes[i]));
}
ORTPLUGIN_INLINE void StoreBFloats(const float* lanes, size_t count, uint16_t* elements) {
  ORTPLUGIN_EACH(float, float, elements[i] = FloatToBFloat16(lanes[i]));
}
ORTPLUGIN_INLINE void RoundHalves(const float* lanes, size_t count, float* rounded) {
  ORTPLUGIN_EACH(float, float, rounded[i] = HalfToFloat(FloatToHalf(lanes[i])));
}

// Adds up what `add` makes of every lane: in four vectors within a block, and over blocks in double, in pairs: one
// after the other these sums would take longer than the block.
template <typename T, typename AddTo>
ORTPLUGIN_INLINE double Reduce(const T* lanes, size_t count, AddTo add) {
  typedef T Vector __attribute__((vector_size(32)));
  constexpr size_t kLanes = sizeof(Vector) / sizeof(T), kPartial = 4 * kLanes;
  double total = 0;
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t last = first + kBlock < count ? first + kBlock : count;
    Vector vectors[4] = {}, x;
    size_t i = first;
    for (; i + kPartial <= last; i += kPartial) {
#pragma GCC unroll 4
      for (size_t v = 0; v < 4; ++v) {
        std::memcpy(&x, lanes + i + v * kLanes, sizeof(x));
        add(vectors[v], x);
      }
    }
    T partial[kPartial];
    double sums[kPartial];
    std::memcpy(partial, vectors, sizeof(partial));
    for (; i < last; ++i) add(partial[i % kPartial], lanes[i]);
    for (size_t j = 0; j < kPartial; ++j) sums[j] = double(partial[j]);
    for (size_t half = kPartial / 2; half > 0; half /= 2)
      for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
    total += sums[0];
  }
  return total;
}

template <typename T>
ORTPLUGIN_INLINE double SumOf(const void* lanes, size_t count) {
  return Reduce(static_cast<const T*>(lanes), count, [](auto& sum, const auto& x) ORTPLUGIN_LANE { sum += x; });
}

template <typename T>
ORTPLUGIN_INLINE double SquaresOf(const void* lanes, double mean, size_t count) {
  const T centre = T(mean);
  return Reduce(static_cast<const T*>(lanes), count,
    [centre](auto& sum, const auto& x) ORTPLUGIN_LANE { sum += (x - centre) * (x - centre); });
}

template <typename T>
ORTPLUGIN_INLINE void NormalizeOf(const void* lanes, double mean, double scale, size_t count, void* normalized) {
  const T* from = static_cast<const T*>(lanes);
  T* to = static_cast<T*>(normalized);
  const T centre = T(mean), factor = T(scale);
  ORTPLUGIN_EACH(T, T, to[i] = (from[i] - centre) * factor);
}

// ---- The copies

struct Functions {
  void (*run)(const Job&);
  void (*load16)(DType, const uint16_t*, size_t, float*);
  void (*store16)(DType, const float*, size_t, uint16_t*);
  double (*sum)(bool, const void*, size_t);
  double (*squares)(bool, const void*, double, size_t);
  void (*normalize)(bool, const void*, double, double, size_t, void*);
};

// A function for each type, not inlined: the compiler's time grows faster than their size.
#define ORTPLUGIN_FUNCTION(Copy, Isa, Type, Kind, T) \
  Isa ORTPLUGIN_HOT [[gnu::noinline]] void Type##Copy(const Job& job) { Run##Kind<T>(job); }
#define ORTPLUGIN_CASE(Copy, Isa, Type, Kind, T) \
  case DType::k##Type: return Type##Copy(job);
#define ORTPLUGIN_OTHER_TYPES(X, ...) \
  X(__VA_ARGS__, Double, Floating, double) \
  X(__VA_ARGS__, Int8, Integer, int8_t) \
  X(__VA_ARGS__, Int16, Integer, int16_t) \
  X(__VA_ARGS__, Int32, Integer, int32_t) \
  X(__VA_ARGS__, Int64, Integer, int64_t) \
  X(__VA_ARGS__, UInt8, Unsigned, uint8_t) \
  X(__VA_ARGS__, UInt16, Unsigned, uint16_t) \
  X(__VA_ARGS__, UInt32, Unsigned, uint32_t) \
  X(__VA_ARGS__, UInt64, Unsigned, uint64_t)
// Of lanes other than floats.
#define ORTPLUGIN_OTHERS(Name, ...) \
  ORTPLUGIN_OTHER_TYPES(ORTPLUGIN_FUNCTION, Name, __VA_ARGS__) \
  __VA_ARGS__ ORTPLUGIN_HOT void Others##Name(const Job& job) { \
    if (job.statement->op == Op::kWhere) return RunWhereOf(job); \
    switch (job.from) { \
      case DType::kBool: return UInt8##Name(job); \
      default: return; ORTPLUGIN_OTHER_TYPES(ORTPLUGIN_CASE, Name, __VA_ARGS__) \
    } \
  }

// Halves: the conversions of load16 and store16 for float16, and a Cast's rounding to it.
#define ORTPLUGIN_COPY(Name, Others, Halves, ...) \
  ORTPLUGIN_FUNCTION(Name, __VA_ARGS__, Float, Floating, float) \
  __VA_ARGS__ ORTPLUGIN_HOT void Run##Name(const Job& job) { \
    if (job.from > DType::kFloat) return Others(job); \
    if (job.statement->op == Op::kWhere) return RunWhere<uint32_t>(job); \
    if (job.statement->op == Op::kCast && job.to == DType::kFloat16) \
      return Round##Halves(static_cast<const float*>(job.a), job.count, static_cast<float*>(job.result)); \
    Float##Name(job); \
  } \
  __VA_ARGS__ void Load##Name(DType dtype, const uint16_t* elements, size_t count, float* lanes) { \
    dtype == DType::kFloat16 ? Load##Halves(elements, count, lanes) : LoadBFloats(elements, count, lanes); \
  } \
  __VA_ARGS__ void Store##Name(DType dtype, const float* lanes, size_t count, uint16_t* elements) { \
    dtype == DType::kFloat16 ? Store##Halves(lanes, count, elements) : StoreBFloats(lanes, count, elements); \
  } \
  __VA_ARGS__ double Sum##Name(bool is_double, const void* lanes, size_t count) { \
    return is_double ? SumOf<double>(lanes, count) : SumOf<float>(lanes, count); \
  } \
  __VA_ARGS__ double Squares##Name(bool is_double, const void* lanes, double mean, size_t count) { \
    return is_double ? SquaresOf<double>(lanes, mean, count) : SquaresOf<float>(lanes, mean, count); \
  } \
  __VA_ARGS__ void Normalize##Name( \
    bool is_double, const void* lanes, double mean, double scale, size_t count, void* normalized) { \
    is_double ? NormalizeOf<double>(lanes, mean, scale, count, normalized) \
              : NormalizeOf<float>(lanes, mean, scale, count, normalized); \
  } \
  constexpr Functions k##Name{Run##Name, Load##Name, Store##Name, Sum##Name, Squares##Name, Normalize##Name};

ORTPLUGIN_OTHERS(Baseline, )
ORTPLUGIN_COPY(Baseline, OthersBaseline, Halves)

#if defined(__x86_64__) && defined(__GNUC__)
// The instructions for halves give half.h's bits.
#define ORTPLUGIN_F16C __attribute__((target("avx2,f16c")))

ORTPLUGIN_F16C inline __m256 Widen(const uint16_t* elements) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(elements)));
}
ORTPLUGIN_F16C inline __m128i RoundToHalves(const float* lanes) {
  return _mm256_cvtps_ph(_mm256_loadu_ps(lanes), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ORTPLUGIN_F16C void LoadF16C(const uint16_t* elements, size_t count, float* lanes) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(lanes + i, Widen(elements + i));
  for (; i < count; ++i) lanes[i] = HalfToFloat(elements[i]);
}
ORTPLUGIN_F16C void StoreF16C(const float* lanes, size_t count, uint16_t* elements) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) _mm_storeu_si128(reinterpret_cast<__m128i*>(elements + i), RoundToHalves(lanes + i));
  for (; i < count; ++i) elements[i] = FloatToHalf(lanes[i]);
}
ORTPLUGIN_F16C void RoundF16C(const float* lanes, size_t count, float* rounded) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(rounded + i, _mm256_cvtph_ps(RoundToHalves(lanes + i)));
  for (; i < count; ++i) rounded[i] = HalfToFloat(FloatToHalf(lanes[i]));
}
#undef ORTPLUGIN_F16C

ORTPLUGIN_OTHERS(Avx2, __attribute__((target("avx2,fma,f16c"))))
ORTPLUGIN_COPY(Avx2, OthersAvx2, F16C, __attribute__((target("avx2,fma,f16c"))))
ORTPLUGIN_COPY(Avx512, OthersAvx2, F16C, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"))))

Functions Choose() {
  const int level = std::min(X86Level(), MostX86Level());
  return level >= 4 ? kAvx512 : level >= 3 ? kAvx2 : kBaseline;
}
#else
Functions Choose() { return kBaseline; }
#endif

const Functions& Best() {
  static const Functions best = Choose();
  return best;
}

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void Fill(const void* lane, size_t count, void* lanes) {
  T value;
  std::memcpy(&value, lane, sizeof(value));
  T* to = static_cast<T*>(lanes);
  for (size_t i = 0; i < count; ++i) to[i] = value;
}

// One lane of `size` bytes, repeated.
void FillWith(const void* lane, size_t size, size_t count, void* lanes) {
  switch (size) {
    case 1: return Fill<uint8_t>(lane, count, lanes);
    case 2: return Fill<uint16_t>(lane, count, lanes);
    case 4: return Fill<uint32_t>(lane, count, lanes);
    default: return Fill<uint64_t>(lane, count, lanes);
  }
}

void FillLiteral(const Value& value, void* lanes) {
  // A lane's bytes are the first ones of `lane` in memory: machines are little-endian, as ORT's tensors are.
  uint64_t lane = value.integer;
  const double number = value.literal;
  if (value.dtype == DType::kBool) {
    lane = number != 0;
  } else if (value.dtype == DType::kDouble) {
    lane = BitCast<uint64_t>(number);
  } else if (IsFloating(value.dtype)) {
    lane = BitCast<uint32_t>(float(RoundTo(value.dtype, number)));
  }
  FillWith(&lane, LaneSize(value.dtype), kBlock, lanes);
}

}  // namespace

size_t LaneSize(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? sizeof(float) : SizeOf(dtype);
}

void LoadLanes(DType dtype, const void* elements, size_t count, void* lanes) {
  if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
    Best().load16(dtype, static_cast<const uint16_t*>(elements), count, static_cast<float*>(lanes));
  } else if (count > 0) {
    std::memcpy(lanes, elements, count * LaneSize(dtype));
  }
}

void FillLanes(DType dtype, const void* element, size_t count, void* lanes) {
  uint64_t lane = 0;  // large enough for a lane of any dtype
  LoadLanes(dtype, element, 1, &lane);
  FillWith(&lane, LaneSize(dtype), count, lanes);
}

void StoreLanes(DType dtype, const void* lanes, size_t count, void* elements) {
  if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
    Best().store16(dtype, static_cast<const float*>(lanes), count, static_cast<uint16_t*>(elements));
  } else if (count > 0) {
    std::memcpy(elements, lanes, count * LaneSize(dtype));
  }
}

double SumLanes(DType dtype, const void* lanes, size_t count) {
  return Best().sum(dtype == DType::kDouble, lanes, count);
}

double SumSquaredDeviations(DType dtype, const void* lanes, double mean, size_t count) {
  return Best().squares(dtype == DType::kDouble, lanes, mean, count);
}

void NormalizeLanes(DType dtype, const void* lanes, double mean, double scale, size_t count, void* normalized) {
  Best().normalize(dtype == DType::kDouble, lanes, mean, scale, count, normalized);
}

Evaluator::Evaluator(const Program& program, std::vector<uint32_t> statements) : program_(&program) {
  const std::vector<Value>& values = program.values();
  // Lanes of one size that no value needs any more are used again, so that a long chain stays in the first cache. That
  // is for what only these statements compute and read.
  std::vector<bool> kept(values.size(), true);
  std::vector<bool> is_here(program.statements().size());
  for (const uint32_t index : statements) {
    const Statement& statement = program.statements().at(index);
    if (IsCore(statement.op)) {
      Fail("program: ", NameOf(statement.op), " is a core operator, the evaluator runs pointwise ones only");
    }
    kept[statement.result] = false;
    is_here[index] = true;
  }
  for (const ValueId result : program.results()) kept[result] = true;
  for (size_t index = 0; index < is_here.size(); ++index) {
    if (is_here[index]) continue;
    for (const ValueId operand : program.statements()[index].operands) kept[operand] = true;
  }
  // From the last on: what is left out where nothing reads it is what OnePlusErf has of its own.
  std::vector<bool> is_read = kept;
  for (size_t i = statements.size(); i-- > 0;) {
    const Statement& statement = program.statements()[statements[i]];
    if (!is_read[statement.result]) continue;
    const Value& last = values[statement.operands.back()];
    int power = 0;
    if (statement.op == Op::kPow && last.kind == Value::Kind::kLiteral) {
      power = last.literal == 2 ? 2 : last.literal == 3 ? 3 : 0;
    }
    const auto [from, to] = Signless(statement.op, last.dtype, values[statement.result].dtype);
    steps_.push_back({&statement, statement.operands, from, to, power, 0});
    if (from <= DType::kFloat)
      if (const auto gate = AsOnePlusErf(program, statements, statement)) {
        steps_.back().operands = {gate->first};
        steps_.back().scale = float(gate->second);
      }
    for (const ValueId operand : steps_.back().operands) is_read[operand] = true;
  }
  std::reverse(steps_.begin(), steps_.end());
  std::vector<size_t> last_use(values.size(), 0);
  for (size_t step = 0; step < steps_.size(); ++step)
    for (const ValueId operand : steps_[step].operands) last_use[operand] = step;

  bytes_ = kAlignment;
  const auto reserve = [this](size_t lane) {
    const size_t offset = bytes_ - kAlignment;
    bytes_ += Aligned(kBlock * lane);
    return offset;
  };
  offsets_.resize(values.size());
  for (size_t id = 0; id < values.size(); ++id) {
    if (kept[id]) offsets_[id] = reserve(LaneSize(values[id].dtype));
  }
  std::array<std::vector<size_t>, sizeof(uint64_t) + 1> free;  // by the size of a lane: offsets
  for (size_t step = 0; step < steps_.size(); ++step) {
    const Statement& statement = *steps_[step].statement;
    // First what dies here, for a loop may write where it reads, element by element of one size.
    const std::vector<ValueId>& operands = steps_[step].operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      const ValueId operand = operands[i];
      const auto end = operands.begin() + std::ptrdiff_t(i);
      const bool is_repeated = std::find(operands.begin(), end, operand) != end;
      if (!kept[operand] && last_use[operand] == step && !is_repeated) {
        free[LaneSize(values[operand].dtype)].push_back(offsets_[operand]);
      }
    }
    if (kept[statement.result]) continue;
    const size_t lane = LaneSize(values[statement.result].dtype);
    if (free[lane].empty()) {
      offsets_[statement.result] = reserve(lane);
    } else {
      offsets_[statement.result] = free[lane].back();
      free[lane].pop_back();
    }
  }
}

Evaluator::Workspace::Workspace(const Evaluator& evaluator) : memory_(new unsigned char[evaluator.bytes_]) {
  unsigned char* base = memory_.get();
  base += (kAlignment - reinterpret_cast<uintptr_t>(base) % kAlignment) % kAlignment;
  const std::vector<Value>& values = evaluator.program_->values();
  slots_.reserve(values.size());
  for (size_t id = 0; id < values.size(); ++id) {
    slots_.push_back(base + evaluator.offsets_[id]);
    if (values[id].kind == Value::Kind::kLiteral) FillLiteral(values[id], slots_.back());
  }
}

size_t Evaluator::LastRead(ValueId value) const {
  size_t last = 0;
  for (const Step& step : steps_)
    if (std::find(step.operands.begin(), step.operands.end(), value) != step.operands.end())
      last = size_t(step.statement - program_->statements().data());
  return last;
}

void Evaluator::Run(Workspace& workspace, size_t count) const {
  void (*const run)(const Job&) = Best().run;
  void* const* slots = workspace.slots_.data();
  for (const Step& step : steps_) {
    const ValueId* operands = step.operands.data();
    const size_t arity = step.operands.size();
    Job job;
    job.statement = step.statement;
    job.from = step.from;
    job.to = step.to;
    job.power = step.power;
    job.scale = step.scale;
    job.a = slots[operands[0]];
    job.b = arity > 1 ? slots[operands[1]] : nullptr;
    job.c = arity > 2 ? slots[operands[2]] : nullptr;
    job.result = slots[step.statement->result];
    job.count = count;
    run(job);
  }
}

}  // namespace ortplugin
