#include "ortplugin/ops/layer_norm/layer_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// ---- shape inference

// The shape for which an input that is read in an order stands; -1 is a dimension not known.
Shape ShapeInOrder(const NormProgram& norm, size_t input, const Shape& shape) {
  if (shape.size() != 3 || (shape[1] >= 0 && shape[1] <= norm.order.largest))
    Fail("input ", input, " ('", norm.program.parameter(input).name, "') of the shape ", ToString(shape),
      " must be [images, rows, width] with more rows than ", norm.order.largest, ", which 'order' holds");
  Shape made = norm.image;
  made.insert(made.begin(), shape[0]);
  made.push_back(shape[2] < 0 ? -1 : ElementCount({shape[2], norm.order.pieces}));
  return made;
}

void Infer(ShapeContext& context) {
  const NormProgram norm = NormProgram::Read(context, ProgramText(context));
  TensorTypes inputs = ParameterTypes(norm.program, context);
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorType& type = inputs[i];
    if (!norm.is_ordered(i) || !type.has_shape) continue;
    type.shape = ShapeInOrder(norm, i, type.shape);
    type.symbols.insert(type.symbols.begin() + 1, norm.image.size() - 1, "");
    type.symbols[norm.image.size()] = "";
    if (norm.order.pieces > 1) type.symbols.back() = "";
  }
  TensorTypes added;
  for (const size_t i : norm.prologue_operands.parameters) added.push_back(inputs[i]);
  const TensorType summed = Broadcast(added);
  for (size_t r = 0; r < norm.program.results().size(); ++r) {
    TensorType type = summed;
    type.type = ToOrt(norm.program.result(r).dtype);
    context.set_output(r, type);
  }
}

// ---- CPU kernel

// The lanes of one parameter, for the rows of a task. What all rows share is converted once.
class OperandLanes {
 public:
  OperandLanes(const Access& access, const void* data)
    : access_(access), data_(static_cast<const char*>(data)), lane_(LaneSize(access.dtype)) {
    if (is_lanes()) return;
    const size_t count = is_shared_row() ? size_t(access.width) : kBlock;
    lanes_.resize(count * lane_);
    if (access.is_shared()) Load(data_, 0, count);
  }

  // `count` (at most kBlock) columns of a row, from `column` on; good until the next call.
  const void* At(int64_t row, int64_t column, size_t count) {
    if (access_.is_pieced()) return LoadPieces(row, column, count);
    const char* base = data_ + access_.RowOffset(row) * int64_t(SizeOf(access_.dtype));
    if (is_lanes()) return base + column * int64_t(lane_);
    if (is_shared_row()) return lanes_.data() + size_t(column) * lane_;
    if (!access_.is_shared()) Load(base, column, count);
    return lanes_.data();
  }

 private:
  // The tensor's own rows are lanes already.
  bool is_lanes() const {
    return access_.is_contiguous() && !access_.is_pieced() &&
      (access_.dtype == DType::kFloat || access_.dtype == DType::kDouble);
  }
  bool is_shared_row() const { return access_.is_shared() && !access_.is_scalar(); }

  const void* LoadPieces(int64_t row, int64_t column, size_t count) {
    const auto piece = size_t(access_.piece);
    for (size_t j = 0, run = 0; j < count; j += run) {
      const size_t at = size_t(column) + j;
      run = std::min(count - j, piece - at % piece);
      const size_t element = size_t(access_.RowOffset(row, int64_t(at / piece))) + at % piece;
      LoadLanes(access_.dtype, data_ + element * SizeOf(access_.dtype), run, lanes_.data() + j * lane_);
    }
    return lanes_.data();
  }

  void Load(const char* base, int64_t column, size_t count) {
    const size_t size = SizeOf(access_.dtype);
    if (access_.is_scalar()) return FillLanes(access_.dtype, base, count, lanes_.data());
    if (access_.is_contiguous()) return LoadLanes(access_.dtype, base + column * int64_t(size), count, lanes_.data());
    gathered_.resize(count * size);
    for (size_t j = 0; j < count; ++j)
      std::memcpy(gathered_.data() + j * size, base + access_.ColumnOffset(column + int64_t(j)) * int64_t(size), size);
    LoadLanes(access_.dtype, gathered_.data(), count, lanes_.data());
  }

  const Access& access_;
  const char* data_;
  size_t lane_;  // bytes of a lane
  HostVector<char> lanes_, gathered_;
};

// Mean and scale (1 / deviation) of each column of s, [height, columns], of which `run` neighbours and all rows make a
// group.
template <typename T>
void FindMoments(
  const NormProgram& norm, const T* s, size_t height, size_t columns, size_t run, double* mean, double* scale) {
  const auto share = [&](double* sums) {
    for (size_t first = 0; first < columns; first += run) {
      double total = 0;
      for (size_t j = first; j < first + run; ++j) total += sums[j];
      std::fill(sums + first, sums + first + run, total / double(height * run));
    }
  };
  std::fill(mean, mean + columns, 0.0);
  std::fill(scale, scale + columns, 0.0);
  for (size_t row = 0; row < height && !norm.is_rms; ++row)
    for (size_t j = 0; j < columns; ++j) mean[j] += double(s[row * columns + j]);
  share(mean);
  for (size_t row = 0; row < height; ++row)
    for (size_t j = 0; j < columns; ++j) {
      const double deviation = double(s[row * columns + j]) - mean[j];
      scale[j] += deviation * deviation;
    }
  share(scale);
  for (size_t j = 0; j < columns; ++j) scale[j] = 1 / std::sqrt(scale[j] + norm.epsilon);
}

template <typename T>
void NormalizeColumns(const T* s, const double* mean, const double* scale, size_t count, T* normalized) {
  for (size_t j = 0; j < count; ++j) normalized[j] = (s[j] - T(mean[j])) * T(scale[j]);
}

class CpuLayerNorm : public Kernel {
 public:
  explicit CpuLayerNorm(const NodeInfo& info) : norm_(NormProgram::Read(info, ProgramText(info))) {
    CheckNode(norm_.norm(), info);
  }

  void Compute(Run& run) const override {
    const Program& program = norm_.norm().program;
    const auto [inputs, shapes] = ReadParameters(program, run);
    const NormShape shape = FitShapes(norm_.norm(), shapes);
    std::vector<char*> outputs;
    for (const ValueId result : program.results())
      outputs.push_back(
        static_cast<char*>(run.output(outputs.size(), shape.shape, SizeOf(program.value(result).dtype))));
    norm_.Run(run, shape, inputs, outputs);
  }

 private:
  HostNorm norm_;
};

// Where a result's elements from `column` on go in its tensor.
char* At(
  const std::vector<char*>& outputs, size_t result, DType dtype, const NormShape& shape, int64_t row, int64_t column) {
  return outputs[result] + (row * shape.width + column) * int64_t(SizeOf(dtype));
}

}  // namespace

HostNorm::HostNorm(NormProgram norm)
  : norm_(std::move(norm)), prologue_(norm_.program, norm_.prologue), epilogue_(norm_.program, norm_.epilogue) {}

void HostNorm::Run(ortplugin::Run& run, const NormShape& shape, const std::vector<Tensor>& inputs,
  const std::vector<char*>& outputs) const {
  if (shape.rows == 0 || shape.width == 0) return;
  // Enough elements a task to be worth a thread's waking, enough tasks to keep all threads busy to the end. Of
  // several groups a task takes some that lie side by side.
  constexpr int64_t kTaskElements = 16384, kColumns = 64;
  const int64_t beside = std::min(shape.groups, DivideUp(std::max(kColumns, kTaskElements / shape.height), shape.run));
  const int64_t slices = DivideUp(shape.groups, beside);
  const int64_t outer_a_task = std::max<int64_t>(1, kTaskElements / (shape.elements() * beside));
  const int64_t tasks = DivideUp(shape.outer, outer_a_task) * slices;
  const auto body = [&](size_t task) {
    const int64_t outer = int64_t(task) / slices * outer_a_task;
    const int64_t group = int64_t(task) % slices * beside;
    ComputeGroups(shape, inputs, outputs, {outer, std::min(shape.outer, outer + outer_a_task)},
      {group * shape.run, std::min(shape.groups, group + beside) * shape.run});
  };
  if (tasks == 1) {
    body(0);
  } else {
    run.parallel_for(size_t(tasks), body);
  }
}

// Results whose elements are lanes are computed where they belong; the others are stored when they are computed.
void HostNorm::BindResults(const Phase& phase, const NormShape& shape, const std::vector<char*>& outputs, int64_t row,
  int64_t column, Evaluator::Workspace& workspace) const {
  for (const size_t r : phase.results)
    if (IsInPlace(r)) workspace.Bind(norm_.program.results()[r], At(outputs, r, DTypeOf(r), shape, row, column));
}
void HostNorm::StoreResults(const Phase& phase, const NormShape& shape, const std::vector<char*>& outputs, int64_t row,
  int64_t column, size_t count, Evaluator::Workspace& workspace) const {
  for (const size_t r : phase.results)
    if (!IsInPlace(r))
      StoreLanes(
        DTypeOf(r), workspace.lanes(norm_.program.results()[r]), count, At(outputs, r, DTypeOf(r), shape, row, column));
}
bool HostNorm::IsInPlace(size_t result) const {
  const ValueId value = norm_.program.results()[result];
  return norm_.program.value(value).kind == Value::Kind::kResult && value != norm_.summed &&
    value != norm_.normalized && (DTypeOf(result) == DType::kFloat || DTypeOf(result) == DType::kDouble);
}

// The groups in these columns, whole ones, for each of these indices of the axis `outer`.
void HostNorm::ComputeGroups(const NormShape& shape, const std::vector<Tensor>& inputs,
  const std::vector<char*>& outputs, const Range& outer, const Range& columns) const {
  Evaluator::Workspace before(prologue_), after(epilogue_);
  std::vector<OperandLanes> operands;
  for (size_t i = 0; i < inputs.size(); ++i) operands.emplace_back(shape.accesses[i], inputs[i].data);
  const auto bind = [&](
                      const Phase& phase, Evaluator::Workspace& workspace, int64_t row, int64_t column, size_t count) {
    for (const size_t i : phase.parameters)
      workspace.Bind(norm_.program.parameters()[i], operands[i].At(row, column, count));
  };
  const DType dtype = norm_.program.value(norm_.summed).dtype;
  const size_t lane = LaneSize(dtype);
  const bool is_parameter = norm_.prologue.empty();  // s is an input itself
  const auto width = size_t(columns.last - columns.first), height = size_t(shape.height);
  const size_t elements = height * width;
  HostVector<char> summed(elements * lane), normalized(std::min(width, kBlock) * lane);
  HostVector<double> means(shape.groups > 1 ? width : 0), scales(means.size());
  for (int64_t index = outer.first; index < outer.last; ++index) {
    // visit(s, block, row, column, count): the lanes of s, the columns' place among those at hand, and the elements'
    // in the tensors.
    const auto for_each_block = [&](const auto& visit) {
      for (size_t r = 0; r < height; ++r)
        for (size_t block = 0; block < width; block += kBlock)
          visit(summed.data() + (r * width + block) * lane, block, index * shape.height + int64_t(r),
            columns.first + int64_t(block), std::min(width - block, kBlock));
    };
    for_each_block([&](char* s, size_t, int64_t row, int64_t column, size_t count) {
      bind(norm_.prologue_operands, before, row, column, count);
      if (is_parameter) {
        std::memcpy(s, before.lanes(norm_.summed), count * lane);
        return;
      }
      before.Bind(norm_.summed, s);
      BindResults(norm_.prologue_operands, shape, outputs, row, column, before);
      prologue_.Run(before, count);
      StoreResults(norm_.prologue_operands, shape, outputs, row, column, count, before);
    });
    double mean = 0, scale = 0;
    if (shape.groups == 1) {
      const auto n = double(elements);
      mean = norm_.is_rms ? 0 : SumLanes(dtype, summed.data(), elements) / n;
      scale = 1 / std::sqrt(SumSquaredDeviations(dtype, summed.data(), mean, elements) / n + norm_.epsilon);
    } else if (dtype == DType::kDouble) {
      FindMoments(norm_, reinterpret_cast<const double*>(summed.data()), height, width, size_t(shape.run), means.data(),
        scales.data());
    } else {
      FindMoments(norm_, reinterpret_cast<const float*>(summed.data()), height, width, size_t(shape.run), means.data(),
        scales.data());
    }
    for_each_block([&](char* s, size_t block, int64_t row, int64_t column, size_t count) {
      if (shape.groups == 1) {
        NormalizeLanes(dtype, s, mean, scale, count, normalized.data());
      } else if (dtype == DType::kDouble) {
        NormalizeColumns(reinterpret_cast<const double*>(s), means.data() + block, scales.data() + block, count,
          reinterpret_cast<double*>(normalized.data()));
      } else {
        NormalizeColumns(reinterpret_cast<const float*>(s), means.data() + block, scales.data() + block, count,
          reinterpret_cast<float*>(normalized.data()));
      }
      bind(norm_.epilogue_operands, after, row, column, count);
      after.Bind(norm_.summed, s);
      after.Bind(norm_.normalized, normalized.data());
      BindResults(norm_.epilogue_operands, shape, outputs, row, column, after);
      epilogue_.Run(after, count);
      StoreResults(norm_.epilogue_operands, shape, outputs, row, column, count, after);
    });
  }
}

NormProgram NormProgram::Parse(const std::string& text) {
  NormProgram norm{Program::Parse(text), false, 0, {}, 0, 0, 0, 0, {}, {}};
  const Program& program = norm.program;
  const Statement* core = nullptr;
  for (const Statement& statement : program.statements()) {
    if (!IsCore(statement.op)) continue;
    if (core != nullptr)
      Fail("the program normalises twice: in '", program.value(core->result).name, "' and in '",
        program.value(statement.result).name, "'");
    core = &statement;
  }
  if (core == nullptr) Fail("the program has no LayerNormalization and no RMSNormalization");
  norm.is_rms = core->op == Op::kRMSNormalization;
  norm.axis = int64_t(core->attributes[0]);
  norm.axes = core->axes;
  norm.epsilon = core->attributes[1];
  norm.groups = int64_t(core->attributes[3]);
  norm.summed = core->operands[0];
  norm.normalized = core->result;
  if (!(norm.epsilon >= 0) || std::isinf(norm.epsilon))
    Fail("epsilon is ", norm.epsilon, " but must be a finite number from 0 on");

  norm.prologue = program.Closure({norm.summed}, {});
  std::vector<bool> in_prologue(program.values().size(), false);
  for (const uint32_t index : norm.prologue) in_prologue[program.statements()[index].result] = true;
  std::vector<ValueId> late;
  for (size_t r = 0; r < program.results().size(); ++r) {
    const ValueId value = program.results()[r];
    if (in_prologue[value]) {
      norm.prologue_operands.results.push_back(r);
    } else {
      norm.epilogue_operands.results.push_back(r);
      late.push_back(value);
    }
  }
  norm.epilogue = program.Closure(late, {norm.summed, norm.normalized});

  const auto parameters_of = [&](const std::vector<uint32_t>& statements, std::vector<ValueId> values) {
    for (const uint32_t index : statements) {
      const std::vector<ValueId>& operands = program.statements()[index].operands;
      values.insert(values.end(), operands.begin(), operands.end());
    }
    std::vector<size_t> parameters;
    for (size_t i = 0; i < program.parameters().size(); ++i)
      if (std::find(values.begin(), values.end(), program.parameters()[i]) != values.end()) parameters.push_back(i);
    return parameters;
  };
  norm.prologue_operands.parameters = parameters_of(norm.prologue, {norm.summed});
  norm.epilogue_operands.parameters = parameters_of(norm.epilogue, late);
  // The epilogue has s at hand, so it does not read the parameter that s may be.
  if (norm.prologue.empty()) {
    auto& reads = norm.epilogue_operands.parameters;
    reads.erase(std::remove(reads.begin(), reads.end(), size_t{program.value(norm.summed).index}), reads.end());
  }
  if (norm.prologue_operands.parameters.empty()) Fail("the normalised value does not depend on any parameter");
  return norm;
}

void NormProgram::SetOrder(std::vector<int64_t> inputs, std::vector<int64_t> rows, Shape axes) {
  if (inputs.empty() && rows.empty()) return;
  const auto count = int64_t(rows.size()), parameters = int64_t(program.parameters().size());
  if (axes.empty()) axes = {count};
  const bool fits = count > 0 && !inputs.empty() && std::min_element(inputs.begin(), inputs.end())[0] >= 0 &&
    std::max_element(inputs.begin(), inputs.end())[0] < parameters && axis == -1 && this->axes.empty() &&
    std::min_element(axes.begin(), axes.end())[0] > 0 && std::min_element(rows.begin(), rows.end())[0] >= 0;
  const int64_t length = fits ? ElementCount(axes) : 1;
  if (!fits || count % length != 0)
    Fail("'ordered', ", ToString(inputs), ", must be numbers of inputs, 'order' rows from 0 on, of which it has ",
      count, ", 'image', ", ToString(axes), ", a shape that divides these, and axis -1");
  const int64_t largest = *std::max_element(rows.begin(), rows.end());
  order = {std::move(rows), length, count / length, largest};
  ordered = std::move(inputs), image = std::move(axes);
}

bool NormProgram::is_ordered(size_t input) const {
  return std::find(ordered.begin(), ordered.end(), int64_t(input)) != ordered.end();
}

TensorTypes CheckNode(const NormProgram& norm, const NodeInfo& info) {
  TensorTypes types = CheckNode(norm.program, info);
  if (const std::optional<Shapes> shapes = KnownShapes(types)) FitShapes(norm, *shapes);
  return types;
}

namespace {

// The axis `axis` from 0 on. Throws Error where a value of this shape lacks it.
size_t AxisOf(const NormProgram& norm, const Shape& shape) {
  const auto rank = int64_t(shape.size());
  const int64_t axis = norm.axis < 0 ? norm.axis + rank : norm.axis;
  if (axis < 0 || axis >= rank) Fail("axis ", norm.axis, " is out of range for the shape ", ToString(shape));
  return size_t(axis);
}

// The shape of a tensor that broadcasts to S, with an axis of groups in front of the one that they divide.
Shape WithGroups(const NormProgram& norm, Shape shape, const Shape& full) {
  if (norm.groups == 0) return shape;
  const size_t lead = full.size() - shape.size(), axis = AxisOf(norm, full);
  if (axis < lead) return shape;
  int64_t& length = shape[axis - lead];
  const int64_t groups = length == 1 ? 1 : norm.groups;
  if (full[axis] % norm.groups != 0)
    Fail(norm.groups, " groups don't divide the axis ", axis, " of the shape ", ToString(full));
  length /= groups;
  shape.insert(shape.begin() + std::ptrdiff_t(axis - lead), groups);
  return shape;
}

// Which axes of S, with groups, are normalised over. Throws Error where it lacks one of them.
std::vector<bool> IsReduced(const NormProgram& norm, const Shape& shape) {
  std::vector<bool> reduced(shape.size(), false);
  if (norm.axes.empty() || norm.groups > 0) {
    const size_t axis = AxisOf(norm, shape);
    for (size_t i = axis; i < (norm.groups > 0 ? axis + 1 : shape.size()); ++i) reduced[i] = true;
  }
  for (const int64_t axis : norm.axes) {
    if (axis >= int64_t(shape.size())) Fail("axis ", axis, " is out of range for the shape ", ToString(shape));
    if (reduced[size_t(axis)]) Fail("axis ", axis, " is divided into groups and among the axes, too");
    reduced[size_t(axis)] = true;
  }
  if (norm.groups > 0) reduced.insert(reduced.begin() + std::ptrdiff_t(AxisOf(norm, shape)), false);
  return reduced;
}

// Where the parts of [outer, height, groups, run] begin, and where the last one ends.
using Parts = std::array<size_t, 5>;

Parts PartsOf(const std::vector<bool>& reduced, const Shape& shape) {
  Parts begin{};
  size_t part = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1 || reduced[axis] == (part % 2 == 1)) continue;
    if (++part == 4)
      Fail("the axes of a norm over ", ToString(shape),
        " are more than two runs, or not the last ones after the first run");
    begin[part] = axis;
  }
  while (++part <= 4) begin[part] = shape.size();
  return begin;
}

// The accesses of all parameters to the matrix whose columns are the axes of `grouped`, S with groups, from `axis` on.
std::vector<Access> AccessesOf(
  const NormProgram& norm, const Shapes& inputs, const Shape& shape, const Shape& grouped, size_t axis) {
  std::vector<Access> accesses;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& parameter = norm.program.parameter(i);
    try {
      if (norm.groups > 0) MakeAccess(parameter.dtype, inputs[i], shape, 0);  // errors say the shapes as they are
      accesses.push_back(MakeAccess(parameter.dtype, WithGroups(norm, inputs[i], shape), grouped, axis));
    } catch (const Error& error) {
      Fail("input ", i, " ('", parameter.name, "'): ", error.what());
    }
  }
  return accesses;
}

bool AreVectors(const std::vector<Access>& accesses) {
  return std::all_of(accesses.begin(), accesses.end(),
    [](const Access& access) { return access.is_scalar() || access.is_contiguous(); });
}

}  // namespace

NormShape FitShapes(const NormProgram& norm, const Shapes& given) {
  Shapes summed, inputs = given;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (norm.is_ordered(i)) inputs[i] = ShapeInOrder(norm, i, given[i]);
  for (const size_t i : norm.prologue_operands.parameters) summed.push_back(inputs[i]);
  NormShape fit;
  fit.shape = Broadcast(summed);
  ElementCount(fit.shape);
  const Shape grouped = WithGroups(norm, fit.shape, fit.shape);
  Parts begin = PartsOf(IsReduced(norm, fit.shape), grouped);
  if (begin[2] == begin[4]) {  // the last axes alone
    begin[2] = begin[3] = begin[1];
    fit.accesses = AccessesOf(norm, inputs, fit.shape, grouped, begin[1]);
    for (size_t axis = begin[1] + 1; axis < grouped.size() && !AreVectors(fit.accesses); ++axis) {
      std::vector<Access> split = AccessesOf(norm, inputs, fit.shape, grouped, axis);
      if (!AreVectors(split)) continue;
      fit.accesses = std::move(split);
      begin[2] = begin[3] = axis;
    }
  } else {
    fit.accesses = AccessesOf(norm, inputs, fit.shape, grouped, begin[2]);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!norm.is_ordered(i)) continue;
    Access& access = fit.accesses[i];
    access.order = &norm.order, access.rows = given[i][1], access.piece = given[i][2];
    inputs[i].back() = 1;
    access.outer = MakeAccess(access.dtype, inputs[i], fit.shape, begin[1]).outer;
  }
  const auto part = [&](size_t i) {
    return ElementCount(
      Shape(grouped.begin() + std::ptrdiff_t(begin[i]), grouped.begin() + std::ptrdiff_t(begin[i + 1])));
  };
  fit.outer = part(0), fit.height = part(1), fit.groups = part(2), fit.run = part(3);
  fit.rows = fit.outer * fit.height, fit.width = fit.groups * fit.run;
  return fit;
}

const Operator kFusedLayerNorm = {
  "FusedLayerNorm",
  Infer,
  [](const NodeInfo& info) -> std::unique_ptr<Kernel> { return std::make_unique<CpuLayerNorm>(info); },
  CreateCudaLayerNorm,
};

}  // namespace ortplugin
