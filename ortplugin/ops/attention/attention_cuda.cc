// FusedAttention on the GPU: a plan for each combination of input shapes, made by the first engine of the table that
// fits (engines/table.cc), and its launch.

#include <algorithm>
#include <memory>
#include <utility>

#include "ortplugin/ops/attention/attention.h"
#include "ortplugin/ops/attention/engines/engine.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/written.h"

namespace ortplugin {
namespace {

// The kernels for one combination of input shapes, ready to launch.
struct AttentionPlan {
  struct Launch {
    cuda::PackedKernel kernel;
    std::vector<size_t> addresses;  // of the inputs and outputs, in their order
  };
  std::vector<Shape> outputs;
  std::vector<Launch> launches;
};

class CudaAttention : public Kernel {
 public:
  explicit CudaAttention(const NodeInfo& info)
    : attributes_(AttentionAttributes::Parse(info)), device_(cuda::Device(info.device())) {
    // Compiled for the shapes that the model declares, so that errors come with the session and runs find the kernel
    // there, in a session that allows TF32.
    const auto shapes = KnownShapes(CheckAttentionNode(attributes_, info));
    if (shapes) Make(*shapes, {true, attributes_.follows_session()});
  }

  void Compute(Run& run) const override {
    std::vector<const void*> addresses;
    std::vector<Shape> shapes;
    const AttentionProblem& problem = attributes_.problem;
    const size_t inputs = attributes_.input_count(), cached = problem.has_past ? 2u + problem.has_position : 0;
    uintptr_t cache_is_there = 1;
    for (size_t i = 0; i < inputs; ++i) {
      Tensor input = run.input(i);
      CheckAttentionType(attributes_, i, input.type);
      const size_t bytes = size_t(ElementCount(input.shape)) * SizeOf(*FromOrt(input.type));
      if (i + cached >= inputs && Written::Meets(input.data, bytes)) cache_is_there = 0;
      addresses.push_back(input.data);
      shapes.push_back(std::move(input.shape));
    }
    const cuda::Stream stream = run.stream();
    // Outputs bound by the caller may start anywhere, which is known once the shape is.
    Variant variant{true, attributes_.follows_session() && run.allows_tf32()};
    std::shared_ptr<const AttentionPlan> plan = plans_.Find(shapes, variant);
    const std::vector<Shape> outputs = plan != nullptr ? plan->outputs : FitAttention(attributes_, shapes).outputs;
    for (size_t i = 0; i < outputs.size(); ++i) addresses.push_back(run.output(i, outputs[i]));
    if (std::all_of(outputs.begin(), outputs.end(), [](const Shape& shape) { return ElementCount(shape) == 0; }))
      return;
    variant.first = std::all_of(addresses.begin(), addresses.end(),
      [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; });
    if (!variant.first) plan = plans_.Find(shapes, variant);
    addresses.push_back(reinterpret_cast<const void*>(cache_is_there));
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Make(shapes, variant);
    }
    std::vector<const void*> own;
    for (const AttentionPlan::Launch& launch : plan->launches) {
      own.clear();
      for (const size_t number : launch.addresses) own.push_back(addresses[number]);
      launch.kernel.Launch(device_, stream, own.data(), own.size());
    }
  }

 private:
  using Variant = std::pair<bool, bool>;  // whether all tensors are aligned; whether the session allows TF32

  std::shared_ptr<const AttentionPlan> Make(const std::vector<Shape>& shapes, const Variant& variant) const {
    AttentionShape shape = FitAttention(attributes_, shapes);
    shape.problem.allow_tf32 = attributes_.allow_tf32.value_or(variant.second);
    auto plan = std::make_unique<AttentionPlan>();
    plan->outputs = shape.outputs;
    for (AttentionLaunch& launch : PlanAttention(shape.problem, variant.first, device_))
      plan->launches.push_back({launch.kernel.Load(device_), std::move(launch.addresses)});
    return plans_.Keep(shapes, variant, std::move(plan));
  }

  AttentionAttributes attributes_;
  const cuda::DeviceFacts& device_;
  mutable PlanCache<AttentionPlan, Variant> plans_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaAttention(const NodeInfo& info) { return std::make_unique<CudaAttention>(info); }

}  // namespace ortplugin
