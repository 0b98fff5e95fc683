// What is said of a driver's errors, and what code it is given, by a driver without a GPU and an NVRTC: argv[1] and
// [2].
#include <dlfcn.h>

#include <cstdlib>

#include "tests/native/check.h"
#include "tests/native/fake_cuda.h"

using namespace ortplugin;
using namespace test;

namespace {

fake::Answers* answers;
constexpr const char* kRestart = "this process must be restarted";
constexpr const char* kUpdate = "Update the driver, or set ORTPLUGIN_NVRTC";

// A GPU that NVRTC may know or not.
DeviceFacts Like(int ordinal, int major, int minor) {
  DeviceFacts gpu = H200();
  gpu.ordinal = ordinal;
  gpu.major = major;
  gpu.minor = minor;
  return gpu;
}

// Behind one of these every call in the process fails, so that trying again is no remedy.
void LostContexts() {
  for (const int sticky : {214, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}) {
    const std::string text = ErrorOf([&] { cuda::CheckDriver(sticky, "cuLaunchKernel"); });
    CHECK_WITH(
      Contains(text, kRestart) && Contains(text, "cuLaunchKernel failed"), std::to_string(sticky) + ": " + text);
  }
  for (const int other : {1, 2, 100, 200, 201, 209, 222, 304, 400, 500, 600, 701, 720, 801, 900, 901, 999}) {
    const std::string text = ErrorOf([&] { cuda::CheckDriver(other, "cuLaunchKernel"); });
    CHECK_WITH(!text.empty() && !Contains(text, kRestart), std::to_string(other) + ": " + text);
  }
  CHECK(ErrorOf([] { cuda::CheckDriver(0, "cuLaunchKernel"); }).empty());
}

// A kernel reaches beyond its memory: each launch says so from then on, also one of another kernel.
void ALaunchThatFails() {
  const auto launch = [] {
    void* value = nullptr;
    void* arguments[] = {&value};
    cuda::Launch(cuda::Device(0), reinterpret_cast<cuda::Function>(fake::kOneParameter), {1, 32}, nullptr, arguments);
  };
  CHECK(ErrorOf(launch).empty());
  answers->launch = 700;
  for (int i = 0; i < 2; ++i) CHECK_WITH(Contains(ErrorOf(launch), kRestart), ErrorOf(launch));
  answers->launch = 0;
}

void Memory() {
  const std::string text = ErrorOf([] { cuda::CheckDriver(cuda::kOutOfMemory, "cuModuleLoadData"); });
  CHECK_WITH(Contains(text, "gpu_mem_limit") && !Contains(text, kUpdate), text);
}

// Machine code of the GPU's own architecture, where NVRTC knows it, or else PTX of the newest one before.
void Architectures() {
  const auto architecture_of = [](int major, int minor) { return cuda::Architecture(Like(0, major, minor)); };
  CHECK_WITH(architecture_of(7, 5) == "sm_75", architecture_of(7, 5));
  CHECK_WITH(architecture_of(8, 6) == "sm_86", architecture_of(8, 6));
  CHECK_WITH(architecture_of(8, 9) == "compute_86", architecture_of(8, 9));
  CHECK_WITH(architecture_of(9, 0) == "sm_90a", architecture_of(9, 0));
  CHECK_WITH(architecture_of(13, 0) == "compute_120", architecture_of(13, 0));
  CHECK_WITH(Contains(ErrorOf([&] { architecture_of(7, 0); }),
               "NVRTC 13.0 can't compile for this GPU of compute capability 7.0"),
    ErrorOf([&] { architecture_of(7, 0); }));
}

// A driver for CUDA 12.2 and NVRTC 13.0: the message has both, the architecture and what to do. Once the driver loads
// code, so does the same kernel: a failure is not kept.
void OldDrivers() {
  answers->version = 12020;
  const DeviceFacts hopper = H200(), later = Like(1, 13, 0);
  const auto load = [](const DeviceFacts& device) {
    return [&] { cuda::Load(device, "a kernel", "k", [](const std::string&) {}); };
  };
  for (const int result : {200, 209, 218, 222}) {
    answers->load = result;
    const std::string text = ErrorOf(load(hopper));
    for (const char* part : {"cuModuleLoadData", "sm_90a", "nvrtc 13.0", "driver for CUDA 12.2", kUpdate})
      CHECK_WITH(Contains(text, part), std::to_string(result) + ": no '" + part + "' in: " + text);
    CHECK_WITH(!Contains(text, kRestart), text);
  }
  CHECK_WITH(answers->loaded ==
      "\x7f"
      "ELF",
    answers->loaded);
  CHECK_WITH(Contains(ErrorOf(load(later)), "compute_120"), ErrorOf(load(later)));
  CHECK_WITH(answers->loaded == ".ver", answers->loaded);
  answers->load = 0;
  CHECK_WITH(ErrorOf(load(hopper)).empty(), ErrorOf(load(hopper)));
  answers->version = 13000;
}

void MissingFunctions(void* library) {
  cuda::Result (*function)(unsigned) = nullptr;
  const std::string text = ErrorOf([&] { cuda::Find(library, "cuOfALaterDriver", function); });
  CHECK_WITH(Contains(text, "lacks cuOfALaterDriver") && Contains(text, "too old"), text);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  setenv("ORTPLUGIN_NVRTC", arguments[2], 1);
  setenv("ORTPLUGIN_CACHE_DIR", "", 1);  // nothing of this is to be kept
  void* const library = fake::Open(arguments[1]);
  if (library == nullptr) return Summary();
  answers = reinterpret_cast<fake::TheAnswers>(dlsym(library, "FakeAnswers"))();
  LostContexts();
  ALaunchThatFails();
  Memory();
  Architectures();
  OldDrivers();
  MissingFunctions(library);
  return Summary();
}
