// FusedLSTM: the recurrence of an LSTM. The specification is in ortplugin/ops/lstm/__init__.py.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

extern const Operator kFusedLSTM;

struct LstmAttributes {
  enum class Direction { kForward, kReverse, kBidirectional };  // as `direction` has them, in this order
  int64_t hidden;
  DType dtype;
  Direction direction;
  bool batch_first;
  bool has_states;  // h0 and c0
  size_t outputs;  // 1 to 3: Y, Y_h and Y_c
  std::optional<bool> allow_tf32;  // empty: as the session has it

  int64_t directions() const { return direction == Direction::kBidirectional ? 2 : 1; }
  bool follows_session() const { return !allow_tf32 && dtype == DType::kFloat; }
  bool is_reverse(int64_t d) const { return direction == Direction::kReverse || d == 1; }

  // Throw Error where an attribute, an input or an output is none of the operator's. Of types and shapes the first
  // checks what is known.
  static LstmAttributes Parse(const NodeInfo& info);
  static LstmAttributes Parse(const ShapeContext& context);
  void CheckType(size_t input, ort::ElementType type) const;
};

struct LstmShape {
  int64_t steps, batch;
  int64_t inner;  // sequences that lie beside each other in each step
  Shape y, state;

  // Of [.., D * H]: the step t of a sequence.
  int64_t Row(int64_t sequence, int64_t t) const { return (sequence / inner * steps + t) * inner + sequence % inner; }
};

// Of the shapes of all inputs. Throws Error where they do not fit.
LstmShape FitLstm(const LstmAttributes& attributes, const Shapes& inputs);

// One run, of which all shapes fit. Null: a state that is not there.
struct LstmRun {
  LstmShape shape;
  const void *g, *r, *h0, *c0;
  void *y, *y_h, *y_c;
};
// Reads the inputs and asks for the outputs.
LstmRun PrepareLstm(const LstmAttributes& attributes, Run& run, bool on_cpu);

struct LstmConfig {
  bool uses_mma;  // tensor cores, of float in TF32; R in registers
  int threads;
  int64_t sequences;  // of a block, which has one direction of each
};
// `is_usual`: whether every tensor begins at a multiple of 16 bytes and no kernel writes R. Throws Error where the GPU
// can't hold the units.
LstmConfig ConfigureLstm(const LstmAttributes& attributes, const DeviceFacts& gpu, bool is_usual);
// The whole CUDA C++ of a variant of the kernel `lstm`, for tests as well as for launches.
std::string LstmSource(const LstmAttributes& attributes, const LstmConfig& config);

std::unique_ptr<Kernel> CreateCpuLstm(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaLstm(const NodeInfo& info);

}  // namespace ortplugin
