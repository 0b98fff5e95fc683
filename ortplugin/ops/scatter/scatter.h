// ScatterND, ScatterElements and UpdateSlice: a tensor with some of its elements written over or combined with updates.
// The specification is in docs/operators.md.
//
// All three come down to one form (ScatterShape): the updates are `units` in order, each a run of `width` consecutive
// elements that goes to one of the tensor's slots of that width.
#pragma once

#include <memory>
#include <vector>

#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/operands.h"

namespace ortplugin {

extern const Operator kScatterND, kScatterElements, kUpdateSlice;

enum class ScatterKind { kND, kElements, kSlice };
enum class Reduction { kNone, kAdd, kMul, kMin, kMax };
enum class ScatterAlgorithm { kAuto, kSequential, kParallel, kSorting };

struct ScatterAttributes {
  ScatterKind kind;
  Reduction reduction = Reduction::kNone;
  ScatterAlgorithm algorithm = ScatterAlgorithm::kAuto;
  bool unique = false;  // no index occurs twice, says the model
  bool deterministic = true;  // false: floating sums and products may be taken in any order
  int64_t axis = 0;  // ScatterElements; may be negative
  std::vector<int64_t> axes, steps;  // UpdateSlice; as many steps as axes

  // Throw Error where an attribute is none of the operator's.
  static ScatterAttributes Parse(ScatterKind kind, const ShapeContext& context);
  static ScatterAttributes Parse(ScatterKind kind, const NodeInfo& info);

  // Where the inputs stand.
  size_t indices() const { return kind == ScatterKind::kSlice ? 2 : 1; }  // UpdateSlice: starts
  size_t updates() const { return kind == ScatterKind::kSlice ? 1 : 2; }
};

// The shapes of one run.
struct ScatterShape {
  // A number that selects the slot: an element of `indices`, or of `starts` and so many steps on.
  struct Component {
    int64_t size;  // negative numbers count from this end
    int64_t stride;  // in slots
    Term steps;  // UpdateSlice: of the unit, in steps of the slice; else 0
  };

  Shape shape;  // of data and of the output
  int64_t elements;  // of data
  int64_t units;  // of the updates, in row-major order
  int64_t width;  // elements of a unit and of a slot
  int64_t slots;  // of data; slot s is its elements [s * width, (s + 1) * width)
  std::vector<Term> base;  // a unit's slot where all components are 0
  std::vector<Component> components;
  std::vector<Term> index;  // where a unit's components begin in `indices`; they lie side by side
  std::vector<Term> update;  // where a unit's elements begin in `updates`; they lie side by side

  bool is_empty() const { return elements == 0 || units == 0 || width == 0; }  // the output is data
};

// Bytes of an element, 0 for a type without a fixed size of whole bytes (strings, 4-bit integers).
size_t ScatterBytes(ort::ElementType type);

// Throws Error where the inputs' dtypes don't fit the operator. `types` in the order of the inputs; kUndefined: not
// known.
void CheckScatterTypes(const ScatterAttributes& attributes, const std::vector<ort::ElementType>& types);

// Throws Error where the inputs' shapes don't fit the operator.
ScatterShape FitScatter(const ScatterAttributes& attributes, const Shapes& inputs);

// What both kernels check when they are created: throws Error where the inputs, as far as they are known early, don't
// fit the operator. Returns the inputs' types.
TensorTypes CheckScatterNode(const ScatterAttributes& attributes, const NodeInfo& info);

std::unique_ptr<Kernel> CreateCpuScatter(ScatterKind kind, const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaScatter(ScatterKind kind, const NodeInfo& info);

}  // namespace ortplugin
