// Our engine for split-K convolutions: no spills, and tensor cores don't wait for each MMA.

#include <string>

#include "ortplugin/ops/conv/engines/split_k.h"
#include "tests/native/wgmma_cases.h"
#include "tests/native/kernel_main.h"

using namespace ortplugin;
using namespace test;

namespace {

Contraction Layer(
  DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t kernel, int64_t stride = 1) {
  const int64_t pad = kernel / 2, out = (size + 2 * pad - kernel) / stride + 1;
  Contraction problem = SquareConv(dtype, false, batch, size, channels, filters, kernel, stride, pad, out);
  problem.constant_weights = batch > 1;
  problem.allow_tf32 = dtype == kFloat;
  return problem;
}

std::vector<ConvCase> Cases() {
  std::vector<ConvCase> cases;
  for (const int64_t batch : {1, 8}) {
    cases.push_back({kIdentity, Layer(kHalf, batch, 7, 512, 512, 3)});
    cases.push_back({kRelu, Layer(kHalf, batch, 14, 256, 256, 3)});
    cases.push_back({kRelu, Layer(kHalf, batch, 28, 128, 128, 3)});
    cases.push_back({kRelu, Layer(kHalf, batch, 56, 64, 64, 3)});
    cases.push_back({kResidual, Layer(kHalf, batch, 7, 512, 2048, 1)});
    cases.push_back({kRelu, Layer(kHalf, batch, 14, 1024, 256, 1)});
    cases.push_back({kRelu, Layer(kHalf, batch, 28, 256, 256, 3, 2)});
    cases.push_back({kMixed, Layer(kBrain, batch, 14, 200, 72, 5)});
    cases.push_back({kRelu, Layer(kFloat, batch, 28, 60, 128, 3)});
  }
  for (const int64_t rows : {1, 16, 128})
    for (const auto& [channels, filters] : {std::pair{768, 768}, {3072, 768}, {768, 3072}})
      cases.push_back({kResidual, Layer(kFloat, rows, 1, channels, filters, 1)});
  return WithOperands(cases);
}

}  // namespace

void TestKernels(const std::string&, const DeviceFacts& device) {
  ForEachCase(Cases(), device, FitsSplitK, [&](const Program& program, const Contraction& problem) {
    const SplitKConfig config = ConfigureSplitK(problem, device);
    const cuda::LaunchShape launch = SplitKLaunch(problem, config);
    const std::string source = SplitKSource(program, problem, config);
    const std::string numbers =
      Joined("columns ", config.tile_n, " split ", config.split_k, " warps ", config.warps, " stages ", config.stages);
    const std::string variant = CheckCompiles(device, source, "split_k", problem, launch, numbers);
    // Weights are read early where they are constant, 16 rows of them by each copy; else nothing is.
    const size_t weights = problem.constant_weights ? (config.stages - 1) * config.tile_n / 16 : 0;
    CHECK_WITH(BeforeWait(source).empty() == (weights == 0), variant);
    CHECK_WITH(CopiesBeforeWait(source) == weights, variant + std::to_string(CopiesBeforeWait(source)));
  });
  if (!device.has_wgmma()) return;

  // Configurations of all sizes: they fit, and no part is empty.
  const Program program = Program::Parse(kIdentity);
  for (const int64_t batch : {1, 3, 8, 64})
    for (const int64_t size : {1, 7, 14, 33, 56})
      for (const int64_t channels : {8, 64, 72, 512, 4096})
        for (const int64_t filters : {8, 40, 64, 136, 512, 4096})
          for (const int64_t kernel : {1, 3, 7})
            for (const int multiprocessors : {1, 7, 114, 132}) {
              DeviceFacts other = device;
              other.multiprocessors = multiprocessors;
              const Contraction problem = Layer(size == 7 ? kFloat : kHalf, batch, size, channels, filters, kernel);
              const SplitKConfig config = ConfigureSplitK(problem, other);
              const cuda::LaunchShape launch = SplitKLaunch(problem, config);
              const int64_t k_tiles = kernel * kernel * ((channels * (size == 7 ? 4 : 2) + 127) / 128);
              CHECK_WITH(launch.shared_bytes <= device.shared_per_block && launch.blocks > 0 && launch.threads >= 128 &&
                  launch.threads <= 512 && config.split_k <= 6 && config.stages >= 2 &&
                  config.split_k * (config.warps / 4) <= k_tiles,
                ToString(problem.result()));
            }

  const auto is_fast = [&](const Contraction& problem) { return IsSplitKFast(program, problem, device); };
  CHECK(is_fast(Layer(kHalf, 1, 56, 64, 64, 3)) && is_fast(Layer(kHalf, 4, 7, 512, 512, 3)));
  CHECK(is_fast(Layer(kHalf, 8, 7, 512, 512, 3)));
  CHECK(is_fast(Layer(kHalf, 1, 7, 2048, 512, 1)) && is_fast(Layer(kHalf, 8, 14, 1024, 2048, 1, 2)));
  CHECK(!is_fast(Layer(kHalf, 8, 56, 64, 64, 3)));  // more tiles than multiprocessors
  CHECK(!is_fast(Layer(kHalf, 8, 14, 256, 256, 3)));  // too many FLOPs for each block
  CHECK(!is_fast(Layer(kHalf, 8, 7, 2048, 512, 1)));  // 1x1 pays with fewer
  // It goes before the 1x1 engine where it is fast, and only then.
  const auto entry = [&](const Contraction& problem) {
    return std::string(FindEngineKernel(program, problem, device, false)->entry);
  };
  CHECK(entry(Layer(kHalf, 1, 14, 240, 80, 1)) == "split_k" && entry(Layer(kHalf, 8, 56, 64, 64, 1)) == "conv_1x1");
  CHECK(entry(Layer(kHalf, 64, 56, 24, 64, 3)) == "implicit_gemm");
  CHECK(!FindEngineKernel(program, Layer(kHalf, 64, 56, 24, 64, 3), device, true));

  const Contraction known = Layer(kHalf, 2, 14, 128, 256, 3);
  const Refusals refusals =
    RefusalsOfWgmma(known, [&](const Contraction& other) { return FitsSplitK(program, other, device); });
  refusals.Check("a transposed one", [](auto* conv) { conv->transposed = true; });
  refusals.Check("X with channels first", [](auto* conv) { conv->x_channels_first = true; });
  refusals.Check("double", [](auto* conv) { conv->dtypes = Contraction::AllOf(DType::kDouble); });
  refusals.Check("an operand that the program lacks", [](auto* conv) { conv->operands = {{256}}; });
  refusals.Check("a reach beyond 29 bits", [](auto* conv) { conv->rows().dilation = 1 << 28; });
  refusals.Check("no images", [](auto* conv) { conv->batch = 0; });
  refusals.Check("more weights than 31 bits count", [](auto* conv) {
    conv->filters = 1 << 21;
    conv->batch = conv->rows().out = conv->columns().out = 1;
  });
}
