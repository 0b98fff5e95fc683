// Compiles our kernel for convolutions of few pixels, and fails where the compiler spills registers to local memory or
// makes the tensor cores wait for each product. Needs NVRTC but no GPU.
//
//   test_few_pixels_kernels sm_90     VERBOSE=1 shows each variant

#include <sstream>
#include <string>

#include "ortplugin/ops/conv/engines/few_pixels.h"
#include "tests/native/wgmma_cases.h"

using namespace ortplugin;
using namespace test;

namespace {

ConvProblem Layer(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t kernel,
                  int64_t stride = 1) {
  ConvProblem problem;
  problem.dtype = dtype;
  problem.batch = batch;
  problem.height = problem.width = size;
  problem.channels = channels;
  problem.filters = filters;
  problem.kernel_height = problem.kernel_width = kernel;
  problem.pads.fill(kernel / 2);
  problem.strides = {stride, stride};
  problem.out_height = problem.out_width = (size + kernel / 2 * 2 - kernel) / stride + 1;
  problem.constant_weights = batch > 1;
  return problem;
}

std::vector<ConvCase> Cases() {
  std::vector<ConvCase> cases;
  for (const int64_t batch : {1, 8}) {
    cases.push_back({kBare, Layer(kHalf, batch, 7, 512, 512, 3)});
    cases.push_back({kRelu, Layer(kHalf, batch, 14, 256, 256, 3)});
    cases.push_back({kRelu, Layer(kHalf, batch, 28, 128, 128, 3)});
    cases.push_back({kRelu, Layer(kHalf, batch, 56, 64, 64, 3)});
    cases.push_back({kResidual, Layer(kHalf, batch, 7, 512, 2048, 1)});
    cases.push_back({kRelu, Layer(kHalf, batch, 14, 1024, 256, 1)});
    cases.push_back({kRelu, Layer(kHalf, batch, 28, 256, 256, 3, 2)});
    cases.push_back({kMixed, Layer(kBrain, batch, 14, 200, 72, 5)});
  }
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
    CHECK(FitsFewPixels(program, the.problem, device) == exists);
    if (!exists) continue;
    const FewPixelsSchedule schedule = ScheduleFewPixels(the.problem, device);
    const cuda::LaunchShape launch = FewPixelsLaunch(the.problem, schedule);
    const std::string source = FewPixelsSource(program, the.problem, schedule);
    std::ostringstream numbers;
    numbers << "columns " << schedule.columns << " split " << schedule.split << " warps " << schedule.warps
            << " stages " << schedule.stages;
    const std::string variant = CheckCompiles(source, the.problem, launch, numbers.str());
    // Weights are read early where they are constant, 16 rows of them by each copy; else nothing is.
    const size_t weights = the.problem.constant_weights ? (schedule.stages - 1) * schedule.columns / 16 : 0;
    CHECK_WITH(BeforeWait(source).empty() == (weights == 0), variant);
    CHECK_WITH(CopiesBeforeWait(source) == weights, variant + std::to_string(CopiesBeforeWait(source)));
  }
  if (!exists) return Summary();

  // Schedules of all sizes: they fit, and no part is empty.
  const Program program = Program::Parse(kBare);
  for (const int64_t batch : {1, 3, 8, 64})
    for (const int64_t size : {1, 7, 14, 33, 56})
      for (const int64_t channels : {8, 64, 72, 512, 4096})
        for (const int64_t filters : {8, 40, 64, 136, 512, 4096})
          for (const int64_t kernel : {1, 3, 7})
            for (const int multiprocessors : {1, 7, 114, 132}) {
              cuda::DeviceFacts other = device;
              other.multiprocessors = multiprocessors;
              const ConvProblem problem = Layer(kHalf, batch, size, channels, filters, kernel);
              const FewPixelsSchedule schedule = ScheduleFewPixels(problem, other);
              const cuda::LaunchShape launch = FewPixelsLaunch(problem, schedule);
              const int64_t chunks = kernel * kernel * ((channels + 63) / 64);
              CHECK_WITH(launch.shared_bytes <= 227u << 10 && launch.blocks > 0 && launch.threads >= 128 &&
                             launch.threads <= 512 && schedule.split <= 6 && schedule.stages >= 2 &&
                             schedule.split * (schedule.warps / 4) <= chunks,
                         ToString(problem.output_shape()));
            }

  const auto is_fast = [&](const ConvProblem& problem) { return IsFewPixelsFast(problem, device); };
  CHECK(is_fast(Layer(kHalf, 1, 56, 64, 64, 3)) && is_fast(Layer(kHalf, 4, 7, 512, 512, 3)));
  CHECK(is_fast(Layer(kHalf, 8, 7, 512, 512, 3)));
  CHECK(is_fast(Layer(kHalf, 1, 7, 2048, 512, 1)) && is_fast(Layer(kHalf, 8, 14, 1024, 2048, 1, 2)));
  CHECK(!is_fast(Layer(kHalf, 8, 56, 64, 64, 3)));    // more tiles than multiprocessors
  CHECK(!is_fast(Layer(kHalf, 8, 14, 256, 256, 3)));  // too many products for each
  CHECK(!is_fast(Layer(kHalf, 8, 7, 2048, 512, 1)));  // of one element pay with fewer
  // It goes before the kernel of one element where it is fast, and only then.
  const auto entry = [&](const ConvProblem& problem) {
    return std::string(FindOwnKernel(program, problem, device, false)->entry);
  };
  CHECK(entry(Layer(kHalf, 1, 14, 240, 80, 1)) == "few_pixels" && entry(Layer(kHalf, 8, 56, 64, 64, 1)) == "one_tap");
  CHECK(entry(Layer(kHalf, 64, 56, 64, 64, 3)) == "few_pixels");
  CHECK(!FindOwnKernel(program, Layer(kHalf, 64, 56, 64, 64, 3), device, true));

  const ConvProblem known = Layer(kHalf, 2, 14, 128, 256, 3);
  const Refusals refusals(known, [&](const ConvProblem& other) { return FitsFewPixels(program, other, device); });
  refusals.Check("a transposed one", [](ConvProblem* the) { the->transposed = true; });
  refusals.Check("X with channels first", [](ConvProblem* the) { the->x_channels_first = true; });
  refusals.Check("double", [](ConvProblem* the) { the->dtype = DType::kDouble; });
  refusals.Check("an operand that the program lacks", [](ConvProblem* the) { the->operands = {{256}}; });
  refusals.Check("a reach beyond 29 bits", [](ConvProblem* the) { the->dilations[0] = 1 << 28; });
  refusals.Check("no images", [](ConvProblem* the) { the->batch = 0; });
  refusals.Check("more weights than 31 bits count", [](ConvProblem* the) {
    the->filters = 1 << 21;
    the->batch = the->out_height = the->out_width = 1;
  });
  return Summary();
}
