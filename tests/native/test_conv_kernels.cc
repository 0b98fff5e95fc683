// Compiles our own kernels of FusedConv for a GPU architecture, and fails where the compiler spills registers to local
// memory. Needs NVRTC but no GPU.
//
//   test_conv_kernels sm_90     VERBOSE=1 shows each variant

#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv/engines/own_kernels.h"
#include "ortplugin/ops/conv/engines/pixel_shuffle.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "tests/native/check.h"
#include "tests/native/kernel_remarks.h"

using namespace ortplugin;

namespace {

const char* const kSilu = "(float16 c, float16 b) => (float16 y) {\n  s = Add(c, b)\n  y = Swish(s)\n}";
const char* const kRelu = "(float c, float b) => (float y) {\n  s = Add(c, b)\n  y = Relu(s)\n}";
// Two results, a residual, a scale of each image's channels, an operand of each row, mixed dtypes.
const char* const kMixed =
    "(bfloat16 c, bfloat16 b, bfloat16 r, float g, bfloat16 e) => (bfloat16 y, float z) {\n  s = Add(c, b)\n"
    "  t = Add(s, r)\n  u = Relu(t)\n  z = Cast<to=float>(u)\n  v = Mul(z, g)\n  w = Cast<to=bfloat16>(v)\n"
    "  y = Add(w, e)\n}";

struct Case {
  const char* program;
  ConvProblem problem;
};

ConvProblem Square(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t group,
                   int64_t kernel, int64_t stride) {
  ConvProblem problem;
  problem.dtype = dtype;
  problem.batch = batch;
  problem.height = problem.width = size;
  problem.channels = channels;
  problem.filters = filters;
  problem.group = group;
  problem.kernel_height = problem.kernel_width = kernel;
  const int64_t pad = stride == kernel ? 0 : (kernel - 1) / 2;
  problem.pads = {pad, pad, pad, pad};
  problem.strides = {stride, stride};
  problem.out_height = problem.out_width = (size + 2 * pad - kernel) / stride + 1;
  problem.operands = {{filters}};
  if (dtype == DType::kBFloat16)
    problem.operands = {{filters}, problem.output_shape(), {batch, 1, 1, filters}, {problem.out_height, 1, 1}};
  return problem;
}

const char* ProgramOf(DType dtype) {
  return dtype == DType::kFloat16 ? kSilu : dtype == DType::kFloat ? kRelu : kMixed;
}

std::vector<Case> Cases() {
  constexpr DType kHalf = DType::kFloat16, kBrain = DType::kBFloat16, kFloat = DType::kFloat;
  std::vector<Case> cases;
  const auto depthwise = [&](DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t kernel,
                             int64_t stride) {
    cases.push_back({ProgramOf(dtype), Square(dtype, batch, size, channels, channels, channels, kernel, stride)});
  };
  depthwise(kHalf, 8, 112, 32, 3, 1);
  depthwise(kHalf, 8, 112, 96, 3, 2);
  depthwise(kHalf, 1, 14, 480, 3, 1);
  depthwise(kHalf, 8, 28, 240, 5, 1);
  depthwise(kHalf, 1, 7, 958, 5, 1);
  depthwise(kFloat, 8, 56, 96, 7, 1);
  depthwise(kBrain, 8, 7, 768, 7, 1);
  // The images of networks, channels last and first.
  const auto stem = [&](DType dtype, int64_t filters, int64_t kernel, int64_t stride, bool channels_first) {
    ConvProblem problem = Square(dtype, 8, 224, 3, filters, 1, kernel, stride);
    problem.x_channels_first = channels_first;
    cases.push_back({ProgramOf(dtype), problem});
  };
  stem(kHalf, 64, 7, 2, false);
  stem(kBrain, 64, 7, 2, true);
  stem(kHalf, 80, 9, 4, false);
  stem(kHalf, 16, 3, 2, true);
  stem(kBrain, 32, 3, 2, false);
  stem(kHalf, 96, 4, 4, true);
  // Pooled vectors.
  const auto vectors = [&](DType dtype, int64_t batch, int64_t channels, int64_t filters) {
    cases.push_back({ProgramOf(dtype), Square(dtype, batch, 1, channels, filters, 1, 1, 1)});
  };
  vectors(kHalf, 1, 24, 96);
  vectors(kHalf, 8, 1280, 1000);
  vectors(kBrain, 8, 1152, 48);
  vectors(kFloat, 3, 130, 77);
  for (Case& the : cases) the.problem.constant_weights = the.problem.batch == 8;
  return cases;
}

// Transposed convolutions without overlap.
struct Shuffle {
  const char* program;
  Shape x, w;  // channels last
  Shape strides, pads, output_padding;
  std::vector<Shape> operands;
};

const Shuffle kShuffles[] = {
    {kSilu, {8, 32, 32, 256}, {256, 2, 2, 128}, {2, 2}, {}, {}, {{128}}},
    {kSilu, {8, 28, 28, 512}, {512, 1, 1, 256}, {2, 2}, {}, {1, 1}, {{256}}},
    {kRelu, {2, 9, 7, 20}, {20, 1, 3, 6}, {2, 4}, {0, 1, 0, 2}, {}, {{6}}},
    {kMixed, {3, 5, 4, 16}, {16, 2, 2, 12}, {2, 2}, {}, {}, {{12}, {3, 10, 8, 12}, {3, 1, 1, 12}, {10, 1, 1}}},
};

ConvCase CaseOf(const Shuffle& the) {
  ConvCase made{};
  made.attributes.transposed = made.attributes.channels_last = true;
  made.attributes.groups = 1;
  made.attributes.kernel_shape = {the.w[1], the.w[2]};
  made.attributes.strides = the.strides;
  made.attributes.pads = the.pads;
  made.attributes.output_padding = the.output_padding;
  made.program = std::make_shared<const Program>(Program::Parse(the.program));
  made.shapes = {the.x, the.w};
  made.shapes.insert(made.shapes.end(), the.operands.begin(), the.operands.end());
  return made;
}

void TestShuffles(const std::string& architecture) {
  for (const Shuffle& the : kShuffles) {
    const ConvCase given = CaseOf(the);
    const ConvShape shape = FitConv(given.attributes, the.x, the.w);
    CHECK(FitsPixelShuffle(given, shape));
    const cudnn::Problem products = ProductsProblem(given, shape);
    cudnn::Check(products);
    CHECK(ElementCount(products.w.dims) == ElementCount(the.w) && ElementCount(products.y.dims) == ElementCount(the.x));
    const OwnKernel own = PixelShuffleKernel(given, shape);
    CHECK(own.arguments.size() == the.operands.size() + 3 + given.program->results().size());
    std::string log;
    const std::string code = cuda::Compile(own.source, architecture, &log);
    CHECK_WITH(code.size() > 1000 && test::Spilled(log) == 0 && test::Local(log) == 0, log);
    if (architecture == "sm_90") CHECK_WITH(test::BeforeWait(own.source).empty(), test::BeforeWait(own.source));
  }
  // What overlaps, is dilated, in groups, or has its channels first.
  const auto fits = [](const std::function<void(ConvCase*)>& change) {
    ConvCase the = CaseOf(kShuffles[0]);
    change(&the);
    return FitsPixelShuffle(the, FitConv(the.attributes, the.shapes[0], the.shapes[1]));
  };
  CHECK(fits([](ConvCase*) {}));
  CHECK(!fits([](ConvCase* the) { the->attributes.strides = {2, 1}; }));
  CHECK(!fits([](ConvCase* the) { the->attributes.dilations = {1, 2}; }));
  CHECK(!fits([](ConvCase* the) { the->attributes.groups = 2; }));
  CHECK(!fits([](ConvCase* the) {
    the->attributes.strides = {1, 1};
    the->attributes.kernel_shape = {1, 1};
    the->shapes[1] = {256, 1, 1, 128};
  }));
  CHECK(!fits([](ConvCase* the) {
    the->attributes.channels_last = false;
    the->shapes = {{8, 256, 32, 32}, {256, 128, 2, 2}, {128, 1, 1}};
  }));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return test::AskForArchitecture(argv[0]);
  const std::string architecture = argv[1];
  const cuda::DeviceFacts device = test::DeviceOf(architecture);
  for (const Case& the : Cases()) {
    const Program program = Program::Parse(the.program);
    const std::optional<OwnKernel> own = FindOwnKernel(program, the.problem, device, false);
    const bool is_stem = the.problem.group == 1 && the.problem.kernel_height > 1;
    CHECK(own.has_value() == (device.major >= 8 || !is_stem));  // Turing's tensor cores lack what a stem takes
    if (!own) continue;
    CHECK(own->arguments.size() == the.problem.operands.size() + 3 + program.results().size());
    std::string log, failure;
    const std::string code = test::Compile(own->source, architecture, &log, &failure);
    const auto variant = [&] {
      std::ostringstream text;
      text << architecture << " " << own->entry << " " << NameOf(the.problem.dtype) << " "
           << ToString(the.problem.output_shape()) << " kernel " << the.problem.kernel_height << " stride "
           << the.problem.strides[0] << " threads " << own->launch.blocks << "x" << own->launch.threads << " registers "
           << test::Registers(log) << " spilled " << test::Spilled(log) << " bytes " << failure;
      return text.str();
    };
    if (std::getenv("VERBOSE") != nullptr) std::cout << variant() << "\n";
    CHECK_WITH(failure.empty() && code.size() > 1000 && test::Registers(log) > 0, variant());
    CHECK_WITH(test::Spilled(log) == 0 && test::Local(log) == 0, variant());
    CHECK_WITH(code.find(own->entry) != std::string::npos, variant());
  }
  TestShuffles(architecture);
  for (const size_t bytes : {1, 2, 4, 8}) {
    std::string log;
    const std::string source = ChannelsLastSource(bytes), code = cuda::Compile(source, architecture, &log);
    CHECK(code.size() > 1000 && test::Spilled(log) == 0);
    if (architecture == "sm_90") CHECK_WITH(test::BeforeWait(source).empty(), test::BeforeWait(source));
  }
  return test::Summary();
}
