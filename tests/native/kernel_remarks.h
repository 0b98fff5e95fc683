// For tests that compile kernels for the architecture that their command line names: a GPU of it, and what NVRTC's log
// says of them. They need NVRTC but no GPU, and fail where the compiler spills registers to local memory.
//
//   test_pool_kernels sm_90     VERBOSE=1 shows each variant
//   test_pool_kernels NAME      the source of the case of this name for an H200, on standard output, where a test has
//   it
#pragma once

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/round_up.h"
#include "tests/native/check.h"
#include "tests/native/gpus.h"

namespace test {

// The exit code of a test that was not given its architecture, which is asked for.
inline int AskForArchitecture(const char* test) {
  std::cerr << "which architecture? for instance: " << test << " sm_90\n";
  return 2;
}

// The GPU of "sm_90" that gpus.h has. Prints NVRTC's version; without NVRTC the test ends here.
inline const ortplugin::DeviceFacts& DeviceOf(const std::string& architecture) {
  std::cout << ortplugin::cuda::CompilerVersion() << "\n";
  return GpuOf(architecture);
}

// Machine code and NVRTC's remarks, or why there is none.
inline std::string Compile(
  const std::string& source, const std::string& architecture, std::string* log, std::string* failure) {
  try {
    return ortplugin::cuda::Compile(source, architecture, log);
  } catch (const ortplugin::Error& error) {
    *failure = std::string(error.what()).substr(0, 3000);
    return "";
  }
}

// The groups of all matches of a regular expression, of one without groups the matches.
std::vector<std::string> Matches(const std::string& text, const std::string& pattern);

// A text with `dtype` in place of the word T.
std::string Typed(const std::string& text, const std::string& dtype);

inline int Sum(const std::vector<std::string>& numbers) {
  int sum = 0;
  for (const std::string& number : numbers) sum += std::stoi(number);
  return sum;
}

// Bytes of registers that are kept in local memory for want of registers.
inline int Spilled(const std::string& log) {
  return Sum(Matches(log, "(\\d+) bytes spill stores, (\\d+) bytes spill loads"));
}

// The most registers of a thread.
inline int Registers(const std::string& log) {
  int most = 0;
  for (const std::string& used : Matches(log, "Used (\\d+) registers")) most = std::max(most, std::stoi(used));
  return most;
}

// Bytes of local memory: arrays that are indexed by what only a run knows, and what is spilled.
inline int Local(const std::string& log) { return Sum(Matches(log, "(\\d+) bytes stack frame")); }

// The number that the last `#define name` of a source gives, or `otherwise`.
inline int64_t Defined(const std::string& source, const std::string& name, int64_t otherwise) {
  const std::string define = "#define " + name + " ";
  const size_t at = source.rfind(define);
  return at == std::string::npos ? otherwise : std::stoll(source.substr(at + define.size()));
}

// The blocks of a launch that a multiprocessor should hold at the same time.
struct Residency {
  int64_t blocks = 1;
  bool shared_may_lack = false;  // where shared memory has no room for all, the others wait
};

// What a launch of `kernel` asks for that `gpu` lacks, of NVRTC's log of it; "" where all is there. Instructions that a
// GPU lacks, as wgmma, clusters and griddepcontrol, make no machine code for its architecture, which Compile shows.
inline std::string Lacking(const ortplugin::DeviceFacts& gpu, const std::string& log, const std::string& kernel,
  int64_t threads, int64_t dynamic_shared = 0, const Residency& resident = {}) {
  const size_t begin = log.find("Compiling entry function '" + kernel + "'");
  if (begin == std::string::npos) return "no remark on " + kernel + ": ";
  const std::string remarks = log.substr(begin, log.find("Compiling entry function", begin + 1) - begin);
  const auto number = [&](const char* pattern) {
    const std::vector<std::string> found = Matches(remarks, pattern);
    return found.empty() ? 0 : std::stoll(found[0]);
  };
  const int64_t registers = number("Used (\\d+) registers"), of_block = number("(\\d+) bytes smem");
  const int64_t shared = of_block + dynamic_shared, blocks = resident.blocks;
  std::string lacking;
  const auto check = [&](const char* what, int64_t asked, int64_t has) {
    if (asked > has)
      lacking += kernel + " asks for " + std::to_string(asked) + " " + what + " of " + std::to_string(has) + ": ";
  };
  check("threads of a block", threads, gpu.threads_per_block);
  check("threads of a multiprocessor", blocks * threads, gpu.threads_per_multiprocessor);
  check("blocks of a multiprocessor", blocks, gpu.blocks_per_multiprocessor);
  check("registers of a multiprocessor", blocks * ortplugin::RoundUp(threads, 32) * ortplugin::RoundUp(registers, 8),
    gpu.registers_per_multiprocessor);
  check("bytes of static shared memory", of_block, ortplugin::cuda::kStaticSharedBytes);
  check("bytes of a block's shared memory", shared, gpu.shared_per_block);
  if (!resident.shared_may_lack)
    check("bytes of a multiprocessor's shared memory", blocks * (shared + gpu.reserved_shared_per_block),
      gpu.shared_per_multiprocessor);
  // Of launch bounds that the architecture can't keep, which it then ignores.
  if (log.find("out of range") != std::string::npos) lacking += "launch bounds are ignored: " + log;
  return threads > 0 && registers > 0 ? lacking : kernel + " is no launch: " + lacking;
}

// What a kernel of `source` does against the rule of launch.cc: the first access to memory of other kernels that comes
// before `griddepcontrol.wait`, or that there is no such wait; a trigger that is not behind a switch, the last of two
// parameters. "" where all is well. `own`: a regular expression of accesses to memory that no other kernel knows.
inline std::string BeforeWait(const std::string& source, const std::string& own = "none") {
  const std::string ptx = ortplugin::cuda::Compile(source, "compute_90", nullptr);
  const std::string entry = ".entry ", wait = "griddepcontrol.wait;", trigger = "griddepcontrol.launch_dependents;";
  const char* access =
    "\\b(?:ld|st|atom|red|ldu|prefetch)\\.(?!param|const|shared|local|global\\.L2 "
    ")\\S*|\\bcp\\.async\\S*global\\S*|\\bret;|"
    "\\bexit;";
  for (size_t at = ptx.find(entry); at != std::string::npos; at = ptx.find(entry, at + 1)) {
    const size_t end = std::min(ptx.find(entry, at + 1), ptx.size()), waits = ptx.find(wait, at);
    const std::string name = ptx.substr(at, ptx.find('(', at) - at);
    if (waits >= end) return name + " does not wait: ";
    const std::string before = ptx.substr(at, waits - at);
    for (const std::string& found : Matches(before, access))
      if (Matches(found, own).empty()) return name + " does not wait before " + found + ": ";
  }
  if (ptx.find(trigger) == std::string::npos) return "";
  const std::string parameter = ", const unsigned next_waits) {";
  std::string off = source;
  const size_t at = off.find(parameter);
  if (at == std::string::npos) return "it triggers without a switch: ";
  off.replace(at, parameter.size(), ") {\n  const unsigned next_waits = 0;");
  const bool is_off = ortplugin::cuda::Compile(off, "compute_90", nullptr).find(trigger) == std::string::npos;
  return is_off ? "" : "it triggers though its switch is off: ";
}

// Whether a kernel may commit a group without MMAs (wgmma.cuh).
inline bool HasEmptyGroup(const std::string& source) {
  const std::string ptx = ortplugin::cuda::Compile(source, "compute_90a", nullptr);
  bool is_empty = true;
  for (const std::string& found : Matches(ptx, "wgmma\\.(?:mma_async|commit_group)")) {
    const bool is_commit = Contains(found, "commit");
    if (is_commit && is_empty) return true;
    is_empty = is_commit;
  }
  return false;
}

// A source compiled for an architecture, and what tests ask of every kernel.
class Compiled {
 public:
  Compiled(std::string source, const std::string& architecture)
    : source_(std::move(source)), code_(Compile(source_, architecture, &log_, &failure_)) {}

  const std::string& code() const { return code_; }
  const std::string& log() const { return log_; }
  // What the checks that follow print: the name and NVRTC's figures.
  const std::string& variant() const { return variant_; }

  // Fails without machine code, and where wgmma is serialized or may be of nothing. `name` says what was compiled;
  // VERBOSE=1 prints it.
  void CheckCode(const std::string& name) {
    variant_ = name + " registers " + std::to_string(Registers(log_)) + " spilled " + std::to_string(Spilled(log_)) +
      " local " + std::to_string(Local(log_)) + " bytes " + failure_;
    if (std::getenv("VERBOSE") != nullptr) std::cout << variant_ << std::endl;
    CHECK_WITH(code_.size() > 1000 && Registers(log_) > 0, variant_);
    CHECK_WITH(!Contains(log_, "Potential Performance Loss"), variant_ + log_);
    CHECK_WITH(!Contains(source_, "wgmma.") || !HasEmptyGroup(source_), variant_);
  }

  // The same, and fails where registers are spilled to local memory.
  void CheckRegisters(const std::string& name) {
    CheckCode(name);
    CHECK_WITH(Spilled(log_) == 0, variant_);
  }

  // The same, and fails where anything else is in local memory.
  void Check(const std::string& name) {
    CheckRegisters(name);
    CHECK_WITH(Local(log_) == 0, variant_);
  }

  // Fails where a launch of `kernel` asks for what `gpu` lacks (Lacking).
  void CheckLaunch(const ortplugin::DeviceFacts& gpu, const std::string& kernel, int64_t threads,
    int64_t dynamic_shared = 0, const Residency& resident = {}) const {
    const std::string lacking = Lacking(gpu, log_, kernel, threads, dynamic_shared, resident);
    CHECK_WITH(lacking.empty(), lacking + variant_);
  }

  // Fails where a kernel breaks the rule of launch.cc (BeforeWait).
  void CheckWaits(const std::string& own = "none") const {
    const std::string before = BeforeWait(source_, own);
    CHECK_WITH(before.empty(), before + variant_);
  }

 private:
  std::string source_, log_, failure_, code_, variant_;  // log and failure before the code, which fills them
};

// How many copies of 16 bytes to shared memory the only kernel of `source` has before it waits.
inline size_t CopiesBeforeWait(const std::string& source) {
  const std::string ptx = ortplugin::cuda::Compile(source, "compute_90", nullptr);
  const size_t entry = ptx.find(".entry ");
  const std::string before = ptx.substr(entry, ptx.find("griddepcontrol.wait;") - entry);
  const std::string copy = "cp.async.cg.shared.global";
  size_t count = 0;
  for (size_t at = before.find(copy); at != std::string::npos; at = before.find(copy, at + 1)) ++count;
  return count;
}

}  // namespace test
