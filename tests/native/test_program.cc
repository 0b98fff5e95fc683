// The language of pointwise programs: parser, limits, hostile texts, closure and CUDA text.
#include <algorithm>
#include <cstdint>
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

const char* const kLayerNorm =
  "(float16 x, float16 residual, float16 gamma, float16 beta) => (float16 y, float16 s) {\n"
  "  s = Add(x, residual)\n"
  "  n = LayerNormalization<axis=-1, epsilon=1e-12>(s)\n"
  "  g = Mul(n, gamma)\n"
  "  y = Add(g, beta)\n"
  "}";

std::string ErrorOf(const std::string& text) {
  return test::ErrorOf([&] { Program::Parse(text); });
}

// Statements on x that make y, both of one dtype; a whole program where there is no dtype.
std::string Whole(const std::string& dtype, const std::string& statements) {
  return dtype.empty() ? statements : "(" + dtype + " x) => (" + dtype + " y) { " + statements + " }";
}

void TestGoodPrograms() {
  const Program program = Program::Parse(kLayerNorm);
  CHECK(program.parameters().size() == 4 && program.results().size() == 2 && program.statements().size() == 4);
  const Value& residual = program.parameter(1);
  CHECK(residual.name == "residual" && residual.kind == Value::Kind::kParameter && residual.index == 1 &&
    residual.dtype == DType::kFloat16);
  const Statement& norm = program.statements()[1];
  CHECK(norm.op == Op::kLayerNormalization && norm.attributes[0] == -1);
  CHECK(norm.attributes[1] == double(1e-12f));  // attributes are ONNX's floats
  CHECK(program.value(norm.result).kind == Value::Kind::kResult && program.value(norm.result).index == 1);
  CHECK(program.results()[0] == program.statements()[3].result);
  CHECK(program.results()[1] == program.statements()[0].result);
}

// Most messages once. Which texts are refused, test_program_parity.py asks Python's parser, and whether the canonical
// texts are the same.
void TestErrors() {
  // A message starts with where, and has what was found and what was expected.
  const auto check = [](const std::string& text, const std::string& words) {
    const std::string message = ErrorOf(text);
    CHECK_WITH(Contains(message, words), text + "\n    " + message);
    CHECK(message.find("program, line ") == 0);
  };
  const std::pair<const char*, const char*> texts[] = {
    {"", "program, line 1, column 1: found the end of the text, expected '('"},
    {"(float x", "line 1, column 9: found the end of the text, expected ',' or ')'"},
    {"(float nan) => (float x) {}", "line 1, column 8: found 'nan', which is reserved, expected a name"},
    {"(float x) => (float y) {}", "line 1, column 21: found the result 'y', which is never assigned"},
    {"(float x) => (double x) {}", "found the result 'x' declared double, expected float, the dtype of its value"},
    {"(float x) => (float y) {\n  y = Neg(x)\n  z = Neg(x)\n}", "line 3, column 3: found 'z', which is never used"},
    {"(float x) => (float x) { x = Neg(x) }",
      "column 26: found 'x' again, expected a new name: it was assigned on line 1"},
    {"(float x, double z) => (float y) { y = Add(x, z) }", "column 47: found 'z' of double, expected float as 'x' is"},
    {"(float x) => (float y) { s = SumTo<axes=\"0\">(x)\n y = RMSNormalization(s) }",
      "line 2, column 6: found 'RMSNormalization' after SumTo, expected at most one core operator"},
    {"(float x) => (float y) { y = Gelu<approximate=\"ta",
      "found '\"ta', expected letters, digits and spaces and a closing '\"'"},
    {"(float \xff)", "column 8: found '\\xff', expected"},
  };
  for (const auto& [text, words] : texts) check(text, words);
  const struct {
    const char *call, *words, *dtype = "float";
  } calls[] = {
    {"Foo(x)", "found the operator 'Foo', expected one of"},
    {"1(x)", "found '1', expected an operator"},
    {"Neg()", "found ')', expected an operand: a name or a number"},
    {"Neg(y)", "found 'y', expected a parameter, the name of an earlier statement"},
    {"Neg(1)", "found Neg of numbers alone, expected a named operand"},
    {"Mod(x, 2)", "column 30: found Mod of 'x' of float, expected Mod<fmod=1> for a floating dtype"},
    {"Where(x, x, x)", "found 'x' of float, expected a bool value for Where's condition"},
    // Attributes.
    {"Neg<alpha=1>(x)", "found the attribute 'alpha', expected Neg without attributes"},
    {"Elu<alpha=\"none\">(x)", "found 'none', expected a number"},
    {"Elu<alpha=1e39>(x)", "found '1e39', expected a number within the range of float"},
    {"Gelu<approximate=\"sigmoid\">(x)", "found 'sigmoid', expected \"none\" or \"tanh\""},
    {"Cast(x)", "found Cast without the attribute 'to', expected Cast<to=dtype>"},
    {"LayerNormalization<axis=1025>(x)", "found '1025', expected an integer from -1024"},
    {"LayerNormalization<axis=1, axes=\"2\">(x)", "found both axis and axes, expected groups, too"},
    // Numbers.
    {"Add(x, 1.2.3)", "found '1.2.', expected a number such as"},
    {"Equal(x, 2)", "found '2', expected 0 or 1 in the place of a bool", "bool"},
    {"Add(x, 128)", "found '128', expected an integer from -128 to 127 in the place of int8", "int8"},
    // Dtypes.
  };
  for (const auto& [call, words, dtype] : calls) check(Whole(dtype, std::string("y = ") + call), words);
  CHECK(Contains(ErrorOf(std::string("(float x\0)", 10)), "column 9: found '\\x00'"));
}

// `count` texts, of each number one, with `between` between them.
template <typename TextOf>
std::string Joined(size_t count, const char* between, const TextOf& text_of) {
  std::string joined;
  for (size_t i = 0; i < count; ++i) joined += (i == 0 ? "" : between) + text_of(std::to_string(i));
  return joined;
}

// What is within the limits, the cases of tests/pointwise_cases.py are.
void TestLimits() {
  const auto refused = [](const std::string& text, const char* words) {
    CHECK_WITH(Contains(ErrorOf(text), words), ErrorOf(text));
  };
  const auto declared = [](const std::string& number) { return "bool r" + number; };
  const auto statement = [](const std::string& number) { return "r" + number + " = Not(b)"; };
  refused("(" + Joined(33, ", ", declared) + ") => (bool r0) {}", "found more than 32 parameters, expected at most 32");
  refused("(bool b) => (" + Joined(17, ", ", declared) + ") {" + Joined(17, " ", statement) + "}",
    "found more than 16 results, expected at most 16");
  refused("(bool b) => (bool r0) {" + Joined(257, "\n", statement) + "}",
    "line 257, column 1: found more than 256 statements");
  refused("(float " + std::string(65, 'n'), "of 65 characters, expected a name of at most 64");
  const std::string tiny = "(float x) => (float x) {}";
  CHECK(ErrorOf(tiny + std::string(65536 - tiny.size(), ' ')).empty());
  refused(tiny + std::string(65537 - tiny.size(), ' '), "65537 characters, expected at most 65536");

  // Long digits are one number; what is nested, unclosed or repeated ends in an error, soon and without recursion.
  CHECK(Program::Parse(Whole("float", "y = Add(x, 0." + std::string(60000, '3') + ")")).value(1).literal ==
    0.33333333333333331);
  for (const std::string piece :
    {"(", ")", "{", "<", "=>", "=", ",", "\"", "float x, ", "x = ", "Neg(", "-", "1", "\n", "\\"}) {
    const std::string text = Joined(65000 / piece.size(), "", [&](const std::string&) { return piece; });
    CHECK(ErrorOf(text).find("program, line ") == 0);
    CHECK(ErrorOf("(float x) => (float y) { y = Add(x" + text.substr(0, 65000)).size() < 400);
  }
}

// Every operator, attribute and kind of operand at least once.
std::string Everything() {
  std::string text =
    "(float x, float z, double d, bool c, bfloat16 h, int64 j, uint8 u) => (float y, bool b, double e, bfloat16 i, "
    "float16 k, int64 l, uint8 v) {\n  a0 = Neg(x)\n";
  std::istringstream unary(
    "Abs Reciprocal Sqrt Exp Log Floor Ceil Round Sign Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh "
    "Erf Relu Sigmoid Softplus Softsign HardSwish Mish LeakyRelu<alpha=0.2> Elu<alpha=-2> Celu<alpha=2.5> "
    "Selu<gamma=1,alpha=2> HardSigmoid<beta=0.25> ThresholdedRelu<alpha=inf> Shrink<bias=nan,lambd=-inf> "
    "Swish<alpha=1.5> QuickGelu Gelu Gelu<approximate=\"tanh\"> Gelu<approximate=\"none\">");
  int last = 0;
  for (std::string call; unary >> call; ++last)
    text += "a" + std::to_string(last + 1) + " = " + call + "(a" + std::to_string(last) + ")\n";
  return text + "b1 = Add(a" + std::to_string(last) +
    ", z) b2 = Sub(1.5, b1) b3 = Mul(b2, -0) b4 = Div(b3, b3) b5 = Pow(b4, 2) b6 = Min(b5, inf)\n"
    "b7 = Max(-inf, b6) b8 = PRelu(b7, nan) b9 = Clip(b8, 0, 1e+30) n = RMSNormalization<axis=-2, epsilon=0>(b9)\n"
    "c1 = Equal(n, 0) c2 = Less(n, z) c3 = LessOrEqual(n, z) c4 = Greater(n, z) c5 = GreaterOrEqual(n, z)\n"
    "d1 = And(c1, c2) d2 = Or(d1, c3) d3 = Xor(d2, c4) d4 = Not(d3) d5 = And(d4, 1) d6 = IsNaN(n)\n"
    "d7 = IsInf<detect_positive=0, detect_negative=1>(n)\n"
    "e1 = Or(c5, d5) e2 = Or(e1, d6) b = Or(e2, d7) y = Where(c, n, 0.5) f1 = Cast<to=double>(b)\n"
    "f2 = Mod<fmod=1>(f1, d) e = Add(f2, d) i = Cast<to=bfloat16>(h) k = Cast<to=float16>(d)\n"
    "j1 = Mod(j, -9223372036854775808) j2 = BitwiseAnd(j1, 9223372036854775807) j3 = BitwiseOr(j2, 0)\n"
    "j4 = BitwiseXor(j3, +7) j5 = BitwiseNot(j4) j6 = Pow(j5, 2) l = Where(b, j6, -1)\n"
    "u1 = BitShift<direction=\"LEFT\">(u, 255) v = BitShift<direction=\"RIGHT\">(1, u1)\n}";
}

// 20,000 mutated texts: each parses or is refused with an Error, and what parses survives everything.
void TestMutations() {
  test::Random random;
  // What the mutations start from; two are refused as they stand.
  const std::string seeds[] = {
    kLayerNorm,
    Everything(),
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
  std::vector<std::string> tokens = {"\n", " ", "\"0 1\""};
  std::istringstream more(
    "( ) { } < > = => , float double x y s 1 -0 1e308 nan inf Add Where Cast b bool \"a\" to axis approximate 1e-320 "
    "Gelu -inf int8 int64 uint64 Mod BitShift fmod \"LEFT\" -9223372036854775808 18446744073709551615 -1 127");
  for (std::string token; more >> token;) tokens.push_back(token);
  size_t good = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = seeds[random(std::size(seeds))];
    for (size_t edits = 1 + random(3); edits > 0; --edits) {
      const size_t at = random(text.size() + 1);
      const size_t length = std::min(text.size() - at, random(12));
      switch (random(6)) {
        case 0: text.erase(at, length); break;
        case 1: text.insert(at, 1, char(random(256))); break;
        case 2: text.insert(at, tokens[random(tokens.size())]); break;
        case 3: text.insert(random(text.size() + 1), text.substr(at, length)); break;
        case 4:
          if (at < text.size()) text[at] = char(random(256));
          break;
        default: text.replace(at, length, tokens[random(tokens.size())]);
      }
    }
    try {
      const Program program = Program::Parse(text);
      ++good;
      const Program again = Program::Parse(program.ToString());
      CHECK_WITH(again.ToString() == program.ToString(), text);
      std::vector<uint32_t> pointwise;
      for (uint32_t i = 0; i < program.statements().size(); ++i) {
        if (!IsCore(program.statements()[i].op)) pointwise.push_back(i);
      }
      const std::string cuda = EmitCuda(program, pointwise, "  ");
      CHECK(size_t(std::count(cuda.begin(), cuda.end(), '\n')) == pointwise.size());
      CHECK_WITH(EmitCuda(again, pointwise, "  ") == cuda, text);  // of which the bits of numbers are part
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
    const Program program = Program::Parse(Whole(dtype, statements));
    std::vector<uint32_t> all(program.statements().size());
    std::iota(all.begin(), all.end(), 0);
    return EmitCuda(program, all, "  ");
  };
  const struct {
    const char *dtype, *statements;  // of Whole
    std::vector<std::string> constants;
  } cases[] = {
    // Literals have exactly the bits of their dtype's value.
    {"float", "y = Add(x, 0.1)", {"float v2 = op_Add(v0, 0x1.99999ap-4f)"}},
    {"float16", "y = Add(x, 0.1)", {"float v2 = op_Add(v0, 0x1.998p-4f)"}},
    {"bfloat16", "y = Add(x, 0.1)", {"float v2 = op_Add(v0, 0x1.9ap-4f)"}},
    {"double", "y = Add(x, 0.1)", {"double v2 = op_Add(v0, 0x1.999999999999ap-4)"}},
    {"float", "y = Clip(x, -0, 3)", {"float v3 = op_Clip(v0, -0x0p+0f, 0x1.8p+1f)"}},
    {"float", "y = Sub(1e-45, x)", {"float v2 = op_Sub(0x1p-149f, v0)"}},
    {"float", "y = Clip(x, -inf, nan)",
      {"float v3 = op_Clip(v0, -__int_as_float(0x7f800000), __int_as_float(0x7fc00000))"}},
    {"double", "y = Clip(x, inf, nan)",
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
    {"float", "z = Gelu(x) y = Gelu<approximate=\"tanh\">(z)",
      {"float v1 = op_Gelu(v0, false)", "float v2 = op_Gelu(v1, true)"}},
    // What 16 bits have a cheaper form of; a float that is cast to them is none.
    {"float16", "z = Gelu(x) y = Gelu<approximate=\"tanh\">(z)",
      {"float v1 = op_Gelu16(v0, false)", "float v2 = op_Gelu16(v1, true)"}},
    {"float16", "a = Sigmoid(x) b = Swish<alpha=2>(a) y = QuickGelu<alpha=1>(b)",
      {"float v1 = op_Sigmoid16(v0)", "float v2 = op_Swish16(v1, 0x1p+1f)", "float v3 = op_QuickGelu16(v2, 0x1p+0f)"}},
    // 1.414 is 0x1.6ap+0 in float16, and 0.7071 is 0x1.6ap-1.
    {"float16", "a = Div(x, 1.41421356) b = Erf(a) y = Add(b, 1)",
      {"float v2 = op_Div(v0, 0x1.6ap+0f)", "float v3 = op_Erf(v2)", "float v5 = op_OnePlusErf16(v0, 0x1.0007p+0f)"}},
    {"", "(bfloat16 x) => (float16 y) { z = Gelu(x) y = Cast<to=float16>(z) }",
      {"float v1 = op_GeluB16(v0, false)", "float v2 = op_CastFloat16(v1)"}},
    {"bfloat16", "a = Sigmoid(x) b = Swish<alpha=2>(a) c = QuickGelu<alpha=1>(b) d = Erf(c) y = Add(d, 1)",
      {"float v1 = op_SigmoidB16(v0)", "float v2 = op_SwishB16(v1, 0x1p+1f)", "float v3 = op_QuickGeluB16(v2, 0x1p+0f)",
        "float v4 = op_Erf(v3)", "float v6 = op_OnePlusErfB16(v3, 0x1.6a09e6p+0f)"}},
    {"",
      "(double x, bool c) => (bool f, bfloat16 g, float h, double i) { a = Cast<to=float16>(x) f = "
      "Cast<to=bool>(a) g "
      "= Cast<to=bfloat16>(c) h = Cast<to=float>(g) j = Less(x, 1) i = Where(j, x, 0) }",
      {"float v2 = op_CastFloat16(v0)", "bool v3 = op_CastBool(v2)", "float v4 = op_CastBFloat16(v1)",
        "float v5 = op_CastFloat(v4)", "bool v7 = op_Less(v0, 0x1p+0)", "double v9 = op_Where(v7, v0, 0x0p+0)"}},
    {"", "(float x) => (double y) { y = Cast<to=double>(x) }", {"double v1 = op_CastDouble(v0)"}},
    // Integers keep their type and all their bits.
    {"int8", "y = Add(x, -5)", {"signed char v2 = op_Add(v0, (signed char)-5ll)"}},
    {"uint32", "y = Clip(x, 4294967295, 0)",
      {"unsigned int v3 = op_Clip(v0, (unsigned int)4294967295ull, (unsigned int)0ull)"}},
    {"int64", "y = Clip(x, -9223372036854775808, 9223372036854775807)",
      {"long long v3 = op_Clip(v0, (-9223372036854775807ll - 1), (long long)9223372036854775807ll)"}},
    {"uint64", "y = BitShift<direction=\"RIGHT\">(18446744073709551615, x)",
      {"unsigned long long v2 = op_BitShift((unsigned long long)18446744073709551615ull, v0, true)"}},
    {"", "(int16 x) => (bool y) { z = Mod<fmod=1>(x, x) y = Equal(z, -32768) }",
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
  TestClosure();
  TestCuda();
  return test::Summary();
}
