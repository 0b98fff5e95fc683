#include "ortplugin/runtime/cudnn/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "ortplugin/runtime/error.h"

namespace ortplugin::cudnn {
namespace {

constexpr size_t kOldestVersion = 90000;

std::string VersionText(size_t version) {
  // Before 9 the numbers were packed with 1000 for the major version.
  const size_t major_unit = version < kOldestVersion ? 1000 : 10000;
  return "cuDNN " + std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / 100) + "." +
    std::to_string(version % 100);
}

template <typename Pointer>
void Find(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (function == nullptr)
    Fail("the cuDNN library at hand lacks ", name, ": install nvidia-cudnn-cu12 or -cu13, 9.0 or later");
}

// The first that opens; what the process has loaded already goes first, so that one cuDNN serves all of it.
void* OpenFirst(const std::vector<std::string>& candidates, std::string* tried) {
  for (const std::string& candidate : candidates)
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return library;
  for (const std::string& candidate : candidates) {
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    *tried += (tried->empty() ? "" : ", ") + candidate;
  }
  return nullptr;
}

// cuDNN ends the process where it can't find cuBLASLt, so look before it does.
void CheckBlas(size_t runtime_version) {
  const std::string major = std::to_string(runtime_version / 1000);
  const std::string name = "libcublasLt.so." + major, packages = cuda::LibraryFolder() + "/../nvidia/";
  std::string tried;
  if (OpenFirst({name, packages + "cu" + major + "/lib/" + name, packages + "cublas/lib/" + name}, &tried) == nullptr)
    Fail("cuDNN needs ", name, ", which can't be opened (tried ", tried, "). Install it with `pip install ",
      major == "12" ? "nvidia-cublas-cu12" : "nvidia-cublas", "`");
}

struct Pool {
  struct Entry {
    abi::Handle handle;
    cuda::Stream stream;
  };
  std::mutex mutex;
  std::map<int, std::vector<Entry>> free;  // by the device's ordinal
};

// Never destroyed: handles live as long as the process, as CUDA may be gone before static objects are.
Pool& ThePool() {
  static auto* const pool = new Pool;
  return *pool;
}

}  // namespace

const abi::Functions& Library() {
  static const abi::Functions* const functions = [] {
    std::vector<std::string> candidates = {
      "libcudnn.so.9", cuda::LibraryFolder() + "/../nvidia/cudnn/lib/libcudnn.so.9"};
    if (const char* given = secure_getenv("ORTPLUGIN_CUDNN"); given != nullptr && *given != '\0') candidates = {given};
    std::string tried;
    void* library = OpenFirst(candidates, &tried);
    if (library == nullptr)
      Fail("convolutions on the GPU are computed by cuDNN 9, which can't be opened (tried ", tried,
        "). Install it with `pip install nvidia-cudnn-cu13` (or -cu12, for CUDA 12), or set ORTPLUGIN_CUDNN to the "
        "path of libcudnn.so.9");
    auto made = std::make_unique<abi::Functions>();
    Find(library, "cudnnGetVersion", made->cudnnGetVersion);
    if (made->cudnnGetVersion() < kOldestVersion)
      Fail("convolutions on the GPU need cuDNN 9 or later; the one at hand is ", VersionText(made->cudnnGetVersion()),
        ". Install it with `pip install nvidia-cudnn-cu13` (or -cu12, for CUDA 12)");
    Find(library, "cudnnGetCudartVersion", made->cudnnGetCudartVersion);
    Find(library, "cudnnGetErrorString", made->cudnnGetErrorString);
    Find(library, "cudnnGetLastErrorString", made->cudnnGetLastErrorString);
    Find(library, "cudnnCreate", made->cudnnCreate);
    Find(library, "cudnnDestroy", made->cudnnDestroy);
    Find(library, "cudnnSetStream", made->cudnnSetStream);
    Find(library, "cudnnBackendCreateDescriptor", made->cudnnBackendCreateDescriptor);
    Find(library, "cudnnBackendDestroyDescriptor", made->cudnnBackendDestroyDescriptor);
    Find(library, "cudnnBackendFinalize", made->cudnnBackendFinalize);
    Find(library, "cudnnBackendSetAttribute", made->cudnnBackendSetAttribute);
    Find(library, "cudnnBackendGetAttribute", made->cudnnBackendGetAttribute);
    Find(library, "cudnnBackendExecute", made->cudnnBackendExecute);
    CheckBlas(made->cudnnGetCudartVersion());
    return made.release();
  }();
  return *functions;
}

std::string Version() { return VersionText(Library().cudnnGetVersion()); }

std::string WordsOf(abi::Status status) {
  char more[1024] = "";
  Library().cudnnGetLastErrorString(more, sizeof more);
  more[sizeof more - 1] = '\0';
  const std::string words = Library().cudnnGetErrorString(status);
  return more[0] == '\0' ? words : words + " (" + more + ")";
}

void CheckStatus(abi::Status status, const char* what) {
  if (status == 0) return;
  if (status / 1000 == abi::kNotSupported) throw Refused(std::string(what) + ": " + WordsOf(status));
  Fail(Version(), ": ", what, " failed: ", WordsOf(status));
}

Descriptor::Descriptor(abi::DescriptorType type) {
  CheckStatus(Library().cudnnBackendCreateDescriptor(type, &raw_), "cudnnBackendCreateDescriptor");
}

Descriptor::~Descriptor() {
  if (raw_ != nullptr) Library().cudnnBackendDestroyDescriptor(raw_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}

void Descriptor::Set(abi::Attribute name, abi::AttributeType type, int64_t count, const void* values) {
  CheckStatus(Library().cudnnBackendSetAttribute(raw_, name, type, count, values), "cudnnBackendSetAttribute");
}

void Descriptor::SetInt64s(abi::Attribute name, const std::vector<int64_t>& values) {
  Set(name, abi::kTypeInt64, int64_t(values.size()), values.data());
}

void Descriptor::SetTrue(abi::Attribute name) {
  const bool value = true;
  Set(name, abi::kTypeBoolean, 1, &value);
}

void Descriptor::SetDescriptor(abi::Attribute name, const Descriptor& value) {
  Set(name, abi::kTypeDescriptor, 1, &value.raw_);
}

void Descriptor::SetDescriptors(abi::Attribute name, const std::vector<abi::RawDescriptor>& values) {
  Set(name, abi::kTypeDescriptor, int64_t(values.size()), values.data());
}

void Descriptor::Finalize(const char* what) { CheckStatus(Library().cudnnBackendFinalize(raw_), what); }

int64_t Descriptor::Get(abi::Attribute name, abi::AttributeType type, int64_t room, void* values) const {
  int64_t count = 0;
  CheckStatus(Library().cudnnBackendGetAttribute(raw_, name, type, room, &count, values), "cudnnBackendGetAttribute");
  return count;
}

HandleLoan::HandleLoan(const DeviceFacts& device, cuda::Stream stream) : ordinal_(device.ordinal), stream_(stream) {
  cuda::Stream set = nullptr;
  {
    Pool& pool = ThePool();
    const std::lock_guard<std::mutex> lock(pool.mutex);
    std::vector<Pool::Entry>& free = pool.free[ordinal_];
    if (!free.empty()) {
      // One whose stream is set already, as in a warm session, or any.
      size_t best = free.size() - 1;
      for (size_t i = 0; i < free.size(); ++i)
        if (free[i].stream == stream) best = i;
      handle_ = free[best].handle;
      set = free[best].stream;
      free.erase(free.begin() + std::ptrdiff_t(best));
    }
  }
  if (handle_ == nullptr) CheckStatus(Library().cudnnCreate(&handle_), "cudnnCreate");
  if (set == stream_) return;
  const abi::Status status = Library().cudnnSetStream(handle_, stream_);
  if (status == 0) return;
  Library().cudnnDestroy(handle_);
  CheckStatus(status, "cudnnSetStream");
}

HandleLoan::~HandleLoan() {
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  try {
    pool.free[ordinal_].push_back({handle_, stream_});
  } catch (const std::bad_alloc&) {
    // The handle is lost; the next loan makes another.
  }
}

}  // namespace ortplugin::cudnn
