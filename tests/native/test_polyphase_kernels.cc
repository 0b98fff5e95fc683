// Compiles our kernel for transposed convolutions with strides, and fails where the compiler spills registers to local
// memory or makes the tensor cores wait for each product. Needs NVRTC but no GPU.
//
//   test_polyphase_kernels sm_90     VERBOSE=1 shows each variant

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "ortplugin/ops/conv_transpose/polyphase.h"
#include "tests/native/check.h"
#include "tests/native/kernel_remarks.h"
#include "tests/native/wgmma_cases.h"

using namespace ortplugin;
using namespace test;

namespace {

ConvProblem Layer(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t kernel = 3,
                  int64_t stride = 2, int64_t pad = 1, int64_t dilation = 1) {
  ConvProblem problem;
  problem.dtype = dtype;
  problem.transposed = true;
  problem.batch = batch;
  problem.height = problem.width = size;
  problem.channels = channels;
  problem.filters = filters;
  problem.kernel_height = problem.kernel_width = kernel;
  problem.strides = {stride, stride};
  problem.dilations = {dilation, dilation};
  problem.pads = {pad, pad, pad, pad};
  problem.out_height = problem.out_width = (size - 1) * stride + (kernel - 1) * dilation + 1 - 2 * pad;
  return problem;
}

constexpr const char* kSchedules[] = {
    "256 1 8 4", "128 2 8 4", "128 1 8 4", "64 1 8 4", "64 1 4 4", "64 1 4 5", "64 1 4 7",
};

std::vector<ConvCase> Cases() {
  return WithOperands({
      // As in tests/gpu/test_polyphase.py: those of kSchedules.
      {kBare, Layer(kHalf, 3, 31, 72, 136, 4)},
      {kMixed, Layer(kBrain, 8, 23, 8, 72, 4)},
      {kMixed, Layer(kBrain, 2, 40, 8, 72, 2, 2, 0)},
      {kMixed, Layer(kBrain, 13, 23, 24, 16, 2, 2, 0)},
      {kMixed, Layer(kBrain, 8, 23, 16, 16)},
      {kMixed, Layer(kBrain, 12, 16, 200, 24)},
      {kMixed, Layer(kBrain, 1, 5, 136, 40)},
      {kBare, Layer(kHalf, 256, 28, 128, 128)},
      {kRelu, Layer(kHalf, 256, 28, 128, 128)},
      {kRelu, Layer(kHalf, 64, 32, 256, 64, 4)},
      {kResidual, Layer(kHalf, 256, 14, 256, 256)},
      {kMixed, Layer(kBrain, 64, 9, 200, 136, 5, 3, 2, 2)},
      {kMixed, Layer(kBrain, 64, 9, 40, 24, 2, 3, 0)},
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return AskForArchitecture(argv[0]);
  const std::string architecture = argv[1];
  const cuda::DeviceFacts device = DeviceOf(architecture);
  const bool exists = architecture == "sm_90";
  size_t number = 0;
  for (const ConvCase& the : Cases()) {
    const Program program = Program::Parse(the.program);
    CHECK(FitsPolyphase(program, the.problem, device) == exists);
    if (!exists) continue;
    const PolyphaseSchedule schedule = SchedulePolyphase(the.problem, device);
    const cuda::LaunchShape launch = PolyphaseLaunch(the.problem, schedule, device);
    const std::string source = PolyphaseSource(program, the.problem, schedule);
    std::string log, failure;
    const std::string code = Compile(source, "sm_90a", &log, &failure);
    std::ostringstream text, numbers;
    numbers << schedule.columns << " " << schedule.per << " " << schedule.warps << " " << schedule.stages;
    text << NameOf(the.problem.dtype) << " " << the.problem.channels << " to " << ToString(the.problem.output_shape())
         << ": schedule " << numbers.str() << " resident " << schedule.resident << ", " << launch.blocks << "x"
         << launch.threads << " with " << launch.shared_bytes << " bytes, registers " << Registers(log) << " spilled "
         << Spilled(log) << " bytes " << failure;
    if (std::getenv("VERBOSE") != nullptr) std::cout << text.str() << "\n";
    CHECK_WITH(failure.empty() && code.size() > 1000 && Registers(log) > 0, text.str());
    CHECK_WITH(Spilled(log) == 0 && Local(log) == 0, text.str());
    CHECK_WITH(log.find("serialized") == std::string::npos, log);
    CHECK_WITH(BeforeWait(source).empty(), text.str() + BeforeWait(source));
    CHECK_WITH(number >= std::size(kSchedules) || numbers.str() == kSchedules[number], text.str());
    ++number;
    CHECK_WITH(
        launch.shared_bytes <= 227u << 10 && launch.blocks % (the.problem.strides[0] * the.problem.strides[1]) == 0,
        text.str());
  }
  if (!exists) return Summary();

  const Program program = Program::Parse(kBare);
  const ConvProblem known = Layer(kHalf, 8, 28, 128, 128);
  CHECK(FitsPolyphase(program, known, device));
  const Program relu = Program::Parse(kRelu);
  // Much work for few filters is cuDNN's unless a program follows.
  const ConvProblem much = Layer(kHalf, 256, 28, 128, 128);
  CHECK(IsPolyphaseFast(relu, much) && !IsPolyphaseFast(program, much) && IsPolyphaseFast(program, known));
  CHECK(IsPolyphaseFast(program, Layer(kHalf, 256, 14, 256, 256)));
  const auto refused = [&](const char* what, void (*change)(ConvProblem*)) {
    ConvProblem other = known;
    change(&other);
    CHECK_WITH(!FitsPolyphase(program, other, device), what);
  };
  refused("float32", [](ConvProblem* the) { the->dtype = kFloat; });
  refused("groups", [](ConvProblem* the) { the->group = 2; });
  refused("12 channels", [](ConvProblem* the) { the->channels = 12; });
  refused("12 filters", [](ConvProblem* the) { the->filters = 12; });
  refused("a plain one", [](ConvProblem* the) { the->transposed = false; });
  refused("25 phases", [](ConvProblem* the) { the->strides = {5, 5}; });
  refused("no strides", [](ConvProblem* the) { the->strides = {1, 1}; });
  refused("rows that 13 bits don't count", [](ConvProblem* the) { the->height = 1 << 13; });
  refused("columns", [](ConvProblem* the) { the->width = 1 << 13; });
  refused("pads", [](ConvProblem* the) { the->pads[1] = 1 << 13; });
  refused("rows of a phase", [](ConvProblem* the) { the->out_height = 1 << 14; });
  refused("columns of a phase", [](ConvProblem* the) { the->out_width = 1 << 14; });
  refused("pixels of a phase behind an X of 4 GB", [](ConvProblem* the) {
    the->batch = 1;
    the->channels = 256;
    the->height = 1048;
    the->width = 8000;
    the->out_height = 2098;
    the->filters = 8;
    the->out_width = 16000;
  });
  refused("taps that reach as far", [](ConvProblem* the) { the->dilations = {1, 3000}; });
  refused("Y with channels first", [](ConvProblem* the) { the->y_channels_first = true; });
  CHECK(!FitsPolyphase(Program::Parse("(float16 c) => (bool p) {\n  p = Greater(c, 0)\n}"), known, device));
  return Summary();
}
