// ConvGrad on the GPU: dZ, and dB with it, on the kernels of FusedPointwise and FusedSumTo; dX and dW in the ways of
// grad_engines.h.

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <utility>

#include "ortplugin/ops/conv_grad/conv_grad.h"
#include "ortplugin/ops/conv_grad/grad_engines.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/ort/scratch.h"

namespace ortplugin {
namespace {

size_t Bytes(const Shape& shape, DType dtype) {
  return ScratchBytes(static_cast<size_t>(ElementCount(shape)) * SizeOf(dtype));
}

Program Parse(const std::string& from, const std::string& to, const std::string& body) {
  return Program::Parse("(" + from + " x) => (" + to + " y) { y = " + body + " }");
}

// A kernel over one tensor of the full shape: its elements in another dtype.
struct Conversion {
  size_t bytes;  // of what it writes
  PointwisePlan plan;
};
Conversion Convert(const Shape& shape, DType from, DType to, const cuda::DeviceFacts& gpu) {
  const Program program = Parse(NameOf(from), NameOf(to), std::string("Cast<to=") + NameOf(to) + ">(x)");
  return {Bytes(shape, to), PlanPointwise(program, FitPointwise(program, {shape}), gpu, kMostVector)};
}

// Zeros: the sum of no rows.
SumPlan Zeros(const Shape& shape, DType dtype, const cuda::DeviceFacts& gpu) {
  const SumProgram sums = SumProgram::Parse(std::string("(") + NameOf(dtype) + " x) => (" + NameOf(dtype) +
                                            " y) { y = SumTo<axes=\"0\", keepdims=0>(x) }");
  return PlanSums(sums, {{0, ElementCount(shape)}}, gpu, true);
}

// A tensor with zeros around it, in memory of its own.
struct Padding {
  size_t bytes;
  Shape shape;  // with them, in the node's layout
  cuda::Function kernel;
  cuda::LaunchShape launch;
  std::vector<uint64_t> arguments;  // addresses are filled in at each launch
};
Padding Pad(const Shape& shape, bool channels_last, const Shape& pads_begin, const Shape& pads_end, DType dtype,
            const cuda::DeviceFacts& gpu) {
  constexpr size_t kAxes = 3;
  constexpr unsigned kThreads = 256;
  Padding padding{};
  padding.shape = shape;
  const size_t rank = pads_begin.size(), first = channels_last ? 1 : 2;
  std::vector<uint64_t> large(kAxes - rank, 1), small(kAxes - rank, 1), before(kAxes - rank, 0);
  for (size_t axis = 0; axis < rank; ++axis) {
    padding.shape[first + axis] += pads_begin[axis] + pads_end[axis];
    large.push_back(static_cast<uint64_t>(padding.shape[first + axis]));
    small.push_back(static_cast<uint64_t>(shape[first + axis]));
    before.push_back(static_cast<uint64_t>(pads_begin[axis]));
  }
  const auto count = static_cast<uint64_t>(ElementCount(padding.shape));
  padding.bytes = Bytes(padding.shape, dtype);
  padding.arguments = {0, 0, count, channels_last ? static_cast<uint64_t>(shape.back()) : 1};
  for (const std::vector<uint64_t>* each : {&large, &small, &before})
    padding.arguments.insert(padding.arguments.end(), each->begin(), each->end());
  padding.kernel = cuda::Load(gpu, PadSource(SizeOf(dtype)), "pad", cuda::Warn);
  constexpr uint64_t kMostBlocks = 1 << 20;
  padding.launch = {static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks)), kThreads};
  return padding;
}

// dX or dW for one combination of shapes.
struct Part {
  std::optional<SumPlan> zeros;  // where there is nothing to add up
  std::shared_ptr<const cudnn::Plan> plan;
  std::optional<Conversion> first, second;  // the plan's inputs, where they are converted
  std::optional<Padding> padding;           // of the first input
  std::optional<Conversion> result;         // from what the plan writes
  size_t made_bytes = 0;                    // of that, where it is converted
  std::optional<DataGradEngine> engine;     // instead of the plan, of dX

  size_t scratch_bytes() const {
    size_t bytes = made_bytes + (plan != nullptr ? ScratchBytes(plan->workspace_bytes()) : 0) +
                   (zeros ? ScratchBytes(zeros->scratch_bytes) : 0);
    for (const std::optional<Conversion>* each : {&first, &second})
      if (*each) bytes += (*each)->bytes;
    if (padding) bytes += padding->bytes;
    return bytes;
  }
};

// Everything of one combination of input shapes.
struct Plan {
  GradShape shape;
  std::optional<SumPlan> sums;
  std::optional<PointwisePlan> pointwise;
  std::optional<Part> data, weight;
  std::optional<WeightGradEngine> weight_engine;
  size_t z_bytes = 0;  // of dZ in scratch memory

  // Tensors whose addresses are no multiples of 16: copied into scratch memory first, or out of it last.
  struct Copy {
    size_t tensor;  // number of the input, or behind these of the output
    size_t bytes;
    PointwisePlan plan;
  };
  std::vector<Copy> copies;
  size_t scratch_bytes = 0;  // dZ, then what dZ, dX and dW need one after the other, then copies
  size_t step_bytes = 0;
};

class CudaConvGrad : public Kernel {
 public:
  explicit CudaConvGrad(const NodeInfo& info)
      : name_(info.name()), node_(GradNode::Read(info)), scratch_(info), device_(cuda::Device(info.device())) {
    const std::vector<TensorType> types = CheckGrad(node_, info);
    if (node_.wants_b) sums_ = node_.Sums();
    Prepare(types);
  }

  void Compute(Run& run) const override {
    const size_t operands = node_.operands(), inputs = operands + node_.program.parameters().size();
    std::vector<void*> addresses;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < inputs; ++i) {
      Tensor input = run.input(i);
      const DType wanted = InputType(i);
      if (input.type != ToOrt(wanted))
        Fail("input ", i, " is ", NameOfOrt(input.type), " but the node's program says ", NameOf(wanted));
      addresses.push_back(const_cast<void*>(input.data));
      shapes.push_back(std::move(input.shape));
    }
    const cuda::Stream stream = run.stream();
    const Plan* plan = plans_.Find(shapes, {});
    const GradShape fit = plan == nullptr ? FitGrad(node_, shapes) : GradShape();
    const std::vector<Shape> results = OutputShapes(plan == nullptr ? fit : plan->shape);
    for (size_t r = 0; r < results.size(); ++r) addresses.push_back(run.output(r, results[r]));
    if (std::all_of(results.begin(), results.end(), [](const Shape& each) { return ElementCount(each) == 0; })) return;
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
  DType InputType(size_t i) const {
    const size_t operands = node_.operands();
    return i < operands ? node_.dtype() : node_.program.value(node_.program.parameters()[i - operands]).dtype;
  }

  // dX, dW, dB, dZ as far as they are wanted, the program's results after the first.
  std::vector<Shape> OutputShapes(const GradShape& shape) const {
    std::vector<Shape> shapes;
    if (node_.wants_x) shapes.push_back(shape.x);
    if (node_.wants_w) shapes.push_back(shape.w);
    if (node_.wants_b) shapes.push_back({shape.z[node_.channels_last ? shape.z.size() - 1 : 1]});
    if (node_.wants_z) shapes.push_back(shape.z);
    shapes.insert(shapes.end(), node_.program.results().size() - 1, shape.z);
    return shapes;
  }
  DType OutputType(size_t r) const {
    if (node_.wants_x && r-- == 0) return node_.dtype();
    if (node_.wants_w && r-- == 0) return node_.weight_dtype;
    if (node_.wants_b && r-- == 0) return node_.weight_dtype;
    return node_.program.value(node_.program.results()[node_.wants_z ? r : r + 1]).dtype;
  }

  // Starts to work on the plans for the shapes that the model declares, so that sessions with many convolutions make
  // theirs at the same time.
  void Prepare(const std::vector<TensorType>& types) {
    if (!node_.wants_x && !node_.wants_w) return;
    std::vector<Shape> shapes;
    for (const TensorType& type : types) {
      const bool is_known = type.has_shape && std::count(type.shape.begin(), type.shape.end(), -1) == 0;
      if (is_known) shapes.push_back(type.shape);
    }
    if (shapes.size() < types.size()) {
      cudnn::Version();  // throws where there is none
      return;
    }
    const GradShape shape = FitGrad(node_, shapes);
    if (ElementCount(shape.z) == 0) return;
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

  static std::optional<cudnn::PlanText> Text(const std::string& algorithm) {
    if (algorithm == "auto" || algorithm == "own" || algorithm == "cudnn") return std::nullopt;
    return cudnn::PlanText::Parse(algorithm);
  }

  // Finds the plan that the algorithm names, else any, of the first of the problems that has it, and returns which.
  size_t FindPlan(const std::vector<cudnn::Problem>& problems, const std::string& algorithm, Part* part) const {
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
  void Warn(const std::string& reason) const {
    if (warned_.exchange(true)) return;
    cuda::Warn("node '" + name_ + "' (ConvGrad): " + reason +
               ". Its algorithms were chosen for other shapes, another GPU or another cuDNN; run optimize-model --tune "
               "again, or set data_algorithm and weight_algorithm to auto");
  }
  void WarnOfOwn(const char* gradient) const {
    Warn(std::string("there is no kernel of ours for ") + gradient +
         " here, as its algorithm asks; cuDNN takes its place");
  }

  Part MakeData(const GradShape& shape) const {
    Part part;
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

  Part MakeWeight(const GradShape& shape) const {
    Part part;
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
      part.first = Convert(large, given, made, device_);
      part.second = Convert(small, given, made, device_);
    }
    if (problem.program == nullptr && made != wanted) {
      part.result = Convert(shape.w, made, wanted, device_);
      part.made_bytes = Bytes(shape.w, made);
    }
    const cudnn::Problem forward = ForwardProblem(node_, shape);
    if (IsUneven(forward))
      part.padding = Pad(large, node_.channels_last, forward.pads_begin, forward.pads_end, made, device_);
    return part;
  }

  const Plan& Make(const std::vector<Shape>& shapes, const std::vector<size_t>& unaligned) const {
    auto plan = std::make_unique<Plan>();
    plan->shape = FitGrad(node_, shapes);
    const GradShape& shape = plan->shape;
    const std::vector<Shape> given(shapes.begin() + static_cast<std::ptrdiff_t>(node_.operands()), shapes.end());
    plan->weight_engine = FindWeightGradEngine(node_, shape, shapes, device_);
    const bool draws_in = plan->weight_engine && plan->weight_engine->draws_in;
    if (draws_in) {
      // Nothing is left to do for dZ and dB.
    } else if (sums_) {
      plan->sums = PlanSums(*sums_, given, device_, true);
      plan->step_bytes = ScratchBytes(plan->sums->scratch_bytes);
    } else if (!node_.is_identity() && ElementCount(shape.z) > 0) {
      plan->pointwise = PlanPointwise(node_.program, FitPointwise(node_.program, given), device_, kMostVector);
    }
    if (node_.stores_z() && !node_.wants_z && (!draws_in || plan->weight_engine->stores_z))
      plan->z_bytes = Bytes(shape.z, node_.dtype());
    if (node_.wants_x) plan->data = MakeData(shape);
    if (plan->weight_engine)
      plan->step_bytes = std::max(plan->step_bytes, ScratchBytes(plan->weight_engine->plan.scratch_bytes));
    if (node_.wants_w && !plan->weight_engine) plan->weight = MakeWeight(shape);
    for (const std::optional<Part>* part : {&plan->data, &plan->weight})
      if (*part) plan->step_bytes = std::max(plan->step_bytes, (*part)->scratch_bytes());
    plan->scratch_bytes = plan->z_bytes + plan->step_bytes;
    const std::vector<Shape> outputs = OutputShapes(shape);
    for (const size_t tensor : unaligned) {
      const bool is_input = tensor < shapes.size();
      const Shape& tensor_shape = is_input ? shapes[tensor] : outputs[tensor - shapes.size()];
      if (ElementCount(tensor_shape) == 0) continue;
      const std::string name = NameOf(is_input ? InputType(tensor) : OutputType(tensor - shapes.size()));
      const Program copy = Program::Parse("(" + name + " x) => (" + name + " x) {}");
      const size_t bytes = Bytes(tensor_shape, copy.value(copy.parameters()[0]).dtype);
      plan->copies.push_back({tensor, bytes, PlanPointwise(copy, FitPointwise(copy, {tensor_shape}), device_, 1)});
      plan->scratch_bytes += bytes;
    }
    return plans_.Keep(shapes, unaligned, std::move(plan));
  }

  void Launch(const Plan& plan, cuda::Stream stream, std::vector<void*> addresses, char* scratch) const {
    const size_t operands = node_.operands(), inputs = operands + node_.program.parameters().size();
    char* const z_memory = scratch;
    char* const step = scratch + plan.z_bytes;
    char* copied = step + plan.step_bytes;
    std::vector<std::pair<const Plan::Copy*, void*>> later;
    for (const Plan::Copy& copy : plan.copies) {
      void*& address = addresses[copy.tensor];
      if (copy.tensor < inputs) {
        RunPointwise(copy.plan, device_, stream, {address}, {copied});
      } else {
        later.emplace_back(&copy, address);
      }
      address = copied;
      copied += copy.bytes;
    }

    size_t next = inputs;
    void* const dx = node_.wants_x ? addresses[next++] : nullptr;
    void* const dw = node_.wants_w ? addresses[next++] : nullptr;
    void* const db = node_.wants_b ? addresses[next++] : nullptr;
    const void* z = addresses[operands];
    std::vector<void*> results;
    const std::optional<WeightGradEngine>& engine = plan.weight_engine;
    const bool draws_in = engine && engine->draws_in;
    if (draws_in ? engine->stores_z : node_.stores_z()) {
      results.push_back(node_.wants_z ? addresses[next++] : z_memory);
      z = results[0];
    }
    results.insert(results.end(), addresses.begin() + static_cast<std::ptrdiff_t>(next), addresses.end());
    const std::vector<const void*> given(addresses.begin() + static_cast<std::ptrdiff_t>(operands),
                                         addresses.begin() + static_cast<std::ptrdiff_t>(inputs));
    const void* const x = node_.has_x ? addresses[0] : nullptr;
    const void* const w = node_.has_w ? addresses[operands - 1] : nullptr;
    if (draws_in) {
      RunWeightGrad(engine->plan, device_, stream, x, given, engine->stores_z ? results[0] : nullptr, dw, db, step);
    } else if (plan.sums) {
      results.push_back(db);
      RunSums(*plan.sums, device_, stream, given, results, step);
    } else if (plan.pointwise) {
      RunPointwise(*plan.pointwise, device_, stream, given, results);
    }
    if (engine && !draws_in)
      RunWeightGrad(engine->plan, device_, stream, node_.transposed ? z : x, {node_.transposed ? x : z}, nullptr, dw,
                    nullptr, step);
    if (plan.data) RunPart(*plan.data, stream, z, w, dx, step);
    if (plan.weight) RunPart(*plan.weight, stream, node_.transposed ? z : x, node_.transposed ? x : z, dw, step);
    for (const auto& [copy, address] : later)
      RunPointwise(copy->plan, device_, stream, {addresses[copy->tensor]}, {address});
  }

  void RunPart(const Part& part, cuda::Stream stream, const void* first, const void* second, void* result,
               char* scratch) const {
    if (part.zeros) RunSums(*part.zeros, device_, stream, {nullptr}, {result}, scratch);
    if (part.engine) {
      std::vector<uint64_t> numbers = part.engine->arguments;
      const void* const addresses[] = {first, second, result};
      for (size_t i = 0; i < 3; ++i) numbers[i] = reinterpret_cast<uintptr_t>(addresses[i]);
      void* parameters[] = {numbers.data()};
      cuda::Launch(device_, part.engine->kernel, part.engine->launch, stream, parameters);
    }
    if (part.plan == nullptr) return;
    cudnn::Arguments arguments{};
    arguments.inputs[0] = first;
    arguments.inputs[1] = second;
    const std::pair<const Conversion*, size_t> conversions[] = {{part.first ? &*part.first : nullptr, 0},
                                                                {part.second ? &*part.second : nullptr, 1}};
    for (const auto& [conversion, number] : conversions) {
      if (conversion == nullptr) continue;
      RunPointwise(conversion->plan, device_, stream, {arguments.inputs[number]}, {scratch});
      arguments.inputs[number] = scratch;
      scratch += conversion->bytes;
    }
    if (part.padding) {
      std::vector<uint64_t> numbers = part.padding->arguments;
      numbers[0] = reinterpret_cast<uintptr_t>(arguments.inputs[0]);
      numbers[1] = reinterpret_cast<uintptr_t>(scratch);
      void* parameters[] = {numbers.data()};
      cuda::Launch(device_, part.padding->kernel, part.padding->launch, stream, parameters);
      arguments.inputs[0] = scratch;
      scratch += part.padding->bytes;
    }
    void* const made = part.result ? scratch : result;
    scratch += part.made_bytes;
    arguments.results = &made;
    arguments.workspace = scratch;
    part.plan->Run(stream, arguments);
    if (part.result) RunPointwise(part.result->plan, device_, stream, {made}, {result});
  }

  std::string name_;
  GradNode node_;
  std::optional<SumProgram> sums_;  // where dB is wanted
  DeviceScratch scratch_;
  const cuda::DeviceFacts& device_;
  mutable std::atomic<bool> warned_{false};
  mutable PlanCache<Plan, std::vector<size_t>> plans_;  // by the tensors that are not aligned
};

}  // namespace

std::string PadSource(size_t element_bytes) {
  const char* const type = element_bytes == 2   ? "unsigned short"
                           : element_bytes == 4 ? "unsigned"
                                                : "unsigned long long";
  return std::string(kCommonSource) + "\n#define ELEMENT " + type + "\n" + kConvGradSource;
}

std::unique_ptr<Kernel> CreateCudaConvGrad(const NodeInfo& info) { return std::make_unique<CudaConvGrad>(info); }

}  // namespace ortplugin
