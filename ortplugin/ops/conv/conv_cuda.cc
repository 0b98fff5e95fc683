#include "ortplugin/ops/conv/conv_cuda.h"

#include <optional>
#include <utility>

#include "ortplugin/ops/conv/conv_plan.h"
#include "ortplugin/ops/conv/engines/pixel_shuffle.h"
#include "ortplugin/ops/conv/planned_kernel.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"

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
  problem.channels_first = !shape.channels_last;
  problem.x_channels_first = conv_case.attributes.x_channels_first;
  problem.y_channels_first = conv_case.attributes.y_channels_first;
  problem.allow_tf32 = conv_case.allow_tf32;
  problem.constant_weights = conv_case.constant_weights;
  problem.operands.assign(conv_case.shapes.begin() + kConvInputs, conv_case.shapes.end());
  problem.constant_operands = conv_case.constant_operands;
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

class CudaConv : public PlannedKernel<ConvPlan> {
 public:
  CudaConv(const NodeInfo& info, bool transposed)
      : CudaConv(info, ConvNode(info, info.string_attribute("program"), transposed)) {}

 private:
  CudaConv(const NodeInfo& info, const ConvNode& node)
      : PlannedKernel(info), planner_(info.name(), ConvAlgorithm::Parse(node.algorithm), device()) {
    convolution_.attributes = node.attributes;
    convolution_.program = std::make_shared<const Program>(node.program);
    convolution_.allow_tf32 = node.allow_tf32;
    convolution_.constant_weights = info.constant_input(1).has_value();
    for (size_t i = kConvInputs; i < info.input_count(); ++i)
      convolution_.constant_operands.push_back(info.constant_input(i).has_value());
    Prepare(node.inputs);
  }

  // Says early what is wrong with the node or missing here, and starts to work on the plan for the shapes that the
  // model declares, so that sessions with many convolutions make their plans at the same time.
  void Prepare(const std::vector<TensorType>& types) {
    const std::optional<std::vector<Shape>> shapes = KnownShapes(types);
    if (!shapes) return;
    const ConvCase conv_case = CaseOf(*shapes);
    const ConvShape shape = FitConv(conv_case.attributes, (*shapes)[0], (*shapes)[1]);
    if (ElementCount(shape.result()) == 0) return;
    if (!planner_.Prepare(conv_case, shape)) Keep(*shapes, {});
  }

  size_t input_count() const override { return convolution_.program->parameters().size() - 1 + kConvInputs; }

  void CheckType(size_t input, ort::ElementType type) const override {
    CheckInput(*convolution_.program, kConvInputs, input, type);
  }

  bool AddOutputs(Run& run, const std::vector<Shape>& shapes, const ConvPlan* plan,
                  std::vector<void*>* addresses) const override {
    const Shape shape =
        plan != nullptr ? plan->output : FitConv(convolution_.attributes, shapes[0], shapes[1]).output();
    for (size_t r = 0; r < convolution_.program->results().size(); ++r) addresses->push_back(run.output(r, shape));
    return ElementCount(shape) > 0;
  }

  ConvCase CaseOf(const std::vector<Shape>& shapes) const {
    ConvCase conv_case = convolution_;
    conv_case.shapes = shapes;
    return conv_case;
  }

  std::unique_ptr<ConvPlan> Make(const std::vector<Shape>& shapes,
                                 const std::vector<size_t>& unaligned) const override {
    return planner_.Make(CaseOf(shapes), unaligned);
  }

  void Launch(const ConvPlan& plan, cuda::Stream stream, const std::vector<void*>& addresses,
              char* scratch) const override {
    plan.Run(device(), stream, addresses, scratch);
  }

  ConvCase convolution_;  // without shapes
  ConvPlanner planner_;
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
