// FusedConv on the CPU, as docs/operators.md says: ONNX Runtime's own Conv, then the rest of the program, in place
// where a result has its dtype. A convolution of doubles is a MatMul of the weights with the pixels under each tap of
// the kernel.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "ortplugin/ops/conv/conv.h"
#include "ortplugin/ops/conv/cpu/fused_activation.h"
#include "ortplugin/ops/conv/cpu/layout.h"
#include "ortplugin/ops/conv/cpu/nchwc_conv.h"
#include "ortplugin/runtime/ort/standard_operator.h"
#include "ortplugin/runtime/program/program_sweep.h"

namespace ortplugin {
namespace {

constexpr int kOpset = 11;  // since which Conv and MatMul are what they are

// The number of spatial dimensions, 0 where the node does not say it.
size_t SpatialOf(const CheckedConvNode& node) {
  for (size_t i = 0; i < kConvInputs; ++i)
    if (node.inputs[i].shape.size() > 2) return node.inputs[i].shape.size() - 2;
  return node.attributes.spatial();
}

// Whether the shapes of this run let Conv take what their ranks promised.
bool Fits(const FusedActivation& taken, const Contraction& shape, const Shapes& inputs) {
  const auto shape_of = [&](size_t parameter) { return inputs[parameter - 1 + kConvInputs]; };
  if (taken.sum && shape_of(*taken.sum) != shape.result()) return false;
  return !taken.bias || IsPerChannel(shape_of(*taken.bias), shape.windows.size(), shape.channels_last, shape.filters);
}

// Whether a convolution is the GEMM of X as it lies, a matrix [pixels, C], and a matrix of the weights.
bool IsGemm(const Contraction& shape) {
  return shape.channels_last && !shape.x_channels_first && shape.groups == 1 &&
    std::all_of(shape.windows.begin(), shape.windows.end(),
      [](const Window& window) { return window.kernel == 1 && window.pad_begin == 0 && window.pad_end == 0; });
}

// Each image is a MatMul of the weights with the pixels under each tap, in double.
void MultiplyUnfolded(Run& run, const HostScratch& scratch, const StandardOperator& matmul, const Contraction& shape,
  const double* x, const void* w, double* y) {
  const int64_t size = ElementCount(shape.x_first()) / shape.batch;
  const int64_t pixels = ElementCount(shape.result_first()) / shape.batch / shape.filters;
  const int64_t depth = shape.channels / shape.groups * ElementCount(shape.kernel());
  const HostScratch::Buffer columns =
    scratch.Take(size_t(ElementCount({shape.groups, depth, pixels})) * sizeof(double));
  for (int64_t n = 0; n < shape.batch; ++n) {
    Unfold(run, shape, x + n * size, static_cast<double*>(columns.get()));
    matmul.Run(run,
      {{w, ort::kDouble, {shape.groups, shape.filters / shape.groups, depth}},
        {columns.get(), ort::kDouble, {shape.groups, depth, pixels}}},
      {{y + n * shape.filters * pixels, ort::kDouble, {shape.groups, shape.filters / shape.groups, pixels}}});
  }
}

// The program on the convolution's value and the node's operands.
void Apply(Run& run, const Program& program, const ProgramSweep::Input& value, const Axes& axes, int64_t count,
  const std::vector<Tensor>& inputs, const std::vector<void*>& outputs) {
  std::vector<ProgramSweep::Input> parameters{value};
  for (size_t i = kConvInputs; i < inputs.size(); ++i) parameters.push_back({inputs[i].data, *FromOrt(inputs[i].type)});
  ProgramSweep(program, axes, count, parameters, outputs).Run(run);
}

class CpuConv : public Kernel {
 public:
  explicit CpuConv(const NodeInfo& info)
    : node_(info, ProgramText(info, 0, kConvInputs)),
      dtype_(ValueType(*node_.program)),
      wide_(dtype_ == DType::kDouble ? DType::kDouble : DType::kFloat),
      kept_(info),
      scratch_(info) {
    if (wide_ == DType::kDouble || node_.attributes.channels_last)
      matmul_.emplace(info, "MatMul", "", kOpset, Types(), std::vector<StandardOperator::Attribute>{}, 2, 1);
    if (wide_ == DType::kFloat) {
      const size_t spatial = SpatialOf(node_);
      const Shape pads(2 * spatial, 0);
      Convolution(pads, nullptr);
      // Of 16-bit floats and channels last, a residual would have to be converted as a whole.
      const bool takes_sum = dtype_ == wide_ && !node_.attributes.channels_last;
      try {
        taken_ = Take(spatial, takes_sum, true);
        Convolution(pads, &*taken_);
      } catch (const Error&) {  // an ONNX Runtime without its contributed operators
        taken_ = Take(spatial, false, false);
      }
      if (!taken_->bias && !taken_->sum && taken_->activation.empty()) taken_.reset();
    }
    if (const std::optional<Tensor> w = info.constant_input(1)) {
      HostOperand weights(nullptr, scratch_, dtype_, w->data, w->shape, node_.attributes.channels_last);
      if (weights.data() != w->data) weights_.emplace(std::move(weights));
      const Shape first = node_.attributes.channels_last ? ChannelsFirst(w->shape) : w->shape;
      if (wide_ == DType::kFloat && NchwcConv::Takes(node_.attributes, first)) {
        blocked_taken_ = Take(first.size() - 2, false, true);
        blocked_.emplace(info, node_.attributes, first, *blocked_taken_);
      }
    }
  }

  void Compute(Run& run) const override {
    const auto [inputs, shapes] = ReadInputs(*node_.program, kConvInputs, run);
    const Contraction shape = FitConv(node_.attributes, shapes[0], shapes[1]);
    const Shape full = shape.result();
    const Axes axes = EpilogueAxes(*node_.program, kConvInputs, full, shapes);
    std::vector<void*> outputs;
    for (const ValueId result : node_.program->results())
      outputs.push_back(run.output(outputs.size(), full, SizeOf(node_.program->value(result).dtype)));
    const int64_t count = ElementCount(full);
    if (count == 0) return;

    if (ElementCount(shape.x()) == 0) return Pad(run, axes, count, inputs, outputs);
    const bool in_blocks =
      blocked_ && NchwcConv::Pays(shape) && Fits(*blocked_taken_, shape, shapes) && blocked_->IsHere(run, scratch_);
    const bool is_gemm = !in_blocks && IsGemm(shape);
    const FusedActivation* taken = nullptr;
    if (in_blocks) taken = &*blocked_taken_;
    if (!in_blocks && !is_gemm && taken_ && Fits(*taken_, shape, shapes)) taken = &*taken_;
    const Program& program = taken ? taken->rest : *node_.program;
    const std::optional<size_t> place = ValueResult(program, wide_);
    HostScratch::Buffer buffer(nullptr, {&scratch_});
    if (!place) buffer = scratch_.Take(size_t(count) * SizeOf(wide_));
    void* value = place ? outputs[*place] : buffer.get();
    if (in_blocks) {
      ConvolveBlocks(run, shape, inputs, *taken, static_cast<float*>(value));
    } else if (is_gemm) {
      MultiplyPixels(run, shape, inputs, value);
    } else {
      Convolve(run, shape, inputs, taken, value);
    }
    if (place && program.statements().empty() && outputs.size() == 1) return;
    Apply(run, program, {value, wide_}, axes, count, inputs, outputs);
  }

 private:
  std::vector<StandardOperator::TypeConstraint> Types() const { return {{"T", ToOrt(wide_)}}; }

  // A run whose X has no elements: there is nothing but padding.
  void Pad(Run& run, const Axes& axes, int64_t count, const std::vector<Tensor>& inputs,
    const std::vector<void*>& outputs) const {
    const size_t bytes = size_t(count) * SizeOf(wide_);
    const HostScratch::Buffer value = scratch_.Take(bytes);
    std::memset(value.get(), 0, bytes);
    Apply(run, *node_.program, {value.get(), wide_}, axes, count, inputs, outputs);
  }

  FusedActivation Take(size_t spatial, bool sum, bool activation) const {
    const TensorTypes operands(node_.inputs.begin() + kConvInputs, node_.inputs.end());
    return TakeFusedActivation(*node_.program, operands, spatial, node_.attributes.channels_last, sum, activation);
  }

  // ORT's Conv with this padding and what it takes of the program, made once for each.
  const StandardOperator& Convolution(const Shape& pads, const FusedActivation* taken) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<StandardOperator>& conv = convolutions_[{pads, taken != nullptr}];
    if (conv == nullptr) {
      const ConvAttributes& node_attributes = node_.attributes;
      std::vector<StandardOperator::Attribute> attributes{{"group", node_attributes.groups},
        {"kernel_shape", node_attributes.kernel_shape}, {"strides", node_attributes.strides},
        {"dilations", node_attributes.dilations}, {"pads", pads}};
      const bool is_plain = taken == nullptr || (!taken->sum && taken->activation.empty());
      if (!is_plain && !taken->activation.empty()) {
        attributes.push_back({"activation", taken->activation});
        attributes.push_back({"activation_params", taken->activation_params});
      }
      const size_t inputs = taken == nullptr ? 2 : taken->sum ? 4 : taken->bias ? 3 : 2;
      conv = std::make_unique<StandardOperator>(kept_.info(), is_plain ? "Conv" : "FusedConv",
        is_plain ? "" : "com.microsoft", is_plain ? kOpset : 1, Types(), attributes, inputs, 1);
    }
    return *conv;
  }

  // The convolution's value, in the node's layout.
  void Convolve(Run& run, const Contraction& shape, const std::vector<Tensor>& inputs, const FusedActivation* taken,
    void* value) const {
    const int64_t count = ElementCount(shape.result());
    const bool last = shape.channels_last;
    const HostOperand data(
      &run, scratch_, dtype_, inputs[0].data, shape.x(), shape.channels_last && !shape.x_channels_first);
    std::optional<HostOperand> weights;
    if (!weights_) weights.emplace(&run, scratch_, dtype_, inputs[1].data, shape.w(), last);
    const void* filters = weights_ ? weights_->data() : weights->data();
    const int64_t pixels = count / shape.batch / shape.filters;
    HostScratch::Buffer first(nullptr, {&scratch_});
    if (last && shape.filters > 1 && pixels > 1) first = scratch_.Take(size_t(count) * SizeOf(wide_));
    void* made = first != nullptr ? first.get() : value;
    if (wide_ == DType::kDouble) {
      MultiplyUnfolded(
        run, scratch_, *matmul_, shape, static_cast<const double*>(data.data()), filters, static_cast<double*>(made));
    } else {
      std::vector<Tensor> given{{data.data(), ort::kFloat, shape.x_first()}, {filters, ort::kFloat, shape.w_first()}};
      const std::optional<HostOperand> bias = Bias(run, inputs, taken);
      if (bias) given.push_back({bias->data(), ort::kFloat, {shape.filters}});
      if (taken != nullptr && taken->sum) {
        given.resize(3, {nullptr, ort::kUndefined, {}});
        given.push_back(inputs[*taken->sum - 1 + kConvInputs]);
      }
      Convolution(shape.pads(), taken).Run(run, given, {{made, ort::kFloat, shape.result_first()}});
    }
    if (first != nullptr) Transpose(&run, made, value, shape.batch, shape.filters, pixels, SizeOf(wide_));
  }

  // The same in blocks of channels.
  void ConvolveBlocks(Run& run, const Contraction& shape, const std::vector<Tensor>& inputs,
    const FusedActivation& taken, float* value) const {
    const HostOperand data(&run, scratch_, dtype_, inputs[0].data, shape.x(), false);
    const std::optional<HostOperand> bias = Bias(run, inputs, &taken);
    const void* weights = weights_ ? weights_->data() : inputs[1].data;
    blocked_->Run(run, scratch_, shape, static_cast<const float*>(data.data()), static_cast<const float*>(weights),
      bias ? static_cast<const float*>(bias->data()) : nullptr, value);
  }

  // The bias that Conv takes along, as float.
  std::optional<HostOperand> Bias(Run& run, const std::vector<Tensor>& inputs, const FusedActivation* taken) const {
    if (taken == nullptr || !taken->bias) return std::nullopt;
    const Tensor& operand = inputs[*taken->bias - 1 + kConvInputs];
    return HostOperand(&run, scratch_, dtype_, operand.data, operand.shape, false);
  }

  void MultiplyPixels(Run& run, const Contraction& shape, const std::vector<Tensor>& inputs, void* value) const {
    const int64_t pixels = ElementCount(shape.result()) / shape.filters, channels = shape.channels;
    HostScratch::Buffer kept(nullptr, {&scratch_});
    const void* x = inputs[0].data;
    const Shape strides = shape.strides();
    if (std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride > 1; })) {
      kept = scratch_.Take(size_t(pixels * channels) * SizeOf(dtype_));
      KeepPixels(run, shape, size_t(channels) * SizeOf(dtype_), x, kept.get());
      x = kept.get();
    }
    const HostOperand data(&run, scratch_, dtype_, x, {pixels, channels}, false);
    std::optional<HostOperand> weights;
    if (!weights_) weights.emplace(&run, scratch_, dtype_, inputs[1].data, shape.w(), false);
    // The weights are [M, C] and multiply from the right.
    const HostScratch::Buffer transposed_weights = scratch_.Take(size_t(shape.filters * channels) * SizeOf(wide_));
    Transpose(&run, weights_ ? weights_->data() : weights->data(), transposed_weights.get(), 1, shape.filters, channels,
      SizeOf(wide_));
    matmul_->Run(run,
      {{data.data(), ToOrt(wide_), {pixels, channels}},
        {transposed_weights.get(), ToOrt(wide_), {channels, shape.filters}}},
      {{value, ToOrt(wide_), {pixels, shape.filters}}});
  }

  CheckedConvNode node_;
  DType dtype_, wide_;  // of X and W, and of what is computed
  KeptNodeInfo kept_;
  HostScratch scratch_;
  std::optional<HostOperand> weights_;  // constant ones that are not used as they lie
  std::optional<FusedActivation> taken_;  // by Conv, where a run's shapes fit
  std::optional<NchwcConv> blocked_;
  std::optional<FusedActivation> blocked_taken_;
  std::optional<StandardOperator> matmul_;
  mutable std::mutex mutex_;
  // By padding, and whether they take a part of the program.
  mutable std::map<std::pair<Shape, bool>, std::unique_ptr<StandardOperator>> convolutions_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuConv(const NodeInfo& info) { return std::make_unique<CpuConv>(info); }

}  // namespace ortplugin
