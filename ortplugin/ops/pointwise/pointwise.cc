#include "ortplugin/ops/pointwise/pointwise.h"

#include "ortplugin/runtime/program/program_sweep.h"

namespace ortplugin {
namespace {

void Infer(ShapeContext& context) {
  const Program program = ParsePointwise(ProgramText(context));
  TensorType type = Broadcast(ParameterTypes(program, context));
  for (size_t r = 0; r < program.results().size(); ++r) {
    type.type = ToOrt(program.result(r).dtype);
    context.set_output(r, type);
  }
}

// ---- CPU kernel

class CpuPointwise : public Kernel {
 public:
  explicit CpuPointwise(const NodeInfo& info) : program_(ParsePointwise(ProgramText(info))) {
    CheckPointwise(program_, info);
  }

  void Compute(Run& run) const override {
    const auto [tensors, shapes] = ReadParameters(program_, run);
    std::vector<ProgramSweep::Input> inputs;
    for (size_t i = 0; i < tensors.size(); ++i) inputs.push_back({tensors[i].data, program_.parameter(i).dtype});
    const PointwiseShape shape = FitPointwise(program_, shapes);
    std::vector<void*> outputs;
    for (size_t r = 0; r < program_.results().size(); ++r)
      outputs.push_back(run.output(r, shape.shape, SizeOf(program_.result(r).dtype)));
    if (shape.count > 0) ProgramSweep(program_, shape.axes, shape.count, inputs, outputs).Run(run);
  }

 private:
  Program program_;
};

}  // namespace

Program ParsePointwise(const std::string& text) {
  Program program = Program::Parse(text);
  CheckIsPointwise(program);
  if (program.parameters().empty()) Fail("the program has no parameter, so its results have no shape");
  return program;
}

PointwiseShape FitPointwise(const Program& program, const Shapes& inputs) {
  PointwiseShape fit;
  fit.shape = BroadcastInputs(program, inputs);
  fit.count = ElementCount(fit.shape);
  fit.axes = JoinAxes(fit.shape, inputs);
  return fit;
}

TensorTypes CheckPointwise(const Program& program, const NodeInfo& info) {
  TensorTypes types = CheckNode(program, info);
  if (const std::optional<Shapes> shapes = KnownShapes(types)) FitPointwise(program, *shapes);
  return types;
}

const Operator kFusedPointwise = {
  "FusedPointwise",
  Infer,
  [](const NodeInfo& info) -> std::unique_ptr<Kernel> { return std::make_unique<CpuPointwise>(info); },
  CreateCudaPointwise,
  InPlace<32, 16>,
};

}  // namespace ortplugin
