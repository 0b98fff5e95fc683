// FusedAttention on the GPU: a plan for each combination of input shapes, made by the first engine of the table that
// fits (engines/table.cc), and its launch.

#include <algorithm>
#include <memory>

#include "ortplugin/ops/attention/attention.h"
#include "ortplugin/ops/attention/engines/engine.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/program/operands.h"

namespace ortplugin {
namespace {

// A kernel for one combination of input shapes, ready to launch.
struct Plan {
  Shape output;
  cuda::PackedKernel kernel;
};

class CudaAttention : public Kernel {
 public:
  explicit CudaAttention(const NodeInfo& info)
      : attributes_(AttentionAttributes::Parse(info)), device_(cuda::Device(info.device())) {
    // Compiled for the shapes that the model declares, so that errors come with the session and runs find the kernel
    // there.
    const auto shapes = KnownShapes(CheckAttentionNode(attributes_, info));
    if (shapes && ElementCount(FitAttention(attributes_, *shapes).output) > 0) Make(*shapes, true);
  }

  void Compute(Run& run) const override {
    std::vector<const void*> addresses;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < attributes_.input_count(); ++i) {
      Tensor input = run.input(i);
      CheckAttentionType(attributes_, i, input.type);
      addresses.push_back(input.data);
      shapes.push_back(std::move(input.shape));
    }
    const cuda::Stream stream = run.stream();
    // Outputs bound by the caller may start anywhere, which is known once the shape is.
    const Plan* plan = plans_.Find(shapes, true);
    const Shape shape = plan != nullptr ? plan->output : FitAttention(attributes_, shapes).output;
    addresses.push_back(run.output(0, shape));
    if (ElementCount(shape) == 0) return;
    const bool aligned = std::all_of(addresses.begin(), addresses.end(), [](const void* address) {
      return reinterpret_cast<uintptr_t>(address) % 16 == 0;
    });
    if (!aligned) plan = plans_.Find(shapes, aligned);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = &Make(shapes, aligned);
    }
    plan->kernel.Launch(device_, stream, addresses.data(), addresses.size());
  }

 private:
  const Plan& Make(const std::vector<Shape>& shapes, bool aligned) const {
    const AttentionShape shape = FitAttention(attributes_, shapes);
    auto plan = std::make_unique<Plan>();
    plan->output = shape.output;
    plan->kernel = MakeAttention(shape.problem, aligned, device_).Load(device_);
    return plans_.Keep(shapes, aligned, std::move(plan));
  }

  AttentionAttributes attributes_;
  const cuda::DeviceFacts& device_;
  mutable PlanCache<Plan, bool> plans_;  // by whether all tensors are aligned
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaAttention(const NodeInfo& info) { return std::make_unique<CudaAttention>(info); }

}  // namespace ortplugin
