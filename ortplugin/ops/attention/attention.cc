#include "ortplugin/ops/attention/attention.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "ortplugin/ops/allow_tf32.h"
#include "ortplugin/runtime/ort/node_text.h"
#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

constexpr int64_t kLargest = (int64_t{1} << 31) - 1, kMostHeads = 65536;
constexpr size_t kMostAtoms = 16, kLongestText = 64 * kMostAtoms;
constexpr const char* kNames[] = {"Q", "K", "V", "the mask", "cos", "sin", "past_key", "past_value", "position"};

// ---- layouts

using Atom = AttentionLayout::Atom;

bool IsOpen(const Atom& atom) { return atom.name == 'b' || atom.name == 's' || atom.name == 'd'; }

// Of h and i/n, in a tensor of so many heads; 1 of the others, whose length the tensor's shape tells.
int64_t LengthOf(const Atom& atom, int64_t heads) { return IsOpen(atom) ? 1 : atom.total > 0 ? atom.total : heads; }

// The number that `digits` are; -1 where they are none, or too large.
int64_t NumberOf(const std::string& digits) {
  int64_t number = digits.empty() || digits.size() > 10 ? -1 : 0;
  for (const char c : digits) number = c < '0' || c > '9' || number < 0 ? -1 : 10 * number + (c - '0');
  return number > kLargest ? -1 : number;
}

// Empty where the token is no atom.
std::optional<Atom> AtomOf(const std::string& token) {
  if (token == "b" || token == "s" || token == "h" || token == "d") return Atom{token[0], 0, 0};
  const bool is_h = token.rfind("h:", 0) == 0;
  const size_t start = is_h ? 2 : 0, slash = token.find('/');
  if (slash == std::string::npos || slash < start) return std::nullopt;
  const int64_t first = NumberOf(token.substr(start, slash - start)), total = NumberOf(token.substr(slash + 1));
  if (first < 0 || first >= total) return std::nullopt;
  return Atom{is_h ? 'h' : '/', first, total};
}

// The axes of the text; `reason` says why there are none.
std::vector<std::vector<Atom>> ParseAxes(const std::string& text, std::string* reason) {
  std::vector<std::vector<Atom>> axes;
  bool is_product = false;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == ' ') {
      ++at;
    } else if (c == '(' && !is_product) {
      is_product = true;
      axes.emplace_back();
      ++at;
    } else if (c == ')' && is_product && !axes.back().empty()) {
      is_product = false;
      ++at;
    } else if (c == '(' || c == ')') {
      break;
    } else {
      const size_t end = std::min(text.find_first_of(" ()", at), text.size());
      const std::string token = text.substr(at, end - at);
      const std::optional<Atom> atom = AtomOf(token);
      if (!atom) {
        *reason = Quoted(token) + " is none of the atoms b, s, h, d, h:first/total and i/n, of numbers below 2^31";
        return {};
      }
      if (!is_product) axes.emplace_back();
      axes.back().push_back(*atom);
      at = end;
    }
    if (at == text.size() && !is_product) return axes;
  }
  *reason = text.empty() ? "b, s, h and d must each stand there once"
                         : "its parentheses do not enclose one product of atoms each";
  return {};
}

// Why the axes are no layout; "" where they are.
std::string WrongWith(const std::vector<std::vector<Atom>>& axes, int64_t heads, bool is_output) {
  std::string names;
  size_t count = 0;
  bool has_numbers = false, has_open_product = false;
  const Atom* h = nullptr;
  for (const std::vector<Atom>& axis : axes) {
    count += axis.size();
    has_open_product = has_open_product || std::count_if(axis.begin(), axis.end(), IsOpen) > 1;
    for (const Atom& atom : axis) {
      has_numbers = has_numbers || atom.total > 0;
      if (atom.name != '/') names += atom.name;
      if (atom.name == 'h') h = &atom;
    }
  }
  std::sort(names.begin(), names.end());
  if (count > kMostAtoms) return "it is longer than the 16 atoms that a layout may have";
  if (names != "bdhs") return "b, s, h and d must each stand there once";
  if (is_output && has_numbers) return "an output is all of its tensor: i/n and h:first/total have no place in it";
  if (!is_output && has_open_product)
    return "a product has more than one of b, s and d, whose sizes the tensor's shape does not tell";
  if (h->total > 0 && h->first + heads > h->total)
    return "from head " + std::to_string(h->first) + " on there are no " + std::to_string(heads) + " of " +
      std::to_string(h->total);
  return "";
}

// ---- sizes

struct Dim {
  int64_t size = -1;  // -1: not known
  std::string symbol;  // of an unknown one, or ""
};
struct Sizes {
  Dim b, s, d;
  Dim& of(char name) { return name == 'b' ? b : name == 's' ? s : d; }
  const Dim& of(char name) const { return name == 'b' ? b : name == 's' ? s : d; }
};

std::vector<Dim> Known(const Shape& shape) {
  std::vector<Dim> dims;
  for (const int64_t size : shape) dims.push_back({size, ""});
  return dims;
}

Shape ShapeOf(const std::vector<Dim>& dims) {
  Shape shape;
  for (const Dim& dim : dims) shape.push_back(dim.size);
  return shape;
}

Sizes SizesOf(const char* name, const AttentionLayout& layout, int64_t heads, const std::vector<Dim>& dims) {
  const auto fail = [&](const auto&... what) {
    Fail(name, ": its shape is ", ToString(ShapeOf(dims)), ", but its layout ", Quoted(layout.text, 80), what...);
  };
  if (dims.size() != layout.axes.size()) fail(" has ", layout.axes.size(), " axes");
  Sizes sizes;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const Dim& dim = dims[axis];
    int64_t known = 1;
    const Atom* open = nullptr;
    for (const Atom& atom : layout.axes[axis]) {
      if (__builtin_mul_overflow(known, LengthOf(atom, heads), &known)) fail(" is one of more elements than there are");
      if (IsOpen(atom)) open = &atom;
    }
    if (dim.size >= 0 && open == nullptr && dim.size != known) fail(" has ", known, " on axis ", axis);
    if (dim.size >= 0 && dim.size % known != 0) fail(" has a multiple of ", known, " on axis ", axis);
    if (open == nullptr) continue;
    if (dim.size >= 0) {
      sizes.of(open->name).size = dim.size / known;
    } else if (known == 1) {
      sizes.of(open->name).symbol = dim.symbol;
    }
  }
  return sizes;
}

// What two tensors have in common. Throws Error where they contradict each other.
Dim Agreed(const Dim& a, const char* of_a, const Dim& b, const char* of_b) {
  if (a.size >= 0 && b.size >= 0 && a.size != b.size)
    Fail("the shapes do not fit each other: ", of_a, " is ", a.size, ", ", of_b, " is ", b.size);
  if (a.size >= 0) return a;
  return b.size >= 0 || a.symbol.empty() ? b : a;
}

struct AllSizes {
  Dim b, queries, added, past, keys, head_size, value_size;  // added: the rows of K; keys: with those of the past
};

// The dims of Q, K, V, past_key and past_value; null where they are not known.
using KnownDims = std::array<const std::vector<Dim>*, 5>;

AllSizes Agree(const AttentionAttributes& attributes, const KnownDims& inputs) {
  const AttentionLayout* const layouts[] = {
    &attributes.q, &attributes.k, &attributes.v, &attributes.past, &attributes.past};
  Sizes of[5];
  for (size_t i = 0; i < 5; ++i)
    if (inputs[i] != nullptr)
      of[i] =
        SizesOf(kNames[i < 3 ? i : i + 3], *layouts[i], i == 0 ? attributes.heads : attributes.kv_heads, *inputs[i]);
  AllSizes sizes;
  sizes.b = Agreed(Agreed(of[0].b, "b of Q", of[1].b, "b of K"), "b of Q and K", of[2].b, "b of V");
  sizes.b =
    Agreed(Agreed(sizes.b, "b of Q, K and V", of[3].b, "b of past_key"), "b of the others", of[4].b, "b of past_value");
  sizes.queries = of[0].s;
  sizes.added = Agreed(of[1].s, "s of K", of[2].s, "s of V");
  sizes.past = Agreed(of[3].s, "s of past_key", of[4].s, "s of past_value");
  sizes.keys = sizes.added;
  if (attributes.problem.has_position)
    sizes.keys = sizes.past;
  else if (attributes.problem.has_past)
    sizes.keys = sizes.past.size < 0 || sizes.added.size < 0 ? Dim{} : Dim{sizes.past.size + sizes.added.size, ""};
  sizes.head_size = Agreed(Agreed(of[0].d, "d of Q", of[1].d, "d of K"), "d of K", of[3].d, "d of past_key");
  sizes.value_size = Agreed(of[2].d, "d of V", of[4].d, "d of past_value");
  for (const auto& [dim, name] : {std::pair{&sizes.head_size, "K"}, {&sizes.value_size, "V"}})
    if (dim->size == 0 || dim->size > kMostHeadSize)
      Fail("the head size, d of ", name, ", is ", dim->size, ", but must be from 1 to ", kMostHeadSize);
  if (attributes.problem.is_rotary()) Agreed(sizes.queries, "s of Q", sizes.added, "s of K, which is rotated as Q is,");
  return sizes;
}

std::vector<Dim> DimsOf(const AttentionLayout& layout, int64_t heads, const Sizes& of) {
  std::vector<Dim> dims;
  for (const std::vector<Atom>& axis : layout.axes) {
    Dim product{1, ""};
    for (const Atom& atom : axis) {
      const Dim dim = IsOpen(atom) ? of.of(atom.name) : Dim{heads, ""};
      if (product.size == 1) {
        product = dim;
      } else if (dim.size != 1) {
        if (product.size < 0 || dim.size < 0) {
          product = Dim{};
        } else if (__builtin_mul_overflow(product.size, dim.size, &product.size)) {
          Fail("an output has more elements than any memory holds");
        }
      }
    }
    dims.push_back(product);
  }
  return dims;
}

// Those of Y, present_key and present_value.
std::vector<std::vector<Dim>> OutputDims(const AttentionAttributes& attributes, const AllSizes& sizes) {
  std::vector<std::vector<Dim>> dims{
    DimsOf(attributes.y, attributes.heads, {sizes.b, sizes.queries, sizes.value_size})};
  if (attributes.problem.has_past)
    for (const Dim& size : {sizes.head_size, sizes.value_size})
      dims.push_back(DimsOf(attributes.past, attributes.kv_heads, {sizes.b, sizes.keys, size}));
  return dims;
}

// Where the elements of a tensor of this shape and layout lie. `sizes` are its own.
AttentionProblem::View ViewOf(const AttentionLayout& layout, int64_t heads, int64_t b, int64_t s, int64_t d) {
  AttentionProblem::View view;
  struct Known {
    char name;
    int64_t length, *stride;
  };
  const std::array<Known, 3> known = {{{'b', b, &view.batch}, {'s', s, &view.row}, {'d', d, &view.column}}};
  int64_t stride = 1;
  for (auto axis = layout.axes.rbegin(); axis != layout.axes.rend(); ++axis)
    for (auto atom = axis->rbegin(); atom != axis->rend(); ++atom) {
      const auto own =
        std::find_if(known.begin(), known.end(), [&](const Known& each) { return each.name == atom->name; });
      const int64_t length = own == known.end() ? LengthOf(*atom, heads) : own->length;
      if (own != known.end()) *own->stride = stride;
      if (atom->name == 'h') view.head = stride;
      view.offset += atom->first * stride;
      stride *= length;
    }
  return view;
}

AttentionProblem::View MaskView(const Shape& mask, const Shape& target) {
  std::array<int64_t, 4> steps{};
  bool fits = mask.size() <= 4;
  int64_t stride = 1;
  for (size_t i = mask.size(); fits && i-- > 0;) {
    const size_t axis = i + 4 - mask.size();
    fits = mask[i] == 1 || mask[i] == target[axis];
    if (mask[i] != 1) steps[axis] = stride;
    stride *= mask[i];
  }
  if (!fits) Fail("the mask's shape ", ToString(mask), " does not broadcast to ", ToString(target));
  return {0, steps[0], steps[1], steps[2], steps[3]};
}

// The columns of cos and sin: of a table of so many rows for each batch or all, and for heads of this size.
int64_t PairsOf(const Shape& cos, const Shape& sin, int64_t batch, int64_t rows, int64_t head_size) {
  if (cos != sin || (cos.size() != 2 && cos.size() != 3))
    Fail(
      "cos is ", ToString(cos), " and sin ", ToString(sin), ", but both are of one shape, [s, R / 2] or [b, s, R / 2]");
  if (cos[cos.size() - 2] != rows || (cos.size() == 3 && cos[0] != 1 && cos[0] != batch))
    Fail("cos is ", ToString(cos), ", but b of Q is ", batch, " and s of Q and K is ", rows);
  const int64_t pairs = cos.back();
  if (pairs < 1 || pairs > head_size / 2)
    Fail("cos has ", pairs, " columns, but must have 1 to ", head_size, " / 2, half the head size");
  return pairs;
}

// ---- the node

DType DTypeOf(const char* attribute, const std::string& word, const std::vector<DType>& allowed) {
  std::string known;
  for (const DType dtype : allowed) {
    if (word == NameOf(dtype)) return dtype;
    known += (known.empty() ? "" : ", ") + std::string(NameOf(dtype));
  }
  Fail("the attribute '", attribute, "' is ", Quoted(word), " but must be one of ", known);
}

size_t WordOf(const char* attribute, const std::string& word, const std::vector<const char*>& words) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return size_t(found - words.begin());
  std::string known;
  for (const char* each : words) known += (known.empty() ? "" : ", ") + std::string(each);
  Fail("the attribute '", attribute, "' is ", Quoted(word), " but must be one of ", known);
}

template <typename Source>
int64_t NumberOf(const Source& source, const char* name, int64_t least, int64_t most) {
  const int64_t number = source.int_attribute(name, 0);
  if (number < least || number > most)
    Fail("the attribute '", name, "' is ", number, " but must be from ", least, " to ", most);
  return number;
}

template <typename Source>
AttentionAttributes ParseAttributes(const Source& source) {
  AttentionAttributes attributes;
  AttentionProblem& problem = attributes.problem;
  // On the CPU ONNX Runtime makes a float16 node a float one where no neighbour is float16, attributes aside.
  const std::string half = NameOf(DType::kFloat16);
  const bool widened =
    source.input_count() > 0 && source.input(0).type == ort::kFloat && source.string_attribute("qkv_dtype") == half;
  const auto dtype_word = [&](const std::string& word) {
    return widened && word == half ? std::string(NameOf(DType::kFloat)) : word;
  };
  attributes.dtype = problem.dtype = DTypeOf("qkv_dtype", dtype_word(source.string_attribute("qkv_dtype")),
    {DType::kFloat16, DType::kBFloat16, DType::kFloat, DType::kDouble});
  const std::string mask_dtype = dtype_word(source.string_attribute("mask_dtype", ""));
  if (!mask_dtype.empty())
    attributes.mask_dtype = DTypeOf("mask_dtype", mask_dtype, {DType::kBool, DType::kFloat, attributes.dtype});
  problem.has_mask = attributes.mask_dtype.has_value();
  problem.mask_dtype = attributes.mask_dtype.value_or(DType::kBool);
  attributes.allow_tf32 = ReadAllowTf32(source);
  attributes.heads = problem.heads = NumberOf(source, "heads", 1, kMostHeads);
  attributes.kv_heads = problem.kv_heads = NumberOf(source, "kv_heads", 1, kMostHeads);
  if (attributes.heads % attributes.kv_heads != 0)
    Fail("heads is ", attributes.heads, ", but must be a multiple of kv_heads, ", attributes.kv_heads);
  problem.causal = static_cast<AttentionProblem::Causal>(
    WordOf("causal", source.string_attribute("causal", "none"), {"none", "upper_left", "lower_right"}));
  problem.masked_rows_are_zero =
    WordOf("masked_rows", source.string_attribute("masked_rows", "nan"), {"nan", "zero"}) == 1;
  problem.rotary = static_cast<AttentionProblem::Rotary>(
    WordOf("rotary", source.string_attribute("rotary", "none"), {"none", "half", "interleaved"}));
  const std::string rotary_dtype = dtype_word(source.string_attribute("rotary_dtype", ""));
  if (!problem.is_rotary() && !rotary_dtype.empty())
    Fail("the attribute 'rotary_dtype' is ", Quoted(rotary_dtype), ", but 'rotary' is none; remove it");
  problem.rotary_dtype =
    rotary_dtype.empty() ? attributes.dtype : DTypeOf("rotary_dtype", rotary_dtype, {DType::kFloat, attributes.dtype});
  problem.window = NumberOf(source, "window", 0, kLargest);
  if (problem.window > 0 && problem.causal == AttentionProblem::Causal::kNone)
    Fail("window is ", problem.window, " beside causal 'none', of which it takes the last keys; set one");
  problem.scale = double(source.float_attribute("scale", 1));
  problem.softcap = double(source.float_attribute("softcap", 0));
  if (!std::isfinite(problem.scale) || !std::isfinite(problem.softcap) || problem.softcap < 0)
    Fail("scale is ", problem.scale, " and softcap ", problem.softcap, "; both are finite, and softcap is not below 0");
  const auto layout = [&](const char* name, int64_t heads, bool is_output) {
    return AttentionLayout::Parse(name, source.string_attribute(name, "b h s d"), heads, is_output);
  };
  attributes.q = layout("q_layout", attributes.heads, false);
  attributes.k = layout("k_layout", attributes.kv_heads, false);
  attributes.v = layout("v_layout", attributes.kv_heads, false);
  attributes.y = layout("y_layout", attributes.heads, true);
  problem.has_position = WordOf("cache", source.string_attribute("cache", "append"), {"append", "write"}) == 1;
  problem.has_past = source.input_count() >= attributes.input_count() + 2;
  layout("past_layout", attributes.kv_heads, true);
  attributes.past = layout("past_layout", attributes.kv_heads, false);
  if (!problem.has_past && !source.string_attribute("past_layout", "").empty())
    Fail("the attribute 'past_layout' is there, but no past_key; remove it");
  if (!problem.has_past && problem.has_position)
    Fail("the attribute 'cache' is write, but past_key, past_value and position are not there; remove it");
  return attributes;
}

// Of an input among the tensors that have layouts: Q, K, V, past_key and past_value; 5 of the others.
size_t PlaceOf(const AttentionAttributes& attributes, size_t input) {
  const size_t role = attributes.RoleOf(input);
  return role < 3 ? role : role < 6 ? 5 : role - 3;
}

void CheckCounts(const AttentionAttributes& attributes, size_t inputs, std::optional<size_t> outputs) {
  const AttentionProblem& problem = attributes.problem;
  const size_t tables = 2 * problem.is_rotary(), past = 2 * problem.has_past + problem.has_position;
  const bool fits = inputs >= 3 + tables + past && inputs <= 4 + tables + past;
  if (fits && outputs.value_or(attributes.output_count()) == attributes.output_count()) return;
  Fail("the node has ", inputs, " inputs", outputs ? " and " + std::to_string(*outputs) + " outputs" : "",
    "; its inputs are Q, K, V", tables ? ", perhaps a mask, cos and sin" : " and perhaps a mask",
    ", its output is Y, and with a cache also past_key and past_value, present_key and present_value, all four",
    problem.has_position ? ", and position" : "");
}

void Infer(ShapeContext& context) {
  const AttentionAttributes attributes = AttentionAttributes::Parse(context);
  CheckCounts(attributes, context.input_count(), std::nullopt);
  std::array<std::vector<Dim>, 5> dims;
  KnownDims known{};
  for (size_t input = 0; input < context.input_count(); ++input) {
    const size_t i = PlaceOf(attributes, input);
    if (i >= 5) continue;
    const TensorType type = context.input(input);
    if (type.type != ort::kUndefined) CheckAttentionType(attributes, input, type.type);
    if (!type.has_shape) continue;
    // A size of 0 is not known: onnx's inference says 0 of the open lengths of an Attention.
    for (size_t axis = 0; axis < type.shape.size(); ++axis)
      dims[i].push_back({type.shape[axis] > 0 ? type.shape[axis] : -1, type.symbols[axis]});
    known[i] = &dims[i];
  }
  const std::vector<std::vector<Dim>> outputs = OutputDims(attributes, Agree(attributes, known));
  for (size_t i = 0; i < outputs.size(); ++i) {
    TensorType output;
    output.type = ToOrt(attributes.dtype);
    output.has_shape = known != KnownDims{};
    if (output.has_shape)
      for (const Dim& dim : outputs[i]) {
        output.shape.push_back(dim.size);
        output.symbols.push_back(dim.size < 0 ? dim.symbol : "");
      }
    context.set_output(i, output);
  }
}

}  // namespace

AttentionLayout AttentionLayout::Parse(const char* attribute, const std::string& text, int64_t heads, bool is_output) {
  std::string reason = text.size() > kLongestText ? "it is longer than the 16 atoms that a layout may have" : "";
  AttentionLayout layout{text, {}};
  if (reason.empty()) layout.axes = ParseAxes(text, &reason);
  if (reason.empty()) reason = WrongWith(layout.axes, heads, is_output);
  if (!reason.empty()) Fail("the attribute '", attribute, "' is ", Quoted(text, 80), ": ", reason);
  return layout;
}

AttentionAttributes AttentionAttributes::Parse(const NodeInfo& info) { return ParseAttributes(info); }
AttentionAttributes AttentionAttributes::Parse(const ShapeContext& context) { return ParseAttributes(context); }
AttentionAttributes AttentionAttributes::Parse(const NodeText& text) { return ParseAttributes(text); }

void CheckAttentionType(const AttentionAttributes& attributes, size_t input, ort::ElementType type) {
  const AttentionProblem& problem = attributes.problem;
  const size_t role = attributes.RoleOf(input);
  const DType wanted = role > 5 ? problem.dtype
    : role > 3                  ? problem.rotary_dtype
    : role == 3                 ? problem.mask_dtype
                                : problem.dtype;
  if (role == 8) {
    if (type != ToOrt(DType::kInt64)) Fail("position is ", NameOfOrt(type), ", but must be int64; cast it");
  } else if (type != ToOrt(wanted)) {
    Fail(kNames[role], " is ", NameOfOrt(type), ", but the attribute '",
      role == 4 || role == 5 ? "rotary_dtype"
        : role == 3          ? "mask_dtype"
                             : "qkv_dtype",
      "' is ", NameOf(wanted), "; cast it");
  }
}

std::vector<TensorType> CheckAttentionNode(const AttentionAttributes& attributes, const NodeInfo& info) {
  const AttentionProblem& problem = attributes.problem;
  const size_t count = info.input_count();
  CheckCounts(attributes, count, info.output_count());
  const bool has_mask = count == 4u + 2 * problem.is_rotary() + 2 * problem.has_past + problem.has_position;
  if (has_mask && !attributes.mask_dtype) Fail("there is a mask, but the attribute 'mask_dtype' is missing");
  if (!has_mask && attributes.mask_dtype) Fail("the attribute 'mask_dtype' is there, but no mask; remove it");
  std::vector<TensorType> types;
  for (size_t i = 0; i < attributes.input_count(); ++i) {
    types.push_back(info.input(i));
    if (types[i].type != ort::kUndefined) CheckAttentionType(attributes, i, types[i].type);
  }
  return types;
}

AttentionShape FitAttention(const AttentionAttributes& attributes, const std::vector<Shape>& inputs) {
  std::array<std::vector<Dim>, 5> dims;
  KnownDims known{};
  for (size_t input = 0; input < inputs.size(); ++input) {
    ElementCount(inputs[input]);
    const size_t i = PlaceOf(attributes, input);
    if (i >= 5) continue;
    dims[i] = Known(inputs[input]);
    known[i] = &dims[i];
  }
  const AllSizes sizes = Agree(attributes, known);
  AttentionShape shape{attributes.problem, {}};
  AttentionProblem& problem = shape.problem;
  const int64_t b = problem.batch = sizes.b.size;
  problem.queries = sizes.queries.size;
  problem.keys = sizes.keys.size;
  problem.added = sizes.added.size;
  problem.head_size = sizes.head_size.size;
  problem.value_size = sizes.value_size.size;
  ElementCount({b, problem.heads, problem.queries, problem.value_size});
  for (const std::vector<Dim>& output : OutputDims(attributes, sizes)) {
    shape.outputs.push_back(ShapeOf(output));
    ElementCount(shape.outputs.back());
  }
  problem.q = ViewOf(attributes.q, problem.heads, b, problem.queries, problem.head_size);
  problem.k = ViewOf(attributes.k, problem.kv_heads, b, sizes.added.size, problem.head_size);
  problem.v = ViewOf(attributes.v, problem.kv_heads, b, sizes.added.size, problem.value_size);
  problem.y = ViewOf(attributes.y, problem.heads, b, problem.queries, problem.value_size);
  if (problem.has_mask) problem.mask = MaskView(inputs[3], {b, problem.heads, problem.queries, problem.keys});
  if (problem.is_rotary()) {
    const Shape &cos = inputs[3 + problem.has_mask], &sin = inputs[4 + problem.has_mask];
    problem.pairs = PairsOf(cos, sin, b, problem.queries, problem.head_size);
    problem.rotary_batch = cos.size() == 3 && cos[0] != 1 ? problem.queries * problem.pairs : 0;
  }
  if (problem.has_past) {
    problem.past = sizes.past.size;
    if (problem.has_position) {
      const Shape& position = inputs.back();
      problem.position_batch = position.size() == 1 && position[0] != 1;
      if (position.size() > 1 || (problem.position_batch && position[0] != b))
        Fail("position is ", ToString(position), ", but must be [], [1] or [b], and b of Q is ", b);
    }
    if (problem.has_position && problem.added > problem.past)
      Fail("s of K is ", problem.added, ", but must be at most ", problem.past, ", the rows of the cache");
    const auto view = [&](int64_t rows, int64_t size) {
      return ViewOf(attributes.past, problem.kv_heads, b, rows, size);
    };
    problem.past_key = view(problem.past, problem.head_size);
    problem.past_value = view(problem.past, problem.value_size);
    problem.present_key = view(problem.keys, problem.head_size);
    problem.present_value = view(problem.keys, problem.value_size);
  }
  return shape;
}

AttentionProblem OverPresent(const AttentionProblem& problem) {
  AttentionProblem over = problem;
  over.k = problem.present_key;
  over.v = problem.present_value;
  over.has_past = false;
  over.has_position = problem.sees_position();
  over.are_keys_rotated = true;
  return over;
}

const Operator kFusedAttention = {
  "FusedAttention",
  Infer,
  CreateCpuAttention,
  CreateCudaAttention,
};

}  // namespace ortplugin
