#include "ortplugin/ops/conv_grad/grad_plan.h"

#include <algorithm>
#include <utility>

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/ort/scratch.h"

namespace ortplugin {
namespace {

size_t Bytes(const Shape& shape, DType dtype) { return ScratchBytes(size_t(ElementCount(shape)) * SizeOf(dtype)); }

Program Parse(const std::string& from, const std::string& to, const std::string& body) {
  return Program::Parse("(" + from + " x) => (" + to + " y) { y = " + body + " }");
}

Conversion Convert(const Shape& shape, DType from, DType to, const DeviceFacts& gpu) {
  const Program program = Parse(NameOf(from), NameOf(to), std::string("Cast<to=") + NameOf(to) + ">(x)");
  return {Bytes(shape, to), PlanPointwise(program, FitPointwise(program, {shape}), gpu, kMostVector)};
}

// Zeros: the sum of no rows.
SumPlan Zeros(const Shape& shape, DType dtype, const DeviceFacts& gpu) {
  const SumProgram sums = SumProgram::Parse(
    std::string("(") + NameOf(dtype) + " x) => (" + NameOf(dtype) + " y) { y = SumTo<axes=\"0\", keepdims=0>(x) }");
  return PlanSums(sums, {{0, ElementCount(shape)}}, gpu, true);
}

Padding Pad(const Shape& shape, bool channels_last, const Shape& pads_begin, const Shape& pads_end, DType dtype,
  const DeviceFacts& gpu) {
  constexpr size_t kAxes = 3;
  constexpr unsigned kThreads = 256;
  Padding padding{};
  padding.shape = shape;
  const size_t rank = pads_begin.size(), first = channels_last ? 1 : 2;
  std::vector<uint64_t> large(kAxes - rank, 1), small(kAxes - rank, 1), before(kAxes - rank, 0);
  for (size_t axis = 0; axis < rank; ++axis) {
    padding.shape[first + axis] += pads_begin[axis] + pads_end[axis];
    large.push_back(uint64_t(padding.shape[first + axis]));
    small.push_back(uint64_t(shape[first + axis]));
    before.push_back(uint64_t(pads_begin[axis]));
  }
  const auto count = uint64_t(ElementCount(padding.shape));
  padding.bytes = Bytes(padding.shape, dtype);
  std::vector<uint64_t>& arguments = padding.kernel.arguments;
  arguments = {0, 0, count, channels_last ? uint64_t(shape.back()) : 1};
  for (const std::vector<uint64_t>* each : {&large, &small, &before})
    arguments.insert(arguments.end(), each->begin(), each->end());
  padding.kernel.function = cuda::Load(gpu, PadSource(SizeOf(dtype)), "pad", cuda::Warn);
  constexpr uint64_t kMostBlocks = 1 << 20;
  padding.kernel.launch = {unsigned(std::min((count + kThreads - 1) / kThreads, kMostBlocks)), kThreads};
  return padding;
}

std::optional<cudnn::PlanText> Text(const std::string& algorithm) {
  if (algorithm == "auto" || algorithm == "own" || algorithm == "cudnn") return std::nullopt;
  return cudnn::PlanText::Parse(algorithm);
}

}  // namespace

size_t GradPart::scratch_bytes() const {
  size_t bytes = made_bytes + (plan != nullptr ? ScratchBytes(plan->workspace_bytes()) : 0) +
    (zeros ? ScratchBytes(zeros->scratch_bytes) : 0);
  for (const std::optional<Conversion>* each : {&first_conversion, &second_conversion})
    if (*each) bytes += (*each)->bytes;
  if (padding) bytes += padding->bytes;
  return bytes;
}

void GradPart::Run(const DeviceFacts& device, cuda::Stream stream, const void* first, const void* second, void* result,
  char* scratch) const {
  if (zeros) RunSums(*zeros, device, stream, {nullptr}, {result}, scratch);
  if (engine) {
    const void* const addresses[] = {first, second, result};
    engine->Launch(device, stream, addresses, 3);
  }
  if (plan == nullptr) return;
  cudnn::Arguments arguments{};
  arguments.inputs[0] = first;
  arguments.inputs[1] = second;
  const std::pair<const Conversion*, size_t> conversions[] = {
    {first_conversion ? &*first_conversion : nullptr, 0}, {second_conversion ? &*second_conversion : nullptr, 1}};
  for (const auto& [conversion, number] : conversions) {
    if (conversion == nullptr) continue;
    RunPointwise(conversion->plan, device, stream, {arguments.inputs[number]}, {scratch});
    arguments.inputs[number] = scratch;
    scratch += conversion->bytes;
  }
  if (padding) {
    const void* const addresses[] = {arguments.inputs[0], scratch};
    padding->kernel.Launch(device, stream, addresses, 2);
    arguments.inputs[0] = scratch;
    scratch += padding->bytes;
  }
  void* const made = result_conversion ? scratch : result;
  scratch += made_bytes;
  arguments.results = &made;
  arguments.workspace = scratch;
  plan->Run(stream, arguments);
  if (result_conversion) RunPointwise(result_conversion->plan, device, stream, {made}, {result});
}

void GradPlanner::Prepare(const GradShape& shape, const Shapes& shapes) const {
  const auto prepare = [&](const cudnn::Problem& problem, const std::string& algorithm) {
    const std::optional<cudnn::PlanText> text = Text(algorithm);
    cudnn::Version();
    cudnn::Prepare(device_, problem, cudnn::kMostWorkspace, text ? &*text : nullptr);
  };
  if (node_.wants_x && ElementCount(shape.x) > 0 && !FindDataGradEngine(node_, shape, device_))
    prepare(DataProblem(node_, shape), node_.data_algorithm);
  if (node_.wants_w && ElementCount(shape.w) > 0 && !FindWeightGradEngine(node_, shape, shapes, device_))
    prepare(WeightProblems(node_, shape).front(), node_.weight_algorithm);
}

// Finds the plan that the algorithm names, else any, of the first of the problems that has it, and returns which.
size_t GradPlanner::FindPlan(
  const std::vector<cudnn::Problem>& problems, const std::string& algorithm, GradPart* part) const {
  std::string refusal;
  const auto find = [&](const cudnn::PlanText* text) {
    size_t number = 0;
    for (refusal.clear(); number < problems.size(); ++number) {
      const cudnn::Found found = cudnn::FindPlan(device_, problems[number], cudnn::kMostWorkspace, text);
      part->plan = found.plan;
      if (found.plan != nullptr) break;
      refusal += (number == 0 ? "" : "; ") + problems[number].ToString() + ": " + found.refusal;
    }
    return number;
  };
  if (const std::optional<cudnn::PlanText> text = Text(algorithm)) {
    const size_t number = find(&*text);
    if (part->plan != nullptr) return number;
    Warn("the plan '" + algorithm + "' is not used, but auto: " + refusal);
  }
  const size_t number = find(nullptr);
  if (part->plan == nullptr) Fail(cudnn::Version(), " has no plan for ", refusal);
  return number;
}

// Of an algorithm that the attributes ask for in vain, once for each node.
void GradPlanner::Warn(const std::string& reason) const {
  if (warned_.exchange(true)) return;
  cuda::Warn("node '" + name_ + "' (ConvGrad): " + reason +
    ". Its algorithms were chosen for other shapes, another GPU or another cuDNN; run optimize-model --tune "
    "again, or set data_algorithm and weight_algorithm to auto");
}
void GradPlanner::WarnOfOwn(const char* gradient) const {
  Warn(
    std::string("there is no kernel of ours for ") + gradient + " here, as its algorithm asks; cuDNN takes its place");
}

GradPart GradPlanner::MakeData(const GradShape& shape) const {
  GradPart part;
  if (ElementCount(shape.x) == 0) return part;
  if (ElementCount(shape.z) == 0) {
    part.zeros = Zeros(shape.x, node_.dtype(), device_);
    return part;
  }
  part.engine = FindDataGradEngine(node_, shape, device_);
  if (part.engine) return part;
  if (node_.data_algorithm == "own") WarnOfOwn("dX");
  FindPlan({DataProblem(node_, shape)}, node_.data_algorithm, &part);
  return part;
}

GradPart GradPlanner::MakeWeight(const GradShape& shape) const {
  GradPart part;
  const DType given = node_.dtype(), wanted = node_.weight_dtype;
  if (ElementCount(shape.w) == 0) return part;
  if (ElementCount(shape.z) == 0 || ElementCount(shape.x) == 0) {
    part.zeros = Zeros(shape.w, wanted, device_);
    return part;
  }
  if (node_.weight_algorithm == "own") WarnOfOwn("dW");
  const std::vector<cudnn::Problem> problems = WeightProblems(node_, shape);
  const cudnn::Problem& problem = problems[FindPlan(problems, node_.weight_algorithm, &part)];
  const DType made = problem.dtype;
  const Shape &large = node_.transposed ? shape.z : shape.x, &small = node_.transposed ? shape.x : shape.z;
  if (made != given) {
    part.first_conversion = Convert(large, given, made, device_);
    part.second_conversion = Convert(small, given, made, device_);
  }
  if (problem.program == nullptr && made != wanted) {
    part.result_conversion = Convert(shape.w, made, wanted, device_);
    part.made_bytes = Bytes(shape.w, made);
  }
  const cudnn::Problem forward = ProblemWithoutEpilogue(shape.contraction);
  if (IsUneven(forward))
    part.padding = Pad(large, node_.channels_last, forward.pads_begin, forward.pads_end, made, device_);
  return part;
}

std::string PadSource(size_t element_bytes) {
  const char* const type = element_bytes == 2 ? "unsigned short"
    : element_bytes == 4                      ? "unsigned"
                                              : "unsigned long long";
  return std::string(kCommonSource) + "\n#define ELEMENT " + type + "\n" + kConvGradSource;
}

}  // namespace ortplugin
