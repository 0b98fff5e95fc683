// What cuDNN is asked for dX and dW: dtypes, padding, and in which order.

#include "ortplugin/ops/conv_grad/grad_engines.h"

#include "ortplugin/ops/conv/conv_cuda.h"
#include "tests/native/check.h"

using namespace ortplugin;

namespace {

// The gradients of Y[2, 8, 9, 11] from X[2, 4, 9, 11], of a kernel of 3x3.
GradNode Node(const std::string& dtype, DType weight_dtype) {
  GradNode node{};
  node.text = "(" + dtype + " dz) => (" + dtype + " dz) {}";
  node.program = Program::Parse(node.text);
  node.wants_x = node.wants_w = node.has_x = node.has_w = true;
  node.group = 1;
  node.kernel = {3, 3};
  node.strides = node.dilations = {1, 1};
  node.pads_begin = node.pads_end = {1, 1};
  node.output_padding = {0, 0};
  node.weight_dtype = weight_dtype;
  return node;
}

GradShape Fit(const GradNode& node) {
  const Shape x{2, 4, 9, 11}, w{8, 4 / node.group, 3, 3}, z{2, 8, 9, 11};
  return FitGrad(node, {x, w, z});
}

// "float16>float float": what each of dW's problems reads, and after > what its program writes.
std::string WeightDtypes(const std::string& dtype, DType weight_dtype, int64_t group = 1) {
  GradNode node = Node(dtype, weight_dtype);
  node.group = group;
  std::string text;
  for (const cudnn::Problem& problem : WeightProblems(node, Fit(node))) {
    cudnn::Check(problem);
    CHECK(problem.direction == cudnn::Direction::kWeightGradient);
    CHECK(problem.allow_tf32 == (problem.dtype != node.dtype()));  // of what 16-bit floats were converted to
    text += (text.empty() ? "" : " ") + std::string(NameOf(problem.dtype));
    if (problem.program != nullptr) text += ">" + std::string(NameOf(problem.program->result(0).dtype));
  }
  return text;
}

void TestDtypes() {
  CHECK(WeightDtypes("float16", DType::kFloat16) == "float16");
  CHECK(WeightDtypes("float16", DType::kFloat) == "float16>float float");
  CHECK(WeightDtypes("bfloat16", DType::kFloat) == "bfloat16>float float");
  CHECK(WeightDtypes("float16", DType::kDouble) == "float");
  CHECK(WeightDtypes("bfloat16", DType::kFloat16) == "float");
  CHECK(WeightDtypes("float", DType::kFloat) == "float");
  CHECK(WeightDtypes("float", DType::kFloat16) == "float");
  CHECK(WeightDtypes("double", DType::kFloat) == "double");
  // cuDNN rounds partial sums of groups to bfloat16.
  CHECK(WeightDtypes("bfloat16", DType::kBFloat16, 2) == "float");
  CHECK(WeightDtypes("bfloat16", DType::kFloat, 2) == "float");
  CHECK(WeightDtypes("float16", DType::kFloat, 2) == "float16>float float");
}

void TestPads() {
  const GradNode even = Node("float", DType::kFloat);
  const cudnn::Problem same = WeightProblems(even, Fit(even))[0];
  CHECK(same.pads_begin == Shape({1, 1}) && same.x.dims == Shape({2, 4, 9, 11}));
  GradNode uneven = even;
  uneven.pads_begin = {2, 1};
  uneven.pads_end = {0, 1};
  const GradShape shape = Fit(uneven);
  CHECK(!IsUneven(ProblemWithoutEpilogue(Fit(even).contraction)));
  CHECK(IsUneven(ProblemWithoutEpilogue(shape.contraction)));
  const cudnn::Problem data = DataProblem(uneven, shape), weight = WeightProblems(uneven, shape)[0];
  CHECK(data.pads_begin == Shape({2, 1}) && data.pads_end == Shape({0, 1}) && data.x.dims == Shape({2, 4, 9, 11}));
  CHECK(weight.pads_begin == Shape({0, 0}) && weight.pads_end == Shape({0, 0}));
  CHECK(weight.x.dims == Shape({2, 4, 11, 13}) && weight.x.strides == Shape({572, 143, 13, 1}));
  cudnn::Check(data);
  cudnn::Check(weight);
}

}  // namespace

int main() {
  TestDtypes();
  TestPads();
  return test::Summary();
}
