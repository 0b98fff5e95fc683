#include "ortplugin/target/target.h"

#include <algorithm>
#include <iterator>

namespace ortplugin {
namespace {

#define TARGET(Name, Major, Minor) \
  target.name = Name; \
  target.major = Major; \
  target.minor = Minor;
#define LIMIT(Name, value, ...) target.limits.Name = value;

constexpr MeasuredGpu ReadH200() {
  MeasuredGpu target{};
#include "ortplugin/target/h200.def"
  return target;
}

#undef LIMIT
#undef TARGET

// Of each GPU's file; the first is the default.
constexpr MeasuredGpu kTargets[] = {ReadH200()};

}  // namespace

const MeasuredGpu* FindTarget(const DeviceFacts& device) {
  const auto* const found = std::find_if(std::begin(kTargets), std::end(kTargets),
    [&](const MeasuredGpu& target) { return target.major == device.major && target.minor == device.minor; });
  return found == std::end(kTargets) ? nullptr : found;
}

const MeasuredGpu& DefaultTarget() { return kTargets[0]; }

const TargetLimits& LimitsNear(const DeviceFacts& device) {
  const MeasuredGpu* const found = FindTarget(device);
  return (found != nullptr ? *found : DefaultTarget()).limits;
}

}  // namespace ortplugin
