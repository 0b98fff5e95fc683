// A pointwise program over whole tensors on the CPU, block by block, on all of ONNX Runtime's threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/program/operand_lanes.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// Which values, by ValueId, are the same for all elements: what needs them computes them once for each workspace.
std::vector<bool> FixedValues(const Program& program, const Axes& axes);

// One run over the elements. What it refers to must outlive it.
class ProgramSweep {
 public:
  // A parameter's elements. `stored`: the dtype they lie in memory as, the parameter's own or that of its lanes.
  struct Input {
    const void* data;
    DType stored;
  };

  // `axes`: those that parameters, in order, broadcast to `count` elements over. A result may lie where a parameter of
  // its size does that is linear in `axes`.
  ProgramSweep(const Program& program, const Axes& axes, int64_t count, const std::vector<Input>& inputs,
    const std::vector<void*>& outputs);

  void Run(ortplugin::Run& run) const;

 private:
  struct Space {
    explicit Space(const Evaluator& evaluator) : workspace(evaluator) {}
    Evaluator::Workspace workspace;
    alignas(64) char scratch[kBlock * 8];
  };

  std::vector<uint32_t> Statements(bool fixed) const;
  bool IsComputed(ValueId value) const;
  bool IsOverwritten(size_t input, const void* data) const;
  bool IsRead(ValueId parameter, const std::vector<Input>& inputs) const;
  bool Stays(size_t result, const std::vector<Input>& inputs) const;
  void Task(size_t task) const;
  std::unique_ptr<Space> Take() const;
  void Block(int64_t first, size_t count, Space& space) const;

  const Program& program_;
  int64_t count_, task_;
  const std::vector<void*>& outputs_;
  std::vector<bool> is_fixed_;  // by ValueId: the same for all elements
  Evaluator once_, each_;
  std::vector<BlockOperand> operands_;
  std::vector<bool> reads_;  // by parameter
  std::vector<bool> binds_;  // results that are computed where they belong
  std::vector<bool> stays_;  // results that lie where they belong before anything is computed
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Space>> spaces_;  // those that no task is using
};

}  // namespace ortplugin
