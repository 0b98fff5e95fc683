// Memory of the host: how much there is, and vectors that say how much they asked for in vain. Whatever grows with a
// tensor is such a vector, or HostScratch: a std::vector could only say std::bad_alloc, or take all that there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace ortplugin {

// Bytes that a node's result may take: the machine's memory and swap, what its container may use of them, or
// ORTPLUGIN_MEMORY_LIMIT. Throws Error where that is no number.
int64_t HostMemory();

// Throws Error where the machine has not so many bytes in all. `what` begins the message: "output 0 of shape [2, 3]".
void CheckHostMemory(const std::string& what, int64_t bytes);

// Throws Error with the bytes where there are none.
void* AllocateHostMemory(size_t count, size_t element_bytes);

template <typename T>
struct HostAllocator {
  using value_type = T;
  HostAllocator() = default;
  template <typename U>
  HostAllocator(const HostAllocator<U>&) {}  // NOLINT: the standard's
  T* allocate(size_t count) { return static_cast<T*>(AllocateHostMemory(count, sizeof(T))); }
  void deallocate(T* memory, size_t) { std::free(memory); }
  template <typename U>
  bool operator==(const HostAllocator<U>&) const {
    return true;
  }
  template <typename U>
  bool operator!=(const HostAllocator<U>&) const {
    return false;
  }
};

template <typename T>
using HostVector = std::vector<T, HostAllocator<T>>;

}  // namespace ortplugin
