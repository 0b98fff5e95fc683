#include "ortplugin/runtime/cudnn/problem.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "ortplugin/runtime/error.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin::cudnn {
namespace {

template <typename Number>
std::string Join(const std::vector<Number>& numbers) {
  std::string text;
  for (const Number number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

std::string ToString(const Tensor& tensor) { return "[" + Join(tensor.dims) + "] strides " + Join(tensor.strides); }

const char* NameOf(Direction direction) {
  switch (direction) {
    case Direction::kDataGradient: return "data gradient of a convolution";
    case Direction::kWeightGradient: return "weight gradient of a convolution";
    default: return "convolution";
  }
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
      " results, but ", problem.operands.size(), " operands after the convolution's value and ", problem.results.size(),
      " results are given");
  if (program.parameter(0).dtype != problem.dtype)
    Fail("a convolution of ", NameOf(problem.dtype), " has an epilogue whose first parameter is ",
      NameOf(program.parameter(0).dtype));
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

// A program without its names: equal for programs that compute the same in the same order.
std::string ProgramSignature(const Program* program) {
  if (program == nullptr) return "";
  std::ostringstream text;
  text.precision(17);
  for (const Value& value : program->values()) {
    text << NameOf(value.dtype) << int(value.kind);
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

// Elements of a sum of a forward convolution, or a data gradient of stride 1.
int64_t SumLength(const Problem& problem) {
  int64_t sum = problem.direction == Direction::kForward ? problem.w.dims[1] : problem.w.dims[0] / problem.groups;
  for (size_t i = 2; i < problem.w.dims.size(); ++i) sum *= problem.w.dims[i];
  return sum;
}

constexpr char kIdentity[] = ";identity";  // in a plan's text

}  // namespace

const Tensor& ValueOf(const Problem& problem) {
  if (problem.direction == Direction::kDataGradient) return problem.x;
  return problem.direction == Direction::kWeightGradient ? problem.w : problem.y;
}

// The compiled kernels take about twice as long (3x3 / 2 and 4x4 / 2 in float16) where the ready-made ones keep the GPU
// busy (many FLOPs) or divide long sums, and where their tile is half empty.
bool IsSlowWithEpilogue(const Problem& problem, const TargetLimits& limits) {
  if (problem.direction != Direction::kDataGradient) return false;
  int64_t stride = 1, kernel = 1, multiply_adds = problem.w.dims[1];
  for (size_t i = 0; i < problem.strides.size(); ++i) {
    stride *= problem.strides[i];
    kernel *= problem.w.dims[i + 2];
  }
  // Where the kernel overlaps nothing, an element sums over little, and what is written counts.
  if (stride == 1 || kernel <= stride) return false;
  for (const int64_t dim : problem.y.dims) multiply_adds *= dim;
  const int64_t sum = problem.w.dims[0] / problem.groups * kernel / stride;
  return problem.w.dims[1] <= limits.cudnn_gradient_narrow || sum >= limits.cudnn_gradient_long_sum ||
    multiply_adds * kernel >= limits.cudnn_gradient_many_multiply_adds;
}

bool HasLongSums(const Problem& problem, const TargetLimits& limits, int multiprocessors) {
  const std::vector<int64_t>& value = ValueOf(problem).dims;
  int64_t rows = 1;
  for (const int64_t dim : value) rows *= dim;
  rows /= value[1];
  const int64_t tile = limits.cudnn_tile, tiles = DivideUp(rows, tile) * DivideUp(value[1], tile);
  return SumLength(problem) >= limits.cudnn_long_sum && 2 * tiles < multiprocessors;
}

bool TakesIdentity(const Problem& problem) {
  return problem.program == nullptr && SizeOf(problem.dtype) == 2 && problem.direction != Direction::kWeightGradient;
}

Problem WithIdentity(Problem problem) {
  const std::string type = NameOf(problem.dtype);
  problem.program = std::make_shared<const Program>(Program::Parse("(" + type + " c) => (" + type + " c) {}"));
  problem.results = {ValueOf(problem)};
  return problem;
}

bool MayLoseResult(const Problem& problem) {
  if (problem.program == nullptr || problem.program->results().size() < 2) return false;
  const Program& program = *problem.program;
  std::set<ValueId> same{program.parameters()[0]}, read;
  for (const Statement& statement : program.statements()) {
    if (statement.op == Op::kCast && same.count(statement.operands[0]) != 0) same.insert(statement.result);
    read.insert(statement.operands.begin(), statement.operands.end());
  }
  const std::vector<ValueId>& results = program.results();
  const auto is_any = [&](auto has) { return std::any_of(results.begin(), results.end(), has); };
  if (is_any([&](ValueId id) { return program.value(id).dtype == DType::kFloat && read.count(id) != 0; })) return true;
  return is_any([&](ValueId id) { return same.count(id) != 0; }) &&
    is_any([&](ValueId id) { return program.value(id).dtype != problem.dtype; });
}

bool IsSlowWithoutTensorCores(DType dtype, bool is_compiled_here) {
  // cuDNN 9.19 on an H100, six layers and products without TF32: 0.3 to 0.7 TFLOP/s, where ready-made kernels have
  // tens; of 128 channels, 3 x 3, 8 images of 56 x 56 it is 14 ms, and 12 s and 4 GB before the first run.
  return is_compiled_here ? dtype == DType::kFloat : SizeOf(dtype) == 2;
}

bool MayCutFactors(const Problem& problem, const PlanText& plan) {
  // Of 3 channels to 16 and 32, 3 x 3 of stride 2, with cuDNN 9.19 on an H100: engine 7 rounds without knob 24, and
  // with its values 21 and 22, but not with 26 and 29. No other engine that is proposed for eight such layers cuts.
  // Of gradients only those of weights are cut, by engine 68: nothing is computed from them, so that it stays.
  if (problem.dtype != DType::kFloat || problem.direction != Direction::kForward || plan.engine != 7) return false;
  return std::any_of(plan.knobs.begin(), plan.knobs.end(),
    [](const auto& knob) { return knob.first == 24 && knob.second != 21 && knob.second != 22; });
}

bool HasIdentity(const Problem& problem) { return problem.program != nullptr && IsIdentity(*problem.program); }

bool IsFasterWithIdentity(const Problem& problem, const TargetLimits& limits, int multiprocessors) {
  if (limits.cudnn_identity_pays == 0) return false;
  const Tensor& value = ValueOf(problem);
  if (!TakesIdentity(problem) || problem.groups != 1 || value.dims.size() != 4 || value.strides[1] != 1) return false;
  for (const std::vector<int64_t>* each : {&problem.strides, &problem.dilations})
    if (std::count(each->begin(), each->end(), 1) != 2) return false;
  // 1x1 convolutions take a tenth longer.
  if (problem.w.dims[2] * problem.w.dims[3] == 1 || value.dims[1] < limits.cudnn_identity_least_channels) return false;
  int64_t multiply_adds = SumLength(problem);
  for (const int64_t dim : value.dims) multiply_adds *= dim;
  if (multiply_adds > limits.cudnn_identity_most_multiply_adds || HasLongSums(problem, limits, multiprocessors))
    return false;
  return problem.direction == Direction::kDataGradient || multiply_adds >= limits.cudnn_identity_least_forward;
}

std::optional<Problem> Rotated180(const Problem& gradient) {
  if (gradient.direction != Direction::kDataGradient || gradient.groups != 1) return std::nullopt;
  Problem turned = gradient;
  turned.direction = Direction::kForward;
  std::swap(turned.x, turned.y);
  std::swap(turned.w.dims[0], turned.w.dims[1]);
  turned.w = DenseLike(turned.w.dims, gradient.w);
  for (size_t i = 0; i < gradient.strides.size(); ++i) {
    const int64_t reach = (gradient.w.dims[i + 2] - 1) * gradient.dilations[i];
    turned.pads_begin[i] = reach - gradient.pads_begin[i];
    turned.pads_end[i] = reach - gradient.pads_end[i];
    if (gradient.strides[i] != 1 || turned.pads_begin[i] < 0 || turned.pads_end[i] < 0) return std::nullopt;
  }
  return turned;
}

Tensor DenseLike(std::vector<int64_t> dims, const Tensor& like) {
  std::vector<size_t> order(dims.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return like.strides[a] < like.strides[b]; });
  return Strided(std::move(dims), order);
}

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

std::optional<Problem> InOneLayout(Problem problem) {
  const auto has_one_pixel = [](const Tensor& tensor) {
    return std::all_of(tensor.dims.begin() + 2, tensor.dims.end(), [](int64_t dim) { return dim == 1; });
  };
  if (!has_one_pixel(problem.x) && !has_one_pixel(problem.y)) return problem;
  std::vector<Tensor*> tensors = {&problem.x, &problem.w, &problem.y};
  for (Tensor& tensor : problem.operands) tensors.push_back(&tensor);
  for (Tensor& tensor : problem.results) tensors.push_back(&tensor);
  for (Tensor* tensor : tensors) {
    const std::vector<int64_t> last = ChannelsLast(tensor->dims).strides;
    if (tensor->strides == last) continue;
    // Of one pixel or one channel, it lies in memory as it would with its channels last.
    if (!has_one_pixel(*tensor) && tensor->dims[1] != 1) return std::nullopt;
    tensor->strides = last;
  }
  return problem;
}

abi::DataType DataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return abi::kHalf;
    case DType::kBFloat16: return abi::kBFloat16;
    case DType::kDouble: return abi::kDouble;
    case DType::kBool: return abi::kBoolean;
    default: return abi::kFloat;
  }
}

std::string Signature(const Problem& problem) {
  return Describe(problem) + " " + ProgramSignature(problem.program.get());
}

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
  const int64_t alignment = problem.alignment, size = int64_t(SizeOf(problem.dtype));
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
    const int64_t room =
      problem.x.dims[i + 2] + problem.pads_begin[i] + problem.pads_end[i] - dilation * (problem.w.dims[i + 2] - 1) - 1;
    if (room < 0 || room / stride + 1 != problem.y.dims[i + 2])
      Fail("a convolution's y has ", problem.y.dims[i + 2], " elements along spatial axis ", i, ", expected ",
        room < 0 ? 0 : room / stride + 1);
  }
  CheckEpilogue(problem);
}

std::string PlanText::ToString() const {
  std::string text = "engine=" + std::to_string(engine);
  for (const auto& [type, value] : knobs) text += ";k" + std::to_string(type) + "=" + std::to_string(value);
  return text + (has_identity ? kIdentity : "");
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
    if (size_t(end - at) < word.size() || std::string_view(at, word.size()) != word) fail(expected);
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
    if (std::string_view(at, size_t(end - at)) == kIdentity) {
      plan.has_identity = true;
      break;
    }
    skip(";k", "\";k\" and a knob's number, or \";identity\" at the end,");
    const int64_t type = number(0, 1000000, "the knob's number");
    if (plan.knobs.size() == kMaxKnobs || (!plan.knobs.empty() && plan.knobs.back().first >= type))
      fail("at most 64 knobs in ascending order before this");
    skip("=", "\"=\" and the knob's value");
    plan.knobs.emplace_back(type, number(-1000000000000, 1000000000000, "the knob's value"));
  }
  return plan;
}

}  // namespace ortplugin::cudnn
