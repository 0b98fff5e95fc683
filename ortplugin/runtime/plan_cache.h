// What a CUDA kernel has worked out for the input shapes it has met: found by many threads, made once for each.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "ortplugin/runtime/ort.h"

namespace ortplugin {

// Grows with the shapes seen; a plan is a few hundred bytes. `Variant` says what else a plan depends on.
template <typename Plan, typename Variant>
class PlanCache {
 public:
  // Null where there is none yet. A plan stays where it is.
  const Plan* Find(const std::vector<Shape>& shapes, Variant variant) const {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto found = plans_.find(Key(shapes, variant));
    return found == plans_.end() ? nullptr : found->second.get();
  }

  // The plan that is kept: another thread's, where that came first.
  const Plan& Keep(const std::vector<Shape>& shapes, Variant variant, std::unique_ptr<Plan> plan) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    return *plans_.emplace(Key(shapes, variant), std::move(plan)).first->second;
  }

 private:
  using Key = std::pair<std::vector<Shape>, Variant>;
  mutable std::shared_mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace ortplugin
