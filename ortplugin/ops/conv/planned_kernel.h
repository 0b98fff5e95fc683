// How a node runs whose plan is made for the shapes of its inputs and for the tensors that are not aligned: the steps
// that convolutions and their gradients share.
#pragma once

#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "ortplugin/ops/conv/aligned_copies.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/ort/scratch.h"

namespace ortplugin {

// What a plan depends on besides shapes.
struct PlanVariant {
  std::vector<size_t> unaligned;  // the numbers of the tensors, inputs and then outputs, that the plan copies
  bool session_allows_tf32 = false;  // asked where the kernel follows the session alone

  friend bool operator<(const PlanVariant& a, const PlanVariant& b) {
    return std::tie(a.unaligned, a.session_allows_tf32) < std::tie(b.unaligned, b.session_allows_tf32);
  }
};

// `Plan` has `scratch_bytes` and `holds_library_plan()`.
template <typename Plan>
class PlannedKernel : public Kernel {
 public:
  void Compute(Run& run) const final {
    const size_t inputs = input_count();
    std::vector<void*> addresses;
    Shapes shapes;
    for (size_t i = 0; i < inputs; ++i) {
      Tensor input = run.input(i);
      CheckType(i, input.type);
      addresses.push_back(const_cast<void*>(input.data));
      shapes.push_back(std::move(input.shape));
    }
    const cuda::Stream stream = run.stream();
    PlanVariant variant{{}, follows_session() && run.allows_tf32()};
    std::shared_ptr<const Plan> plan = plans_.Find(shapes, variant);
    if (!AddOutputs(run, shapes, plan.get(), &addresses)) return;
    variant.unaligned = UnalignedTensors(addresses);
    if (!variant.unaligned.empty()) plan = plans_.Find(shapes, variant);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Keep(shapes, variant);
    }
    scratch_.Lend(run, plan->scratch_bytes, [&](char* memory) { Launch(*plan, stream, addresses, memory); });
  }

 protected:
  explicit PlannedKernel(const NodeInfo& info) : scratch_(info), device_(cuda::Device(info.device())) {}

  virtual size_t input_count() const = 0;
  // Throws Error where the input has another type than the node says.
  virtual void CheckType(size_t input, ort::ElementType type) const = 0;
  // Adds the addresses of the outputs. `plan` may be null, and else knows their shapes. False: there are no elements.
  virtual bool AddOutputs(Run& run, const Shapes& shapes, const Plan* plan, std::vector<void*>* addresses) const = 0;
  // Whether plans depend on the session's word on TF32.
  virtual bool follows_session() const { return false; }
  virtual std::unique_ptr<Plan> Make(const Shapes& shapes, const PlanVariant& variant) const = 0;
  // Asynchronous, on ORT's stream. `addresses`: of the inputs, then of the outputs.
  virtual void Launch(
    const Plan& plan, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const = 0;

  std::shared_ptr<const Plan> Keep(const Shapes& shapes, const PlanVariant& variant) const {
    std::unique_ptr<Plan> plan = Make(shapes, variant);
    const bool is_of_library = plan->holds_library_plan();
    return plans_.Keep(shapes, variant, std::move(plan), is_of_library);
  }
  const DeviceFacts& device() const { return device_; }

 private:
  DeviceScratch scratch_;
  const DeviceFacts& device_;
  mutable PlanCache<Plan, PlanVariant> plans_;
};

}  // namespace ortplugin
