// For tests that compile kernels for the architecture that their command line names: a GPU of it, and what NVRTC's log
// says of them.
#pragma once

#include <cstdint>
#include <string>

#include "ortplugin/runtime/gpu/cuda.h"
#include "tests/native/check.h"
#include "tests/native/gpus.h"

namespace test {

// The exit code of a test that was not given its architecture, which is asked for.
int AskForArchitecture(const char* test);

// The GPU of "sm_90" that gpus.h has. Prints NVRTC's version; without NVRTC the test ends here.
const ortplugin::cuda::DeviceFacts& DeviceOf(const std::string& architecture);

// Machine code and NVRTC's remarks, or why there is none.
std::string Compile(const std::string& source, const std::string& architecture, std::string* log, std::string* failure);

// Bytes of registers that are kept in local memory for want of registers.
int Spilled(const std::string& log);

// The most registers of a thread.
int Registers(const std::string& log);

// A kernel was compiled; `variant` says of it what is to be printed, always with VERBOSE=1.
void CheckCompiled(const std::string& variant, const std::string& code, const std::string& log);

// Bytes of local memory: arrays that are indexed by what only a run knows, and what is spilled.
int Local(const std::string& log);

// The number that the last `#define name` of a source gives, or `otherwise`.
int64_t Defined(const std::string& source, const std::string& name, int64_t otherwise);

// The blocks of a launch that a multiprocessor should hold at the same time.
struct Residency {
  int64_t blocks = 1;
  bool shared_may_lack = false;  // where shared memory has no room for all, the others wait
};

// What a launch of `kernel` asks for that `gpu` lacks, of NVRTC's log of it; "" where all is there. Instructions that a
// GPU lacks, as wgmma, clusters and griddepcontrol, make no machine code for its architecture, which Compile shows.
std::string Lacking(const ortplugin::cuda::DeviceFacts& gpu, const std::string& log, const std::string& kernel,
                    int64_t threads, int64_t dynamic_shared = 0, const Residency& resident = {});

// What a kernel of `source` does against the rule of launch.cc: the first access to memory of other kernels that comes
// before `griddepcontrol.wait`, or that there is no such wait; a trigger that is not behind a switch, the last of two
// parameters. "" where all is well. `own`: a regular expression of accesses to memory that no other kernel knows.
std::string BeforeWait(const std::string& source, const std::string& own = "none");

// How many copies of 16 bytes to shared memory the only kernel of `source` has before it waits.
size_t CopiesBeforeWait(const std::string& source);

// A text with `dtype` in place of the word T.
std::string Typed(const std::string& text, const std::string& dtype);

}  // namespace test
