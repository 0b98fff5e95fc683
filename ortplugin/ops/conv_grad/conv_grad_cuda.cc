// ConvGrad on the GPU: dZ, and dB with it, on the kernels of FusedPointwise and FusedSumTo; dX and dW on the engines of
// grad_engines.h.

#include <algorithm>
#include <optional>

#include "ortplugin/ops/conv/planned_kernel.h"
#include "ortplugin/ops/conv_grad/conv_grad.h"
#include "ortplugin/ops/conv_grad/grad_engines.h"
#include "ortplugin/ops/conv_grad/grad_plan.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin {
namespace {

size_t Bytes(const Shape& shape, DType dtype) { return ScratchBytes(size_t(ElementCount(shape)) * SizeOf(dtype)); }

// Everything of one combination of input shapes.
struct ConvGradPlan {
  GradShape shape;
  std::optional<SumPlan> sums;
  std::optional<PointwisePlan> pointwise;
  std::optional<GradPart> data, weight;
  std::optional<WeightGradEngine> weight_engine;
  size_t z_bytes = 0;  // of dZ in scratch memory

  AlignedCopies copies;
  size_t scratch_bytes = 0;  // dZ, then what dZ, dX and dW need one after the other, then copies
  size_t step_bytes = 0;

  bool holds_library_plan() const { return (data && data->plan != nullptr) || (weight && weight->plan != nullptr); }
};

class CudaConvGrad : public PlannedKernel<ConvGradPlan> {
 public:
  explicit CudaConvGrad(const NodeInfo& info)
    : PlannedKernel(info), node_(GradNode::Read(info)), planner_(info.name(), node_, device()) {
    const TensorTypes types = CheckGrad(node_, info);
    if (node_.wants_b) sums_ = node_.Sums();
    Prepare(types);
  }

 private:
  size_t input_count() const override { return node_.operands() + node_.program.parameters().size(); }

  void CheckType(size_t i, ort::ElementType type) const override {
    const DType wanted = InputType(i);
    if (type != ToOrt(wanted))
      Fail("input ", i, " is ", NameOfOrt(type), " but the node's program says ", NameOf(wanted));
  }

  bool AddOutputs(
    Run& run, const Shapes& shapes, const ConvGradPlan* plan, std::vector<void*>* addresses) const override {
    const Shapes results = OutputShapes(plan == nullptr ? FitGrad(node_, shapes) : plan->shape);
    for (size_t r = 0; r < results.size(); ++r) addresses->push_back(run.output(r, results[r]));
    return std::any_of(results.begin(), results.end(), [](const Shape& each) { return ElementCount(each) > 0; });
  }

  DType InputType(size_t i) const {
    const size_t operands = node_.operands();
    return i < operands ? node_.dtype() : node_.program.parameter(i - operands).dtype;
  }

  // dX, dW, dB, dZ as far as they are wanted, the program's results after the first.
  Shapes OutputShapes(const GradShape& shape) const {
    Shapes shapes;
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
    return node_.program.result(node_.wants_z ? r : r + 1).dtype;
  }

  // Starts to work on the plans for the shapes that the model declares, so that sessions with many convolutions make
  // theirs at the same time.
  void Prepare(const TensorTypes& types) {
    if (!node_.wants_x && !node_.wants_w) return;
    const std::optional<Shapes> shapes = KnownShapes(types);
    if (!shapes) {
      cudnn::Version();  // throws where there is none
      return;
    }
    const GradShape shape = FitGrad(node_, *shapes);
    if (ElementCount(shape.z) == 0) return;
    planner_.Prepare(shape, *shapes);
  }

  std::unique_ptr<ConvGradPlan> Make(const Shapes& shapes, const PlanVariant& variant) const override {
    const std::vector<size_t>& unaligned = variant.unaligned;
    auto plan = std::make_unique<ConvGradPlan>();
    plan->shape = FitGrad(node_, shapes);
    const GradShape& shape = plan->shape;
    const Shapes given(shapes.begin() + std::ptrdiff_t(node_.operands()), shapes.end());
    plan->weight_engine = FindWeightGradEngine(node_, shape, shapes, device());
    const bool draws_in = plan->weight_engine && plan->weight_engine->draws_in;
    if (draws_in) {
      // Nothing is left to do for dZ and dB.
    } else if (sums_) {
      plan->sums = PlanSums(*sums_, given, device(), true);
      plan->step_bytes = ScratchBytes(plan->sums->scratch_bytes);
    } else if (!node_.is_identity() && ElementCount(shape.z) > 0) {
      plan->pointwise = PlanPointwise(node_.program, FitPointwise(node_.program, given), device(), kMostVector);
    }
    if (node_.stores_z() && !node_.wants_z && (!draws_in || plan->weight_engine->stores_z))
      plan->z_bytes = Bytes(shape.z, node_.dtype());
    if (node_.wants_x) plan->data = planner_.MakeData(shape);
    if (plan->weight_engine)
      plan->step_bytes = std::max(plan->step_bytes, ScratchBytes(plan->weight_engine->plan.scratch_bytes));
    if (node_.wants_w && !plan->weight_engine) plan->weight = planner_.MakeWeight(shape);
    for (const std::optional<GradPart>* part : {&plan->data, &plan->weight})
      if (*part) plan->step_bytes = std::max(plan->step_bytes, (*part)->scratch_bytes());
    plan->scratch_bytes = plan->z_bytes + plan->step_bytes;
    const Shapes outputs = OutputShapes(shape);
    for (const size_t tensor : unaligned) {
      if (tensor < shapes.size())
        plan->copies.Add(tensor, InputType(tensor), shapes[tensor], device());
      else
        plan->copies.Add(tensor, OutputType(tensor - shapes.size()), outputs[tensor - shapes.size()], device());
    }
    plan->scratch_bytes += plan->copies.bytes();
    return plan;
  }

  void Launch(
    const ConvGradPlan& plan, cuda::Stream stream, const std::vector<void*>& given, char* scratch) const override {
    const size_t operands = node_.operands(), inputs = input_count();
    char* const z_memory = scratch;
    char* const step = scratch + plan.z_bytes;
    const std::vector<void*> addresses =
      plan.copies.CopyInputs(device(), stream, inputs, given, step + plan.step_bytes);
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
    results.insert(results.end(), addresses.begin() + std::ptrdiff_t(next), addresses.end());
    const std::vector<const void*> parameters(
      addresses.begin() + std::ptrdiff_t(operands), addresses.begin() + std::ptrdiff_t(inputs));
    const void* const x = node_.has_x ? addresses[0] : nullptr;
    const void* const w = node_.has_w ? addresses[operands - 1] : nullptr;
    if (draws_in) {
      RunWeightGrad(
        engine->plan, device(), stream, x, parameters, engine->stores_z ? results[0] : nullptr, dw, db, step);
    } else if (plan.sums) {
      results.push_back(db);
      RunSums(*plan.sums, device(), stream, parameters, results, step);
    } else if (plan.pointwise) {
      RunPointwise(*plan.pointwise, device(), stream, parameters, results);
    }
    if (engine && !draws_in)
      RunWeightGrad(engine->plan, device(), stream, node_.transposed ? z : x, {node_.transposed ? x : z}, nullptr, dw,
        nullptr, step);
    if (plan.data) plan.data->Run(device(), stream, z, w, dx, step);
    if (plan.weight) plan.weight->Run(device(), stream, node_.transposed ? z : x, node_.transposed ? x : z, dw, step);
    plan.copies.CopyOutputs(device(), stream, inputs, given, addresses);
  }

  GradNode node_;
  std::optional<SumProgram> sums_;  // where dB is wanted
  GradPlanner planner_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaConvGrad(const NodeInfo& info) { return std::make_unique<CudaConvGrad>(info); }

}  // namespace ortplugin
