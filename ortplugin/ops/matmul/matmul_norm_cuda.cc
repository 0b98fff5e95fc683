// FusedMatMulNorm on the GPU: one kernel in which clusters have whole rows (gemm_norm.cuh), matrix-vector products that
// each normalise what they read (gemv.cu), or the product's and the norm's.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ortplugin/ops/conv/engines/gemm.h"
#include "ortplugin/ops/conv/engines/gemv.h"
#include "ortplugin/ops/matmul/matmul_norm.h"
#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin {
namespace {

struct MatMulNormPlan {
  Shape shape;  // of the norm's results
  std::optional<cuda::PackedKernel> whole;
  MatMulPlan product;  // else
  NormPlan norm;
  std::vector<size_t> offsets;  // of the product's results in scratch memory, where they are no outputs
  size_t rest = 0, scratch_bytes = 0;  // where the scratch memory of the two kernels begins

  bool holds_library_plan() const { return product.holds_library_plan(); }
};

class CudaMatMulNorm : public PlannedKernel<MatMulNormPlan> {
 public:
  explicit CudaMatMulNorm(const NodeInfo& info) : CudaMatMulNorm(info, {}) {}

 private:
  CudaMatMulNorm(const NodeInfo& info, TensorTypes types)
    : PlannedKernel(info),
      node_(MatMulNormNode::Read(info, &types)),
      planner_(info.name(), ConvAlgorithm::Parse("auto"), device()) {
    // Says early what is wrong or missing, and compiles for the shapes of the model.
    const std::optional<Shapes> shapes = KnownShapes(types);
    if (!shapes || (*shapes)[0].empty() || (*shapes)[1].empty()) return;
    const MatMulProblem problem = node_.product.Fit(node_.ProductShapes(*shapes), true);
    if (ElementCount(problem.full) > 0 && !planner_.Prepare(problem.contraction))
      Keep(*shapes, {{}, node_.product.follows_session()});
  }

  size_t input_count() const override { return node_.input_count(); }
  void CheckType(size_t input, ort::ElementType type) const override { node_.CheckInput(input, type); }
  bool follows_session() const override { return node_.product.follows_session(); }

  bool AddOutputs(
    Run& run, const Shapes& shapes, const MatMulNormPlan* plan, std::vector<void*>* addresses) const override {
    size_t output = 0;
    for (size_t r = 0; node_.keeps_product && r < node_.values(); ++r)
      addresses->push_back(run.output(output++, node_.product.Result(shapes[0], shapes[1])));
    if (node_.norm_first) {
      const Shape of_product =
        plan != nullptr ? plan->shape : node_.product.Result(node_.ProductShapes(shapes)[0], shapes[1]);
      for (size_t r = 0; r < node_.product.program->results().size(); ++r)
        addresses->push_back(run.output(r, of_product));
      return ElementCount(of_product) > 0;
    }
    const Shape full = plan != nullptr ? plan->shape : FitShapes(node_.norm, node_.NormShapes(shapes)).shape;
    for (size_t r = 0; r < node_.norm.program.results().size(); ++r) addresses->push_back(run.output(output++, full));
    return ElementCount(full) > 0;
  }

  std::unique_ptr<MatMulNormPlan> Make(const Shapes& shapes, const PlanVariant& variant) const override {
    if (node_.norm_first) return MakeNormFirst(shapes, variant);
    auto plan = std::make_unique<MatMulNormPlan>();
    if (variant.unaligned.empty() && node_.algorithm != MatMulNormNode::Algorithm::kApart)
      plan->whole = MakeWhole(shapes, variant.session_allows_tf32);
    const Shapes norm_shapes = node_.NormShapes(shapes);
    plan->shape = FitShapes(node_.norm, norm_shapes).shape;
    if (plan->whole) return plan;
    PlanVariant of_product{{}, variant.session_allows_tf32};
    bool aligned = true;  // of what the norm touches
    const size_t inputs = node_.product.input_count(), kept = node_.keeps_product ? node_.values() : 0;
    for (const size_t tensor : variant.unaligned) {
      const bool is_value = tensor >= input_count() && tensor < input_count() + kept;
      if (tensor < inputs) of_product.unaligned.push_back(tensor);
      if (is_value) of_product.unaligned.push_back(tensor - input_count() + inputs);
      aligned = aligned && tensor < inputs;
    }
    plan->product = PlanMatMul(node_.product, planner_, device(), node_.ProductShapes(shapes), of_product);
    plan->norm = PlanNorm(node_.norm, norm_shapes, aligned, device());
    const Program& program = *node_.product.program;
    for (size_t r = 0; !node_.keeps_product && r < node_.values(); ++r) {
      plan->offsets.push_back(plan->rest);
      plan->rest += ScratchBytes(size_t(ElementCount(norm_shapes[0])) * SizeOf(program.result(r).dtype));
    }
    plan->scratch_bytes = plan->rest + std::max(plan->product.scratch_bytes, plan->norm.scratch_bytes);
    return plan;
  }

  std::unique_ptr<MatMulNormPlan> MakeNormFirst(const Shapes& shapes, const PlanVariant& variant) const {
    auto plan = std::make_unique<MatMulNormPlan>();
    const size_t inputs = node_.product.input_count();
    const Shapes of_product = node_.ProductShapes(shapes);
    const MatMulProblem problem = node_.product.Fit(of_product, variant.session_allows_tf32);
    const size_t value_bytes = SizeOf(problem.contraction.dtype());
    plan->shape = problem.full;
    if (variant.unaligned.empty() && node_.algorithm != MatMulNormNode::Algorithm::kApart && !problem.is_apart)
      plan->whole =
        MakeGemv(node_.product.gated ? node_.product.WithGateOf(problem.contraction) : problem.contraction, shapes);
    if (plan->whole) return plan;
    PlanVariant for_product{{}, variant.session_allows_tf32};
    bool aligned = true;  // of what the norm touches
    for (const size_t tensor : variant.unaligned) {
      const bool is_of_norm = tensor == 0 || (tensor >= inputs && tensor < input_count());
      if (!is_of_norm) for_product.unaligned.push_back(tensor < inputs ? tensor : tensor - input_count() + inputs);
      aligned = aligned && !is_of_norm;
    }
    plan->product = PlanMatMul(node_.product, planner_, device(), of_product, for_product);
    plan->rest = ScratchBytes(size_t(ElementCount(of_product[0])) * value_bytes);
    if (plan->rest > 0) plan->norm = PlanNorm(node_.norm, node_.NormShapes(shapes), aligned, device());
    plan->scratch_bytes = plan->rest + std::max(plan->product.scratch_bytes, plan->norm.scratch_bytes);
    return plan;
  }

  // A matrix-vector product with the norm in front of it, where the product alone would be one.
  std::optional<cuda::PackedKernel> MakeGemv(const Contraction& problem, const Shapes& shapes) const {
    const Program& program = *node_.product.program;
    const NormProgram& norm = node_.norm;
    if (norm.prologue_operands.parameters != std::vector<size_t>{0} || norm.axis != -1 || !norm.axes.empty() ||
      norm.groups > 0 || norm.program.parameter(0).dtype != problem.dtype())
      return std::nullopt;
    const std::vector<size_t>& behind = norm.epilogue_operands.parameters;
    if (std::find(behind.begin(), behind.end(), 0) != behind.end()) return std::nullopt;
    NormTail tail{&norm, {}, false, true};
    for (size_t i = node_.product.input_count(); i < shapes.size(); ++i) {
      const int64_t width = shapes[i].empty() ? 1 : shapes[i].back();
      if (ElementCount(shapes[i]) != width) return std::nullopt;  // it differs from row to row
      tail.operands.push_back({1, 1, 1, width});
    }
    const std::optional<EngineKernel> alone = FindEngineKernel(program, problem, device(), true);
    const bool is_gemv = alone && std::string_view(alone->entry) == "gemv";
    if (!is_gemv && node_.algorithm == MatMulNormNode::Algorithm::kAuto) return std::nullopt;
    const std::optional<EngineKernel> made = MakeGemvNorm(program, problem, tail, device());
    if (!made) return std::nullopt;
    return made->Load(device());
  }

  void LaunchNormFirst(
    const MatMulNormPlan& plan, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const {
    const size_t inputs = node_.product.input_count();
    const auto at = [&](size_t index) { return addresses.begin() + std::ptrdiff_t(index); };
    if (plan.whole) return plan.whole->Launch(device(), stream, addresses.data(), addresses.size());
    std::vector<void*> of_norm(at(inputs), at(input_count())), of_product(addresses.begin(), at(inputs));
    of_norm.insert(of_norm.begin(), addresses[0]);
    of_norm.push_back(of_product[0] = scratch);
    of_product.insert(of_product.end(), at(input_count()), addresses.end());
    if (plan.rest > 0) plan.norm.Run(device(), stream, of_norm, scratch + plan.rest);
    plan.product.Run(device(), stream, of_product, scratch + plan.rest);
  }

  std::optional<cuda::PackedKernel> MakeWhole(const Shapes& shapes, bool session_allows_tf32) const {
    if (node_.norm.prologue_operands.parameters != std::vector<size_t>{0}) return std::nullopt;
    const MatMulProblem fit = node_.product.Fit(shapes, session_allows_tf32);  // with the norm's operands
    const Contraction problem = WithRowsAsBatch(fit.contraction);
    if (fit.is_apart || problem.rows().size * problem.columns().size != 1) return std::nullopt;
    Contraction product = problem;
    const auto split =
      problem.operands.begin() + std::ptrdiff_t(node_.product.input_count()) - std::ptrdiff_t(kMatMulInputs);
    product.operands.assign(problem.operands.begin(), split);
    const NormTail tail{&node_.norm, {split, problem.operands.end()}, node_.keeps_product};
    const Program& program = *node_.product.program;
    const bool only_where_fast = node_.algorithm == MatMulNormNode::Algorithm::kAuto;
    // Not in place of what divides sums among blocks, or of a library's kernel.
    const std::optional<EngineKernel> apart = FindEngineKernel(program, product, device(), true);
    if (only_where_fast && (!apart || std::string_view(apart->entry) != "gemm")) return std::nullopt;
    std::optional<GemmConfig> config = ConfigureGemmNorm(program, product, tail, INT32_MAX, only_where_fast, device());
    while (config) {
      cuda::PackedKernel kernel = MakeGemmNorm(program, product, *config, tail, device()).Load(device());
      const unsigned cluster = unsigned(config->cluster);
      if (cluster == 1) return kernel;
      const int resident =
        cuda::ResidentClusters(device(), kernel.function, cluster, kernel.launch.threads, kernel.launch.shared_bytes);
      if (unsigned(resident) * cluster >= kernel.launch.blocks) return kernel;
      config = ConfigureGemmNorm(program, product, tail, config->cluster - 1, only_where_fast, device());
    }
    return std::nullopt;
  }

  void Launch(const MatMulNormPlan& plan, cuda::Stream stream, const std::vector<void*>& addresses,
    char* scratch) const override {
    if (node_.norm_first) return LaunchNormFirst(plan, stream, addresses, scratch);
    const size_t inputs = node_.product.input_count();
    const auto at = [&](size_t index) { return addresses.begin() + std::ptrdiff_t(index); };
    std::vector<void*> values;
    for (const size_t offset : plan.offsets) values.push_back(scratch + offset);
    auto results = at(input_count());
    if (node_.keeps_product) {
      values.assign(results, results + std::ptrdiff_t(node_.values()));
      results += std::ptrdiff_t(node_.values());
    }
    if (plan.whole) {
      std::vector<void*> all(addresses.begin(), at(input_count()));
      values.resize(node_.values());
      all.insert(all.end(), values.begin(), values.end());
      all.insert(all.end(), results, addresses.end());
      return plan.whole->Launch(device(), stream, all.data(), all.size());
    }
    std::vector<void*> of_product(addresses.begin(), at(inputs)), of_norm = values;
    of_product.insert(of_product.end(), values.begin(), values.end());
    of_norm.insert(of_norm.end(), at(inputs), at(input_count()));
    of_norm.insert(of_norm.end(), results, addresses.end());
    plan.product.Run(device(), stream, of_product, scratch + plan.rest);
    plan.norm.Run(device(), stream, of_norm, scratch + plan.rest);
  }

  MatMulNormNode node_;
  ConvPlanner planner_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaMatMulNorm(const NodeInfo& info) { return std::make_unique<CudaMatMulNorm>(info); }

}  // namespace ortplugin
