#include "ortplugin/runtime/cudnn/graph.h"

#include <algorithm>
#include <optional>
#include <string>

#include "ortplugin/runtime/cudnn/problem.h"

namespace ortplugin::cudnn {
namespace {

// The numbers of tensors: these and the index among their kind.
enum : int64_t { kFirstInput = 1, kFirstOperand = 100, kFirstResult = 200, kFirstScalar = 300, kFirstVirtual = 100000 };

int64_t Elements(const Tensor& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.dims) count *= dim;
  return count;
}

// As its kernels with an epilogue can take it.
Problem Arranged(const Problem& problem) {
  Problem lifted = Lifted(problem);
  if (problem.program == nullptr) return lifted;
  std::optional<Problem> arranged = InOneLayout(std::move(lifted));
  if (!arranged) throw Refused("cuDNN takes an image of one pixel for channels last, unlike the tensors beside it");
  return *std::move(arranged);
}

}  // namespace

Graph::Graph(const Problem& problem, abi::Handle handle) : problem_(Arranged(problem)) {
  math_ = problem_.dtype == DType::kDouble ? DType::kDouble : DType::kFloat;
  if (HasEpilogue()) {
    std::string why;
    std::optional<PointwiseGraph> mapped = MapProgram(*problem_.program, &why);
    if (!mapped) throw Refused("cuDNN has no pointwise operation for " + why);
    pointwise_ = std::move(*mapped);
    for (const double scalar : pointwise_.scalars) scalars_.push_back({float(scalar), scalar});
    PutBiasLast();
  }
  AddConvolution();
  for (size_t i = 0; i < pointwise_.nodes.size(); ++i) AddPointwise(i);
  graph_.SetDescriptors(abi::kGraphOperations, operations_);
  if (handle != nullptr) graph_.SetHandle(abi::kGraphHandle, handle);
  graph_.Finalize("the graph of operations");
}

bool Graph::HasEpilogue() const { return problem_.program != nullptr; }

std::vector<const void*> Graph::Addresses(const Arguments& arguments) const {
  std::vector<const void*> addresses;
  addresses.reserve(ids_.size());
  for (const int64_t id : ids_) {
    if (id >= kFirstScalar) {
      const Scalar& scalar = scalars_[size_t(id - kFirstScalar)];
      addresses.push_back(math_ == DType::kDouble ? static_cast<const void*>(&scalar.wide) : &scalar.narrow);
    } else if (id >= kFirstResult) {
      addresses.push_back(arguments.results[id - kFirstResult]);
    } else if (id >= kFirstOperand) {
      addresses.push_back(arguments.operands[id - kFirstOperand]);
    } else {
      addresses.push_back(arguments.inputs[id - kFirstInput]);
    }
  }
  return addresses;
}

// The sum of a convolution, a residual and a bias: cuDNN has engines that are not compiled at run time, twice as fast
// on small images, for a bias that comes after the residual. Only the rounding of the sum in fp32 depends on it.
void Graph::PutBiasLast() {
  if (pointwise_.nodes.size() < 2) return;
  PointwiseNode &first = pointwise_.nodes[0], &second = pointwise_.nodes[1];
  const Operand sum{Operand::Kind::kNode, 0};
  const auto adds_parameter = [](const PointwiseNode& node) {
    return node.mode == abi::PointwiseMode::kAdd && node.b.kind == Operand::Kind::kParameter;
  };
  if (!adds_parameter(first) || !adds_parameter(second) || first.x.kind != Operand::Kind::kConvolution ||
    !(second.x == sum) || first.result >= 0)
    return;
  for (size_t i = 2; i < pointwise_.nodes.size(); ++i)
    for (const Operand& operand : {pointwise_.nodes[i].x, pointwise_.nodes[i].b, pointwise_.nodes[i].t})
      if (operand == sum) return;
  if (Elements(problem_.operands[first.b.index - 1]) < Elements(problem_.operands[second.b.index - 1]))
    std::swap(first.b, second.b);
}

size_t Graph::AddTensor(int64_t id, const Tensor& tensor, DType dtype, bool is_virtual, bool is_scalar) {
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

void Graph::AddOperation(Descriptor operation) {
  operations_.push_back(operation.raw());
  descriptors_.push_back(std::move(operation));
}

void Graph::AddConvolution() {
  Descriptor& attributes = descriptors_.emplace_back(abi::kConvolution);
  attributes.SetEnum(abi::kConvolutionComputeType, abi::kTypeDataType, DataTypeOf(math_));
  attributes.SetEnum(abi::kConvolutionMode, abi::kTypeConvolutionMode, abi::kCrossCorrelation);
  attributes.SetInt64(abi::kConvolutionSpatialDims, int64_t(problem_.strides.size()));
  attributes.SetInt64s(abi::kConvolutionDilations, problem_.dilations);
  attributes.SetInt64s(abi::kConvolutionStrides, problem_.strides);
  attributes.SetInt64s(abi::kConvolutionPrePaddings, problem_.pads_begin);
  attributes.SetInt64s(abi::kConvolutionPostPaddings, problem_.pads_end);
  attributes.Finalize("the convolution's attributes");

  struct Names {
    abi::DescriptorType type;
    abi::Attribute alpha, beta, attributes, tensors[3];  // x, w, y
    size_t value;  // which of the tensors it computes
    int64_t inputs[3];  // their places in Arguments::inputs
  };
  static constexpr Names kNames[] = {
    {abi::kConvolutionForward, abi::kForwardAlpha, abi::kForwardBeta, abi::kForwardConvolution,
      {abi::kForwardX, abi::kForwardW, abi::kForwardY}, 2, {0, 1, -1}},
    {abi::kConvolutionDataGradient, abi::kDataGradientAlpha, abi::kDataGradientBeta, abi::kDataGradientConvolution,
      {abi::kDataGradientX, abi::kDataGradientW, abi::kDataGradientY}, 0, {-1, 1, 0}},
    {abi::kConvolutionWeightGradient, abi::kWeightGradientAlpha, abi::kWeightGradientBeta,
      abi::kWeightGradientConvolution, {abi::kWeightGradientX, abi::kWeightGradientW, abi::kWeightGradientY}, 1,
      {0, -1, 1}}};
  const Names& names = kNames[size_t(problem_.direction)];
  Descriptor operation(names.type);
  operation.SetDescriptor(names.attributes, attributes);
  const Tensor* tensors[] = {&problem_.x, &problem_.w, &problem_.y};
  for (size_t i = 0; i < 3; ++i) {
    size_t made;
    if (i != names.value)
      made = AddTensor(kFirstInput + names.inputs[i], *tensors[i], problem_.dtype);
    else if (HasEpilogue())
      made = AddTensor(kFirstVirtual, DenseLike(tensors[i]->dims, problem_.results[0]), math_, true);
    else
      made = AddTensor(kFirstResult, *tensors[i], problem_.dtype);
    if (i == names.value) made_[{Operand::Kind::kConvolution, 0}] = {made, tensors[i]->dims};
    operation.SetDescriptor(names.tensors[i], descriptors_[made]);
  }
  // value = 1 * convolution + 0 * value, in the arithmetic's dtype
  static constexpr Scalar kAlpha{1, 1}, kBeta{0, 0};
  const bool is_wide = math_ == DType::kDouble;
  const abi::AttributeType type = is_wide ? abi::kTypeDouble : abi::kTypeFloat;
  operation.Set(names.alpha, type, 1, is_wide ? static_cast<const void*>(&kAlpha.wide) : &kAlpha.narrow);
  operation.Set(names.beta, type, 1, is_wide ? static_cast<const void*>(&kBeta.wide) : &kBeta.narrow);
  operation.Finalize("the convolution");
  AddOperation(std::move(operation));
}

// The tensor of an operand, made where it is new.
const Graph::Made& Graph::TensorOf(const Operand& operand) {
  const auto key = std::make_pair(operand.kind, operand.index);
  const auto found = made_.find(key);
  if (found != made_.end()) return found->second;
  const std::vector<int64_t>& value_dims = ValueOf(problem_).dims;
  const std::vector<int64_t> ones(value_dims.size(), 1);
  if (operand.kind == Operand::Kind::kScalar) {
    // It has the dims of a bias then, and cuDNN (9.19) reads one from the scalar's address, which is the host's.
    if (value_dims[1] == 1) throw Refused("a literal in the epilogue of a convolution of one filter");
    return made_[key] = {AddTensor(kFirstScalar + operand.index, {ones, ones}, math_, false, true), ones};
  }
  const Tensor& tensor = problem_.operands[operand.index - 1];
  std::vector<int64_t> channel = ones;
  channel[1] = value_dims[1];
  // cuDNN proposes plans for other broadcasts, [N,C,1,1] for one, but their kernels give wrong results or fault (9.19).
  if (tensor.dims != value_dims && tensor.dims != channel && tensor.dims != ones)
    throw Refused("an epilogue operand is broadcast in another way than as one value for each channel, or for all");
  const DType dtype = problem_.program->parameter(operand.index).dtype;
  return made_[key] = {AddTensor(kFirstOperand + operand.index - 1, tensor, dtype), tensor.dims};
}

void Graph::AddPointwise(size_t index) {
  const PointwiseNode& node = pointwise_.nodes[index];
  const std::vector<int64_t>& value_dims = ValueOf(problem_).dims;
  std::vector<int64_t> dims(value_dims.size(), 1);
  bool follows_convolution = false;
  for (const Operand& operand : {node.x, node.b, node.t}) {
    if (operand.kind == Operand::Kind::kNone) continue;
    follows_convolution =
      follows_convolution || operand.kind == Operand::Kind::kConvolution || operand.kind == Operand::Kind::kNode;
    const std::vector<int64_t>& given = TensorOf(operand).dims;
    for (size_t i = 0; i < dims.size(); ++i) dims[i] = std::max(dims[i], given[i]);
  }
  // These too cuDNN takes and computes something else. So every node follows the convolution.
  if (!follows_convolution) throw Refused("a part of the epilogue is computed from operands alone");
  if (node.mode == abi::PointwiseMode::kSelect)
    for (const Operand& operand : {node.x, node.t})
      if (operand.kind != Operand::Kind::kScalar && TensorOf(operand).dims != dims)
        throw Refused("a Where whose condition or first choice is broadcast");

  size_t value;
  if (node.result >= 0) {
    dims = value_dims;
    value = AddTensor(kFirstResult + node.result, problem_.results[size_t(node.result)], node.dtype);
  } else {
    value = AddTensor(kFirstVirtual + 1 + int64_t(index), DenseLike(dims, problem_.results[0]), node.dtype, true);
  }
  made_[{Operand::Kind::kNode, uint32_t(index)}] = {value, dims};

  Descriptor& mode = descriptors_.emplace_back(abi::kPointwise);
  mode.SetEnum(abi::kPointwiseMode, abi::kTypePointwiseMode, int(node.mode));
  mode.SetEnum(abi::kPointwiseMathPrecision, abi::kTypeDataType, DataTypeOf(math_));
  if (node.mode == abi::PointwiseMode::kRelu)
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
  AddOperation(std::move(operation));
}

}  // namespace ortplugin::cudnn
