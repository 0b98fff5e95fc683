// PlanCache: a plan for each shape and variant, those that were used last.
#include "ortplugin/runtime/gpu/plan_cache.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/native/check.h"

using namespace ortplugin;

namespace {

struct Numbered {
  explicit Numbered(int64_t value) : number(value) { ++alive; }
  ~Numbered() { --alive; }
  int64_t number;
  static inline std::atomic<int> alive{0};
};
using Cache = PlanCache<Numbered, bool>;

std::shared_ptr<const Numbered> Keep(Cache* cache, int64_t size, bool variant = true) {
  return cache->Keep({{size, 3}}, variant, std::make_unique<Numbered>(size));
}

void TestPlans() {
  Cache cache({4, 4});
  CHECK(cache.Find({{1, 3}}, true) == nullptr);
  const auto first = Keep(&cache, 1);
  CHECK(Keep(&cache, 1) == first);
  CHECK(cache.Find({{1, 3}}, true) == first);
  CHECK(cache.Find({{1, 3}}, false) == nullptr);
  CHECK(Keep(&cache, 1, false) != first);
  CHECK(Numbered::alive == 2);
}

void TestOldestIsDropped() {
  Cache cache({3, 3});
  for (int64_t size = 1; size <= 3; ++size) Keep(&cache, size);
  const auto held = cache.Find({{2, 3}}, true);
  CHECK(cache.Find({{1, 3}}, true) != nullptr);  // 3 is the oldest
  Keep(&cache, 4);
  CHECK(cache.Find({{3, 3}}, true) == nullptr);
  for (int64_t size = 5; size <= 1000; ++size) Keep(&cache, size);
  CHECK(cache.size() == 3);
  CHECK(Numbered::alive == 4);
  CHECK(held->number == 2);  // dropped, but whoever runs it has it
  CHECK(cache.Find({{2, 3}}, true) == nullptr);
  CHECK(Keep(&cache, 2)->number == 2);
}

void TestLibraryPlans() {
  Cache cache({9, 2});
  for (int64_t size = 1; size <= 3; ++size) Keep(&cache, size);
  for (int64_t size = 11; size <= 13; ++size) cache.Keep({{size, 3}}, true, std::make_unique<Numbered>(size), true);
  CHECK(cache.size() == 5);
  CHECK(cache.Find({{1, 3}}, true) != nullptr);
  CHECK(cache.Find({{11, 3}}, true) == nullptr);
}

void TestThreads() {
  Cache cache({8, 8});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&cache, &wrong, t] {
      for (int64_t i = 0; i < 4000; ++i) {
        const int64_t size = (i * (2 * t + 1)) % 13;
        std::shared_ptr<const Numbered> plan = cache.Find({{size, 3}}, true);
        if (plan == nullptr) plan = Keep(&cache, size);
        if (plan->number != size) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(cache.size() == 8);
}

}  // namespace

int main() {
  TestPlans();
  TestOldestIsDropped();
  TestLibraryPlans();
  TestThreads();
  CHECK(Numbered::alive == 0);
  return test::Summary();
}
