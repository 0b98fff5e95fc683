// Compiled kernels: in memory for this process, then on disk for the next.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace ortplugin {

// Everything that decides what a compiled kernel is. Two requests with equal fields give the same machine code.
struct KernelKey {
  std::string source;  // the whole CUDA C++ text
  std::string options;  // NVRTC's options, one line
  std::string architecture;  // "sm_90a"
  std::string compiler;  // "nvrtc 13.0"
  std::string plugin;  // the plugin's version
};

// Returns the machine code (a cubin) of `key`: from memory, else from disk, else from `compile`, which is called at
// most once per key in this process however many threads ask (the others wait; if it throws, all of them get its
// exception and the next request tries again). What `compile` returns is written to disk: under a unique temporary name
// in the same folder, fsync, then rename. A truncated, altered or foreign entry is a miss and is replaced.
// docs/deploy.md says which folder it is; where that can't be used, `warn` gets one message per process, naming folder
// and reason.
std::shared_ptr<const std::string> CachedKernel(const KernelKey& key, const std::function<std::string()>& compile,
  const std::function<void(const std::string&)>& warn);

}  // namespace ortplugin
