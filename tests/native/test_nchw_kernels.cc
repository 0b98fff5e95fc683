// Our pointwise convolutions with channels first: no spills, and tensor cores don't wait for each MMA.

#include "ortplugin/ops/conv/engines/gemm.h"
#include "ortplugin/ops/conv/engines/nchw.h"
#include "tests/native/kernel_main.h"
#include "tests/native/wgmma_cases.h"

using namespace ortplugin;
using namespace test;

namespace {

Contraction First(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters) {
  Contraction problem = SquareConv(dtype, false, batch, size, channels, filters, 1, 1, 0, size);
  problem.channels_last = false;
  problem.constant_weights = batch % 2 == 0;
  return problem;
}

// The cases with the operands of wgmma_cases.h, with channels first.
std::vector<ConvCase> WithOperandsFirst(std::vector<ConvCase> cases) {
  for (ConvCase& each : cases) {
    const Contraction& problem = each.problem;
    if (each.program != kIdentity) each.problem.operands = {{problem.filters, 1, 1}};
    if (each.program == kResidual || each.program == kMixed) each.problem.operands.push_back(problem.result());
    if (each.program == kMixed) {
      each.problem.operands.push_back({problem.batch, problem.filters, 1, 1});
      each.problem.operands.push_back({problem.rows().out, problem.columns().out});
    }
  }
  return cases;
}

void Refuse(
  Contraction known, bool (*fits)(const Program&, const Contraction&, const DeviceFacts&), const DeviceFacts& device) {
  known.operands.clear();
  const Program program = Program::Parse(kIdentity);
  const Refusals refusals(known, [&](const Contraction& other) { return fits(program, other, device); });
  refusals.Check("channels last", [](auto* conv) { conv->channels_last = true; });
  refusals.Check("groups", [](auto* conv) { conv->groups = 2; });
  refusals.Check("a transposed one", [](auto* conv) { conv->transposed = true; });
  refusals.Check("strides", [](auto* conv) { conv->rows().stride = 2; });
  refusals.Check("pads", [](auto* conv) { conv->columns().pad_end = 1; });
  refusals.Check("no images", [](auto* conv) { conv->batch = 0; });
  refusals.Check("many channels", [](auto* conv) { conv->channels = 514; });
}

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts& device) {
  const auto few = WithOperandsFirst({{kRelu, First(kHalf, 8, 196, 8, 8)}, {kResidual, First(kFloat, 3, 7, 16, 5)},
    {kMixed, First(kBrain, 2, 12, 3, 16)}});
  for (const ConvCase& each : few) {
    const Program program = ProgramOf(each);
    CHECK(FitsNchwFew(program, each.problem, device));
    const EngineKernel kernel = MakeNchwFew(program, each.problem, device);
    Compiled compiled(kernel.source, architecture);
    compiled.Check(architecture + " " + each.program + ToString(each.problem.result()));
    compiled.CheckLaunch(device, kernel.entry, kernel.launch.threads, 0, {1});
    if (architecture == "sm_90" && !each.problem.constant_weights) compiled.CheckWaits();
  }
  Refuse(few[0].problem, FitsNchwFew, device);

  const auto cases = WithOperandsFirst({{kRelu, First(kHalf, 8, 28, 196, 196)}, {kRelu, First(kHalf, 7, 24, 196, 384)},
    {kResidual, First(kHalf, 8, 28, 384, 196)}, {kMixed, First(kBrain, 2, 20, 512, 72)},
    {kResidual, First(kHalf, 1, 8, 30, 40)}, {kIdentity, First(kBrain, 64, 64, 500, 64)}});
  ForEachCase(cases, device, FitsNchwGemm, [&](const Program& program, const Contraction& problem) {
    const NchwGemmConfig config = ConfigureNchwGemm(problem, device);
    const EngineKernel kernel = MakeNchwGemm(program, problem, device);
    const std::string numbers = "tile " + std::to_string(64 * config.consumers) + "x" + std::to_string(config.tile_n);
    const std::string variant = CheckCompiles(device, kernel.source, "nchw_gemm", problem, kernel.launch, numbers);
    // Nothing is copied early, and weights are read only where no kernel writes them.
    CHECK_WITH(
      BeforeWait(kernel.source, problem.constant_weights ? "prefetch.tensormap|ld.global" : "prefetch.tensormap")
        .empty(),
      variant + BeforeWait(kernel.source));
  });
  if (!device.has_wgmma()) return;
  Refuse(cases[0].problem, FitsNchwGemm, device);
  Contraction odd = cases[0].problem;
  odd.channels = 195;
  CHECK(!FitsNchwGemm(Program::Parse(kRelu), odd, device));
  odd = First(kHalf, 8, 14, 196, 196);  // 196 pixels
  CHECK(!FitsNchwGemm(Program::Parse(kIdentity), odd, device));
  odd = cases[0].problem;
  odd.operands = {{28, 1}};  // a number of each row
  CHECK(!FitsNchwGemm(Program::Parse(kRelu), odd, device));

  // A sequence's pixels have one axis, a volume's three.
  Contraction sequence = First(kHalf, 8, 28, 196, 384);
  sequence.operands = {{384, 1}};
  sequence.windows.assign(1, {1, 1, 1, 0, 0, 768, 768});
  const auto found = FindEngineKernel(Program::Parse(kRelu), sequence, device, true);
  CHECK(found && std::string(found->entry) == "nchw_gemm" && found->maps[0].sizes[0] == 768);
  sequence.windows.assign(3, {1, 1, 1, 0, 0, 8, 8});
  sequence.operands = {{8, 8, 8}};
  CHECK(WithTwoWindows(sequence).operands[0] == (Shape{1, 1, 1, 512}));
  sequence.channels_last = true;
  sequence.operands = {{8, 1, 1, 1}};
  CHECK(WithTwoWindows(sequence).windows.size() == 3);
  sequence.operands = {{3, 1, 1, 1, 384}};
  CHECK(WithTwoWindows(sequence).operands[0] == (Shape{3, 1, 1, 384}));
}
