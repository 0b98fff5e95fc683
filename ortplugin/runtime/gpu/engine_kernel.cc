#include "ortplugin/runtime/gpu/engine_kernel.h"

namespace ortplugin {

cuda::PackedKernel EngineKernel::Load(const DeviceFacts& device) const {
  const cuda::Function function = cuda::Load(device, source, entry, cuda::Warn);
  cuda::AllowShared(device, function, launch.shared_bytes);
  return {function, launch, arguments, maps};
}

}  // namespace ortplugin
