// FusedMatMul on the GPU: a contraction of one-element windows, on the engines and libraries of convolutions.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv/engines/engine.h"
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
    const std::optional<Shapes> shapes = KnownShapes(node_.inputs);
    if (!shapes || (*shapes)[0].empty() || (*shapes)[1].empty()) return;
    const MatMulProblem problem = node_.Fit(*shapes, true);
    if (ElementCount(problem.full) == 0) return;
    if (!planner_.Prepare(problem.contraction)) Keep(*shapes, {{}, node_.follows_session()});
  }

  size_t input_count() const override { return node_.input_count(); }

  void CheckType(size_t input, ort::ElementType type) const override {
    CheckInput(*node_.program, kMatMulInputs, input, type);
  }

  bool AddOutputs(Run& run, const Shapes& shapes, const MatMulPlan*, std::vector<void*>* addresses) const override {
    const Shape full = node_.Result(shapes[0], shapes[1]);
    for (size_t r = 0; r < node_.program->results().size(); ++r) addresses->push_back(run.output(r, full));
    return ElementCount(full) > 0;
  }

  bool follows_session() const override { return node_.follows_session(); }

  std::unique_ptr<MatMulPlan> Make(const Shapes& shapes, const PlanVariant& variant) const override {
    return std::make_unique<MatMulPlan>(PlanMatMul(node_, planner_, device(), shapes, variant));
  }

  void Launch(
    const MatMulPlan& plan, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const override {
    plan.Run(device(), stream, addresses, scratch);
  }

  CheckedMatMulNode node_;
  ConvPlanner planner_;
};

// One kernel for a product and its gate, where either alone would be of an engine that takes both.
std::optional<EngineKernel> FindGated(const MatMulNode& node, const Contraction& product, const DeviceFacts& device) {
  const std::optional<EngineKernel> apart = FindEngineKernel(*node.program, product, device, true);
  if (!apart || (std::string_view(apart->entry) != "gemm" && std::string_view(apart->entry) != "gemv"))
    return std::nullopt;
  return FindEngineKernel(*node.program, node.WithGateOf(product), device, true);
}

}  // namespace

MatMulPlan PlanMatMul(const MatMulNode& node, const ConvPlanner& planner, const DeviceFacts& device,
  const Shapes& shapes, const PlanVariant& variant) {
  const std::vector<size_t>& unaligned = variant.unaligned;
  const MatMulProblem problem = node.Fit(shapes, variant.session_allows_tf32);
  MatMulPlan plan;
  plan.inputs = shapes.size();
  if (node.gated && planner.is_auto() && unaligned.empty() && !problem.is_apart)
    if (const std::optional<EngineKernel> whole = FindGated(node, problem.contraction, device)) {
      plan.whole = whole->Load(device);
      return plan;
    }
  const size_t value_bytes = ScratchBytes(size_t(ElementCount(problem.full)) * SizeOf(problem.contraction.dtype()));
  std::vector<size_t> of_product, of_gate, of_program;  // what is unaligned of theirs
  for (const size_t tensor : unaligned) {
    const bool is_gate = node.gated && tensor == kMatMulInputs;
    if (tensor == 0 || is_gate) of_gate.push_back(is_gate ? 1 : 0);
    if (!is_gate) (tensor < kMatMulInputs || !problem.is_apart ? of_product : of_program).push_back(tensor);
  }
  if (node.gated) {
    plan.gate = planner.Make(node.GateOf(problem.contraction), of_gate);
    plan.gate_bytes = value_bytes;
    plan.scratch_bytes = plan.gate->scratch_bytes;
  }
  plan.product = planner.Make(problem.contraction, of_product);
  if (problem.is_apart) {
    plan.value_bytes = value_bytes;
    Shapes parameters = node.WithGate(shapes);
    parameters.erase(parameters.begin());
    parameters[0] = problem.full;
    plan.program = PlanPointwise(
      *node.program, FitPointwise(*node.program, parameters), device, of_program.empty() ? kMostVector : 1);
  }
  plan.scratch_bytes = plan.gate_bytes + plan.value_bytes + std::max(plan.scratch_bytes, plan.product->scratch_bytes);
  return plan;
}

bool MatMulPlan::holds_library_plan() const {
  const auto holds = [](
                       const std::unique_ptr<ConvPlan>& plan) { return plan != nullptr && plan->holds_library_plan(); };
  return holds(product) || holds(gate);
}

void MatMulPlan::Run(
  const DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& given, char* scratch) const {
  if (whole) return whole->Launch(device, stream, given.data(), given.size());
  char* const value = scratch + gate_bytes;
  char* const rest = value + value_bytes;
  std::vector<void*> addresses = given;
  if (gate != nullptr) {
    addresses[kMatMulInputs] = scratch;
    gate->Run(device, stream, {given[0], given[kMatMulInputs], scratch}, rest);
  }
  if (!program) return product->Run(device, stream, addresses, rest);
  product->Run(device, stream, {addresses[0], addresses[1], value}, rest);
  const auto outputs = addresses.begin() + std::ptrdiff_t(inputs);
  std::vector<const void*> parameters(addresses.begin() + kMatMulInputs, outputs);
  parameters.insert(parameters.begin(), value);
  RunPointwise(*program, device, stream, parameters, {outputs, addresses.end()});
}

std::unique_ptr<Kernel> CreateCudaMatMul(const NodeInfo& info) { return std::make_unique<CudaMatMul>(info); }

}  // namespace ortplugin
