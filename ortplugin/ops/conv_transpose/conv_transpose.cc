#include "ortplugin/ops/conv_transpose/conv_transpose.h"

#include <cstring>
#include <optional>

#include "ortplugin/ops/conv/conv.h"
#include "ortplugin/ops/conv/cpu/layout.h"
#include "ortplugin/ops/conv_grad/cpu_gemm.h"
#include "ortplugin/runtime/ort/standard_operator.h"
#include "ortplugin/runtime/program/program_sweep.h"

namespace ortplugin {
namespace {

void Infer(ShapeContext& context) {
  const ConvAttributes attributes = ReadConvAttributes(context, true);
  const Program program = ParseEpilogue(ProgramText(context, 0, kConvInputs));
  const TensorTypes inputs = EpilogueInputs(program, kConvInputs, context);
  const TensorType result = InferConv(attributes, inputs[0], inputs[1]);
  InferEpilogue(program, kConvInputs, inputs, result, InferOutput(attributes, result), &context);
}

constexpr int kOpset = 11;  // since which ConvTranspose is what it is
constexpr const char* kAutoPads[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};  // by AutoPad

// ---- CPU kernel

// ONNX Runtime's own ConvTranspose, for float, or the sums of contraction.h for double, then the program, in place on
// what these have written where a result has its dtype.
class CpuConvTranspose : public Kernel {
 public:
  explicit CpuConvTranspose(const NodeInfo& info)
    : node_(info, ProgramText(info, 0, kConvInputs), true),
      dtype_(ValueType(*node_.program)),
      wide_(dtype_ == DType::kDouble ? DType::kDouble : DType::kFloat),
      scratch_(info) {
    const ConvAttributes& attributes = node_.attributes;
    if (wide_ == DType::kFloat)
      convolution_.emplace(info, "ConvTranspose", "", kOpset,
        std::vector<StandardOperator::TypeConstraint>{{"T", ort::kFloat}},
        std::vector<StandardOperator::Attribute>{{"auto_pad", std::string(kAutoPads[size_t(attributes.auto_pad)])},
          {"group", attributes.groups}, {"kernel_shape", attributes.kernel_shape}, {"strides", attributes.strides},
          {"dilations", attributes.dilations}, {"pads", attributes.pads}, {"output_padding", attributes.output_padding},
          {"output_shape", attributes.output_shape}},
        2, 1);
    if (const std::optional<Tensor> w = info.constant_input(1)) {
      HostOperand weights(nullptr, scratch_, dtype_, w->data, w->shape, attributes.channels_last);
      if (weights.data() != w->data) weights_.emplace(std::move(weights));
    }
    const std::vector<ValueId>& results = node_.program->results();
    for (size_t r = results.size(); r-- > 0;) {
      if (node_.program->value(results[r]).dtype != wide_) continue;
      const bool is_value = dtype_ == wide_ && results[r] == node_.program->parameters()[0];
      if (!place_ || is_value || results[*place_] != node_.program->parameters()[0]) place_ = r;
    }
  }

  void Compute(Run& run) const override {
    const auto [inputs, shapes] = ReadInputs(*node_.program, kConvInputs, run);
    const Contraction shape = FitConv(node_.attributes, shapes[0], shapes[1]);
    const Shape full = shape.result();
    const Axes axes = EpilogueAxes(*node_.program, kConvInputs, full, shapes);
    std::vector<void*> outputs;
    for (size_t r = 0; r < node_.program->results().size(); ++r)
      outputs.push_back(run.output(r, shape.output(), SizeOf(node_.program->result(r).dtype)));
    const int64_t count = ElementCount(full);
    if (count == 0) return;
    if (!node_.attributes.y_channels_first) return Make(run, shape, axes, inputs, shapes[1], outputs);

    std::vector<HostScratch::Buffer> made;
    std::vector<void*> results;
    for (size_t r = 0; r < outputs.size(); ++r) {
      made.push_back(scratch_.Take(size_t(count) * SizeOf(node_.program->result(r).dtype)));
      results.push_back(made.back().get());
    }
    Make(run, shape, axes, inputs, shapes[1], results);
    for (size_t r = 0; r < outputs.size(); ++r)
      Transpose(&run, results[r], outputs[r], shape.batch, count / shape.batch / shape.filters, shape.filters,
        SizeOf(node_.program->result(r).dtype));
  }

 private:
  // Every result, in the node's layout.
  void Make(Run& run, const Contraction& shape, const Axes& axes, const std::vector<Tensor>& inputs,
    const Shape& w_shape, const std::vector<void*>& outputs) const {
    const int64_t count = ElementCount(shape.result());

    HostScratch::Buffer buffer(nullptr, {&scratch_});
    if (!place_) buffer = scratch_.Take(size_t(count) * SizeOf(wide_));
    void* value = place_ ? outputs[*place_] : buffer.get();
    Convolve(run, shape, inputs, w_shape, value);
    if (place_ && node_.program->statements().empty() && outputs.size() == 1) return;  // nothing follows
    std::vector<ProgramSweep::Input> parameters{{value, wide_}};
    for (size_t i = kConvInputs; i < inputs.size(); ++i)
      parameters.push_back({inputs[i].data, *FromOrt(inputs[i].type)});
    ProgramSweep(*node_.program, axes, count, parameters, outputs).Run(run);
  }

  // The transposed convolution's value, in the node's layout.
  void Convolve(
    Run& run, const Contraction& shape, const std::vector<Tensor>& inputs, const Shape& w_shape, void* value) const {
    const int64_t count = ElementCount(shape.result());
    if (ElementCount(shape.x()) == 0) {  // an image without pixels
      std::memset(value, 0, size_t(count) * SizeOf(wide_));
      return;
    }
    const bool last = shape.channels_last;
    const HostOperand data(&run, scratch_, dtype_, inputs[0].data, shape.x(), last);
    std::optional<HostOperand> weights;
    if (!weights_) weights.emplace(&run, scratch_, dtype_, inputs[1].data, w_shape, last);
    const void* filters = weights_ ? weights_->data() : weights->data();
    const int64_t pixels = count / shape.batch / shape.filters;
    HostScratch::Buffer first(nullptr, {&scratch_});
    if (last && shape.filters > 1 && pixels > 1) first = scratch_.Take(size_t(count) * SizeOf(wide_));
    void* made = first != nullptr ? first.get() : value;
    if (wide_ == DType::kDouble) {
      const ParallelFor parallel_for = [&](size_t tasks, const std::function<void(size_t)>& body) {
        run.parallel_for(tasks, body);
      };
      DataGradient(shape.Reversed(), static_cast<const double*>(data.data()), static_cast<const double*>(filters),
        static_cast<double*>(made), parallel_for);
    } else {
      convolution_->Run(run,
        {{data.data(), ort::kFloat, shape.x_first()}, {filters, ort::kFloat, last ? ChannelsFirst(w_shape) : w_shape}},
        {{made, ort::kFloat, shape.result_first()}});
    }
    if (first != nullptr) Transpose(&run, made, value, shape.batch, shape.filters, pixels, SizeOf(wide_));
  }

  CheckedConvNode node_;
  DType dtype_, wide_;  // of X and W, and of what is computed
  HostScratch scratch_;
  std::optional<HostOperand> weights_;  // constant ones that are not used as they lie
  std::optional<size_t> place_;  // the result in whose memory the value is made
  std::optional<StandardOperator> convolution_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuConvTranspose(const NodeInfo& info) {
  return std::make_unique<CpuConvTranspose>(info);
}

const Operator kFusedConvTranspose = {
  "FusedConvTranspose",
  Infer,
  CreateCpuConvTranspose,
  CreateCudaConvTranspose,
};

}  // namespace ortplugin
