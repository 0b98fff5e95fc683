// Compiles our kernel for convolutions of one element, and fails where the compiler spills registers to local memory or
// makes the tensor cores wait for each product. Needs NVRTC but no GPU.
//
//   test_one_tap_kernels sm_90     VERBOSE=1 shows each variant

#include <sstream>

#include "ortplugin/ops/conv/engines/one_tap.h"
#include "tests/native/wgmma_cases.h"

using namespace ortplugin;
using namespace test;

namespace {

ConvProblem Layer(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t stride = 1) {
  ConvProblem problem;
  problem.dtype = dtype;
  problem.transposed = stride > 1;
  problem.batch = batch;
  problem.height = problem.width = size;
  problem.channels = channels;
  problem.filters = filters;
  problem.strides = {stride, stride};
  problem.out_height = problem.out_width = size * stride;
  problem.constant_weights = batch > 1;
  return problem;
}

std::vector<ConvCase> Cases() {
  std::vector<ConvCase> cases;
  for (const int64_t batch : {1, 8, 256}) {
    cases.push_back({kBare, Layer(kHalf, batch, 56, 64, 64)});
    cases.push_back({kRelu, Layer(kHalf, batch, 56, 256, 64)});
    cases.push_back({kResidual, Layer(kHalf, batch, 56, 64, 256)});
    cases.push_back({kResidual, Layer(kHalf, batch, 28, 512, 256, 2)});
    cases.push_back({kRelu, Layer(kHalf, batch, 28, 128, 512)});
    cases.push_back({kMixed, Layer(kBrain, batch, 14, 200, 72)});
    cases.push_back({kMixed, Layer(kBrain, batch, 9, 8, 264, 3)});
  }
  cases.push_back({kBare, Layer(kHalf, 256, 56, 64, 256)});
  cases.push_back({kResidual, Layer(kHalf, 256, 56, 32, 256)});
  cases.push_back({kRelu, Layer(kBrain, 256, 56, 192, 64)});
  cases.back().problem.constant_weights = false;
  return WithOperands(cases);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return AskForArchitecture(argv[0]);
  const std::string architecture = argv[1];
  const cuda::DeviceFacts device = DeviceOf(architecture);
  const bool exists = architecture == "sm_90";
  for (const ConvCase& the : Cases()) {
    const Program program = Program::Parse(the.program);
    CHECK(FitsOneTap(program, the.problem, device) == exists);
    if (!exists) continue;
    const OneTapSchedule schedule = ScheduleOneTap(program, the.problem, device);
    const cuda::LaunchShape launch = OneTapLaunch(the.problem, schedule, device);
    const std::string source = OneTapSource(program, the.problem, schedule);
    std::ostringstream numbers;
    numbers << "chunk " << schedule.chunk << " group " << schedule.group << " slice " << schedule.slice << " stages "
            << schedule.stages << " shared " << schedule.shared_tiles << " early " << schedule.early;
    const std::string variant = CheckCompiles(source, the.problem, launch, numbers.str());
    CHECK(launch.blocks <= 132);
    // Weights are read early where they are constant; else nothing is but the table of launches.
    const std::string early = BeforeWait(source, "^(ld.volatile|atom.*cas)");
    CHECK_WITH(early.empty() == !the.problem.constant_weights, variant + early);
  }
  if (!exists) return Summary();

  const Program program = Program::Parse(kBare);
  CHECK(ScheduleOneTap(program, Layer(kHalf, 256, 56, 64, 256), device).shared_tiles);
  CHECK(!ScheduleOneTap(program, Layer(kHalf, 8, 56, 64, 256), device).shared_tiles);
  const ConvProblem known = Layer(kHalf, 8, 28, 128, 256, 2);
  CHECK(IsOneTapFast(program, Layer(kHalf, 8, 56, 64, 64), device));
  CHECK(!IsOneTapFast(program, Layer(kHalf, 256, 14, 512, 1024), device));
  const Program gelu = Program::Parse("(float16 c) => (float16 y) {\n  y = Gelu(c)\n}");
  CHECK(IsOneTapFast(gelu, Layer(kHalf, 64, 28, 192, 768), device));
  // That one is in cuDNN's kernels.
  const Program tanh = Program::Parse("(float16 c) => (float16 y) {\n  y = Gelu<approximate=\"tanh\">(c)\n}");
  CHECK(!IsOneTapFast(tanh, Layer(kHalf, 64, 28, 192, 768), device));
  CHECK(!IsOneTapFast(program, Layer(kHalf, 64, 28, 192, 768), device));
  const Refusals refusals(known, [&](const ConvProblem& other) { return FitsOneTap(program, other, device); });
  refusals.Check("a larger kernel", [](ConvProblem* the) { the->kernel_width = 2; });
  refusals.Check("pads", [](ConvProblem* the) { the->pads = {1, 0, 0, 0}; });
  refusals.Check("a plain one with strides", [](ConvProblem* the) { the->transposed = false; });
  refusals.Check("rows of Y behind the last of X", [](ConvProblem* the) { the->out_height += 1; });
  refusals.Check("a stride of five", [](ConvProblem* the) {
    the->strides = {5, 5};
    the->out_height = the->out_width = 28 * 5;
  });
  refusals.Check("more weights than 31 bits count", [](ConvProblem* the) {
    the->filters = 1 << 24;
    the->batch = the->height = the->width = 1;
    the->out_height = the->out_width = 2;
  });
  refusals.Check("weights that fill shared memory", [](ConvProblem* the) { the->channels = 2048; });
  return Summary();
}
