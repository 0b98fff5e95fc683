#include "ortplugin/target/target.h"

#include <algorithm>
#include <iterator>

namespace ortplugin {
namespace {

constexpr Target ReadH200() {
  Target target{};
#define TARGET(Name, Major, Minor) \
  target.name = Name;              \
  target.major = Major;            \
  target.minor = Minor;
#define LIMIT(Name, value, ...) target.limits.Name = value;
#include "ortplugin/target/h200.def"
#undef LIMIT
#undef TARGET
  return target;
}

// One line for each GPU's file; the first is the default.
constexpr Target kTargets[] = {ReadH200()};

}  // namespace

const Target* FindTarget(const cuda::DeviceFacts& device) {
  const auto* const found = std::find_if(std::begin(kTargets), std::end(kTargets), [&](const Target& target) {
    return target.major == device.major && target.minor == device.minor;
  });
  return found == std::end(kTargets) ? nullptr : found;
}

const Target& DefaultTarget() { return kTargets[0]; }

const TargetLimits& LimitsNear(const cuda::DeviceFacts& device) {
  const Target* const found = FindTarget(device);
  return (found != nullptr ? *found : DefaultTarget()).limits;
}

}  // namespace ortplugin
