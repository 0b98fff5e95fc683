#include "ortplugin/ops/conv_grad/grad_engines.h"

#include <algorithm>
#include <memory>

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv/engines/direct.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

// Whether dX is known to be faster as a convolution on FusedConv's kernel than on cuDNN, in float32.
bool IsDataGradFast(const Contraction& conv, const DeviceFacts& gpu) {
  const MeasuredGpu* const target = FindTarget(gpu);
  const int64_t taps = conv.windows[0].kernel * conv.windows[1].kernel;
  if (target == nullptr || taps == 1) return false;
  const TargetLimits& limits = target->limits;
  if (conv.group_filters() <= limits.data_grad_few_outputs)
    return conv.group_channels() <= limits.data_grad_most_channels_few;
  const int64_t multiply_adds = conv.batch * conv.groups * conv.group_filters() * conv.windows[0].out *
    conv.windows[1].out * conv.group_channels() * taps;
  return conv.group_channels() <= limits.data_grad_most_channels &&
    conv.group_filters() <= limits.data_grad_most_outputs &&
    multiply_adds > limits.data_grad_least_work * gpu.multiprocessors;
}

bool IsTaken(const std::string& algorithm, bool is_fast) {
  return algorithm == "own" || (algorithm == "auto" && is_fast);
}

// From X and dZ of dtype `from` to dW of dtype `to`.
cudnn::Problem WeightProblem(const GradNode& node, const GradShape& shape, DType from, DType to) {
  cudnn::Problem problem = ProblemWithoutEpilogue(shape.contraction);
  problem.direction = cudnn::Direction::kWeightGradient;
  problem.dtype = from;
  if (from != node.dtype()) problem.allow_tf32 = true;  // it holds 16-bit floats exactly
  if (IsUneven(problem)) {
    for (size_t axis = 0; axis < node.rank(); ++axis)
      problem.x.dims[2 + axis] += problem.pads_begin[axis] + problem.pads_end[axis];
    problem.x = node.channels_last ? cudnn::ChannelsLast(problem.x.dims) : cudnn::ChannelsFirst(problem.x.dims);
    problem.pads_begin.assign(node.rank(), 0);
    problem.pads_end.assign(node.rank(), 0);
  }
  if (from == to) return problem;
  const std::string given = NameOf(from), wanted = NameOf(to);
  problem.program = std::make_shared<const Program>(
    Program::Parse("(" + given + " x) => (" + wanted + " y) { y = Cast<to=" + wanted + ">(x) }"));
  problem.results = {problem.w};
  return problem;
}

}  // namespace

// dX as the convolution of dZ with W rotated by 180 degrees, or of a transposed convolution with W as it is.
std::optional<cuda::PackedKernel> FindDataGradEngine(
  const GradNode& node, const GradShape& shape, const DeviceFacts& gpu) {
  if (node.rank() != 2 || node.channels_last || ElementCount(shape.x) == 0) return std::nullopt;
  Contraction conv = node.transposed ? shape.contraction : shape.contraction.Reversed();
  conv.transposed = false;
  conv.rotated_weights = !node.transposed;
  for (Window& window : conv.windows) {
    if (!node.transposed) window.pad_begin = window.extent() - 1 - window.pad_begin;
    if (window.pad_begin < 0 || (window.stride > 1 && !node.transposed)) return std::nullopt;
  }
  if (!FitsDirect(conv) || !IsTaken(node.data_algorithm, !node.allow_tf32 && IsDataGradFast(conv, gpu)))
    return std::nullopt;
  const std::optional<DirectConfig> config = ConfigureDirect(conv, gpu, kMostVector);
  if (!config) return std::nullopt;
  const Program identity = Program::Parse("(float x) => (float x) {}");
  const Axes axes = JoinAxes(shape.x, {shape.x});
  return cuda::PackedKernel{cuda::Load(gpu, DirectSource(conv, identity, axes, *config), "conv_direct", cuda::Warn),
    DirectLaunch(*config, gpu), DirectArguments(conv, identity, axes, *config)};
}

std::optional<WeightGradEngine> FindWeightGradEngine(
  const GradNode& node, const GradShape& shape, const Shapes& shapes, const DeviceFacts& gpu) {
  if (!node.wants_w || ElementCount(shape.w) == 0 || ElementCount(shape.z) == 0 || ElementCount(shape.x) == 0)
    return std::nullopt;
  WeightGrad grad{shape.contraction, node.weight_dtype, false, false};
  if (!FitsWeightGrad(grad) || !IsTaken(node.weight_algorithm, IsWeightGradFast(grad, gpu))) return std::nullopt;
  const std::string name = NameOf(node.dtype());
  const Program identity = Program::Parse("(" + name + " x) => (" + name + " x) {}");
  const Shape& small = node.transposed ? shape.x : shape.z;
  WeightGradEngine engine{};
  const Shapes given(shapes.begin() + std::ptrdiff_t(node.operands()), shapes.end());
  const Axes axes = JoinAxes(shape.z, given);
  engine.draws_in = !node.transposed && IsWeightGradProgram(node.program, axes, node.wants_b);
  engine.stores_z = engine.draws_in && node.stores_z() && (node.wants_x || node.wants_z);
  grad.stores_z = engine.stores_z;
  grad.makes_bias = engine.draws_in && node.wants_b;
  const Program& program = engine.draws_in ? node.program : identity;
  const std::optional<WeightGradConfig> config = ConfigureWeightGrad(grad, program, gpu);
  if (!config) return std::nullopt;
  engine.plan = PlanWeightGrad(grad, program, engine.draws_in ? axes : JoinAxes(small, {small}), *config, gpu);
  return engine;
}

cudnn::Problem DataProblem(const GradNode& node, const GradShape& shape) {
  cudnn::Problem problem = ProblemWithoutEpilogue(shape.contraction);
  problem.direction = node.transposed ? cudnn::Direction::kForward : cudnn::Direction::kDataGradient;
  return problem;
}

bool IsUneven(const cudnn::Problem& forward) { return forward.pads_begin != forward.pads_end; }

std::vector<cudnn::Problem> WeightProblems(const GradNode& node, const GradShape& shape) {
  const DType given = node.dtype(), wanted = node.weight_dtype;
  const bool is_narrow = SizeOf(given) == 2;
  // cuDNN rounds partial sums of grouped gradients to bfloat16.
  const bool is_coarse = given == DType::kBFloat16 && node.group > 1;
  if (given == wanted && !is_coarse) return {WeightProblem(node, shape, given, given)};
  std::vector<cudnn::Problem> problems;
  if (is_narrow && !is_coarse && wanted == DType::kFloat) problems.push_back(WeightProblem(node, shape, given, wanted));
  // Sums that keep their digits come of float32 operands.
  const DType made = is_narrow ? DType::kFloat : given;
  problems.push_back(WeightProblem(node, shape, made, made));
  return problems;
}

std::vector<std::string> ListGradAlgorithms(const GradNode& node, const Shapes& shapes, const DeviceFacts& gpu) {
  constexpr size_t kMostPlans = 8;  // of a problem, and of dX in fp16 and bf16 as many with an identity
  const GradShape shape = FitGrad(node, shapes);
  std::vector<std::string> lines;
  if (ElementCount(shape.z) == 0) return lines;
  GradNode engine = node;
  engine.data_algorithm = engine.weight_algorithm = "own";
  const auto add = [&](const std::string& attribute, bool has_engine, const std::vector<cudnn::Problem>& problems) {
    const auto add_line = [&](const std::string& text) {
      const std::string line = attribute + "=" + text;
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
    };
    if (has_engine) add_line("own");
    for (const cudnn::Problem& problem : problems)
      for (const cudnn::PlanText& plan : cudnn::ListPlans(gpu, problem, cudnn::kMostWorkspace, kMostPlans))
        add_line(plan.ToString());
  };
  if (node.wants_x && ElementCount(shape.x) > 0)
    add("data_algorithm", FindDataGradEngine(engine, shape, gpu).has_value(), {DataProblem(node, shape)});
  if (node.wants_w && ElementCount(shape.w) > 0 && ElementCount(shape.x) > 0)
    add("weight_algorithm", FindWeightGradEngine(engine, shape, shapes, gpu).has_value(), WeightProblems(node, shape));
  return lines;
}

}  // namespace ortplugin
