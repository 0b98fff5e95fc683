// Prints target/*.def as C++ reads them, a limit a line, for a Python test that compares the two readings.
#include <cstdio>

#include "ortplugin/target/target.h"
#include "tests/native/gpus.h"

using namespace ortplugin;

int main() {
#define LIMIT(Name, value, ...) std::printf("engines %s %.17g\n", #Name, double(engine_limits::Name));
#include "ortplugin/target/engines.def"
#undef LIMIT
  for (const test::Gpu& gpu : test::kGpus) {
    const MeasuredGpu* const target = FindTarget(gpu.facts);
    if (target == nullptr) continue;
    std::printf(
      "%s %d.%d%s\n", target->name, target->major, target->minor, target == &DefaultTarget() ? " default" : "");
#define TARGET(...)
#define LIMIT(Name, value, ...) std::printf("%s %s %.17g\n", target->name, #Name, double(target->limits.Name));
#include "ortplugin/target/h200.def"
#undef LIMIT
#undef TARGET
  }
  return 0;
}
