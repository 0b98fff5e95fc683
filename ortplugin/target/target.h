// What is known of a GPU's speed: the limits in <gpu>.def, which the passes ask too (__init__.py). Whether an engine is
// the fastest is decided with these alone, so that a new GPU is one more file.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin {

template <typename Value>
using LimitType = std::conditional_t<std::is_integral_v<Value>, int64_t, double>;

// One member for each line of h200.def, which every GPU's file has.
struct TargetLimits {
#define TARGET(...)
#define LIMIT(name, value, ...) LimitType<decltype(value)> name;
#include "ortplugin/target/h200.def"
#undef LIMIT
#undef TARGET
};

struct MeasuredGpu {
  const char* name;
  int major, minor;  // compute capability
  TargetLimits limits;
};

// What our engines take on every GPU.
namespace engine_limits {
#define LIMIT(name, value, ...) constexpr LimitType<decltype(value)> name = value;
#include "ortplugin/target/engines.def"
#undef LIMIT
}  // namespace engine_limits

// The entry of a GPU's compute capability; null where nothing was measured, and a library's engine is used wherever
// ours is not better by construction. GPUs of one capability have the same multiprocessor, instructions and shared
// memory, which kernels are written and tuned for; of multiprocessors they have more or fewer, and the limits of work
// are for each of these.
const MeasuredGpu* FindTarget(const DeviceFacts& device);

// The entry that the optimizer asks, which has no GPU at hand: the H200's.
const MeasuredGpu& DefaultTarget();

// The GPU's own limits, or the default's: for what every GPU needs an answer to, such as which problems an engine is
// offered for when it is asked for by name. Not for what is fastest: that is FindTarget's to say.
const TargetLimits& LimitsNear(const DeviceFacts& device);

}  // namespace ortplugin
