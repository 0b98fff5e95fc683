#include "ortplugin/ops/conv/conv_cuda.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "ortplugin/ops/conv/engines/direct.h"
#include "ortplugin/ops/conv/engines/own_kernels.h"
#include "ortplugin/ops/conv/engines/pixel_shuffle.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/runtime/ort/scratch.h"

namespace ortplugin {
namespace {

DType ResultType(const Program& program, size_t r) { return program.value(program.results()[r]).dtype; }

// Every sum is one of nothing.
bool IsEmpty(const ConvCase& the) { return ElementCount(the.shapes[0]) == 0 || ElementCount(the.shapes[1]) == 0; }

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
    conv.pads[i] = window.begin;
  }
  return conv;
}

std::optional<OwnKernel> FindDirect(const ConvCase& the, const ConvShape& shape, const cuda::DeviceFacts& gpu,
                                    bool only_where_fast) {
  DirectConv conv = DirectOf(shape);
  conv.constant_weights = the.constant_weights;
  conv.constant_operands = the.constant_operands;
  if (!FitsDirect(conv, ValueType(*the.program)) || (only_where_fast && !IsDirectFast(conv, gpu))) return std::nullopt;
  const Axes axes = EpilogueAxes(*the.program, kConvInputs, shape.result(), the.shapes);
  const std::optional<DirectSchedule> schedule = ScheduleDirect(conv, gpu, kMostVector);
  if (!schedule) return std::nullopt;
  return OwnKernel{DirectSource(conv, *the.program, axes, *schedule), "conv_direct", DirectLaunch(*schedule, gpu),
                   DirectArguments(conv, *the.program, axes, *schedule)};
}

// Our own kernel for a node, if there is one; `only_where_fast`: if it is known to be the fastest.
std::optional<OwnKernel> FindOwn(const ConvCase& the, const ConvShape& shape, const cuda::DeviceFacts& gpu,
                                 bool only_where_fast) {
  if (shape.windows.size() != 2 || (the.attributes.transposed && !shape.channels_last)) return std::nullopt;
  if (!shape.channels_last) return FindDirect(the, shape, gpu, only_where_fast);
  return FindOwnKernel(*the.program, OwnProblem(the, shape), gpu, only_where_fast);
}

}  // namespace

ConvProblem OwnProblem(const ConvCase& the, const ConvShape& shape) {
  const Window &rows = shape.windows[0], &columns = shape.windows[1];
  ConvProblem problem;
  problem.transposed = the.attributes.transposed;
  problem.dtype = ValueType(*the.program);
  problem.batch = shape.batch;
  problem.height = rows.size;
  problem.width = columns.size;
  problem.channels = shape.channels;
  problem.filters = shape.filters;
  problem.group = shape.groups;
  problem.kernel_height = rows.kernel;
  problem.kernel_width = columns.kernel;
  problem.pads = {rows.begin, columns.begin, rows.end, columns.end};
  problem.strides = {rows.stride, columns.stride};
  problem.dilations = {rows.dilation, columns.dilation};
  problem.out_height = rows.out;
  problem.out_width = columns.out;
  problem.x_channels_first = the.attributes.turns_input;
  problem.y_channels_first = the.attributes.turns_output;
  problem.allow_tf32 = the.allow_tf32;
  problem.constant_weights = the.constant_weights;
  problem.operands.assign(the.shapes.begin() + kConvInputs, the.shapes.end());
  return problem;
}

cudnn::Problem BareProblem(const ConvCase& the, const ConvShape& shape) {
  const bool transposed = the.attributes.transposed;
  cudnn::Problem problem;
  problem.direction = transposed ? cudnn::Direction::kDataGradient : cudnn::Direction::kForward;
  problem.dtype = ValueType(*the.program);
  problem.allow_tf32 = the.allow_tf32;
  problem.w = TensorOf(the.shapes[1], shape.channels_last);
  const Shape x = shape.x_first();  // cuDNN gets it in the node's layout, whatever it came in
  (transposed ? problem.y : problem.x) = shape.channels_last ? cudnn::ChannelsLast(x) : cudnn::ChannelsFirst(x);
  (transposed ? problem.x : problem.y) = TensorOf(shape.result(), shape.channels_last);
  for (const Window& window : shape.windows) {
    problem.pads_begin.push_back(window.begin);
    problem.pads_end.push_back(window.end);
    problem.strides.push_back(window.stride);
    problem.dilations.push_back(window.dilation);
  }
  problem.groups = shape.groups;
  return problem;
}

cudnn::Problem FusedProblem(const ConvCase& the, const ConvShape& shape) {
  cudnn::Problem problem = BareProblem(the, shape);
  if (IsBare(*the.program)) return problem;
  problem.program = the.program;
  const Shape full = shape.result();
  for (size_t i = kConvInputs; i < the.shapes.size(); ++i)
    problem.operands.push_back(OperandOf(the.shapes[i], full, shape.channels_last));
  problem.results.assign(the.program->results().size(), TensorOf(full, shape.channels_last));
  return problem;
}

namespace {

// Everything of one combination of input shapes, ready to run.
struct Plan {
  Shape shape;   // of every result in the node's layout
  Shape output;  // and as it is given out
  // Our own kernel, where there is one; with `convolution` it reads what that made instead of X.
  cuda::Function own = nullptr;
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
  struct Turn {
    size_t tensor;
    size_t bytes;
    cuda::Function kernel;
    cuda::LaunchShape launch;
    uint64_t rows, columns, count;  // of the matrices that are transposed, and their elements in all
  };
  std::vector<Turn> turns;
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
    const ConvCase the = CaseOf(shapes);
    const ConvShape shape = FitConv(the.attributes, shapes[0], shapes[1]);
    if (ElementCount(shape.result()) == 0) return;
    if (IsEmpty(the) || FindOwnFor(the, shape)) {
      Make(shapes, {});
      return;
    }
    const cudnn::PlanText* text = algorithm_.plan ? &*algorithm_.plan : nullptr;
    if (IsShuffled(the, shape)) {
      cudnn::Prepare(device_, ProductsProblem(the, shape), cudnn::kMostWorkspace, text);
      return;
    }
    const bool is_split = algorithm_.kind == ConvAlgorithm::Kind::kSplit || !cudnn::RefusalOf(*the.program).empty();
    cudnn::Version();  // throws where there is none
    cudnn::Prepare(device_, is_split ? BareProblem(the, shape) : FusedProblem(the, shape), cudnn::kMostWorkspace, text);
  }

  ConvCase CaseOf(const std::vector<Shape>& shapes) const {
    ConvCase the = convolution_;
    the.shapes = shapes;
    return the;
  }

  std::optional<OwnKernel> FindOwnFor(const ConvCase& the, const ConvShape& shape) const {
    if (algorithm_.kind != ConvAlgorithm::Kind::kAuto && algorithm_.kind != ConvAlgorithm::Kind::kOwn)
      return std::nullopt;
    return FindOwn(the, shape, device_, algorithm_.kind == ConvAlgorithm::Kind::kAuto);
  }

  const Plan& Make(const std::vector<Shape>& shapes, const std::vector<size_t>& unaligned) const {
    ConvCase the = CaseOf(shapes);
    // What is copied first is written by the kernel in front.
    for (const size_t tensor : unaligned) {
      if (tensor == 1) the.constant_weights = false;
      if (tensor >= kConvInputs && tensor < shapes.size()) the.constant_operands[tensor - kConvInputs] = false;
    }
    const ConvShape shape = FitConv(the.attributes, shapes[0], shapes[1]);
    auto plan = std::make_unique<Plan>();
    plan->shape = shape.result();
    plan->output = shape.output();
    EpilogueAxes(*the.program, kConvInputs, plan->shape, shapes);  // throws where one does not broadcast
    if (IsEmpty(the)) {
      // Whatever stands there becomes zero.
      const std::string name = NameOf(ValueType(*the.program));
      const Program zero =
          Program::Parse("(" + name + " x) => (" + name + " y) { m = Greater(x, x) y = Where(m, x, 0) }");
      plan->zeros = PlanPointwise(zero, FitPointwise(zero, {plan->shape}), device_, kMostVector);
      Split(the, plan.get());
    } else if (std::optional<OwnKernel> own = FindOwnFor(the, shape)) {
      plan->own = own->Load(device_);
      plan->launch = own->launch;
      plan->arguments = std::move(own->arguments);
    } else {
      if (algorithm_.kind == ConvAlgorithm::Kind::kOwn) WarnOfAlgorithm("there is no such kernel for it");
      FindCudnn(the, shape, plan.get());
    }
    if (plan->own == nullptr) {
      const int64_t pixels = ElementCount(plan->shape) / shape.batch / shape.filters;
      if (the.attributes.turns_input && !IsEmpty(the))
        Turn(0, ValueType(*the.program), shape.channels, ElementCount(shape.x()) / shape.batch / shape.channels,
             ElementCount(shape.x()), plan.get());
      for (size_t r = 0; the.attributes.turns_output && r < the.program->results().size(); ++r)
        Turn(shapes.size() + r, ResultType(*the.program, r), pixels, shape.filters, ElementCount(plan->shape),
             plan.get());
    }
    LayScratch(the, unaligned, plan.get());
    return plans_.Keep(shapes, unaligned, std::move(plan));
  }

  bool IsShuffled(const ConvCase& the, const ConvShape& shape) const {
    if (algorithm_.kind != ConvAlgorithm::Kind::kAuto && algorithm_.kind != ConvAlgorithm::Kind::kShuffle) return false;
    return FitsPixelShuffle(the, shape) &&
           (algorithm_.kind == ConvAlgorithm::Kind::kShuffle || IsPixelShuffleFast(the, shape));
  }

  // A matrix product and our kernel after it. Returns why there is none, or nothing.
  std::string FindShuffle(const ConvCase& the, const ConvShape& shape, Plan* plan) const {
    if (!IsShuffled(the, shape))
      return "its kernel overlaps, or its strides, layout, groups or dtype are not those of a shuffle";
    const cudnn::PlanText* text = algorithm_.plan ? &*algorithm_.plan : nullptr;
    const cudnn::Found found = cudnn::FindPlan(device_, ProductsProblem(the, shape), cudnn::kMostWorkspace, text);
    if (found.plan == nullptr) return found.refusal;
    OwnKernel own = PixelShuffleKernel(the, shape);
    plan->convolution = found.plan;
    plan->value_bytes = ScratchBytes(ProductsBytes(the, shape));
    plan->own = own.Load(device_);
    plan->launch = own.launch;
    plan->arguments = std::move(own.arguments);
    return "";
  }

  void FindCudnn(const ConvCase& the, const ConvShape& shape, Plan* plan) const {
    using Kind = ConvAlgorithm::Kind;
    if (algorithm_.kind == Kind::kAuto || algorithm_.kind == Kind::kShuffle) {
      const std::string problem = FindShuffle(the, shape, plan);
      if (plan->own != nullptr) return;
      if (algorithm_.kind == Kind::kShuffle) WarnOfAlgorithm(problem);
    }
    const auto find = [&](bool is_split, const cudnn::PlanText* text) {
      const cudnn::Problem problem = is_split ? BareProblem(the, shape) : FusedProblem(the, shape);
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
    if (plan->convolution == nullptr && (algorithm_.kind != Kind::kSplit || IsBare(*the.program))) {
      refusal = cudnn::RefusalOf(*the.program);
      if (refusal.empty()) refusal = find(false, nullptr);
      if (plan->convolution == nullptr && algorithm_.kind == Kind::kFused && !algorithm_.plan) WarnOfAlgorithm(refusal);
    }
    if (plan->convolution == nullptr && !IsBare(*the.program)) refusal = find(true, nullptr);
    if (plan->convolution == nullptr) Fail(cudnn::Version(), " has no plan for it: ", refusal);
    if (plan->is_split) Split(the, plan);
  }

  // The program in a kernel of its own, after the convolution; in its place where a result has its dtype.
  void Split(const ConvCase& the, Plan* plan) const {
    for (size_t r = the.program->results().size(); r-- > 0;)
      if (ResultType(*the.program, r) == ValueType(*the.program)) plan->value_result = r;
    if (!plan->value_result)
      plan->value_bytes =
          ScratchBytes(static_cast<size_t>(ElementCount(plan->shape)) * SizeOf(ValueType(*the.program)));
    plan->is_split = !IsBare(*the.program);
    if (!plan->is_split) return;
    std::vector<Shape> shapes(the.shapes.begin() + 1, the.shapes.end());
    shapes[0] = plan->shape;
    plan->epilogue = PlanPointwise(*the.program, FitPointwise(*the.program, shapes), device_, kMostVector);
  }

  // Transposes every matrix [rows, columns] of a tensor.
  void Turn(size_t tensor, DType dtype, int64_t rows, int64_t columns, int64_t count, Plan* plan) const {
    const size_t size = SizeOf(dtype);
    const cuda::Function kernel = cuda::Load(device_, ChannelsLastSource(size), "channels_last", cuda::Warn);
    constexpr int64_t kMostBlocks = 1 << 20, kThreads = 256;
    const cuda::LaunchShape launch{static_cast<unsigned>(std::min(kMostBlocks, DivideUp(count, kThreads))), kThreads};
    plan->turns.push_back({tensor, ScratchBytes(static_cast<size_t>(count) * size), kernel, launch,
                           static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), static_cast<uint64_t>(count)});
  }

  // Scratch memory holds cuDNN's workspace, the convolution's value, tensors turned, and copies of tensors.
  void LayScratch(const ConvCase& the, const std::vector<size_t>& unaligned, Plan* plan) const {
    plan->scratch_bytes = plan->value_bytes;
    for (const Plan::Turn& turn : plan->turns) plan->scratch_bytes += turn.bytes;
    if (plan->convolution != nullptr) plan->scratch_bytes += ScratchBytes(plan->convolution->workspace_bytes());
    for (const size_t tensor : unaligned) {
      const size_t inputs = the.shapes.size();
      const Shape& shape = tensor < inputs ? the.shapes[tensor] : plan->shape;
      const DType dtype = tensor >= inputs ? ResultType(*the.program, tensor - inputs)
                          : tensor < kConvInputs
                              ? ValueType(*the.program)
                              : the.program->value(the.program->parameters()[tensor - kConvInputs + 1]).dtype;
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
    for (const Plan::Turn& turn : plan.turns) {
      addresses[turn.tensor] = scratch;
      scratch += turn.bytes;
      if (turn.tensor < inputs) LaunchTurn(turn, stream, outside[turn.tensor], addresses[turn.tensor]);
    }
    if (plan.own != nullptr) {
      if (plan.convolution != nullptr) {
        void* results[] = {value};
        plan.convolution->Run(stream, {{addresses[0], addresses[1]}, nullptr, results, workspace});
        addresses[0] = value;
      }
      std::vector<uint64_t> arguments = plan.arguments;
      for (size_t i = 0; i < addresses.size(); ++i) arguments[i] = reinterpret_cast<uintptr_t>(addresses[i]);
      void* parameters[] = {arguments.data()};
      cuda::Launch(device_, plan.own, plan.launch, stream, parameters);
    } else {
      RunCudnn(plan, stream, addresses, workspace, value);
    }
    for (const Plan::Turn& turn : plan.turns)
      if (turn.tensor >= inputs) LaunchTurn(turn, stream, addresses[turn.tensor], outside[turn.tensor]);
    for (const auto& [copy, address] : later)
      RunPointwise(copy->plan, device_, stream, {outside[copy->tensor]}, {address});
  }

  void LaunchTurn(const Plan::Turn& turn, cuda::Stream stream, void* from, void* to) const {
    uint64_t rows = turn.rows, columns = turn.columns, count = turn.count;
    void* parameters[] = {&from, &to, &rows, &columns, &count};
    cuda::Launch(device_, turn.kernel, turn.launch, stream, parameters);
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

std::string ChannelsLastSource(size_t element_bytes) {
  const char* element = element_bytes == 1   ? "unsigned char"
                        : element_bytes == 2 ? "unsigned short"
                        : element_bytes == 4 ? "unsigned"
                                             : "unsigned long long";
  return std::string(kCommonSource) + "\ntypedef " + element + " element_t;\n\n" + kChannelsLastSource;
}

std::vector<std::string> ListConvAlgorithms(const ConvCase& the, const cuda::DeviceFacts& gpu) {
  // cuDNN's heuristics come in their order: what they put far behind is hardly ever the fastest, and takes its time.
  constexpr size_t kMostFused = 8, kMostSplit = 4;
  const size_t fused = IsBare(*the.program) ? kMostFused + kMostSplit : kMostFused;
  const ConvShape shape = FitConv(the.attributes, the.shapes[0], the.shapes[1]);
  std::vector<std::string> texts;
  if (IsEmpty(the) || ElementCount(shape.result()) == 0) return texts;  // nothing to choose, and counts divide
  if (FindOwn(the, shape, gpu, false)) texts.push_back("own");
  const auto add = [&](ConvAlgorithm::Kind kind, const cudnn::Problem& problem, size_t most) {
    for (const cudnn::PlanText& plan : cudnn::ListPlans(gpu, problem, cudnn::kMostWorkspace, most))
      texts.push_back(ConvAlgorithm{kind, plan}.ToString());
  };
  if (cudnn::RefusalOf(*the.program).empty()) add(ConvAlgorithm::Kind::kFused, FusedProblem(the, shape), fused);
  if (!IsBare(*the.program)) add(ConvAlgorithm::Kind::kSplit, BareProblem(the, shape), kMostSplit);
  if (FitsPixelShuffle(the, shape)) add(ConvAlgorithm::Kind::kShuffle, ProductsProblem(the, shape), kMostSplit);
  return texts;
}

}  // namespace ortplugin
