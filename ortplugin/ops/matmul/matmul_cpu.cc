// FusedMatMul on the CPU: ONNX Runtime's own Gemm, then the program, in place on what that has written where a result
// has its dtype. 16-bit floats are converted to float, as Gemm's accuracy there is theirs.
#include <cstring>
#include <optional>
#include <utility>

#include "ortplugin/ops/matmul/matmul.h"
#include "ortplugin/runtime/program/program_sweep.h"

namespace ortplugin {
namespace {

constexpr int kOpset = 11;  // since which Gemm is what it is

DType WideType(const MatMulNode& node) {
  return ValueType(*node.program) == DType::kDouble ? DType::kDouble : DType::kFloat;
}

class CpuMatMul : public Kernel {
 public:
  explicit CpuMatMul(const NodeInfo& info)
    : product_(info, CheckedMatMulNode(info, ProgramText(info, 0, kMatMulInputs))) {}

  void Compute(Run& run) const override {
    const Program& program = *product_.node().program;
    const auto [inputs, shapes] = ReadInputs(program, kMatMulInputs, run);
    const Shape full = product_.node().Result(shapes[0], shapes[1]);
    EpilogueAxes(program, kMatMulInputs, full,
      product_.node().WithGate(shapes));  // throws before an output of that shape is asked for
    std::vector<void*> outputs;
    for (const ValueId result : program.results())
      outputs.push_back(run.output(outputs.size(), full, SizeOf(program.value(result).dtype)));
    product_.Run(run, inputs, outputs);
  }

 private:
  HostMatMul product_;
};

}  // namespace

HostMatMul::HostMatMul(const NodeInfo& info, MatMulNode node)
  : node_(std::move(node)),
    dtype_(ValueType(*node_.program)),
    wide_(WideType(node_)),
    scratch_(info),
    gemm_(info, "Gemm", "", kOpset, {{"T", ToOrt(wide_)}},
      {{"transA", int64_t{0}}, {"transB", int64_t{node_.trans_b}}, {"alpha", 1.0F}, {"beta", 1.0F}}, kMatMulInputs, 1) {
  for (size_t input = 1; input <= 1u + node_.gated; ++input) {
    const std::optional<Tensor> b = info.constant_input(input);
    if (!b) continue;
    HostOperand weights(nullptr, scratch_, dtype_, b->data, b->shape, false);
    if (weights.data() != b->data) weights_[input - 1].emplace(std::move(weights));
  }
}

void HostMatMul::Run(ortplugin::Run& run, const std::vector<Tensor>& inputs, const std::vector<void*>& outputs) const {
  const Program& program = *node_.program;
  Shapes shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape);
  const Shape full = node_.Result(shapes[0], shapes[1]);
  const Axes axes = EpilogueAxes(program, kMatMulInputs, full, node_.WithGate(shapes));
  const int64_t count = ElementCount(full);
  if (count == 0) return;

  const std::optional<size_t> place = ValueResult(program, wide_);
  const size_t bytes = size_t(count) * SizeOf(wide_);
  HostScratch::Buffer buffer(nullptr, {&scratch_});
  if (!place) buffer = scratch_.Take(bytes);
  HostScratch::Buffer gate(nullptr, {&scratch_});
  if (node_.gated) gate = scratch_.Take(bytes);
  void* const values[] = {place ? outputs[*place] : buffer.get(), gate.get()};
  for (size_t i = 0; i <= size_t{node_.gated}; ++i) {
    if (ElementCount(shapes[0]) == 0)  // sums of nothing
      std::memset(values[i], 0, bytes);
    else
      Multiply(run, inputs, 1 + i, values[i]);
  }
  if (place && program.statements().empty() && outputs.size() == 1) return;
  std::vector<ProgramSweep::Input> parameters{{values[0], wide_}};
  if (node_.gated) parameters.push_back({values[1], wide_});
  for (size_t i = kMatMulInputs + node_.gated; i < inputs.size(); ++i)
    parameters.push_back({inputs[i].data, *FromOrt(inputs[i].type)});
  ProgramSweep(program, axes, count, parameters, outputs).Run(run);
}

void HostMatMul::Multiply(ortplugin::Run& run, const std::vector<Tensor>& inputs, size_t weights, void* value) const {
  const Tensor &a = inputs[0], &b = inputs[weights];
  const int64_t rows = ElementCount(a.shape) / a.shape.back();
  const HostOperand data(&run, scratch_, dtype_, a.data, a.shape, false);
  const std::optional<HostOperand>& constant = weights_[weights - 1];
  std::optional<HostOperand> given;
  if (!constant) given.emplace(&run, scratch_, dtype_, b.data, b.shape, false);
  gemm_.Run(run,
    {{data.data(), ToOrt(wide_), {rows, a.shape.back()}},
      {constant ? constant->data() : given->data(), ToOrt(wide_), b.shape}},
    {{value, ToOrt(wide_), {rows, b.shape[node_.trans_b ? 0 : 1]}}});
}

std::unique_ptr<Kernel> CreateCpuMatMul(const NodeInfo& info) { return std::make_unique<CpuMatMul>(info); }

}  // namespace ortplugin
