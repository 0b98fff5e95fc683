#include "ortplugin/ops/pointwise/pointwise.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "ortplugin/runtime/evaluator.h"
#include "ortplugin/runtime/operand_lanes.h"

namespace ortplugin {
namespace {

void Infer(ShapeContext& context) {
  const Program program = ParsePointwise(ProgramText(context));
  const size_t count = context.input_count();
  if (count != program.parameters().size())
    Fail("the program has ", program.parameters().size(), " parameters, the node ", count, " inputs");
  std::vector<TensorType> inputs;
  for (size_t i = 0; i < count; ++i) {
    inputs.push_back(context.input(i));
    if (inputs[i].type != ort::kUndefined) CheckType(program, i, inputs[i].type);
  }
  TensorType type = Broadcast(inputs);
  for (size_t r = 0; r < program.results().size(); ++r) {
    type.type = ToOrt(program.value(program.results()[r]).dtype);
    context.set_output(r, type);
  }
}

// ---- CPU kernel -----------------------------------------------------------------------------------------------------

class CpuPointwise : public Kernel {
 public:
  explicit CpuPointwise(const NodeInfo& info) : program_(ParsePointwise(ProgramText(info))) {
    CheckPointwise(program_, info);
  }

  void Compute(Run& run) const override {
    std::vector<Tensor> inputs;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < program_.parameters().size(); ++i) {
      inputs.push_back(run.input(i));
      CheckType(program_, i, inputs[i].type);
      shapes.push_back(inputs[i].shape);
    }
    const PointwiseShape shape = FitPointwise(program_, shapes);
    std::vector<char*> outputs;
    for (size_t r = 0; r < program_.results().size(); ++r)
      outputs.push_back(static_cast<char*>(run.output(r, shape.shape)));
    if (shape.count == 0) return;
    const Pass pass(program_, shape, inputs, outputs);
    if (pass.tasks() == 1) {
      pass.Task(0);
    } else {
      run.parallel_for(pass.tasks(), [&](size_t task) { pass.Task(task); });
    }
  }

 private:
  // One run over the elements, shared by the threads that do its tasks.
  class Pass {
   public:
    Pass(const Program& program, const PointwiseShape& shape, const std::vector<Tensor>& inputs,
         const std::vector<char*>& outputs)
        : program_(program),
          count_(shape.count),
          outputs_(outputs),
          is_fixed_(FixedValues(program, shape)),
          once_(program, Statements(true)),
          each_(program, Statements(false)) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const DType dtype = program.value(program.parameters()[i]).dtype;
        operands_.emplace_back(dtype, shape.axes, i, inputs[i].data, IsOverwritten(i, inputs[i].data));
      }
      std::vector<bool> is_bound(program.values().size());
      for (const ValueId value : program.results()) {
        const bool bind = IsComputed(value) && !is_bound[value] && IsLanes(program.value(value).dtype);
        binds_.push_back(bind);
        is_bound[value] = is_bound[value] || bind;
      }
      // Enough work a task to be worth a thread's waking, enough tasks to keep all threads busy to the end.
      const auto steps = static_cast<int64_t>(program.statements().size() + inputs.size());
      task_ = std::max<int64_t>(4, 256 / steps) * static_cast<int64_t>(kBlock);
    }

    size_t tasks() const { return static_cast<size_t>((count_ + task_ - 1) / task_); }

    void Task(size_t task) const {
      std::unique_ptr<Space> space = Take();
      const int64_t first = static_cast<int64_t>(task) * task_;
      const int64_t last = std::min(count_, first + task_);
      for (int64_t at = first; at < last; at += static_cast<int64_t>(kBlock))
        Block(at, static_cast<size_t>(std::min(last - at, static_cast<int64_t>(kBlock))), *space);
      const std::lock_guard<std::mutex> lock(mutex_);
      spaces_.push_back(std::move(space));
    }

   private:
    struct Space {
      explicit Space(const Evaluator& evaluator) : workspace(evaluator) {}
      Evaluator::Workspace workspace;
      alignas(64) char scratch[kBlock * 8];
    };

    // The values that are the same for all elements: they are computed once for each workspace.
    static std::vector<bool> FixedValues(const Program& program, const PointwiseShape& shape) {
      std::vector<bool> fixed(program.values().size());
      for (size_t id = 0; id < fixed.size(); ++id) {
        const Value& value = program.value(static_cast<ValueId>(id));
        fixed[id] = value.kind == Value::Kind::kLiteral ||
                    (value.kind == Value::Kind::kParameter && shape.axes.is_scalar(value.index));
      }
      for (const Statement& statement : program.statements())
        fixed[statement.result] = std::all_of(statement.operands.begin(), statement.operands.end(),
                                              [&](ValueId operand) { return fixed[operand]; });
      return fixed;
    }
    std::vector<uint32_t> Statements(bool fixed) const {
      std::vector<uint32_t> statements;
      for (uint32_t index = 0; index < program_.statements().size(); ++index)
        if (is_fixed_[program_.statements()[index].result] == fixed) statements.push_back(index);
      return statements;
    }
    bool IsComputed(ValueId value) const {
      return program_.value(value).kind == Value::Kind::kResult && !is_fixed_[value];
    }

    // Whether an input's memory, which ORT may have given to a result too, is written while it is still to be read.
    bool IsOverwritten(size_t input, const void* data) const {
      const ValueId parameter = program_.parameters()[input];
      size_t last_read = 0;
      for (size_t index = 0; index < program_.statements().size(); ++index) {
        const std::vector<ValueId>& operands = program_.statements()[index].operands;
        if (std::find(operands.begin(), operands.end(), parameter) != operands.end()) last_read = index;
      }
      const std::vector<ValueId>& results = program_.results();
      const bool is_result = std::find(results.begin(), results.end(), parameter) != results.end();
      for (size_t r = 0; r < results.size(); ++r) {
        if (outputs_[r] != data) continue;
        // A statement reads an element before it writes its result there.
        if (is_result || !IsComputed(results[r]) || program_.value(results[r]).index < last_read) return true;
      }
      return false;
    }

    std::unique_ptr<Space> Take() const {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!spaces_.empty()) {
          std::unique_ptr<Space> space = std::move(spaces_.back());
          spaces_.pop_back();
          return space;
        }
      }
      auto space = std::make_unique<Space>(each_);
      for (size_t i = 0; i < operands_.size(); ++i)
        if (operands_[i].kind() == BlockOperand::Kind::kScalar)
          operands_[i].Fill(program_.parameters()[i], space->workspace);
      once_.Run(space->workspace, kBlock);
      return space;
    }

    void Block(int64_t first, size_t count, Space& space) const {
      Evaluator::Workspace& workspace = space.workspace;
      for (size_t i = 0; i < operands_.size(); ++i)
        operands_[i].Load(first, count, program_.parameters()[i], workspace, space.scratch);
      const auto place = [&](size_t r) {
        return outputs_[r] + static_cast<size_t>(first) * SizeOf(program_.value(program_.results()[r]).dtype);
      };
      for (size_t r = 0; r < outputs_.size(); ++r)
        if (binds_[r]) workspace.Bind(program_.results()[r], place(r));
      each_.Run(workspace, count);
      for (size_t r = 0; r < outputs_.size(); ++r) {
        const ValueId value = program_.results()[r];
        if (!binds_[r]) StoreLanes(program_.value(value).dtype, workspace.lanes(value), count, place(r));
      }
    }

    const Program& program_;
    int64_t count_, task_;
    const std::vector<char*>& outputs_;
    std::vector<bool> is_fixed_;
    Evaluator once_, each_;
    std::vector<BlockOperand> operands_;
    std::vector<bool> binds_;  // results that are computed where they belong
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Space>> spaces_;  // those that no task is using
  };

  Program program_;
};

}  // namespace

Program ParsePointwise(const std::string& text) {
  Program program = Program::Parse(text);
  for (const Statement& statement : program.statements())
    if (IsCore(statement.op))
      Fail("the program's '", program.value(statement.result).name, "' is a ", NameOf(statement.op),
           ", which is not pointwise: another fused operator has it");
  if (program.parameters().empty()) Fail("the program has no parameter, so its results have no shape");
  return program;
}

PointwiseShape FitPointwise(const Program& program, const std::vector<Shape>& inputs) {
  PointwiseShape fit;
  for (size_t i = 0; i < inputs.size(); ++i) {
    try {
      fit.shape = Broadcast(std::vector<Shape>{fit.shape, inputs[i]});
    } catch (const Error& error) {
      Fail("input ", i, " ('", program.value(program.parameters()[i]).name, "'): ", error.what());
    }
  }
  fit.count = ElementCount(fit.shape);
  fit.axes = JoinAxes(fit.shape, inputs);
  return fit;
}

std::vector<TensorType> CheckPointwise(const Program& program, const NodeInfo& info) {
  std::vector<TensorType> types = CheckNode(program, info);
  std::vector<Shape> shapes;
  bool known = true;
  for (const TensorType& type : types) {
    shapes.push_back(type.shape);
    known = known && type.has_shape && std::find(type.shape.begin(), type.shape.end(), -1) == type.shape.end();
  }
  if (known) FitPointwise(program, shapes);
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
