#include "ortplugin/runtime/cuda.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <tuple>

#include "ortplugin/runtime/error.h"
#include "ortplugin/runtime/kernel_cache.h"
#include "ortplugin/runtime/version.h"

namespace ortplugin::cuda {
namespace {

// The functions used, with the names and numbers of cuda.h and nvrtc.h.
using Result = int;
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using NvrtcProgram = struct NvrtcProgram_st*;

enum Attribute : int {
  kMultiprocessorCount = 16,
  kL2CacheSize = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
};
enum FunctionAttribute { kMostDynamicSharedBytes = 8 };
constexpr Result kOutOfMemory = 2;
constexpr int kCaptureModeRelaxed = 2;

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    char bytes[64];
    int number;
    void* pointer;
  } value;
};
constexpr int kProgrammaticStreamSerialization = 6;
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};

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
  Result (*cuLaunchKernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                           void**, void**);
  Result (*cuLaunchKernelEx)(const LaunchConfig*, Function, void**, void**);  // null before CUDA 11.8
  Result (*cuStreamIsCapturing)(Stream, int*);
  Result (*cuThreadExchangeStreamCaptureMode)(int*);
  Result (*cuGetErrorName)(Result, const char**);
  Result (*cuGetErrorString)(Result, const char**);
};

struct Nvrtc {
  Result (*nvrtcVersion)(int*, int*);
  Result (*nvrtcGetNumSupportedArchs)(int*);
  Result (*nvrtcGetSupportedArchs)(int*);
  Result (*nvrtcCreateProgram)(NvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*);
  Result (*nvrtcCompileProgram)(NvrtcProgram, int, const char* const*);
  Result (*nvrtcGetProgramLogSize)(NvrtcProgram, size_t*);
  Result (*nvrtcGetProgramLog)(NvrtcProgram, char*);
  Result (*nvrtcGetCUBINSize)(NvrtcProgram, size_t*);
  Result (*nvrtcGetCUBIN)(NvrtcProgram, char*);
  Result (*nvrtcGetPTXSize)(NvrtcProgram, size_t*);
  Result (*nvrtcGetPTX)(NvrtcProgram, char*);
  Result (*nvrtcDestroyProgram)(NvrtcProgram*);
  const char* (*nvrtcGetErrorString)(Result);
  int major, minor;
};

template <typename Pointer>
void Find(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (function == nullptr) Fail("the CUDA library at hand lacks ", name, ": it is too old");
}

// Both are opened once and never closed: kernels of theirs live as long as the process.
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
    made->cuLaunchKernelEx = reinterpret_cast<decltype(made->cuLaunchKernelEx)>(dlsym(library, "cuLaunchKernelEx"));
    Find(library, "cuStreamIsCapturing", made->cuStreamIsCapturing);
    Find(library, "cuThreadExchangeStreamCaptureMode", made->cuThreadExchangeStreamCaptureMode);
    Find(library, "cuGetErrorName", made->cuGetErrorName);
    Find(library, "cuGetErrorString", made->cuGetErrorString);
    return made.release();
  }();
  return *driver;
}

const Nvrtc& TheCompiler() {
  static const Nvrtc* const compiler = [] {
    std::vector<std::string> candidates;
    if (const char* given = secure_getenv("ORTPLUGIN_NVRTC"); given != nullptr && *given != '\0') {
      candidates = {given};
    } else {
      const std::string packages = LibraryFolder() + "/../nvidia/";
      candidates = {"libnvrtc.so.13", packages + "cu13/lib/libnvrtc.so.13", "libnvrtc.so.12",
                    packages + "cuda_nvrtc/lib/libnvrtc.so.12"};
    }
    void* library = nullptr;
    std::string tried;
    for (const std::string& candidate : candidates) {
      library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) break;
      tried += (tried.empty() ? "" : ", ") + candidate;
    }
    if (library == nullptr)
      Fail("CUDA kernels are compiled by NVRTC, which can't be opened (tried ", tried,
           "). Install it with `pip install nvidia-cuda-nvrtc`, or set ORTPLUGIN_NVRTC to the path of libnvrtc.so");
    auto made = std::make_unique<Nvrtc>();
    Find(library, "nvrtcVersion", made->nvrtcVersion);
    Find(library, "nvrtcGetNumSupportedArchs", made->nvrtcGetNumSupportedArchs);
    Find(library, "nvrtcGetSupportedArchs", made->nvrtcGetSupportedArchs);
    Find(library, "nvrtcCreateProgram", made->nvrtcCreateProgram);
    Find(library, "nvrtcCompileProgram", made->nvrtcCompileProgram);
    Find(library, "nvrtcGetProgramLogSize", made->nvrtcGetProgramLogSize);
    Find(library, "nvrtcGetProgramLog", made->nvrtcGetProgramLog);
    Find(library, "nvrtcGetCUBINSize", made->nvrtcGetCUBINSize);
    Find(library, "nvrtcGetCUBIN", made->nvrtcGetCUBIN);
    Find(library, "nvrtcGetPTXSize", made->nvrtcGetPTXSize);
    Find(library, "nvrtcGetPTX", made->nvrtcGetPTX);
    Find(library, "nvrtcDestroyProgram", made->nvrtcDestroyProgram);
    Find(library, "nvrtcGetErrorString", made->nvrtcGetErrorString);
    if (made->nvrtcVersion(&made->major, &made->minor) != 0) Fail("nvrtcVersion failed");
    return made.release();
  }();
  return *compiler;
}

// CUDA errors after which every further call in the process fails: the context is lost.
bool IsSticky(Result result) {
  switch (result) {
    case 214:  // ECC_UNCORRECTABLE
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
      return true;
    default:
      return false;
  }
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
       result == kOutOfMemory ? ". Free GPU memory, or lower ONNX Runtime's gpu_mem_limit" : "");
}

struct OpenDevice {
  DeviceFacts facts;
  Context context;
};

const OpenDevice& Open(int ordinal) {
  static auto* const mutex = new std::mutex;
  static auto* const devices = new std::map<int, OpenDevice>;
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto found = devices->find(ordinal);
  if (found != devices->end()) return found->second;
  const Driver& driver = TheDriver();
  CheckDriver(driver.cuInit(0), "cuInit");
  int device = 0;
  CheckDriver(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  const auto attribute = [&](Attribute which) {
    int value = 0;
    CheckDriver(driver.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  OpenDevice open{};
  open.facts = {ordinal, attribute(kComputeCapabilityMajor), attribute(kComputeCapabilityMinor),
                attribute(kMultiprocessorCount), attribute(kL2CacheSize)};
  CheckDriver(driver.cuDevicePrimaryCtxRetain(&open.context, device), "cuDevicePrimaryCtxRetain");
  return devices->emplace(ordinal, open).first->second;
}

std::string Numbered(const std::string& source) {
  std::ostringstream text;
  std::istringstream lines(source);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) text << number << "\t" << line << "\n";
  return text.str();
}

std::vector<std::string> Options(const std::string& architecture) {
  // No fast mathematics. A product and a sum may become one operation that rounds once, CUDA's default.
  return {"--gpu-architecture=" + architecture, "--std=c++17", "--ptxas-options=-v"};
}

}  // namespace

ContextScope::ContextScope(const DeviceFacts& device) {
  const Context wanted = Open(device.ordinal).context;
  Context current = nullptr;
  CheckDriver(TheDriver().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current == wanted) return;
  CheckDriver(TheDriver().cuCtxPushCurrent(wanted), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  Context popped;
  if (pushed_) TheDriver().cuCtxPopCurrent(&popped);
}

RelaxedCaptureScope::RelaxedCaptureScope() : mode_(kCaptureModeRelaxed) {
  CheckDriver(TheDriver().cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

RelaxedCaptureScope::~RelaxedCaptureScope() { TheDriver().cuThreadExchangeStreamCaptureMode(&mode_); }

std::string LibraryFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&LibraryFolder), &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

const DeviceFacts& Device(int ordinal) { return Open(ordinal).facts; }

std::string Architecture(const DeviceFacts& device) {
  const Nvrtc& compiler = TheCompiler();
  const int wanted = device.major * 10 + device.minor;
  int count = 0;
  if (compiler.nvrtcGetNumSupportedArchs(&count) != 0) Fail("nvrtcGetNumSupportedArchs failed");
  std::vector<int> known(static_cast<size_t>(count));
  if (compiler.nvrtcGetSupportedArchs(known.data()) != 0) Fail("nvrtcGetSupportedArchs failed");
  int newest = 0;
  for (const int architecture : known) {
    // Hopper's tensor cores take their full speed only from instructions that no other architecture has.
    if (architecture == wanted) return "sm_" + std::to_string(wanted) + (wanted == 90 ? "a" : "");
    if (architecture < wanted && architecture > newest) newest = architecture;
  }
  if (newest == 0)
    Fail("NVRTC ", compiler.major, ".", compiler.minor, " can't compile for this GPU of compute capability ",
         device.major, ".", device.minor);
  return "compute_" + std::to_string(newest);
}

std::string CompilerVersion() {
  const Nvrtc& compiler = TheCompiler();
  return "nvrtc " + std::to_string(compiler.major) + "." + std::to_string(compiler.minor);
}

std::string Compile(const std::string& source, const std::string& architecture, std::string* log) {
  const Nvrtc& compiler = TheCompiler();
  NvrtcProgram program = nullptr;
  if (compiler.nvrtcCreateProgram(&program, source.c_str(), "ortplugin.cu", 0, nullptr, nullptr) != 0)
    Fail("nvrtcCreateProgram failed");
  const std::unique_ptr<NvrtcProgram, void (*)(NvrtcProgram*)> owned(
      &program, [](NvrtcProgram* the) { TheCompiler().nvrtcDestroyProgram(the); });
  const std::vector<std::string> options = Options(architecture);
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  const Result result = compiler.nvrtcCompileProgram(program, static_cast<int>(words.size()), words.data());
  size_t size = 0;
  std::string remarks;
  if (compiler.nvrtcGetProgramLogSize(program, &size) == 0) {
    remarks.resize(size);
    compiler.nvrtcGetProgramLog(program, remarks.data());
  }
  if (result != 0) {
    std::string joined;
    for (const std::string& option : options) joined += option + " ";
    Fail("NVRTC ", compiler.major, ".", compiler.minor, " failed: ", compiler.nvrtcGetErrorString(result), "\n",
         remarks, "\noptions: ", joined, "\n", Numbered(source));
  }
  if (log != nullptr) *log = remarks;
  const bool is_real = architecture.rfind("sm_", 0) == 0;
  if ((is_real ? compiler.nvrtcGetCUBINSize : compiler.nvrtcGetPTXSize)(program, &size) != 0)
    Fail("NVRTC made no code for ", architecture);
  std::string code(size, '\0');
  (is_real ? compiler.nvrtcGetCUBIN : compiler.nvrtcGetPTX)(program, code.data());
  return code;
}

Function Load(const DeviceFacts& device, const std::string& source, const char* kernel,
              const std::function<void(const std::string&)>& warn) {
  // Modules belong to a context, so the ordinal is part of the key; the code itself is shared between equal GPUs.
  static auto* const mutex = new std::mutex;
  static auto* const modules = new std::map<std::pair<int, std::string>, Module>;
  const std::string architecture = Architecture(device);
  std::string options;
  for (const std::string& option : Options(architecture)) options += option + " ";
  const std::shared_ptr<const std::string> code = CachedKernel(
      {source, options, architecture, CompilerVersion(), kPluginVersion},
      [&] { return Compile(source, architecture, nullptr); }, warn);
  const ContextScope scope(device);
  const std::lock_guard<std::mutex> lock(*mutex);
  Module& module = (*modules)[{device.ordinal, source}];
  if (module == nullptr) CheckDriver(TheDriver().cuModuleLoadData(&module, code->data()), "cuModuleLoadData");
  Function function = nullptr;
  CheckDriver(TheDriver().cuModuleGetFunction(&function, module, kernel), "cuModuleGetFunction");
  return function;
}

void AllowShared(const DeviceFacts& device, Function function, unsigned bytes) {
  constexpr unsigned kAlways = 48 << 10;
  if (bytes <= kAlways) return;
  const ContextScope scope(device);
  CheckDriver(TheDriver().cuFuncSetAttribute(function, kMostDynamicSharedBytes, static_cast<int>(bytes)),
              "cuFuncSetAttribute");
}

int BlocksPerMultiprocessor(const DeviceFacts& device, Function function, int threads) {
  const ContextScope scope(device);
  int blocks = 0;
  CheckDriver(TheDriver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, size_t{0}),
              "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

void Launch(const DeviceFacts& device, Function function, const LaunchShape& shape, Stream stream, void** arguments) {
  const ContextScope scope(device);
  CheckDriver(TheDriver().cuLaunchKernel(function, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes, stream,
                                         arguments, nullptr),
              "cuLaunchKernel");
}

void LaunchNext(const DeviceFacts& device, Function function, const LaunchShape& shape, Stream stream,
                void** arguments) {
  static const int version = [] {
    int found = 0;
    TheDriver().cuDriverGetVersion(&found);
    return found;
  }();
  // Under capture it becomes a kind of edge that CUDA graphs have since CUDA 12.3.
  if (device.major < 9 || version < 12030 || TheDriver().cuLaunchKernelEx == nullptr)
    return Launch(device, function, shape, stream, arguments);
  const ContextScope scope(device);
  LaunchAttribute attribute{};
  attribute.id = kProgrammaticStreamSerialization;
  attribute.value.number = 1;
  const LaunchConfig config{{shape.blocks, 1, 1}, {shape.threads, 1, 1}, shape.shared_bytes, stream, &attribute, 1};
  CheckDriver(TheDriver().cuLaunchKernelEx(&config, function, arguments, nullptr), "cuLaunchKernelEx");
}

bool IsCapturing(const DeviceFacts& device, Stream stream) {
  const ContextScope scope(device);
  int status = 0;
  CheckDriver(TheDriver().cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status != 0;
}

void RefuseCapture(const DeviceFacts& device, Stream stream) {
  if (IsCapturing(device, stream))
    Fail(
        "these input shapes come for the first time while a CUDA graph is captured, when nothing can be compiled: "
        "run once with them before the capture");
}

void Warn(const std::string& message) { std::fprintf(stderr, "ortplugin: %s\n", message.c_str()); }

}  // namespace ortplugin::cuda
