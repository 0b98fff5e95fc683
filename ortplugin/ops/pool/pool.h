// FusedPool: maxima and averages over windows or whole images. FusedResize: images of another size. Their
// specifications are in ortplugin/ops/pool/__init__.py and resize.py.
//
// Both see a tensor as [outer, spatial.., inner]: N and C with channels last, N C and 1 with channels first. There are
// always three spatial axes; leading ones have one element where the tensor has fewer.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

extern const Operator kFusedPool;
extern const Operator kFusedResize;

constexpr size_t kMostSpatial = 3;

// ---- FusedPool

struct PoolAttributes {
  bool is_max = false, is_global = false;
  bool channels_last = false;
  std::string auto_pad;
  bool ceil_mode = false, count_include_pad = false;
  std::vector<int64_t> kernel, strides, dilations, pads;  // defaults filled in; empty where global

  static PoolAttributes Parse(const NodeInfo& info);
  static PoolAttributes Parse(const ShapeContext& context);
};

// The windows along one spatial axis. For an axis that the tensor lacks: one window of one element.
struct PoolWindow {
  int64_t size = 1, out = 1, kernel = 1, stride = 1, dilation = 1, pad_begin = 0, pad_end = 0;

  // The elements [first, last) of the kernel that window number `o` has inside the tensor. Whoever goes over a window
  // goes over these: a model may ask for a kernel of 2^31 - 1 elements on an image of ten.
  struct Taps {
    int64_t first, last;
  };
  Taps Inside(int64_t o) const {
    const int64_t start = o * stride - pad_begin, first = Before(start, 0);
    return {first, std::max(first, Before(start, size))};
  }
  // Those that any window has inside.
  Taps InsideAny() const { return {Inside(out - 1).first, Inside(0).last}; }

  // The elements that count in an average's window number `o`: those inside the tensor, or inside its padding.
  int64_t Count(int64_t o, bool with_padding) const {
    const Taps inside = Inside(o);
    return with_padding ? Before(o * stride - pad_begin, size + pad_end) : inside.last - inside.first;
  }

 private:
  // How many elements of the kernel lie before `at`, in a window that starts at `start`.
  int64_t Before(int64_t start, int64_t at) const {
    return at <= start ? 0 : std::min(kernel, (at - start - 1) / dilation + 1);
  }
};

struct PoolShape {
  Shape output;
  int64_t outer, inner;
  std::array<PoolWindow, kMostSpatial> windows;
  bool is_global;  // every image is one window without padding, whatever the attributes say

  int64_t pixels() const { return windows[0].size * windows[1].size * windows[2].size; }  // of an image
  int64_t out_pixels() const { return windows[0].out * windows[1].out * windows[2].out; }
};

// Throw Error where the input does not fit the attributes.
PoolShape FitPool(const PoolAttributes& attributes, const Shape& input);
void CheckPoolType(const PoolAttributes& attributes, ort::ElementType type);

// The whole CUDA C++ of one variant of a kernel, for tests as well as for launches.
struct PoolConfig {
  int vector;  // elements of an access
  int threads;  // of a block
  bool wide;  // indices have 64 bits
  bool padded;  // some windows reach beyond the image
  bool along;  // of a global kind: vectors lie along the pixels, for inner is 1
  int group;  // likewise: threads that share an image, or some channels of one
  int lanes;  // vectors of channels of a group
  int cluster;  // blocks that share the pixels
  int items;  // loads of a thread under way at once
  int64_t blocks;
};
// `alignment`: what every address is a multiple of, in bytes; a power of two.
// As FitPool, but an image without pixels is whole as well: a window of it has no element that a thread could read.
PoolShape FitCudaPool(const PoolAttributes& attributes, const Shape& input);
PoolConfig ConfigurePool(const PoolShape& shape, DType dtype, const DeviceFacts& gpu, int alignment);
std::string PoolSource(const PoolAttributes& attributes, const PoolShape& shape, DType dtype, const PoolConfig& config);
std::vector<uint64_t> PoolArguments(const PoolShape& shape, const PoolConfig& config);

std::unique_ptr<Kernel> CreateCpuPool(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaPool(const NodeInfo& info);

// ---- FusedResize

enum class Coordinates { kHalfPixel, kPyTorchHalfPixel, kAsymmetric, kAlignCorners };
enum class NearestMode { kRoundPreferFloor, kRoundPreferCeil, kFloor, kCeil };

struct ResizeAttributes {
  bool is_linear = false;
  bool channels_last = false;
  Coordinates coordinates = Coordinates::kHalfPixel;
  NearestMode nearest = NearestMode::kRoundPreferFloor;
  std::vector<int64_t> sizes;  // one of the two is empty
  std::vector<float> scales;

  size_t spatial() const { return sizes.size() + scales.size(); }
  static ResizeAttributes Parse(const NodeInfo& info);
  static ResizeAttributes Parse(const ShapeContext& context);
};

// One spatial axis. An element of the output lies at (o + shift) * factor / divisor - shift of the input, in float and
// in this order; factor is 1 unless corners are aligned. For an axis that the tensor lacks that is 0.
struct ResizeAxis {
  int64_t size = 1, out = 1;
  float shift = 0, factor = 1, divisor = 1;
  bool is_constant = true;  // everything lies at 0

  float At(int64_t o) const;
};

struct ResizeShape {
  Shape output;
  int64_t outer, inner;
  std::array<ResizeAxis, kMostSpatial> axes;

  int64_t pixels() const { return axes[0].size * axes[1].size * axes[2].size; }
  int64_t out_pixels() const { return axes[0].out * axes[1].out * axes[2].out; }
};

ResizeShape FitResize(const ResizeAttributes& attributes, const Shape& input);
void CheckResizeType(const ResizeAttributes& attributes, ort::ElementType type);
// A place of float32 that ought to lie in the middle of two elements may be a little off, by its scale's rounding: up
// to 1e-6 beside the middle counts as the middle, which is ONNX Runtime's rule and that of every form of this operator.
int64_t NearestOf(NearestMode mode, float at, int64_t size);

struct ResizeConfig {
  int vector;  // elements of an access
  int threads;  // of a block
  bool wide;  // indices have 64 bits
  bool along;  // vectors lie along the pixels of a row, for inner is 1
  int images;  // that a thread takes one after the other, where along
  int64_t count, blocks;  // count: of threads
};
ResizeConfig ConfigureResize(
  const ResizeAttributes& attributes, const ResizeShape& shape, DType dtype, const DeviceFacts& gpu, int alignment);
std::string ResizeSource(
  const ResizeAttributes& attributes, const ResizeShape& shape, DType dtype, const ResizeConfig& config);
std::vector<uint64_t> ResizeArguments(const ResizeShape& shape, const ResizeConfig& config);

std::unique_ptr<Kernel> CreateCpuResize(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaResize(const NodeInfo& info);

}  // namespace ortplugin
