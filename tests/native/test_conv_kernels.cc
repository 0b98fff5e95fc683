// Our engines of FusedConv: no spills.

#include <array>
#include <functional>

#include "ortplugin/ops/conv/engines/engine.h"
#include "ortplugin/ops/conv/engines/pixel_shuffle.h"
#include "tests/native/kernel_main.h"
#include "tests/native/square_conv.h"

using namespace ortplugin;
using namespace test;

namespace {

const char* const kSilu = "(float16 c, float16 b) => (float16 y) {\n  s = Add(c, b)\n  y = Swish(s)\n}";
// Two results, a residual, a scale of each image's channels, an operand of each row, mixed dtypes.
const char* const kMixed =
  "(bfloat16 c, bfloat16 b, bfloat16 r, float g, bfloat16 e) => (bfloat16 y, float z) {\n  s = Add(c, b)\n"
  "  t = Add(s, r)\n  u = Relu(t)\n  z = Cast<to=float>(u)\n  v = Mul(z, g)\n  w = Cast<to=bfloat16>(v)\n"
  "  y = Add(w, e)\n}";

struct Case {
  const char* program;
  Contraction problem;
};

Contraction Square(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t group,
  int64_t kernel, int64_t stride) {
  const int64_t pad = stride == kernel ? 0 : (kernel - 1) / 2, out = (size + 2 * pad - kernel) / stride + 1;
  Contraction problem = SquareConv(dtype, false, batch, size, channels, filters, kernel, stride, pad, out);
  problem.groups = group;
  problem.operands = {{filters}};
  if (dtype == DType::kBFloat16)
    problem.operands = {{filters}, problem.result(), {batch, 1, 1, filters}, {problem.rows().out, 1, 1}};
  return problem;
}

const char* ProgramOf(DType dtype) {
  return dtype == DType::kFloat16 ? kSilu : dtype == DType::kFloat ? kFloatRelu : kMixed;
}

std::vector<Case> Cases() {
  constexpr DType kHalf = DType::kFloat16, kBrain = DType::kBFloat16, kFloat = DType::kFloat;
  std::vector<Case> cases;
  const auto depthwise = [&](
                           DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t kernel, int64_t stride) {
    cases.push_back({ProgramOf(dtype), Square(dtype, batch, size, channels, channels, channels, kernel, stride)});
  };
  depthwise(kHalf, 8, 112, 32, 3, 1);
  depthwise(kHalf, 8, 112, 96, 3, 2);
  depthwise(kHalf, 1, 14, 480, 3, 1);
  depthwise(kHalf, 8, 28, 240, 5, 1);
  depthwise(kHalf, 1, 7, 958, 5, 1);
  depthwise(kFloat, 8, 56, 96, 7, 1);
  depthwise(kBrain, 8, 7, 768, 7, 1);
  depthwise(kHalf, 8, 14, 304, 9, 1);
  depthwise(kFloat, 8, 28, 32, 11, 1);
  depthwise(kHalf, 8, 28, 75, 1, 2);
  // Bands, a dilation, several filters for a channel.
  const auto any = [&](DType dtype, int64_t rows, int64_t columns, int64_t dilation, int64_t multiplier) {
    Contraction problem = Square(dtype, 8, 28, 48, 48 * multiplier, 48, 1, 1);
    for (const int64_t axis : {0, 1}) {
      Window& window = problem.windows[axis];
      window.kernel = axis == 0 ? rows : columns;
      window.dilation = dilation;
      window.pad_begin = (window.extent() - 1) / 2;
    }
    cases.push_back({ProgramOf(dtype), problem});
  };
  any(kHalf, 1, 11, 1, 1);
  any(kFloat, 11, 1, 1, 1);
  any(kBrain, 5, 1, 1, 2);
  any(kHalf, 3, 3, 6, 3);
  any(kFloat, 7, 7, 1, 4);
  // The images of networks, channels last and first.
  const auto stem = [&](DType dtype, int64_t filters, int64_t kernel, int64_t stride, bool channels_first) {
    Contraction problem = Square(dtype, 8, 224, 3, filters, 1, kernel, stride);
    problem.x_channels_first = channels_first;
    cases.push_back({ProgramOf(dtype), problem});
  };
  stem(kHalf, 64, 7, 2, false);
  stem(kBrain, 64, 7, 2, true);
  stem(kHalf, 80, 9, 4, false);
  stem(kHalf, 16, 3, 2, true);
  stem(kBrain, 32, 3, 2, false);
  stem(kHalf, 96, 4, 4, true);
  for (const bool first : {true, false}) {  // by pairs
    stem(kHalf, 64, 3, 1, first);
    stem(kBrain, 16, 7, 1, first);
    stem(kHalf, 32, 3, 3, first);
  }
  // Pooled vectors.
  const auto vectors = [&](DType dtype, int64_t batch, int64_t channels, int64_t filters) {
    cases.push_back({ProgramOf(dtype), Square(dtype, batch, 1, channels, filters, 1, 1, 1)});
  };
  vectors(kHalf, 1, 24, 96);
  vectors(kHalf, 8, 1280, 200);
  vectors(kHalf, 1, 3072, 768);  // long ones, of which several warps have a part
  vectors(kBrain, 2, 2048, 512);
  vectors(kFloat, 6, 5000, 77);
  vectors(kBrain, 8, 1152, 48);
  vectors(kFloat, 3, 130, 77);
  // With a gate, one row and several.
  for (const auto& [batch, channels] : {std::array{1, 1024}, {1, 5000}, {4, 512}, {2, 520}}) {
    Contraction problem = Square(kHalf, batch, 1, channels, 776, 1, 1, 1);
    problem.gated = true;
    problem.operands = {};
    cases.push_back({"(float16 c, float16 v) => (float16 y) {\n  s = Swish(v)\n  y = Mul(s, c)\n}", problem});
  }
  for (Case& test_case : cases) test_case.problem.constant_weights = test_case.problem.batch == 8;
  return cases;
}

// Transposed convolutions without overlap.
struct Shuffle {
  const char* program;
  Shape x, w;  // channels last
  Shape strides, pads, output_padding;
  Shapes operands;
};

const Shuffle kShuffles[] = {
  {kSilu, {8, 32, 32, 256}, {256, 2, 2, 128}, {2, 2}, {}, {}, {{128}}},
  {kSilu, {8, 28, 28, 512}, {512, 1, 1, 256}, {2, 2}, {}, {1, 1}, {{256}}},
  {kFloatRelu, {2, 9, 7, 20}, {20, 1, 3, 6}, {2, 4}, {0, 1, 0, 2}, {}, {{6}}},
  {kMixed, {3, 5, 4, 16}, {16, 2, 2, 12}, {2, 2}, {}, {}, {{12}, {3, 10, 8, 12}, {3, 1, 1, 12}, {10, 1, 1}}},
};

struct Node {
  ConvNode node;
  Shapes shapes;  // of X, W and the operands
};

Node NodeOf(const Shuffle& shuffle) {
  Node made;
  made.node.attributes.transposed = made.node.attributes.channels_last = true;
  made.node.attributes.groups = 1;
  made.node.attributes.kernel_shape = {shuffle.w[1], shuffle.w[2]};
  made.node.attributes.strides = shuffle.strides;
  made.node.attributes.pads = shuffle.pads;
  made.node.attributes.output_padding = shuffle.output_padding;
  made.node.program = std::make_shared<const Program>(Program::Parse(shuffle.program));
  made.shapes = {shuffle.x, shuffle.w};
  made.shapes.insert(made.shapes.end(), shuffle.operands.begin(), shuffle.operands.end());
  return made;
}

void TestShuffles(const std::string& architecture) {
  for (const Shuffle& shuffle : kShuffles) {
    const Node given = NodeOf(shuffle);
    const Contraction contraction = given.node.Fit(given.shapes, false);
    CHECK(FitsPixelShuffle(contraction));
    const cudnn::Problem products = GemmProblem(contraction);
    cudnn::Check(products);
    CHECK(ElementCount(products.w.dims) == ElementCount(shuffle.w) &&
      ElementCount(products.y.dims) == ElementCount(shuffle.x));
    const EngineKernel kernel = PixelShuffleKernel(contraction);
    CHECK(kernel.arguments.size() == shuffle.operands.size() + 9 + contraction.program->results().size());
    Compiled compiled(kernel.source, architecture);
    compiled.Check(kernel.entry);
    if (architecture == "sm_90") compiled.CheckWaits();
  }
  // What overlaps, is dilated, in groups, or has its channels first.
  const auto fits = [](const std::function<void(Node*)>& change) {
    Node changed = NodeOf(kShuffles[0]);
    change(&changed);
    return FitsPixelShuffle(changed.node.Fit(changed.shapes, false));
  };
  CHECK(fits([](Node*) {}));
  CHECK(!fits([](Node* changed) { changed->node.attributes.strides = {2, 1}; }));
  CHECK(!fits([](Node* changed) { changed->node.attributes.dilations = {1, 2}; }));
  CHECK(!fits([](Node* changed) { changed->node.attributes.groups = 2; }));
  CHECK(!fits([](Node* changed) {
    changed->node.attributes.strides = {1, 1};
    changed->node.attributes.kernel_shape = {1, 1};
    changed->shapes[1] = {256, 1, 1, 128};
  }));
  CHECK(!fits([](Node* changed) {
    changed->node.attributes.channels_last = false;
    changed->shapes = {{8, 256, 32, 32}, {256, 128, 2, 2}, {128, 1, 1}};
  }));
}

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts& device) {
  for (const Case& test_case : Cases()) {
    const Program program = Program::Parse(test_case.program);
    const std::optional<EngineKernel> kernel = FindEngineKernel(program, test_case.problem, device, false);
    const bool is_stem = test_case.problem.groups == 1 && test_case.problem.rows().kernel > 1;
    CHECK(kernel.has_value() == (device.has_mma_m16n8k16() || !is_stem));
    if (!kernel) continue;
    CHECK(kernel->arguments.size() ==
      test_case.problem.operands.size() + 9 + test_case.problem.gated + program.results().size());
    const std::string text = Joined(architecture, " ", kernel->entry, " ", NameOf(test_case.problem.dtype()), " ",
      ToString(test_case.problem.result()), " kernel ", test_case.problem.rows().kernel, " stride ",
      test_case.problem.rows().stride, " threads ", kernel->launch.blocks, "x", kernel->launch.threads);
    if (!IsTaken(architecture, text, 3)) continue;
    Compiled compiled(kernel->source, architecture);
    compiled.Check(text);
    CHECK_WITH(Contains(compiled.code(), kernel->entry), compiled.variant());
    compiled.CheckLaunch(device, kernel->entry, kernel->launch.threads, kernel->launch.shared_bytes,
      {Defined(kernel->source, "MIN_BLOCKS", 1)});
  }
  TestShuffles(architecture);
}
