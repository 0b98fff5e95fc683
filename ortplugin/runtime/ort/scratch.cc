#include "ortplugin/runtime/ort/scratch.h"

namespace ortplugin {

DeviceScratch::DeviceScratch(const NodeInfo& info) : api_(info.api()), allocator_(info.allocator()) {
  try {
    Check(api_, ort::AllocatorGetInfo(api_, static_cast<const ort::Allocator*>(allocator_), &memory_));
  } catch (...) {
    ort::ReleaseAllocator(api_, allocator_);
    throw;
  }
}

DeviceScratch::~DeviceScratch() { ort::ReleaseAllocator(api_, allocator_); }

}  // namespace ortplugin
