#include "ortplugin/runtime/cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "ortplugin/runtime/cudnn_library.h"
#include "ortplugin/runtime/cudnn_pointwise.h"
#include "ortplugin/runtime/error.h"

namespace ortplugin::cudnn {
namespace {

// ---- Problems -----------------------------------------------------------------------------------------------------

template <typename Number>
std::string Join(const std::vector<Number>& numbers) {
  std::string text;
  for (const Number number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

std::string ToString(const Tensor& tensor) { return "[" + Join(tensor.dims) + "] strides " + Join(tensor.strides); }

const char* NameOf(Direction direction) {
  switch (direction) {
    case Direction::kDataGradient:
      return "data gradient of a convolution";
    case Direction::kWeightGradient:
      return "weight gradient of a convolution";
    default:
      return "convolution";
  }
}

const Tensor& ValueOf(const Problem& problem) {
  if (problem.direction == Direction::kDataGradient) return problem.x;
  return problem.direction == Direction::kWeightGradient ? problem.w : problem.y;
}

std::string Describe(const Problem& problem) {
  std::ostringstream text;
  text << NameOf(problem.direction) << " of " << NameOf(problem.dtype) << (problem.allow_tf32 ? " (tf32)" : "")
       << ": x " << ToString(problem.x) << ", w " << ToString(problem.w) << ", y " << ToString(problem.y) << ", pads "
       << Join(problem.pads_begin) << " and " << Join(problem.pads_end) << ", strides " << Join(problem.strides)
       << ", dilations " << Join(problem.dilations) << ", groups " << problem.groups << ", alignment "
       << problem.alignment;
  for (const Tensor& operand : problem.operands) text << ", operand " << ToString(operand);
  for (const Tensor& result : problem.results) text << ", result " << ToString(result);
  return text.str();
}

// A program without its names: equal for programs that compute the same in the same order.
std::string Signature(const Program* program) {
  if (program == nullptr) return "";
  std::ostringstream text;
  text.precision(17);
  for (const Value& value : program->values()) {
    text << NameOf(value.dtype) << static_cast<int>(value.kind);
    if (value.kind == Value::Kind::kLiteral) text << "=" << value.literal;
    text << " ";
  }
  for (const Statement& statement : program->statements()) {
    text << NameOf(statement.op) << "<" << statement.attributes[0] << "," << statement.attributes[1] << ">(";
    for (const ValueId operand : statement.operands) text << operand << ",";
    text << ")" << statement.result << " ";
  }
  for (const ValueId result : program->results()) text << result << " ";
  return text.str();
}

Tensor Strided(std::vector<int64_t> dims, const std::vector<size_t>& order) {
  Tensor tensor{std::move(dims), {}};
  tensor.strides.resize(tensor.dims.size());
  int64_t stride = 1;
  for (const size_t axis : order) {
    tensor.strides[axis] = stride;
    stride *= tensor.dims[axis];
  }
  return tensor;
}

// Dense, with the axes in the order that they have in `like`.
Tensor DenseLike(std::vector<int64_t> dims, const Tensor& like) {
  std::vector<size_t> order(dims.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return like.strides[a] < like.strides[b]; });
  return Strided(std::move(dims), order);
}

void CheckTensor(const Tensor& tensor, const char* name, size_t rank) {
  if (tensor.dims.size() != rank || tensor.strides.size() != rank)
    Fail("a convolution's ", name, " has ", tensor.dims.size(), " dims and ", tensor.strides.size(),
         " strides, expected ", rank, " of each");
  for (size_t i = 0; i < rank; ++i)
    if (tensor.dims[i] < 1 || tensor.strides[i] < 1)
      Fail("a convolution's ", name, " is ", ToString(tensor), ": dims and strides must be positive");
}

void CheckEpilogue(const Problem& problem) {
  if (problem.program == nullptr) {
    if (!problem.operands.empty() || !problem.results.empty())
      Fail("a convolution without an epilogue has ", problem.operands.size(), " operands and ", problem.results.size(),
           " results of one, expected none");
    return;
  }
  const Program& program = *problem.program;
  const std::vector<int64_t>& dims = ValueOf(problem).dims;
  if (program.parameters().size() != problem.operands.size() + 1 || program.results().size() != problem.results.size())
    Fail("a convolution's epilogue has ", program.parameters().size(), " parameters and ", program.results().size(),
         " results, but ", problem.operands.size(), " operands after the convolution's value and ",
         problem.results.size(), " results are given");
  if (program.value(program.parameters()[0]).dtype != problem.dtype)
    Fail("a convolution of ", NameOf(problem.dtype), " has an epilogue whose first parameter is ",
         NameOf(program.value(program.parameters()[0]).dtype));
  for (const Tensor& operand : problem.operands) {
    CheckTensor(operand, "epilogue operand", dims.size());
    for (size_t i = 0; i < dims.size(); ++i)
      if (operand.dims[i] != 1 && operand.dims[i] != dims[i])
        Fail("a convolution's epilogue operand [", Join(operand.dims), "] does not broadcast to [", Join(dims), "]");
  }
  for (const Tensor& result : problem.results) {
    CheckTensor(result, "epilogue result", dims.size());
    if (result.dims != dims)
      Fail("a convolution's epilogue result is [", Join(result.dims), "], expected [", Join(dims), "]");
  }
}

// cuDNN has no convolutions of one spatial dimension: a second one, of length 1, goes before it.
Problem Lifted(Problem problem) {
  if (problem.x.dims.size() != 3) return problem;
  const auto lift = [](Tensor& tensor) {
    tensor.strides.insert(tensor.strides.begin() + 2, tensor.dims[2] * tensor.strides[2]);
    tensor.dims.insert(tensor.dims.begin() + 2, 1);
  };
  for (Tensor* tensor : {&problem.x, &problem.w, &problem.y}) lift(*tensor);
  for (Tensor& tensor : problem.operands) lift(tensor);
  for (Tensor& tensor : problem.results) lift(tensor);
  for (std::vector<int64_t>* pads : {&problem.pads_begin, &problem.pads_end}) pads->insert(pads->begin(), 0);
  for (std::vector<int64_t>* steps : {&problem.strides, &problem.dilations}) steps->insert(steps->begin(), 1);
  return problem;
}

abi::DataType DataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return abi::kHalf;
    case DType::kBFloat16:
      return abi::kBFloat16;
    case DType::kDouble:
      return abi::kDouble;
    case DType::kBool:
      return abi::kBoolean;
    default:
      return abi::kFloat;
  }
}

// ---- Graphs -------------------------------------------------------------------------------------------------------

enum : int64_t { kFirstInput = 1, kFirstOperand = 100, kFirstResult = 200, kFirstScalar = 300, kFirstVirtual = 1000 };

// The operation graph of a problem; plans of it keep it.
class Graph {
 public:
  // Throws Refused where the epilogue can't be expressed. `handle` is null without a device.
  Graph(const Problem& given, abi::Handle handle) : problem_(Lifted(given)) {
    math_ = problem_.dtype == DType::kDouble ? DType::kDouble : DType::kFloat;
    if (HasEpilogue()) {
      std::string why;
      std::optional<PointwiseGraph> mapped = MapProgram(*problem_.program, &why);
      if (!mapped) throw Refused("cuDNN has no pointwise operation for " + why);
      pointwise_ = std::move(*mapped);
      PutBiasLast();
    }
    AddConvolution();
    for (size_t i = 0; i < pointwise_.nodes.size(); ++i) AddPointwise(i);
    graph_.SetDescriptors(abi::kGraphOperations, operations_);
    if (handle != nullptr) graph_.SetHandle(abi::kGraphHandle, handle);
    graph_.Finalize("the graph of operations");
  }

  const Descriptor& descriptor() const { return graph_; }
  const Problem& problem() const { return problem_; }
  const std::vector<int64_t>& ids() const { return ids_; }
  bool HasEpilogue() const {
    const Program* program = problem_.program.get();
    // A program that only hands the value on is none.
    return program != nullptr && !(program->statements().empty() && program->results().size() == 1 &&
                                   program->results()[0] == program->parameters()[0]);
  }

  // The addresses that belong to ids().
  void Fill(const Arguments& arguments, std::vector<const void*>* addresses) const {
    for (const int64_t id : ids_) {
      if (id >= kFirstScalar)
        addresses->push_back(math_ == DType::kDouble
                                 ? static_cast<const void*>(&scalars_[static_cast<size_t>(id - kFirstScalar)].wide)
                                 : &scalars_[static_cast<size_t>(id - kFirstScalar)].narrow);
      else if (id >= kFirstResult)
        addresses->push_back(arguments.results[id - kFirstResult]);
      else if (id >= kFirstOperand)
        addresses->push_back(arguments.operands[id - kFirstOperand]);
      else
        addresses->push_back(arguments.inputs[id - kFirstInput]);
    }
  }

 private:
  struct Scalar {
    float narrow;
    double wide;
  };
  struct Made {
    size_t descriptor;  // in descriptors_
    std::vector<int64_t> dims;
  };
  using Operand = PointwiseOperand;

  // cuDNN's engines that are not compiled at run time take a residual before the bias: the sum is the same.
  void PutBiasLast() {
    if (pointwise_.nodes.size() < 2) return;
    PointwiseNode &first = pointwise_.nodes[0], &second = pointwise_.nodes[1];
    const auto is_sum = [](const PointwiseNode& node) {
      return node.mode == abi::PointwiseMode::kAdd && node.b.kind == Operand::Kind::kParameter;
    };
    if (!is_sum(first) || !is_sum(second) || first.x.kind != Operand::Kind::kConvolution || first.result >= 0 ||
        !(second.x == Operand{Operand::Kind::kNode, 0}))
      return;
    for (size_t i = 2; i < pointwise_.nodes.size(); ++i) {
      const PointwiseNode& node = pointwise_.nodes[i];
      for (const Operand* operand : {&node.x, &node.b, &node.t})
        if (*operand == Operand{Operand::Kind::kNode, 0} || operand->kind == Operand::Kind::kConvolution) return;
    }
    const auto elements = [&](const Operand& operand) {
      int64_t count = 1;
      for (const int64_t dim : problem_.operands[operand.index - 1].dims) count *= dim;
      return count;
    };
    if (elements(first.b) < elements(second.b)) std::swap(first.b, second.b);
  }

  size_t AddTensor(int64_t id, const Tensor& tensor, DType dtype, bool is_virtual, bool is_scalar = false) {
    Descriptor& made = descriptors_.emplace_back(abi::kTensor);
    made.SetInt64(abi::kTensorUniqueId, id);
    made.SetEnum(abi::kTensorDataType, abi::kTypeDataType, DataTypeOf(dtype));
    made.SetInt64s(abi::kTensorDimensions, tensor.dims);
    made.SetInt64s(abi::kTensorStrides, tensor.strides);
    made.SetInt64(abi::kTensorByteAlignment, is_virtual || is_scalar ? 16 : problem_.alignment);
    if (is_virtual) made.SetTrue(abi::kTensorIsVirtual);
    if (is_scalar) made.SetTrue(abi::kTensorIsByValue);
    made.Finalize("a tensor");
    if (!is_virtual) ids_.push_back(id);
    return descriptors_.size() - 1;
  }

  void AddConvolution() {
    const size_t spatial = problem_.strides.size();
    Descriptor& convolution = descriptors_.emplace_back(abi::kConvolution);
    convolution.SetEnum(abi::kConvolutionComputeType, abi::kTypeDataType, DataTypeOf(math_));
    convolution.SetEnum(abi::kConvolutionMode, abi::kTypeConvolutionMode, abi::kCrossCorrelation);
    convolution.SetInt64(abi::kConvolutionSpatialDims, static_cast<int64_t>(spatial));
    convolution.SetInt64s(abi::kConvolutionDilations, problem_.dilations);
    convolution.SetInt64s(abi::kConvolutionStrides, problem_.strides);
    convolution.SetInt64s(abi::kConvolutionPrePaddings, problem_.pads_begin);
    convolution.SetInt64s(abi::kConvolutionPostPaddings, problem_.pads_end);
    convolution.Finalize("the convolution's attributes");
    const size_t attributes = descriptors_.size() - 1;

    const Tensor* tensors[] = {&problem_.x, &problem_.w, &problem_.y};
    const size_t value = problem_.direction == Direction::kForward        ? 2
                         : problem_.direction == Direction::kDataGradient ? 0
                                                                          : 1;
    // The order of Arguments::inputs: forward x, w; data gradient y, w; weight gradient x, y.
    int64_t ids[3] = {kFirstInput, kFirstInput + 1, kFirstInput};
    if (problem_.direction == Direction::kWeightGradient) ids[2] = kFirstInput + 1;
    size_t made[3];
    for (size_t i = 0; i < 3; ++i) {
      if (i != value)
        made[i] = AddTensor(ids[i], *tensors[i], problem_.dtype, false);
      else if (HasEpilogue())
        made[i] = AddTensor(kFirstVirtual, DenseLike(tensors[i]->dims, problem_.results[0]), math_, true);
      else
        made[i] = AddTensor(kFirstResult, problem_.results.empty() ? *tensors[i] : problem_.results[0], problem_.dtype,
                            false);
    }
    convolution_ = {made[value], tensors[value]->dims};

    struct Names {
      abi::DescriptorType type;
      abi::Attribute alpha, beta, convolution, tensors[3];
    };
    static constexpr Names kNames[] = {{abi::kConvolutionForward,
                                        abi::kForwardAlpha,
                                        abi::kForwardBeta,
                                        abi::kForwardConvolution,
                                        {abi::kForwardX, abi::kForwardW, abi::kForwardY}},
                                       {abi::kConvolutionDataGradient,
                                        abi::kDataGradientAlpha,
                                        abi::kDataGradientBeta,
                                        abi::kDataGradientConvolution,
                                        {abi::kDataGradientX, abi::kDataGradientW, abi::kDataGradientY}},
                                       {abi::kConvolutionWeightGradient,
                                        abi::kWeightGradientAlpha,
                                        abi::kWeightGradientBeta,
                                        abi::kWeightGradientConvolution,
                                        {abi::kWeightGradientX, abi::kWeightGradientW, abi::kWeightGradientY}}};
    const Names& names = kNames[static_cast<size_t>(problem_.direction)];
    Descriptor operation(names.type);
    operation.SetDescriptor(names.convolution, descriptors_[attributes]);
    for (size_t i = 0; i < 3; ++i) operation.SetDescriptor(names.tensors[i], descriptors_[made[i]]);
    const float narrow[] = {1, 0};
    const double wide[] = {1, 0};
    const bool is_wide = math_ == DType::kDouble;
    const abi::AttributeType type = is_wide ? abi::kTypeDouble : abi::kTypeFloat;
    operation.Set(names.alpha, type, 1, is_wide ? static_cast<const void*>(&wide[0]) : &narrow[0]);
    operation.Set(names.beta, type, 1, is_wide ? static_cast<const void*>(&wide[1]) : &narrow[1]);
    operation.Finalize("the convolution");
    Keep(std::move(operation));
  }

  void Keep(Descriptor operation) {
    operations_.push_back(operation.raw());
    descriptors_.push_back(std::move(operation));
  }

  // The tensor of an operand, made where it is new.
  const Made& TensorOf(const Operand& operand) {
    if (operand.kind == Operand::Kind::kConvolution) return convolution_;
    const auto key = std::make_pair(static_cast<int>(operand.kind), operand.index);
    const auto found = made_.find(key);
    if (found != made_.end()) return found->second;
    if (operand.kind == Operand::Kind::kParameter) {
      const Tensor& tensor = problem_.operands[operand.index - 1];
      const DType dtype = problem_.program->value(problem_.program->parameters()[operand.index]).dtype;
      return made_[key] = {AddTensor(kFirstOperand + operand.index - 1, tensor, dtype, false), tensor.dims};
    }
    const std::vector<int64_t> ones(convolution_.dims.size(), 1);
    if (scalars_.empty())
      for (const double scalar : pointwise_.scalars) scalars_.push_back({static_cast<float>(scalar), scalar});
    return made_[key] = {AddTensor(kFirstScalar + operand.index, {ones, ones}, math_, false, true), ones};
  }

  void AddPointwise(size_t index) {
    const PointwiseNode& node = pointwise_.nodes[index];
    std::vector<int64_t> dims(convolution_.dims.size(), 1);
    for (const Operand* operand : {&node.x, &node.b, &node.t}) {
      if (operand->kind == Operand::Kind::kNone) continue;
      const Made& made = TensorOf(*operand);
      for (size_t i = 0; i < dims.size(); ++i) dims[i] = std::max(dims[i], made.dims[i]);
    }
    if (node.result >= 0) dims = convolution_.dims;
    const size_t value = node.result >= 0
                             ? AddTensor(kFirstResult + node.result, problem_.results[static_cast<size_t>(node.result)],
                                         node.dtype, false)
                             : AddTensor(kFirstVirtual + 1 + static_cast<int64_t>(index),
                                         DenseLike(dims, problem_.results[0]), node.dtype, true);
    made_[{static_cast<int>(Operand::Kind::kNode), static_cast<uint32_t>(index)}] = {value, dims};

    Descriptor mode(abi::kPointwise);
    mode.SetEnum(abi::kPointwiseMode, abi::kTypePointwiseMode, static_cast<int>(node.mode));
    mode.SetEnum(abi::kPointwiseMathPrecision, abi::kTypeDataType, DataTypeOf(math_));
    if (node.mode == abi::PointwiseMode::kRelu || node.mode == abi::PointwiseMode::kMin ||
        node.mode == abi::PointwiseMode::kMax)
      mode.SetEnum(abi::kPointwiseNanPropagation, abi::kTypeNanPropagation, abi::kPropagateNan);
    for (const auto& [name, number] : node.attributes) mode.SetDouble(name, number);
    mode.Finalize("a pointwise operation's attributes");
    Descriptor operation(abi::kPointwiseOperation);
    operation.SetDescriptor(abi::kOperationPointwise, mode);
    operation.SetDescriptor(abi::kOperationX, descriptors_[TensorOf(node.x).descriptor]);
    if (node.b.kind != Operand::Kind::kNone)
      operation.SetDescriptor(abi::kOperationB, descriptors_[TensorOf(node.b).descriptor]);
    if (node.t.kind != Operand::Kind::kNone)
      operation.SetDescriptor(abi::kOperationT, descriptors_[TensorOf(node.t).descriptor]);
    operation.SetDescriptor(abi::kOperationY, descriptors_[value]);
    operation.Finalize("a pointwise operation");
    descriptors_.push_back(std::move(mode));
    Keep(std::move(operation));
  }

  const Problem problem_;  // with at least two spatial dimensions
  DType math_;
  PointwiseGraph pointwise_;
  std::deque<Descriptor> descriptors_;  // all but the graph; cuDNN refers to them
  std::vector<abi::RawDescriptor> operations_;
  std::vector<int64_t> ids_;  // of the tensors that a run gives addresses for
  std::vector<Scalar> scalars_;
  std::map<std::pair<int, uint32_t>, Made> made_;
  Made convolution_;
  Descriptor graph_{abi::kOperationGraph};
};

// ---- Plans --------------------------------------------------------------------------------------------------------

// What plans are made for: a device, or one that is described only.
struct Target {
  const cuda::DeviceFacts* device = nullptr;
  abi::Handle handle = nullptr;
  const Descriptor* properties = nullptr;
};

struct Notes {
  std::set<int> notes;
  explicit Notes(const Descriptor& engine) {
    int values[32];
    const int64_t count = engine.Get(abi::kEngineNumericalNotes, abi::kTypeNumericalNote, 32, values);
    notes.insert(values, values + std::clamp<int64_t>(count, 0, 32));
  }
  bool Has(abi::NumericalNote note) const { return notes.count(note) != 0; }
  bool is_deterministic() const { return !Has(abi::kNoteNondeterministic); }
  // cuDNN's engine that can do everything, tens of times slower than any other.
  bool is_reference() const { return Has(abi::kNoteStrictNanPropagation) && !Has(abi::kNoteTensorCore); }

  // Why the engine does not compute what a problem asks for; null where it does.
  const char* Objection(const Problem& problem) const {
    if (Has(abi::kNoteReducedPrecisionReduction)) return "it accumulates in less than fp32";
    if (problem.dtype == DType::kFloat && !problem.allow_tf32 &&
        (Has(abi::kNoteTensorCore) || Has(abi::kNoteDownConvertInputs)))
      return "it rounds the operands of products and allow_tf32 is 0";
    const bool is_short = SizeOf(problem.dtype) == 2;
    if (is_short && (Has(abi::kNoteWinograd) || Has(abi::kNoteFft)))
      return "it rounds intermediate transforms to 16 bits";
    return nullptr;
  }
};

constexpr size_t kMaxKnobs = 64;

struct Candidate {
  PlanText text;
  Notes notes;
};

std::vector<Candidate> Propose(const Graph& graph, const Target& target, abi::HeuristicMode mode) {
  std::vector<Candidate> candidates;
  try {
    Descriptor heuristic(abi::kHeuristic);
    heuristic.SetDescriptor(abi::kHeuristicGraph, graph.descriptor());
    heuristic.SetEnum(abi::kHeuristicMode, abi::kTypeHeuristicMode, mode);
    if (target.properties != nullptr) heuristic.SetDescriptor(abi::kHeuristicDeviceProperties, *target.properties);
    heuristic.Finalize("a heuristic");
    const int64_t count = heuristic.Get(abi::kHeuristicResults, abi::kTypeDescriptor, 0, nullptr);
    std::deque<Descriptor> configurations;
    std::vector<abi::RawDescriptor> raw;
    for (int64_t i = 0; i < count; ++i) raw.push_back(configurations.emplace_back(abi::kEngineConfiguration).raw());
    const int64_t given = heuristic.Get(abi::kHeuristicResults, abi::kTypeDescriptor, count, raw.data());
    for (int64_t i = 0; i < std::min(count, given); ++i) {
      const Descriptor& configuration = configurations[static_cast<size_t>(i)];
      const Descriptor engine(abi::kEngine);
      abi::RawDescriptor raw_engine = engine.raw();
      configuration.Get(abi::kConfigurationEngine, abi::kTypeDescriptor, 1, &raw_engine);
      PlanText text{};
      engine.Get(abi::kEngineIndex, abi::kTypeInt64, 1, &text.engine);
      // Asked for none, cuDNN says that there are none: so offer room for more than there can be.
      std::deque<Descriptor> choices;
      std::vector<abi::RawDescriptor> raw_choices;
      for (size_t k = 0; k < kMaxKnobs; ++k) raw_choices.push_back(choices.emplace_back(abi::kKnobChoice).raw());
      const int64_t knobs = configuration.Get(abi::kConfigurationKnobChoices, abi::kTypeDescriptor,
                                              static_cast<int64_t>(kMaxKnobs), raw_choices.data());
      while (static_cast<int64_t>(choices.size()) > std::max<int64_t>(knobs, 0)) choices.pop_back();
      for (const Descriptor& choice : choices) {
        int type = 0;
        int64_t value = 0;
        choice.Get(abi::kKnobChoiceType, abi::kTypeKnob, 1, &type);
        choice.Get(abi::kKnobChoiceValue, abi::kTypeInt64, 1, &value);
        text.knobs.emplace_back(type, value);
      }
      std::sort(text.knobs.begin(), text.knobs.end());
      candidates.push_back({std::move(text), Notes(engine)});
    }
  } catch (const std::runtime_error&) {
    // A heuristic that can't judge this graph proposes nothing; the next one may.
  }
  return candidates;
}

class GraphPlan : public Plan {
 public:
  // Throws Refused or Error where cuDNN can't build it.
  GraphPlan(std::shared_ptr<const Graph> graph, const Target& target, PlanText text)
      : graph_(std::move(graph)), device_(target.device), text_(std::move(text)) {
    engine_.SetDescriptor(abi::kEngineGraph, graph_->descriptor());
    engine_.SetInt64(abi::kEngineIndex, text_.engine);
    if (target.properties != nullptr) engine_.SetDescriptor(abi::kEngineDeviceProperties, *target.properties);
    engine_.Finalize("the engine");
    const Notes notes(engine_);
    if (const char* objection = notes.Objection(graph_->problem()))
      throw Refused("engine " + std::to_string(text_.engine) + " is left out: " + objection);
    is_deterministic_ = notes.is_deterministic();
    std::vector<abi::RawDescriptor> raw;
    for (const auto& [type, value] : text_.knobs) {
      Descriptor& choice = choices_.emplace_back(abi::kKnobChoice);
      choice.SetEnum(abi::kKnobChoiceType, abi::kTypeKnob, static_cast<int>(type));
      choice.SetInt64(abi::kKnobChoiceValue, value);
      choice.Finalize("a knob");
      raw.push_back(choice.raw());
    }
    configuration_.SetDescriptor(abi::kConfigurationEngine, engine_);
    if (!raw.empty()) configuration_.SetDescriptors(abi::kConfigurationKnobChoices, raw);
    configuration_.Finalize("the engine's knobs");
    if (target.handle != nullptr) plan_.SetHandle(abi::kPlanHandle, target.handle);
    if (target.properties != nullptr) plan_.SetDescriptor(abi::kPlanDeviceProperties, *target.properties);
    plan_.SetDescriptor(abi::kPlanConfiguration, configuration_);
    plan_.Finalize("the plan");
    int64_t bytes = 0;
    plan_.Get(abi::kPlanWorkspaceSize, abi::kTypeInt64, 1, &bytes);
    workspace_bytes_ = static_cast<size_t>(std::max<int64_t>(bytes, 0));
  }

  const PlanText& text() const override { return text_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  bool is_deterministic() const override { return is_deterministic_; }

  void Run(cuda::Stream stream, const Arguments& arguments) const override {
    const Problem& problem = graph_->problem();
    if (device_ == nullptr) Fail("a plan that was made without a GPU can't run: ", problem.ToString());
    try {
      std::vector<const void*> addresses;
      addresses.reserve(graph_->ids().size());
      graph_->Fill(arguments, &addresses);
      for (size_t i = 0; i < addresses.size(); ++i)
        if (graph_->ids()[i] < kFirstScalar &&
            reinterpret_cast<uintptr_t>(addresses[i]) % static_cast<uintptr_t>(problem.alignment) != 0)
          Fail("the address ", addresses[i], " is not aligned to ", problem.alignment, " bytes");
      const cuda::ContextScope scope(*device_);
      const HandleLoan handle(*device_, stream);
      Descriptor pack(abi::kVariantPack);
      pack.SetInt64s(abi::kVariantPackUniqueIds, graph_->ids());
      pack.Set(abi::kVariantPackPointers, abi::kTypePointer, static_cast<int64_t>(addresses.size()), addresses.data());
      pack.Set(abi::kVariantPackWorkspace, abi::kTypePointer, 1, &arguments.workspace);
      pack.Finalize("the addresses");
      CheckStatus(Library().cudnnBackendExecute(handle.get(), plan_.raw(), pack.raw()), "cudnnBackendExecute");
    } catch (const std::runtime_error& error) {
      Fail(error.what(), "; plan ", text_.ToString(), " of ", problem.ToString());
    }
  }

 private:
  std::shared_ptr<const Graph> graph_;
  const cuda::DeviceFacts* device_;
  PlanText text_;
  Descriptor engine_{abi::kEngine};
  std::deque<Descriptor> choices_;
  Descriptor configuration_{abi::kEngineConfiguration};
  Descriptor plan_{abi::kPlan};
  size_t workspace_bytes_ = 0;
  bool is_deterministic_ = true;
};

// ---- Search -------------------------------------------------------------------------------------------------------

constexpr abi::HeuristicMode kModes[] = {abi::kHeuristicA, abi::kHeuristicB, abi::kHeuristicFallback};

// The proposals in the order in which they are tried: calls `visit` for each until it returns true.
void ForEachCandidate(const Graph& graph, const Target& target, const std::function<bool(const PlanText&)>& visit) {
  std::set<std::string> seen;
  std::vector<PlanText> nondeterministic, reference;
  for (const abi::HeuristicMode mode : kModes) {
    for (Candidate& candidate : Propose(graph, target, mode)) {
      if (candidate.notes.Objection(graph.problem()) != nullptr || !seen.insert(candidate.text.ToString()).second)
        continue;
      // With an epilogue the reference engine never pays: a better one without it, and a kernel after it, does.
      if (candidate.notes.is_reference()) {
        if (!graph.HasEpilogue()) reference.push_back(std::move(candidate.text));
      } else if (!candidate.notes.is_deterministic()) {
        nondeterministic.push_back(std::move(candidate.text));
      } else if (visit(candidate.text)) {
        return;
      }
    }
  }
  for (const std::vector<PlanText>* texts : {&nondeterministic, &reference})
    for (const PlanText& text : *texts)
      if (visit(text)) return;
}

Found Search(const Target& target, const Problem& problem, size_t workspace_limit, const PlanText* text) {
  std::shared_ptr<const Graph> graph;
  try {
    graph = std::make_shared<const Graph>(problem, target.handle);
  } catch (const Refused& refused) {
    return {nullptr, refused.what()};
  }
  Found found;
  size_t tried = 0, too_large = 0;
  std::string first;
  const auto attempt = [&](const PlanText& candidate) {
    ++tried;
    try {
      auto plan = std::make_shared<const GraphPlan>(graph, target, candidate);
      if (plan->workspace_bytes() <= workspace_limit) {
        found.plan = std::move(plan);
        return true;
      }
      ++too_large;
      if (first.empty())
        first = "plan " + candidate.ToString() + " needs a workspace of " + std::to_string(plan->workspace_bytes()) +
                " bytes, more than " + std::to_string(workspace_limit);
    } catch (const std::runtime_error& error) {  // this plan can't be built, the next one may
      if (first.empty()) first = "plan " + candidate.ToString() + ": " + error.what();
    }
    return false;
  };
  if (text != nullptr)
    attempt(*text);
  else
    ForEachCandidate(*graph, target, attempt);
  if (found.plan == nullptr)
    found.refusal = tried == 0 ? "cuDNN's heuristics propose no plan"
                               : "none of " + std::to_string(tried) + " plans can be used (" +
                                     std::to_string(too_large) + " for their workspace); " + first;
  return found;
}

// Runs `body` with the device's context, a handle, and leave to load and allocate.
template <typename Body>
auto OnDevice(const cuda::DeviceFacts& device, const Body& body) {
  Library();  // its Error first, before the driver's
  const cuda::ContextScope scope(device);
  const cuda::RelaxedCaptureScope relaxed;
  const HandleLoan handle(device, nullptr);
  Target target;
  target.device = &cuda::Device(device.ordinal);  // lives as long as the process
  target.handle = handle.get();
  return body(target);
}

// What was asked once. Grows with the distinct questions of the process, as the kernels behind the plans do.
struct Answer {
  std::mutex mutex;
  bool is_known = false;
  Found found;
};

std::shared_ptr<Answer> AnswerFor(const std::string& question) {
  static auto* const mutex = new std::mutex;
  static auto* const answers = new std::map<std::string, std::shared_ptr<Answer>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  std::shared_ptr<Answer>& answer = (*answers)[question];
  if (answer == nullptr) answer = std::make_shared<Answer>();
  return answer;
}

// A few threads that build plans; they end when there is nothing to do.
class Builders {
 public:
  void Add(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    const size_t most = std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 8);
    if (threads_ >= most) return;
    KeepLibrary();
    std::thread([this] { Work(); }).detach();
    ++threads_;
  }

 private:
  // The code that the threads run must not be unloaded with the session that started them.
  static void KeepLibrary() {
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(&KeepLibrary), &info) != 0 && info.dli_fname != nullptr)
      dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }

  void Work() {
    for (;;) {
      std::function<void()> task;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (tasks_.empty()) {
          --threads_;
          return;
        }
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  size_t threads_ = 0;
};

}  // namespace

Tensor ChannelsFirst(std::vector<int64_t> dims) {
  std::vector<size_t> order(dims.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return Strided(std::move(dims), order);
}

Tensor ChannelsLast(std::vector<int64_t> dims) {
  std::vector<size_t> order;
  if (dims.size() > 1) order.push_back(1);
  for (size_t axis = dims.size(); axis-- > 2;) order.push_back(axis);
  if (!dims.empty()) order.push_back(0);
  return Strided(std::move(dims), order);
}

std::string Problem::ToString() const {
  return Describe(*this) + (program == nullptr ? "" : ", epilogue " + program->ToString());
}

void Check(const Problem& problem) {
  if (!IsFloating(problem.dtype))
    Fail("a convolution of ", NameOf(problem.dtype), ": the dtype must be a floating one");
  const size_t rank = problem.x.dims.size();
  if (rank < 3 || rank > 5)
    Fail("a convolution's x has ", rank, " dims, expected 3 to 5: N, C and one to three spatial ones");
  CheckTensor(problem.x, "x", rank);
  CheckTensor(problem.w, "w", rank);
  CheckTensor(problem.y, "y", rank);
  const int64_t alignment = problem.alignment, size = static_cast<int64_t>(SizeOf(problem.dtype));
  if (alignment < size || alignment % size != 0)
    Fail("a convolution's addresses are aligned to ", alignment, " bytes, expected a multiple of ", size);
  if (problem.groups < 1) Fail("a convolution's groups are ", problem.groups, ", expected at least 1");
  if (problem.w.dims[1] * problem.groups != problem.x.dims[1] || problem.w.dims[0] % problem.groups != 0 ||
      problem.w.dims[0] != problem.y.dims[1] || problem.x.dims[0] != problem.y.dims[0])
    Fail("a convolution's x [", Join(problem.x.dims), "], w [", Join(problem.w.dims), "] and y [", Join(problem.y.dims),
         "] do not fit together with ", problem.groups, " groups");
  for (const std::vector<int64_t>* numbers :
       {&problem.pads_begin, &problem.pads_end, &problem.strides, &problem.dilations})
    if (numbers->size() != rank - 2)
      Fail("a convolution of ", rank - 2, " spatial dimensions has pads, strides or dilations for ", numbers->size());
  for (size_t i = 0; i + 2 < rank; ++i) {
    const int64_t stride = problem.strides[i], dilation = problem.dilations[i];
    if (stride < 1 || dilation < 1 || problem.pads_begin[i] < 0 || problem.pads_end[i] < 0)
      Fail("a convolution has pads ", problem.pads_begin[i], " and ", problem.pads_end[i], ", stride ", stride,
           " and dilation ", dilation, ": pads must not be negative, strides and dilations must be positive");
    const int64_t room = problem.x.dims[i + 2] + problem.pads_begin[i] + problem.pads_end[i] -
                         dilation * (problem.w.dims[i + 2] - 1) - 1;
    if (room < 0 || room / stride + 1 != problem.y.dims[i + 2])
      Fail("a convolution's y has ", problem.y.dims[i + 2], " elements along spatial axis ", i, ", expected ",
           room < 0 ? 0 : room / stride + 1);
  }
  CheckEpilogue(problem);
}

std::string RefusalOf(const Program& program) {
  std::string why;
  return MapProgram(program, &why) ? "" : why;
}

std::string PlanText::ToString() const {
  std::string text = "engine=" + std::to_string(engine);
  for (const auto& [type, value] : knobs) text += ";k" + std::to_string(type) + "=" + std::to_string(value);
  return text;
}

PlanText PlanText::Parse(const std::string& text) {
  constexpr size_t kMaxCharacters = 2048;
  PlanText plan{};
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto fail = [&](const char* expected) {
    std::string shown = text.substr(0, 100);
    for (char& character : shown)
      if (character < ' ' || character > '~') character = '?';
    Fail("the plan \"", shown, "\" is not valid: expected ", expected, " at character ", at - text.data() + 1,
         ", for example engine=3;k2=1;k14=4");
  };
  const auto skip = [&](std::string_view word, const char* expected) {
    if (static_cast<size_t>(end - at) < word.size() || std::string_view(at, word.size()) != word) fail(expected);
    at += word.size();
  };
  const auto number = [&](int64_t least, int64_t most, const char* expected) {
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < least || value > most) fail(expected);
    at = next;
    return value;
  };
  if (text.size() > kMaxCharacters) fail("at most 2048 characters");
  skip("engine=", "\"engine=\"");
  plan.engine = number(0, 1000000, "the engine's number");
  while (at != end) {
    skip(";k", "\";k\" and a knob's number");
    const int64_t type = number(0, 1000000, "the knob's number");
    if (plan.knobs.size() == kMaxKnobs || (!plan.knobs.empty() && plan.knobs.back().first >= type))
      fail("at most 64 knobs in ascending order before this");
    skip("=", "\"=\" and the knob's value");
    plan.knobs.emplace_back(type, number(-1000000000000, 1000000000000, "the knob's value"));
  }
  return plan;
}

Found FindPlan(const cuda::DeviceFacts& device, const Problem& problem, size_t workspace_limit, const PlanText* text) {
  Check(problem);
  const std::shared_ptr<Answer> answer = AnswerFor(
      std::to_string(device.ordinal) + " " + std::to_string(workspace_limit) + " " +
      (text == nullptr ? "" : text->ToString()) + " " + Describe(problem) + " " + Signature(problem.program.get()));
  const std::lock_guard<std::mutex> lock(answer->mutex);
  if (!answer->is_known) {
    answer->found =
        OnDevice(device, [&](const Target& target) { return Search(target, problem, workspace_limit, text); });
    answer->is_known = true;
  }
  return answer->found;
}

void Prepare(const cuda::DeviceFacts& device, const Problem& problem, size_t workspace_limit, const PlanText* text) {
  static auto* const builders = new Builders;
  const auto wanted = text == nullptr ? nullptr : std::make_shared<const PlanText>(*text);
  builders->Add([device, problem, workspace_limit, wanted] {
    try {
      FindPlan(device, problem, workspace_limit, wanted.get());
    } catch (const std::exception&) {
      // The FindPlan that follows meets it again, where somebody is told.
    }
  });
}

std::vector<PlanText> ListPlans(const cuda::DeviceFacts& device, const Problem& problem) {
  Check(problem);
  return OnDevice(device, [&](const Target& target) {
    std::vector<PlanText> texts;
    try {
      const Graph graph(problem, target.handle);
      ForEachCandidate(graph, target, [&](const PlanText& text) {
        texts.push_back(text);
        return false;
      });
    } catch (const Refused&) {
      texts.clear();  // no graph, no plans
    }
    return texts;
  });
}

Found FindPlanFor(const std::string& device_properties, const Problem& problem, size_t workspace_limit,
                  const PlanText* text) {
  Check(problem);
  Descriptor properties(abi::kDeviceProperties);
  properties.Set(abi::kDevicePropertiesText, abi::kTypeChar, static_cast<int64_t>(device_properties.size() + 1),
                 device_properties.c_str());
  properties.Finalize("the device's properties");
  Target target;
  target.properties = &properties;
  return Search(target, problem, workspace_limit, text);
}

}  // namespace ortplugin::cudnn
