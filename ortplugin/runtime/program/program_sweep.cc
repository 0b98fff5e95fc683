#include "ortplugin/runtime/program/program_sweep.h"

#include <algorithm>

namespace ortplugin {
std::vector<bool> FixedValues(const Program& program, const Axes& axes) {
  std::vector<bool> fixed(program.values().size());
  for (size_t id = 0; id < fixed.size(); ++id) {
    const Value& value = program.value(static_cast<ValueId>(id));
    fixed[id] =
      value.kind == Value::Kind::kLiteral || (value.kind == Value::Kind::kParameter && axes.is_scalar(value.index));
  }
  for (const Statement& statement : program.statements())
    fixed[statement.result] = std::all_of(
      statement.operands.begin(), statement.operands.end(), [&](ValueId operand) { return fixed[operand]; });
  return fixed;
}

ProgramSweep::ProgramSweep(const Program& program, const Axes& axes, int64_t count, const std::vector<Input>& inputs,
  const std::vector<void*>& outputs)
  : program_(program),
    count_(count),
    outputs_(outputs),
    is_fixed_(FixedValues(program, axes)),
    once_(program, Statements(true)),
    each_(program, Statements(false)) {
  for (size_t i = 0; i < inputs.size(); ++i)
    operands_.emplace_back(inputs[i].stored, axes, i, inputs[i].data, IsOverwritten(i, inputs[i].data));
  for (const ValueId parameter : program.parameters()) reads_.push_back(IsRead(parameter, inputs));
  std::vector<bool> is_bound(program.values().size());
  for (size_t r = 0; r < program.results().size(); ++r) {
    const ValueId value = program.results()[r];
    const bool bind = IsComputed(value) && !is_bound[value] && IsLanes(program.value(value).dtype);
    binds_.push_back(bind);
    is_bound[value] = is_bound[value] || bind;
    stays_.push_back(Stays(r, inputs));
  }
  // Enough work a task to be worth a thread's waking, enough tasks to keep all threads busy to the end.
  const auto steps = int64_t(program.statements().size() + inputs.size());
  task_ = std::max<int64_t>(4, 256 / steps) * int64_t(kBlock);
}

void ProgramSweep::Run(ortplugin::Run& run) const {
  const auto tasks = size_t((count_ + task_ - 1) / task_);
  if (tasks == 1) {
    Task(0);
  } else if (tasks > 1) {
    run.parallel_for(tasks, [&](size_t task) { Task(task); });
  }
}

std::vector<uint32_t> ProgramSweep::Statements(bool fixed) const {
  std::vector<uint32_t> statements;
  for (uint32_t index = 0; index < program_.statements().size(); ++index)
    if (is_fixed_[program_.statements()[index].result] == fixed) statements.push_back(index);
  return statements;
}

bool ProgramSweep::IsComputed(ValueId value) const {
  return program_.value(value).kind == Value::Kind::kResult && !is_fixed_[value];
}

// Whether the elements of a parameter are needed in a workspace.
bool ProgramSweep::IsRead(ValueId parameter, const std::vector<Input>& inputs) const {
  for (const Statement& statement : program_.statements())
    if (std::find(statement.operands.begin(), statement.operands.end(), parameter) != statement.operands.end())
      return true;
  for (size_t r = 0; r < program_.results().size(); ++r)
    if (program_.results()[r] == parameter && !Stays(r, inputs)) return true;
  return false;
}

// Whether a result is a parameter that lies in the result's own memory.
bool ProgramSweep::Stays(size_t result, const std::vector<Input>& inputs) const {
  const Value& value = program_.result(result);
  return value.kind == Value::Kind::kParameter && inputs[value.index].data == outputs_[result] &&
    inputs[value.index].stored == value.dtype;
}

// Whether an input's memory, which a result may have too, is written while it is still to be read.
bool ProgramSweep::IsOverwritten(size_t input, const void* data) const {
  const ValueId parameter = program_.parameters()[input];
  const size_t last_read = each_.LastRead(parameter);
  const std::vector<ValueId>& results = program_.results();
  const bool is_result = std::find(results.begin(), results.end(), parameter) != results.end();
  for (size_t r = 0; r < results.size(); ++r) {
    if (outputs_[r] != data || results[r] == parameter) continue;
    // A statement reads an element before it writes its result there.
    if (is_result || !IsComputed(results[r]) || program_.value(results[r]).index < last_read) return true;
  }
  return false;
}

void ProgramSweep::Task(size_t task) const {
  std::unique_ptr<Space> space = Take();
  const int64_t first = int64_t(task) * task_;
  const int64_t last = std::min(count_, first + task_);
  for (int64_t at = first; at < last; at += int64_t(kBlock))
    Block(at, size_t(std::min(last - at, int64_t(kBlock))), *space);
  const std::lock_guard<std::mutex> lock(mutex_);
  spaces_.push_back(std::move(space));
}

std::unique_ptr<ProgramSweep::Space> ProgramSweep::Take() const {
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

void ProgramSweep::Block(int64_t first, size_t count, Space& space) const {
  Evaluator::Workspace& workspace = space.workspace;
  for (size_t i = 0; i < operands_.size(); ++i)
    if (reads_[i]) operands_[i].Load(first, count, program_.parameters()[i], workspace, space.scratch);
  const auto place = [&](size_t r) {
    return static_cast<char*>(outputs_[r]) + size_t(first) * SizeOf(program_.result(r).dtype);
  };
  for (size_t r = 0; r < outputs_.size(); ++r)
    if (binds_[r]) workspace.Bind(program_.results()[r], place(r));
  each_.Run(workspace, count);
  for (size_t r = 0; r < outputs_.size(); ++r) {
    const ValueId value = program_.results()[r];
    if (!binds_[r] && !stays_[r]) StoreLanes(program_.value(value).dtype, workspace.lanes(value), count, place(r));
  }
}

}  // namespace ortplugin
