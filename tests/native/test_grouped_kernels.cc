// Our grouped convolution: no spills.

#include <iterator>

#include "ortplugin/ops/conv/engines/grouped.h"
#include "tests/native/kernel_main.h"
#include "tests/native/square_conv.h"

using namespace ortplugin;
using namespace test;

namespace {

constexpr DType kHalf = DType::kFloat16, kBrain = DType::kBFloat16;

const char* const kRelu = "(float16 c, float16 b) => (float16 y) {\n  s = Add(c, b)\n  y = Relu(s)\n}";
// Two results, a residual, an operand of each row, mixed dtypes.
const char* const kMixed =
  "(bfloat16 c, bfloat16 b, bfloat16 r, float g) => (bfloat16 y, float z) {\n  s = Add(c, b)\n"
  "  t = Add(s, r)\n  z = Cast<to=float>(t)\n  v = Mul(z, g)\n  y = Cast<to=bfloat16>(v)\n}";

Contraction Grouped(DType dtype, int64_t batch, int64_t size, int64_t groups, int64_t channels, int64_t filters,
  int64_t kernel, int64_t stride) {
  const int64_t out = (size - 1) / stride + 1;
  Contraction problem =
    SquareConv(dtype, false, batch, size, groups * channels, groups * filters, kernel, stride, (kernel - 1) / 2, out);
  problem.groups = groups;
  problem.operands = {{problem.filters}};
  if (dtype == kBrain) problem.operands = {{problem.filters}, problem.result(), {out, 1, 1}};
  problem.constant_weights = batch > 1;
  return problem;
}

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts& device) {
  std::vector<Contraction> problems;
  const int64_t layers[] = {28, 34, 1, 1, 68, 17, 1, 1, 17, 68, 1, 1, 136, 136, 1, 1, 1, 2, 3, 1, 2, 2, 3, 2, 3, 5, 5,
    1, 4, 4, 3, 1, 8, 8, 3, 2, 12, 7, 3, 1, 24, 24, 7, 2, 32, 32, 3, 1, 56, 56, 3, 1, 112, 112, 3, 2, 232, 232, 3, 1};
  for (const int64_t* at = layers; at != std::end(layers); at += 4) {
    const int64_t channels = at[0], filters = at[1], kernel = at[2], stride = at[3];  // the first two of a group
    const int64_t groups = channels < 64 ? 8 : 4;
    problems.push_back(Grouped(kBrain, 1, 14, groups, channels, filters, kernel, stride));
    problems.push_back(Grouped(kHalf, 8, 56, groups, channels, filters, kernel, stride));
    problems.push_back(Grouped(DType::kFloat, 8, 28, groups, channels, filters, kernel, stride));
    problems.back().allow_tf32 = true;
  }
  for (const Contraction& problem : problems) {
    const Program program = Program::Parse(problem.dtype() == kHalf ? kRelu
        : problem.dtype() == kBrain                                 ? kMixed
                                                                    : kFloatRelu);
    CHECK(FitsGrouped(program, problem, device) == device.has_mma_m16n8k16());
    if (!device.has_mma_m16n8k16()) continue;
    const EngineKernel kernel = *MakeGrouped(program, problem, device);
    std::string text = Joined(architecture, " ", ToString(problem.w()), " to ", ToString(problem.result()));
    if (!IsTaken(architecture, text)) continue;
    Compiled compiled(kernel.source, architecture);
    text +=
      Joined(": blocks ", kernel.launch.blocks, "x", kernel.launch.threads, " shared ", kernel.launch.shared_bytes);
    compiled.Check(text);
    compiled.CheckLaunch(device, kernel.entry, kernel.launch.threads, kernel.launch.shared_bytes,
      {Defined(kernel.source, "MIN_BLOCKS", 1)});
    if (architecture == "sm_90" && !problem.constant_weights) compiled.CheckWaits();
  }

  const Program program = Program::Parse(kRelu);
  const Contraction known = Grouped(kHalf, 4, 28, 4, 28, 34, 3, 1);
  const Refusals refusals(known, [&](const Contraction& other) { return FitsGrouped(program, other, H200()); });
  refusals.Check("one wide group", [](auto* conv) { conv->groups = 1; });
  refusals.Check("depthwise", [](auto* conv) { conv->groups = conv->filters = conv->channels; });
  refusals.Check("transposed", [](auto* conv) { conv->transposed = true; });
  refusals.Check("fp32", [](auto* conv) { conv->dtypes = Contraction::AllOf(DType::kFloat); });
  refusals.Check("a kernel of nine", [](auto* conv) { conv->columns().kernel = 9; });
  refusals.Check("a tile that fills shared memory", [](auto* conv) { conv->rows().dilation = 1 << 12; });
}
