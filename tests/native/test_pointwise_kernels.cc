// The kernel of FusedPointwise, in each of the variants that a configuration can take: no spills.

#include <chrono>
#include <iostream>

#include "ortplugin/ops/pointwise/pointwise.h"
#include "tests/native/kernel_remarks.h"

using namespace ortplugin;
using namespace test;

namespace {

struct Case {
  std::string name, program;
  Shapes inputs;
  int vector;  // what the configuration must be; 0: whatever registers and code allow
  std::string modes;  // likewise, of: across, tail, wide
  int most_vector = 16;
};

const char* const kBinary = "(T x, T b) => (T y) { t = Mul(x, b) y = Add(t, 1) }";
const char* const kLerp = "(T x, T y, T w) => (T z) { d = Sub(y, x) p = Mul(w, d) z = Add(x, p) }";
const char* const kUnary = "(T x) => (T y) { t = Mul(x, 2) y = Relu(t) }";
const char* const kMixed =
  "(float16 x, float r, bool m, double d, int8 i, int64 l, bfloat16 b) => (float16 y, float s, bool c, int64 q) {\n"
  "  f = Cast<to=float>(x)\n  s = Add(f, r)\n  w = Where(m, s, r)\n  e = Cast<to=float>(d)\n  t = Mul(w, e)\n"
  "  z = Cast<to=float>(b)\n  k = Add(z, t)\n  y = Cast<to=float16>(k)\n  c = Less(t, 0.5)\n"
  "  j = Cast<to=int64>(i)\n  q = Add(j, l)\n}";
const Shape kLarge = {128, 512, 1024};

// A chain of every operator with a dtype's heaviest arithmetic.
std::string Chain(const std::string& dtype, const std::vector<std::string>& operators, int length) {
  std::string text = "(" + dtype + " x) => (" + dtype + " y) {";
  std::string value = "x";
  for (int i = 0; i < length; ++i) {
    const std::string next = i + 1 == length ? "y" : "v" + std::to_string(i);
    text += " " + next + " = " + operators[size_t(i) % operators.size()] + "(" + value + ")";
    value = next;
  }
  return text + " }";
}

// Many parameters, all of them added up, and many results, all the partial sums.
std::string Wide(const std::string& dtype, int parameters, int results) {
  std::string head = "(", tail = "(", body;
  for (int i = 0; i < parameters; ++i) head += (i ? ", " : "") + dtype + " p" + std::to_string(i);
  std::string value = "p0";
  for (int i = 1; i < parameters; ++i) {
    const std::string next = "s" + std::to_string(i);
    body += " " + next + " = Add(" + value + ", p" + std::to_string(i) + ")";
    value = next;
    if (parameters - i <= results) tail += (tail.size() > 1 ? ", " : "") + dtype + " " + next;
  }
  return head + ") => " + tail + ") {" + body + " }";
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const std::pair<std::string, int> dtypes[] = {
    {"float16", 2},
    {"bfloat16", 2},
    {"float", 4},
    {"double", 8},
    {"int8", 1},
    {"uint8", 1},
    {"int16", 2},
    {"uint16", 2},
    {"int32", 4},
    {"uint32", 4},
    {"int64", 8},
    {"uint64", 8},
  };
  for (const auto& [dtype, size] : dtypes) {
    const auto add = [&, type = dtype, vector = 16 / size](
                       const std::string& name, const char* program, const Shapes& inputs) {
      cases.push_back({name + " " + type, Typed(program, type), inputs, vector, ""});
    };
    add("unary", kUnary, {kLarge});
    add("binary", kBinary, {kLarge, kLarge});
    add("row", kBinary, {kLarge, {1024}});
    add("column", kBinary, {kLarge, {128, 512, 1}});
    add("scalar", kBinary, {kLarge, {}});
    add("middle", kBinary, {kLarge, {128, 1, 1024}});
    add("outer", kBinary, {{32768, 1}, {4096}});
  }
  for (const auto& [dtype, size] :
    std::vector<std::pair<std::string, int>>{{"float16", 2}, {"float", 4}, {"double", 8}}) {
    const int vector = 16 / size;
    const std::string across = size == 8 ? "" : "across";  // one double is an access that needs no neighbours
    const auto add = [&, type = dtype](const std::string& name, const char* program, const Shapes& inputs, int wanted,
                       const std::string& modes, int most_vector = 16) {
      cases.push_back({name + " " + type, Typed(program, type), inputs, wanted, modes, most_vector});
    };
    add("lerp", kLerp, {{16, 102400}, {16, 102400}, {1}}, vector, "");
    add("odd rows", kBinary, {{32768, 1023}, {1023}}, size == 8 ? 1 : vector, across);
    add("odd rows, odd count", kBinary, {{32769, 1023}, {32769, 1}}, size == 8 ? 1 : vector,
      size == 8 ? "" : "across tail");
    add("rows of 4", kBinary, {{8388608, 4}, {4}}, size == 8 ? 2 : 4, "");
    add("odd count", kUnary, {{33554467}}, vector, "tail");
    add("small", kUnary, {{1000}}, vector, "");
    add("smaller than a vector", kUnary, {{}}, vector, "tail");
    add("odd addresses", kBinary, {kLarge, {1024}}, 1, "", 1);
    add("huge", kBinary, {{70000, 32768, 16}, {70000, 1, 16}}, vector, "wide");
    add("huge, odd rows", kBinary, {{70001, 32767}, {32767}}, size == 8 ? 1 : vector,
      size == 8 ? "wide" : "across wide tail");
  }
  cases.push_back({"mixed", kMixed, {kLarge, {1024}, {128, 1, 1}, kLarge, {512, 1}, kLarge, {512, 1024}}, 4, ""});
  return cases;
}

std::string Modes(const PointwiseConfig& config) {
  std::string modes;
  for (const auto& [is, name] : {std::pair(config.across, "across"), {config.wide, "wide"}, {config.tail, "tail"}})
    if (is) modes += (modes.empty() ? "" : " ") + std::string(name);
  return modes;
}

// Programs that are bound by registers or by code.
std::vector<Case> HeavyCases() {
  std::vector<Case> cases;
  const std::vector<std::string> heavy = {"Sin", "Tan", "Gelu", "Mish", "Asinh", "Erf", "Tanh", "Log"};
  for (const std::string dtype : {"float16", "float", "double"})
    for (const int length : {4, 16, 64})
      cases.push_back({std::to_string(length) + " heavy " + dtype, Chain(dtype, heavy, length), {kLarge}, 0, ""});
  for (const std::string dtype : {"float16", "float", "double", "int8"}) {
    cases.push_back({"256 light " + dtype, Chain(dtype, {"Abs", "Neg", "Relu", "Sign"}, 256), {kLarge}, 0, ""});
    cases.push_back({"32 in, 16 out " + dtype, Wide(dtype, 32, 16), Shapes(32, kLarge), 0, ""});
    Shapes ways;
    for (int i = 0; i < 32; ++i)
      ways.push_back({i & 1 ? 4 : 1, i & 2 ? 9 : 1, i & 4 ? 8 : 1, i & 8 ? 7 : 1, i & 16 ? 1009 : 1});
    cases.push_back({"32 ways to broadcast " + dtype, Wide(dtype, 32, 16), ways, 0, ""});
  }
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc == 2 ? argv[1] : "";
  std::vector<Case> cases = Cases();
  for (Case& test_case : HeavyCases()) cases.push_back(std::move(test_case));
  const bool show = argument.rfind("sm_", 0) != 0;
  const DeviceFacts& gpu = show ? H200() : DeviceOf(argument);
  for (const Case& test_case : cases) {
    if (show ? test_case.name != argument : !IsTaken(argument, test_case.name)) continue;
    const Program program = ParsePointwise(test_case.program);
    const PointwiseShape shape = FitPointwise(program, test_case.inputs);
    const PointwiseConfig config = ConfigurePointwise(program, shape, gpu, test_case.most_vector);
    const std::string source = PointwiseSource(program, shape, config);
    if (show) {
      std::cout << source;
      return 0;
    }
    const auto start = std::chrono::steady_clock::now();
    Compiled compiled(source, argument);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::string text = Joined(argument, " ", test_case.name, ": vector ", config.vector, " items ", config.items,
      " modes '", Modes(config), "' tiles ", config.tiles, "x", config.threads, " seconds ", seconds);
    compiled.CheckCode(text);
    // 32 operands, each broadcast in its own way, is as much as a program can ask: two registers may lack.
    const int lacking = test_case.name.find("32 ways") == 0 ? 8 : 0;
    CHECK_WITH(Spilled(compiled.log()) <= 2 * lacking, compiled.variant());
    // Sine and its like keep a table of digits there for large arguments.
    CHECK_WITH(Local(compiled.log()) <= lacking || Contains(test_case.program, "Sin("), compiled.variant());
    compiled.CheckLaunch(gpu, "pointwise", config.threads);
    if (argument == "sm_90") compiled.CheckWaits();
    if (test_case.vector > 0) CHECK_WITH(config.vector == test_case.vector && Modes(config) == test_case.modes, text);
  }
  return Summary();
}
