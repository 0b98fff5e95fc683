// Memory on a CUDA node's device for the length of one run.
#pragma once

#include <cstddef>
#include <exception>

#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

constexpr size_t kScratchAlignment = 256;
// What `bytes` take of scratch memory, so that what stands behind them is aligned like them.
constexpr size_t ScratchBytes(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

class DeviceScratch {
 public:
  explicit DeviceScratch(const NodeInfo& info);
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

  // Calls launch(char* memory) with so many bytes, aligned to kScratchAlignment (null for none), and frees them however
  // it ends: ORT's allocator hands freed memory only to later work of the same stream. Throws Error where there is no
  // such memory.
  template <typename Launch>
  void Lend(Run& run, size_t bytes, Launch launch) const {
    if (bytes == 0) return launch(static_cast<char*>(nullptr));
    void* const memory = run.scratch(memory_, bytes);
    std::exception_ptr failure;
    try {
      launch(static_cast<char*>(memory));
    } catch (...) {
      failure = std::current_exception();
    }
    Check(api_, ort::AllocatorFree(api_, allocator_, memory));
    if (failure != nullptr) std::rethrow_exception(failure);
  }

 private:
  const ort::Api* api_;
  ort::Allocator* allocator_;
  const ort::MemoryInfo* memory_ = nullptr;
};

}  // namespace ortplugin
