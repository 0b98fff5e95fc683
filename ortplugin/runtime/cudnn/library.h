// libcudnn opened at run time, its descriptors as C++ objects, and its handles.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "ortplugin/runtime/cudnn/abi.h"
#include "ortplugin/runtime/gpu/cuda.h"

namespace ortplugin::cudnn {

// cuDNN has nothing for what it was asked: no fault, the caller does without.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws Error where the library can't be opened or is older than 9; tries again in the next call.
const abi::Functions& Library();
std::string Version();  // "cuDNN 9.19.1"

// Throws Refused where cuDNN does not support it, Error with `what` and cuDNN's words for anything else.
void CheckStatus(abi::Status status, const char* what);
// cuDNN's words for a status that is not 0.
std::string WordsOf(abi::Status status);

class Descriptor {
 public:
  explicit Descriptor(abi::DescriptorType type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&&) = delete;

  abi::RawDescriptor raw() const { return raw_; }

  void Set(abi::Attribute name, abi::AttributeType type, int64_t count, const void* values);
  void SetInt64(abi::Attribute name, int64_t value) { Set(name, abi::kTypeInt64, 1, &value); }
  void SetInt64s(abi::Attribute name, const std::vector<int64_t>& values);
  void SetEnum(abi::Attribute name, abi::AttributeType type, int value) { Set(name, type, 1, &value); }
  void SetDouble(abi::Attribute name, double value) { Set(name, abi::kTypeDouble, 1, &value); }
  void SetTrue(abi::Attribute name);
  void SetDescriptor(abi::Attribute name, const Descriptor& value);
  void SetDescriptors(abi::Attribute name, const std::vector<abi::RawDescriptor>& values);
  void SetHandle(abi::Attribute name, abi::Handle handle) { Set(name, abi::kTypeHandle, 1, &handle); }
  void Finalize(const char* what);  // throws as CheckStatus

  // How many values there are; as many of them as fit are written.
  int64_t Get(abi::Attribute name, abi::AttributeType type, int64_t room, void* values) const;

 private:
  abi::RawDescriptor raw_ = nullptr;
};

// A handle for one thread at a time, with the stream set; taken from the device's pool, and given back at the end. The
// device's context must be current.
class HandleLoan {
 public:
  HandleLoan(const DeviceFacts& device, cuda::Stream stream);
  ~HandleLoan();
  HandleLoan(const HandleLoan&) = delete;
  HandleLoan& operator=(const HandleLoan&) = delete;
  abi::Handle get() const { return handle_; }

 private:
  int ordinal_;
  cuda::Stream stream_;
  abi::Handle handle_ = nullptr;
};

}  // namespace ortplugin::cudnn
