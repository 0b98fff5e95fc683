// Memory that kernels of ours may still write: outputs of this thread's operators since its last launch outside a
// capture. Kernels of a graph overlap (launch.cc): one that reads before it waits has to know.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ortplugin {

class Written {
 public:
  static void Note(const void* begin, size_t bytes) {
    if (bytes > 0) Ranges().push_back(Range(begin, bytes));
  }
  static void Forget() { Ranges().clear(); }
  static bool Meets(const void* begin, size_t bytes) {
    const auto [first, last] = Range(begin, bytes);
    return std::any_of(Ranges().begin(), Ranges().end(),
      [first = first, last = last](const auto& range) { return range.first < last && first < range.second; });
  }

 private:
  static std::pair<uintptr_t, uintptr_t> Range(const void* begin, size_t bytes) {
    const auto first = reinterpret_cast<uintptr_t>(begin);
    return {first, first + bytes};
  }
  static std::vector<std::pair<uintptr_t, uintptr_t>>& Ranges() {
    thread_local std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
    return ranges;
  }
};

}  // namespace ortplugin
