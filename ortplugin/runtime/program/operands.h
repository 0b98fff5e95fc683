// What the inputs of a fused operator are: their types against the program's, the shape that they broadcast to, how
// they lie against the [rows, width] matrix or the joined axes that the operator works on, and the CUDA C++ that reads
// and writes them. A tensor may broadcast in any way ONNX allows; what costs index arithmetic is said by its Access.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ortplugin/runtime/ort/node_text.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// A summand of an element's offset: (index / divisor % modulus) * stride, without the remainder where modulus is 0.
struct Term {
  int64_t divisor, modulus, stride;
  int64_t At(int64_t index) const {
    index /= divisor;
    return (modulus ? index % modulus : index) * stride;
  }
};

// Row i of an image is rows[i * pieces], .., rows[i * pieces + pieces - 1] of the image as it lies, side by side.
struct RowOrder {
  std::vector<int64_t> rows;
  int64_t length = 0, pieces = 1, largest = 0;  // rows of an image; the largest of `rows`
  int64_t At(int64_t row, int64_t index) const { return rows[size_t(row % length * pieces + index)]; }
};

// Where an element is, in elements from the tensor's start: the sum of the `outer` terms of its row and of the `inner`
// terms of its column.
struct Access {
  DType dtype;
  int64_t width;
  std::vector<Term> outer, inner;
  const RowOrder* order = nullptr;  // `outer` counts rows of the tensor in that order then
  int64_t rows = 0, piece = 0;  // of an image as it lies: [rows, piece]

  bool is_shared() const { return outer.empty() && order == nullptr; }  // every row reads the same
  bool is_pieced() const { return order != nullptr && order->pieces > 1; }
  bool is_scalar() const { return inner.empty(); }  // every column reads the same
  bool is_contiguous() const {
    return inner.size() == 1 && inner[0].divisor == 1 && inner[0].modulus == 0 && inner[0].stride == 1;
  }
  // Row r is elements [r * width, (r + 1) * width): an ordinary tensor of the full shape.
  bool is_linear() const {
    return order == nullptr && is_contiguous() && outer.size() == 1 && outer[0].divisor == 1 && outer[0].modulus == 0 &&
      outer[0].stride == width;
  }
  int64_t RowOffset(int64_t row, int64_t index = 0) const {  // of a piece of it, where it has several
    int64_t offset = 0;
    for (const Term& term : outer) offset += term.At(row);
    return order == nullptr ? offset : (offset / order->length * rows + order->At(offset, index)) * piece;
  }
  int64_t ColumnOffset(int64_t column) const {
    int64_t offset = 0;
    for (const Term& term : inner) offset += term.At(column);
    return offset;
  }
};

// The access to a tensor of `shape` that broadcasts to `full`, whose axes before `axis` are rows. Throws Error where it
// does not broadcast to it.
Access MakeAccess(DType dtype, const Shape& shape, const Shape& full, size_t axis);

// The shape that all of `shapes` broadcast to. Throws Error where there is none. -1 is a dimension not known.
Shape Broadcast(const Shapes& shapes);
// The same of what is known of them early: no shape where one of them has none. A dimension that is not known keeps its
// name where the tensors that could give it agree on one.
TensorType Broadcast(const TensorTypes& types);

// The shape that the inputs of a node broadcast to, which are the program's parameters. Throws Error that names the
// first that does not fit those before it.
Shape BroadcastInputs(const Program& program, const Shapes& inputs);

// The shapes, none where a rank or a dimension is not known, or is 0, which it then need not be.
std::optional<Shapes> KnownShapes(const TensorTypes& types);

// Shapes to prepare a kernel for: a dimension that is not known is taken for what other tensors have in its place, else
// for two. Empty where a rank is not known or no such guess broadcasts.
std::optional<Shapes> GuessShapes(const TensorTypes& types);

// Throws Error where a node's input has another dtype than the program's parameter.
void CheckType(const Program& program, size_t input, ort::ElementType type);
// The types of the inputs of a node whose inputs are the program's parameters, as far as they are known, checked like
// that.
TensorTypes ParameterTypes(const Program& program, const ShapeContext& context);
// The inputs of a run with their shapes, checked like that.
struct RunInputs {
  std::vector<Tensor> tensors;
  Shapes shapes;
};
RunInputs ReadParameters(const Program& program, Run& run);
bool AreAligned(const std::vector<Tensor>& tensors);  // to 16 bytes

// The attribute `program` of a node on the CPU. Between nodes that have no float16 there, ONNX Runtime gives a node
// float for float16 and expects float back: the text is then the same with float for float16. `first`: the input that
// is the program's first parameter, or has its dtype; `second`: the one that is its second, which the others follow.
std::string ProgramText(const ShapeContext& context, size_t first = 0, size_t second = 1);
std::string ProgramText(const NodeInfo& info, size_t first = 0, size_t second = 1);
inline std::string ProgramText(const NodeText& text, size_t, size_t) { return text.string_attribute("program"); }
// The text of a program with float for float16.
std::string WithFloatForHalf(const std::string& text);
// Throws Error where a node has other inputs or outputs than the program. Returns the inputs' types.
TensorTypes CheckNode(const Program& program, const NodeInfo& info);

// The axes of `full` as some tensors that broadcast to it need them: axes of size 1 are gone, and neighbours are one
// axis where every tensor lets one index serve both. Tensors of the full shape alone leave a single axis. There is at
// least one. Strides are in elements, [tensor][axis], and 0 along the axes that a tensor is repeated over.
struct Axes {
  Shape sizes;
  Shapes strides;
  size_t count() const { return sizes.size(); }
  bool is_linear(size_t tensor) const;  // element k of it meets element k of the full shape
  bool is_scalar(size_t tensor) const;  // one element for all; a tensor of as many as the full shape is linear instead
};
Axes JoinAxes(const Shape& full, const Shapes& shapes);

// How an index over joined axes becomes offsets into tensors: the CUDA C++ of it, and the numbers that it reads from
// the kernel's arguments, so that the text is the same for all shapes that broadcast alike. Needs common.cuh and a type
// index_t, unsigned or unsigned long long.
class IndexMap {
 public:
  // `name` is the variable that holds the index, and begins the names of everything else. It counts elements, or
  // vectors of `unit` elements, which must divide the last axis. `tensors`: those of `axes` that offsets are for; equal
  // strides share one. `wide`: index_t has 64 bits; indices must stay below 2^63, else below 2^31. Axes may be empty,
  // as those of a sum of nothing are.
  IndexMap(std::string name, const Axes& axes, int64_t unit, const std::vector<size_t>& tensors, bool wide);

  std::string EmitMembers() const;  // of the struct Arguments
  std::string EmitOffsets(const std::string& indent) const;  // constants, from `name` and the Arguments `a`
  std::string OffsetOf(size_t tensor) const;  // which of them: "index_o0", in elements
  std::vector<uint64_t> Numbers() const;  // the members' values, in order
  uint64_t largest_stride() const;

 private:
  struct Run {  // neighbouring axes that a tensor has, as one coordinate
    size_t outer, inner;  // q[inner] - q[outer] * period, q[i] being the index over the axes before i
    uint64_t period, stride;
  };
  std::string Quotient(size_t axis) const;

  std::string name_;
  bool wide_;
  std::vector<uint64_t> suffix_;  // what the index over all axes is divided by for q[i]
  std::vector<std::vector<Run>> offsets_;  // by number
  std::vector<std::pair<size_t, size_t>> of_;  // tensor, number of its offset
  std::vector<size_t> quotients_;  // that are needed
};

// CUDA C++ for the operands of a kernel. `accesses` are those of the program's parameters; results are linear.
//
// A phase is a part of the program that runs as one loop over elements. For each the text has
//   struct <Name>Row, <Name>Shared: the operands that differ from row to row, and those that all rows share, each with
//     load(): VECTOR elements from a column on
//   struct <Name>Results with set<result>() and store()
// and for all together: Arguments, Offsets (where a row starts in each tensor), SharedOperands (pointers to what all
// rows share). `stream_results`: the results outgrow the cache and need not stay in it.
struct Phase {
  std::string name;  // "Prologue"
  std::vector<size_t> parameters;  // numbers of the parameters that it reads
  std::vector<size_t> results;  // numbers of the results that it writes
};

// The numbers of common.cuh's Divider: exact for indices below 2^31, or 2^63 where `wide`. `divisor` is not 0: sizes
// that may be are kept from it by who plans a launch over nothing, as of a sum of no elements.
std::array<uint64_t, 2> MakeDivider(uint64_t divisor, bool wide);

std::string StorageType(DType dtype);  // "half_t"
std::string ComputeType(DType dtype);  // "float"

// `struct Scalars`: operands of one element, each loaded (by `load`) where the kernel begins. `number`: of operand
// p<number>.
struct ScalarOperand {
  size_t number;
  std::string storage, pointer;
};
std::string EmitScalars(const std::vector<ScalarOperand>& operands, const char* load = "load");

std::string EmitOperands(
  const Program& program, const std::vector<Access>& accesses, const std::vector<Phase>& phases, bool stream_results);

// `const float v3 = ...;` for each parameter of a phase, from the variables `row`, `shared` and `j`.
std::string EmitParameterValues(const Program& program, const std::vector<Access>& accesses, const Phase& phase);
// `results.set3(j, v9);` for each result of a phase.
std::string EmitResultValues(const Program& program, const Phase& phase);

// The kernel's argument block, laid out as the struct Arguments of EmitOperands: pointers of inputs and outputs, rows,
// chunks, then divisor, modulus and stride of every term.
std::vector<uint64_t> ArgumentBlock(const std::vector<Access>& accesses, size_t results, int64_t rows, int64_t chunks);

}  // namespace ortplugin
