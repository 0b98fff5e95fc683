// FusedMatMul on the GPU: a contraction of one-element windows, on the engines and libraries of convolutions.
#include <cstddef>
#include <optional>
#include <utility>

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/matmul/matmul.h"
#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin {
namespace {

class CudaMatMul : public PlannedKernel<MatMulPlan> {
 public:
  explicit CudaMatMul(const NodeInfo& info)
    : PlannedKernel(info),
      node_(info, info.string_attribute("program")),
      planner_(info.name(), ConvAlgorithm::Parse(node_.algorithm), device()) {
    Prepare();
  }

 private:
  // As CudaConv's: says early what is wrong or missing, and starts to work on the plan for the shapes of the model.
  void Prepare() {
    const std::optional<std::vector<Shape>> shapes = KnownShapes(node_.inputs);
    if (!shapes || (*shapes)[0].empty() || (*shapes)[1].empty()) return;
    const MatMulProblem problem = node_.Fit(*shapes, true);
    if (ElementCount(problem.full) == 0) return;
    if (!planner_.Prepare(problem.contraction)) Keep(*shapes, {{}, node_.follows_session()});
  }

  size_t input_count() const override { return node_.input_count(); }

  void CheckType(size_t input, ort::ElementType type) const override {
    CheckInput(*node_.program, kMatMulInputs, input, type);
  }

  bool AddOutputs(
    Run& run, const std::vector<Shape>& shapes, const MatMulPlan*, std::vector<void*>* addresses) const override {
    const Shape full = node_.Result(shapes[0], shapes[1]);
    for (size_t r = 0; r < node_.program->results().size(); ++r) addresses->push_back(run.output(r, full));
    return ElementCount(full) > 0;
  }

  bool follows_session() const override { return node_.follows_session(); }

  std::unique_ptr<MatMulPlan> Make(const std::vector<Shape>& shapes, const PlanVariant& variant) const override {
    return std::make_unique<MatMulPlan>(PlanMatMul(node_, planner_, device(), shapes, variant));
  }

  void Launch(
    const MatMulPlan& plan, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const override {
    plan.Run(device(), stream, addresses, scratch);
  }

  CheckedMatMulNode node_;
  ConvPlanner planner_;
};

}  // namespace

MatMulPlan PlanMatMul(const MatMulNode& node, const ConvPlanner& planner, const cuda::DeviceFacts& device,
  const std::vector<Shape>& shapes, const PlanVariant& variant) {
  const std::vector<size_t>& unaligned = variant.unaligned;
  const MatMulProblem problem = node.Fit(shapes, variant.session_allows_tf32);
  MatMulPlan plan;
  plan.inputs = shapes.size();
  if (!problem.is_apart) {
    plan.product = planner.Make(problem.contraction, unaligned);
  } else {
    std::vector<size_t> copied;
    for (const size_t tensor : unaligned)
      if (tensor < kMatMulInputs) copied.push_back(tensor);
    plan.product = planner.Make(problem.contraction, copied);
    plan.value_bytes =
      ScratchBytes(static_cast<size_t>(ElementCount(problem.full)) * SizeOf(problem.contraction.dtype()));
    std::vector<Shape> parameters{problem.full};
    parameters.insert(parameters.end(), shapes.begin() + kMatMulInputs, shapes.end());
    plan.program = PlanPointwise(*node.program, FitPointwise(*node.program, parameters), device,
      copied.size() < unaligned.size() ? 1 : kMostVector);
  }
  plan.scratch_bytes = plan.value_bytes + plan.product->scratch_bytes;
  return plan;
}

void MatMulPlan::Run(
  const cuda::DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const {
  if (!program) return product->Run(device, stream, addresses, scratch);
  product->Run(device, stream, {addresses[0], addresses[1], scratch}, scratch + value_bytes);
  const auto outputs = addresses.begin() + static_cast<std::ptrdiff_t>(inputs);
  std::vector<const void*> parameters(addresses.begin() + kMatMulInputs, outputs);
  parameters.insert(parameters.begin(), scratch);
  RunPointwise(*program, device, stream, parameters, {outputs, addresses.end()});
}

std::unique_ptr<Kernel> CreateCudaMatMul(const NodeInfo& info) { return std::make_unique<CudaMatMul>(info); }

}  // namespace ortplugin
