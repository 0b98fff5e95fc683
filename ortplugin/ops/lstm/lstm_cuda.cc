// FusedLSTM on the GPU: which variant of lstm.cu a node gets, and the launch.

#include <algorithm>
#include <sstream>

#include "ortplugin/ops/lstm/lstm.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kSequences = 8;  // of a block on tensor cores: SEQUENCES in lstm.cu
constexpr int64_t kMostOnTensorCores = 128, kMostInTf32 = 96;  // units, whose R a block's registers hold
constexpr int64_t kFloatsOfUnit = 3;  // of shared memory, without tensor cores

}  // namespace

LstmConfig ConfigureLstm(const LstmAttributes& attributes, const DeviceFacts& gpu, bool is_usual) {
  const int64_t hidden = attributes.hidden;
  const bool is_float = attributes.dtype == DType::kFloat;
  const bool has_tiles = hidden % 16 == 0 && hidden <= (is_float ? kMostInTf32 : kMostOnTensorCores) &&
    (!is_float || attributes.allow_tf32.value_or(false));
  if (has_tiles && is_usual && gpu.has_mma_m16n8k16()) return {true, int(4 * hidden), kSequences};
  const int64_t most = cuda::kStaticSharedBytes / (kFloatsOfUnit * int64_t(sizeof(float)));
  if (hidden > most) Fail("the attribute 'hidden_size' is ", hidden, ", but on a GPU must be at most ", most);
  return {false, int(std::min<int64_t>(512, 32 * hidden)), 1};
}

std::string LstmSource(const LstmAttributes& attributes, const LstmConfig& config) {
  std::ostringstream text;
  text << kCommonSource << kCopySource << "\ntypedef " << StorageType(attributes.dtype) << " storage_t;\n"
       << Defines({{"HIDDEN", attributes.hidden}, {"DIRECTIONS", attributes.directions()},
            {"REVERSE", attributes.is_reverse(0)}, {"THREADS", config.threads}, {"USES_MMA", config.uses_mma}});
  if (config.uses_mma) {
    const DType dtype = attributes.dtype;
    const char* const type = dtype == DType::kFloat16 ? "f16" : dtype == DType::kFloat ? "tf32" : "bf16";
    text << "#define MMA_TYPE \"" << type << (dtype == DType::kFloat ? "\"\n#define MMA_K \"8" : "") << "\"\n"
         << kMmaSource;
  }
  text << kLstmSource;
  return text.str();
}

namespace {

// lstm.cu's Arguments.
struct Arguments {
  const void *g, *r, *h0, *c0;
  void *y, *y_h, *y_c;
  int32_t steps;
  int32_t batch, inner;
};

struct LstmPlan {
  LstmConfig config;
  cuda::Function kernel;
};

class CudaLstm : public Kernel {
 public:
  explicit CudaLstm(const NodeInfo& info)
    : attributes_(LstmAttributes::Parse(info)),
      device_(cuda::Device(info.device())),
      constant_weights_(info.constant_input(1).has_value()) {
    // No shape is needed: errors come with the session, and runs find the kernel there, in one that allows TF32.
    Make({true, attributes_.follows_session()});
  }

  void Compute(Run& run) const override {
    const LstmRun lstm = PrepareLstm(attributes_, run, false);
    const int64_t steps = lstm.shape.steps, batch = lstm.shape.batch;
    if (batch == 0) return;
    uintptr_t addresses = 0;
    for (const void* tensor : {lstm.g, lstm.r, lstm.h0, lstm.c0}) addresses |= reinterpret_cast<uintptr_t>(tensor);
    for (const void* tensor : {lstm.y, lstm.y_h, lstm.y_c}) addresses |= reinterpret_cast<uintptr_t>(tensor);
    const Variant variant{addresses % 16 == 0, attributes_.follows_session() && run.allows_tf32()};
    const cuda::Stream stream = run.stream();
    std::shared_ptr<const LstmPlan> plan = plans_.Find({}, variant);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Make(variant);
    }
    const int64_t blocks = DivideUp(batch, plan->config.sequences) * attributes_.directions();
    constexpr int64_t kMost = (int64_t{1} << 31) - 1;
    if (blocks > kMost) Fail("the output takes ", blocks, " blocks, more than a launch has");
    if (std::max(steps, batch) > kMost) Fail("there are ", steps, " steps of ", batch, " sequences, more than ", kMost);
    Arguments arguments{lstm.g, lstm.r, lstm.h0, lstm.c0, lstm.y, lstm.y_h, lstm.y_c, int32_t(steps), int32_t(batch),
      int32_t(lstm.shape.inner)};
    void* parameters[] = {&arguments};
    const cuda::LaunchShape launch{blocks, plan->config.threads};
    cuda::Launch(device_, plan->kernel, launch, stream, parameters);
  }

 private:
  using Variant = std::pair<bool, bool>;  // whether all tensors are aligned; whether the session allows TF32

  std::shared_ptr<const LstmPlan> Make(const Variant& variant) const {
    LstmAttributes attributes = attributes_;
    if (attributes.follows_session()) attributes.allow_tf32 = variant.second;
    const LstmConfig config = ConfigureLstm(attributes, device_, variant.first && constant_weights_);
    const std::string source = LstmSource(attributes, config);
    return plans_.Keep(
      {}, variant, std::make_unique<LstmPlan>(LstmPlan{config, cuda::Load(device_, source, "lstm", cuda::Warn)}));
  }

  LstmAttributes attributes_;
  const DeviceFacts& device_;
  bool constant_weights_;
  mutable PlanCache<LstmPlan, Variant> plans_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaLstm(const NodeInfo& info) { return std::make_unique<CudaLstm>(info); }

}  // namespace ortplugin
