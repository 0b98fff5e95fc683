// Our transposed convolution for few output channels: no spills.

#include "ortplugin/ops/conv/engines/engine.h"
#include "ortplugin/ops/conv/engines/few_output_channels.h"
#include "tests/native/kernel_main.h"
#include "tests/native/square_conv.h"

using namespace ortplugin;
using namespace test;

namespace {

constexpr DType kHalf = DType::kFloat16, kBrain = DType::kBFloat16, kFloat = DType::kFloat;

const char* const kTanh = "(float16 c, float16 b) => (float16 y) {\n  s = Add(c, b)\n  y = Tanh(s)\n}";
// Two results, a residual, an operand of each row, mixed dtypes.
const char* const kMixed =
  "(bfloat16 c, bfloat16 b, bfloat16 r, float g) => (bfloat16 y, float z) {\n  s = Add(c, b)\n"
  "  t = Add(s, r)\n  u = Relu(t)\n  z = Cast<to=float>(u)\n  v = Mul(z, g)\n  y = Cast<to=bfloat16>(v)\n}";

Contraction Up(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t kernel,
  int64_t stride, int64_t pad, bool channels_first) {
  const int64_t out = (size - 1) * stride + kernel - 2 * pad;
  Contraction problem = SquareConv(dtype, true, batch, size, channels, filters, kernel, stride, pad, out);
  problem.operands = {{filters}};
  if (dtype == kBrain) problem.operands = {{filters}, problem.result(), {problem.rows().out, 1, 1}};
  problem.y_channels_first = channels_first;
  problem.constant_weights = batch > 1;
  return problem;
}

const char* ProgramOf(DType dtype) { return dtype == kHalf ? kTanh : dtype == kFloat ? kFloatRelu : kMixed; }

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts& device) {
  for (const Contraction& problem : {Up(kHalf, 64, 32, 64, 3, 4, 2, 1, true), Up(kHalf, 1, 32, 64, 3, 4, 2, 1, false),
         Up(kBrain, 8, 64, 64, 4, 5, 2, 2, true), Up(kBrain, 1, 17, 24, 1, 3, 3, 0, false),
         Up(kHalf, 8, 128, 32, 8, 2, 2, 0, true), Up(kBrain, 8, 20, 40, 7, 3, 1, 1, false),
         Up(kHalf, 3, 9, 256, 4, 4, 2, 1, true), Up(kHalf, 2, 40, 8, 2, 7, 4, 3, false),
         Up(kFloat, 64, 32, 64, 3, 4, 2, 1, true), Up(kFloat, 2, 13, 36, 5, 3, 2, 1, false),
         Up(kFloat, 1, 33, 20, 1, 5, 1, 2, true)}) {
    const Program program = Program::Parse(ProgramOf(problem.dtype()));
    const std::optional<EngineKernel> kernel = FindEngineKernel(program, problem, device, false);
    CHECK(kernel.has_value() == (device.has_mma_m16n8k16() || problem.dtype() == kFloat));
    if (!kernel) continue;
    const FewOutputChannelsConfig config = ConfigureFewOutputChannels(program, problem, device);
    CHECK(kernel->arguments.size() == problem.operands.size() + 9 + program.results().size());
    const std::string text = Joined(architecture, " ", NameOf(problem.dtype()), " ", problem.channels, " to ",
      ToString(problem.result()), " kernel ", problem.rows().kernel, " stride ", problem.rows().stride, ": tile ",
      config.tile_h, "x", config.tile_w, " parts ", config.parts, " chunk ", config.chunk, " vector ", config.vector,
      " blocks ", kernel->launch.blocks, "x", kernel->launch.threads);
    if (!IsTaken(architecture, text, 3)) continue;
    Compiled compiled(kernel->source, architecture);
    compiled.Check(text);
    // Measured on an H200 with the blocks that its registers hold, of which shared memory may hold fewer.
    compiled.CheckLaunch(device, kernel->entry, kernel->launch.threads, 0, {config.min_blocks, true});
    if (architecture == "sm_90" && !problem.constant_weights) compiled.CheckWaits();
  }

  const Program program = Program::Parse(kTanh);
  const Contraction known = Up(kHalf, 4, 32, 64, 3, 4, 2, 1, false);
  for (const Gpu& gpu : kGpus)
    CHECK_WITH(FitsFewOutputChannels(program, known, gpu.facts) == (gpu.facts.major >= 8), gpu.name);
  const Refusals refusals(
    known, [&](const Contraction& other) { return FindEngineKernel(program, other, H200(), false).has_value(); });
  refusals.Check("nine filters", [](auto* conv) { conv->filters = 9; });
  refusals.Check("12 channels", [](auto* conv) { conv->channels = 12; });
  refusals.Check("groups", [](auto* conv) { conv->groups = 2; });
  refusals.Check("dilations", [](auto* conv) { conv->rows().dilation = 2; });
  refusals.Check("a stride of five", [](auto* conv) { conv->rows().stride = conv->columns().stride = 5; });
  refusals.Check("a kernel of nine", [](auto* conv) { conv->columns().kernel = 9; });
  refusals.Check("weights that fill shared memory", [](auto* conv) { conv->channels = 1024; });
}
