#include "ortplugin/ops/conv/conv_cuda.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

#include "ortplugin/ops/conv/conv_plan.h"
#include "ortplugin/ops/conv/engines/pixel_shuffle.h"
#include "ortplugin/ops/conv/planned_kernel.h"
#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin {
namespace {

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

}  // namespace

cudnn::Problem ProblemWithoutEpilogue(const Contraction& contraction) {
  cudnn::Problem problem;
  problem.direction = contraction.transposed ? cudnn::Direction::kDataGradient : cudnn::Direction::kForward;
  problem.dtype = contraction.dtype();
  problem.allow_tf32 = contraction.allow_tf32;
  problem.w = TensorOf(contraction.w(), contraction.channels_last);
  const Shape x = contraction.x_first();  // cuDNN gets it in the node's layout, whatever it came in
  (contraction.transposed ? problem.y : problem.x) =
    contraction.channels_last ? cudnn::ChannelsLast(x) : cudnn::ChannelsFirst(x);
  (contraction.transposed ? problem.x : problem.y) = TensorOf(contraction.result(), contraction.channels_last);
  for (const Window& window : contraction.windows) {
    problem.pads_begin.push_back(window.pad_begin);
    problem.pads_end.push_back(window.pad_end);
    problem.strides.push_back(window.stride);
    problem.dilations.push_back(window.dilation);
  }
  problem.groups = contraction.groups;
  return problem;
}

cudnn::Problem ProblemWithEpilogue(const Contraction& contraction) {
  cudnn::Problem problem = ProblemWithoutEpilogue(contraction);
  if (IsIdentity(*contraction.program)) return problem;
  problem.program = contraction.program;
  const Shape full = contraction.result();
  for (const Shape& operand : contraction.operands)
    problem.operands.push_back(OperandOf(operand, full, contraction.channels_last));
  problem.results.assign(contraction.program->results().size(), TensorOf(full, contraction.channels_last));
  return problem;
}

namespace {

class CudaConv : public PlannedKernel<ConvPlan> {
 public:
  CudaConv(const NodeInfo& info, bool transposed)
    : CudaConv(info, CheckedConvNode(info, info.string_attribute("program"), transposed)) {}

 private:
  CudaConv(const NodeInfo& info, const CheckedConvNode& node)
    : PlannedKernel(info), node_(node), planner_(info.name(), ConvAlgorithm::Parse(node.algorithm), device()) {
    Prepare(node.inputs);
  }

  // Says early what is wrong with the node or missing here, and starts to work on the plan for the shapes that the
  // model declares, so that sessions with many convolutions make their plans at the same time.
  void Prepare(const TensorTypes& types) {
    const std::optional<Shapes> shapes = KnownShapes(types);
    if (!shapes) return;
    // No run has told the session's word on TF32 yet: this is the plan of a session that has not changed it.
    const Contraction contraction = node_.Fit(*shapes, true);
    if (ElementCount(contraction.result()) == 0) return;
    if (!planner_.Prepare(contraction)) Keep(*shapes, {{}, node_.follows_session()});
  }

  size_t input_count() const override { return node_.program->parameters().size() - 1 + kConvInputs; }

  void CheckType(size_t input, ort::ElementType type) const override {
    CheckInput(*node_.program, kConvInputs, input, type);
  }

  bool AddOutputs(Run& run, const Shapes& shapes, const ConvPlan* plan, std::vector<void*>* addresses) const override {
    const Shape shape = plan != nullptr ? plan->output : FitConv(node_.attributes, shapes[0], shapes[1]).output();
    for (size_t r = 0; r < node_.program->results().size(); ++r) addresses->push_back(run.output(r, shape));
    return ElementCount(shape) > 0;
  }

  bool follows_session() const override { return node_.follows_session(); }

  std::unique_ptr<ConvPlan> Make(const Shapes& shapes, const PlanVariant& variant) const override {
    Contraction contraction = node_.Fit(shapes, variant.session_allows_tf32);
    contraction.has_open_sizes = IsOfOtherSize(contraction.windows);
    return planner_.Make(contraction, variant.unaligned);
  }

  // Whether the images have another height or width than those that were first. Kernels are made for the size that is
  // first, and at the second one for all others, so that they do not multiply with sizes.
  bool IsOfOtherSize(const std::vector<Window>& windows) const {
    const auto is_same = [](const Window& a, const Window& b) { return a.size == b.size; };
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_.empty()) first_ = windows;
    return !std::equal(windows.begin(), windows.end(), first_.begin(), first_.end(), is_same);
  }

  void Launch(
    const ConvPlan& plan, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const override {
    plan.Run(device(), stream, addresses, scratch);
  }

  ConvNode node_;
  ConvPlanner planner_;
  mutable std::mutex mutex_;
  mutable std::vector<Window> first_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaConvolution(const NodeInfo& info, bool transposed) {
  return std::make_unique<CudaConv>(info, transposed);
}

std::unique_ptr<Kernel> CreateCudaConv(const NodeInfo& info) { return CreateCudaConvolution(info, false); }

std::vector<std::string> ListConvAlgorithms(const Contraction& given, const DeviceFacts& gpu) {
  const Contraction contraction = given.WithMergedFrames();
  // cuDNN's heuristics come in their order: what they put far behind is hardly ever the fastest, and takes its time.
  constexpr size_t kMostFused = 8, kMostSplit = 4;
  const size_t fused = IsIdentity(*contraction.program) ? kMostFused + kMostSplit : kMostFused;
  std::vector<std::string> texts;
  if (contraction.is_empty() || ElementCount(contraction.result()) == 0)
    return texts;  // nothing to choose, and counts divide
  if (FindEngineKernel(*contraction.program, contraction, gpu, false)) texts.push_back("own");
  const auto add = [&](ConvAlgorithm::Kind kind, const cudnn::Problem& problem, size_t most) {
    for (const cudnn::PlanText& plan : cudnn::ListPlans(gpu, problem, cudnn::kMostWorkspace, most))
      texts.push_back(ConvAlgorithm{kind, plan}.ToString());
  };
  if (cudnn::RefusalOf(*contraction.program).empty())
    add(ConvAlgorithm::Kind::kFused, ProblemWithEpilogue(contraction), fused);
  if (!IsIdentity(*contraction.program))
    add(ConvAlgorithm::Kind::kSplit, ProblemWithoutEpilogue(contraction), kMostSplit);
  if (FitsPixelShuffle(contraction)) add(ConvAlgorithm::Kind::kShuffle, GemmProblem(contraction), kMostSplit);
  return texts;
}

}  // namespace ortplugin
