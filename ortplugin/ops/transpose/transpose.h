// FusedTranspose: a part of a tensor with its axes in another order. The specification is in
// ortplugin/ops/transpose/__init__.py.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/packed_kernel.h"
#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

extern const Operator kFusedTranspose;

struct TransposeAttributes {
  std::vector<int64_t> perm, starts, ends;  // of one length

  // Throw Error where an attribute is none of the operator's.
  static TransposeAttributes Parse(const NodeInfo& info);
  static TransposeAttributes Parse(const ShapeContext& context);
};

// An axis of y: its length, and the bytes between neighbours along it in x and in y.
struct TransposeAxis {
  int64_t length, from, to;
};

struct TransposeShape {
  Shape output;
  // Of y, the outermost first, as few as possible: those that are neighbours in both tensors are one, and none has a
  // length of 1.
  std::vector<TransposeAxis> axes;
  int64_t offset;  // bytes of x before the window
  int64_t element;  // bytes that stay together: of an element or, where FoldRun finds that, of several

  int64_t count() const;  // of elements

  // Makes the last axis a part of the elements where it is one of x too and its bytes are a power of two up to 16 that
  // divides `alignment` and where each element lies.
  void FoldRun(int64_t alignment);
};

// Throws Error where the input does not fit the attributes.
TransposeShape FitTranspose(const TransposeAttributes& attributes, const Shape& input, int64_t element);
// Throws Error for a dtype that the operator lacks; bytes of an element.
int64_t CheckTransposeType(ort::ElementType type);

// The whole CUDA C++ of one variant of a kernel and its launch, for tests as well as for launches.
struct TransposeConfig {
  int threads;
  bool is_tiled;  // through shared memory: two axes are the innermost, one of x and one of y
  int unit;  // bytes of what stays together
  int read, write;  // units of an access; of rows, `write` that are read one by one
  int axes;  // outside of a tile; of rows, all
  bool wide;  // of rows: indices have 64 bits
  int64_t blocks;
  unsigned shared_bytes;
  std::vector<uint64_t> arguments;  // the first two are the pointers
};

// `alignment`: what every address is a multiple of, in bytes; a power of two up to 16.
TransposeConfig ConfigureTranspose(TransposeShape shape, const DeviceFacts& gpu, int alignment);
std::string TransposeSource(const TransposeConfig& config);
const char* TransposeName(const TransposeConfig& config);  // of the kernel in it

// The kernel, ready to launch: its addresses are those of x's window and of y.
cuda::PackedKernel LoadTranspose(const TransposeShape& shape, const DeviceFacts& device, int alignment);

std::unique_ptr<Kernel> CreateCpuTranspose(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaTranspose(const NodeInfo& info);

}  // namespace ortplugin
