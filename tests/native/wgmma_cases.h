// What the tests of kernels for Hopper's tensor cores share: dtypes, programs of convolutions, and their operands.
#pragma once

#include <vector>

#include "ortplugin/ops/conv/own_kernels.h"

namespace test {

constexpr ortplugin::DType kHalf = ortplugin::DType::kFloat16, kBrain = ortplugin::DType::kBFloat16,
                           kFloat = ortplugin::DType::kFloat;

constexpr const char* kBare = "(float16 c) => (float16 c) {}";
constexpr const char* kRelu = "(float16 c, float16 b) => (float16 y) {\n  s = Add(c, b)\n  y = Relu(s)\n}";
constexpr const char* kResidual =
    "(float16 c, float16 b, float16 r) => (float16 y) {\n  s = Add(c, b)\n  t = Add(s, r)\n  y = Relu(t)\n}";
// Two results, a residual, an operand of each image, one of each row, mixed dtypes.
constexpr const char* kMixed =
    "(bfloat16 c, bfloat16 b, bfloat16 r, float g, float h) => (bfloat16 y, float z) {\n  s = Add(c, b)\n"
    "  t = Add(s, r)\n  u = Gelu(t)\n  z = Cast<to=float>(u)\n  v = Mul(z, g)\n  w = Mul(v, h)\n"
    "  y = Cast<to=bfloat16>(w)\n}";

struct ConvCase {
  const char* program;  // one of these
  ortplugin::ConvProblem problem;
};

// The cases, each with its program's operands.
inline std::vector<ConvCase> WithOperands(std::vector<ConvCase> cases) {
  for (ConvCase& the : cases) {
    const ortplugin::ConvProblem& problem = the.problem;
    std::vector<ortplugin::Shape> operands;
    if (the.program != kBare) operands = {{problem.filters}};
    if (the.program == kResidual || the.program == kMixed) operands.push_back(problem.output_shape());
    if (the.program == kMixed) {
      operands.push_back({problem.batch, 1, 1, problem.filters});
      operands.push_back({problem.out_height, 1, 1});
    }
    the.problem.operands = operands;
  }
  return cases;
}

}  // namespace test
