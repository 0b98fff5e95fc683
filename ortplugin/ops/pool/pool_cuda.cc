// FusedPool and FusedResize on the GPU: which variant of pool.cu or pool_resize.cu a node and its shape get, its
// source, and the launch.

#include <algorithm>
#include <cstring>
#include <sstream>
#include <tuple>

#include "ortplugin/ops/pool/pool.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kNarrow = int64_t{1} << 31;

// The most elements, a power of two, of an access of at most 16 bytes that divides `along` and the addresses.
int VectorOf(DType dtype, int64_t along, int alignment) {
  auto vector = int64_t(std::min(16, alignment)) / int64_t(SizeOf(dtype));
  while (vector > 1 && along % vector != 0) vector /= 2;
  return int(std::max<int64_t>(1, vector));
}

// What every address is a multiple of, in bytes, up to 16.
int AlignmentOf(const void* x, const void* y) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y) | 16;
  return int(address & (~address + 1));
}

void CheckSize(int64_t reach, size_t axis) {
  if (reach >= kNarrow)
    Fail("spatial axis ", axis, " reaches ", reach, " elements, more than the 2^31 - 1 that the GPU's kernel counts");
}

void DescribeTypes(std::ostream& text, DType dtype, bool is_max) {
  const bool is_byte = dtype == DType::kInt8 || dtype == DType::kUInt8;
  text << "typedef " << StorageType(dtype) << " T;\n"
       << "typedef " << (is_byte ? "int" : ComputeType(dtype)) << " compute_t;\n"
       << "typedef " << ComputeType(dtype) << " widest_t;\n";
  if (is_max && dtype == DType::kFloat16) text << "#define PAIRS \"f16x2\"\n";
  if (is_max && dtype == DType::kBFloat16) text << "#define PAIRS \"bf16x2\"\n";
}

void Push(std::vector<uint64_t>& block, const std::array<uint64_t, 2>& numbers) {
  block.insert(block.end(), numbers.begin(), numbers.end());
}

uint64_t Pair(int64_t low, int64_t high) { return uint32_t(low) | uint64_t(uint32_t(high)) << 32; }

}  // namespace

// ---- FusedPool

PoolShape FitCudaPool(const PoolAttributes& attributes, const Shape& input) {
  PoolShape shape = FitPool(attributes, input);
  if (attributes.is_global) shape.is_global = true;
  return shape;
}

PoolConfig ConfigurePool(const PoolShape& shape, DType dtype, const DeviceFacts& gpu, int alignment) {
  PoolConfig best{};
  best.threads = 256;
  best.cluster = best.lanes = best.items = 1;
  const int64_t in = shape.outer * shape.pixels() * shape.inner;
  if (!shape.is_global) {
    best.vector = shape.inner == 1 ? 1 : VectorOf(dtype, shape.inner, alignment);
    const int64_t count = shape.outer * shape.out_pixels() * shape.inner / best.vector;
    best.wide = std::max(in / best.vector, count) >= kNarrow - best.threads;
    best.blocks = DivideUp(count, best.threads);
    for (const PoolWindow& w : shape.windows)
      best.padded =
        best.padded || w.pad_begin > 0 || (w.out - 1) * w.stride - w.pad_begin + (w.kernel - 1) * w.dilation >= w.size;
    return best;
  }
  // A block has a few vectors of channels of one image, as few as give every multiprocessor work, but accesses of 64
  // bytes side by side. Where its threads had more loads than can be under way, the blocks of a cluster share the
  // pixels.
  constexpr int64_t kItems = 8;
  best.along = shape.inner == 1;
  const int64_t pixels = shape.pixels();
  best.vector = VectorOf(dtype, best.along ? pixels : shape.inner, alignment);
  best.wide = pixels * shape.inner / best.vector >= kNarrow - 4096 * kItems;
  const int64_t vectors = shape.inner / (best.along ? 1 : best.vector);
  const int64_t steps = pixels / (best.along ? best.vector : 1);
  const int64_t least = std::max<int64_t>(1, 64 / (best.vector * int64_t(SizeOf(dtype))));
  int64_t lanes = std::min<int64_t>(32, PowerUp(vectors));
  while (lanes > least && shape.outer * DivideUp(vectors, lanes) < gpu.multiprocessors) lanes /= 2;
  best.lanes = int(lanes);
  int64_t group = std::clamp<int64_t>(PowerUp(DivideUp(steps, 4)) * lanes, best.along ? 8 : 32, best.threads);
  const int64_t chunks = DivideUp(vectors, lanes);
  if (!best.along) best.threads = int(group);
  const auto loads = [&] { return DivideUp(steps * lanes, group * best.cluster); };
  while (gpu.has_clusters() && best.cluster < 8 && group == best.threads && loads() > kItems &&
    shape.outer * chunks * best.cluster < gpu.multiprocessors)
    best.cluster *= 2;
  if (group == best.threads && loads() > 2 * kItems) group = best.threads = 2 * best.threads;
  best.group = int(group);
  best.items = int(std::min(kItems, PowerUp(loads())));
  best.blocks = DivideUp(shape.outer * chunks, best.threads / group);
  best.blocks *= best.cluster;
  return best;
}

std::string PoolSource(
  const PoolAttributes& attributes, const PoolShape& shape, DType dtype, const PoolConfig& config) {
  std::ostringstream text;
  text << kCommonSource << "\n";
  DescribeTypes(text, dtype, attributes.is_max);
  text << "typedef unsigned " << (config.wide ? "long long" : "int") << " index_t;\n"
       << Defines({{"IS_MAX", attributes.is_max}, {"VECTOR", config.vector}, {"THREADS", config.threads},
            {"WINDOWS", !shape.is_global}});
  if (shape.is_global) {
    text << Defines({{"ALONG", config.along}, {"GROUP", config.group}, {"LANES", config.lanes},
      {"CLUSTER", config.cluster}, {"ITEMS", config.items}});
  } else {
    int64_t taps = 1;
    bool is_dilated = false;
    for (size_t axis = 0; axis < kMostSpatial; ++axis) {
      const PoolWindow& w = shape.windows[axis];
      const char name = "DHW"[axis];
      text << "#define KERNEL_" << name << " " << w.kernel << "\n#define STRIDE_" << name << " " << w.stride
           << "\n#define DILATION_" << name << " " << w.dilation << "\n#define BEGIN_" << name << " " << w.pad_begin
           << "\n";
      taps = std::min(taps, kNarrow) * w.kernel;
      is_dilated = is_dilated || w.dilation > 1;
    }
    constexpr int64_t kMostUnrolled = 64;
    text << Defines({{"UNROLL", taps <= kMostUnrolled}, {"PADDED", config.padded}, {"DILATED", is_dilated},
      {"COUNT_PADDING", attributes.count_include_pad}});
  }
  text << "\n" << kPoolSource;
  return text.str();
}

std::vector<uint64_t> PoolArguments(const PoolShape& shape, const PoolConfig& config) {
  std::vector<uint64_t> block(2);  // the pointers
  const auto add = [&](int64_t number) { block.push_back(uint64_t(number)); };
  if (shape.is_global) {
    const int64_t inner = shape.inner / (config.along ? 1 : config.vector);
    const double share = shape.pixels() == 0 ? 0 : 1.0 / double(shape.pixels());
    add(shape.outer);
    add(shape.pixels() / (config.along ? config.vector : 1));
    add(inner);
    add(DivideUp(inner, config.lanes));
    uint64_t bits;
    std::memcpy(&bits, &share, sizeof(bits));
    block.push_back(bits);
    return block;
  }
  const int64_t inner = shape.inner / config.vector;
  add(shape.outer * shape.out_pixels() * inner);
  add(inner);
  for (const PoolWindow& w : shape.windows) add(w.size);
  for (const PoolWindow& w : shape.windows) add(w.out);
  for (const PoolWindow& w : shape.windows) add(w.pad_end);
  Push(block, MakeDivider(uint64_t(inner), config.wide));
  for (const size_t axis : {2, 1, 0}) Push(block, MakeDivider(uint64_t(shape.windows[axis].out), config.wide));
  return block;
}

// ---- FusedResize

ResizeConfig ConfigureResize(
  const ResizeAttributes& attributes, const ResizeShape& shape, DType dtype, const DeviceFacts& gpu, int alignment) {
  ResizeConfig best{};
  best.threads = 256;
  best.along = shape.inner == 1;
  best.images = 1;
  best.vector = VectorOf(dtype, best.along ? shape.axes[2].out : shape.inner, alignment);
  // Of linear arithmetic a thread has as much as its registers hold.
  if (best.along && attributes.is_linear) best.vector = std::min(best.vector, 4);
  int64_t count = shape.outer * shape.out_pixels() * shape.inner / best.vector;
  // Where pixels lie is worked out once for several images, as long as every multiprocessor has threads enough.
  while (best.along && best.images < 8 && best.images < shape.outer &&
    count / (2 * best.images) >= int64_t{gpu.multiprocessors} * 1024)
    best.images *= 2;
  if (best.along) count = DivideUp(shape.outer, best.images) * shape.out_pixels() / best.vector;
  best.count = count;
  best.blocks = DivideUp(count, best.threads);
  const int64_t image = std::max(shape.pixels(), shape.out_pixels()) * shape.inner;
  best.wide = std::max(image, count) >= kNarrow - best.threads;
  return best;
}

std::string ResizeSource(
  const ResizeAttributes& attributes, const ResizeShape& shape, DType dtype, const ResizeConfig& config) {
  // Whether the element after floor(at) is nearer, of at - floor(at): NearestOf in pool.cc.
  constexpr const char* kIsNext[] = {"part - 0.5f > 1e-6f", "part - 0.5f >= -1e-6f", "false", "part > 0.0f"};
  int axes = 1;
  for (size_t axis = 0; axis < 2; ++axis)
    if (axes == 1 && (shape.axes[axis].size > 1 || shape.axes[axis].out > 1)) axes = 3 - int(axis);
  std::ostringstream text;
  text << kCommonSource << "\n";
  DescribeTypes(text, dtype, false);
  text << "typedef unsigned " << (config.wide ? "long long" : "int") << " index_t;\n"
       << Defines({{"VECTOR", config.vector}, {"ALONG", config.along}, {"IMAGES", config.images},
            {"IS_LINEAR", attributes.is_linear}})
       << "#define SHIFT " << (shape.axes[2].shift == 0 ? "0.0f" : "0.5f") << "\n#define IS_NEXT(part) ("
       << kIsNext[size_t(attributes.nearest)] << ")\n"
       << Defines({{"AXES", axes}, {"THREADS", config.threads}}) << "\n"
       << kResizeSource;
  return text.str();
}

std::vector<uint64_t> ResizeArguments(const ResizeShape& shape, const ResizeConfig& config) {
  std::vector<uint64_t> block(2);  // the pointers
  const auto add = [&](int64_t number) { block.push_back(uint64_t(number)); };
  const int64_t inner = config.along ? 1 : shape.inner / config.vector;
  add(config.count);
  add(shape.outer);
  add(inner);
  for (const ResizeAxis& axis : shape.axes) {
    const float factor = axis.is_constant ? 0 : axis.factor, divisor = axis.is_constant ? 1 : axis.divisor;
    uint32_t bits[2];
    std::memcpy(&bits[0], &factor, 4);
    std::memcpy(&bits[1], &divisor, 4);
    block.push_back(Pair(bits[0], bits[1]));
    block.push_back(Pair(axis.size, axis.out));
  }
  Push(block, MakeDivider(uint64_t(inner), config.wide));
  Push(block, MakeDivider(uint64_t(shape.axes[2].out / (config.along ? config.vector : 1)), config.wide));
  for (const size_t axis : {1, 0}) Push(block, MakeDivider(uint64_t(shape.axes[axis].out), config.wide));
  return block;
}

// ---- kernels

namespace {

// A kernel for one input shape, ready to launch.
struct PoolPlan {
  Shape output;
  cuda::Function kernel;
  cuda::LaunchShape launch;
  std::vector<uint64_t> arguments;  // the first two are the pointers, filled in at each launch
};

struct Variant {
  ort::ElementType type;
  int alignment;
  bool operator<(const Variant& other) const {
    return std::tie(type, alignment) < std::tie(other.type, other.alignment);
  }
};

// What both operators share: X to Y, a plan for each shape, dtype and alignment.
class CudaImages : public Kernel {
 public:
  explicit CudaImages(const NodeInfo& info) : device_(cuda::Device(info.device())) {}

  void Compute(Run& run) const override {
    const Tensor input = run.input(0);
    CheckInput(input.type);
    const cuda::Stream stream = run.stream();
    // The output's address is known once its shape is. Almost always it is a multiple of 16.
    const int alignment = AlignmentOf(input.data, nullptr);
    std::shared_ptr<const PoolPlan> plan = plans_.Find({input.shape}, {input.type, alignment});
    const Shape shape = plan != nullptr ? plan->output : OutputShape(input.shape);
    void* output = run.output(0, shape);
    if (ElementCount(shape) == 0) return;
    const int both = AlignmentOf(input.data, output);
    if (both != alignment) plan = plans_.Find({input.shape}, {input.type, both});
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Make(input.shape, {input.type, both});
    }
    std::vector<uint64_t> arguments = plan->arguments;
    arguments[0] = reinterpret_cast<uintptr_t>(input.data);
    arguments[1] = reinterpret_cast<uintptr_t>(output);
    void* parameters[] = {arguments.data()};
    cuda::Launch(device_, plan->kernel, plan->launch, stream, parameters);
  }

 protected:
  virtual void CheckInput(ort::ElementType type) const = 0;
  virtual Shape OutputShape(const Shape& input) const = 0;
  struct Made {
    std::string source;
    int64_t blocks;
    int threads;
    std::vector<uint64_t> arguments;
  };
  virtual Made Prepare(const Shape& input, DType dtype, int alignment) const = 0;

  // Compiles for the shape that the model declares, so that errors come with the session and runs find the kernel
  // there.
  void Warm(const TensorType& input) const {
    if (input.type == ort::kUndefined) return;
    CheckInput(input.type);
    if (!KnownShapes({input})) return;
    if (ElementCount(OutputShape(input.shape)) > 0) Make(input.shape, {input.type, 16});
  }

  const DeviceFacts& device_;

 private:
  std::shared_ptr<const PoolPlan> Make(const Shape& input, const Variant& variant) const {
    const Made made = Prepare(input, *FromOrt(variant.type), variant.alignment);
    if (made.blocks >= kNarrow) Fail("the output takes ", made.blocks, " blocks, more than a launch has");
    auto plan = std::make_unique<PoolPlan>();
    plan->output = OutputShape(input);
    plan->arguments = made.arguments;
    plan->kernel = cuda::Load(device_, made.source, KernelName(input), cuda::Warn);
    plan->launch = {made.blocks, made.threads};
    return plans_.Keep({input}, variant, std::move(plan));
  }
  virtual const char* KernelName(const Shape& input) const = 0;

  mutable PlanCache<PoolPlan, Variant> plans_;
};

class CudaPool : public CudaImages {
 public:
  explicit CudaPool(const NodeInfo& info) : CudaImages(info), attributes_(PoolAttributes::Parse(info)) {
    Warm(info.input(0));
  }

 private:
  void CheckInput(ort::ElementType type) const override { CheckPoolType(attributes_, type); }
  Shape OutputShape(const Shape& input) const override { return FitPool(attributes_, input).output; }
  const char* KernelName(const Shape& input) const override {
    return FitCudaPool(attributes_, input).is_global ? "pool_global" : "pool";
  }
  Made Prepare(const Shape& input, DType dtype, int alignment) const override {
    PoolShape shape = FitCudaPool(attributes_, input);
    if (!shape.is_global && !attributes_.count_include_pad)
      for (PoolWindow& w : shape.windows) Trim(&w);
    // Each thread goes over a whole window.
    constexpr double kMostOfWindow = 1e9, kMostInAll = 1e13;  // seconds of one thread, minutes of all
    double taps = 1;
    for (const PoolWindow& w : shape.windows) taps *= double(w.kernel);
    if (!shape.is_global && (taps > kMostOfWindow || taps * double(ElementCount(shape.output)) > kMostInAll))
      Fail("each window has ", taps, " elements, most of them padding: more than the GPU's kernel goes over in ",
        "reasonable time; use a smaller kernel_shape");
    for (size_t axis = 0; axis < kMostSpatial; ++axis) {
      const PoolWindow& w = shape.windows[axis];
      CheckSize(w.size + w.pad_begin + w.pad_end + w.kernel * w.dilation + w.stride, axis);
    }
    const PoolConfig config = ConfigurePool(shape, dtype, device_, alignment);
    return {PoolSource(attributes_, shape, dtype, config), config.blocks, config.threads, PoolArguments(shape, config)};
  }

  // Takes what lies outside the image in every window from a kernel that is larger than the image.
  static void Trim(PoolWindow* w) {
    if (w->kernel <= w->size) return;
    const PoolWindow::Taps inside = w->InsideAny();
    w->pad_begin -= inside.first * w->dilation;
    w->kernel = std::max<int64_t>(1, inside.last - inside.first);
  }

  PoolAttributes attributes_;
};

class CudaResize : public CudaImages {
 public:
  explicit CudaResize(const NodeInfo& info) : CudaImages(info), attributes_(ResizeAttributes::Parse(info)) {
    Warm(info.input(0));
  }

 private:
  void CheckInput(ort::ElementType type) const override { CheckResizeType(attributes_, type); }
  Shape OutputShape(const Shape& input) const override { return FitResize(attributes_, input).output; }
  const char* KernelName(const Shape&) const override { return "resize"; }
  Made Prepare(const Shape& input, DType dtype, int alignment) const override {
    const ResizeShape shape = FitResize(attributes_, input);
    for (size_t axis = 0; axis < kMostSpatial; ++axis)
      CheckSize(std::max(shape.axes[axis].size, shape.axes[axis].out) + 16, axis);
    const ResizeConfig config = ConfigureResize(attributes_, shape, dtype, device_, alignment);
    return {
      ResizeSource(attributes_, shape, dtype, config), config.blocks, config.threads, ResizeArguments(shape, config)};
  }

  ResizeAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaPool(const NodeInfo& info) { return std::make_unique<CudaPool>(info); }
std::unique_ptr<Kernel> CreateCudaResize(const NodeInfo& info) { return std::make_unique<CudaResize>(info); }

}  // namespace ortplugin
