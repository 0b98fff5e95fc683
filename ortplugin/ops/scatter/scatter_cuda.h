// The CUDA side of the scatter operators: which form a problem takes, and the CUDA C++ of one variant of it. For tests
// as well as for launches.
#pragma once

#include <string>

#include "ortplugin/ops/scatter/scatter.h"

namespace ortplugin {

enum class ScatterForm { kCopy, kFused, kFew, kWrite, kSort };

// How a problem is done: `copies` first where the output is not data, then the form.
struct ScatterChoice {
  ScatterForm form;
  bool copies;
  bool owned;  // kWrite: a table says which unit is the last of its slot
  bool collects;  // with the table: slots fetch their units, instead of units going to their slots
  bool atomic;  // kWrite: units are combined atomically
};

// The rule of docs/operators.md, from sizes, dtype and attributes (ScatterAlgorithm names a family of forms). Where
// slots are no more than four for each unit they fetch their units, copying what has none. Sorting also where the
// table that finds the last unit of each slot would be out of proportion. Throws Error where the attributes ask for
// what would not be deterministic.
ScatterChoice ChooseScatter(
  const ScatterAttributes& attributes, ort::ElementType type, const ScatterShape& shape, bool in_place);

// What the source of a kernel depends on.
struct ScatterVariant {
  ScatterChoice choice;
  int vector;  // elements of an access
  bool covering;  // kFused: updates are much of the output, in whole accesses
  bool whole;  // slots are whole numbers of accesses
  bool narrow;  // a unit is one access
  bool single;  // kFused: a unit is one element
  bool small;  // kFused: very few units of one element, an output that is one access for each thread of a block
  bool wide;  // counts take 64 bits
  bool is_int32;  // indices
  size_t components, base_terms, index_terms, update_terms;
  bool index_is_linear, update_is_linear;
};

// The lowest addresses of the tensors, or'ed: their common alignment.
struct ScatterAddresses {
  uintptr_t data_and_output, updates;
};

ScatterVariant MakeScatterVariant(const ScatterAttributes& attributes, ort::ElementType type, const ScatterShape& shape,
  const ScatterChoice& choice, bool is_int32, const ScatterAddresses& addresses);
std::string ScatterSource(const ScatterAttributes& attributes, ort::ElementType type, const ScatterVariant& variant);

}  // namespace ortplugin
