// ONNX Runtime's own CPU kernels of standard operators, called from within our kernels.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

// A node's KernelInfo beyond the creation of its kernel, for standard operators that are made later.
class KeptNodeInfo {
 public:
  explicit KeptNodeInfo(const NodeInfo& info);
  ~KeptNodeInfo();
  KeptNodeInfo(const KeptNodeInfo&) = delete;
  KeptNodeInfo& operator=(const KeptNodeInfo&) = delete;
  NodeInfo info() const { return NodeInfo(api_, info_); }

 private:
  const ort::Api* api_;
  ort::KernelInfo* info_;
};

// An operator with its attributes, on the node's provider. Immutable: runs may overlap.
class StandardOperator {
 public:
  using Attribute =
    std::pair<const char*, std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>>>;
  // One of ORT's variables of types, such as "T", and what it stands for.
  using TypeConstraint = std::pair<const char*, ort::ElementType>;

  // `version`: of the domain, ai.onnx where it is "", as a model would import it. Throws Error with ORT's message where
  // it has no such kernel. Lists that are empty are left out.
  StandardOperator(const NodeInfo& info, const std::string& name, const char* domain, int version,
    const std::vector<TypeConstraint>& types, const std::vector<Attribute>& attributes, size_t inputs, size_t outputs);
  ~StandardOperator();
  StandardOperator(const StandardOperator&) = delete;
  StandardOperator& operator=(const StandardOperator&) = delete;

  // Host memory in and out, on ORT's threads; the outputs' shapes must be what the operator makes. An input whose data
  // are null and whose type is undefined is an optional one that is left out.
  void Run(const ortplugin::Run& run, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) const;

 private:
  const ort::Api* api_;
  std::string name_;
  ort::Op* op_ = nullptr;
  ort::MemoryInfo* memory_ = nullptr;
};

// Host memory for one run from the allocator of the node's provider.
class HostScratch {
 public:
  explicit HostScratch(const NodeInfo& info);
  ~HostScratch();
  HostScratch(const HostScratch&) = delete;
  HostScratch& operator=(const HostScratch&) = delete;

  struct Free {
    const HostScratch* scratch;
    void operator()(void* memory) const;
  };
  using Buffer = std::unique_ptr<void, Free>;
  // Throws Error with the bytes where there is no memory.
  Buffer Take(size_t bytes) const;

 private:
  const ort::Api* api_;
  ort::Allocator* allocator_;
};

}  // namespace ortplugin
