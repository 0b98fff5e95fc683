#include "ortplugin/ops/conv/conv_cuda.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "ortplugin/ops/conv/engines/direct.h"
#include "ortplugin/ops/conv/engines/engine.h"
#include "ortplugin/ops/conv/engines/pixel_shuffle.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/ort/scratch.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

DType ResultType(const Program& program, size_t r) { return program.value(program.results()[r]).dtype; }

// Every sum is one of nothing.
bool IsEmpty(const ConvCase& conv_case) {
  return ElementCount(conv_case.shapes[0]) == 0 || ElementCount(conv_case.shapes[1]) == 0;
}

// What stands in memory as `shape`, in the layout of the node, as cuDNN names its axes.
cudnn::Tensor TensorOf(const Shape& shape, bool channels_last) {
  return channels_last ? cudnn::ChannelsLast(ChannelsFirst(shape)) : cudnn::ChannelsFirst(shape);
}

// An operand that broadcasts to `full`.
cudnn::Tensor OperandOf(const Shape& shape, const Shape& full, bool channels_last) {
  Shape padded(full.size() - shape.size(), 1);
  padded.insert(padded.end(), shape.begin(), shape.end());
  return TensorOf(padded, channels_last);
}

DirectConv DirectOf(const ConvShape& shape) {
  DirectConv conv{};
  conv.images = shape.batch;
  conv.groups = shape.groups;
  conv.channels = shape.channels / shape.groups;
  conv.outputs = shape.filters / shape.groups;
  for (size_t i = 0; i < 2; ++i) {
    const Window& window = shape.windows[i];
    conv.image[i] = window.size;
    conv.output[i] = window.out;
    conv.kernel[i] = window.kernel;
    conv.strides[i] = window.stride;
    conv.dilations[i] = window.dilation;
    conv.pads[i] = window.pad_begin;
  }
  return conv;
}

std::optional<EngineKernel> FindDirect(const ConvCase& conv_case, const ConvShape& shape, const cuda::DeviceFacts& gpu,
                                       bool only_where_fast) {
  DirectConv conv = DirectOf(shape);
  conv.constant_weights = conv_case.constant_weights;
  conv.constant_operands = conv_case.constant_operands;
  if (!FitsDirect(conv, ValueType(*conv_case.program)) || (only_where_fast && !IsDirectFast(conv, gpu)))
    return std::nullopt;
  const Axes axes = EpilogueAxes(*conv_case.program, kConvInputs, shape.result(), conv_case.shapes);
  const std::optional<DirectConfig> config = ConfigureDirect(conv, gpu, kMostVector);
  if (!config) return std::nullopt;
  return EngineKernel{DirectSource(conv, *conv_case.program, axes, *config), "conv_direct", DirectLaunch(*config, gpu),
                      DirectArguments(conv, *conv_case.program, axes, *config)};
}

// Our engine's kernel for a node, if one fits; `only_where_fast`: if it is known to be the fastest.
std::optional<EngineKernel> FindEngine(const ConvCase& conv_case, const ConvShape& shape, const cuda::DeviceFacts& gpu,
                                       bool only_where_fast) {
  if (shape.windows.size() != 2 || (conv_case.attributes.transposed && !shape.channels_last)) return std::nullopt;
  if (!shape.channels_last) return FindDirect(conv_case, shape, gpu, only_where_fast);
  return FindEngineKernel(*conv_case.program, MakeConvProblem(conv_case, shape), gpu, only_where_fast);
}

}  // namespace

ConvProblem MakeConvProblem(const ConvCase& conv_case, const ConvShape& shape) {
  const Window &rows = shape.windows[0], &columns = shape.windows[1];
  ConvProblem problem;
  problem.transposed = conv_case.attributes.transposed;
  problem.dtype = ValueType(*conv_case.program);
  problem.batch = shape.batch;
  problem.height = rows.size;
  problem.width = columns.size;
  problem.channels = shape.channels;
  problem.filters = shape.filters;
  problem.group = shape.groups;
  problem.kernel_height = rows.kernel;
  problem.kernel_width = columns.kernel;
  problem.pads = {rows.pad_begin, columns.pad_begin, rows.pad_end, columns.pad_end};
  problem.strides = {rows.stride, columns.stride};
  problem.dilations = {rows.dilation, columns.dilation};
  problem.out_height = rows.out;
  problem.out_width = columns.out;
  problem.x_channels_first = conv_case.attributes.x_channels_first;
  problem.y_channels_first = conv_case.attributes.y_channels_first;
  problem.allow_tf32 = conv_case.allow_tf32;
  problem.constant_weights = conv_case.constant_weights;
  problem.operands.assign(conv_case.shapes.begin() + kConvInputs, conv_case.shapes.end());
  return problem;
}

cudnn::Problem ProblemWithoutEpilogue(const ConvCase& conv_case, const ConvShape& shape) {
  const bool transposed = conv_case.attributes.transposed;
  cudnn::Problem problem;
  problem.direction = transposed ? cudnn::Direction::kDataGradient : cudnn::Direction::kForward;
  problem.dtype = ValueType(*conv_case.program);
  problem.allow_tf32 = conv_case.allow_tf32;
  problem.w = TensorOf(conv_case.shapes[1], shape.channels_last);
  const Shape x = shape.x_first();  // cuDNN gets it in the node's layout, whatever it came in
  (transposed ? problem.y : problem.x) = shape.channels_last ? cudnn::ChannelsLast(x) : cudnn::ChannelsFirst(x);
  (transposed ? problem.x : problem.y) = TensorOf(shape.result(), shape.channels_last);
  for (const Window& window : shape.windows) {
    problem.pads_begin.push_back(window.pad_begin);
    problem.pads_end.push_back(window.pad_end);
    problem.strides.push_back(window.stride);
    problem.dilations.push_back(window.dilation);
  }
  problem.groups = shape.groups;
  return problem;
}

cudnn::Problem ProblemWithEpilogue(const ConvCase& conv_case, const ConvShape& shape) {
  cudnn::Problem problem = ProblemWithoutEpilogue(conv_case, shape);
  if (IsIdentity(*conv_case.program)) return problem;
  problem.program = conv_case.program;
  const Shape full = shape.result();
  for (size_t i = kConvInputs; i < conv_case.shapes.size(); ++i)
    problem.operands.push_back(OperandOf(conv_case.shapes[i], full, shape.channels_last));
  problem.results.assign(conv_case.program->results().size(), TensorOf(full, shape.channels_last));
  return problem;
}

namespace {

// Everything of one combination of input shapes, ready to run.
struct Plan {
  Shape shape;   // of every result in the node's layout
  Shape output;  // and as it is given out
  // Our engine's kernel, where there is one; with `convolution` it reads what that made instead of X.
  cuda::Function engine = nullptr;
  cuda::LaunchShape launch{};
  std::vector<uint64_t> arguments;
  // Else cuDNN's plan, with the program in it or without; or zeros, the sums of nothing.
  std::shared_ptr<const cudnn::Plan> convolution;
  std::optional<PointwisePlan> zeros;
  bool is_split = false;
  PointwisePlan epilogue;              // where it is split
  std::optional<size_t> value_result;  // the result in whose place the convolution's value is, else it is in scratch

  // Tensors whose addresses are no multiples of 16: copied into scratch memory first, or out of it last.
  struct Copy {
    size_t tensor;  // number of the input, or behind these of the output
    size_t bytes;
    PointwisePlan plan;
  };
  std::vector<Copy> copies;
  // Tensors whose channels come first where cuDNN has them last: X made from what it is, outputs from what they become,
  // both in scratch memory.
  struct Transposition {
    size_t tensor;
    size_t bytes;
    cuda::Function kernel;
    cuda::LaunchShape launch;
    uint64_t rows, columns, count;  // of the matrices that are transposed, and their elements in all
  };
  std::vector<Transposition> transpositions;
  size_t value_bytes = 0, scratch_bytes = 0;
};

class CudaConv : public Kernel {
 public:
  CudaConv(const NodeInfo& info, bool transposed)
      : name_(info.name()), scratch_(info), device_(cuda::Device(info.device())) {
    const ConvNode node(info, info.string_attribute("program"), transposed);
    convolution_.attributes = node.attributes;
    convolution_.program = std::make_shared<const Program>(node.program);
    convolution_.allow_tf32 = node.allow_tf32;
    convolution_.constant_weights = info.constant_input(1).has_value();
    for (size_t i = kConvInputs; i < info.input_count(); ++i)
      convolution_.constant_operands.push_back(info.constant_input(i).has_value());
    algorithm_ = ConvAlgorithm::Parse(node.algorithm);
    Prepare(node.inputs);
  }

  void Compute(Run& run) const override {
    const size_t inputs = convolution_.program->parameters().size() - 1 + kConvInputs,
                 outputs = convolution_.program->results().size();
    std::vector<void*> addresses;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < inputs; ++i) {
      Tensor input = run.input(i);
      CheckInput(*convolution_.program, kConvInputs, i, input.type);
      addresses.push_back(const_cast<void*>(input.data));
      shapes.push_back(std::move(input.shape));
    }
    const cuda::Stream stream = run.stream();
    const Plan* plan = plans_.Find(shapes, {});
    const Shape shape =
        plan != nullptr ? plan->output : FitConv(convolution_.attributes, shapes[0], shapes[1]).output();
    for (size_t r = 0; r < outputs; ++r) addresses.push_back(run.output(r, shape));
    if (ElementCount(shape) == 0) return;
    std::vector<size_t> unaligned;  // tensors that the caller put elsewhere than ORT does
    for (size_t i = 0; i < addresses.size(); ++i)
      if (reinterpret_cast<uintptr_t>(addresses[i]) % 16 != 0) unaligned.push_back(i);
    if (!unaligned.empty()) plan = plans_.Find(shapes, unaligned);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = &Make(shapes, unaligned);
    }
    scratch_.Lend(run, plan->scratch_bytes, [&](char* memory) { Launch(*plan, stream, std::move(addresses), memory); });
  }

 private:
  // Says early what is wrong with the node or missing here, and starts to work on the plan for the shapes that the
  // model declares, so that sessions with many convolutions make their plans at the same time.
  void Prepare(const std::vector<TensorType>& types) {
    std::vector<Shape> shapes;
    for (const TensorType& type : types) {
      const bool is_known = type.has_shape && std::count(type.shape.begin(), type.shape.end(), -1) == 0;
      if (is_known) shapes.push_back(type.shape);
    }
    if (shapes.size() < types.size()) return;
    const ConvCase conv_case = CaseOf(shapes);
    const ConvShape shape = FitConv(conv_case.attributes, shapes[0], shapes[1]);
    if (ElementCount(shape.result()) == 0) return;
    if (IsEmpty(conv_case) || FindEngineFor(conv_case, shape)) {
      Make(shapes, {});
      return;
    }
    const cudnn::PlanText* text = algorithm_.plan ? &*algorithm_.plan : nullptr;
    if (IsShuffled(conv_case, shape)) {
      cudnn::Prepare(device_, GemmProblem(conv_case, shape), cudnn::kMostWorkspace, text);
      return;
    }
    const bool is_split =
        algorithm_.kind == ConvAlgorithm::Kind::kSplit || !cudnn::RefusalOf(*conv_case.program).empty();
    cudnn::Version();  // throws where there is none
    cudnn::Prepare(device_, is_split ? ProblemWithoutEpilogue(conv_case, shape) : ProblemWithEpilogue(conv_case, shape),
                   cudnn::kMostWorkspace, text);
  }

  ConvCase CaseOf(const std::vector<Shape>& shapes) const {
    ConvCase conv_case = convolution_;
    conv_case.shapes = shapes;
    return conv_case;
  }

  std::optional<EngineKernel> FindEngineFor(const ConvCase& conv_case, const ConvShape& shape) const {
    if (algorithm_.kind != ConvAlgorithm::Kind::kAuto && algorithm_.kind != ConvAlgorithm::Kind::kOwn)
      return std::nullopt;
    return FindEngine(conv_case, shape, device_, algorithm_.kind == ConvAlgorithm::Kind::kAuto);
  }

  const Plan& Make(const std::vector<Shape>& shapes, const std::vector<size_t>& unaligned) const {
    ConvCase conv_case = CaseOf(shapes);
    // What is copied first is written by the kernel in front.
    for (const size_t tensor : unaligned) {
      if (tensor == 1) conv_case.constant_weights = false;
      if (tensor >= kConvInputs && tensor < shapes.size()) conv_case.constant_operands[tensor - kConvInputs] = false;
    }
    const ConvShape shape = FitConv(conv_case.attributes, shapes[0], shapes[1]);
    auto plan = std::make_unique<Plan>();
    plan->shape = shape.result();
    plan->output = shape.output();
    EpilogueAxes(*conv_case.program, kConvInputs, plan->shape, shapes);  // throws where one does not broadcast
    if (IsEmpty(conv_case)) {
      // Whatever stands there becomes zero.
      const std::string name = NameOf(ValueType(*conv_case.program));
      const Program zero =
          Program::Parse("(" + name + " x) => (" + name + " y) { m = Greater(x, x) y = Where(m, x, 0) }");
      plan->zeros = PlanPointwise(zero, FitPointwise(zero, {plan->shape}), device_, kMostVector);
      Split(conv_case, plan.get());
    } else if (std::optional<EngineKernel> engine_kernel = FindEngineFor(conv_case, shape)) {
      plan->engine = engine_kernel->Load(device_);
      plan->launch = engine_kernel->launch;
      plan->arguments = std::move(engine_kernel->arguments);
    } else {
      if (algorithm_.kind == ConvAlgorithm::Kind::kOwn) WarnOfAlgorithm("there is no such kernel for it");
      FindCudnn(conv_case, shape, plan.get());
    }
    if (plan->engine == nullptr) {
      const int64_t pixels = ElementCount(plan->shape) / shape.batch / shape.filters;
      if (conv_case.attributes.x_channels_first && !IsEmpty(conv_case))
        AddTransposition(0, ValueType(*conv_case.program), shape.channels,
                         ElementCount(shape.x()) / shape.batch / shape.channels, ElementCount(shape.x()), plan.get());
      for (size_t r = 0; conv_case.attributes.y_channels_first && r < conv_case.program->results().size(); ++r)
        AddTransposition(shapes.size() + r, ResultType(*conv_case.program, r), pixels, shape.filters,
                         ElementCount(plan->shape), plan.get());
    }
    LayScratch(conv_case, unaligned, plan.get());
    return plans_.Keep(shapes, unaligned, std::move(plan));
  }

  bool IsShuffled(const ConvCase& conv_case, const ConvShape& shape) const {
    if (algorithm_.kind != ConvAlgorithm::Kind::kAuto && algorithm_.kind != ConvAlgorithm::Kind::kShuffle) return false;
    return FitsPixelShuffle(conv_case, shape) &&
           (algorithm_.kind == ConvAlgorithm::Kind::kShuffle || IsPixelShuffleFast(conv_case, shape));
  }

  // A GEMM and our kernel after it. Returns the reason why there is none, or nothing.
  std::string FindShuffle(const ConvCase& conv_case, const ConvShape& shape, Plan* plan) const {
    if (!IsShuffled(conv_case, shape))
      return "its kernel overlaps, or its strides, layout, groups or dtype are not those of a shuffle";
    const cudnn::PlanText* text = algorithm_.plan ? &*algorithm_.plan : nullptr;
    const cudnn::Found found = cudnn::FindPlan(device_, GemmProblem(conv_case, shape), cudnn::kMostWorkspace, text);
    if (found.plan == nullptr) return found.refusal;
    EngineKernel engine_kernel = PixelShuffleKernel(conv_case, shape);
    plan->convolution = found.plan;
    plan->value_bytes = ScratchBytes(GemmBytes(conv_case, shape));
    plan->engine = engine_kernel.Load(device_);
    plan->launch = engine_kernel.launch;
    plan->arguments = std::move(engine_kernel.arguments);
    return "";
  }

  void FindCudnn(const ConvCase& conv_case, const ConvShape& shape, Plan* plan) const {
    using Kind = ConvAlgorithm::Kind;
    if (algorithm_.kind == Kind::kAuto || algorithm_.kind == Kind::kShuffle) {
      const std::string reason = FindShuffle(conv_case, shape, plan);
      if (plan->engine != nullptr) return;
      if (algorithm_.kind == Kind::kShuffle) WarnOfAlgorithm(reason);
    }
    const auto find = [&](bool is_split, const cudnn::PlanText* text) {
      const cudnn::Problem problem =
          is_split ? ProblemWithoutEpilogue(conv_case, shape) : ProblemWithEpilogue(conv_case, shape);
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
    if (plan->convolution == nullptr && (algorithm_.kind != Kind::kSplit || IsIdentity(*conv_case.program))) {
      refusal = cudnn::RefusalOf(*conv_case.program);
      if (refusal.empty()) refusal = find(false, nullptr);
      if (plan->convolution == nullptr && algorithm_.kind == Kind::kFused && !algorithm_.plan) WarnOfAlgorithm(refusal);
    }
    if (plan->convolution == nullptr && !IsIdentity(*conv_case.program)) refusal = find(true, nullptr);
    if (plan->convolution == nullptr) Fail(cudnn::Version(), " has no plan for it: ", refusal);
    if (plan->is_split) Split(conv_case, plan);
  }

  // The program in a kernel of its own, after the convolution; in its place where a result has its dtype.
  void Split(const ConvCase& conv_case, Plan* plan) const {
    for (size_t r = conv_case.program->results().size(); r-- > 0;)
      if (ResultType(*conv_case.program, r) == ValueType(*conv_case.program)) plan->value_result = r;
    if (!plan->value_result)
      plan->value_bytes =
          ScratchBytes(static_cast<size_t>(ElementCount(plan->shape)) * SizeOf(ValueType(*conv_case.program)));
    plan->is_split = !IsIdentity(*conv_case.program);
    if (!plan->is_split) return;
    std::vector<Shape> shapes(conv_case.shapes.begin() + 1, conv_case.shapes.end());
    shapes[0] = plan->shape;
    plan->epilogue = PlanPointwise(*conv_case.program, FitPointwise(*conv_case.program, shapes), device_, kMostVector);
  }

  // Transposes every matrix [rows, columns] of a tensor.
  void AddTransposition(size_t tensor, DType dtype, int64_t rows, int64_t columns, int64_t count, Plan* plan) const {
    const size_t size = SizeOf(dtype);
    const cuda::Function kernel = cuda::Load(device_, TransposeSource(size), "transpose", cuda::Warn);
    constexpr int64_t kMostBlocks = 1 << 20, kThreads = 256;
    const cuda::LaunchShape launch{static_cast<unsigned>(std::min(kMostBlocks, DivideUp(count, kThreads))), kThreads};
    plan->transpositions.push_back({tensor, ScratchBytes(static_cast<size_t>(count) * size), kernel, launch,
                                    static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                    static_cast<uint64_t>(count)});
  }

  // Scratch memory holds cuDNN's workspace, the convolution's value, transposed tensors, and copies of tensors.
  void LayScratch(const ConvCase& conv_case, const std::vector<size_t>& unaligned, Plan* plan) const {
    plan->scratch_bytes = plan->value_bytes;
    for (const Plan::Transposition& transposition : plan->transpositions) plan->scratch_bytes += transposition.bytes;
    if (plan->convolution != nullptr) plan->scratch_bytes += ScratchBytes(plan->convolution->workspace_bytes());
    for (const size_t tensor : unaligned) {
      const size_t inputs = conv_case.shapes.size();
      const Shape& shape = tensor < inputs ? conv_case.shapes[tensor] : plan->shape;
      const DType dtype =
          tensor >= inputs ? ResultType(*conv_case.program, tensor - inputs)
          : tensor < kConvInputs
              ? ValueType(*conv_case.program)
              : conv_case.program->value(conv_case.program->parameters()[tensor - kConvInputs + 1]).dtype;
      const std::string name = NameOf(dtype);
      const Program copy = Program::Parse("(" + name + " x) => (" + name + " x) {}");
      const size_t bytes = ScratchBytes(static_cast<size_t>(ElementCount(shape)) * SizeOf(dtype));
      plan->copies.push_back({tensor, bytes, PlanPointwise(copy, FitPointwise(copy, {shape}), device_, 1)});
      plan->scratch_bytes += bytes;
    }
  }

  void Launch(const Plan& plan, cuda::Stream stream, std::vector<void*> addresses, char* scratch) const {
    const size_t inputs = convolution_.program->parameters().size() - 1 + kConvInputs;
    char* workspace = scratch;
    if (plan.convolution != nullptr) scratch += ScratchBytes(plan.convolution->workspace_bytes());
    char* value = scratch;
    scratch += plan.value_bytes;
    std::vector<std::pair<const Plan::Copy*, void*>> later;
    for (const Plan::Copy& copy : plan.copies) {
      void*& address = addresses[copy.tensor];
      if (copy.tensor < inputs) {
        RunPointwise(copy.plan, device_, stream, {address}, {scratch});
      } else {
        later.emplace_back(&copy, address);
      }
      address = scratch;
      scratch += copy.bytes;
    }
    std::vector<void*> outside = addresses;
    for (const Plan::Transposition& transposition : plan.transpositions) {
      addresses[transposition.tensor] = scratch;
      scratch += transposition.bytes;
      if (transposition.tensor < inputs)
        LaunchTransposition(transposition, stream, outside[transposition.tensor], addresses[transposition.tensor]);
    }
    if (plan.engine != nullptr) {
      if (plan.convolution != nullptr) {
        void* results[] = {value};
        plan.convolution->Run(stream, {{addresses[0], addresses[1]}, nullptr, results, workspace});
        addresses[0] = value;
      }
      std::vector<uint64_t> arguments = plan.arguments;
      for (size_t i = 0; i < addresses.size(); ++i) arguments[i] = reinterpret_cast<uintptr_t>(addresses[i]);
      void* parameters[] = {arguments.data()};
      cuda::Launch(device_, plan.engine, plan.launch, stream, parameters);
    } else {
      RunCudnn(plan, stream, addresses, workspace, value);
    }
    for (const Plan::Transposition& transposition : plan.transpositions)
      if (transposition.tensor >= inputs)
        LaunchTransposition(transposition, stream, addresses[transposition.tensor], outside[transposition.tensor]);
    for (const auto& [copy, address] : later)
      RunPointwise(copy->plan, device_, stream, {outside[copy->tensor]}, {address});
  }

  void LaunchTransposition(const Plan::Transposition& transposition, cuda::Stream stream, void* from, void* to) const {
    uint64_t rows = transposition.rows, columns = transposition.columns, count = transposition.count;
    void* parameters[] = {&from, &to, &rows, &columns, &count};
    cuda::Launch(device_, transposition.kernel, transposition.launch, stream, parameters);
  }

  void RunCudnn(const Plan& plan, cuda::Stream stream, const std::vector<void*>& addresses, void* workspace,
                void* value) const {
    const size_t inputs = convolution_.program->parameters().size() - 1 + kConvInputs;
    const std::vector<void*> results(addresses.begin() + static_cast<std::ptrdiff_t>(inputs), addresses.end());
    std::vector<const void*> operands(addresses.begin() + kConvInputs,
                                      addresses.begin() + static_cast<std::ptrdiff_t>(inputs));
    if (plan.value_result) value = results[*plan.value_result];
    cudnn::Arguments arguments{};
    arguments.inputs[0] = addresses[0];
    arguments.inputs[1] = addresses[1];
    arguments.operands = operands.data();
    arguments.results = plan.is_split ? &value : results.data();
    arguments.workspace = workspace;
    if (plan.zeros) {
      RunPointwise(*plan.zeros, device_, stream, {value}, {value});
    } else {
      plan.convolution->Run(stream, arguments);
    }
    if (!plan.is_split) return;
    operands.insert(operands.begin(), value);
    RunPointwise(plan.epilogue, device_, stream, operands, results);
  }

  // Once for each node.
  void WarnOfAlgorithm(const std::string& reason) const {
    if (warned_.exchange(true)) return;
    cuda::Warn("node '" + name_ + "': the algorithm '" + algorithm_.ToString() + "' is not used, but auto: " + reason +
               ". It was tuned for other shapes, another GPU or another cuDNN; run optimize-model --tune again");
  }

  std::string name_;
  DeviceScratch scratch_;
  const cuda::DeviceFacts& device_;
  ConvCase convolution_;  // without shapes
  ConvAlgorithm algorithm_;
  mutable std::atomic<bool> warned_{false};
  mutable PlanCache<Plan, std::vector<size_t>> plans_;  // by the tensors that are not aligned
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaConvolution(const NodeInfo& info, bool transposed) {
  return std::make_unique<CudaConv>(info, transposed);
}

std::unique_ptr<Kernel> CreateCudaConv(const NodeInfo& info) { return CreateCudaConvolution(info, false); }

std::string TransposeSource(size_t element_bytes) {
  const char* element = element_bytes == 1   ? "unsigned char"
                        : element_bytes == 2 ? "unsigned short"
                        : element_bytes == 4 ? "unsigned"
                                             : "unsigned long long";
  return std::string(kCommonSource) + "\ntypedef " + element + " element_t;\n\n" + kTransposeSource;
}

std::vector<std::string> ListConvAlgorithms(const ConvCase& conv_case, const cuda::DeviceFacts& gpu) {
  // cuDNN's heuristics come in their order: what they put far behind is hardly ever the fastest, and takes its time.
  constexpr size_t kMostFused = 8, kMostSplit = 4;
  const size_t fused = IsIdentity(*conv_case.program) ? kMostFused + kMostSplit : kMostFused;
  const ConvShape shape = FitConv(conv_case.attributes, conv_case.shapes[0], conv_case.shapes[1]);
  std::vector<std::string> texts;
  if (IsEmpty(conv_case) || ElementCount(shape.result()) == 0) return texts;  // nothing to choose, and counts divide
  if (FindEngine(conv_case, shape, gpu, false)) texts.push_back("own");
  const auto add = [&](ConvAlgorithm::Kind kind, const cudnn::Problem& problem, size_t most) {
    for (const cudnn::PlanText& plan : cudnn::ListPlans(gpu, problem, cudnn::kMostWorkspace, most))
      texts.push_back(ConvAlgorithm{kind, plan}.ToString());
  };
  if (cudnn::RefusalOf(*conv_case.program).empty())
    add(ConvAlgorithm::Kind::kFused, ProblemWithEpilogue(conv_case, shape), fused);
  if (!IsIdentity(*conv_case.program))
    add(ConvAlgorithm::Kind::kSplit, ProblemWithoutEpilogue(conv_case, shape), kMostSplit);
  if (FitsPixelShuffle(conv_case, shape)) add(ConvAlgorithm::Kind::kShuffle, GemmProblem(conv_case, shape), kMostSplit);
  return texts;
}

}  // namespace ortplugin
