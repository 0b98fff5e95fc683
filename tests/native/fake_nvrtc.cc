// NVRTC 13.0 that knows sm_75, sm_86, sm_90 and sm_120, and whose code says what it is, for test_cuda_errors.cc.
#include <cstddef>
#include <cstring>

#define NVRTC extern "C" __attribute__((visibility("default")))

using Program = void*;
static const int known[] = {75, 86, 90, 120};
static const char cubin[] =
  "\x7f"
  "ELF",
                  ptx[] = ".version 9.0";

NVRTC int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
NVRTC int nvrtcGetNumSupportedArchs(int* count) { return *count = 4, 0; }
NVRTC int nvrtcGetSupportedArchs(int* found) { return std::memcpy(found, known, sizeof known), 0; }
NVRTC int nvrtcCreateProgram(Program* made, const char*, const char*, int, const char* const*, const char* const*) {
  return *made = nullptr, 0;
}
NVRTC int nvrtcCompileProgram(Program, int, const char* const*) { return 0; }
NVRTC int nvrtcGetProgramLogSize(Program, size_t* size) { return *size = 0, 0; }
NVRTC int nvrtcGetProgramLog(Program, char*) { return 0; }
NVRTC int nvrtcGetCUBINSize(Program, size_t* size) { return *size = sizeof cubin, 0; }
NVRTC int nvrtcGetCUBIN(Program, char* code) { return std::memcpy(code, cubin, sizeof cubin), 0; }
NVRTC int nvrtcGetPTXSize(Program, size_t* size) { return *size = sizeof ptx, 0; }
NVRTC int nvrtcGetPTX(Program, char* code) { return std::memcpy(code, ptx, sizeof ptx), 0; }
NVRTC int nvrtcDestroyProgram(Program*) { return 0; }
NVRTC const char* nvrtcGetErrorString(int) { return "a fake compiler's error"; }
