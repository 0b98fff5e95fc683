// What the tests of kernels for Hopper's tensor cores share: dtypes, programs of convolutions and their operands, and
// what every such kernel owes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ortplugin/ops/conv/engines/engine.h"
#include "tests/native/check.h"
#include "tests/native/kernel_remarks.h"
#include "tests/native/square_conv.h"

namespace test {

constexpr ortplugin::DType kHalf = ortplugin::DType::kFloat16, kBrain = ortplugin::DType::kBFloat16,
                           kFloat = ortplugin::DType::kFloat;

constexpr const char* kIdentity = "(float16 c) => (float16 c) {}";
constexpr const char* kRelu = "(float16 c, float16 b) => (float16 y) {\n  s = Add(c, b)\n  y = Relu(s)\n}";
constexpr const char* kResidual =
  "(float16 c, float16 b, float16 r) => (float16 y) {\n  s = Add(c, b)\n  t = Add(s, r)\n  y = Relu(t)\n}";
// Two results, a residual, an operand of each image, one of each row, mixed dtypes.
constexpr const char* kMixed =
  "(bfloat16 c, bfloat16 b, bfloat16 r, float g, float h) => (bfloat16 y, float z) {\n  s = Add(c, b)\n"
  "  t = Add(s, r)\n  u = Gelu(t)\n  z = Cast<to=float>(u)\n  v = Mul(z, g)\n  w = Mul(v, h)\n"
  "  y = Cast<to=bfloat16>(w)\n}";

using ortplugin::Contraction;

struct ConvCase {
  const char* program;  // one of these
  Contraction problem;
};

// The cases, each with its program's operands.
inline std::vector<ConvCase> WithOperands(std::vector<ConvCase> cases) {
  for (ConvCase& conv_case : cases) {
    const Contraction& problem = conv_case.problem;
    std::vector<ortplugin::Shape> operands;
    if (conv_case.program != kIdentity) operands = {{problem.filters}};
    if (conv_case.program == kResidual || conv_case.program == kMixed) operands.push_back(problem.result());
    if (conv_case.program == kMixed) {
      operands.push_back({problem.batch, 1, 1, problem.filters});
      operands.push_back({problem.rows().out, 1, 1});
    }
    conv_case.problem.operands = operands;
  }
  return cases;
}

// The program, of float for float16 where the problem is one of float.
inline ortplugin::Program ProgramOf(const ConvCase& conv_case) {
  std::string text = conv_case.program;
  if (conv_case.problem.dtype() == kFloat)
    for (size_t at = 0; (at = text.find("16", at)) != std::string::npos;) text.erase(at, 2);
  return ortplugin::Program::Parse(text);
}

// Calls `check` with each case's program and problem, of a sample one in `every`, on a GPU that has the engine. `fits`
// says which has.
template <typename Check>
void ForEachCase(const std::vector<ConvCase>& cases, const ortplugin::DeviceFacts& device,
  bool (*fits)(const ortplugin::Program&, const Contraction&, const ortplugin::DeviceFacts&), const Check& check,
  int every = 6) {
  for (const ConvCase& conv_case : cases) {
    const ortplugin::Program program = ProgramOf(conv_case);
    CHECK(fits(program, conv_case.problem, device) == device.has_wgmma());
    const std::string name = conv_case.program + ortplugin::ToString(conv_case.problem.result());
    if (device.has_wgmma() && IsTaken(std::to_string(conv_case.problem.channels), name, every))
      check(program, conv_case.problem);
  }
}

// Compiles a kernel, and fails where NVRTC warns of its arithmetic, where registers are spilled to local memory or
// where the tensor cores wait for each MMA or for another warpgroup's. Returns what to print of it, of a tile
// configuration in words; VERBOSE=1 prints it.
inline std::string CheckCompiles(const ortplugin::DeviceFacts& device, const std::string& source, const char* kernel,
  const Contraction& problem, const ortplugin::cuda::LaunchShape& launch, const std::string& config,
  int min_blocks = 1) {
  Compiled compiled(source, "sm_90a");
  const std::string text =
    Joined(NameOf(problem.dtype()), " ", problem.channels, " to ", ortplugin::ToString(problem.result()), ": ", config,
      ", ", launch.blocks, "x", launch.threads, " with ", launch.shared_bytes, " bytes,");
  compiled.Check(text);
  CHECK_WITH(!Contains(compiled.log(), "serialized"), compiled.log());
  compiled.CheckLaunch(device, kernel, launch.threads, launch.shared_bytes, {min_blocks});
  CHECK_WITH(launch.blocks > 0, compiled.variant());
  return compiled.variant();
}

// Those of every engine for Hopper's tensor cores, and more that a test adds; `is_gemm`: of the one that takes more.
inline Refusals RefusalsOfWgmma(const Contraction& known, Refusals::Fits fits, bool is_gemm = false) {
  const Refusals refusals(known, std::move(fits));
  if (!is_gemm) refusals.Check("float32", [](auto* conv) { conv->dtypes = Contraction::AllOf(kFloat); });
  refusals.Check("groups", [](auto* conv) { conv->groups = 2; });
  refusals.Check("12 channels", [](auto* conv) { conv->channels = 12; });
  if (!is_gemm) refusals.Check("12 filters", [](auto* conv) { conv->filters = 12; });
  refusals.Check("Y with channels first", [](auto* conv) { conv->y_channels_first = true; });
  return refusals;
}

}  // namespace test
