#include "ortplugin/runtime/ort/ort.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>

#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/written.h"

namespace ortplugin {
namespace {

// The releases of the ORTs of this process, 1.<minor>. Never destroyed, like all that sessions refer to.
struct Releases {
  std::mutex mutex;
  std::map<const ort::Api*, int> minors;
};
Releases& TheReleases() {
  static auto* const releases = new Releases;
  return *releases;
}

bool IsAtLeast(const ort::Api* api, int minor) {
  const std::lock_guard<std::mutex> lock(TheReleases().mutex);
  const auto found = TheReleases().minors.find(api);
  return found != TheReleases().minors.end() && found->second >= minor;
}

constexpr int kHasShape = 24;  // the first release with TensorTypeAndShape_HasShape
constexpr int kChecksOutput = 28;  // the first that checks the number of an output whose type is set

// ORT shows a tensor of unknown shape as a scalar. Where it can't be asked which it is, it counts as unknown.
bool KnowsShape(const ort::Api* api, const ort::TensorInfo* info, size_t rank) {
  if (rank > 0) return true;
  return IsAtLeast(api, kHasShape) && ort::TensorTypeAndShape_HasShape(api, info);
}

TensorType Describe(const ort::Api* api, const ort::TensorInfo* info) {
  TensorType type;
  Check(api, ort::GetTensorElementType(api, info, &type.type));
  size_t rank = 0;
  Check(api, ort::GetDimensionsCount(api, info, &rank));
  type.shape.resize(rank);
  type.symbols.resize(rank);
  type.has_shape = KnowsShape(api, info, rank);
  if (rank == 0) return type;
  Check(api, ort::GetDimensions(api, info, type.shape.data(), rank));
  std::vector<const char*> symbols(rank, nullptr);
  Check(api, ort::GetSymbolicDimensions(api, info, symbols.data(), rank));
  for (size_t i = 0; i < rank; ++i) {
    if (symbols[i] != nullptr) type.symbols[i] = symbols[i];
    if (type.shape[i] < 0 || !type.symbols[i].empty()) type.shape[i] = -1;
  }
  return type;
}

// Runs the destructor function of an ORT object at the end of a scope.
template <typename Release>
class Finally {
 public:
  explicit Finally(Release release) : release_(release) {}
  ~Finally() { release_(); }
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;

 private:
  Release release_;
};

}  // namespace

std::string ToString(const Shape& shape) {
  constexpr size_t kMostShown = 16;  // attributes may be as long as a model likes
  std::string text = "[";
  for (size_t i = 0; i < std::min(shape.size(), kMostShown); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() > kMostShown ? ", ...]" : "]");
}

int64_t ElementCount(const Shape& shape) {
  constexpr int64_t kMostElements = int64_t{1} << 48;  // leaves room to multiply by bytes and threads
  int64_t count = 1;
  bool is_empty = false;
  for (const int64_t size : shape) {
    is_empty = is_empty || size == 0;
    if (size < 0 || __builtin_mul_overflow(count, std::max<int64_t>(size, 1), &count) || count > kMostElements)
      Fail("the shape ", ToString(shape), " has a negative size or more elements than any memory holds");
  }
  return is_empty ? 0 : count;
}

std::optional<DType> FromOrt(ort::ElementType type) {
  switch (type) {
    case ort::kFloat16: return DType::kFloat16;
    case ort::kBFloat16: return DType::kBFloat16;
    case ort::kFloat: return DType::kFloat;
    case ort::kDouble: return DType::kDouble;
    case ort::kBool: return DType::kBool;
    case ort::kInt8: return DType::kInt8;
    case ort::kInt16: return DType::kInt16;
    case ort::kInt32: return DType::kInt32;
    case ort::kInt64: return DType::kInt64;
    case ort::kUInt8: return DType::kUInt8;
    case ort::kUInt16: return DType::kUInt16;
    case ort::kUInt32: return DType::kUInt32;
    case ort::kUInt64: return DType::kUInt64;
    default: return std::nullopt;
  }
}

ort::ElementType ToOrt(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return ort::kFloat16;
    case DType::kBFloat16: return ort::kBFloat16;
    case DType::kFloat: return ort::kFloat;
    case DType::kDouble: return ort::kDouble;
    case DType::kBool: return ort::kBool;
    case DType::kInt8: return ort::kInt8;
    case DType::kInt16: return ort::kInt16;
    case DType::kInt32: return ort::kInt32;
    case DType::kInt64: return ort::kInt64;
    case DType::kUInt8: return ort::kUInt8;
    case DType::kUInt16: return ort::kUInt16;
    case DType::kUInt32: return ort::kUInt32;
    case DType::kUInt64: return ort::kUInt64;
  }
  return ort::kUndefined;
}

std::string NameOfOrt(ort::ElementType type) {
  static constexpr const char* kNames[] = {"undefined", "float", "uint8", "int8", "uint16", "int16", "int32", "int64",
    "string", "bool", "float16", "double", "uint32", "uint64", "complex64", "complex128", "bfloat16"};
  const auto index = size_t(type);
  return index < std::size(kNames) ? kNames[index] : "ONNX element type " + std::to_string(type);
}

void NoteRelease(const ort::Api* api, int minor) {
  const std::lock_guard<std::mutex> lock(TheReleases().mutex);
  TheReleases().minors[api] = minor;
}

void Check(const ort::Api* api, ort::Status* status) {
  if (status == nullptr) return;
  const std::string message = ort::GetErrorMessage(api, static_cast<const ort::Status*>(status));
  ort::ReleaseStatus(api, status);
  throw Error(message);
}

size_t ShapeContext::input_count() const {
  size_t count = 0;
  Check(api_, ort::ShapeInferContext_GetInputCount(api_, static_cast<const ort::ShapeInferContext*>(context_), &count));
  return count;
}

TensorType ShapeContext::input(size_t index) const {
  ort::TensorInfo* info = nullptr;  // ORT keeps it
  Check(api_,
    ort::ShapeInferContext_GetInputTypeShape(api_, static_cast<const ort::ShapeInferContext*>(context_), index, &info));
  TensorType type = Describe(api_, info);
  // Inference is shown a tensor of unknown shape as a scalar, whose shape ORT says to know. Taken for one, it would
  // give the outputs a wrong rank, which ORT believes and kernels are then created with.
  type.has_shape = !type.shape.empty();
  return type;
}

// Null where the node lacks the attribute.
static const ort::OpAttr* FindAttribute(const ort::Api* api, ort::ShapeInferContext* context, const char* name) {
  const ort::OpAttr* attribute = nullptr;
  ort::Status* absent =
    ort::ShapeInferContext_GetAttribute(api, static_cast<const ort::ShapeInferContext*>(context), name, &attribute);
  if (absent != nullptr) ort::ReleaseStatus(api, absent);
  return absent != nullptr ? nullptr : attribute;
}

// Of an attribute with `count` elements of T; ORT is asked for the size first.
template <typename T, typename Container>
static Container ReadAttribute(
  const ort::Api* api, const ort::OpAttr* attribute, ort::OpAttrType type, const char* name) {
  size_t bytes = 0;
  ort::Status* too_small = ort::ReadOpAttr(api, attribute, type, static_cast<void*>(nullptr), size_t{0}, &bytes);
  if (too_small != nullptr) ort::ReleaseStatus(api, too_small);
  Container values(bytes / sizeof(T), T{});
  if (values.empty()) return values;
  ort::Status* failed = ort::ReadOpAttr(api, attribute, type, static_cast<void*>(values.data()), bytes, &bytes);
  if (failed != nullptr) {
    ort::ReleaseStatus(api, failed);
    Fail("the attribute '", name, "' has another type than the operator gives it");
  }
  return values;
}

std::string ShapeContext::string_attribute(const char* name) const {
  const ort::OpAttr* attribute = FindAttribute(api_, context_, name);
  if (attribute == nullptr) Fail("the attribute '", name, "' is missing");
  auto text = ReadAttribute<char, std::string>(api_, attribute, ort::kAttrString, name);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

std::string ShapeContext::string_attribute(const char* name, const char* absent) const {
  return FindAttribute(api_, context_, name) == nullptr ? absent : string_attribute(name);
}

int64_t ShapeContext::int_attribute(const char* name, int64_t absent) const {
  const ort::OpAttr* attribute = FindAttribute(api_, context_, name);
  if (attribute == nullptr) return absent;
  const auto values = ReadAttribute<int64_t, std::vector<int64_t>>(api_, attribute, ort::kAttrInt, name);
  if (values.size() != 1) Fail("the attribute '", name, "' is no integer");
  return values[0];
}

float ShapeContext::float_attribute(const char* name, float absent) const {
  const ort::OpAttr* attribute = FindAttribute(api_, context_, name);
  if (attribute == nullptr) return absent;
  const auto values = ReadAttribute<float, std::vector<float>>(api_, attribute, ort::kAttrFloat, name);
  if (values.size() != 1) Fail("the attribute '", name, "' is no number");
  return values[0];
}

std::vector<int64_t> ShapeContext::ints_attribute(const char* name) const {
  const ort::OpAttr* attribute = FindAttribute(api_, context_, name);
  if (attribute == nullptr) return {};
  return ReadAttribute<int64_t, std::vector<int64_t>>(api_, attribute, ort::kAttrInts, name);
}

std::vector<float> ShapeContext::floats_attribute(const char* name) const {
  const ort::OpAttr* attribute = FindAttribute(api_, context_, name);
  if (attribute == nullptr) return {};
  return ReadAttribute<float, std::vector<float>>(api_, attribute, ort::kAttrFloats, name);
}

void ShapeContext::set_output(size_t index, const TensorType& type) {
  // An older ORT ends the process where the node has no such output, and there is no way to ask. Every node has one.
  if (index > 0 && !IsAtLeast(api_, kChecksOutput)) return;
  // To ORT a type without a shape is a scalar's. The output's dtype is then the model's, as that of the others above.
  if (!type.has_shape) return;
  ort::TensorInfo* info = nullptr;
  Check(api_, ort::CreateTensorTypeAndShapeInfo(api_, &info));
  const Finally release([&] { ort::ReleaseTensorTypeAndShapeInfo(api_, info); });
  Check(api_, ort::SetTensorElementType(api_, info, type.type));
  if (type.has_shape) {
    Shape known = type.shape;  // what can be no result must not reach ORT's plan of its memory
    std::replace(known.begin(), known.end(), int64_t{-1}, int64_t{1});
    ElementCount(known);
    Check(api_, ort::SetDimensions(api_, info, type.shape.data(), type.shape.size()));
    // A dimension without a name would reach ORT as the number -1, which it then refuses: each gets a name of its own.
    static std::atomic<uint64_t> unnamed{0};
    std::vector<std::string> names = type.symbols;
    std::vector<const char*> symbols;
    for (size_t i = 0; i < names.size(); ++i) {
      if (type.shape[i] < 0 && names[i].empty()) names[i] = "ortplugin_" + std::to_string(unnamed++);
      symbols.push_back(names[i].c_str());
    }
    if (!symbols.empty()) Check(api_, ort::SetSymbolicDimensions(api_, info, symbols.data(), symbols.size()));
  }
  Check(api_,
    ort::ShapeInferContext_SetOutputTypeShape(
      api_, static_cast<const ort::ShapeInferContext*>(context_), index, static_cast<const ort::TensorInfo*>(info)));
}

std::string NodeInfo::name() const {
  size_t size = 0;
  Check(api_, ort::KernelInfo_GetNodeName(api_, info_, static_cast<char*>(nullptr), &size));
  std::string text(size, '\0');
  Check(api_, ort::KernelInfo_GetNodeName(api_, info_, text.data(), &size));
  text.resize(size ? size - 1 : 0);  // ORT counts the terminator
  return text;
}

size_t NodeInfo::input_count() const {
  size_t count = 0;
  Check(api_, ort::KernelInfo_GetInputCount(api_, info_, &count));
  return count;
}

size_t NodeInfo::output_count() const {
  size_t count = 0;
  Check(api_, ort::KernelInfo_GetOutputCount(api_, info_, &count));
  return count;
}

TensorType NodeInfo::input(size_t index) const {
  ort::TypeInfo* info = nullptr;
  Check(api_, ort::KernelInfo_GetInputTypeInfo(api_, info_, index, &info));
  const Finally release([&] { ort::ReleaseTypeInfo(api_, info); });
  const ort::TensorInfo* tensor = nullptr;
  Check(api_, ort::CastTypeInfoToTensorInfo(api_, static_cast<const ort::TypeInfo*>(info), &tensor));
  if (tensor == nullptr) return {};
  TensorType type = Describe(api_, tensor);
  if (type.has_shape) return type;
  if (const std::optional<Tensor> constant = constant_input(index)) {  // a scalar that this ORT does not tell from it
    type.has_shape = true;
    type.shape = constant->shape;
    type.symbols.resize(type.shape.size());
  }
  return type;
}

constexpr size_t kMostElementBytes = 16;  // complex128

static Tensor TensorOf(const ort::Api* api, const ort::Value* value) {
  ort::TensorInfo* info = nullptr;
  Check(api, ort::GetTensorTypeAndShape(api, value, &info));
  const Finally release([&] { ort::ReleaseTensorTypeAndShapeInfo(api, info); });
  Tensor tensor{};
  const ort::TensorInfo* described = info;
  Check(api, ort::GetTensorElementType(api, described, &tensor.type));
  size_t rank = 0;
  Check(api, ort::GetDimensionsCount(api, described, &rank));
  tensor.shape.resize(rank);
  if (rank > 0) Check(api, ort::GetDimensions(api, described, tensor.shape.data(), rank));
  void* data = nullptr;
  Check(api, ort::GetTensorMutableData(api, const_cast<ort::Value*>(value), &data));
  tensor.data = data;
  return tensor;
}

std::optional<Tensor> NodeInfo::constant_input(size_t index) const {
  int is_constant = 0;
  const ort::Value* value = nullptr;
  Check(api_, ort::KernelInfoGetConstantInput_tensor(api_, info_, index, &is_constant, &value));
  if (!is_constant || value == nullptr) return std::nullopt;
  return TensorOf(api_, value);
}

// To a kernel, ORT does not tell an attribute of another type from one that is absent: throws Error for the former.
static void CheckAbsent(const ort::Api* api, const ort::KernelInfo* info, const char* name) {
  float number = 0;
  int64_t integer = 0;
  size_t length = 0, floats = 0, integers = 0;  // ORT gives an array of another type as an empty one
  ort::Status* const single[] = {
    ort::KernelInfoGetAttribute_float(api, info, name, &number),
    ort::KernelInfoGetAttribute_int64(api, info, name, &integer),
    ort::KernelInfoGetAttribute_string(api, info, name, static_cast<char*>(nullptr), &length),
  };
  ort::Status* const arrays[] = {
    ort::KernelInfoGetAttributeArray_float(api, info, name, static_cast<float*>(nullptr), &floats),
    ort::KernelInfoGetAttributeArray_int64(api, info, name, static_cast<int64_t*>(nullptr), &integers),
  };
  bool is_there = (arrays[0] == nullptr && floats > 0) || (arrays[1] == nullptr && integers > 0);
  for (ort::Status* status : single) is_there = is_there || status == nullptr;
  for (ort::Status* status : {single[0], single[1], single[2], arrays[0], arrays[1]})
    if (status != nullptr) ort::ReleaseStatus(api, status);
  if (is_there) Fail("the attribute '", name, "' has another type than the operator gives it");
}

std::string NodeInfo::string_attribute(const char* name) const {
  size_t size = 0;
  ort::Status* missing = ort::KernelInfoGetAttribute_string(api_, info_, name, static_cast<char*>(nullptr), &size);
  if (missing != nullptr) {
    ort::ReleaseStatus(api_, missing);
    CheckAbsent(api_, info_, name);
    Fail("the attribute '", name, "' is missing");
  }
  std::string text(size, '\0');
  Check(api_, ort::KernelInfoGetAttribute_string(api_, info_, name, text.data(), &size));
  text.resize(size ? size - 1 : 0);
  return text;
}

std::string NodeInfo::string_attribute(const char* name, const char* absent) const {
  size_t size = 0;
  ort::Status* missing = ort::KernelInfoGetAttribute_string(api_, info_, name, static_cast<char*>(nullptr), &size);
  if (missing == nullptr) return string_attribute(name);
  ort::ReleaseStatus(api_, missing);
  CheckAbsent(api_, info_, name);
  return absent;
}

// `get`: (number), as in the C interface.
template <typename T, typename Get>
static T NumberAttribute(const ort::Api* api, const ort::KernelInfo* info, const char* name, T absent, Get get) {
  T number = absent;
  ort::Status* missing = get(&number);
  if (missing == nullptr) return number;
  ort::ReleaseStatus(api, missing);
  CheckAbsent(api, info, name);
  return absent;
}

int64_t NodeInfo::int_attribute(const char* name, int64_t absent) const {
  return NumberAttribute(api_, info_, name, absent,
    [&](int64_t* number) { return ort::KernelInfoGetAttribute_int64(api_, info_, name, number); });
}

float NodeInfo::float_attribute(const char* name, float absent) const {
  return NumberAttribute(api_, info_, name, absent,
    [&](float* number) { return ort::KernelInfoGetAttribute_float(api_, info_, name, number); });
}

// An attribute of several numbers, empty where it is absent. `get`: (numbers, count), as in the C interface.
template <typename T, typename Get>
static std::vector<T> NumbersAttribute(const ort::Api* api, const ort::KernelInfo* info, const char* name, Get get) {
  size_t count = 0;
  ort::Status* missing = get(static_cast<T*>(nullptr), &count);
  if (missing != nullptr) ort::ReleaseStatus(api, missing);
  if (missing != nullptr || count == 0) CheckAbsent(api, info, name);
  std::vector<T> numbers(missing != nullptr ? 0 : count);
  if (!numbers.empty()) Check(api, get(numbers.data(), &count));
  return numbers;
}

std::vector<int64_t> NodeInfo::ints_attribute(const char* name) const {
  return NumbersAttribute<int64_t>(api_, info_, name, [&](int64_t* numbers, size_t* count) {
    return ort::KernelInfoGetAttributeArray_int64(api_, info_, name, numbers, count);
  });
}

std::vector<float> NodeInfo::floats_attribute(const char* name) const {
  return NumbersAttribute<float>(api_, info_, name, [&](float* numbers, size_t* count) {
    return ort::KernelInfoGetAttributeArray_float(api_, info_, name, numbers, count);
  });
}

ort::Allocator* NodeInfo::allocator() const {
  ort::Allocator* allocator = nullptr;
  Check(api_, ort::KernelInfoGetAllocator(api_, info_, ort::kMemTypeDefault, &allocator));
  return allocator;
}

int NodeInfo::device() const {
  ort::Allocator* owned = allocator();
  const Finally release([&] { ort::ReleaseAllocator(api_, owned); });
  const ort::MemoryInfo* memory = nullptr;
  Check(api_, ort::AllocatorGetInfo(api_, static_cast<const ort::Allocator*>(owned), &memory));
  int ordinal = 0;
  Check(api_, ort::MemoryInfoGetId(api_, memory, &ordinal));
  return ordinal;
}

Tensor Run::input(size_t index) const {
  const ort::Value* value = nullptr;
  Check(api_, ort::KernelContext_GetInput(api_, static_cast<const ort::KernelContext*>(context_), index, &value));
  if (value == nullptr) Fail("input ", index, " is absent");
  return TensorOf(api_, value);
}

void* Run::output(size_t index, const Shape& shape, size_t element_bytes) {
  const int64_t bytes = ElementCount(shape) * int64_t(element_bytes);
  // Made where it fails alone: texts would take longer than small tensors.
  const auto what = [&] { return "output " + std::to_string(index) + " of shape " + ToString(shape); };
  if (bytes > HostMemory()) CheckHostMemory(what(), bytes);
  try {
    return const_cast<void*>(Output(index, shape).data);
  } catch (const Error& error) {
    Fail(what(), " takes ", bytes, " bytes: ", error.what());
  }
}

void* Run::output(size_t index, const Shape& shape) {
  const Tensor tensor = Output(index, shape);
  const std::optional<DType> dtype = FromOrt(tensor.type);
  Written::Note(tensor.data, size_t(ElementCount(shape)) * (dtype ? SizeOf(*dtype) : kMostElementBytes));
  return const_cast<void*>(tensor.data);
}

Tensor Run::Output(size_t index, const Shape& shape) {
  ElementCount(shape);
  ort::Value* value = nullptr;
  Check(api_, ort::KernelContext_GetOutput(api_, context_, index, shape.data(), shape.size(), &value));
  if (value == nullptr) Fail("output ", index, " is absent: every result of the program needs one");
  return TensorOf(api_, value);
}

void Run::parallel_for(size_t count, const std::function<void(size_t)>& body) {
  struct Call {
    const std::function<void(size_t)>* body;
    std::mutex mutex;
    std::exception_ptr failure;
  } call{&body, {}, nullptr};
  // No exception may cross ORT's thread pool: the first one is kept and thrown when all threads are back.
  const auto step = [](void* data, size_t index) {
    Call& state = *static_cast<Call*>(data);
    try {
      (*state.body)(index);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(state.mutex);
      if (state.failure == nullptr) state.failure = std::current_exception();
    }
  };
  void (*function)(void*, size_t) = step;
  Check(api_,
    ort::KernelContext_ParallelFor(
      api_, static_cast<const ort::KernelContext*>(context_), function, count, size_t{0}, static_cast<void*>(&call)));
  if (call.failure != nullptr) std::rethrow_exception(call.failure);
}

void* Run::stream() const {
  void* stream = nullptr;
  Check(api_, ort::KernelContext_GetGPUComputeStream(api_, static_cast<const ort::KernelContext*>(context_), &stream));
  return stream;
}

bool Run::allows_tf32() const {
  constexpr int kVersion = 3, kUseTf32 = 10011;  // ORT_CUDA_RESOURCE_VERSION and use_tf32_t in cuda_resource.h
  void* word = nullptr;
  if (ort::Status* const status = ort::KernelContext_GetResource(
        api_, static_cast<const ort::KernelContext*>(context_), kVersion, kUseTf32, &word)) {
    ort::ReleaseStatus(api_, status);
    return false;
  }
  return word != nullptr;
}

void* Run::scratch(const ort::MemoryInfo* memory, size_t bytes) {
  void* buffer = nullptr;
  Check(api_,
    ort::KernelContext_GetScratchBuffer(
      api_, static_cast<const ort::KernelContext*>(context_), memory, bytes, &buffer));
  if (buffer == nullptr) Fail("ONNX Runtime gave no scratch memory of ", bytes, " bytes");
  return buffer;
}

}  // namespace ortplugin
