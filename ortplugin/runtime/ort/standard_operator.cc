#include "ortplugin/runtime/ort/standard_operator.h"

#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {
namespace {

// Objects of ORT that are released at the end of a scope.
template <typename T, void (*release)(const ort::Api*, T*)>
class Owned {
 public:
  explicit Owned(const ort::Api* api) : api_(api) {}
  ~Owned() {
    for (T* each : all_)
      if (each != nullptr) release(api_, each);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  void Add(T* object) { all_.push_back(object); }
  T* const* data() const { return all_.data(); }
  int count() const { return int(all_.size()); }

 private:
  const ort::Api* api_;
  std::vector<T*> all_;
};

void ReleaseAttribute(const ort::Api* api, ort::OpAttr* attribute) { ort::ReleaseOpAttr(api, attribute); }
void ReleaseTensor(const ort::Api* api, ort::Value* value) { ort::ReleaseValue(api, value); }
using OwnedAttributes = Owned<ort::OpAttr, ReleaseAttribute>;
using OwnedValues = Owned<ort::Value, ReleaseTensor>;

void Add(const ort::Api* api, const StandardOperator::Attribute& attribute, OwnedAttributes* attributes) {
  const auto make = [&](const void* data, size_t length, ort::OpAttrType type) {
    ort::OpAttr* made = nullptr;
    Check(api, ort::CreateOpAttr(api, attribute.first, data, int(length), type, &made));
    attributes->Add(made);
  };
  if (const auto* number = std::get_if<int64_t>(&attribute.second)) return make(number, 1, ort::kAttrInt);
  if (const auto* real = std::get_if<float>(&attribute.second)) return make(real, 1, ort::kAttrFloat);
  if (const auto* text = std::get_if<std::string>(&attribute.second))
    return make(text->data(), text->size(), ort::kAttrString);
  if (const auto* reals = std::get_if<std::vector<float>>(&attribute.second)) {
    if (!reals->empty()) make(reals->data(), reals->size(), ort::kAttrFloats);
    return;
  }
  const auto& numbers = std::get<std::vector<int64_t>>(attribute.second);
  if (!numbers.empty()) make(numbers.data(), numbers.size(), ort::kAttrInts);
}

// A view of the tensor's memory, null for one that is left out.
void Add(const ort::Api* api, const ort::MemoryInfo* memory, const Tensor& tensor, OwnedValues* values) {
  if (tensor.type == ort::kUndefined) return values->Add(nullptr);
  const size_t bytes = size_t(ElementCount(tensor.shape)) * SizeOf(*FromOrt(tensor.type));
  ort::Value* value = nullptr;
  Check(api,
    ort::CreateTensorWithDataAsOrtValue(api, memory, const_cast<void*>(tensor.data), bytes, tensor.shape.data(),
      tensor.shape.size(), tensor.type, &value));
  values->Add(value);
}

}  // namespace

KeptNodeInfo::KeptNodeInfo(const NodeInfo& info) : api_(info.api()), info_(nullptr) {
  Check(api_, ort::CopyKernelInfo(api_, info.info(), &info_));
}

KeptNodeInfo::~KeptNodeInfo() { ort::ReleaseKernelInfo(api_, info_); }

StandardOperator::StandardOperator(const NodeInfo& info, const std::string& name, const char* domain, int version,
  const std::vector<TypeConstraint>& types, const std::vector<Attribute>& attributes, size_t inputs, size_t outputs)
  : api_(info.api()), name_(name) {
  OwnedAttributes made(api_);
  for (const Attribute& attribute : attributes) Add(api_, attribute, &made);
  std::vector<const char*> variables;
  std::vector<ort::ElementType> elements;
  for (const TypeConstraint& type : types) {
    variables.push_back(type.first);
    elements.push_back(type.second);
  }
  const ort::ElementType* const element_types = elements.data();
  try {
    Check(api_,
      ort::CreateOp(api_, info.info(), name.c_str(), domain, version, variables.data(), element_types,
        int(types.size()), made.data(), made.count(), int(inputs), int(outputs), &op_));
    Check(api_, ort::CreateCpuMemoryInfo(api_, ort::kDeviceAllocator, ort::kMemTypeDefault, &memory_));
  } catch (const Error& error) {
    if (op_ != nullptr) ort::ReleaseOp(api_, op_);
    Fail("ONNX Runtime's own ", name, " on the CPU can't be made: ", error.what());
  }
}

StandardOperator::~StandardOperator() {
  ort::ReleaseMemoryInfo(api_, memory_);
  ort::ReleaseOp(api_, op_);
}

void StandardOperator::Run(
  const ortplugin::Run& run, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) const {
  OwnedValues given(api_), made(api_);
  for (const Tensor& tensor : inputs) Add(api_, memory_, tensor, &given);
  for (const Tensor& tensor : outputs) Add(api_, memory_, tensor, &made);
  try {
    Check(api_,
      ort::InvokeOp(
        api_, run.context(), static_cast<const ort::Op*>(op_), given.data(), given.count(), made.data(), made.count()));
  } catch (const Error& error) {
    Fail("ONNX Runtime's own ", name_, ": ", error.what());
  }
}

HostScratch::HostScratch(const NodeInfo& info) : api_(info.api()), allocator_(info.allocator()) {}

HostScratch::~HostScratch() { ort::ReleaseAllocator(api_, allocator_); }

HostScratch::Buffer HostScratch::Take(size_t bytes) const {
  CheckHostMemory("an intermediate result", int64_t(bytes));
  void* memory = nullptr;
  ort::Status* failed = ort::AllocatorAlloc(api_, allocator_, bytes > 0 ? bytes : 1, &memory);
  if (failed != nullptr) ort::ReleaseStatus(api_, failed);
  if (memory == nullptr)
    Fail("out of memory: ", bytes, " bytes for an intermediate result could not be had; use a smaller batch");
  return Buffer(memory, Free{this});
}

void HostScratch::Free::operator()(void* memory) const {
  ort::Status* failed = ort::AllocatorFree(scratch->api_, scratch->allocator_, memory);
  if (failed != nullptr) ort::ReleaseStatus(scratch->api_, failed);
}

}  // namespace ortplugin
