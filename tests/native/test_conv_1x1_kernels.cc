// Our engine for pointwise (1x1) convolutions: no spills, and tensor cores don't wait for each MMA.

#include "ortplugin/ops/conv/engines/conv_1x1.h"
#include "tests/native/kernel_main.h"
#include "tests/native/wgmma_cases.h"

using namespace ortplugin;
using namespace test;

namespace {

Contraction Layer(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t stride = 1) {
  Contraction problem = SquareConv(dtype, stride > 1, batch, size, channels, filters, 1, stride, 0, size * stride);
  problem.constant_weights = batch > 1;
  return problem;
}

std::vector<ConvCase> Cases() {
  std::vector<ConvCase> cases;
  for (const int64_t batch : {1, 8, 256}) {
    cases.push_back({kIdentity, Layer(kHalf, batch, 56, 64, 64)});
    cases.push_back({kRelu, Layer(kHalf, batch, 56, 256, 64)});
    cases.push_back({kResidual, Layer(kHalf, batch, 56, 64, 256)});
    cases.push_back({kResidual, Layer(kHalf, batch, 28, 512, 256, 2)});
    cases.push_back({kRelu, Layer(kHalf, batch, 28, 128, 512)});
    cases.push_back({kMixed, Layer(kBrain, batch, 14, 200, 72)});
    cases.push_back({kMixed, Layer(kBrain, batch, 9, 8, 264, 3)});
  }
  cases.push_back({kIdentity, Layer(kHalf, 256, 56, 64, 256)});
  cases.push_back({kResidual, Layer(kHalf, 256, 56, 32, 256)});
  cases.push_back({kRelu, Layer(kBrain, 256, 56, 192, 64)});
  cases.back().problem.constant_weights = false;
  return WithOperands(cases);
}

}  // namespace

void TestKernels(const std::string&, const DeviceFacts& device) {
  const auto check = [&](const Program& program, const Contraction& problem) {
    const Conv1x1Config config = ConfigureConv1x1(program, problem, device);
    const cuda::LaunchShape launch = Conv1x1Launch(problem, config, device);
    const std::string source = Conv1x1Source(program, problem, config);
    const std::string numbers = Joined("chunk ", config.tile_k, " group ", config.tile_n, " slice ", config.block_n,
      " stages ", config.stages, " shared ", config.dynamic_tiles, " early ", config.prefetches_operands);
    const std::string variant = CheckCompiles(device, source, "conv_1x1", problem, launch, numbers);
    CHECK(launch.blocks <= unsigned(device.multiprocessors));
    // Weights are read early where they are constant; else nothing is but the table of launches.
    const std::string prefetches_operands = BeforeWait(source, "^(ld.volatile|atom.*cas)");
    CHECK_WITH(prefetches_operands.empty() == !problem.constant_weights, variant + prefetches_operands);
  };
  ForEachCase(Cases(), device, FitsConv1x1, check, 12);
  if (!device.has_wgmma()) return;

  const Program program = Program::Parse(kIdentity);
  CHECK(ConfigureConv1x1(program, Layer(kHalf, 256, 56, 64, 256), device).dynamic_tiles);
  CHECK(!ConfigureConv1x1(program, Layer(kHalf, 8, 56, 64, 256), device).dynamic_tiles);
  // With less shared memory or fewer registers it takes less of them, or is refused.
  for (const ConvCase& conv_case : Cases()) {
    const Program epilogue = Program::Parse(conv_case.program);
    DeviceFacts small = device;
    small.shared_per_block = 100 << 10;
    small.registers_per_multiprocessor /= 2;
    if (!FitsConv1x1(epilogue, conv_case.problem, small)) continue;
    const Conv1x1Config config = ConfigureConv1x1(epilogue, conv_case.problem, small);
    CHECK(Conv1x1Launch(conv_case.problem, config, small).shared_bytes <= small.shared_per_block);
    CHECK((config.tile_n / 2 + 45) * config.warps * 32 <= small.registers_per_multiprocessor);
  }
  const Contraction known = Layer(kHalf, 8, 28, 128, 256, 2);
  CHECK(IsConv1x1Fast(program, Layer(kHalf, 8, 56, 64, 64), device));
  CHECK(!IsConv1x1Fast(program, Layer(kHalf, 256, 14, 512, 1024), device));
  const Program gelu = Program::Parse("(float16 c) => (float16 y) {\n  y = Gelu(c)\n}");
  CHECK(IsConv1x1Fast(gelu, Layer(kHalf, 64, 28, 192, 768), device));
  // That one is in cuDNN's kernels.
  const Program tanh = Program::Parse("(float16 c) => (float16 y) {\n  y = Gelu<approximate=\"tanh\">(c)\n}");
  CHECK(!IsConv1x1Fast(tanh, Layer(kHalf, 64, 28, 192, 768), device));
  CHECK(!IsConv1x1Fast(program, Layer(kHalf, 64, 28, 192, 768), device));
  const Refusals refusals =
    RefusalsOfWgmma(known, [&](const Contraction& other) { return FitsConv1x1(program, other, device); });
  refusals.Check("a larger kernel", [](auto* conv) { conv->columns().kernel = 2; });
  refusals.Check("pads", [](auto* conv) { conv->rows().pad_begin = 1; });
  refusals.Check("a plain one with strides", [](auto* conv) { conv->transposed = false; });
  refusals.Check("rows of Y behind the last of X", [](auto* conv) { conv->rows().out += 1; });
  refusals.Check("a stride of five", [](auto* conv) {
    conv->rows().stride = conv->columns().stride = 5;
    conv->rows().out = conv->columns().out = 28 * 5;
  });
  refusals.Check("more weights than 31 bits count", [](auto* conv) {
    conv->filters = 1 << 24;
    conv->batch = conv->rows().size = conv->columns().size = 1;
    conv->rows().out = conv->columns().out = 2;
  });
  refusals.Check("weights that fill shared memory", [](auto* conv) { conv->channels = 2048; });
}
