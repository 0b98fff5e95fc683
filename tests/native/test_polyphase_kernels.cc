// Our engine for transposed convolutions with strides: no spills, and tensor cores don't wait for each MMA.

#include "ortplugin/ops/conv/engines/polyphase.h"
#include "tests/native/kernel_main.h"
#include "tests/native/wgmma_cases.h"

using namespace ortplugin;
using namespace test;

namespace {

Contraction Layer(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t kernel = 3,
  int64_t stride = 2, int64_t pad = 1, int64_t dilation = 1) {
  const int64_t out = (size - 1) * stride + (kernel - 1) * dilation + 1 - 2 * pad;
  Contraction problem = SquareConv(dtype, true, batch, size, channels, filters, kernel, stride, pad, out);
  for (Window& window : problem.windows) window.dilation = dilation;
  return problem;
}

constexpr const char* kConfigs[] = {
  "256 1 8 4",
  "128 2 8 4",
  "128 1 8 4",
  "64 1 8 4",
  "64 1 4 4",
  "64 1 4 5",
  "64 1 4 7",
};

std::vector<ConvCase> Cases() {
  return WithOperands({
    // As in tests/gpu/test_polyphase.py: those of kConfigs.
    {kIdentity, Layer(kHalf, 3, 31, 72, 136, 4)},
    {kMixed, Layer(kBrain, 8, 23, 8, 72, 4)},
    {kMixed, Layer(kBrain, 2, 40, 8, 72, 2, 2, 0)},
    {kMixed, Layer(kBrain, 13, 23, 24, 16, 2, 2, 0)},
    {kMixed, Layer(kBrain, 8, 23, 16, 16)},
    {kMixed, Layer(kBrain, 12, 16, 200, 24)},
    {kMixed, Layer(kBrain, 1, 5, 136, 40)},
    {kIdentity, Layer(kHalf, 256, 28, 128, 128)},
    {kRelu, Layer(kHalf, 256, 28, 128, 128)},
    {kRelu, Layer(kHalf, 64, 32, 256, 64, 4)},
    {kResidual, Layer(kHalf, 256, 14, 256, 256)},
    {kMixed, Layer(kBrain, 64, 9, 200, 136, 5, 3, 2, 2)},
    {kMixed, Layer(kBrain, 64, 9, 40, 24, 2, 3, 0)},
    // Weights of 64 channels are more than 2 GB.
    {kIdentity, Layer(kHalf, 1, 1, 72, 4096, 72)},
  });
}

}  // namespace

void TestKernels(const std::string&, const DeviceFacts& device) {
  size_t number = 0;
  const auto check = [&](const Program& program, const Contraction& problem) {
    const PolyphaseConfig config = ConfigurePolyphase(problem, device);
    const cuda::LaunchShape launch = PolyphaseLaunch(problem, config, device);
    const std::string source = PolyphaseSource(program, problem, config);
    const std::string numbers = Joined(config.tile_n, " ", config.m_tiles, " ", config.warps, " ", config.stages);
    const std::string variant = ToString(problem.result()) + ": schedule " + numbers;
    CHECK_WITH(number >= std::size(kConfigs) || numbers == kConfigs[number], variant);
    ++number;
    CHECK_WITH(launch.blocks % (problem.rows().stride * problem.columns().stride) == 0, variant);
    if (!TakesTurn("polyphase", 3)) return;
    CHECK_WITH(BeforeWait(source).empty(), variant + BeforeWait(source));
    CheckCompiles(device, source, "polyphase", problem, launch, "schedule " + numbers, config.min_blocks);
  };
  ForEachCase(Cases(), device, FitsPolyphase, check, 1);  // all: they are counted
  if (!device.has_wgmma()) return;

  const Program program = Program::Parse(kIdentity);
  const Contraction known = Layer(kHalf, 8, 28, 128, 128);
  const Program relu = Program::Parse(kRelu);
  // Much work for few filters is cuDNN's unless a program follows.
  const Contraction much = Layer(kHalf, 256, 28, 128, 128);
  CHECK(IsPolyphaseFast(relu, much, device) && !IsPolyphaseFast(program, much, device) &&
    IsPolyphaseFast(program, known, device));
  CHECK(IsPolyphaseFast(program, Layer(kHalf, 256, 14, 256, 256), device));
  const Refusals refusals =
    RefusalsOfWgmma(known, [&](const Contraction& other) { return FitsPolyphase(program, other, device); });
  refusals.Check("a plain one", [](auto* conv) { conv->transposed = false; });
  refusals.Check("25 phases", [](auto* conv) { conv->rows().stride = conv->columns().stride = 5; });
  refusals.Check("no strides", [](auto* conv) { conv->rows().stride = conv->columns().stride = 1; });
  refusals.Check("rows that 13 bits don't count", [](auto* conv) { conv->rows().size = 1 << 13; });
  refusals.Check("columns", [](auto* conv) { conv->columns().size = 1 << 13; });
  refusals.Check("pads", [](auto* conv) { conv->columns().pad_begin = 1 << 13; });
  refusals.Check("rows of a phase", [](auto* conv) { conv->rows().out = 1 << 14; });
  refusals.Check("columns of a phase", [](auto* conv) { conv->columns().out = 1 << 14; });
  refusals.Check("pixels of a phase behind an X of 4 GB", [](auto* conv) {
    conv->batch = 1;
    conv->channels = 256;
    conv->rows().size = 1048;
    conv->columns().size = 8000;
    conv->rows().out = 2098;
    conv->filters = 8;
    conv->columns().out = 16000;
  });
  refusals.Check("taps that reach as far", [](auto* conv) { conv->columns().dilation = 3000; });
  CHECK(!FitsPolyphase(Program::Parse("(float16 c) => (bool p) {\n  p = Greater(c, 0)\n}"), known, device));
}
