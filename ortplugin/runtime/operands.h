// How the tensors of a fused operator lie against the [rows, width] matrix that it works on, and the CUDA C++ that
// reads and writes them. A tensor may broadcast in any way ONNX allows; what costs index arithmetic is said by its
// Access.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ortplugin/runtime/ort.h"
#include "ortplugin/runtime/program.h"

namespace ortplugin {

// A summand of an element's offset: (index / divisor % modulus) * stride, without the remainder where modulus is 0.
struct Term {
  int64_t divisor, modulus, stride;
  int64_t At(int64_t index) const {
    index /= divisor;
    return (modulus ? index % modulus : index) * stride;
  }
};

// Where an element is, in elements from the tensor's start: the sum of the `outer` terms of its row and of the `inner`
// terms of its column.
struct Access {
  DType dtype;
  int64_t width;
  std::vector<Term> outer, inner;

  bool is_shared() const { return outer.empty(); }  // every row reads the same
  bool is_scalar() const { return inner.empty(); }  // every column reads the same
  bool is_contiguous() const {
    return inner.size() == 1 && inner[0].divisor == 1 && inner[0].modulus == 0 && inner[0].stride == 1;
  }
  // Row r is elements [r * width, (r + 1) * width): an ordinary tensor of the full shape.
  bool is_linear() const {
    return is_contiguous() && outer.size() == 1 && outer[0].divisor == 1 && outer[0].modulus == 0 &&
           outer[0].stride == width;
  }
  int64_t RowOffset(int64_t row) const {
    int64_t offset = 0;
    for (const Term& term : outer) offset += term.At(row);
    return offset;
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
Shape Broadcast(const std::vector<Shape>& shapes);

// CUDA C++ for the operands of a kernel. `accesses` are those of the program's parameters; results are linear.
//
// A phase is a part of the program that runs as one loop over elements. For each the text has
//   struct <Name>Row, <Name>Shared: the operands that differ from row to row, and those that all rows share, each with
//     load(): VECTOR elements from a column on
//   struct <Name>Results with set<result>() and store()
// and for all together: Arguments, Offsets (where a row starts in each tensor), SharedOperands (pointers to what all
// rows share). `stream_results`: the results outgrow the cache and need not stay in it.
struct Phase {
  std::string name;                // "Prologue"
  std::vector<size_t> parameters;  // numbers of the parameters that it reads
  std::vector<size_t> results;     // numbers of the results that it writes
};

std::string StorageType(DType dtype);  // "half_t"
std::string ComputeType(DType dtype);  // "float"

std::string EmitOperands(const Program& program, const std::vector<Access>& accesses, const std::vector<Phase>& phases,
                         bool stream_results);

// `const float v3 = ...;` for each parameter of a phase, from the variables `row`, `shared` and `j`.
std::string EmitParameterValues(const Program& program, const std::vector<Access>& accesses, const Phase& phase);
// `results.set3(j, v9);` for each result of a phase.
std::string EmitResultValues(const Program& program, const Phase& phase);

// The kernel's argument block, laid out as the struct Arguments of EmitOperands: pointers of inputs and outputs, rows,
// chunks, then divisor, modulus and stride of every term.
std::vector<uint64_t> ArgumentBlock(const std::vector<Access>& accesses, size_t results, int64_t rows, int64_t chunks);

}  // namespace ortplugin
