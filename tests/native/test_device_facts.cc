// What is known of a GPU: read from the driver, here one without a GPU, argv[1]; and what follows from it.
#include <dlfcn.h>

#include "tests/native/check.h"
#include "tests/native/fake_cuda.h"

using namespace ortplugin;
using namespace test;

namespace {

// Each fact comes from the driver's attribute of that meaning.
void Queried(fake::Answers* answers) {
  int ordinal = 0;
  for (const Gpu& gpu : kGpus) {
    answers->gpu = gpu.facts;
    const DeviceFacts &found = cuda::Device(ordinal), &known = gpu.facts;
    CHECK_WITH(found.ordinal == ordinal && found.major == known.major && found.minor == known.minor, gpu.name);
    CHECK_WITH(found.multiprocessors == known.multiprocessors && found.l2_bytes == known.l2_bytes, gpu.name);
    CHECK_WITH(found.shared_per_multiprocessor == known.shared_per_multiprocessor &&
        found.shared_per_block == known.shared_per_block &&
        found.reserved_shared_per_block == known.reserved_shared_per_block,
      gpu.name);
    CHECK_WITH(found.registers_per_multiprocessor == known.registers_per_multiprocessor, gpu.name);
    CHECK_WITH(found.threads_per_block == known.threads_per_block &&
        found.threads_per_multiprocessor == known.threads_per_multiprocessor &&
        found.blocks_per_multiprocessor == known.blocks_per_multiprocessor,
      gpu.name);
    ++ordinal;
  }
}

// Capabilities of each architecture, by the PTX manual: the target that wgmma, .cluster and griddepcontrol ask for.
void Capabilities() {
  struct Known {
    const char* architecture;
    bool mma, wgmma, clusters, pdl;
  };
  constexpr Known kKnown[] = {{"sm_75", false, false, false, false}, {"sm_80", true, false, false, false},
    {"sm_86", true, false, false, false}, {"sm_89", true, false, false, false}, {"sm_90", true, true, true, true},
    {"sm_100", true, false, true, true}, {"sm_120", true, false, true, true}};
  CHECK(std::size(kKnown) == std::size(kGpus));
  for (const Known& known : kKnown) {
    const DeviceFacts& gpu = GpuOf(known.architecture);
    CHECK_WITH(gpu.has_mma_m16n8k16() == known.mma && gpu.has_wgmma() == known.wgmma &&
        gpu.has_clusters() == known.clusters && gpu.has_pdl() == known.pdl,
      known.architecture);
  }
}

// Each limit in its turn.
void Residents() {
  constexpr int64_t kKiB = 1 << 10;
  const auto blocks = [](const char* architecture, int64_t threads, int64_t registers, int64_t shared) {
    return GpuOf(architecture).ResidentBlocks(threads, registers, shared);
  };
  CHECK(blocks("sm_75", 32, 32, 0) == 16 && blocks("sm_80", 32, 32, 0) == 32 && blocks("sm_89", 32, 32, 0) == 24);
  CHECK(blocks("sm_75", 256, 32, 0) == 4 && blocks("sm_86", 256, 32, 0) == 6 && blocks("sm_90", 256, 32, 0) == 8);
  CHECK(blocks("sm_90", 256, 65, 0) == 3);  // registers come by eights: 72
  CHECK(blocks("sm_75", 128, 32, 32 * kKiB) == 2 && blocks("sm_75", 128, 32, 33 * kKiB) == 1);
  CHECK(blocks("sm_86", 128, 32, 48 * kKiB) == 2 && blocks("sm_86", 128, 32, 49 * kKiB) == 1);
  CHECK(blocks("sm_90", 128, 32, 48 * kKiB) == 4);
  CHECK(blocks("sm_90", 128, 32, 226 * kKiB) == 1 && blocks("sm_120", 128, 32, 226 * kKiB) == 0);
  CHECK(blocks("sm_90", 1024, 72, 0) == 0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  void* const library = fake::Open(arguments[1]);
  if (library == nullptr) return Summary();
  Queried(reinterpret_cast<fake::TheAnswers>(dlsym(library, "FakeAnswers"))());
  Capabilities();
  Residents();
  return Summary();
}
