#include "ortplugin/runtime/gpu/cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "ortplugin/runtime/error.h"
#include "ortplugin/runtime/gpu/cuda_driver.h"
#include "ortplugin/runtime/gpu/kernel_cache.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/runtime/version.h"

namespace ortplugin::cuda {
namespace {

// The functions used, with the names and numbers of nvrtc.h.
using NvrtcProgram = struct NvrtcProgram_st*;

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
    attribute(kMultiprocessorCount), attribute(kL2CacheSize), attribute(kSharedPerMultiprocessor),
    attribute(kSharedPerBlockOptIn), attribute(kReservedSharedPerBlock), attribute(kRegistersPerMultiprocessor),
    attribute(kThreadsPerBlock), attribute(kThreadsPerMultiprocessor), attribute(kBlocksPerMultiprocessor)};
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

int64_t DeviceFacts::ResidentBlocks(int64_t threads, int64_t registers, int64_t shared) const {
  return std::min({shared_per_block / std::max<int64_t>(1, shared + reserved_shared_per_block),
    registers_per_multiprocessor / std::max<int64_t>(1, threads * RoundUp(registers, 8)),
    threads_per_multiprocessor / threads, int64_t{blocks_per_multiprocessor}});
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
    // What no other architecture has is in the one with the suffix.
    if (architecture == wanted) return "sm_" + std::to_string(wanted) + (device.has_wgmma() ? "a" : "");
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
    &program, [](NvrtcProgram* handle) { TheCompiler().nvrtcDestroyProgram(handle); });
  const std::vector<std::string> options = Options(architecture);
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  const Result result = compiler.nvrtcCompileProgram(program, int(words.size()), words.data());
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
  if (module == nullptr) {
    const Result result = TheDriver().cuModuleLoadData(&module, code->data());
    CheckDriver(result, ("cuModuleLoadData of code for " + architecture + " by " + CompilerVersion()).c_str());
  }
  Function function = nullptr;
  CheckDriver(TheDriver().cuModuleGetFunction(&function, module, kernel), "cuModuleGetFunction");
  return function;
}

void AllowShared(const DeviceFacts& device, Function function, unsigned bytes) {
  if (bytes <= kStaticSharedBytes) return;
  const ContextScope scope(device);
  CheckDriver(TheDriver().cuFuncSetAttribute(function, kMostDynamicSharedBytes, int(bytes)), "cuFuncSetAttribute");
}

int BlocksPerMultiprocessor(const DeviceFacts& device, Function function, int threads) {
  const ContextScope scope(device);
  int blocks = 0;
  CheckDriver(TheDriver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, size_t{0}),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

int ResidentClusters(
  const DeviceFacts& device, Function function, unsigned cluster, unsigned threads, unsigned shared_bytes) {
  if (TheDriver().cuOccupancyMaxActiveClusters == nullptr) return 0;
  const ContextScope scope(device);
  LaunchAttribute shape{kClusterShape, {}, {cluster, 1, 1}, {}};
  const LaunchConfig config{{cluster, 1, 1}, {threads, 1, 1}, shared_bytes, nullptr, &shape, 1};
  int clusters = 0;
  CheckDriver(TheDriver().cuOccupancyMaxActiveClusters(&clusters, function, &config), "cuOccupancyMaxActiveClusters");
  return clusters;
}

void Warn(const std::string& message) { std::fprintf(stderr, "ortplugin: %s\n", message.c_str()); }

}  // namespace ortplugin::cuda
