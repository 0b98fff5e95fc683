// The smallest test framework: CHECK counts, Summary prints the counts and is main's exit status.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "ortplugin/runtime/error.h"

namespace test {

using ortplugin::Joined;

inline int passed = 0, failed = 0, left_out = 0;

inline void Check(bool good, const char* expression, const char* file, int line, const std::string& detail = "") {
  ++(good ? passed : failed);
  if (good || failed > 40) return;  // enough to see what is wrong
  std::printf("%s:%d: %s%s%s\n", file, line, expression, detail.empty() ? "" : ": ", detail.c_str());
}
#define CHECK(...) ::test::Check((__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
// With what to print when it fails; `detail` is evaluated only then.
#define CHECK_WITH(condition, detail) \
  do { \
    const bool check_is_good = (condition); \
    ::test::Check(check_is_good, #condition, __FILE__, __LINE__, check_is_good ? std::string() : (detail)); \
  } while (false)

// Equal numbers with equal signs, or both NaN.
inline bool Same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

// The message of the Error that `work` throws; empty where it throws none.
template <typename Work>
std::string ErrorOf(const Work& work) {
  try {
    work();
  } catch (const ortplugin::Error& error) {
    return error.what();
  }
  return "";
}

inline bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Whether ORTPLUGIN_SAMPLE is 1, as `make test` sets it.
inline bool IsSample() {
  static const bool is_sample = [] {
    const char* sample = std::getenv("ORTPLUGIN_SAMPLE");
    return sample != nullptr && std::string(sample) == "1";
  }();
  return is_sample;
}

// Whether a case of this name is tested: of a sample one in `every`, others on each architecture; else all. FNV-1a: the
// same cases on every machine.
inline bool IsTaken(const std::string& architecture, const std::string& name, int every = 12) {
  if (!IsSample()) return true;
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : architecture + " " + name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  const bool taken = (hash >> 32) % every == 0;
  left_out += !taken;
  return taken;
}

// Whether the next case of the group is tested: of a sample the first, and then one in `every`.
inline bool TakesTurn(const std::string& group, int every) {
  static std::map<std::string, int> met;
  const bool taken = !IsSample() || met[group]++ % every == 0;
  left_out += !taken;
  return taken;
}

inline int Summary() {
  std::printf("%d passed, %d failed, %d left to make test-all\n", passed, failed, left_out);
  return failed == 0 ? 0 : 1;
}

}  // namespace test
