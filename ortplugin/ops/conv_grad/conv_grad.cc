#include "ortplugin/ops/conv_grad/conv_grad.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "ortplugin/ops/conv_grad/cpu_gemm.h"
#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/program/program_sweep.h"
#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

constexpr int64_t kUnknown = -1;

// Whether `word` is one of the words of the text, which must be some of `allowed` in their order.
std::vector<bool> Words(const char* name, const std::string& text, const std::vector<std::string>& allowed) {
  std::vector<bool> found(allowed.size());
  std::istringstream words(text);
  size_t next = 0;
  for (std::string word; words >> word; ++next) {
    while (next < allowed.size() && allowed[next] != word) ++next;
    if (next == allowed.size()) {
      std::string all;
      for (const std::string& each : allowed) all += (all.empty() ? "" : ", ") + each;
      Fail(name, "=", Quoted(text), " must be some of ", all, ", in this order");
    }
    found[next] = true;
  }
  return found;
}

Shape Numbers(const char* name, const Shape& given, int64_t least, size_t count) {
  constexpr int64_t kMost = INT32_MAX;
  if (given.empty()) return Shape(count, least);
  if (given.size() != count) Fail(name, "=", ToString(given), " must have ", count, " numbers, as kernel_shape says");
  for (const int64_t number : given)
    if (number < least || number > kMost) Fail(name, "=", ToString(given), ": each must be ", least, " to ", kMost);
  return given;
}

int64_t Whole(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) Fail(name, "=", value, " must be ", least, " to ", most);
  return value;
}

// Node: a ShapeContext, a NodeInfo or a NodeText.
template <typename Node>
GradNode ReadNode(const Node& node) {
  GradNode grad{};
  const auto wanted = Words("gradients", node.string_attribute("gradients"), {"dX", "dW", "dB", "dZ"});
  grad.wants_x = wanted[0], grad.wants_w = wanted[1], grad.wants_b = wanted[2], grad.wants_z = wanted[3];
  const auto given = Words("operands", node.string_attribute("operands", ""), {"X", "W"});
  grad.has_x = given[0], grad.has_w = given[1];
  grad.text = ProgramText(node, grad.operands(), grad.operands() + 1);
  grad.program = Program::Parse(grad.text);
  for (const Statement& statement : grad.program.statements())
    if (IsCore(statement.op)) Fail("the program holds a ", NameOf(statement.op), "; it must be pointwise");
  if (grad.program.parameters().empty() || !IsFloating(grad.dtype()))
    Fail("the program's first result must be a floating value of its parameters");
  if (std::none_of(wanted.begin(), wanted.end(), [](bool each) { return each; }))
    Fail("gradients='' must name at least one of dX, dW, dB, dZ");
  if (grad.wants_x && !grad.has_w) Fail("dX needs W; add it to the operands");
  if (grad.wants_w && !grad.has_x) Fail("dW needs X; add it to the operands");
  grad.transposed = Whole("transposed", node.int_attribute("transposed", 0), 0, 1) != 0;
  grad.allow_tf32 = Whole("allow_tf32", node.int_attribute("allow_tf32", 0), 0, 1) != 0;
  const std::string layout = node.string_attribute("layout", "NCHW");
  grad.channels_last = layout == "NHWC";
  if (!grad.channels_last && layout != "NCHW") Fail("layout=", Quoted(layout), " must be NCHW or NHWC");
  grad.group = Whole("group", node.int_attribute("group", 1), 1, INT32_MAX);
  const Shape kernel = node.ints_attribute("kernel_shape");
  const size_t rank = kernel.size();
  if (rank < 1 || rank > 3) Fail("the attribute 'kernel_shape' must have 1 to 3 numbers");
  grad.kernel = Numbers("kernel_shape", kernel, 1, rank);
  grad.strides = Numbers("strides", node.ints_attribute("strides"), 1, rank);
  grad.dilations = Numbers("dilations", node.ints_attribute("dilations"), 1, rank);
  grad.output_padding = Numbers("output_padding", node.ints_attribute("output_padding"), 0, rank);
  const Shape pads = Numbers("pads", node.ints_attribute("pads"), 0, 2 * rank);
  grad.pads_begin.assign(pads.begin(), pads.begin() + std::ptrdiff_t(rank));
  grad.pads_end.assign(pads.begin() + std::ptrdiff_t(rank), pads.end());
  grad.data_algorithm = node.string_attribute("data_algorithm", "auto");
  grad.weight_algorithm = node.string_attribute("weight_algorithm", "auto");
  grad.weight_dtype = grad.dtype();
  const std::string weight_dtype = node.string_attribute("weight_dtype", "");
  if (!weight_dtype.empty()) {
    const DType types[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat, DType::kDouble};
    const auto* const type =
      std::find_if(std::begin(types), std::end(types), [&](DType each) { return weight_dtype == NameOf(each); });
    if (type == std::end(types))
      Fail("weight_dtype=", Quoted(weight_dtype), " must be float16, bfloat16, float or double");
    grad.weight_dtype = *type;
    // What ORT runs in float for want of float16 (ProgramText).
    if (*type == DType::kFloat16 && node.string_attribute("program") != grad.text) grad.weight_dtype = DType::kFloat;
  }
  return grad;
}

Shape First(const Shape& shape, bool channels_last) {
  if (!channels_last || shape.size() < 3) return shape;
  Shape first(shape.begin(), shape.end() - 1);
  first.insert(first.begin() + 1, shape.back());
  return first;
}
Shape Last(const Shape& shape, bool channels_last) {
  if (!channels_last) return shape;
  Shape last = shape;
  last.erase(last.begin() + 1);
  last.push_back(shape[1]);
  return last;
}

// Shapes as far as they are known, channels first; a tensor whose rank is unknown has no dimension.
struct Known {
  Shape z, x, w;
};

// The least size of the large tensor that goes with this size of the small one.
int64_t Large(const GradNode& node, size_t axis, int64_t small) {
  return (small - 1) * node.strides[axis] + (node.kernel[axis] - 1) * node.dilations[axis] + 1 - node.pads_begin[axis] -
    node.pads_end[axis];
}

void CheckKnown(const GradNode& node, const Known& known) {
  const Shape &small = node.transposed ? known.x : known.z, &large = node.transposed ? known.z : known.x;
  const auto differ = [](int64_t a, int64_t b) { return a >= 0 && b >= 0 && a != b; };
  const auto require = [&](bool good, const auto&... reason) {
    if (!good)
      Fail(reason..., ": X ", ToString(known.x), ", W ", ToString(known.w), ", S ", ToString(known.z),
        " (channels first, -1 where unknown), group=", node.group);
  };
  constexpr int64_t kMost = INT32_MAX;
  for (const Shape* shape : {&known.x, &known.z, &known.w})
    for (const int64_t size : *shape) require(size <= kMost, "a size is above ", kMost);
  if (!known.w.empty()) {
    for (size_t axis = 0; axis < node.rank(); ++axis)
      require(!differ(known.w[2 + axis], node.kernel[axis]), "kernel_shape=", ToString(node.kernel), " is not W's");
    require(known.w[0] < 0 || known.w[0] % node.group == 0, "the groups do not divide W");
    if (!small.empty()) require(!differ(known.w[0], small[1]), "W does not have the channels");
    if (!large.empty() && known.w[1] >= 0)
      require(!differ(known.w[1] * node.group, large[1]), "W does not have the channels");
  }
  for (const Shape* shape : {&known.x, &known.z})
    if (!shape->empty())
      require((*shape)[1] < 0 || (*shape)[1] % node.group == 0, "the groups do not divide the channels");
  if (known.x.empty() || known.z.empty()) return;
  require(!differ(known.x[0], known.z[0]), "X and S have different batches");
  for (size_t axis = 0; axis < node.rank(); ++axis) {
    const int64_t a = small[2 + axis], b = large[2 + axis];
    if (a < 0 || b < 0) continue;
    const int64_t rest = b - Large(node, axis, a);
    const int64_t room = node.transposed ? std::max(node.strides[axis], node.dilations[axis]) : node.strides[axis];
    require(
      rest >= 0 && rest < room, "along spatial axis ", axis, " the sizes ", a, " and ", b, " do not belong together");
  }
}

// `operands`: X and W, as far as they are given, in the node's layout; -1 and empty shapes where unknown.
Known Complete(const GradNode& node, const Shapes& operands, const Shape& whole) {
  Known known{First(whole, node.channels_last), {}, {}};
  size_t next = 0;
  if (node.has_x) known.x = First(operands[next++], node.channels_last);
  if (node.has_w) known.w = First(operands[next++], node.channels_last);
  const size_t rank = node.rank();
  constexpr int64_t kMost = INT32_MAX;  // what follows multiplies two sizes
  for (const Shape* shape : {&known.x, &known.w, &known.z})
    for (const int64_t size : *shape)
      if (size > kMost) Fail("the shape ", ToString(*shape), " (channels first) has a size above ", kMost);
  for (const Shape* shape : {&known.x, &known.w, &known.z})
    if (!shape->empty() && shape->size() != rank + 2)
      Fail("kernel_shape=", ToString(node.kernel), " has another rank than X ", ToString(known.x), ", W ",
        ToString(known.w), " or S ", ToString(known.z), " (channels first, -1 where unknown)");
  if (known.w.empty()) {
    const Shape &small = node.transposed ? known.x : known.z, &large = node.transposed ? known.z : known.x;
    known.w = {small.empty() ? kUnknown : small[1], large.empty() || large[1] < 0 ? kUnknown : large[1] / node.group};
    known.w.insert(known.w.end(), node.kernel.begin(), node.kernel.end());
  }
  if (!node.has_x && !known.z.empty()) {
    known.x = {known.z[0], node.transposed ? known.w[0] : known.w[1] < 0 ? kUnknown : known.w[1] * node.group};
    for (size_t axis = 0; axis < rank; ++axis) {
      const int64_t size = known.z[2 + axis], padding = node.output_padding[axis];
      int64_t made = kUnknown;
      if (size >= 0 && node.transposed) {
        const int64_t steps = size - Large(node, axis, 1) - padding;
        made = (steps - (steps < 0 ? node.strides[axis] - 1 : 0)) / node.strides[axis] + 1;
      } else if (size >= 0) {
        made = Large(node, axis, size) + padding;
      }
      known.x.push_back(size < 0 ? kUnknown : std::max<int64_t>(made, 0));
    }
  }
  CheckKnown(node, known);
  return known;
}

// A length of 0 that is known before a run need not be one: onnx's inference says 0 of the open ones of an Attention.
Shape BeforeRun(Shape shape) {
  std::replace(shape.begin(), shape.end(), int64_t{0}, kUnknown);
  return shape;
}

void CheckOperand(const GradNode& node, size_t index, ort::ElementType type) {
  if (type != ToOrt(node.dtype()))
    Fail("input ", index, " is ", NameOfOrt(type), ", but the program makes dZ ", NameOf(node.dtype()));
}

// For Complete an empty shape is one that is not known, so a scalar must not get there.
void CheckRank(const GradNode& node, size_t index, const Shape& shape) {
  if (shape.size() != node.rank() + 2)
    Fail("input ", index, " (", node.has_x && index == 0 ? "X" : "W", ") has the shape ", ToString(shape),
      ", but with kernel_shape=", ToString(node.kernel), " it must have ", node.rank() + 2, " dimensions");
}

void CheckCounts(const GradNode& node, size_t inputs, size_t outputs) {
  const size_t wanted = node.operands() + node.program.parameters().size();
  if (inputs != wanted)
    Fail("the operands and the program's parameters are ", wanted, " inputs, the node has ", inputs);
  const size_t made = node.gradients() + node.program.results().size() - 1;
  if (outputs != made)
    Fail("the gradients and the program's results after the first are ", made, " outputs, the node has ", outputs);
}

TensorType Typed(DType dtype, const Shape& shape) {
  TensorType type;
  type.type = ToOrt(dtype);
  type.has_shape = !shape.empty();
  type.shape = shape;
  type.symbols.resize(shape.size());
  return type;
}

void Infer(ShapeContext& context) {
  const GradNode node = GradNode::Read(context);
  const size_t count = context.input_count(), operands = node.operands();
  if (count != operands + node.program.parameters().size())
    Fail("the operands and the program's parameters are ", operands + node.program.parameters().size(),
      " inputs, the node has ", count);
  TensorTypes parameters;
  Shapes shapes;
  Shape batch_symbol;
  for (size_t i = 0; i < count; ++i) {
    const TensorType type = context.input(i);
    if (i < operands) {
      if (type.type != ort::kUndefined) CheckOperand(node, i, type.type);
      shapes.push_back(BeforeRun(type.shape));
    } else {
      if (type.type != ort::kUndefined) CheckType(node.program, i - operands, type.type);
      parameters.push_back(type);
    }
  }
  const TensorType whole = Broadcast(parameters);
  const Known known = Complete(node, shapes, BeforeRun(whole.shape));
  size_t next = 0;
  const auto same_as_input = [&](TensorType type, size_t input) {
    const TensorType given = context.input(input);
    if (given.has_shape) type.shape = given.shape, type.symbols = given.symbols, type.has_shape = true;
    return type;
  };
  if (node.wants_x) {
    const TensorType type = Typed(node.dtype(), Last(known.x, node.channels_last && !known.x.empty()));
    context.set_output(next++, node.has_x ? same_as_input(type, 0) : type);
  }
  if (node.wants_w) context.set_output(next++, Typed(node.weight_dtype, Last(known.w, node.channels_last)));
  if (node.wants_b) context.set_output(next++, Typed(node.weight_dtype, known.z.empty() ? Shape() : Shape{known.z[1]}));
  for (size_t r = node.wants_z ? 0 : 1; r < node.program.results().size(); ++r) {
    TensorType type = whole;
    type.type = ToOrt(node.program.result(r).dtype);
    context.set_output(next++, type);
  }
}

// ---- CPU kernel

int64_t Product(const Shape& shape, size_t first, size_t last) {
  int64_t count = 1;
  for (size_t i = first; i < last; ++i) count *= shape[i];
  return count;
}

// to[j * rows + i] = from[i * columns + j], for each of `batch` matrices; by tiles that stay in the L1 cache.
template <typename T>
void Transpose(const T* from, int64_t batch, int64_t rows, int64_t columns, T* to, const ParallelFor& parallel_for) {
  constexpr int64_t kTile = 32;
  const int64_t strips = (rows + kTile - 1) / kTile;
  parallel_for(size_t(batch * strips), [&](size_t task) {
    const int64_t matrix = int64_t(task) / strips, top = int64_t(task) % strips * kTile;
    const T* source = from + matrix * rows * columns;
    T* target = to + matrix * rows * columns;
    for (int64_t left = 0; left < columns; left += kTile)
      for (int64_t i = top; i < std::min(rows, top + kTile); ++i)
        for (int64_t j = left; j < std::min(columns, left + kTile); ++j) target[j * rows + i] = source[i * columns + j];
  });
}

constexpr size_t kChunk = 16384;  // elements that one task converts

// A tensor's elements as lanes, channels first: in place, or in memory of its own.
template <typename T>
class Lanes {
 public:
  // `shape` is in the node's layout.
  Lanes(DType dtype, const void* elements, const Shape& shape, bool channels_last, const ParallelFor& parallel_for) {
    const int64_t count = Product(shape, 0, shape.size());
    const T* lanes = static_cast<const T*>(elements);
    if (SizeOf(dtype) != sizeof(T)) {
      converted_.resize(size_t(count));
      const auto size = size_t(count);
      parallel_for((size + kChunk - 1) / kChunk, [&](size_t task) {
        const size_t first = task * kChunk;
        LoadLanes(dtype, static_cast<const char*>(elements) + first * SizeOf(dtype), std::min(kChunk, size - first),
          converted_.data() + first);
      });
      lanes = converted_.data();
    }
    const int64_t channels = shape.back(), spatial = Product(shape, 1, shape.size() - 1);
    if (channels_last && channels > 1 && spatial > 1) {
      transposed_.resize(size_t(count));
      Transpose(lanes, shape[0], spatial, channels, transposed_.data(), parallel_for);
      lanes = transposed_.data();
    }
    data_ = lanes;
  }
  const T* data() const { return data_; }

 private:
  HostVector<T> converted_, transposed_;
  const T* data_;
};

// Stores lanes, channels first, as a tensor of `shape`, which is in the node's layout.
template <typename T>
void Store(const T* lanes, DType dtype, const Shape& shape, bool channels_last, void* elements,
  const ParallelFor& parallel_for) {
  const auto count = size_t(Product(shape, 0, shape.size()));
  HostVector<T> transposed;
  const int64_t channels = shape.back(), spatial = Product(shape, 1, shape.size() - 1);
  if (channels_last && channels > 1 && spatial > 1) {
    transposed.resize(count);
    Transpose(lanes, shape[0], channels, spatial, transposed.data(), parallel_for);
    lanes = transposed.data();
  }
  constexpr bool is_double = sizeof(T) == sizeof(double);
  parallel_for((count + kChunk - 1) / kChunk, [&](size_t task) {
    const size_t first = task * kChunk, size = std::min(kChunk, count - first);
    char* target = static_cast<char*>(elements) + first * SizeOf(dtype);
    if (is_double == (dtype == DType::kDouble)) {
      StoreLanes(dtype, lanes + first, size, target);
    } else {
      std::vector<float> narrow(size);
      for (size_t i = 0; i < size; ++i) narrow[i] = float(lanes[first + i]);
      StoreLanes(dtype, narrow.data(), size, target);
    }
  });
}

class CpuConvGrad : public Kernel {
 public:
  explicit CpuConvGrad(const NodeInfo& info) : node_(GradNode::Read(info)) {
    CheckGrad(node_, info);
    if (node_.wants_b) sums_ = node_.Sums();
  }

  void Compute(Run& run) const override {
    std::vector<Tensor> inputs;
    Shapes shapes;
    const size_t operands = node_.operands(), parameters = node_.program.parameters().size();
    for (size_t i = 0; i < operands + parameters; ++i) {
      inputs.push_back(run.input(i));
      if (i < operands)
        CheckOperand(node_, i, inputs[i].type);
      else
        CheckType(node_.program, i - operands, inputs[i].type);
      shapes.push_back(inputs[i].shape);
    }
    const GradShape shape = FitGrad(node_, shapes);
    HostVector<char> memory;  // for dZ
    const std::vector<Tensor> arguments(inputs.begin() + std::ptrdiff_t(operands), inputs.end());
    const Shapes given(shapes.begin() + std::ptrdiff_t(operands), shapes.end());
    size_t next = 0;
    void* dx = node_.wants_x ? run.output(next++, shape.x, SizeOf(node_.dtype())) : nullptr;
    void* dw = node_.wants_w ? run.output(next++, shape.w, SizeOf(node_.weight_dtype)) : nullptr;
    std::optional<SumShape> sum_shape;
    if (sums_) sum_shape = FitSums(*sums_, given);
    void* db = sums_ ? run.output(next++, sum_shape->results.back(), SizeOf(node_.weight_dtype)) : nullptr;
    const void* z = arguments[0].data;
    std::vector<void*> results;
    if (node_.stores_z()) {
      if (!node_.wants_z) memory.resize(size_t(ElementCount(shape.z)) * SizeOf(node_.dtype()));
      results.push_back(node_.wants_z ? run.output(next++, shape.z, SizeOf(node_.dtype())) : memory.data());
      z = results[0];
    }
    for (size_t r = 1; r < node_.program.results().size(); ++r)
      results.push_back(run.output(next++, shape.z, SizeOf(node_.program.result(r).dtype)));
    if (sums_) {
      std::vector<char*> written;
      for (void* result : results) written.push_back(static_cast<char*>(result));
      written.push_back(static_cast<char*>(db));
      ComputeSums(*sums_, *sum_shape, arguments, written, run);
    } else if (!results.empty() && ElementCount(shape.z) > 0) {
      std::vector<ProgramSweep::Input> parameters;
      for (const Tensor& each : arguments) parameters.push_back({each.data, *FromOrt(each.type)});
      const Axes axes = JoinAxes(shape.z, given);
      ProgramSweep(node_.program, axes, ElementCount(shape.z), parameters, results).Run(run);
    }
    if (dx == nullptr && dw == nullptr) return;
    const void* x = node_.has_x ? inputs[0].data : nullptr;
    const void* w = node_.has_w ? inputs[operands - 1].data : nullptr;
    if (node_.dtype() == DType::kDouble) {
      Contract<double>(shape, z, x, w, dx, dw, run);
    } else {
      Contract<float>(shape, z, x, w, dx, dw, run);
    }
  }

 private:
  template <typename T>
  void Contract(
    const GradShape& shape, const void* z, const void* x, const void* w, void* dx, void* dw, Run& run) const {
    const ParallelFor parallel_for = [&](size_t count, const std::function<void(size_t)>& body) {
      if (count == 1) {
        body(0);
      } else if (count > 1) {
        run.parallel_for(count, body);
      }
    };
    const bool last = node_.channels_last;
    const Contraction& contraction = shape.contraction;
    const Lanes<T> gradient(node_.dtype(), z, shape.z, last, parallel_for);
    if (dx != nullptr) {
      const Lanes<T> weight(node_.dtype(), w, shape.w, last, parallel_for);
      HostVector<T> made(size_t(ElementCount(shape.x)));
      if (node_.transposed) {
        Forward(contraction, gradient.data(), weight.data(), made.data(), parallel_for);
      } else {
        DataGradient(contraction, gradient.data(), weight.data(), made.data(), parallel_for);
      }
      Store(made.data(), node_.dtype(), shape.x, last, dx, parallel_for);
    }
    if (dw != nullptr) {
      const Lanes<T> data(node_.dtype(), x, shape.x, last, parallel_for);
      HostVector<double> made(size_t(ElementCount(shape.w)));
      const T* small = node_.transposed ? data.data() : gradient.data();
      const T* large = node_.transposed ? gradient.data() : data.data();
      WeightGradient(contraction, small, large, made.data(), parallel_for);
      Store(made.data(), node_.weight_dtype, shape.w, last, dw, parallel_for);
    }
  }

  GradNode node_;
  std::optional<SumProgram> sums_;  // where dB is wanted
};

}  // namespace

GradNode GradNode::Read(const ShapeContext& node) { return ReadNode(node); }
GradNode GradNode::Read(const NodeInfo& node) { return ReadNode(node); }
GradNode GradNode::Read(const NodeText& node) { return ReadNode(node); }

size_t GradNode::gradients() const {
  size_t count = 0;
  for (const bool each : {wants_x, wants_w, wants_b, wants_z}) count += each ? 1 : 0;
  return count;
}

SumProgram GradNode::Sums() const {
  const auto name = [&](size_t result) { return program.result(result).name; };
  const auto fresh = [&](std::string hint) {
    while (std::any_of(
      program.values().begin(), program.values().end(), [&](const Value& value) { return value.name == hint; }))
      hint += "_";
    return hint;
  };
  const std::string total = fresh("total"), db = fresh("db");
  std::string head, axes;
  for (size_t r = stores_z() ? 0 : 1; r < program.results().size(); ++r)
    head += std::string(NameOf(program.result(r).dtype)) + " " + name(r) + ", ";
  for (size_t axis = 0; axis < rank() + 2; ++axis)
    if (axis != (channels_last ? rank() + 1 : 1)) axes += (axes.empty() ? "" : " ") + std::to_string(axis);
  const size_t arrow = text.find("=>"), open = text.find('{'), close = text.rfind('}');
  return SumProgram::Parse(text.substr(0, arrow) + "=> (" + head + NameOf(weight_dtype) + " " + db + ") " +
    text.substr(open, close - open) + " " + total + " = SumTo<axes=\"" + axes + "\", keepdims=0>(" + name(0) + ") " +
    db + " = Cast<to=" + NameOf(weight_dtype) + ">(" + total + ") }");
}

GradShape FitGrad(const GradNode& node, const Shapes& inputs) {
  const auto split = inputs.begin() + std::ptrdiff_t(node.operands());
  const Shape whole = Broadcast(Shapes(split, inputs.end()));
  if (whole.size() != node.rank() + 2)
    Fail("kernel_shape=", ToString(node.kernel), " has another rank than S, ", ToString(whole));
  const Shapes operands(inputs.begin(), split);
  for (size_t i = 0; i < operands.size(); ++i) CheckRank(node, i, operands[i]);
  const Known known = Complete(node, operands, whole);
  GradShape shape;
  shape.z = whole;
  shape.x = known.x.empty() ? Shape() : Last(known.x, node.channels_last);
  shape.w = Last(known.w, node.channels_last);
  if (!node.wants_x && !node.wants_w) return shape;
  const Shape &small = node.transposed ? known.x : known.z, &large = node.transposed ? known.z : known.x;
  Contraction& contraction = shape.contraction;
  contraction.dtypes = Contraction::AllOf(node.dtype());
  contraction.allow_tf32 = node.allow_tf32;
  contraction.batch = small[0];
  contraction.groups = node.group;
  contraction.filters = known.w[0];
  contraction.channels = known.w[1] * node.group;
  contraction.channels_last = node.channels_last;
  for (size_t axis = 0; axis < node.rank(); ++axis) {
    Window window{node.kernel[axis], node.strides[axis], node.dilations[axis], node.pads_begin[axis],
      node.pads_end[axis], large[2 + axis], small[2 + axis]};
    // Of a transposed convolution whose output_padding reaches the stride, what no element of X has a part in.
    const int64_t rest =
      window.size + window.pad_begin + window.pad_end - (window.out - 1) * window.stride - window.extent();
    window.pad_end -= rest / window.stride * window.stride;
    contraction.windows.push_back(window);
  }
  ElementCount(shape.x);
  ElementCount(shape.w);
  return shape;
}

TensorTypes CheckGrad(const GradNode& node, const NodeInfo& info) {
  CheckCounts(node, info.input_count(), info.output_count());
  const size_t operands = node.operands();
  TensorTypes types, parameters;
  Shapes shapes;
  for (size_t i = 0; i < info.input_count(); ++i) {
    types.push_back(info.input(i));
    if (i < operands) {
      CheckOperand(node, i, types[i].type);
      if (types[i].has_shape) CheckRank(node, i, types[i].shape);
      shapes.push_back(BeforeRun(types[i].shape));
    } else {
      CheckType(node.program, i - operands, types[i].type);
      parameters.push_back(types[i]);
    }
  }
  Complete(node, shapes, BeforeRun(Broadcast(parameters).shape));
  return types;
}

const Operator kConvGrad = {
  "ConvGrad",
  Infer,
  [](const NodeInfo& info) -> std::unique_ptr<Kernel> { return std::make_unique<CpuConvGrad>(info); },
  CreateCudaConvGrad,
};

}  // namespace ortplugin
