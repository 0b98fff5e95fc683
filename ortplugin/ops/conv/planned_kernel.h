// How a node runs whose plan is made for the shapes of its inputs and for the tensors that are not aligned: the steps
// that convolutions and their gradients share.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "ortplugin/ops/conv/aligned_copies.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/ort/scratch.h"

namespace ortplugin {

// `Plan` has `scratch_bytes`.
template <typename Plan>
class PlannedKernel : public Kernel {
 public:
  void Compute(Run& run) const final {
    const size_t inputs = input_count();
    std::vector<void*> addresses;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < inputs; ++i) {
      Tensor input = run.input(i);
      CheckType(i, input.type);
      addresses.push_back(const_cast<void*>(input.data));
      shapes.push_back(std::move(input.shape));
    }
    const cuda::Stream stream = run.stream();
    const Plan* plan = plans_.Find(shapes, {});
    if (!AddOutputs(run, shapes, plan, &addresses)) return;
    const std::vector<size_t> unaligned = UnalignedTensors(addresses);
    if (!unaligned.empty()) plan = plans_.Find(shapes, unaligned);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = &Keep(shapes, unaligned);
    }
    scratch_.Lend(run, plan->scratch_bytes, [&](char* memory) { Launch(*plan, stream, addresses, memory); });
  }

 protected:
  explicit PlannedKernel(const NodeInfo& info) : scratch_(info), device_(cuda::Device(info.device())) {}

  virtual size_t input_count() const = 0;
  // Throws Error where the input has another type than the node says.
  virtual void CheckType(size_t input, ort::ElementType type) const = 0;
  // Adds the addresses of the outputs. `plan` may be null, and else knows their shapes. False: there are no elements.
  virtual bool AddOutputs(Run& run, const std::vector<Shape>& shapes, const Plan* plan,
                          std::vector<void*>* addresses) const = 0;
  // `unaligned`: the numbers of the tensors, inputs and then outputs, that the plan copies.
  virtual std::unique_ptr<Plan> Make(const std::vector<Shape>& shapes, const std::vector<size_t>& unaligned) const = 0;
  // Asynchronous, on ORT's stream. `addresses`: of the inputs, then of the outputs.
  virtual void Launch(const Plan& plan, cuda::Stream stream, const std::vector<void*>& addresses,
                      char* scratch) const = 0;

  const Plan& Keep(const std::vector<Shape>& shapes, const std::vector<size_t>& unaligned) const {
    return plans_.Keep(shapes, unaligned, Make(shapes, unaligned));
  }
  const cuda::DeviceFacts& device() const { return device_; }

 private:
  DeviceScratch scratch_;
  const cuda::DeviceFacts& device_;
  mutable PlanCache<Plan, std::vector<size_t>> plans_;  // by the tensors that are not aligned
};

}  // namespace ortplugin
