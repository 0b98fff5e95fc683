// Convolutions on cuDNN as far as no GPU is needed: what is refused before the library is opened, messages of a missing
// or old library, plan texts, and programs as pointwise operations.
//
// `test_cudnn FAKE` is given the path of a library that says it is cuDNN 8. The library is opened once in a process, so
// each opening happens in a forked child, which writes the message that it got into a pipe.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/cudnn/pointwise.h"
#include "ortplugin/runtime/cudnn/problem.h"
#include "tests/native/check.h"
#include "tests/native/gpus.h"

namespace {

using namespace ortplugin;
using namespace test;
using cudnn::Direction;
using cudnn::PlanText;
using cudnn::PointwiseGraph;
using cudnn::PointwiseNode;
using cudnn::PointwiseOperand;
using cudnn::Problem;
using Kind = PointwiseOperand::Kind;
using Mode = cudnn::abi::PointwiseMode;

std::string MessageInChild(const char* path) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    setenv("ORTPLUGIN_CUDNN", path, 1);
    const std::string message = ErrorOf([] { cudnn::Version(); });
    const ssize_t written = write(ends[1], message.data(), message.size());
    _exit(written == ssize_t(message.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string message;
  char buffer[512];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) message.append(buffer, size_t(count));
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  return message;
}

void TestOpening(const char* fake) {
  const std::string missing = MessageInChild("/no/such/libcudnn.so.9");
  CHECK_WITH(Contains(missing, "pip install nvidia-cudnn-cu13") && Contains(missing, "/no/such/libcudnn.so.9") &&
      Contains(missing, "ORTPLUGIN_CUDNN"),
    missing);
  const std::string old = MessageInChild(fake);
  CHECK_WITH(Contains(old, "need cuDNN 9") && Contains(old, "cuDNN 8.9.7"), old);
}

void TestLayouts() {
  CHECK(cudnn::ChannelsFirst({2, 3, 4, 5}).strides == std::vector<int64_t>{60, 20, 5, 1});
  CHECK(cudnn::ChannelsLast({2, 3, 4, 5}).strides == std::vector<int64_t>{60, 1, 15, 3});
  CHECK(cudnn::ChannelsLast({1, 7, 1}).strides == std::vector<int64_t>{7, 1, 7});
  CHECK(cudnn::ChannelsLast({2, 3, 4, 5, 6}).strides == std::vector<int64_t>{360, 1, 90, 18, 3});
}

// x, w, y with the layouts that the letters say: 'f'irst or 'l'ast.
Problem Arrangement(std::vector<int64_t> x, std::vector<int64_t> w, std::vector<int64_t> y, const char* layouts) {
  const auto tensor = [&](std::vector<int64_t> dims, size_t i) {
    return layouts[i] == 'f' ? cudnn::ChannelsFirst(std::move(dims)) : cudnn::ChannelsLast(std::move(dims));
  };
  Problem problem;
  problem.x = tensor(std::move(x), 0);
  problem.w = tensor(std::move(w), 1);
  problem.y = tensor(std::move(y), 2);
  problem.operands = {tensor({1, problem.y.dims[1], 1, 1}, 2)};
  problem.results = {problem.y};
  return problem;
}

void TestOneLayout() {
  struct Case {
    std::vector<int64_t> x, w, y;
    const char* layouts;
    bool is_taken, changes;
  };
  const Case cases[] = {
    {{4, 16, 5, 5}, {24, 16, 1, 1}, {4, 24, 5, 5}, "fff", true, false},  // no image of one pixel
    {{4, 16, 5, 5}, {24, 16, 3, 3}, {4, 24, 5, 5}, "lll", true, false},
    {{4, 16, 1, 1}, {24, 16, 1, 1}, {4, 24, 1, 1}, "fff", true, true},  // all lie in memory as channels last
    {{4, 16, 1, 1}, {24, 16, 1, 1}, {4, 24, 1, 1}, "lll", true, false},
    {{4, 16, 1, 1}, {24, 16, 3, 3}, {4, 24, 1, 1}, "fff", false, false},
    {{4, 16, 3, 3}, {24, 16, 3, 3}, {4, 24, 1, 1}, "fff", false, false},
    {{4, 16, 1, 1}, {24, 16, 1, 1}, {4, 24, 3, 3}, "fff", false, false},  // pads
    {{4, 16, 3, 3}, {24, 16, 3, 3}, {4, 24, 1, 1}, "lll", true, false},
    {{4, 1, 3, 3}, {24, 1, 3, 3}, {4, 24, 1, 1}, "fff", true, true},  // one channel: likewise
    {{4, 16, 1, 7}, {24, 16, 1, 7}, {4, 24, 1, 1}, "fff", false, false},
  };
  for (const Case& each : cases) {
    const Problem given = Arrangement(each.x, each.w, each.y, each.layouts);
    const std::optional<Problem> found = cudnn::InOneLayout(given);
    CHECK_WITH(found.has_value() == each.is_taken, given.ToString());
    if (!found) continue;
    CHECK_WITH((cudnn::Signature(*found) != cudnn::Signature(given)) == each.changes, given.ToString());
    if (each.changes) CHECK(cudnn::Signature(*found) == cudnn::Signature(Arrangement(each.x, each.w, each.y, "lll")));
  }
}

Problem Good() {
  Problem problem;
  problem.dtype = DType::kFloat16;
  problem.x = cudnn::ChannelsLast({2, 8, 9, 7});
  problem.w = cudnn::ChannelsLast({6, 4, 3, 2});
  problem.y = cudnn::ChannelsLast({2, 6, 5, 4});
  problem.pads_begin = {1, 0};
  problem.pads_end = {2, 1};
  problem.strides = {2, 2};
  problem.dilations = {1, 1};
  problem.groups = 2;
  return problem;
}

void Epilogue(Problem* problem, const char* program, const std::vector<std::vector<int64_t>>& operands) {
  problem->program = std::make_shared<const Program>(Program::Parse(program));
  for (const std::vector<int64_t>& dims : operands) problem->operands.push_back(cudnn::ChannelsLast(dims));
  problem->results.assign(problem->program->results().size(), problem->y);
}

constexpr char kBiasRelu[] = "(float16 c, float16 b) => (float16 y) { s = Add(c, b) y = Relu(s) }";

void TestProblems() {
  const auto message = [](const std::function<void(Problem*)>& change) {
    Problem problem = Good();
    change(&problem);
    return ErrorOf([&] { Check(problem); });
  };
  CHECK(message([](Problem*) {}).empty());
  for (const Direction direction : {Direction::kDataGradient, Direction::kWeightGradient})
    CHECK(message([&](Problem* problem) { problem->direction = direction; }).empty());
  CHECK(message([](Problem* problem) { Epilogue(problem, kBiasRelu, {{1, 6, 1, 1}}); }).empty());

  struct Case {
    std::function<void(Problem*)> change;
    const char* words;
  };
  const Case cases[] = {
    {[](Problem* p) { p->dtype = DType::kInt32; }, "a convolution of int32"},
    {[](Problem* p) { p->x.dims.pop_back(); }, "x has 3 dims and 4 strides"},
    {[](Problem* p) { p->x = p->w = p->y = cudnn::ChannelsFirst({2, 8}); }, "x has 2 dims, expected 3 to 5"},
    {[](Problem* p) { p->w.dims[2] = 0; }, "w is [6,4,0,2]"},
    {[](Problem* p) { p->x.strides[1] = -1; }, "must be positive"},
    {[](Problem* p) { p->groups = 0; }, "groups are 0"},
    {[](Problem* p) { p->groups = 4; }, "do not fit together with 4 groups"},
    {[](Problem* p) { p->y.dims[1] = 8; }, "do not fit together"},
    {[](Problem* p) { p->y.dims[3] = 5; }, "y has 5 elements along spatial axis 1, expected 4"},
    {[](Problem* p) { p->w.dims[2] = 20; }, "expected 0"},
    {[](Problem* p) { p->pads_begin[0] = -1; }, "pads -1 and 2"},
    {[](Problem* p) { p->strides[1] = 0; }, "stride 0"},
    {[](Problem* p) { p->dilations.push_back(1); }, "dilations for 3"},
    {[](Problem* p) { p->alignment = 3; }, "aligned to 3 bytes, expected a multiple of 2"},
    {[](Problem* p) { p->results.push_back(p->y); }, "without an epilogue"},
    {[](Problem* p) { Epilogue(p, kBiasRelu, {}); }, "0 operands after the convolution's value"},
    {[](Problem* p) { Epilogue(p, kBiasRelu, {{1, 5, 1, 1}}); }, "[1,5,1,1] does not broadcast to [2,6,5,4]"},
    {[](Problem* p) { Epilogue(p, kBiasRelu, {{6}}); }, "operand has 1 dims"},
    {[](Problem* p) {
       Epilogue(p, kBiasRelu, {{1, 6, 1, 1}});
       p->results[0] = cudnn::ChannelsLast({2, 6, 5, 1});
     },
      "result is [2,6,5,1], expected [2,6,5,4]"},
    {[](Problem* p) { Epilogue(p, "(float c) => (float y) { y = Relu(c) }", {}); }, "first parameter is float"},
  };
  for (const Case& each : cases) {
    const std::string got = message(each.change);
    CHECK_WITH(Contains(got, each.words), got + " lacks " + each.words);
  }
  const std::string text = Good().ToString();
  CHECK_WITH(Contains(text, "float16") && Contains(text, "[2,8,9,7]") && Contains(text, "groups 2"), text);
}

// Which strided data gradients are done without their epilogue.
void TestSlowGradients() {
  const auto is_slow = [](int64_t batch, int64_t channels, int64_t small, int64_t given, int64_t kernel,
                         int64_t stride) {
    Problem problem;
    problem.direction = Direction::kDataGradient;
    problem.x = cudnn::ChannelsLast({batch, channels, small * stride, small * stride});
    problem.w = cudnn::ChannelsLast({given, channels, kernel, kernel});
    problem.y = cudnn::ChannelsLast({batch, given, small, small});
    problem.strides = {stride, stride};
    return cudnn::IsSlowWithEpilogue(problem, FindTarget(H200())->limits);
  };
  CHECK(is_slow(256, 128, 28, 128, 3, 2));  // many FLOPs
  CHECK(!is_slow(8, 128, 28, 128, 3, 2));  // few
  CHECK(!is_slow(256, 128, 28, 128, 3, 1));  // no stride
  CHECK(is_slow(8, 512, 7, 512, 3, 2));  // long sums
  CHECK(is_slow(64, 64, 16, 128, 4, 2));  // half a tile
  CHECK(!is_slow(64, 128, 8, 256, 4, 2));
  CHECK(!is_slow(256, 256, 28, 512, 1, 2) && !is_slow(256, 64, 64, 128, 2, 2));  // no overlap
  Problem forward = Good();
  CHECK(!cudnn::IsSlowWithEpilogue(forward, FindTarget(H200())->limits));
}

// A data gradient, or a forward convolution, of float16 with channels last.
Problem Layer(
  Direction direction, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t kernel, int64_t stride) {
  Problem problem;
  problem.direction = direction;
  problem.dtype = DType::kFloat16;
  problem.x = cudnn::ChannelsLast({batch, channels, size, size});
  problem.w = cudnn::ChannelsLast({filters, channels, kernel, kernel});
  problem.y = cudnn::ChannelsLast({batch, filters, size / stride, size / stride});
  problem.pads_begin = problem.pads_end = {kernel / 2, kernel / 2};
  if (stride > 1) problem.pads_end = {kernel / 2 - 1, kernel / 2 - 1};
  problem.strides = {stride, stride};
  problem.dilations = {1, 1};
  Check(problem);
  return problem;
}

void TestIdentities() {
  const Direction forward = Direction::kForward, gradient = Direction::kDataGradient;
  struct Case {
    Problem problem;
    bool is_faster;
  };
  std::vector<Case> cases = {
    {Layer(gradient, 8, 56, 64, 64, 3, 1), true},
    {Layer(gradient, 1, 28, 128, 128, 3, 1), true},
    {Layer(gradient, 128, 28, 32, 128, 3, 1), true},
    {Layer(gradient, 128, 56, 32, 128, 3, 1), false},  // too many FLOPs
    {Layer(gradient, 1, 7, 512, 512, 3, 1), false},  // long sums
    {Layer(gradient, 32, 14, 256, 256, 3, 1), true},  // long, but of many elements
    {Layer(gradient, 8, 14, 1024, 512, 1, 1), false},  // one element
    {Layer(gradient, 8, 56, 128, 128, 3, 2), false},
    {Layer(gradient, 8, 56, 8, 64, 3, 1), false},
    {Layer(forward, 8, 56, 64, 64, 3, 1), true},
    {Layer(forward, 1, 56, 64, 64, 3, 1), false},  // too few FLOPs
    {Layer(forward, 128, 56, 64, 64, 3, 1), false},
    {Layer(Direction::kWeightGradient, 8, 56, 64, 64, 3, 1), false},
  };
  const Problem fast = cases[0].problem;
  const auto add = [&](const std::function<void(Problem*)>& change) {
    cases.push_back({fast, false});
    change(&cases.back().problem);
    Check(cases.back().problem);
  };
  add([](Problem* problem) { *problem = cudnn::WithIdentity(*problem); });
  add([](Problem* problem) { problem->dtype = DType::kFloat; });
  add([](Problem* problem) { problem->x = cudnn::ChannelsFirst(problem->x.dims); });
  add([](Problem* problem) {
    problem->groups = 2;
    problem->w = cudnn::ChannelsLast({64, 32, 3, 3});
  });
  for (const Case& each : cases)
    CHECK_WITH(
      cudnn::IsFasterWithIdentity(each.problem, FindTarget(H200())->limits, H200().multiprocessors) == each.is_faster,
      each.problem.ToString());

  CHECK(cudnn::TakesIdentity(fast) && !cudnn::HasIdentity(fast));
  const Problem identity = cudnn::WithIdentity(fast);
  CHECK(!cudnn::TakesIdentity(identity) && cudnn::HasIdentity(identity));
  CHECK(identity.results.size() == 1 && identity.results[0].strides == fast.x.strides);
  std::string why;
  CHECK(cudnn::MapProgram(*identity.program, &why).value().nodes.at(0).mode == Mode::kIdentity);
}

void TestRotated() {
  Problem gradient = Layer(Direction::kDataGradient, 2, 9, 24, 40, 3, 1);
  gradient.pads_begin = {0, 1};  // of 3 by 3: y is 9 by 9 with these
  gradient.pads_end = {2, 1};
  Check(gradient);
  const std::optional<Problem> turned = cudnn::Rotated180(gradient);
  CHECK(turned.has_value());
  Check(*turned);
  CHECK(turned->direction == Direction::kForward && turned->x.dims == gradient.y.dims);
  CHECK(turned->y.dims == gradient.x.dims && turned->w.dims == std::vector<int64_t>({24, 40, 3, 3}));
  CHECK(turned->w.strides == cudnn::ChannelsLast({24, 40, 3, 3}).strides);
  CHECK(turned->pads_begin == std::vector<int64_t>({2, 1}) && turned->pads_end == std::vector<int64_t>({0, 1}));
  CHECK(!cudnn::Rotated180(*turned));
  CHECK(!cudnn::Rotated180(Layer(Direction::kDataGradient, 2, 8, 24, 40, 3, 2)));
  gradient.pads_begin = {3, 3};  // cut off more than the kernel adds
  CHECK(!cudnn::Rotated180(gradient));
}

void TestPlanTexts() {
  for (const char* text :
    {"engine=0", "engine=52;k2=5", "engine=7;k2=0;k13=1;k24=-1", "engine=4;identity", "engine=4;k24=1;identity"}) {
    const PlanText plan = PlanText::Parse(text);
    CHECK(plan.ToString() == text && plan.has_identity == Contains(text, "identity"));
  }
  const PlanText plan = PlanText::Parse("engine=10;k2=5;k14=3");
  CHECK(plan.engine == 10 && plan.knobs == std::vector<std::pair<int64_t, int64_t>>{{2, 5}, {14, 3}});
  std::string long_text = "engine=1", many = "engine=1";
  for (int knob = 0; knob < 65; ++knob) many += ";k" + std::to_string(knob) + "=1";
  long_text.append(3000, ' ');
  std::vector<std::string> wrong = {"", " engine=1", "engine=1 ", std::string("engine=1\0", 9), long_text, many};
  std::istringstream words(
    "auto engine engine= engine=-1 engine=x engine=1; engine=1;k engine=1;k2 engine=1;k2= engine=1;k2=x "
    "engine=1;k2=1; "
    "engine=1;k2=1;k2=2 engine=1;k3=1;k2=2 engine=1;k-1=2 engine=99999999999999999999 "
    "engine=1;k2=99999999999999999999 Engine=1 engine=1;identity;k2=1 engine=1;identity;identity engine=1;Identity");
  for (std::string word; words >> word;) wrong.push_back(word);
  for (const std::string& text : wrong) {
    const std::string got = ErrorOf([&] { PlanText::Parse(text); });
    CHECK_WITH(Contains(got, "is not valid: expected"), "\"" + text + "\" gives \"" + got + "\"");
  }
}

// "Add(c, p1) Relu(#0)": modes by number, operands, and the result that a node writes.
std::string Shown(const PointwiseGraph& graph) {
  std::string text;
  const auto show = [&](const PointwiseOperand& operand) {
    switch (operand.kind) {
      case Kind::kConvolution: return std::string("c");
      case Kind::kParameter: return "p" + std::to_string(operand.index);
      case Kind::kScalar: {
        std::string number = std::to_string(graph.scalars[operand.index]);
        return number.substr(0, number.find('.') + 3);
      }
      case Kind::kNode: return "#" + std::to_string(operand.index);
      default: return std::string();
    }
  };
  for (const PointwiseNode& node : graph.nodes) {
    text += (text.empty() ? "" : " ") + std::to_string(int(node.mode)) + "(" + show(node.x);
    if (node.b.kind != Kind::kNone) text += "," + show(node.b);
    if (node.t.kind != Kind::kNone) text += ";" + show(node.t);
    for (const auto& [name, number] : node.attributes)
      text += "|" + std::to_string(name) + "=" + std::to_string(number).substr(0, 4);
    text += ")";
    if (node.dtype == DType::kBool) text += "?";
    if (node.result >= 0) text += "!" + std::to_string(node.result) + NameOf(node.dtype);
  }
  return text;
}

void TestResultsThatMayBeLost() {
  const auto may_lose = [](const std::string& program) {
    Problem problem;
    problem.dtype = DType::kFloat16;
    problem.program = std::make_shared<const Program>(Program::Parse(program));
    return cudnn::MayLoseResult(problem);
  };
  const std::string value = "y = Cast<to=float>(c) ", other = "m = Neg(c) n = Cast<to=float>(m) ";
  CHECK(may_lose("(float16 c) => (float y, float n) { " + value + other + "}"));
  CHECK(may_lose("(float16 c) => (float n, float y) { " + value + other + "}"));
  CHECK(may_lose("(float16 c) => (float16 c, float n) { " + other + "}"));
  CHECK(may_lose("(float16 c) => (float y, float16 m) { " + value + "m = Neg(c) }"));
  CHECK(!may_lose("(float16 c) => (float16 c, float16 m) { m = Neg(c) }"));
  CHECK(!may_lose("(float16 c) => (float y) { " + value + "}"));
  CHECK(!may_lose("(float16 c) => (float n, float16 m) { " + other + "}"));
  // In fp32 one that is read again.
  CHECK(may_lose("(float c, float b) => (float s, float y) { s = Add(c, b) y = Relu(s) }"));
  CHECK(
    may_lose("(float16 c, float b) => (float16 y, float s) { a = Cast<to=float>(c) s = Add(a, b) d = Neg(s) "
             "y = Cast<to=float16>(d) }"));
  CHECK(!may_lose("(float c, float b) => (float s, float y) { s = Add(c, b) y = Sub(c, b) }"));
  CHECK(!may_lose("(float16 c, float16 b) => (float16 s, float16 y) { s = Add(c, b) y = Relu(s) }"));
}

void TestFactorsThatMayBeCut() {
  const auto may_cut = [](DType dtype, Direction direction, const char* plan) {
    Problem problem;
    problem.dtype = dtype;
    problem.direction = direction;
    return cudnn::MayCutFactors(problem, PlanText::Parse(plan));
  };
  CHECK(may_cut(DType::kFloat, Direction::kForward, "engine=7;k24=29"));
  CHECK(may_cut(DType::kFloat, Direction::kForward, "engine=7;k2=1;k24=26"));
  CHECK(!may_cut(DType::kFloat, Direction::kForward, "engine=7"));
  CHECK(!may_cut(DType::kFloat, Direction::kForward, "engine=7;k24=21"));
  CHECK(!may_cut(DType::kFloat, Direction::kForward, "engine=4;k24=29"));
  CHECK(!may_cut(DType::kFloat16, Direction::kForward, "engine=7;k24=29"));
  CHECK(!may_cut(DType::kFloat, Direction::kDataGradient, "engine=7;k24=29"));
}

void TestEpiloguesWithoutTensorCores() {
  CHECK(cudnn::IsSlowWithoutTensorCores(DType::kFloat, true));
  CHECK(!cudnn::IsSlowWithoutTensorCores(DType::kFloat, false));  // bias, residual and Relu
  CHECK(cudnn::IsSlowWithoutTensorCores(DType::kFloat16, false));
  CHECK(!cudnn::IsSlowWithoutTensorCores(DType::kBFloat16, true));
  CHECK(!cudnn::IsSlowWithoutTensorCores(DType::kDouble, false));
  CHECK(!cudnn::IsSlowWithoutTensorCores(DType::kDouble, true));
}

void TestPrograms() {
  const auto mapped = [](const std::string& signature, const std::string& body) {
    const Program program = Program::Parse(signature + " {" + body + "}");
    std::string why;
    const std::optional<PointwiseGraph> graph = cudnn::MapProgram(program, &why);
    CHECK(graph.has_value() == cudnn::RefusalOf(program).empty());
    return graph ? Shown(*graph) : "refused: " + why;
  };
  const std::string one = "(float16 c) => (float16 y)", two = "(float16 c, float16 b) => (float16 y)";
  const std::string single = "(float c) => (float y)";
  struct Case {
    std::string signature;
    const char *body, *expected;
  };
  // The numbers are cuDNN's: 0 Add, 1 Mul, 2 Min, 3 Max, 9 Sub, 21 Identity, 100 Relu, 304 Less, 601 select, ...
  const Case cases[] = {
    {two, "s = Add(c, b) y = Relu(s)", "0(c,p1) 100(#0)!0float16"},
    {two, "s = Add(b, c) y = Relu(s)", "0(c,p1) 100(#0)!0float16"},  // the convolution first
    {two, "y = Sub(b, c)", "9(p1,c)!0float16"},  // which does not commute
    {two, "s = Sigmoid(b) y = Mul(s, c)", "102(p1) 1(#0,c)!0float16"},
    {one, "y = Sub(1, c)", "9(1.00,c)!0float16"},
    {one, "y = Clip(c, 0, 6)", "100(c) 2(#0,6.00) 301(c,c)? 601(c,#1;#2)!0float16"},
    {one, "y = Clip(c, 0, inf)", "100(c)!0float16"},
    {one, "y = Clip(c, -1, 1)", "3(c,-1.00) 2(#0,1.00) 301(c,c)? 601(c,#1;#2)!0float16"},
    {one, "y = Pow(c, 2)", "1(c,c)!0float16"},
    {one, "y = Pow(c, 3)", "1(c,c) 1(#0,c)!0float16"},
    {one, "y = Max(0.5, c)", "3(c,0.50) 301(c,c)? 601(c,#0;#1)!0float16"},
    {two, "y = Min(c, b)", "2(c,p1) 301(c,c)? 601(c,#0;#1) 301(p1,p1)? 601(p1,#2;#3)!0float16"},
    {one, "y = HardSigmoid(c)", "1(c,0.20) 0(#0,0.50) 100(#1) 2(#2,1.00) 301(#1,#1)? 601(#1,#3;#4)!0float16"},
    {one, "y = Tanh(c)", "101(c)!0float16"},
    {one, "y = LeakyRelu<alpha=0.25>(c)", "100(c|5=0.25)!0float16"},
    {one, "y = Elu<alpha=0.5>(c)", "103(c|6=0.50)!0float16"},
    {one, "y = Swish(c)", "106(c|8=1.00)!0float16"},
    {one, "y = QuickGelu<alpha=1.5>(c)", "106(c|8=1.50)!0float16"},
    {one, "y = Gelu(c)", "104(c)!0float16"},
    {one, "y = Gelu<approximate=\"tanh\">(c)", "107(c)!0float16"},
    {one, "y = HardSwish(c)", "1(c,0.16) 0(#0,0.50) 100(#1) 2(#2,1.00) 1(c,#3)!0float16"},
    {two, "y = PRelu(c, b)", "304(c,0.00)? 1(c,p1) 601(#1,c;#0)!0float16"},
    {two, "g = Greater(c, b) y = Where(g, c, b)", "302(c,p1)? 601(c,p1;#0)!0float16"},
    {one, "g = IsNaN(c) y = Where(g, 0, c)", "301(c,c)? 601(0.00,c;#0)!0float16"},
    {"(float16 c) => (float y)", "y = Cast<to=float>(c)", "21(c)!0float"},
    {one, "w = Cast<to=float>(c) r = Relu(w) y = Cast<to=float16>(r)", "100(c)!0float16"},
    {"(float16 c) => (float16 y, float16 z)", "y = Neg(c) z = Exp(y)", "16(c) 13(#0)!1float16 21(#0)!0float16"},
    {"(double c, double b) => (double y)", "y = Add(c, b)", "0(c,p1)!0double"},
    {one, "y = Round(c)", "refused: Round"},
    {one, "y = Sin(c)", "refused: Sin"},
    {one, "y = Pow(c, 0.5)", "refused: Pow with an exponent that is not 2 or 3"},
    {two, "y = Clip(c, b, 1)", "refused: Clip with bounds that vary"},
    {single, "y = Tanh(c)", "refused: Tanh with more than 17 bits"},
    {one, "y = ThresholdedRelu(c)", "refused: ThresholdedRelu"},
    {single, "h = Cast<to=float16>(c) w = Cast<to=float>(h) y = Relu(w)",
      "refused: Cast to float16 of a value that is used further"},
    {single, "i = Cast<to=int32>(c) y = Cast<to=float>(i)", "refused: Cast from float to int32"},
    {"(float16 c, bool m) => (float16 y)", "y = Where(m, c, 0)", "refused: an operand of dtype bool"},
    {"(float16 c) => (bool y)", "y = Greater(c, 0)", "refused: a result of dtype bool"},
    {"(float c) => (double y)", "d = Cast<to=double>(c) y = Exp(d)",
      "refused: arithmetic in float64 after a convolution in fp32"},
    {"(float c) => (double y)", "y = Cast<to=double>(c)", "refused: a result in float64 after a convolution in fp32"},
    {"(float16 c, float16 b) => (double y, float16 r)", "s = Add(c, b) y = Cast<to=double>(s) r = Relu(s)",
      "refused: a result in float64 after a convolution in fp32"},
  };
  for (const Case& each : cases) {
    const std::string got = mapped(each.signature, each.body);
    CHECK_WITH(got == each.expected, std::string(each.body) + " gives " + got + ", expected " + each.expected);
  }
  CHECK(mapped("(float16 c) => (float16 c)", "") == "21(c)!0float16");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::printf("usage: test_cudnn FAKE_CUDNN\n");
    return 2;
  }
  TestOpening(argv[1]);
  TestLayouts();
  TestOneLayout();
  TestProblems();
  TestSlowGradients();
  TestPlanTexts();
  TestIdentities();
  TestRotated();
  TestPrograms();
  TestResultsThatMayBeLost();
  TestFactorsThatMayBeCut();
  TestEpiloguesWithoutTensorCores();
  return Summary();
}
