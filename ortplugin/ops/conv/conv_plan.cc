#include "ortplugin/ops/conv/conv_plan.h"

#include <cstddef>

#include "ortplugin/ops/conv/engines/pixel_shuffle.h"
#include "ortplugin/ops/transpose/transpose.h"
#include "ortplugin/runtime/ort/scratch.h"

namespace ortplugin {
namespace {

// Of the node's input: X, W or an operand.
DType InputType(const Program& program, size_t input) {
  if (input < kConvInputs) return ValueType(program);
  return program.parameter(input - kConvInputs + 1).dtype;
}

void Transpose(const ConvPlan::Transposition& transposition, const DeviceFacts& device, cuda::Stream stream,
  const void* from, void* to) {
  const void* const addresses[] = {from, to};
  transposition.kernel.Launch(device, stream, addresses, 2);
}

}  // namespace

bool ConvPlanner::Prepare(const Contraction& given) const {
  const Contraction contraction = given.WithMergedFrames();
  if (contraction.is_empty() || FindOwnKernel(contraction)) return false;
  const cudnn::PlanText* text = algorithm_.plan ? &*algorithm_.plan : nullptr;
  if (IsShuffled(contraction)) {
    cudnn::Prepare(device_, GemmProblem(contraction), cudnn::kMostWorkspace, text);
    return true;
  }
  const bool is_split =
    algorithm_.kind == ConvAlgorithm::Kind::kSplit || !cudnn::RefusalOf(*contraction.program).empty();
  cudnn::Version();  // throws where there is none
  cudnn::Prepare(device_, is_split ? ProblemWithoutEpilogue(contraction) : ProblemWithEpilogue(contraction),
    cudnn::kMostWorkspace, text);
  return true;
}

std::optional<EngineKernel> ConvPlanner::FindOwnKernel(const Contraction& contraction) const {
  if (algorithm_.kind != ConvAlgorithm::Kind::kAuto && algorithm_.kind != ConvAlgorithm::Kind::kOwn)
    return std::nullopt;
  return FindEngineKernel(*contraction.program, contraction, device_, algorithm_.kind == ConvAlgorithm::Kind::kAuto);
}

std::unique_ptr<ConvPlan> ConvPlanner::Make(const Contraction& given, const std::vector<size_t>& unaligned) const {
  Contraction contraction = given.WithMergedFrames();
  Shapes shapes{contraction.x(), contraction.w()};
  shapes.insert(shapes.end(), contraction.operands.begin(), contraction.operands.end());
  // What is copied first is written by the kernel in front.
  for (const size_t tensor : unaligned) {
    if (tensor == 1) contraction.constant_weights = false;
    if (tensor >= kConvInputs && tensor < shapes.size()) contraction.constant_operands[tensor - kConvInputs] = false;
  }
  auto plan = std::make_unique<ConvPlan>();
  plan->inputs = shapes.size();
  plan->shape = contraction.result();
  plan->output = given.output();
  EpilogueAxes(*contraction.program, kConvInputs, plan->shape, shapes);  // throws where one does not broadcast
  if (contraction.is_empty()) {
    // Whatever stands there becomes zero.
    const std::string name = NameOf(contraction.dtype());
    const Program zero =
      Program::Parse("(" + name + " x) => (" + name + " y) { m = Greater(x, x) y = Where(m, x, 0) }");
    plan->zeros = PlanPointwise(zero, FitPointwise(zero, {plan->shape}), device_, kMostVector);
    Split(contraction, plan.get());
  } else if (std::optional<EngineKernel> engine_kernel = FindOwnKernel(contraction)) {
    plan->engine = engine_kernel->Load(device_);
  } else {
    if (algorithm_.kind == ConvAlgorithm::Kind::kOwn) WarnOfAlgorithm("there is no such kernel for it");
    FindCudnn(contraction, plan.get());
  }
  if (!plan->engine) {
    const int64_t pixels = ElementCount(plan->shape) / contraction.batch / contraction.filters;
    if (contraction.x_channels_first && !contraction.is_empty())
      AddTransposition(0, contraction.dtype(), contraction.channels,
        ElementCount(contraction.x()) / contraction.batch / contraction.channels, ElementCount(contraction.x()),
        plan.get());
    for (size_t r = 0; contraction.y_channels_first && r < contraction.program->results().size(); ++r)
      AddTransposition(shapes.size() + r, contraction.program->result(r).dtype, pixels, contraction.filters,
        ElementCount(plan->shape), plan.get());
  }
  for (const size_t tensor : unaligned) {
    if (tensor < plan->inputs)
      plan->copies.Add(tensor, InputType(*contraction.program, tensor), shapes[tensor], device_);
    else
      plan->copies.Add(tensor, contraction.program->result(tensor - plan->inputs).dtype, plan->shape, device_);
  }
  // Scratch memory holds cuDNN's workspace, the convolution's value, copies of tensors, and transposed tensors.
  plan->scratch_bytes = plan->value_bytes + plan->copies.bytes();
  for (const ConvPlan::Transposition& transposition : plan->transpositions) plan->scratch_bytes += transposition.bytes;
  if (plan->convolution != nullptr) plan->scratch_bytes += ScratchBytes(plan->convolution->workspace_bytes());
  return plan;
}

bool ConvPlanner::IsShuffled(const Contraction& contraction) const {
  if (algorithm_.kind != ConvAlgorithm::Kind::kAuto && algorithm_.kind != ConvAlgorithm::Kind::kShuffle) return false;
  return FitsPixelShuffle(contraction) &&
    (algorithm_.kind == ConvAlgorithm::Kind::kShuffle || IsPixelShuffleFast(contraction, device_));
}

// A GEMM and our kernel after it. Returns the reason why there is none, or nothing.
std::string ConvPlanner::FindShuffle(const Contraction& contraction, ConvPlan* plan) const {
  if (!IsShuffled(contraction))
    return "its kernel overlaps, or its strides, layout, groups or dtype are not those of a shuffle";
  const cudnn::PlanText* text = algorithm_.plan ? &*algorithm_.plan : nullptr;
  const cudnn::Found found = cudnn::FindPlan(device_, GemmProblem(contraction), cudnn::kMostWorkspace, text);
  if (found.plan == nullptr) return found.refusal;
  plan->convolution = found.plan;
  plan->value_bytes = ScratchBytes(GemmBytes(contraction));
  plan->engine = PixelShuffleKernel(contraction).Load(device_);
  return "";
}

void ConvPlanner::FindCudnn(const Contraction& contraction, ConvPlan* plan) const {
  using Kind = ConvAlgorithm::Kind;
  if (algorithm_.kind == Kind::kAuto || algorithm_.kind == Kind::kShuffle) {
    const std::string reason = FindShuffle(contraction, plan);
    if (plan->engine) return;
    if (algorithm_.kind == Kind::kShuffle) WarnOfAlgorithm(reason);
  }
  const auto find = [&](bool is_split, const cudnn::PlanText* text) {
    const cudnn::Problem problem = is_split ? ProblemWithoutEpilogue(contraction) : ProblemWithEpilogue(contraction);
    const cudnn::Found found = cudnn::FindPlan(device_, problem, cudnn::kMostWorkspace, text);
    plan->convolution = found.plan;
    plan->is_split = is_split;
    return found.refusal;
  };
  std::string refusal;
  if (algorithm_.plan && algorithm_.kind != Kind::kShuffle) {
    refusal = find(algorithm_.kind == Kind::kSplit, &*algorithm_.plan);
    if (plan->convolution == nullptr) WarnOfAlgorithm(refusal);
  }
  if (plan->convolution == nullptr && (algorithm_.kind != Kind::kSplit || IsIdentity(*contraction.program))) {
    refusal = cudnn::RefusalOf(*contraction.program);
    if (refusal.empty()) refusal = find(false, nullptr);
    if (plan->convolution == nullptr && algorithm_.kind == Kind::kFused && !algorithm_.plan) WarnOfAlgorithm(refusal);
  }
  if (plan->convolution == nullptr && !IsIdentity(*contraction.program)) refusal = find(true, nullptr);
  if (plan->convolution == nullptr) Fail(cudnn::Version(), " has no plan for it: ", refusal);
  if (plan->is_split) Split(contraction, plan);
}

// The program in a kernel of its own, after the convolution; in its place where a result has its dtype.
void ConvPlanner::Split(const Contraction& contraction, ConvPlan* plan) const {
  for (size_t r = contraction.program->results().size(); r-- > 0;)
    if (contraction.program->result(r).dtype == contraction.dtype()) plan->value_result = r;
  if (!plan->value_result)
    plan->value_bytes = ScratchBytes(size_t(ElementCount(plan->shape)) * SizeOf(contraction.dtype()));
  plan->is_split = !IsIdentity(*contraction.program);
  if (!plan->is_split) return;
  Shapes shapes{plan->shape};
  shapes.insert(shapes.end(), contraction.operands.begin(), contraction.operands.end());
  plan->epilogue =
    PlanPointwise(*contraction.program, FitPointwise(*contraction.program, shapes), device_, kMostVector);
}

// Transposes every matrix [rows, columns] of a tensor.
void ConvPlanner::AddTransposition(
  size_t tensor, DType dtype, int64_t rows, int64_t columns, int64_t count, ConvPlan* plan) const {
  constexpr int kAlignment = 16;  // of scratch memory, and of tensors, which are copied where they lie elsewhere
  const auto size = int64_t(SizeOf(dtype));
  const Shape whole{INT64_MAX, INT64_MAX, INT64_MAX};
  const TransposeShape shape =
    FitTranspose({{0, 2, 1}, {0, 0, 0}, whole}, {count / rows / columns, rows, columns}, size);
  plan->transpositions.push_back(
    {tensor, ScratchBytes(size_t(count * size)), LoadTranspose(shape, device_, kAlignment)});
}

// Once for each node.
void ConvPlanner::WarnOfAlgorithm(const std::string& reason) const {
  if (warned_.exchange(true)) return;
  cuda::Warn("node '" + node_ + "': the algorithm '" + algorithm_.ToString() + "' is not used, but auto: " + reason +
    ". It was tuned for other shapes, another GPU or another cuDNN; run optimize-model --tune again");
}

void ConvPlan::Run(
  const DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& given, char* scratch) const {
  char* const workspace = scratch;
  if (convolution != nullptr) scratch += ScratchBytes(convolution->workspace_bytes());
  char* const value = scratch;
  scratch += value_bytes;
  const std::vector<void*> aligned = copies.CopyInputs(device, stream, inputs, given, scratch);
  scratch += copies.bytes();
  std::vector<void*> addresses = aligned;
  for (const Transposition& transposition : transpositions) {
    addresses[transposition.tensor] = scratch;
    scratch += transposition.bytes;
    if (transposition.tensor < inputs)
      Transpose(transposition, device, stream, aligned[transposition.tensor], addresses[transposition.tensor]);
  }
  if (!engine) {
    RunCudnn(device, stream, addresses, workspace, value);
  } else {
    if (convolution != nullptr) {
      void* results[] = {value};
      convolution->Run(stream, {{addresses[0], addresses[1]}, nullptr, results, workspace});
      addresses[0] = value;
    }
    engine->Launch(device, stream, addresses.data(), addresses.size());
  }
  for (const Transposition& transposition : transpositions)
    if (transposition.tensor >= inputs)
      Transpose(transposition, device, stream, addresses[transposition.tensor], aligned[transposition.tensor]);
  copies.CopyOutputs(device, stream, inputs, given, aligned);
}

void ConvPlan::RunCudnn(const DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& addresses,
  void* workspace, void* value) const {
  const std::vector<void*> results(addresses.begin() + std::ptrdiff_t(inputs), addresses.end());
  std::vector<const void*> operands(addresses.begin() + kConvInputs, addresses.begin() + std::ptrdiff_t(inputs));
  if (value_result) value = results[*value_result];
  cudnn::Arguments arguments{};
  arguments.inputs[0] = addresses[0];
  arguments.inputs[1] = addresses[1];
  arguments.operands = operands.data();
  arguments.results = is_split ? &value : results.data();
  arguments.workspace = workspace;
  if (zeros) {
    RunPointwise(*zeros, device, stream, {value}, {value});
  } else {
    convolution->Run(stream, arguments);
  }
  if (!is_split) return;
  operands.insert(operands.begin(), value);
  RunPointwise(epilogue, device, stream, operands, results);
}

}  // namespace ortplugin
