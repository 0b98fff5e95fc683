// The CUDA driver and NVRTC, opened when the first CUDA kernel is created: the library itself needs nothing of CUDA to
// be built, loaded or run on the CPU. Kernels are compiled for the GPU at hand and kept by kernel_cache.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ortplugin::cuda {

using Function = struct CUfunc_st*;
using Stream = void*;

// The most static shared memory of a kernel, and the most of any kind without AllowShared, in bytes: on every GPU.
constexpr int64_t kStaticSharedBytes = 48 << 10;
// The most 32-bit registers of a thread: on every GPU.
constexpr int64_t kRegistersPerThread = 255;

// What the driver says of a GPU, and what follows from its compute capability. Who needs a size or an instruction asks
// for it here: a figure of one GPU, or a comparison of versions, is true for the GPU it was written on. No member has a
// default, so that who describes a GPU describes all of it. Shared memory and caches are in bytes.
struct DeviceFacts {
  int ordinal;
  int major, minor;  // compute capability
  int multiprocessors;
  int64_t l2_bytes;
  int64_t shared_per_multiprocessor;
  int64_t shared_per_block;  // at most; what is more than kStaticSharedBytes takes AllowShared
  int64_t reserved_shared_per_block;  // which the driver takes besides
  int registers_per_multiprocessor;  // of 32 bits
  int threads_per_block, threads_per_multiprocessor, blocks_per_multiprocessor;  // at most

  // mma.sync.m16n8k16 on fp16 and bf16, and cp.async; Turing's tensor cores multiply smaller matrices of fp16 alone.
  bool has_mma_m16n8k16() const { return major >= 8; }
  // Tensor cores that multiply TF32 at more than three times the rate of FMAs in fp32: not those of GPUs for graphics.
  bool has_fast_tf32() const { return (major == 8 && minor == 0) || major == 9 || major == 10; }
  // wgmma: of sm_90a alone, as no later GPU has it.
  bool has_wgmma() const { return major == 9 && minor == 0; }
  // Thread block clusters and distributed shared memory.
  bool has_clusters() const { return major >= 9; }
  // Programmatic dependent launch.
  bool has_pdl() const { return major >= 9; }

  // Blocks that a multiprocessor holds at the same time, 0 where it can't hold one: each has so many threads, each of
  // these so many registers, and the block so much shared memory, static and dynamic. Where shared memory decides it is
  // one less than there may be if the blocks fill it to the last reservation.
  int64_t ResidentBlocks(int64_t threads, int64_t registers, int64_t shared) const;
};

// Throws Error naming the package to install where the driver can't be opened.
const DeviceFacts& Device(int ordinal);

// The virtual or real architecture that NVRTC compiles for: "sm_90a", or "compute_90" for a GPU that the NVRTC at hand
// does not know yet.
std::string Architecture(const DeviceFacts& device);

// Compiles CUDA C++ to machine code for `architecture`. Throws Error with NVRTC's log, the options and the numbered
// source. `log` (may be null) receives the compiler's remarks.
std::string Compile(const std::string& source, const std::string& architecture, std::string* log);

// "nvrtc 13.0"
std::string CompilerVersion();

// A kernel of a source, loaded in the primary context of a device; compiled at most once for each source, architecture
// and compiler. Modules stay loaded until the process ends. `warn` gets the kernel cache's complaints.
Function Load(const DeviceFacts& device, const std::string& source, const char* kernel,
  const std::function<void(const std::string&)>& warn);

int BlocksPerMultiprocessor(const DeviceFacts& device, Function function, int threads);

// Clusters of so many blocks of a kernel that the GPU holds at the same time; 0 where it has no such clusters.
int ResidentClusters(
  const DeviceFacts& device, Function function, unsigned cluster, unsigned threads, unsigned shared_bytes);

// What LaunchShape.shared_bytes may be for the function. Needed once where that is more than kStaticSharedBytes.
void AllowShared(const DeviceFacts& device, Function function, unsigned bytes);

// When, in a CUDA graph, a next kernel of ours may become resident, which then waits for this one to complete.
enum class NextStarts {
  kAtLaunch,  // once all blocks of this one have begun
  kAtTrigger,  // once all have called let_next_start (common.cuh), which the kernel has a last parameter for: where its
               // own blocks are spread unevenly, the next one's would crowd on the multiprocessors that have room
  kAtEnd,  // once this one has completed
};
struct LaunchShape {
  LaunchShape() = default;
  LaunchShape(int64_t grid, int64_t block, int64_t shared = 0, NextStarts next = NextStarts::kAtLaunch)
    : blocks(unsigned(grid)), threads(unsigned(block)), shared_bytes(unsigned(shared)), next_starts(next) {}

  unsigned blocks = 0, threads = 0;
  unsigned shared_bytes = 0;  // of dynamic shared memory
  NextStarts next_starts = NextStarts::kAtLaunch;
};
// Launches on ORT's stream, asynchronously. `arguments` are pointers to the kernel's parameters; for kAtTrigger to the
// only one but the last. The kernel waits (grid_dependency_wait) before it touches memory that others write.
//
// In a CUDA graph it overlaps the kernel before it where that is safe: launch.cc has the rule.
void Launch(const DeviceFacts& device, Function function, const LaunchShape& shape, Stream stream, void** arguments);

// Runs `call`, which launches kernels of another library on the stream. Nothing that it launches in a CUDA graph
// starts before what the stream holds has completed, whatever the library asks for.
void LaunchForeign(const DeviceFacts& device, Stream stream, const std::function<void()>& call);

// Makes the device's primary context, the one that ORT computes in, current while it lives.
class ContextScope {
 public:
  explicit ContextScope(const DeviceFacts& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool pushed_ = false;
};

// Lets this thread load and allocate while it lives, though another thread may be capturing a CUDA graph.
class RelaxedCaptureScope {
 public:
  RelaxedCaptureScope();
  ~RelaxedCaptureScope();
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  int mode_;
};

// The folder that holds this library, with the NVIDIA wheels beside the package: <site-packages>/ortplugin.
std::string LibraryFolder();

// Whether a CUDA graph is being captured on the stream: nothing may be compiled, loaded or allocated then.
bool IsCapturing(const DeviceFacts& device, Stream stream);

// Throws where a CUDA graph is being captured, for a kernel that has yet to prepare for the shapes it was given.
void RefuseCapture(const DeviceFacts& device, Stream stream);

// What goes wrong without ending a run, to stderr: kernels are made during runs, when ORT offers no log.
void Warn(const std::string& message);

}  // namespace ortplugin::cuda

namespace ortplugin {
using cuda::DeviceFacts;
}
