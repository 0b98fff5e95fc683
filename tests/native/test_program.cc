// The language of pointwise programs: parser, limits, hostile texts, canonical text, closure and CUDA text.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/program/program.h"
#include "tests/native/check.h"
#include "tests/native/random.h"

namespace {

using namespace ortplugin;
using test::Contains;
using test::Same;

// ---- The parser

const char* const kLayerNorm =
    "(float16 x, float16 residual, float16 gamma, float16 beta) => (float16 y, float16 s) {\n"
    "  s = Add(x, residual)\n"
    "  n = LayerNormalization<axis=-1, epsilon=1e-12>(s)\n"
    "  g = Mul(n, gamma)\n"
    "  y = Add(g, beta)\n"
    "}";

// Every operator, attribute and kind of operand at least once.
const char* const kEverything =
    "(float x, float z, double d, bool c, bfloat16 h, int64 j, uint8 u) => (float y, bool b, double e, bfloat16 i, "
    "float16 k, int64 l, uint8 v) {\n"
    "  a1 = Abs(x) a2 = Neg(a1) a3 = Reciprocal(a2) a4 = Sqrt(a3) a5 = Exp(a4) a6 = Log(a5) a7 = Floor(a6)\n"
    "  a8 = Ceil(a7) a9 = Round(a8) a10 = Sign(a9) a11 = Sin(a10) a12 = Cos(a11) a13 = Tan(a12) a14 = Asin(a13)\n"
    "  a15 = Acos(a14) a16 = Atan(a15) a17 = Sinh(a16) a18 = Cosh(a17) a19 = Tanh(a18) a20 = Asinh(a19)\n"
    "  a21 = Acosh(a20) a22 = Atanh(a21) a23 = Erf(a22) a24 = Relu(a23) a25 = Sigmoid(a24) a26 = Softplus(a25)\n"
    "  a27 = Softsign(a26) a28 = HardSwish(a27) a29 = Mish(a28) a30 = LeakyRelu<alpha=0.2>(a29)\n"
    "  a31 = Elu<alpha=-2>(a30) a32 = Celu<alpha=2.5>(a31) a33 = Selu<gamma=1, alpha=2>(a32)\n"
    "  a34 = HardSigmoid<beta=0.25>(a33) a35 = ThresholdedRelu<alpha=inf>(a34) a36 = Shrink<bias=nan, "
    "lambd=-inf>(a35)\n"
    "  a37 = Swish<alpha=1.5>(a36) a38 = QuickGelu(a37) a39 = Gelu(a38) a40 = Gelu<approximate=\"tanh\">(a39)\n"
    "  a41 = Gelu<approximate=\"none\">(a40) b1 = Add(a41, z) b2 = Sub(1.5, b1) b3 = Mul(b2, -0) b4 = Div(b3, b3)\n"
    "  b5 = Pow(b4, 2) b6 = Min(b5, inf) b7 = Max(-inf, b6) b8 = PRelu(b7, nan) b9 = Clip(b8, 0, 1e+30)\n"
    "  n = RMSNormalization<axis=-2, epsilon=0>(b9)\n"
    "  c1 = Equal(n, 0) c2 = Less(n, z) c3 = LessOrEqual(n, z) c4 = Greater(n, z) c5 = GreaterOrEqual(n, z)\n"
    "  d1 = And(c1, c2) d2 = Or(d1, c3) d3 = Xor(d2, c4) d4 = Not(d3) d5 = And(d4, 1) d6 = IsNaN(n)\n"
    "  d7 = IsInf<detect_positive=0, detect_negative=1>(n)\n"
    "  e1 = Or(c5, d5) e2 = Or(e1, d6) b = Or(e2, d7) y = Where(c, n, 0.5)\n"
    "  f1 = Cast<to=double>(b) f2 = Mod<fmod=1>(f1, d) e = Add(f2, d) i = Cast<to=bfloat16>(h) k = "
    "Cast<to=float16>(d)\n"
    "  j1 = Mod(j, -9223372036854775808) j2 = BitwiseAnd(j1, 9223372036854775807) j3 = BitwiseOr(j2, 0)\n"
    "  j4 = BitwiseXor(j3, +7) j5 = BitwiseNot(j4) j6 = Pow(j5, 2) l = Where(b, j6, -1)\n"
    "  u1 = BitShift<direction=\"LEFT\">(u, 255) v = BitShift<direction=\"RIGHT\">(1, u1)\n"
    "}";

// What the mutations start from; two are refused as they stand.
const char* const kSeeds[] = {
    kLayerNorm,
    kEverything,
    "(float x) => (float x) {}",
    "(bool b) => (bool y) { y = Xor(b, 0) }",
    "\t( float\nx )=>(\rfloat y){y=Add\n( x ,+1.25e-3 )}  ",
    "(float16 x) => (float16 y, float16 z) { y = Gelu<approximate=\"tanh\">(x) z = Clip(y, -inf, 6) }",
    "()=>(bool y){y=Not(y0)}",
    "(double x, double y) => (double _0) { _0 = Where(c, x, y) }",
    "(uint64 x, uint64 y) => (uint64 z, bool b) { z = BitShift<direction=\"LEFT\">(x, 18446744073709551615) b = "
    "Less(z, y) }",
    "(int8 x, float d) => (float g, uint32 h) { c = Cast<to=uint32>(x) h = SumTo<axes=\"0 2 63\">(c) "
    "g = SumTo<keepdims=0, axes=\"1\">(d) }",
};

std::string ErrorOf(const std::string& text) {
  return test::ErrorOf([&] { Program::Parse(text); });
}

bool SamePrograms(const Program& a, const Program& b) {
  if (a.values().size() != b.values().size() || a.statements().size() != b.statements().size()) return false;
  if (a.parameters() != b.parameters() || a.results() != b.results()) return false;
  for (size_t i = 0; i < a.values().size(); ++i) {
    const Value &v = a.values()[i], &w = b.values()[i];
    if (v.kind != w.kind || v.dtype != w.dtype || v.index != w.index || v.name != w.name) return false;
    if (!Same(v.literal, w.literal) || v.integer != w.integer) return false;
  }
  for (size_t i = 0; i < a.statements().size(); ++i) {
    const Statement &s = a.statements()[i], &t = b.statements()[i];
    if (s.op != t.op || s.result != t.result || s.operands != t.operands || s.axes != t.axes) return false;
    for (size_t j = 0; j < s.attributes.size(); ++j) {
      if (!Same(s.attributes[j], t.attributes[j])) return false;
    }
  }
  return true;
}

void TestGoodPrograms() {
  const Program program = Program::Parse(kLayerNorm);
  CHECK(program.parameters().size() == 4);
  CHECK(program.results().size() == 2);
  CHECK(program.statements().size() == 4);
  CHECK(program.value(program.parameters()[1]).name == "residual");
  CHECK(program.value(program.parameters()[1]).kind == Value::Kind::kParameter);
  CHECK(program.value(program.parameters()[1]).index == 1);
  CHECK(program.value(program.parameters()[1]).dtype == DType::kFloat16);
  const Statement& norm = program.statements()[1];
  CHECK(norm.op == Op::kLayerNormalization);
  CHECK(IsCore(norm.op));
  CHECK(!IsCore(Op::kAdd));
  CHECK(norm.attributes[0] == -1);
  CHECK(norm.attributes[1] == static_cast<double>(1e-12f));  // attributes are ONNX's floats
  CHECK(program.value(norm.result).kind == Value::Kind::kResult);
  CHECK(program.value(norm.result).index == 1);
  CHECK(program.results()[0] == program.statements()[3].result);
  CHECK(program.results()[1] == program.statements()[0].result);

  const Program all = Program::Parse(kEverything);
  std::vector<bool> seen(static_cast<size_t>(Op::kSumTo) + 1);
  for (const Statement& statement : all.statements()) seen[static_cast<size_t>(statement.op)] = true;
  seen[static_cast<size_t>(Op::kLayerNormalization)] = true;
  seen[static_cast<size_t>(Op::kSumTo)] = true;
  for (size_t op = 0; op < seen.size(); ++op) CHECK_WITH(seen[op], NameOf(static_cast<Op>(op)));

  const Program defaults = Program::Parse("(double x) => (double y) { a = Selu(x) b = HardSigmoid(a) y = Shrink(b) }");
  CHECK(defaults.statements()[0].attributes[0] == 1.67326319217681884765625);
  CHECK(defaults.statements()[0].attributes[1] == 1.05070102214813232421875);
  CHECK(defaults.statements()[1].attributes[0] == static_cast<double>(0.2f));
  CHECK(defaults.statements()[2].attributes[0] == 0);
  CHECK(defaults.statements()[2].attributes[1] == 0.5);

  const Program through = Program::Parse("(float x) => (float x) {}");
  CHECK(through.parameters() == through.results());

  // A literal takes its neighbours' dtype and keeps all digits of the text.
  const Program literal = Program::Parse("(double x) => (double y) { y = Clip(x, -1e-300, 0.1) }");
  const std::vector<ValueId>& operands = literal.statements()[0].operands;
  CHECK(literal.value(operands[1]).kind == Value::Kind::kLiteral);
  CHECK(literal.value(operands[1]).literal == -1e-300);
  CHECK(literal.value(operands[2]).literal == 0.1);
  CHECK(literal.value(operands[2]).dtype == DType::kDouble);
  CHECK(literal.value(operands[2]).name.empty());

  // Integers keep all 64 bits; negative ones are in two's complement.
  const Program integers = Program::Parse(
      "(uint64 u, int64 i, int8 t) => (uint64 v, int64 j, int8 w) { v = Clip(u, 18446744073709551615, +007)\n"
      "j = Clip(i, -9223372036854775808, 9223372036854775807) w = Clip(t, -128, 127) }");
  const auto integer = [&integers](size_t statement, size_t operand) {
    const Value& value = integers.value(integers.statements()[statement].operands[operand]);
    CHECK(value.kind == Value::Kind::kLiteral);
    return value.integer;
  };
  CHECK(integer(0, 1) == UINT64_MAX && integer(0, 2) == 7);
  CHECK(integer(1, 1) == uint64_t{1} << 63 && integer(1, 2) == INT64_MAX);
  CHECK(integer(2, 1) == 0 - uint64_t{128} && integer(2, 2) == 127);

  const Program sums = Program::Parse(
      "(float x, int32 n) => (float a, int32 b, float c) { a = SumTo<axes=\"0 2 63\">(x) "
      "b = SumTo<axes=\"1\", keepdims=0>(n) c = Relu(x) }");
  CHECK((sums.statements()[0].axes == std::vector<int64_t>{0, 2, 63}));
  CHECK(sums.statements()[0].attributes[1] == 1 && sums.statements()[1].attributes[1] == 0);
  CHECK(sums.statements()[2].axes.empty() && IsCore(Op::kSumTo) && !IsCore(Op::kCast));
  const Program shifts = Program::Parse(
      "(uint8 x) => (uint8 y) { z = BitShift<direction=\"LEFT\">(x, 1) y = BitShift<direction=\"RIGHT\">(z, 1) }");
  CHECK(shifts.statements()[0].attributes[0] == 0 && shifts.statements()[1].attributes[0] == 1);

  CHECK(std::string(NameOf(DType::kBFloat16)) == "bfloat16");
  CHECK(std::string(NameOf(DType::kUInt64)) == "uint64" && SizeOf(DType::kInt16) == 2 && SizeOf(DType::kUInt32) == 4);
  CHECK(IsInteger(DType::kInt8) && IsInteger(DType::kUInt64) && !IsInteger(DType::kBool) && !IsInteger(DType::kDouble));
  CHECK(IsSigned(DType::kInt64) && !IsSigned(DType::kUInt8) && !IsFloating(DType::kInt32));
  CHECK(SizeOf(DType::kFloat16) == 2 && SizeOf(DType::kBFloat16) == 2 && SizeOf(DType::kFloat) == 4);
  CHECK(SizeOf(DType::kDouble) == 8 && SizeOf(DType::kBool) == 1);
  CHECK(IsFloating(DType::kDouble) && !IsFloating(DType::kBool));
}

// A message starts with where, and has what was found and what was expected.
void CheckError(const std::string& text, const std::string& words) {
  const std::string message = ErrorOf(text);
  CHECK_WITH(Contains(message, words), text + "\n    " + message);
  CHECK(message.find("program, line ") == 0);
}

void TestErrors() {
  using Cases = std::vector<std::pair<const char*, const char*>>;
  const Cases texts = {
      {"", "program, line 1, column 1: found the end of the text, expected '('"},
      {"x", "line 1, column 1: found 'x', expected '('"},
      {"(float x", "line 1, column 9: found the end of the text, expected ',' or ')'"},
      {"(float x,) => (float x) {}",
       "line 1, column 10: found ')', expected a dtype: float16, bfloat16, float, double, bool or an integer from "
       "int8"},
      {"(int4 x) => (float x) {}", "line 1, column 2: found 'int4', expected a dtype"},
      {"(float) => (float x) {}", "line 1, column 7: found ')', expected a name"},
      {"(float nan) => (float x) {}", "line 1, column 8: found 'nan', which is reserved, expected a name"},
      {"(float double) => (float x) {}", "line 1, column 8: found 'double', which is reserved"},
      {"(float x, float x) => (float x) {}", "line 1, column 17: found 'x' again, expected a new name"},
      {"(float x) = (float x) {}", "line 1, column 11: found '=', expected '=>'"},
      {"(float x) => () {}", "line 1, column 15: found ')', expected a dtype"},
      {"(float x) => (float y) {}", "line 1, column 21: found the result 'y', which is never assigned"},
      {"(float x) => (double x) {}", "found the result 'x' declared double, expected float, the dtype of its value"},
      {"(float x) => (float x, float x) {}", "column 30: found the result 'x' twice"},
      {"(float x) => (float x) {", "line 1, column 25: found the end of the text, expected a statement, or '}'"},
      {"(float x) => (float x) {} x", "line 1, column 27: found 'x', expected the end of the text"},
      {"(float x, float z) => (float x) {}", "line 1, column 17: found 'z', which is never used, expected a use"},
      {"(float x) => (float y) {\n  y = Neg(x)\n  z = Neg(x)\n}", "line 3, column 3: found 'z', which is never used"},
      {"(float x) => (float y) {\n  y = Foo(x)\n}", "line 2, column 7: found the operator 'Foo', expected one of"},
      {"(float x) => (float y) { y Neg(x) }", "found 'Neg', expected '='"},
      {"(float x) => (float x) { x = Neg(x) }",
       "column 26: found 'x' again, expected a new name: it was assigned on line 1"},
      {"(float x) => (float y) { inf = Neg(x) }", "found 'inf', which is reserved"},
      {"(bool c) => (float y) { y = Where(c, 1, 2) }", "found Where of numbers alone"},
      {"(float x, double z) => (float y) { y = Add(x, z) }",
       "column 47: found 'z' of double, expected float as 'x' is"},
      {"(float x, float16 z) => (float y) { y = Clip(0, x, z) }", "found 'z' of float16, expected float as 'x' is"},
      {"(int32 x) => (bool y) { y = IsNaN(x) }", "found 'x' of int32, expected a floating dtype for IsNaN"},
      {"(float x) => (bool y) { y = IsInf<detect_negative=\"LEFT\">(x) }", "found 'LEFT', expected 0 or 1"},
      {"(int32 x, int64 z) => (int32 y) { y = Add(x, z) }", "found 'z' of int64, expected int32 as 'x' is"},
      {"(float x) => (float y) { s = SumTo<axes=\"0\">(x)\n y = RMSNormalization(s) }",
       "line 2, column 6: found 'RMSNormalization' after SumTo, expected at most one core operator"},
      {"(float x) => (float y) { n = RMSNormalization(x)\n y = SumTo<axes=\"0\">(n) }",
       "line 2, column 6: found 'SumTo' after RMSNormalization, expected at most one core operator"},
      {"(float x) => (bool y) { y = Not(x) }", "found 'x' of float, expected bool for Not"},
      {"(float x, bool c) => (bool y) { y = And(c, x) }", "found 'x' of float, expected bool as 'c' is"},
      {"(bool c) => (bool y) { y = And(c, 2) }", "found '2', expected 0 or 1 in the place of a bool"},
      {"(bool c) => (bool y) { y = And(c, nan) }", "found 'nan', expected 0 or 1 in the place of a bool"},
      {"(float x) => (float y) { n = LayerNormalization(x)\n y = RMSNormalization(n) }",
       "line 2, column 6: found 'RMSNormalization' after LayerNormalization, expected at most one core operator"},
      {"(float x) => (float y) { y = Gelu<approximate=\"ta",
       "found '\"ta', expected letters, digits and spaces and a closing '\"'"},
      {"(float x; float y)", "column 9: found ';', expected a name, a number, a string or one of ( ) { } < > = ,"},
      {"(float \xff)", "column 8: found '\\xff', expected"},
      {"(float x) // c", "column 11: found '/', expected"},
  };
  for (const auto& [text, words] : texts) CheckError(text, words);
  // An operator on x, whose result is of x's dtype.
  const auto with = [](const std::string& dtype, const std::string& call) {
    return "(" + dtype + " x) => (" + dtype + " y) { y = " + call + " }";
  };
  const Cases floats = {
      {"neg(x)", "found the operator 'neg'"},
      {"1(x)", "found '1', expected an operator"},
      {"Neg x", "found 'x', expected '('"},
      {"Neg()", "found ')', expected an operand: a name or a number"},
      {"Neg(x, x)", "found more than 1 operands, expected 1 for Neg"},
      {"Add(x)", "column 35: found 1 operand, expected 2 for Add"},
      {"Add(x x)", "found 'x', expected ',' or ')'"},
      {"Neg(z)", "found 'z', expected a parameter, the name of an earlier statement"},
      {"Neg(y)", "found 'y', expected a parameter"},
      {"Neg(1)", "found Neg of numbers alone, expected a named operand"},
      {"Add(1, 2)", "found Add of numbers alone"},
      {"Cast<to=float>(1)", "found Cast of numbers alone"},
      {"BitwiseNot(x)", "found 'x' of float, expected an integer dtype for BitwiseNot"},
      {"Mod(x, 2)", "column 30: found Mod of 'x' of float, expected Mod<fmod=1> for a floating dtype"},
      {"SumTo(x)", "found SumTo without the attribute 'axes', expected SumTo<axes=\"0 2\">"},
      {"SumTo<axes=0>(x)", "found '0', expected axes such as \"0 2 3\": ascending"},
      {"SumTo<axes=\"-1\">(x)", "found '\"-', expected letters, digits and spaces"},
      {"SumTo<axes=\"99999999999999999999\">(x)", "expected axes such as"},
      {"SumTo<axes=\"0\", keepdims=2>(x)", "found '2', expected 0 or 1"},
      {"Where(x, x, x)", "found 'x' of float, expected a bool value for Where's condition"},
      {"Where(1, x, x)", "found the number '1', expected a bool value for Where's"},
      {"Neg<alpha=1>(x)", "found the attribute 'alpha', expected Neg without attributes"},
      {"Elu<beta=1>(x)", "found the attribute 'beta', expected Elu's alpha"},
      {"Selu<beta=1>(x)", "found the attribute 'beta', expected Selu's alpha or gamma"},
      {"Elu<>(x)", "found '>', expected an attribute's name"},
      {"Elu<alpha>(x)", "found '>', expected '='"},
      {"Elu<alpha=1, alpha=1>(x)", "found the attribute 'alpha' again, expected it once"},
      {"Elu<alpha=\"none\">(x)", "found 'none', expected a number"},
      {"Elu<alpha=1e39>(x)", "found '1e39', expected a number within the range of float"},
      {"Elu<alpha=1(x)", "found '(', expected ',' or '>'"},
      {"Gelu<approximate=\"sigmoid\">(x)", "found 'sigmoid', expected \"none\" or \"tanh\""},
      {"Gelu<approximate=tanh>(x)", "found 'tanh', expected \"none\" or \"tanh\""},
      {"Cast(x)", "found Cast without the attribute 'to', expected Cast<to=dtype>"},
      {"Cast<to=int4>(x)", "found 'int4', expected a dtype"},
      {"Cast<to=\"float\">(x)", "found 'float', expected a dtype"},
      {"LayerNormalization<axis=0.5>(x)", "found '0.5', expected an integer from -1024"},
      {"LayerNormalization<axis=nan>(x)", "found 'nan', expected an integer"},
      {"LayerNormalization<axis=1025>(x)", "found '1025', expected an integer"},
      {"Add(x, 1.)", "found '1.', expected a number such as"},
      {"Add(x, .5)", "found '.', expected a name, a number"},
      {"Add(x, 1e)", "found '1e', expected a number"},
      {"Add(x, 1x)", "found '1x', expected a number"},
      {"Add(x, 0x1p3)", "found '0x', expected a number"},
      {"Add(x, 1.2.3)", "found '1.2.', expected a number"},
      {"Add(x, - 1)", "found '-', expected a number"},
      {"Add(x, -infinity)", "found '-infinity', expected a number"},
      {"Add(x, 1e999)", "found '1e999', expected a number within the range of double"},
      {"Add(x, 1e-999)", "found '1e-999', expected a number within the range of double"},
      {"Gelu<approximate=\"t_\">(x)", "found '\"t_', expected letters, digits and spaces and a closing '\"'"},
  };
  for (const auto& [call, words] : floats) CheckError(with("float", call), words);
  const struct {
    const char *dtype, *call, *words;
  } others[] = {
      {"bool", "Neg(x)", "found 'x' of bool, expected a floating or an integer dtype for Neg"},
      {"bool", "Less(x, 1)", "found 'x' of bool, expected a floating or an integer dtype for Less"},
      {"bool", "Equal(x, 2)", "found '2', expected 0 or 1 in the place of a bool"},
      {"bool", "BitwiseOr(x, 1)", "found 'x' of bool, expected an integer dtype for BitwiseOr"},
      {"int32", "Exp(x)", "found 'x' of int32, expected a floating dtype for Exp"},
      {"int32", "PRelu(x, x)", "found 'x' of int32, expected a floating dtype for PRelu"},
      {"int8", "BitShift<direction=\"LEFT\">(x, 1)",
       "found 'x' of int8, expected an unsigned integer dtype for BitShift"},
      {"int8", "Mod<fmod=2>(x, 2)", "found '2', expected 0 or 1"},
      {"int8", "Mod<fmod=nan>(x, 2)", "found 'nan', expected 0 or 1"},
      {"int8", "SumTo<axes=\"0\">(x)",
       "found 'x' of int8, expected a floating dtype or an integer of 32 or 64 bits for SumTo"},
      {"uint8", "BitShift(x, 1)",
       "found BitShift without the attribute 'direction', expected BitShift<direction=\"LEFT\">"},
      {"uint8", "BitShift<direction=\"UP\">(x, 1)", "found 'UP', expected \"LEFT\" or \"RIGHT\""},
  };
  for (const auto& [dtype, call, words] : others) CheckError(with(dtype, call), words);
  const struct {
    std::string dtype, range;
    std::vector<std::string> numbers;
  } integers[] = {
      {"int8", "-128 to 127 in the place of int8", {"128", "-129", "1.0", "1e1", "-0", "inf", "-nan"}},
      {"uint8", "0 to 255", {"-1", "256"}},
      {"int64", "-9223372036854775808 to 9223372036854775807", {"9223372036854775808", "-9223372036854775809"}},
      {"uint64", "0 to 18446744073709551615", {"18446744073709551616"}},
  };
  for (const auto& [dtype, range, numbers] : integers) {
    for (const std::string& number : numbers) {
      CheckError(with(dtype, "Add(x, " + number + ")"), "found '" + number + "', expected an integer from " + range);
    }
  }
  for (const std::string axes : {"", "1 0", "1 1", "0  1", " 0", "0 ", "00", "0 01", "64", "a"}) {
    CheckError(with("float", "SumTo<axes=\"" + axes + "\">(x)"), "found '" + axes + "', expected axes such as");
  }
  CHECK(Contains(ErrorOf(std::string("(float x\0)", 10)), "column 9: found '\\x00'"));
}

std::string Repeat(const std::string& text, size_t count) {
  std::string repeated;
  for (size_t i = 0; i < count; ++i) repeated += text;
  return repeated;
}

void TestLimits() {
  const auto parameters = [](size_t count) {
    std::string list, sum = "  s0 = Neg(p0)\n";
    for (size_t i = 0; i < count; ++i) {
      const std::string n = std::to_string(i);
      list += (i == 0 ? "float p" : ", float p") + n;
      if (i > 0) sum += "  s" + n + " = Add(s" + std::to_string(i - 1) + ", p" + n + ")\n";
    }
    return "(" + list + ") => (float s" + std::to_string(count - 1) + ") {\n" + sum + "}";
  };
  CHECK(Program::Parse(parameters(32)).parameters().size() == 32);
  CHECK(Contains(ErrorOf(parameters(33)), "found more than 32 parameters, expected at most 32"));

  const auto results = [](size_t count) {
    std::string list, body;
    for (size_t i = 0; i < count; ++i) {
      list += (i == 0 ? "bool r" : ", bool r") + std::to_string(i);
      body += "r" + std::to_string(i) + " = Not(b) ";
    }
    return "(bool b) => (" + list + ") {" + body + "}";
  };
  CHECK(Program::Parse(results(16)).results().size() == 16);
  CHECK(Contains(ErrorOf(results(17)), "found more than 16 results, expected at most 16"));

  const auto chain = [](size_t count) {
    std::string body;
    for (size_t i = 1; i <= count; ++i) body += "v" + std::to_string(i) + " = Neg(v" + std::to_string(i - 1) + ")\n";
    return "(float v0) => (float v" + std::to_string(count) + ") {" + body + "}";
  };
  CHECK(Program::Parse(chain(256)).statements().size() == 256);
  CHECK(Contains(ErrorOf(chain(257)), "line 257, column 1: found more than 256 statements"));

  const auto name = [](size_t length) {
    const std::string n(length, 'n');
    return "(float " + n + ") => (float " + n + ") {}";
  };
  CHECK(Program::Parse(name(64)).values()[0].name.size() == 64);
  CHECK(Contains(ErrorOf(name(65)), "of 65 characters, expected a name of at most 64"));

  const std::string tiny = "(float x) => (float x) {}";
  CHECK(Program::Parse(tiny + std::string(65536 - tiny.size(), ' ')).values().size() == 1);
  CHECK(Contains(ErrorOf(tiny + std::string(65537 - tiny.size(), ' ')), "65537 characters, expected at most 65536"));

  // Long digits are one number; what is nested, unclosed or repeated ends in an error, soon and without recursion.
  CHECK(Program::Parse("(float x) => (float y) { y = Add(x, 0." + std::string(60000, '3') + ") }").value(1).literal ==
        0.33333333333333331);
  for (const char* piece :
       {"(", ")", "{", "<", "=>", "=", ",", "\"", "float x, ", "x = ", "Neg(", "-", "1", "\n", "\\"}) {
    const std::string text = Repeat(piece, 65000 / std::strlen(piece));
    CHECK(ErrorOf(text).find("program, line ") == 0);
    CHECK(ErrorOf("(float x) => (float y) { y = Add(x" + text.substr(0, 65000)).size() < 400);
  }
}

// 20,000 mutated texts: each parses or is refused with an Error, and what parses survives everything.
void TestMutations() {
  test::Random random;
  std::vector<std::string> tokens = {"\n", " ", "\"0 1\""};
  std::istringstream more(
      "( ) { } < > = => , float double x y s 1 -0 1e308 nan inf Add Where Cast b bool \"a\" to axis approximate 1e-320 "
      "Gelu -inf int8 int64 uint64 Mod BitShift fmod \"LEFT\" -9223372036854775808 18446744073709551615 -1 127");
  for (std::string token; more >> token;) tokens.push_back(token);
  size_t good = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = kSeeds[random(std::size(kSeeds))];
    for (size_t edits = 1 + random(3); edits > 0; --edits) {
      const size_t at = random(text.size() + 1);
      const size_t length = std::min(text.size() - at, random(12));
      switch (random(6)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, 1, static_cast<char>(random(256)));
          break;
        case 2:
          text.insert(at, tokens[random(tokens.size())]);
          break;
        case 3:
          text.insert(random(text.size() + 1), text.substr(at, length));
          break;
        case 4:
          if (at < text.size()) text[at] = static_cast<char>(random(256));
          break;
        default:
          text.replace(at, length, tokens[random(tokens.size())]);
      }
    }
    try {
      const Program program = Program::Parse(text);
      ++good;
      const Program again = Program::Parse(program.ToString());
      CHECK_WITH(SamePrograms(program, again), text);
      CHECK_WITH(again.ToString() == program.ToString(), text);
      std::vector<uint32_t> pointwise;
      for (uint32_t i = 0; i < program.statements().size(); ++i) {
        if (!IsCore(program.statements()[i].op)) pointwise.push_back(i);
      }
      const std::string cuda = EmitCuda(program, pointwise, "  ");
      CHECK(static_cast<size_t>(std::count(cuda.begin(), cuda.end(), '\n')) == pointwise.size());
      const Evaluator evaluator(program, pointwise);
      Evaluator::Workspace workspace(evaluator);
      for (const Value& value : program.values()) {
        const auto id = static_cast<ValueId>(&value - program.values().data());
        if (value.kind != Value::Kind::kLiteral) std::memset(workspace.lanes(id), 0, 5 * LaneSize(value.dtype));
      }
      evaluator.Run(workspace, 5);
    } catch (const Error& error) {
      CHECK_WITH(std::string(error.what()).find("program, line ") == 0, error.what());
      CHECK(std::strlen(error.what()) < 400);
    }
  }
  CHECK_WITH(good > 200, std::to_string(good) + " of the mutated programs are good");
}

void TestText() {
  const Program everything = Program::Parse(kEverything);
  CHECK(SamePrograms(everything, Program::Parse(everything.ToString())));
  const Program norm = Program::Parse(kLayerNorm);
  CHECK(norm.ToString() ==
        "(float16 x, float16 residual, float16 gamma, float16 beta) => (float16 y, float16 s) {\n"
        "  s = Add(x, residual)\n"
        "  n = LayerNormalization<epsilon=1e-12>(s)\n"
        "  g = Mul(n, gamma)\n"
        "  y = Add(g, beta)\n"
        "}");
  CHECK(Program::Parse("(float x)=>(float y,bool b){y=Clip(x,-0,+1e20) c=Gelu<approximate=\"tanh\">(y)"
                       "d=Selu<gamma=2,alpha=0.1>(c) e=Cast<to=bfloat16>(d) b=Less(e,0.1)}")
            .ToString() ==
        "(float x) => (float y, bool b) {\n"
        "  y = Clip(x, -0, 1e+20)\n"
        "  c = Gelu<approximate=\"tanh\">(y)\n"
        "  d = Selu<alpha=0.1, gamma=2>(c)\n"
        "  e = Cast<to=bfloat16>(d)\n"
        "  b = Less(e, 0.1)\n"
        "}");
  CHECK(Program::Parse("(uint64 x, int8 t, float f)=>(uint64 y,bool b,float g,int8 s,bool c){"
                       "z=BitShift<direction=\"LEFT\">(x,+00018446744073709551615)y=Mod<fmod=0>(z,7)b=Equal(t,-128)"
                       "g=SumTo<keepdims=0,axes=\"0 12\">(f)s=Mod<fmod=1>(t,+3)"
                       "c=IsInf<detect_positive=0,detect_negative=1>(f)}")
            .ToString() ==
        "(uint64 x, int8 t, float f) => (uint64 y, bool b, float g, int8 s, bool c) {\n"
        "  z = BitShift<direction=\"LEFT\">(x, 18446744073709551615)\n"
        "  y = Mod(z, 7)\n"
        "  b = Equal(t, -128)\n"
        "  g = SumTo<axes=\"0 12\", keepdims=0>(f)\n"
        "  s = Mod<fmod=1>(t, 3)\n"
        "  c = IsInf<detect_positive=0>(f)\n"
        "}");
  CHECK(Program::Parse("(float x) => (float x) {}").ToString() == "(float x) => (float x) {\n}");
}

void TestClosure() {
  const Program program = Program::Parse(kLayerNorm);
  const auto id = [&program](const char* name) {
    for (ValueId i = 0; i < program.values().size(); ++i) {
      if (program.value(i).name == name) return i;
    }
    return ValueId{0};
  };
  using Indices = std::vector<uint32_t>;
  CHECK(program.Closure({id("y")}, program.parameters()) == Indices{0, 1, 2, 3});
  CHECK(program.Closure({id("s")}, program.parameters()) == Indices{0});
  CHECK(program.Closure({id("y"), id("s")}, {id("n")}) == Indices{0, 2, 3});
  CHECK(program.Closure({id("y")}, {id("n")}) == Indices{2, 3});
  CHECK(program.Closure({id("y")}, {id("y")}).empty());
  CHECK(program.Closure({id("x")}, {}).empty());
  CHECK(program.Closure({}, {}).empty());
}

void TestCuda() {
  const auto emit = [](const std::string& dtype, const std::string& statements) {
    const std::string whole = "(" + dtype + " x) => (" + dtype + " y) { " + statements + " }";
    const Program program = Program::Parse(dtype.empty() ? statements : whole);
    std::vector<uint32_t> all(program.statements().size());
    std::iota(all.begin(), all.end(), 0);
    return EmitCuda(program, all, "  ");
  };
  const struct {
    const char *dtype, *statements;  // of x and y; where there is no dtype the statements are a whole program
    std::vector<std::string> constants;
  } cases[] = {
      // Literals have exactly the bits of their dtype's value.
      {"float", "y = Add(x, 0.1)", {"float v2 = op_Add(v0, 0x1.99999ap-4f)"}},
      {"float16", "y = Add(x, 0.1)", {"float v2 = op_Add(v0, 0x1.998p-4f)"}},
      {"bfloat16", "y = Add(x, 0.1)", {"float v2 = op_Add(v0, 0x1.9ap-4f)"}},
      {"double", "y = Add(x, 0.1)", {"double v2 = op_Add(v0, 0x1.999999999999ap-4)"}},
      {"float", "y = Clip(x, -0, 3)", {"float v3 = op_Clip(v0, -0x0p+0f, 0x1.8p+1f)"}},
      {"float", "y = Sub(1e-45, x)", {"float v2 = op_Sub(0x1p-149f, v0)"}},
      {"float",
       "y = Clip(x, -inf, nan)",
       {"float v3 = op_Clip(v0, -__int_as_float(0x7f800000), __int_as_float(0x7fc00000))"}},
      {"double",
       "y = Clip(x, inf, nan)",
       {"double v3 = op_Clip(v0, __longlong_as_double(0x7ff0000000000000LL), "
        "__longlong_as_double(0x7ff8000000000000LL))"}},
      // Beyond their dtype's range they are what the dtype's constant would be.
      {"float16", "y = Max(x, -65520)", {"float v2 = op_Max(v0, -__int_as_float(0x7f800000))"}},
      {"float", "y = Max(x, 1e300)", {"float v2 = op_Max(v0, __int_as_float(0x7f800000))"}},
      {"", "(bool c) => (bool y) { y = And(c, 1) }", {"bool v2 = op_And(v0, true)"}},
      // Attributes follow the operands, in the table's order and the operator's type.
      {"float16", "y = Selu<gamma=2, alpha=0.5>(x)", {"float v1 = op_Selu(v0, 0x1p-1f, 0x1p+1f)"}},
      // not 0.01's float16
      {"float16", "y = LeakyRelu(x)", {"float v1 = op_LeakyRelu(v0, 0x1.47ae14p-7f)"}},
      {"double", "y = LeakyRelu(x)", {"double v1 = op_LeakyRelu(v0, 0x1.47ae14p-7)"}},
      {"float",
       "z = Gelu(x) y = Gelu<approximate=\"tanh\">(z)",
       {"float v1 = op_Gelu(v0, false)", "float v2 = op_Gelu(v1, true)"}},
      // What float16 has a cheaper form of; a float that is cast to it is none.
      {"float16",
       "z = Gelu(x) y = Gelu<approximate=\"tanh\">(z)",
       {"float v1 = op_Gelu16(v0, false)", "float v2 = op_Gelu16(v1, true)"}},
      {"float16",
       "a = Sigmoid(x) b = Swish<alpha=2>(a) y = QuickGelu<alpha=1>(b)",
       {"float v1 = op_Sigmoid16(v0)", "float v2 = op_Swish16(v1, 0x1p+1f)", "float v3 = op_QuickGelu16(v2, 0x1p+0f)"}},
      // 1.414 is 0x1.6ap+0 in float16, and 0.7071 is 0x1.6ap-1.
      {"float16",
       "a = Div(x, 1.41421356) b = Erf(a) y = Add(b, 1)",
       {"float v2 = op_Div(v0, 0x1.6ap+0f)", "float v3 = op_Erf(v2)", "float v5 = op_OnePlusErf16(v0, 0x1.0007p+0f)"}},
      {"",
       "(bfloat16 x) => (float16 y) { z = Gelu(x) y = Cast<to=float16>(z) }",
       {"float v1 = op_Gelu(v0, false)", "float v2 = op_CastFloat16(v1)"}},
      {"",
       "(double x, bool c) => (bool f, bfloat16 g, float h, double i) { a = Cast<to=float16>(x) f = Cast<to=bool>(a) g "
       "= Cast<to=bfloat16>(c) h = Cast<to=float>(g) j = Less(x, 1) i = Where(j, x, 0) }",
       {"float v2 = op_CastFloat16(v0)", "bool v3 = op_CastBool(v2)", "float v4 = op_CastBFloat16(v1)",
        "float v5 = op_CastFloat(v4)", "bool v7 = op_Less(v0, 0x1p+0)", "double v9 = op_Where(v7, v0, 0x0p+0)"}},
      {"", "(float x) => (double y) { y = Cast<to=double>(x) }", {"double v1 = op_CastDouble(v0)"}},
      // Integers keep their type and all their bits.
      {"int8", "y = Add(x, -5)", {"signed char v2 = op_Add(v0, (signed char)-5ll)"}},
      {"uint32",
       "y = Clip(x, 4294967295, 0)",
       {"unsigned int v3 = op_Clip(v0, (unsigned int)4294967295ull, (unsigned int)0ull)"}},
      {"int64",
       "y = Clip(x, -9223372036854775808, 9223372036854775807)",
       {"long long v3 = op_Clip(v0, (-9223372036854775807ll - 1), (long long)9223372036854775807ll)"}},
      {"uint64",
       "y = BitShift<direction=\"RIGHT\">(18446744073709551615, x)",
       {"unsigned long long v2 = op_BitShift((unsigned long long)18446744073709551615ull, v0, true)"}},
      {"",
       "(int16 x) => (bool y) { z = Mod<fmod=1>(x, x) y = Equal(z, -32768) }",
       {"short v1 = op_Mod(v0, v0, true)", "bool v3 = op_Equal(v1, (short)-32768ll)"}},
      {"", "(float16 x) => (bool y) { y = IsInf<detect_negative=0>(x) }", {"bool v1 = op_IsInf(v0, false, true)"}},
      {"", "(float16 x) => (uint8 y) { y = Cast<to=uint8>(x) }", {"unsigned char v1 = op_CastUInt8(v0)"}},
      {"", "(uint16 x) => (bfloat16 y) { y = Cast<to=bfloat16>(x) }", {"float v1 = op_CastBFloat16(v0)"}},
  };
  for (const auto& [dtype, statements, constants] : cases) {
    std::string text;
    for (const std::string& constant : constants) text += "  const " + constant + ";\n";
    CHECK_WITH(emit(dtype, statements) == text, statements);
  }
  const struct {
    const char *dtype, *statements, *last;
  } sums[] = {
      {"float16", "a = Mul(0.70710678, x) b = Erf(a) y = Add(1, b)", "op_OnePlusErf16(v0, 0x1.fff2p-1f)"},
      {"float16", "b = Erf(x) y = Add(b, 1)", "op_OnePlusErf16(v0, 0x1.6a09e6p+0f)"},
      {"float16", "a = Div(x, 0) b = Erf(a) y = Add(b, 1)", "op_OnePlusErf16(v2, 0x1.6a09e6p+0f)"},
      {"float16", "a = Div(2, x) b = Erf(a) y = Add(b, 1)", "op_OnePlusErf16(v2, 0x1.6a09e6p+0f)"},
      {"", "(float16 x, float16 s) => (float16 y) { a = Mul(x, s) b = Erf(a) y = Add(b, 1) }",
       "op_OnePlusErf16(v2, 0x1.6a09e6p+0f)"},
      {"float16", "b = Erf(x) y = Add(b, 2)", "op_Add(v1, 0x1p+1f)"},
      {"float16", "b = Erf(x) y = Sub(b, 1)", "op_Sub(v1, 0x1p+0f)"},
      {"float", "b = Erf(x) y = Add(b, 1)", "op_Add(v1, 0x1p+0f)"},
  };
  for (const auto& [dtype, statements, last] : sums) {
    const std::string emitted = emit(dtype, statements);
    CHECK_WITH(emitted.substr(emitted.rfind('=', emitted.size() - 2) + 2) == std::string(last) + ";\n", statements);
  }
  const Program apart = Program::Parse("(float16 x) => (float16 y) { b = Erf(x) y = Add(b, 1) }");
  CHECK(EmitCuda(apart, {1}, "") == "const float v3 = op_Add(v1, 0x1p+0f);\n");  // Erf is made elsewhere

  const Program norm = Program::Parse(kLayerNorm);
  CHECK(EmitCuda(norm, {3, 2}, "") == "const float v7 = op_Add(v6, v3);\nconst float v6 = op_Mul(v5, v2);\n");
  CHECK(EmitCuda(norm, {}, "").empty());
  CHECK(Contains(test::ErrorOf([&] { EmitCuda(norm, {1}, ""); }), "LayerNormalization is a core operator"));
}

}  // namespace

int main() {
  TestGoodPrograms();
  TestErrors();
  TestLimits();
  TestMutations();
  TestText();
  TestClosure();
  TestCuda();
  return test::Summary();
}
