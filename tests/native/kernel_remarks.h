// For tests that compile kernels for the architecture that their command line names: a GPU of it, and what NVRTC's log
// says of them.
#pragma once

#include <algorithm>
#include <iostream>
#include <regex>
#include <string>

#include "ortplugin/runtime/gpu/cuda.h"

namespace test {

// The exit code of a test that was not given its architecture, which is asked for.
inline int AskForArchitecture(const char* test) {
  std::cerr << "which architecture? for instance: " << test << " sm_90\n";
  return 2;
}

// A GPU of "sm_90" with the H200's multiprocessors and cache. Prints NVRTC's version; without NVRTC the test ends here.
inline ortplugin::cuda::DeviceFacts DeviceOf(const std::string& architecture) {
  std::cout << ortplugin::cuda::CompilerVersion() << "\n";
  const int number = std::stoi(architecture.substr(3));
  return {0, number / 10, number % 10, 132, 60 << 20};
}

// Machine code and NVRTC's remarks, or why there is none.
inline std::string Compile(const std::string& source, const std::string& architecture, std::string* log,
                           std::string* failure) {
  try {
    return ortplugin::cuda::Compile(source, architecture, log);
  } catch (const ortplugin::Error& error) {
    *failure = std::string(error.what()).substr(0, 3000);
    return "";
  }
}

// Bytes of registers that are kept in local memory for want of registers.
inline int Spilled(const std::string& log) {
  int bytes = 0;
  const std::regex spills("(\\d+) bytes spill stores, (\\d+) bytes spill loads");
  for (std::sregex_iterator it(log.begin(), log.end(), spills), end; it != end; ++it)
    bytes += std::stoi((*it)[1]) + std::stoi((*it)[2]);
  return bytes;
}

// The most registers of a thread.
inline int Registers(const std::string& log) {
  int most = 0;
  const std::regex used("Used (\\d+) registers");
  for (std::sregex_iterator it(log.begin(), log.end(), used), end; it != end; ++it)
    most = std::max(most, std::stoi((*it)[1]));
  return most;
}

// Bytes of local memory: arrays that are indexed by what only a run knows, and what is spilled.
inline int Local(const std::string& log) {
  int bytes = 0;
  const std::regex frames("(\\d+) bytes stack frame");
  for (std::sregex_iterator it(log.begin(), log.end(), frames), end; it != end; ++it) bytes += std::stoi((*it)[1]);
  return bytes;
}

// What a kernel of `source` does against the rule of launch.cc: the first access to memory of other kernels that comes
// before `griddepcontrol.wait`, or that there is no such wait; a trigger that is not behind a switch, the last of two
// parameters. "" where all is well. `own`: a regular expression of accesses to memory that no other kernel knows.
inline std::string BeforeWait(const std::string& source, const std::string& own = "none") {
  const std::string ptx = ortplugin::cuda::Compile(source, "compute_90", nullptr);
  const std::string entry = ".entry ", wait = "griddepcontrol.wait;", trigger = "griddepcontrol.launch_dependents;";
  const std::regex access(
      "\\b(ld|st|atom|red|ldu|prefetch)\\.(?!param|const|shared|local)\\S*|\\bcp\\.async\\S*global\\S*|\\bret;|"
      "\\bexit;");
  for (size_t at = ptx.find(entry); at != std::string::npos; at = ptx.find(entry, at + 1)) {
    const size_t end = std::min(ptx.find(entry, at + 1), ptx.size()), waits = ptx.find(wait, at);
    const std::string name = ptx.substr(at, ptx.find('(', at) - at);
    if (waits >= end) return name + " does not wait: ";
    const std::string before = ptx.substr(at, waits - at);
    for (std::sregex_iterator found(before.begin(), before.end(), access), last; found != last; ++found)
      if (!std::regex_search(found->str(), std::regex(own)))
        return name + " does not wait before " + found->str() + ": ";
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
