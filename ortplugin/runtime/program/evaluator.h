// Pointwise programs on the CPU: every statement runs as one vectorised loop over a block of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// Elements of a block: small enough that all live values of a program stay in the L1 and L2 caches.
constexpr size_t kBlock = 512;

// A value's elements are held as `lanes`: float for float16, bfloat16 and float; double for double; uint8_t (0 or 1)
// for bool; integers as they are. `count` is at most kBlock wherever an Evaluator is concerned, and anything for these
// three.
size_t LaneSize(DType dtype);  // bytes of one lane
void LoadLanes(DType dtype, const void* elements, size_t count, void* lanes);  // contiguous elements
void FillLanes(DType dtype, const void* element, size_t count, void* lanes);  // one element, repeated
void StoreLanes(DType dtype, const void* lanes, size_t count, void* elements);  // rounds to nearest, ties to even

// Reductions and the scaling of normalisations, over lanes of a floating dtype. Sums add in lanes of the dtype's own
// arithmetic within a block, and in double over blocks.
double SumLanes(DType dtype, const void* lanes, size_t count);
double SumSquaredDeviations(DType dtype, const void* lanes, double mean, size_t count);
void NormalizeLanes(DType dtype, const void* lanes, double mean, double scale, size_t count, void* normalized);

// Runs some of a program's pointwise statements, a block at a time. Immutable once built, so one Evaluator serves any
// number of threads; what changes lives in a Workspace, one for each thread.
class Evaluator {
 public:
  Evaluator(const Program& program, std::vector<uint32_t> statements);

  class Workspace {
   public:
    explicit Workspace(const Evaluator& evaluator);
    // The lanes of a value: kBlock of them, 64-byte aligned. What the evaluator's statements do not compute, parameters
    // and a core operator's result, is written by the caller before Run; literals are already filled. A value that only
    // the evaluator's own statements read, no result of the program, has no lanes of its own: they pass from value to
    // value during Run.
    void* lanes(ValueId value) { return slots_[value]; }
    // Makes a value's lanes be the caller's own memory, for instance a float tensor's rows: a parameter is then read in
    // place, a statement's result written in place.
    void Bind(ValueId value, const void* memory) { slots_[value] = const_cast<void*>(memory); }

   private:
    friend class Evaluator;
    std::unique_ptr<unsigned char[]> memory_;
    std::vector<void*> slots_;  // by ValueId
  };

  // Computes `count` (at most kBlock) elements of every statement's result.
  void Run(Workspace& workspace, size_t count) const;
  // The number of the last statement for which Run reads the value, which may be no operand of it.
  size_t LastRead(ValueId value) const;

 private:
  struct Step {
    const Statement* statement;
    std::vector<ValueId> operands;  // the statement's, but of OnePlusErf
    DType from, to;  // of the last operand and of the result
    int power;  // of a Pow: 2 and 3 by multiplication, 0 for every other exponent
    float scale;  // of OnePlusErf's operand; 0 for every other operator
  };
  const Program* program_;
  std::vector<Step> steps_;
  std::vector<size_t> offsets_;  // of each value's lanes in a workspace's memory, in bytes
  size_t bytes_;  // of that memory
};

}  // namespace ortplugin
