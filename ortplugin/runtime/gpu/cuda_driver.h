// The functions of the CUDA driver that cuda.cc and launch.cc use, with the names and numbers of cuda.h.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

#include "ortplugin/runtime/error.h"
#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin::cuda {

using Result = int;
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Graph = struct CUgraph_st*;
using Node = struct CUgraphNode_st*;

enum Attribute : int {
  kThreadsPerBlock = 1,
  kMultiprocessorCount = 16,
  kL2CacheSize = 38,
  kThreadsPerMultiprocessor = 39,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kSharedPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kSharedPerBlockOptIn = 97,
  kBlocksPerMultiprocessor = 106,
  kReservedSharedPerBlock = 111,
};
enum FunctionAttribute { kMostDynamicSharedBytes = 8 };
constexpr Result kOutOfMemory = 2;
constexpr int kCaptureModeRelaxed = 2;
constexpr int kCaptureActive = 1;
constexpr unsigned kSetCaptureDependencies = 1;

// CUgraphEdgeData. All zeros is a full dependency: the downstream node starts when the upstream one has completed.
struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
constexpr unsigned char kProgrammaticEdge = 1;
// Where a programmatic edge leaves a kernel: when all of its blocks have executed griddepcontrol.launch_dependents or
// exited, or when all of them have begun.
constexpr unsigned char kPortProgrammatic = 1, kPortLaunchCompletion = 2;

// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNodeParams {
  Function function;
  unsigned grid[3], block[3], shared_bytes;
  void** arguments;  // of a node: pointers to what it holds
  void** extra;
  void* kernel;
  Context context;
};
// CUlaunchConfig with CUlaunchAttribute: of these only the shape of a cluster is used.
struct LaunchAttribute {
  int id;
  char padding[4];
  unsigned cluster[3];
  char rest[52];
};
constexpr int kClusterShape = 4;
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
constexpr int kKernelNode = 0, kEmptyNode = 5, kAllocationNode = 10, kFreeNode = 11;

struct Driver {
  Result (*cuInit)(unsigned);
  Result (*cuDriverGetVersion)(int*);
  Result (*cuDeviceGet)(int*, int);
  Result (*cuDeviceGetAttribute)(int*, Attribute, int);
  Result (*cuDevicePrimaryCtxRetain)(Context*, int);
  Result (*cuCtxGetCurrent)(Context*);
  Result (*cuCtxPushCurrent)(Context);
  Result (*cuCtxPopCurrent)(Context*);
  Result (*cuModuleLoadData)(Module*, const void*);
  Result (*cuModuleGetFunction)(Function*, Module, const char*);
  Result (*cuFuncSetAttribute)(Function, FunctionAttribute, int);
  Result (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int*, Function, int, size_t);
  Result (*cuLaunchKernel)(
    Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**);
  Result (*cuStreamIsCapturing)(Stream, int*);
  Result (*cuThreadExchangeStreamCaptureMode)(int*);
  Result (*cuGetErrorName)(Result, const char**);
  Result (*cuGetErrorString)(Result, const char**);

  // Null before CUDA 11.8.
  Result (*cuOccupancyMaxActiveClusters)(int*, Function, const LaunchConfig*);
  // Null before CUDA 12.0.
  Result (*cuTensorMapEncodeTiled)(void* map, int dtype, uint32_t rank, void* address, const uint64_t* sizes,
    const uint64_t* pitches, const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion,
    int fill);
  Result (*cuTensorMapEncodeIm2col)(void* map, int dtype, uint32_t rank, void* address, const uint64_t* sizes,
    const uint64_t* pitches, const int* lower, const int* upper, uint32_t channels, uint32_t pixels,
    const uint32_t* steps, int interleave, int swizzle, int promotion, int fill);
  // Edges with data, all null before CUDA 12.3.
  Result (*cuStreamGetCaptureInfo)(Stream, int* status, uint64_t* id, Graph*, const Node**, const EdgeData**, size_t*);
  Result (*cuStreamUpdateCaptureDependencies)(Stream, Node*, const EdgeData*, size_t, unsigned flags);
  Result (*cuGraphGetNodes)(Graph, Node*, size_t*);
  Result (*cuGraphAddEmptyNode)(Node*, Graph, const Node* from, size_t);
  Result (*cuGraphNodeGetType)(Node, int*);
  Result (*cuGraphKernelNodeGetParams)(Node, KernelNodeParams*);
  Result (*cuGraphKernelNodeSetParams)(Node, const KernelNodeParams*);
  Result (*cuGraphNodeGetDependencies)(Node, Node*, EdgeData*, size_t*);
  Result (*cuGraphAddDependencies)(Graph, const Node* from, const Node* to, const EdgeData*, size_t);
  Result (*cuGraphRemoveDependencies)(Graph, const Node* from, const Node* to, const EdgeData*, size_t);
  bool has_edge_data() const { return cuGraphRemoveDependencies != nullptr; }
};

// The driver, opened when first needed and never closed: its kernels live as long as the process. Throws Error naming
// what to install where it can't be opened.
const Driver& TheDriver();

// Throws Error with the failed call, the driver's words and version, and what to do about it.
void CheckDriver(Result result, const char* what);

template <typename Pointer>
void Find(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (function == nullptr) Fail("the CUDA library at hand lacks ", name, ": it is too old");
}

}  // namespace ortplugin::cuda
