// What a CUDA kernel has worked out for the input shapes it has met: found by many threads, made once for each.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <utility>

#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

// Grows with the shapes seen; a plan is a few hundred bytes. `Variant` says what else a plan depends on.
template <typename Plan, typename Variant>
class PlanCache {
 public:
  // Null where there is none yet. A plan stays where it is.
  const Plan* Find(const Shapes& shapes, const Variant& variant) const {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto found = plans_.find(std::pair<const Shapes&, const Variant&>(shapes, variant));
    return found == plans_.end() ? nullptr : found->second.get();
  }

  // The plan that is kept: another thread's, where that came first.
  const Plan& Keep(const Shapes& shapes, const Variant& variant, std::unique_ptr<Plan> plan) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    return *plans_.emplace(Key(shapes, variant), std::move(plan)).first->second;
  }

 private:
  using Key = std::pair<Shapes, Variant>;
  // Of keys and of references to what would be one: a run copies nothing to find its plan.
  struct Less {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return std::tie(a.first, a.second) < std::tie(b.first, b.second);
    }
  };
  mutable std::shared_mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>, Less> plans_;
};

}  // namespace ortplugin
