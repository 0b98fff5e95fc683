#include "ortplugin/ops/conv_grad/grad_ways.h"

#include <algorithm>
#include <memory>

#include "ortplugin/ops/conv/engines/direct.h"
#include "ortplugin/ops/conv/geometry.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/program/operands.h"

namespace ortplugin {
namespace {

// Whether dX is faster as a convolution on FusedConv's kernel than on cuDNN, as measured in float32: cuDNN makes 32
// channels of X at a time.
bool IsDataGradFast(const DirectConv& conv, const cuda::DeviceFacts& gpu) {
  const int64_t taps = conv.kernel[0] * conv.kernel[1];
  if (taps == 1) return false;
  if (conv.outputs <= 4) return conv.channels <= 64;
  // Larger sums take so long that a multiprocessor must have many of them.
  constexpr int64_t kFewProducts = int64_t{1} << 20;
  const int64_t products =
      conv.images * conv.groups * conv.outputs * conv.output[0] * conv.output[1] * conv.channels * taps;
  return conv.channels <= 32 && conv.outputs <= 16 && products > kFewProducts * gpu.multiprocessors;
}

bool IsTaken(const std::string& algorithm, bool is_fast) {
  return algorithm == "own" || (algorithm == "auto" && is_fast);
}

// From X and dZ of dtype `from` to dW of dtype `to`.
cudnn::Problem WeightProblem(const GradNode& node, const GradShape& shape, DType from, DType to) {
  cudnn::Problem problem = ForwardProblem(node, shape);
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

// dX as the convolution of dZ with W turned around, or of a transposed convolution with W as it is.
std::optional<OwnDataGrad> FindOwnData(const GradNode& node, const GradShape& shape, const cuda::DeviceFacts& gpu) {
  if (node.rank() != 2 || node.channels_last || ElementCount(shape.x) == 0) return std::nullopt;
  const Contraction& the = shape.contraction;
  DirectConv conv{};
  conv.images = the.batch;
  conv.groups = the.group;
  conv.channels = node.transposed ? the.b : the.a;
  conv.outputs = node.transposed ? the.a : the.b;
  conv.turned_weights = !node.transposed;
  for (size_t i = 0; i < 2; ++i) {
    const ContractionAxis& axis = the.axes[i];
    conv.image[i] = node.transposed ? axis.large : axis.small;
    conv.output[i] = node.transposed ? axis.small : axis.large;
    conv.kernel[i] = axis.kernel;
    conv.strides[i] = axis.stride;
    conv.dilations[i] = axis.dilation;
    conv.pads[i] = node.transposed ? axis.begin : (axis.kernel - 1) * axis.dilation - axis.begin;
    if (conv.pads[i] < 0 || (axis.stride > 1 && !node.transposed)) return std::nullopt;
  }
  if (!FitsDirect(conv, node.dtype()) || !IsTaken(node.data_algorithm, !node.allow_tf32 && IsDataGradFast(conv, gpu)))
    return std::nullopt;
  const std::optional<DirectSchedule> schedule = ScheduleDirect(conv, gpu, kMostVector);
  if (!schedule) return std::nullopt;
  const Program bare = Program::Parse("(float x) => (float x) {}");
  const Axes axes = JoinAxes(shape.x, {shape.x});
  return OwnDataGrad{cuda::Load(gpu, DirectSource(conv, bare, axes, *schedule), "conv_direct", cuda::Warn),
                     DirectLaunch(*schedule, gpu), DirectArguments(conv, bare, axes, *schedule)};
}

std::optional<OwnWeightGrad> FindOwnWeight(const GradNode& node, const GradShape& shape,
                                           const std::vector<Shape>& shapes, const cuda::DeviceFacts& gpu) {
  const Contraction& the = shape.contraction;
  if (!node.wants_w || node.rank() != 2 || node.group != 1 || ElementCount(shape.w) == 0 ||
      ElementCount(shape.z) == 0 || ElementCount(shape.x) == 0)
    return std::nullopt;
  WeightGrad grad{};
  grad.images = the.batch;
  grad.outputs = the.a;
  grad.channels = the.b;
  for (size_t i = 0; i < 2; ++i) {
    const ContractionAxis& axis = the.axes[i];
    if (axis.dilation != 1) return std::nullopt;
    grad.image[i] = axis.large;
    grad.output[i] = axis.small;
    grad.kernel[i] = axis.kernel;
    grad.strides[i] = axis.stride;
    grad.pads[i] = axis.begin;
  }
  grad.channels_last = node.channels_last;
  grad.weight_dtype = node.weight_dtype;
  if (!FitsWeightGrad(grad, node.dtype()) ||
      !IsTaken(node.weight_algorithm, IsWeightGradFast(grad, node.dtype(), node.allow_tf32)))
    return std::nullopt;
  const std::string name = NameOf(node.dtype());
  const Program bare = Program::Parse("(" + name + " x) => (" + name + " x) {}");
  const Shape& small = node.transposed ? shape.x : shape.z;
  OwnWeightGrad own{};
  const std::vector<Shape> given(shapes.begin() + static_cast<std::ptrdiff_t>(node.operands()), shapes.end());
  const Axes axes = JoinAxes(shape.z, given);
  own.draws_in = !node.transposed && IsWeightGradProgram(node.program, axes, node.wants_b);
  own.stores_z = own.draws_in && node.stores_z() && (node.wants_x || node.wants_z);
  grad.stores_z = own.stores_z;
  grad.makes_bias = own.draws_in && node.wants_b;
  const Program& program = own.draws_in ? node.program : bare;
  const std::optional<WeightGradSchedule> schedule = ScheduleWeightGrad(grad, program, gpu);
  if (!schedule) return std::nullopt;
  own.plan = PlanWeightGrad(grad, program, own.draws_in ? axes : JoinAxes(small, {small}), *schedule, gpu);
  return own;
}

cudnn::Problem ForwardProblem(const GradNode& node, const GradShape& shape) {
  const auto tensor = [&](const Shape& of) {
    return node.channels_last ? cudnn::ChannelsLast(ChannelsFirst(of)) : cudnn::ChannelsFirst(of);
  };
  cudnn::Problem problem;
  problem.dtype = node.dtype();
  problem.allow_tf32 = node.allow_tf32;
  problem.x = tensor(node.transposed ? shape.z : shape.x);
  problem.y = tensor(node.transposed ? shape.x : shape.z);
  problem.w = tensor(shape.w);
  problem.strides = node.strides;
  problem.dilations = node.dilations;
  problem.pads_begin = node.begin;
  problem.groups = node.group;
  for (size_t axis = 0; axis < node.rank(); ++axis) {
    // Of a transposed convolution whose output_padding reaches the stride, what no element of X has a part in.
    const ContractionAxis& each = shape.contraction.axes[axis];
    const int64_t least = (each.small - 1) * each.stride + (each.kernel - 1) * each.dilation + 1 - each.begin;
    const int64_t end = node.end[axis], rest = each.large - (least - end);
    problem.pads_end.push_back(end - rest / each.stride * each.stride);
  }
  return problem;
}

cudnn::Problem DataProblem(const GradNode& node, const GradShape& shape) {
  cudnn::Problem problem = ForwardProblem(node, shape);
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

std::vector<std::string> ListGradAlgorithms(const GradNode& node, const std::vector<Shape>& shapes,
                                            const cuda::DeviceFacts& gpu) {
  constexpr size_t kMostPlans = 8;  // of a problem, and of dX in 16 bits as many with an identity
  const GradShape shape = FitGrad(node, shapes);
  std::vector<std::string> lines;
  if (ElementCount(shape.z) == 0) return lines;
  GradNode own = node;
  own.data_algorithm = own.weight_algorithm = "own";
  const auto add = [&](const std::string& attribute, bool has_own, const std::vector<cudnn::Problem>& problems) {
    const auto add_line = [&](const std::string& text) {
      const std::string line = attribute + "=" + text;
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
    };
    if (has_own) add_line("own");
    for (const cudnn::Problem& problem : problems)
      for (const cudnn::PlanText& plan : cudnn::ListPlans(gpu, problem, cudnn::kMostWorkspace, kMostPlans))
        add_line(plan.ToString());
  };
  if (node.wants_x && ElementCount(shape.x) > 0)
    add("data_algorithm", FindOwnData(own, shape, gpu).has_value(), {DataProblem(node, shape)});
  if (node.wants_w && ElementCount(shape.w) > 0 && ElementCount(shape.x) > 0)
    add("weight_algorithm", FindOwnWeight(own, shape, shapes, gpu).has_value(), WeightProblems(node, shape));
  return lines;
}

}  // namespace ortplugin
