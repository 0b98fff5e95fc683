#include "ortplugin/runtime/program/operands.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace ortplugin {
namespace {

// The terms of some adjacent axes, with neighbours joined where the tensor lets one index serve both.
std::vector<Term> MakeTerms(const Shape& sizes, const Shape& strides) {
  struct Axis {
    int64_t size, stride;
  };
  std::vector<Axis> axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    if (!axes.empty() && axes.back().stride == strides[i] * sizes[i]) {
      axes.back() = {axes.back().size * sizes[i], strides[i]};
    } else {
      axes.push_back({sizes[i], strides[i]});
    }
  }
  std::vector<Term> terms;
  int64_t divisor = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    if (axes[i].stride != 0) terms.insert(terms.begin(), {divisor, i == 0 ? 0 : axes[i].size, axes[i].stride});
    divisor *= axes[i].size;
  }
  return terms;
}

// The strides, in elements, of a tensor of `shape` along the axes of `full`: 0 where it is repeated.
Shape BroadcastStrides(const Shape& shape, const Shape& full) {
  if (shape.size() > full.size()) Fail("the shape ", ToString(shape), " does not broadcast to ", ToString(full));
  Shape strides(full.size(), 0);
  const size_t lead = full.size() - shape.size();
  int64_t stride = 1;
  for (size_t i = full.size(); i-- > lead;) {
    const int64_t size = shape[i - lead];
    if (size != full[i] && size != 1) Fail("the shape ", ToString(shape), " does not broadcast to ", ToString(full));
    strides[i] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

std::string Number(size_t n) { return std::to_string(n); }

// "(long long)(index / (T)a.terms[3].divisor % ...) * a.terms[3].stride + ..." for terms numbered from `first`.
std::string EmitOffset(
  const std::vector<Term>& terms, size_t first, const std::string& index, const std::string& type) {
  std::string text;
  for (size_t i = 0; i < terms.size(); ++i) {
    const std::string term = "a.terms[" + Number(first + i) + "]";
    text += (i ? " + " : "") + std::string("(long long)(") + index;
    if (terms[i].divisor != 1) text += " / (" + type + ")" + term + ".divisor";
    if (terms[i].modulus != 0) text += " % (" + type + ")" + term + ".modulus";
    text += ") * " + term + ".stride";
  }
  return text.empty() ? "0" : text;
}

}  // namespace

Access MakeAccess(DType dtype, const Shape& shape, const Shape& full, size_t axis) {
  const Shape strides = BroadcastStrides(shape, full);
  const auto split = std::ptrdiff_t(axis);
  Access access{dtype, 1, {}, {}};
  for (size_t i = axis; i < full.size(); ++i) access.width *= full[i];
  access.outer = MakeTerms(Shape(full.begin(), full.begin() + split), Shape(strides.begin(), strides.begin() + split));
  access.inner = MakeTerms(Shape(full.begin() + split, full.end()), Shape(strides.begin() + split, strides.end()));
  return access;
}

Shape Broadcast(const Shapes& shapes) {
  Shape full;
  for (const Shape& shape : shapes) {
    if (shape.size() > full.size()) full.insert(full.begin(), shape.size() - full.size(), 1);
    for (size_t i = 0; i < shape.size(); ++i) {
      int64_t& size = full[full.size() - shape.size() + i];
      if (size == shape[i] || shape[i] == 1) continue;
      if (size == 1 || size == -1) {
        size = shape[i];
      } else if (shape[i] != -1) {
        Fail("the shapes ", ToString(shape), " and ", ToString(full), " do not broadcast together");
      }
    }
  }
  return full;
}

TensorType Broadcast(const TensorTypes& types) {
  Shapes shapes;
  for (const TensorType& type : types) {
    if (!type.has_shape) return {};
    shapes.push_back(type.shape);
  }
  TensorType full;
  full.has_shape = true;
  full.shape = Broadcast(shapes);
  const size_t rank = full.shape.size();
  full.symbols.resize(rank);
  for (size_t axis = 0; axis < rank; ++axis) {
    if (full.shape[axis] != -1) continue;
    bool agree = true;
    std::string symbol;
    for (const TensorType& type : types) {
      const size_t lead = rank - type.shape.size();
      if (axis < lead || type.shape[axis - lead] != -1) continue;
      const std::string& name = type.symbols[axis - lead];
      agree = agree && !name.empty() && (symbol.empty() || symbol == name);
      symbol = name;
    }
    if (agree) full.symbols[axis] = symbol;
  }
  return full;
}

Shape BroadcastInputs(const Program& program, const Shapes& inputs) {
  Shape shape;
  for (size_t i = 0; i < inputs.size(); ++i) {
    try {
      shape = Broadcast(Shapes{shape, inputs[i]});
    } catch (const Error& error) {
      Fail("input ", i, " ('", program.parameter(i).name, "'): ", error.what());
    }
  }
  return shape;
}

std::optional<Shapes> KnownShapes(const TensorTypes& types) {
  Shapes shapes;
  for (const TensorType& type : types) {
    // onnx's inference says 0 of the open lengths of an Attention.
    if (!type.has_shape || std::any_of(type.shape.begin(), type.shape.end(), [](int64_t dim) { return dim <= 0; }))
      return std::nullopt;
    shapes.push_back(type.shape);
  }
  return shapes;
}

std::optional<Shapes> GuessShapes(const TensorTypes& types) {
  Shapes shapes;
  for (const TensorType& type : types) {
    if (!type.has_shape) return std::nullopt;
    shapes.push_back(type.shape);
  }
  try {
    const Shape full = Broadcast(shapes);
    for (Shape& shape : shapes)
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        const int64_t known = full[full.size() - shape.size() + axis];
        if (shape[axis] < 0) shape[axis] = known < 0 ? 2 : known;
      }
    Broadcast(shapes);
  } catch (const Error&) {
    return std::nullopt;
  }
  return shapes;
}

namespace {

// Node: a ShapeContext or a NodeInfo.
template <typename Node>
std::string TextOf(const Node& node, size_t first, size_t second) {
  const std::string text = node.string_attribute("program");
  const Program program = Program::Parse(text);
  bool widened = false;
  for (size_t i = 0; i < program.parameters().size(); ++i) {
    const size_t input = i == 0 ? first : second + i - 1;
    const DType declared = program.parameter(i).dtype;
    widened =
      widened || (input < node.input_count() && declared == DType::kFloat16 && node.input(input).type == ort::kFloat);
  }
  return widened ? WithFloatForHalf(text) : text;
}

}  // namespace

std::string WithFloatForHalf(const std::string& text) {
  std::string changed;
  for (size_t at = 0; at < text.size();) {
    size_t stop = at;
    while (stop < text.size() && (std::isalnum(static_cast<unsigned char>(text[stop])) || text[stop] == '_')) ++stop;
    const std::string word = text.substr(at, std::max<size_t>(stop - at, 1));
    changed += word == "float16" ? "float" : word;
    at += word.size();
  }
  return changed;
}

void CheckType(const Program& program, size_t input, ort::ElementType type) {
  const Value& parameter = program.parameter(input);
  if (ToOrt(parameter.dtype) != type)
    Fail("input ", input, " is ", NameOfOrt(type), " but the program's parameter '", parameter.name, "' is ",
      NameOf(parameter.dtype));
}

TensorTypes ParameterTypes(const Program& program, const ShapeContext& context) {
  const size_t count = context.input_count();
  if (count != program.parameters().size())
    Fail("the program has ", program.parameters().size(), " parameters, the node ", count, " inputs");
  TensorTypes types;
  for (size_t i = 0; i < count; ++i) {
    types.push_back(context.input(i));
    if (types[i].type != ort::kUndefined) CheckType(program, i, types[i].type);
  }
  return types;
}

RunInputs ReadParameters(const Program& program, Run& run) {
  RunInputs inputs;
  for (size_t i = 0; i < program.parameters().size(); ++i) {
    inputs.tensors.push_back(run.input(i));
    CheckType(program, i, inputs.tensors[i].type);
    inputs.shapes.push_back(inputs.tensors[i].shape);
  }
  return inputs;
}

bool AreAligned(const std::vector<Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
    [](const Tensor& each) { return reinterpret_cast<uintptr_t>(each.data) % 16 == 0; });
}

std::string ProgramText(const ShapeContext& context, size_t first, size_t second) {
  return TextOf(context, first, second);
}
std::string ProgramText(const NodeInfo& info, size_t first, size_t second) { return TextOf(info, first, second); }

TensorTypes CheckNode(const Program& program, const NodeInfo& info) {
  const size_t inputs = program.parameters().size(), outputs = program.results().size();
  if (info.input_count() != inputs)
    Fail("the program has ", inputs, " parameters, the node ", info.input_count(), " inputs");
  if (info.output_count() != outputs)
    Fail("the program has ", outputs, " results, the node ", info.output_count(), " outputs");
  TensorTypes types;
  for (size_t i = 0; i < inputs; ++i) {
    types.push_back(info.input(i));
    CheckType(program, i, types[i].type);
  }
  return types;
}

bool Axes::is_linear(size_t tensor) const {
  int64_t stride = 1;
  for (size_t i = count(); i-- > 0; stride *= sizes[i])
    if (strides[tensor][i] != stride) return false;
  return true;
}

bool Axes::is_scalar(size_t tensor) const {
  return std::all_of(strides[tensor].begin(), strides[tensor].end(), [](int64_t stride) { return stride == 0; });
}

Axes JoinAxes(const Shape& full, const Shapes& shapes) {
  Axes axes;
  axes.strides.resize(shapes.size());
  Shapes strides;
  for (const Shape& shape : shapes) strides.push_back(BroadcastStrides(shape, full));
  for (size_t i = 0; i < full.size(); ++i) {
    if (full[i] == 1) continue;
    bool joins = !axes.sizes.empty();
    for (size_t t = 0; t < shapes.size() && joins; ++t) joins = axes.strides[t].back() == strides[t][i] * full[i];
    if (joins) {
      axes.sizes.back() *= full[i];
      for (size_t t = 0; t < shapes.size(); ++t) axes.strides[t].back() = strides[t][i];
    } else {
      axes.sizes.push_back(full[i]);
      for (size_t t = 0; t < shapes.size(); ++t) axes.strides[t].push_back(strides[t][i]);
    }
  }
  if (axes.sizes.empty()) {
    axes.sizes.push_back(1);
    for (Shape& each : axes.strides) each.push_back(1);
  }
  return axes;
}

IndexMap::IndexMap(std::string name, const Axes& axes, int64_t unit, const std::vector<size_t>& tensors, bool wide)
  : name_(std::move(name)), wide_(wide) {
  const size_t count = axes.count();
  suffix_.assign(count + 1, 1);
  // An axis without elements counts as one: no index is ever looked up, but periods and dividers are worked out here.
  for (size_t i = count; i-- > 0;)
    suffix_[i] = suffix_[i + 1] * uint64_t(std::max<int64_t>(1, i + 1 == count ? axes.sizes[i] / unit : axes.sizes[i]));
  Shapes patterns;
  for (const size_t tensor : tensors) {
    const Shape& strides = axes.strides[tensor];
    const auto found = std::find(patterns.begin(), patterns.end(), strides);
    of_.emplace_back(tensor, size_t(found - patterns.begin()));
    if (found != patterns.end()) continue;
    patterns.push_back(strides);
    std::vector<Run> runs;
    for (size_t i = 0, j = 0; i < count; i = j + 1) {
      j = i;
      if (strides[i] == 0) continue;
      while (j + 1 < count && strides[j + 1] != 0 && strides[j] == strides[j + 1] * axes.sizes[j + 1]) ++j;
      const auto stride = uint64_t(strides[j] * (j + 1 == count ? unit : 1));
      runs.push_back({i, j + 1, suffix_[i] / suffix_[j + 1], stride});
    }
    offsets_.push_back(std::move(runs));
  }
  for (size_t i = 1; i < count; ++i)
    for (const std::vector<Run>& runs : offsets_)
      if (std::any_of(runs.begin(), runs.end(), [i](const Run& run) { return run.outer == i || run.inner == i; })) {
        quotients_.push_back(i);
        break;
      }
}

std::string IndexMap::Quotient(size_t axis) const {
  return axis + 1 == suffix_.size() ? name_ : name_ + "_q" + Number(axis);
}

std::string IndexMap::EmitMembers() const {
  size_t terms = 0;
  for (const std::vector<Run>& runs : offsets_) terms += runs.size();
  std::string text;
  if (!quotients_.empty()) text += "  Divider " + name_ + "_dividers[" + Number(quotients_.size()) + "];\n";
  if (terms > 0) text += "  IndexTerm " + name_ + "_terms[" + Number(terms) + "];\n";
  return text;
}

std::string IndexMap::EmitOffsets(const std::string& indent) const {
  std::string text;
  for (size_t n = 0; n < quotients_.size(); ++n)
    text += indent + "const index_t " + Quotient(quotients_[n]) + " = quotient(" + name_ + ", a." + name_ +
      "_dividers[" + Number(n) + "]);\n";
  size_t term = 0;
  for (size_t n = 0; n < offsets_.size(); ++n) {
    text += indent + "const unsigned long long " + name_ + "_o" + Number(n) + " = ";
    bool is_first = true;
    for (const Run& run : offsets_[n]) {
      const std::string numbers = "a." + name_ + "_terms[" + Number(term++) + "]";
      std::string coordinate = Quotient(run.inner);
      if (run.outer > 0) coordinate += " - " + Quotient(run.outer) + " * (index_t)" + numbers + ".period";
      text += (is_first ? "" : " + ") + std::string("(unsigned long long)(") + coordinate + ") * (index_t)" + numbers +
        ".stride";
      is_first = false;
    }
    text += is_first ? "0;\n" : ";\n";
  }
  return text;
}

std::string IndexMap::OffsetOf(size_t tensor) const {
  for (const auto& [each, number] : of_)
    if (each == tensor) return name_ + "_o" + Number(number);
  Fail("no offset was asked for tensor ", tensor);
}

std::array<uint64_t, 2> MakeDivider(uint64_t divisor, bool wide) {
  const unsigned __int128 one = 1;
  uint64_t shift = 0;
  while (one << shift < divisor) ++shift;
  const unsigned __int128 multiplier = (((one << shift) - divisor) << (wide ? 64 : 32)) / divisor + 1;
  return {uint64_t(multiplier), shift};
}

std::vector<uint64_t> IndexMap::Numbers() const {
  std::vector<uint64_t> numbers;
  for (const size_t axis : quotients_)
    for (const uint64_t number : MakeDivider(suffix_[axis], wide_)) numbers.push_back(number);
  for (const std::vector<Run>& runs : offsets_)
    for (const Run& run : runs) {
      numbers.push_back(run.period);
      numbers.push_back(run.stride);
    }
  return numbers;
}

uint64_t IndexMap::largest_stride() const {
  uint64_t largest = 0;
  for (const std::vector<Run>& runs : offsets_)
    for (const Run& run : runs) largest = std::max(largest, run.stride);
  return largest;
}

std::string StorageType(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return "half_t";
    case DType::kBFloat16: return "bfloat_t";
    case DType::kFloat: return "float";
    case DType::kDouble: return "double";
    case DType::kBool: return "bool_t";
    default: return ComputeTypeOf(dtype);
  }
}

std::string ComputeType(DType dtype) { return ComputeTypeOf(dtype); }

namespace {

std::string Storage(const Access& access) { return StorageType(access.dtype); }
// Whether all rows share a vector of it.
bool IsSharedVector(const Access& access) { return access.is_shared() && access.is_contiguous(); }

// A phase's operands that all rows share, or the others. `inner_terms`: the number of each parameter's first term along
// a row.
std::string EmitPhaseOperands(
  const std::vector<Access>& accesses, const std::vector<size_t>& inner_terms, const Phase& phase, bool shared) {
  std::ostringstream text;
  text << "struct " << phase.name << (shared ? "Shared" : "Row") << " {\n";
  for (const size_t i : phase.parameters) {
    if (accesses[i].is_shared() != shared) continue;
    if (accesses[i].is_scalar()) {
      text << "  " << Storage(accesses[i]) << " p" << i << ";\n";
    } else {
      text << "  Vector<" << Storage(accesses[i]) << ", VECTOR> p" << i << ";\n";
    }
  }
  text << "  DEVICE void load(const Arguments& a, "
       << (shared ? "const SharedOperands& operands" : "const Offsets& offsets") << ", long long column) {\n";
  for (const size_t i : phase.parameters) {
    const Access& access = accesses[i];
    if (access.is_shared() != shared) continue;
    const std::string base = "(const " + Storage(accesses[i]) + "*)a.in[" + Number(i) + "]";
    const std::string row = shared ? "" : access.is_linear() ? " + offsets.linear" : " + offsets.p" + Number(i);
    if (access.is_pieced()) {
      const std::string piece = std::to_string(access.piece);
      text << "    p" << i << ".load_once(" << base << " + row_in_order((row_t)offsets.p" << i << ", (int)column / "
           << piece << ", " << access.rows << ") * " << piece << " + (int)column % " << piece << ");\n";
    } else if (access.is_scalar()) {
      text << "    p" << i << " = (" << base << ")[0" << row << "];\n";
    } else if (shared && IsSharedVector(accesses[i])) {
      text << "    p" << i << ".load(operands.p" << i << " + column);\n";
    } else if (access.is_contiguous()) {
      text << "    p" << i << (access.is_linear() || access.order != nullptr ? ".load_once" : ".load") << "(" << base
           << row << " + column);\n";
    } else {
      text << "#pragma unroll\n    for (int j = 0; j < VECTOR; ++j)\n      p" << i << ".set(j, (" << base << row << ")["
           << EmitOffset(access.inner, inner_terms[i], "(unsigned)(column + j)", "unsigned") << "]);\n";
    }
  }
  text << "  }\n};\n";
  return text.str();
}

std::string EmitPhaseResults(const Program& program, const Phase& phase, bool stream_results) {
  std::ostringstream text;
  text << "struct " << phase.name << "Results {\n";
  const auto result_type = [&](size_t r) { return program.result(r).dtype; };
  for (const size_t r : phase.results) {
    text << "  Vector<" << StorageType(result_type(r)) << ", VECTOR> r" << r << ";\n";
    text << "  DEVICE void set" << r << "(int j, " << ComputeType(result_type(r)) << " x) {\n    "
         << StorageType(result_type(r)) << " stored;\n    from_compute(x, stored);\n    r" << r
         << ".set(j, stored);\n  }\n";
  }
  text << "  DEVICE void store(const Arguments& a, const Offsets& offsets, long long column) "
          "const {\n";
  for (const size_t r : phase.results)
    text << "    r" << r << (stream_results ? ".store_once" : ".store") << "((" << StorageType(result_type(r))
         << "*)a.out[" << r << "] + offsets.linear + column);\n";
  text << "  }\n};\n\n";
  return text.str();
}

}  // namespace

std::string EmitScalars(const std::vector<ScalarOperand>& operands, const char* load) {
  std::ostringstream text;
  text << "struct Scalars {\n";
  for (const ScalarOperand& each : operands) text << "  Vector<" << each.storage << ", 1> p" << each.number << ";\n";
  text << "  DEVICE Scalars(const Arguments& a) {\n";
  for (const ScalarOperand& each : operands)
    text << "    p" << each.number << "." << load << "(" << each.pointer << ");\n";
  text << "  }\n};\n\n";
  return text.str();
}

std::string EmitOperands(
  const Program& program, const std::vector<Access>& accesses, const std::vector<Phase>& phases, bool stream_results) {
  std::vector<size_t> outer_terms, inner_terms;  // the number of each parameter's first term
  size_t terms = 0;
  for (const Access& access : accesses) {
    outer_terms.push_back(terms);
    terms += access.outer.size();
    inner_terms.push_back(terms);
    terms += access.inner.size();
  }
  std::ostringstream text;

  text << "struct Term {\n  long long divisor, modulus, stride;\n};\n"
       << "struct Arguments {\n  const void* in[" << accesses.size() << "];\n  void* out[" << program.results().size()
       << "];\n  long long rows, chunks;\n";
  if (terms > 0) text << "  Term terms[" << terms << "];\n";
  text << "};\n\n";

  const auto ordered =
    std::find_if(accesses.begin(), accesses.end(), [](const Access& a) { return a.order != nullptr; });
  if (ordered != accesses.end()) {
    const RowOrder& order = *ordered->order;
    text << "__device__ const unsigned " << (order.largest >> 16 == 0 ? "short" : "long long") << " order[] = {";
    for (const int64_t row : order.rows) text << row << ",";
    // The order is constant, so that it may come before what other kernels write.
    text << "};\n#define AT(row) (order + (unsigned)((row) % " << order.length << ") * " << order.pieces << ")\n"
         << "DEVICE long long row_in_order(row_t row, int piece, long long rows) {\n  return (long long)(row / "
         << order.length << ") * rows + __ldg(AT(row) + piece);\n}\n"
         << "DEVICE void prefetch_order(row_t row) { asm volatile(\"prefetch.global.L1 [%0];\" ::\"l\"(AT(row))); }\n";
  } else {
    text << "DEVICE void prefetch_order(row_t row) {}\n";
  }
  text << "struct Offsets {\n  long long linear;\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (!accesses[i].is_shared() && !accesses[i].is_linear()) text << "  long long p" << i << ";\n";
  text << "  DEVICE Offsets(const Arguments& a, row_t row) {\n    linear = (long long)row * "
          "WIDTH;\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (!accesses[i].is_shared() && !accesses[i].is_linear()) {
      const std::string offset = EmitOffset(accesses[i].outer, outer_terms[i], "row", "row_t");
      text << "    p" << i << " = ";
      if (accesses[i].order == nullptr || accesses[i].is_pieced())
        text << offset << ";\n";
      else
        text << "row_in_order((row_t)(" << offset << "), 0, " << accesses[i].rows << ") * " << accesses[i].piece
             << ";\n";
    }
  text << "  }\n};\n\n";

  text << "struct SharedOperands {\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (IsSharedVector(accesses[i])) text << "  const " << Storage(accesses[i]) << "* p" << i << ";\n";
  text << "  DEVICE SharedOperands(const Arguments& a) {\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (IsSharedVector(accesses[i]))
      text << "    p" << i << " = (const " << Storage(accesses[i]) << "*)a.in[" << i << "];\n";
  text << "  }\n";
  text << "  // The same operands, at addresses that the compiler can't know to be the same.\n"
       << "  DEVICE SharedOperands moved(long long by) const {\n    SharedOperands x = *this;\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (IsSharedVector(accesses[i])) text << "    x.p" << i << " += by;\n";
  text << "    return x;\n  }\n};\n\n";

  for (const Phase& phase : phases)
    text << EmitPhaseOperands(accesses, inner_terms, phase, false)
         << EmitPhaseOperands(accesses, inner_terms, phase, true) << EmitPhaseResults(program, phase, stream_results);
  return text.str();
}

std::string EmitParameterValues(const Program& program, const std::vector<Access>& accesses, const Phase& phase) {
  std::ostringstream text;
  for (const size_t i : phase.parameters) {
    const ValueId value = program.parameters()[i];
    text << "  const " << ComputeType(accesses[i].dtype) << " v" << value << " = to_compute("
         << (accesses[i].is_shared() ? "shared.p" : "row.p") << i << (accesses[i].is_scalar() ? "" : "[j]") << ");\n";
  }
  return text.str();
}

std::string EmitResultValues(const Program& program, const Phase& phase) {
  std::ostringstream text;
  for (const size_t r : phase.results) text << "  results.set" << r << "(j, v" << program.results()[r] << ");\n";
  return text.str();
}

std::vector<uint64_t> ArgumentBlock(const std::vector<Access>& accesses, size_t results, int64_t rows, int64_t chunks) {
  std::vector<uint64_t> block(accesses.size() + results, 0);
  block.push_back(uint64_t(rows));
  block.push_back(uint64_t(chunks));
  for (const Access& access : accesses)
    for (const auto* terms : {&access.outer, &access.inner})
      for (const Term& term : *terms)
        for (const int64_t number : {term.divisor, term.modulus, term.stride}) block.push_back(uint64_t(number));
  return block;
}

}  // namespace ortplugin
