// What a CUDA kernel has worked out for the input shapes it has met: found by many threads, made once for each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <utility>

#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

// How many plans a node keeps; beyond them it drops those that were unused for longest. A plan of ours is 4 KB and made
// in 0.3 ms, one of cuDNN's 150 KB and 5 ms (cuDNN 9.19).
struct PlanLimits {
  size_t all = 1024, of_library = 32;
};

// `Variant` says what else a plan depends on. A plan owns nothing that the GPU reads or runs: its kernels belong to the
// process, so that it may be dropped while they still run, and while a CUDA graph has captured them.
template <typename Plan, typename Variant>
class PlanCache {
 public:
  explicit PlanCache(PlanLimits most = {}) : most_(most) {}

  // Null where there is none, or no longer.
  std::shared_ptr<const Plan> Find(const Shapes& shapes, const Variant& variant) const {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto found = entries_.find(std::pair<const Shapes&, const Variant&>(shapes, variant));
    if (found == entries_.end()) return nullptr;
    Use(found->second);
    return found->second.plan;
  }

  // The plan that is kept: another thread's, where that came first. `is_of_library`: it holds a library's plan.
  std::shared_ptr<const Plan> Keep(
    const Shapes& shapes, const Variant& variant, std::unique_ptr<Plan> plan, bool is_of_library = false) {
    std::shared_ptr<const Plan> dropped;  // ends after the lock
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    const auto [place, is_new] = entries_.try_emplace(Key(shapes, variant));
    Use(place->second);
    if (!is_new) return place->second.plan;
    place->second.plan = std::move(plan);
    place->second.is_of_library = is_of_library;
    of_library_ += is_of_library;
    if (of_library_ > most_.of_library || entries_.size() > most_.all)
      dropped = DropOldest(of_library_ > most_.of_library);
    return place->second.plan;
  }

  size_t size() const {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    return entries_.size();
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
  struct Entry {
    std::shared_ptr<const Plan> plan;
    bool is_of_library = false;
    mutable std::atomic<uint64_t> last_use{0};
  };

  void Use(const Entry& entry) const {
    entry.last_use.store(uses_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  }

  std::shared_ptr<const Plan> DropOldest(bool only_of_library) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (entry->second.is_of_library >= only_of_library &&
        (oldest == entries_.end() || entry->second.last_use < oldest->second.last_use))
        oldest = entry;
    std::shared_ptr<const Plan> plan = std::move(oldest->second.plan);
    of_library_ -= oldest->second.is_of_library;
    entries_.erase(oldest);
    return plan;
  }

  const PlanLimits most_;
  mutable std::shared_mutex mutex_;
  std::map<Key, Entry, Less> entries_;
  size_t of_library_ = 0;  // entries
  mutable std::atomic<uint64_t> uses_{0};
};

}  // namespace ortplugin
