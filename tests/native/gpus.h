// Real GPUs, one of each architecture, for tests that build plans without one: an architecture's limits come in the
// combinations that exist, and an H200 under another name has none of them.
//
// Compute capability, shared memory, registers, threads and blocks: CUDA C++ Programming Guide, "Compute Capabilities",
// table "Technical Specifications per Compute Capability". Shared memory per block is what a launch may opt in to; from
// 8.0 on the driver reserves 1 KiB of each block. Multiprocessors and L2 cache: NVIDIA's data sheets and architecture
// white papers; of the H200 what its driver says.
#pragma once

#include <stdexcept>
#include <string>

#include "ortplugin/runtime/gpu/cuda.h"

namespace test {

struct Gpu {
  const char *name, *architecture;
  ortplugin::DeviceFacts facts;
};

constexpr int kKiB = 1 << 10, kMiB = 1 << 20, kRegisters = 64 << 10;

// ordinal; capability; multiprocessors; L2; shared memory per multiprocessor, per block, reserved; registers; threads
// per block, per multiprocessor; blocks
inline constexpr Gpu kGpus[] = {
  {"T4", "sm_75", {0, 7, 5, 40, 4 * kMiB, 64 * kKiB, 64 * kKiB, 0, kRegisters, 1024, 1024, 16}},
  {"A100", "sm_80", {0, 8, 0, 108, 40 * kMiB, 164 * kKiB, 163 * kKiB, kKiB, kRegisters, 1024, 2048, 32}},
  {"RTX 3090", "sm_86", {0, 8, 6, 82, 6 * kMiB, 100 * kKiB, 99 * kKiB, kKiB, kRegisters, 1024, 1536, 16}},
  {"RTX 4090", "sm_89", {0, 8, 9, 128, 72 * kMiB, 100 * kKiB, 99 * kKiB, kKiB, kRegisters, 1024, 1536, 24}},
  {"H200", "sm_90", {0, 9, 0, 132, 60 * kMiB, 228 * kKiB, 227 * kKiB, kKiB, kRegisters, 1024, 2048, 32}},
  {"B200", "sm_100", {0, 10, 0, 148, 126 * kMiB, 228 * kKiB, 227 * kKiB, kKiB, kRegisters, 1024, 2048, 32}},
  {"RTX 5090", "sm_120", {0, 12, 0, 170, 96 * kMiB, 100 * kKiB, 99 * kKiB, kKiB, kRegisters, 1024, 1536, 24}},
};

// Throws where there is none of this architecture, as "sm_90".
inline const ortplugin::DeviceFacts& GpuOf(const std::string& architecture) {
  for (const Gpu& gpu : kGpus)
    if (architecture == gpu.architecture) return gpu.facts;
  throw std::invalid_argument("gpus.h has no GPU of the architecture " + architecture);
}

// What rules of thumb and cost models were measured on.
inline const ortplugin::DeviceFacts& H200() { return GpuOf("sm_90"); }

}  // namespace test
