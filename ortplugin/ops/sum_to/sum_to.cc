#include "ortplugin/ops/sum_to/sum_to.h"

#include <algorithm>
#include <cstring>

#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/program/operand_lanes.h"
#include "ortplugin/runtime/program/program_sweep.h"

namespace ortplugin {
namespace {

void CheckRank(const SumProgram& sums, const SumProgram::Sum& sum, const Shape& shape) {
  if (sum.axes.back() >= int64_t(shape.size()))
    Fail("'", sums.program.value(sum.value).name, "' sums over axis ", sum.axes.back(),
      ", but the inputs broadcast to the shape ", ToString(shape));
}

bool IsSummed(const SumProgram::Sum& sum, size_t axis) {
  return std::binary_search(sum.axes.begin(), sum.axes.end(), int64_t(axis));
}

void Infer(ShapeContext& context) {
  const SumProgram sums = SumProgram::Parse(ProgramText(context));
  const Program& program = sums.program;
  const TensorType whole = Broadcast(ParameterTypes(program, context));
  TensorTypes results(program.results().size(), whole);
  for (const SumProgram::Sum& sum : sums.sums) {
    if (!whole.has_shape) break;
    CheckRank(sums, sum, whole.shape);
    TensorType type;
    type.has_shape = true;
    for (size_t axis = 0; axis < whole.shape.size(); ++axis) {
      const bool is_summed = IsSummed(sum, axis);
      if (is_summed && !sum.keepdims) continue;
      type.shape.push_back(is_summed ? 1 : whole.shape[axis]);
      type.symbols.push_back(is_summed ? "" : whole.symbols[axis]);
    }
    for (const size_t r : sum.results) results[r] = type;
  }
  for (size_t r = 0; r < results.size(); ++r) {
    results[r].type = ToOrt(program.result(r).dtype);
    context.set_output(r, results[r]);
  }
}

// ---- CPU kernel

// Sums are kept in double, or modulo 2^64: both as 64 bits.
union Total {
  double floating;
  uint64_t integer;
};

template <typename T>
void AddRun(const T* lanes, size_t count, bool to_one, double* totals) {
  if (!to_one) {
    for (size_t i = 0; i < count; ++i) totals[i] += double(lanes[i]);
    return;
  }
  constexpr size_t kShort = 64;  // not worth a call
  if (count > kShort) {
    *totals += SumLanes(sizeof(T) == 4 ? DType::kFloat : DType::kDouble, lanes, count);
    return;
  }
  double sums[4] = {};
  size_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (size_t j = 0; j < 4; ++j) sums[j] += double(lanes[i + j]);
  for (; i < count; ++i) sums[0] += double(lanes[i]);
  *totals += (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <typename T>
void AddRun(const T* lanes, size_t count, bool to_one, uint64_t* totals) {
  if (!to_one) {
    for (size_t i = 0; i < count; ++i) totals[i] += uint64_t(lanes[i]);
    return;
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += uint64_t(lanes[i]);
  *totals += sum;
}

// Adds the lanes of elements [first, first + count) of S to the totals that they belong to; `strides` lead to these,
// the first of which has the number `base`.
template <typename T, typename Totals>
void AddLanes(
  const Axes& axes, const Shape& strides, int64_t first, const T* lanes, size_t count, int64_t base, Totals* totals) {
  const size_t last = axes.count() - 1;
  if (last == 0) return AddRun(lanes, count, strides[0] == 0, totals + strides[0] * first - base);
  const bool to_one = strides[last] == 0;
  ForEachRun(axes, strides, first, count, [&](int64_t row, int64_t column, size_t size) {
    AddRun(lanes, size, to_one, totals + row - base + (to_one ? 0 : column));
    lanes += size;
  });
}

void AddLanes(DType dtype, const Axes& axes, const Shape& strides, int64_t first, const void* lanes, size_t count,
  int64_t base, Total* totals) {
  const auto floating = [&](auto type) {
    AddLanes(axes, strides, first, static_cast<const decltype(type)*>(lanes), count, base, &totals->floating);
  };
  const auto integer = [&](auto type) {
    AddLanes(axes, strides, first, static_cast<const decltype(type)*>(lanes), count, base, &totals->integer);
  };
  switch (dtype) {
    case DType::kDouble: return floating(double{});
    case DType::kInt32: return integer(int32_t{});
    case DType::kUInt32: return integer(uint32_t{});
    case DType::kInt64:
    case DType::kUInt64: return integer(uint64_t{});
    default: return floating(float{});
  }
}

void TotalsToLanes(DType dtype, const Total* totals, size_t count, void* lanes) {
  const auto floating = [&](auto* to) {
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<std::decay_t<decltype(*to)>>(totals[i].floating);
  };
  const auto integer = [&](auto* to) {
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<std::decay_t<decltype(*to)>>(totals[i].integer);
  };
  switch (dtype) {
    case DType::kDouble: return floating(static_cast<double*>(lanes));
    case DType::kInt32:
    case DType::kUInt32: return integer(static_cast<uint32_t*>(lanes));
    case DType::kInt64:
    case DType::kUInt64: return integer(static_cast<uint64_t*>(lanes));
    default: return floating(static_cast<float*>(lanes));
  }
}

// A task's totals of one sum: those with the numbers from `first` on.
struct Partial {
  int64_t first;
  HostVector<Total> totals;
  // Of double, which nothing wider could add up: the totals of the last `pending` elements, so that few numbers are
  // added one after the other.
  HostVector<Total> recent;
  size_t pending;

  void Add(DType dtype, const Axes& axes, const Shape& strides, int64_t at, const void* lanes, size_t count) {
    AddLanes(dtype, axes, strides, at, lanes, count, first, recent.empty() ? totals.data() : recent.data());
    pending += count;
    if (pending >= std::max(kBlock, 64 * recent.size())) Fold();
  }
  void Fold() {
    for (size_t i = 0; i < recent.size(); ++i) {
      totals[i].floating += recent[i].floating;
      recent[i].floating = 0;
    }
    pending = 0;
  }
};

// Those of the values that have the shape S.
std::vector<uint32_t> Statements(const Program& program, const std::vector<bool>& is_fixed, bool fixed) {
  std::vector<bool> is_sum(program.values().size());
  std::vector<uint32_t> statements;
  for (uint32_t index = 0; index < program.statements().size(); ++index) {
    const Statement& statement = program.statements()[index];
    is_sum[statement.result] = IsCore(statement.op) || is_sum[statement.operands[0]];
    if (!is_sum[statement.result] && is_fixed[statement.result] == fixed) statements.push_back(index);
  }
  return statements;
}

// One run. S is cut into tasks by its shape alone; each has totals of its own, which are added in the order of the
// tasks, so that the result does not depend on the number of threads.
class SumSweep {
 public:
  SumSweep(
    const SumProgram& sums, const SumShape& shape, const std::vector<Tensor>& inputs, const std::vector<char*>& outputs)
    : sums_(sums),
      program_(sums.program),
      shape_(shape),
      outputs_(outputs),
      is_fixed_(FixedValues(program_, shape.axes)),
      once_(program_, Statements(program_, is_fixed_, true)),
      each_(program_, Statements(program_, is_fixed_, false)) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const DType dtype = program_.parameter(i).dtype;
      operands_.emplace_back(dtype, shape.axes, i, inputs[i].data, false);
    }
    std::vector<bool> is_bound(program_.values().size());
    for (const size_t r : sums.whole) {
      const ValueId value = program_.results()[r];
      const bool bind = IsComputed(value) && !is_bound[value] && IsLanes(program_.value(value).dtype);
      binds_.push_back(bind);
      is_bound[value] = is_bound[value] || bind;
    }
    Cut();
  }

  void Compute(Run& run) {
    partial_.resize(tasks_);
    const auto task = [&](size_t number) { Task(number); };
    if (tasks_ == 1) {
      task(0);
    } else {
      run.parallel_for(tasks_, task);
    }
    for (size_t s = 0; s < sums_.sums.size(); ++s) {
      const int64_t totals = ElementCount(shape_.results[sums_.sums[s].results[0]]);
      const auto blocks = size_t((totals + kTotals - 1) / kTotals);
      const auto finish = [&](size_t block) {
        const int64_t first = int64_t(block) * kTotals;
        Finish(s, first, std::min(totals, first + kTotals));
      };
      if (blocks == 1) {
        finish(0);
      } else {
        run.parallel_for(blocks, finish);
      }
    }
  }

 private:
  static constexpr int64_t kTask = 32768, kMostTasks = 64, kTotals = 16384;
  static constexpr int64_t kStretch = 8 * int64_t(kBlock);

  const Shape& strides(size_t sum) const { return shape_.axes.strides[operands_.size() + sum]; }

  // Tasks are stretches of S. Where the first axis is summed over and much lies within it, stretches of that instead,
  // for all its indices: a task then has few totals, and those of different tasks are different.
  void Cut() {
    const Axes& axes = shape_.axes;
    const int64_t within = shape_.count / axes.sizes[0];
    bool sums_first = false;
    int64_t most_totals = 1;
    for (size_t s = 0; s < sums_.sums.size(); ++s) {
      sums_first = sums_first || strides(s)[0] == 0;
      most_totals = std::max(most_totals, ElementCount(shape_.results[sums_.sums[s].results[0]]));
    }
    int64_t wanted = std::clamp<int64_t>(shape_.count / kTask, 1, kMostTasks);
    const bool splits = sums_first && axes.count() > 1 && within >= kMostTasks * int64_t(kBlock);
    repeats_ = splits ? axes.sizes[0] : 1;
    inner_ = splits ? within : shape_.count;
    if (sums_first && !splits) wanted = std::clamp<int64_t>(shape_.count / (4 * most_totals), 1, wanted);
    const auto block = int64_t(kBlock);
    task_ = ((inner_ + wanted - 1) / wanted + block - 1) / block * block;
    tasks_ = size_t((inner_ + task_ - 1) / task_);
  }

  // The totals of a sum that a task adds to: those of its first and last index and all between.
  Partial MakePartial(size_t sum, int64_t first, int64_t last) const {
    const Axes& axes = shape_.axes;
    Shape low(axes.count()), high(axes.count());
    for (size_t i = axes.count(); i-- > 0; first /= axes.sizes[i], last /= axes.sizes[i]) {
      low[i] = first % axes.sizes[i];
      high[i] = last % axes.sizes[i];
    }
    if (repeats_ > 1) high[0] = axes.sizes[0] - 1;
    bool differs = false;
    for (size_t i = repeats_ > 1 ? 1 : 0; i < axes.count(); ++i) {
      if (differs) low[i] = 0, high[i] = axes.sizes[i] - 1;
      differs = differs || low[i] != high[i];
    }
    int64_t lowest = 0, highest = 0;
    for (size_t i = 0; i < axes.count(); ++i) {
      lowest += low[i] * strides(sum)[i];
      highest += high[i] * strides(sum)[i];
    }
    HostVector<Total> zeros(size_t(highest - lowest + 1), Total{0});
    const bool is_double = program_.value(sums_.sums[sum].value).dtype == DType::kDouble;
    return {lowest, zeros, is_double ? zeros : HostVector<Total>(), 0};
  }

  void Task(size_t number) {
    Evaluator::Workspace workspace(each_);
    alignas(64) char scratch[kBlock * 8];
    for (size_t i = 0; i < operands_.size(); ++i)
      if (operands_[i].kind() == BlockOperand::Kind::kScalar) operands_[i].Fill(program_.parameters()[i], workspace);
    once_.Run(workspace, kBlock);
    const int64_t first = int64_t(number) * task_, last = std::min(inner_, first + task_);
    std::vector<Partial>& partials = partial_[number];
    for (size_t s = 0; s < sums_.sums.size(); ++s) partials.push_back(MakePartial(s, first, last - 1));
    for (int64_t stretch = first; stretch < last; stretch += kStretch)
      for (int64_t repeat = 0; repeat < repeats_; ++repeat)
        for (int64_t at = stretch; at < std::min(last, stretch + kStretch); at += int64_t(kBlock))
          Block(repeat * inner_ + at, size_t(std::min(last - at, int64_t(kBlock))), workspace, scratch, partials);
    for (Partial& partial : partials) partial.Fold();
  }

  void Block(
    int64_t first, size_t count, Evaluator::Workspace& workspace, void* scratch, std::vector<Partial>& partials) const {
    for (size_t i = 0; i < operands_.size(); ++i)
      operands_[i].Load(first, count, program_.parameters()[i], workspace, scratch);
    const auto place = [&](size_t r) { return outputs_[r] + size_t(first) * SizeOf(program_.result(r).dtype); };
    for (size_t w = 0; w < binds_.size(); ++w)
      if (binds_[w]) workspace.Bind(program_.results()[sums_.whole[w]], place(sums_.whole[w]));
    each_.Run(workspace, count);
    for (size_t w = 0; w < binds_.size(); ++w) {
      const ValueId value = program_.results()[sums_.whole[w]];
      if (!binds_[w]) StoreLanes(program_.value(value).dtype, workspace.lanes(value), count, place(sums_.whole[w]));
    }
    for (size_t s = 0; s < sums_.sums.size(); ++s) {
      const SumProgram::Sum& sum = sums_.sums[s];
      partials[s].Add(
        program_.value(sum.value).dtype, shape_.axes, strides(s), first, workspace.lanes(sum.operand), count);
    }
  }

  // The totals [first, last) of a sum over all tasks, as its results.
  void Finish(size_t s, int64_t first, int64_t last) const {
    const SumProgram::Sum& sum = sums_.sums[s];
    const DType dtype = program_.value(sum.value).dtype;
    std::vector<Total> totals(size_t(last - first), Total{0});
    for (const std::vector<Partial>& task : partial_) {
      const Partial& partial = task[s];
      const int64_t shared_first = std::max(first, partial.first);
      const int64_t shared_last = std::min(last, partial.first + int64_t(partial.totals.size()));
      for (int64_t k = shared_first; k < shared_last; ++k) {
        Total& total = totals[size_t(k - first)];
        const Total& added = partial.totals[size_t(k - partial.first)];
        if (IsFloating(dtype)) {
          total.floating += added.floating;
        } else {
          total.integer += added.integer;
        }
      }
    }
    const Evaluator casts(program_, sum.casts);
    Evaluator::Workspace workspace(casts);
    alignas(64) char lanes[kBlock * 8];
    workspace.Bind(sum.value, lanes);
    for (int64_t at = first; at < last; at += int64_t(kBlock)) {
      const size_t count = size_t(std::min(last - at, int64_t(kBlock)));
      TotalsToLanes(dtype, totals.data() + (at - first), count, lanes);
      casts.Run(workspace, count);
      for (const size_t r : sum.results) {
        const ValueId value = program_.results()[r];
        const DType type = program_.value(value).dtype;
        StoreLanes(type, workspace.lanes(value), count, outputs_[r] + size_t(at) * SizeOf(type));
      }
    }
  }

  bool IsComputed(ValueId value) const {
    return program_.value(value).kind == Value::Kind::kResult && !is_fixed_[value];
  }

  const SumProgram& sums_;
  const Program& program_;
  const SumShape& shape_;
  const std::vector<char*>& outputs_;
  std::vector<bool> is_fixed_;
  Evaluator once_, each_;
  std::vector<BlockOperand> operands_;
  std::vector<bool> binds_;  // of the whole results: computed where they belong
  int64_t repeats_, inner_, task_;
  size_t tasks_;
  std::vector<std::vector<Partial>> partial_;  // [task][sum]
};

class CpuSumTo : public Kernel {
 public:
  explicit CpuSumTo(const NodeInfo& info) : sums_(SumProgram::Parse(ProgramText(info))) { CheckSums(sums_, info); }

  void Compute(Run& run) const override {
    const Program& program = sums_.program;
    const auto [inputs, shapes] = ReadParameters(program, run);
    const SumShape shape = FitSums(sums_, shapes);
    std::vector<char*> outputs;
    for (size_t r = 0; r < program.results().size(); ++r)
      outputs.push_back(static_cast<char*>(run.output(r, shape.results[r], SizeOf(program.result(r).dtype))));
    ComputeSums(sums_, shape, inputs, outputs, run);
  }

 private:
  SumProgram sums_;
};

}  // namespace

void ComputeSums(const SumProgram& sums, const SumShape& shape, const std::vector<Tensor>& inputs,
  const std::vector<char*>& outputs, Run& run) {
  if (shape.count > 0) {
    SumSweep(sums, shape, inputs, outputs).Compute(run);
    return;
  }
  for (size_t r = 0; r < outputs.size(); ++r) {  // sums of nothing
    const auto count = size_t(ElementCount(shape.results[r]));
    if (count > 0) std::memset(outputs[r], 0, count * SizeOf(sums.program.result(r).dtype));
  }
}

SumProgram SumProgram::Parse(const std::string& text) {
  SumProgram sums{Program::Parse(text), {}, {}};
  const Program& program = sums.program;
  const auto name = [&](ValueId value) { return program.value(value).name; };
  std::vector<int> sum_of(program.values().size(), -1);
  for (uint32_t index = 0; index < program.statements().size(); ++index) {
    const Statement& statement = program.statements()[index];
    if (statement.op == Op::kSumTo) {
      if (sum_of[statement.operands[0]] >= 0)
        Fail("'", name(statement.result), "' computes with the sum '", name(statement.operands[0]),
          "'; only a Cast that is a result may");
      sum_of[statement.result] = int(sums.sums.size());
      sums.sums.push_back(
        {statement.operands[0], statement.result, statement.axes, statement.attributes[1] != 0, {}, {}});
      continue;
    }
    if (IsCore(statement.op)) Fail("the program holds a ", NameOf(statement.op), ", which another fused operator has");
    for (const ValueId operand : statement.operands) {
      if (sum_of[operand] < 0) continue;
      if (statement.op != Op::kCast || program.value(operand).kind != Value::Kind::kResult ||
        program.statements()[program.value(operand).index].op != Op::kSumTo)
        Fail("'", name(statement.result), "' computes with the sum '", name(operand),
          "'; only a Cast that is a result may");
      sum_of[statement.result] = sum_of[operand];
      sums.sums[size_t(sum_of[operand])].casts.push_back(index);
    }
  }
  if (sums.sums.empty()) Fail("the program holds no SumTo");
  if (program.parameters().empty()) Fail("the program has no parameters, so its results have no shape");
  for (size_t r = 0; r < program.results().size(); ++r) {
    const int sum = sum_of[program.results()[r]];
    (sum < 0 ? sums.whole : sums.sums[size_t(sum)].results).push_back(r);
  }
  return sums;
}

SumShape FitSums(const SumProgram& sums, const Shapes& inputs) {
  SumShape fit;
  fit.shape = BroadcastInputs(sums.program, inputs);
  fit.count = ElementCount(fit.shape);
  fit.results.assign(sums.program.results().size(), fit.shape);
  Shapes tensors = inputs;
  for (const SumProgram::Sum& sum : sums.sums) {
    CheckRank(sums, sum, fit.shape);
    Shape kept = fit.shape, left;
    for (size_t axis = 0; axis < kept.size(); ++axis) {
      if (IsSummed(sum, axis)) {
        kept[axis] = 1;
      } else {
        left.push_back(kept[axis]);
      }
    }
    for (const size_t r : sum.results) fit.results[r] = sum.keepdims ? kept : left;
    tensors.push_back(kept);
  }
  fit.axes = JoinAxes(fit.shape, tensors);
  return fit;
}

TensorTypes CheckSums(const SumProgram& sums, const NodeInfo& info) {
  TensorTypes types = CheckNode(sums.program, info);
  if (const std::optional<Shapes> shapes = KnownShapes(types)) FitSums(sums, *shapes);
  const TensorType whole = Broadcast(types);
  for (const SumProgram::Sum& sum : sums.sums)
    if (whole.has_shape) CheckRank(sums, sum, whole.shape);
  return types;
}

const Operator kFusedSumTo = {
  "FusedSumTo",
  Infer,
  [](const NodeInfo& info) -> std::unique_ptr<Kernel> { return std::make_unique<CpuSumTo>(info); },
  CreateCudaSumTo,
};

}  // namespace ortplugin
