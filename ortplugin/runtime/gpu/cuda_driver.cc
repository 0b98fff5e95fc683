#include "ortplugin/runtime/gpu/cuda_driver.h"

#include <memory>

namespace ortplugin::cuda {
namespace {

// CUDA errors after which every further call in the process fails: the context is lost. These are all that NVIDIA's
// driver API documents so.
bool IsSticky(Result result) {
  switch (result) {
    case 214:  // ECC_UNCORRECTABLE
    case 226:  // CONTAINED
    case 700:  // ILLEGAL_ADDRESS
    case 702:  // LAUNCH_TIMEOUT
    case 709:  // CONTEXT_IS_DESTROYED
    case 710:  // ASSERT
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
    case 721:  // TENSOR_MEMORY_LEAK
    case 810:  // MPS_CLIENT_TERMINATED
    case 911:  // EXTERNAL_DEVICE
      return true;
    default: return false;
  }
}

// What a driver says of code by a compiler that is newer than itself, or for a GPU that it does not know.
bool IsTooOld(Result result) {
  return result == 200 ||  // INVALID_IMAGE
    result == 209 ||  // NO_BINARY_FOR_GPU
    result == 218 ||  // INVALID_PTX
    result == 222;  // UNSUPPORTED_PTX_VERSION
}

}  // namespace

const Driver& TheDriver() {
  static const Driver* const driver = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      Fail("the NVIDIA driver (libcuda.so.1) can't be opened: ", dlerror(),
        ". Install the driver of the GPU, or run on the CPUExecutionProvider");
    auto made = std::make_unique<Driver>();
    Find(library, "cuInit", made->cuInit);
    Find(library, "cuDriverGetVersion", made->cuDriverGetVersion);
    Find(library, "cuDeviceGet", made->cuDeviceGet);
    Find(library, "cuDeviceGetAttribute", made->cuDeviceGetAttribute);
    Find(library, "cuDevicePrimaryCtxRetain", made->cuDevicePrimaryCtxRetain);
    Find(library, "cuCtxGetCurrent", made->cuCtxGetCurrent);
    Find(library, "cuCtxPushCurrent_v2", made->cuCtxPushCurrent);
    Find(library, "cuCtxPopCurrent_v2", made->cuCtxPopCurrent);
    Find(library, "cuModuleLoadData", made->cuModuleLoadData);
    Find(library, "cuModuleGetFunction", made->cuModuleGetFunction);
    Find(library, "cuFuncSetAttribute", made->cuFuncSetAttribute);
    Find(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", made->cuOccupancyMaxActiveBlocksPerMultiprocessor);
    Find(library, "cuLaunchKernel", made->cuLaunchKernel);
    Find(library, "cuStreamIsCapturing", made->cuStreamIsCapturing);
    Find(library, "cuThreadExchangeStreamCaptureMode", made->cuThreadExchangeStreamCaptureMode);
    Find(library, "cuGetErrorName", made->cuGetErrorName);
    Find(library, "cuGetErrorString", made->cuGetErrorString);
    if (dlsym(library, "cuOccupancyMaxActiveClusters") != nullptr)
      Find(library, "cuOccupancyMaxActiveClusters", made->cuOccupancyMaxActiveClusters);
    if (dlsym(library, "cuTensorMapEncodeTiled") != nullptr)
      Find(library, "cuTensorMapEncodeTiled", made->cuTensorMapEncodeTiled);
    if (dlsym(library, "cuTensorMapEncodeIm2col") != nullptr)
      Find(library, "cuTensorMapEncodeIm2col", made->cuTensorMapEncodeIm2col);
    if (dlsym(library, "cuGraphRemoveDependencies_v2") != nullptr) {
      Find(library, "cuStreamGetCaptureInfo_v3", made->cuStreamGetCaptureInfo);
      Find(library, "cuStreamUpdateCaptureDependencies_v2", made->cuStreamUpdateCaptureDependencies);
      Find(library, "cuGraphGetNodes", made->cuGraphGetNodes);
      Find(library, "cuGraphAddEmptyNode", made->cuGraphAddEmptyNode);
      Find(library, "cuGraphNodeGetType", made->cuGraphNodeGetType);
      Find(library, "cuGraphKernelNodeGetParams_v2", made->cuGraphKernelNodeGetParams);
      Find(library, "cuGraphKernelNodeSetParams_v2", made->cuGraphKernelNodeSetParams);
      Find(library, "cuGraphNodeGetDependencies_v2", made->cuGraphNodeGetDependencies);
      Find(library, "cuGraphAddDependencies_v2", made->cuGraphAddDependencies);
      Find(library, "cuGraphRemoveDependencies_v2", made->cuGraphRemoveDependencies);
    }
    return made.release();
  }();
  return *driver;
}

void CheckDriver(Result result, const char* what) {
  if (result == 0) return;
  const char *name = nullptr, *text = nullptr;
  TheDriver().cuGetErrorName(result, &name);
  TheDriver().cuGetErrorString(result, &text);
  int version = 0;
  TheDriver().cuDriverGetVersion(&version);
  Fail(what, " failed: ", name ? name : "unknown error", " (", text ? text : "", "), driver for CUDA ", version / 1000,
    ".", version % 1000 / 10, IsSticky(result) ? ". The GPU context is lost: this process must be restarted" : "",
    result == kOutOfMemory ? ". Free GPU memory, or lower ONNX Runtime's gpu_mem_limit" : "",
    IsTooOld(result) ? ". Update the driver, or set ORTPLUGIN_NVRTC to the libnvrtc.so of the driver's CUDA version"
                     : "");
}

}  // namespace ortplugin::cuda
