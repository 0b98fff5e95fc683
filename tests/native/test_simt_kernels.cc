// Our engine for float32 without tensor cores: no spills in any tile configuration, and configurations that fit.

#include <string>

#include "ortplugin/ops/conv/engines/simt.h"
#include "tests/native/wgmma_cases.h"
#include "tests/native/kernel_main.h"

using namespace ortplugin;
using namespace test;

namespace {

Contraction Layer(int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t kernel, int64_t stride = 1) {
  const int64_t pad = kernel / 2, out = (size + 2 * pad - kernel) / stride + 1;
  return SquareConv(kFloat, false, batch, size, channels, filters, kernel, stride, pad, out);
}

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts& device) {
  std::vector<ConvCase> cases{{kResidual, Layer(1024, 1, 768, 3072, 1)}, {kRelu, Layer(8, 14, 256, 256, 3)},
    {kIdentity, Layer(8, 28, 60, 126, 3, 2)}, {kResidual, Layer(8, 56, 64, 65, 1)}};
  for (const ConvCase& each : WithOperands(cases)) {
    const Program program = ProgramOf(each);
    CHECK(FitsSimt(program, each.problem, device) == (device.major >= 8));
    for (int quads_m = 1; quads_m <= 2 && device.major >= 8; ++quads_m)
      for (int quads_n = 1; quads_n <= 5 - quads_m; ++quads_n) {
        const SimtConfig config{quads_m, quads_n, device.has_clusters() ? (quads_m + quads_n) / 2 : 1, 2};
        const std::string name = Joined(ToString(each.problem.result()), " quads ", quads_m, " x ", quads_n);
        const cuda::LaunchShape launch = SimtLaunch(each.problem, config);
        if (launch.shared_bytes > device.shared_per_block || !IsTaken(architecture, name, 4)) continue;
        Compiled compiled(SimtSource(program, each.problem, config), cuda::Architecture(device));
        compiled.Check(name);
        compiled.CheckLaunch(device, "simt", launch.threads, launch.shared_bytes);
      }
  }
  if (device.major < 8) return;

  for (const bool is_constant : {false, true}) {
    Contraction problem = cases[0].problem;
    problem.constant_weights = is_constant;
    const SimtConfig config = ConfigureSimt(problem, device);
    const std::string source = SimtSource(Program::Parse("(float c) => (float c) {}"), problem, config);
    // Constant weights are read early, 32 rows of them by each copy; else nothing is.
    CHECK(CopiesBeforeWait(source) == size_t(is_constant ? (config.stages - 1) * config.quads_n : 0));
  }
  for (const int64_t rows : {1, 77, 1024, 50000})
    for (const int64_t channels : {4, 72, 4096})
      for (const int64_t filters : {1, 40, 768, 50257})
        for (const int64_t kernel : {1, 3}) {
          const SimtConfig config = ConfigureSimt(Layer(rows, 7, channels, filters, kernel), device);
          const int64_t shared = SimtLaunch(Layer(rows, 7, channels, filters, kernel), config).shared_bytes;
          CHECK(shared <= device.shared_per_block && config.stages >= 2);
          CHECK(config.split_k <= kernel * kernel * ((channels + 31) / 32));
          CHECK(2 * config.split_k <= 4 * config.quads_m * config.quads_n);
          CHECK(config.split_k == 1 || device.has_clusters());
        }

  const Refusals refusals(Layer(2, 14, 128, 256, 3),
    [&](const Contraction& other) { return FitsSimt(Program::Parse("(float c) => (float c) {}"), other, device); });
  refusals.Check("TF32", [](auto* conv) { conv->allow_tf32 = true; });
  refusals.Check("groups", [](auto* conv) { conv->groups = 2; });
  refusals.Check("6 channels", [](auto* conv) { conv->channels = 6; });
  refusals.Check("a gate", [](auto* conv) { conv->gated = true; });
}
