#include "ortplugin/runtime/host_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>

#include "ortplugin/runtime/error.h"
#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

constexpr const char* kLimitVariable = "ORTPLUGIN_MEMORY_LIMIT";

int64_t ReadHostMemory() {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  uint64_t bytes = kMost;
  struct sysinfo machine{};
  if (sysinfo(&machine) == 0) {
    const unsigned __int128 all = static_cast<unsigned __int128>(machine.totalram) + machine.totalswap;
    bytes = uint64_t(std::min<unsigned __int128>(all * machine.mem_unit, kMost));
  }
  for (const char* limit : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t most = 0;  // the file may say "max"
    if (std::ifstream(limit) >> most && most > 0) bytes = std::min(bytes, most);
  }
  if (const char* text = secure_getenv(kLimitVariable)) {
    uint64_t most = 0;
    const char* const end = text + std::strlen(text);
    const std::from_chars_result result = std::from_chars(text, end, most);
    if (result.ec != std::errc() || result.ptr != end || most == 0)
      Fail(kLimitVariable, " is ", Quoted(text), "; it must be a number of bytes");
    bytes = std::min(bytes, most);
  }
  return int64_t(bytes);
}

}  // namespace

int64_t HostMemory() {
  static const int64_t bytes = ReadHostMemory();
  return bytes;
}

void CheckHostMemory(const std::string& what, int64_t bytes) {
  if (bytes > HostMemory())
    Fail(what, " takes ", bytes, " bytes, more than this process may have, ", HostMemory(),
      "; check the shapes and numbers that the node was given, or use a smaller batch");
}

void* AllocateHostMemory(size_t count, size_t element_bytes) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(count, element_bytes, &bytes))
    Fail("an intermediate result of ", count, " elements is more than any memory holds");
  if (bytes > HostMemory()) CheckHostMemory("an intermediate result", bytes);
  void* memory = std::malloc(std::max<size_t>(1, size_t(bytes)));
  if (memory == nullptr)
    Fail("out of memory: ", bytes, " bytes for an intermediate result could not be had; use a smaller batch");
  return memory;
}

}  // namespace ortplugin
