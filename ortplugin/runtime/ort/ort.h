// ONNX Runtime's C interface, wrapped once: tensors, shapes and attributes as C++ values, errors as exceptions that
// stop at the boundary (registry.cc). Operators see nothing of the interface itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ortplugin/runtime/ort/ort_abi.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

using Shape = std::vector<int64_t>;
using Shapes = std::vector<Shape>;

std::string ToString(const Shape& shape);  // "[2, 128, 768]"; -1 stands for a dimension that is not known
// Throws Error where the product exceeds 2^48, or would without the sizes of 0: strides are products of sizes too.
int64_t ElementCount(const Shape& shape);
std::optional<DType> FromOrt(ort::ElementType);  // empty for a type that programs lack
ort::ElementType ToOrt(DType dtype);
std::string NameOfOrt(ort::ElementType type);

// Says at registration that this ORT is 1.<minor>: what is newer than kApiVersion is used where it is there.
void NoteRelease(const ort::Api* api, int minor);

// Throws Error with ORT's message and frees the status.
void Check(const ort::Api* api, ort::Status* status);

// A tensor's dtype and shape as far as they are known before a run.
struct TensorType {
  ort::ElementType type = ort::kUndefined;
  bool has_shape = false;
  Shape shape;  // -1: not known
  std::vector<std::string> symbols;  // the name of each unknown dimension, or ""
};
using TensorTypes = std::vector<TensorType>;

struct Tensor {
  const void* data;
  ort::ElementType type;
  Shape shape;
};

// What an operator's shape inference may ask and say.
class ShapeContext {
 public:
  ShapeContext(const ort::Api* api, ort::ShapeInferContext* context) : api_(api), context_(context) {}
  size_t input_count() const;
  // `has_shape` is false for a scalar, too: ORT does not tell one from a tensor of unknown shape here. What an output's
  // shape follows from must therefore be known of every input, and only a kernel may conclude anything from rank 0.
  TensorType input(size_t index) const;
  std::string string_attribute(const char* name) const;
  std::string string_attribute(const char* name, const char* absent) const;
  int64_t int_attribute(const char* name, int64_t absent) const;
  float float_attribute(const char* name, float absent) const;
  std::vector<int64_t> ints_attribute(const char* name) const;  // empty where it is absent
  std::vector<float> floats_attribute(const char* name) const;  // likewise
  // Nothing where the shape is not known, and before ORT 1.28 of the first output only: the type is then the model's.
  void set_output(size_t index, const TensorType& type);

 private:
  const ort::Api* api_;
  ort::ShapeInferContext* context_;
};

// What a kernel may ask when it is created.
class NodeInfo {
 public:
  NodeInfo(const ort::Api* api, const ort::KernelInfo* info) : api_(api), info_(info) {}
  const ort::Api* api() const { return api_; }
  const ort::KernelInfo* info() const { return info_; }
  std::string name() const;
  size_t input_count() const;
  size_t output_count() const;
  TensorType input(size_t index) const;
  // The value of an input that is a constant of the model, on the node's provider; only while the kernel is created.
  std::optional<Tensor> constant_input(size_t index) const;
  std::string string_attribute(const char* name) const;
  // These throw Error where the attribute has another type. (So does shape inference, but ORT goes on without it.)
  // An empty list and a list of texts can't be told from an attribute that is absent.
  std::string string_attribute(const char* name, const char* absent) const;
  int64_t int_attribute(const char* name, int64_t absent) const;
  float float_attribute(const char* name, float absent) const;
  std::vector<int64_t> ints_attribute(const char* name) const;
  std::vector<float> floats_attribute(const char* name) const;
  // ORT's allocator of the memory that the node's provider computes in; the caller owns it.
  ort::Allocator* allocator() const;
  int device() const;  // the number of the provider's device

 private:
  const ort::Api* api_;
  const ort::KernelInfo* info_;
};

// One run of a kernel.
class Run {
 public:
  Run(const ort::Api* api, ort::KernelContext* context) : api_(api), context_(context) {}
  const ort::KernelContext* context() const { return context_; }
  Tensor input(size_t index) const;
  // On a GPU, where ORT knows how much memory there is; kernels may still be writing to it from now on (Written).
  void* output(size_t index, const Shape& shape);
  // On the CPU. Throws Error with shape and bytes where the machine has not so many, before anything is allocated.
  void* output(size_t index, const Shape& shape, size_t element_bytes);
  // Calls body(0) .. body(count - 1) on ORT's threads and returns when all are done. An exception in one is thrown
  // here.
  void parallel_for(size_t count, const std::function<void(size_t)>& body);
  void* stream() const;  // the CUstream of a CUDA node
  // Whether the CUDA provider's option use_tf32 lets float32 products round their factors to 10 bits. False before
  // ONNX Runtime 1.20, which does not tell.
  bool allows_tf32() const;
  void* scratch(const ort::MemoryInfo* memory, size_t bytes);

 private:
  Tensor Output(size_t index, const Shape& shape);

  const ort::Api* api_;
  ort::KernelContext* context_;
};

// A kernel is immutable once created, but for caches that guard themselves: Compute may run on many threads at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void Compute(Run& run) const = 0;
};

// For Operator::in_place: ORT may give any of the first `inputs` inputs' memory to any of the first `outputs` outputs,
// where it is the input's last use and dtype and shape agree. Compute sees equal pointers then.
template <int inputs, int outputs>
size_t InPlace(int** input_index, int** output_index) {
  *input_index = new int[size_t{inputs} * outputs];
  *output_index = new int[size_t{inputs} * outputs];
  for (int pair = 0; pair < inputs * outputs; ++pair) {
    (*input_index)[pair] = pair / outputs;
    (*output_index)[pair] = pair % outputs;
  }
  return size_t{inputs} * outputs;
}

// One row of the operator table in registry.cc. Inputs and outputs are variadic and of any dtype: an operator checks
// its own, in `infer` where types are known early and in `create` always.
struct Operator {
  const char* name;
  void (*infer)(ShapeContext& context);
  std::unique_ptr<Kernel> (*create_cpu)(const NodeInfo& info);
  std::unique_ptr<Kernel> (*create_cuda)(const NodeInfo& info);
  size_t (*in_place)(int** input_index, int** output_index) = nullptr;  // InPlace<...>, or null for never
};

}  // namespace ortplugin
