// A CUDA driver in host memory, with the prototypes of cuda.h: for tests/unit/test_cuda_driver.py.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context* CUcontext;
typedef struct stream* CUstream;
typedef struct module* CUmodule;
typedef struct function* CUfunction;
typedef struct graph* CUgraph;

static int depth, held, busy, capturing;
// What the last launch was given: memory, mask, cycles, blocks, threads.
unsigned long long launched[5];
int open_things(void) { return depth + held; }
void set_capturing(int value) { capturing = value; }

CUresult cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : error == 101 ? "CUDA_ERROR_INVALID_DEVICE" : NULL;
  return *text ? 0 : 1;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, ordinal < 2 ? 0 : 101; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = (CUcontext)(size_t)(0x7f0000000000 + device);  // beyond 32 bits, as addresses are
  return held++, 0;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return held--, device < 2 ? 0 : 101; }
CUresult cuCtxPushCurrent_v2(CUcontext context) { return depth++, (size_t)context >> 32 ? 0 : 1; }
CUresult cuCtxPopCurrent_v2(CUcontext* context) { return depth--, *context = NULL, 0; }
CUresult cuCtxSynchronize(void) { return 0; }
CUresult cuMemGetInfo_v2(size_t* left, size_t* total) { return *left = 1ull << 34, *total = 1ull << 35, 0; }
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  if (size >= 1ull << 40) return 2;
  return *address = (CUdeviceptr)malloc(size), held++, 0;
}
CUresult cuMemFree_v2(CUdeviceptr address) { return free((void*)address), held--, 0; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t size) { return memcpy((void*)to, from, size), 0; }
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t size) { return memcpy(to, (void*)from, size), 0; }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return memcpy((void*)to, (void*)from, size), (size_t)stream >> 32 ? 0 : 1;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t size, CUstream stream) {
  return memset((void*)to, byte, size), (size_t)stream >> 32 ? 0 : 1;
}
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  *stream = (CUstream)(size_t)(0x7f1000000000 + held);
  return held++, flags == 1 ? 0 : 1;
}
CUresult cuStreamDestroy_v2(CUstream stream) { return held--, (size_t)stream >> 32 ? 0 : 1; }
CUresult cuStreamSynchronize(CUstream stream) { return busy = 0, (size_t)stream >> 32 ? 0 : 1; }
CUresult cuStreamQuery(CUstream stream) { return (size_t)stream >> 32 ? (busy ? 600 : 0) : 1; }
CUresult cuStreamIsCapturing(CUstream stream, int* status) { return *status = capturing, stream ? 0 : 1; }
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return capturing = 0, held++, *graph = (CUgraph)stream, 0;
}
CUresult cuGraphDestroy(CUgraph graph) { return held--, graph ? 0 : 1; }
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  *module = (CUmodule)(size_t)0x7f2000000000;
  return held++, strstr((const char*)image, ".entry disturb(") ? 0 : 1;
}
CUresult cuModuleUnload(CUmodule module) { return held--, module ? 0 : 1; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return *function = (CUfunction)module, strcmp(name, "disturb");
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** parameters, void** extra) {
  if (!function || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared != 0 || extra || !((size_t)stream >> 32))
    return 1;
  launched[0] = *(unsigned long long*)parameters[0];
  launched[1] = *(unsigned*)parameters[1];
  launched[2] = *(unsigned long long*)parameters[2];
  launched[3] = gx;
  launched[4] = bx;
  memset((void*)launched[0], 1, 4ull * (launched[1] + 1));  // all of what the kernel may write to
  return busy = 1, 0;
}
