// FusedLayerNorm: layer or RMS normalisation with the pointwise operators before and after it. The specification is in
// ortplugin/ops/layer_norm/__init__.py.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

extern const Operator kFusedLayerNorm;

// A node's program, taken apart: prologue, core, epilogue.
struct NormProgram {
  Program program;
  bool is_rms;
  int64_t axis;  // the first of those up to the last, as the program has it: may be negative
  std::vector<int64_t> axes;  // or these, from 0 on, ascending
  int64_t groups;  // not 0: also over each of so many parts of the axis `axis`
  double epsilon;
  ValueId summed, normalized;  // s and n of the formula
  std::vector<uint32_t> prologue, epilogue;  // statements
  // What each phase reads and writes. A result that the prologue computes is written there.
  Phase prologue_operands{"Prologue", {}, {}}, epilogue_operands{"Epilogue", {}, {}};

  // Inputs that are read in an order, and the axes that an image has then.
  std::vector<int64_t> ordered = {};
  Shape image = {};
  RowOrder order = {};

  // Throws Error where the text is no program of this operator.
  static NormProgram Parse(const std::string& text);
  // The attributes of those names. Throws Error where they don't fit it, or each other.
  void SetOrder(std::vector<int64_t> inputs, std::vector<int64_t> rows, Shape axes);
  // All of a node, a ShapeContext or a NodeInfo.
  template <typename Node>
  static NormProgram Read(const Node& node, const std::string& text) {
    NormProgram norm = Parse(text);
    norm.SetOrder(node.ints_attribute("ordered"), node.ints_attribute("order"), node.ints_attribute("image"));
    return norm;
  }
  bool is_ordered(size_t input) const;
};

// The shapes of one run: S as [outer, height, groups, run], normalised over `height` and `run`. Tensors are accessed as
// a matrix, whose rows are outer * height and whose columns groups * run. Over the last axes alone height and groups
// are 1, but where operands are the same along whole rows of such a matrix, as gamma of images with channels first is.
struct NormShape {
  Shape shape;  // S, of the normalised value and so of every result
  int64_t outer, height, groups, run;
  int64_t rows, width;  // of the matrix
  std::vector<Access> accesses;  // of each parameter, to the matrix
  int64_t elements() const { return height * run; }  // that have a mean in common
};

// Throws Error where the inputs' shapes don't fit the program.
NormShape FitShapes(const NormProgram& norm, const Shapes& inputs);

// What both kernels check when they are created: throws Error where inputs, outputs or the shapes that are known early
// don't fit the program. Returns the inputs' types.
TensorTypes CheckNode(const NormProgram& norm, const NodeInfo& info);

// A norm on the CPU.
class HostNorm {
 public:
  explicit HostNorm(NormProgram norm);
  const NormProgram& norm() const { return norm_; }
  // `shape`: of the inputs' shapes; `outputs`: of the program's results.
  void Run(ortplugin::Run& run, const NormShape& shape, const std::vector<Tensor>& inputs,
    const std::vector<char*>& outputs) const;

 private:
  struct Range {
    int64_t first, last;
  };
  void BindResults(const Phase& phase, const NormShape& shape, const std::vector<char*>& outputs, int64_t row,
    int64_t column, Evaluator::Workspace& workspace) const;
  void StoreResults(const Phase& phase, const NormShape& shape, const std::vector<char*>& outputs, int64_t row,
    int64_t column, size_t count, Evaluator::Workspace& workspace) const;
  DType DTypeOf(size_t result) const { return norm_.program.result(result).dtype; }
  bool IsInPlace(size_t result) const;
  void ComputeGroups(const NormShape& shape, const std::vector<Tensor>& inputs, const std::vector<char*>& outputs,
    const Range& outer, const Range& columns) const;

  NormProgram norm_;
  Evaluator prologue_, epilogue_;
};

// The same on the GPU: the kernel for one combination of shapes.
struct NormPlan {
  NormShape shape;
  cuda::Function first, second = nullptr;  // second: where tiles are read twice
  cuda::LaunchShape launch;
  std::vector<uint64_t> arguments;  // pointers are filled in at each launch
  size_t scratch_bytes = 0;

  // Asynchronous, on ORT's stream. `addresses`: of the inputs, then of the outputs.
  void Run(const DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const;
};
// `aligned`: every tensor starts at a multiple of 16 bytes.
NormPlan PlanNorm(const NormProgram& norm, const Shapes& shapes, bool aligned, const DeviceFacts& device);

std::unique_ptr<Kernel> CreateCudaLayerNorm(const NodeInfo& info);

// How the operands are reached: which elements, in what accesses.
struct NormAccess {
  bool is_double;
  int narrowest, vector;  // bytes of an element of the narrowest tensor; elements of an access
  int64_t bytes_moved;  // in all, each tensor's elements once
  bool results_fill_cache;  // so that they may leave it first
};
NormAccess AccessOf(const NormProgram& norm, const NormShape& shape, const DeviceFacts& gpu, bool aligned);

// One variant of layer_norm.cu, in which a block holds whole rows.
struct NormConfig {
  int vector;  // elements of an access
  int lanes, groups;  // threads of a row; rows of a block
  int items;  // accesses of a lane
  int min_blocks;  // of a multiprocessor: bounds the registers of a thread
  int rows_at_once;
  int line;  // accesses of a cache line, where rows start between lines; else 1
  bool prefetch;
  bool stream_results, pass_l1;  // cache hints: results leave first; what is read once does not enter L1
};

// None where no block can hold a row, few blocks would hold long ones, or rows are not what is normalised.
std::optional<NormConfig> ConfigureLayerNorm(
  const NormProgram& norm, const NormShape& shape, const DeviceFacts& gpu, bool aligned);
// The whole CUDA C++ of a variant, for tests as well as for launches.
std::string LayerNormSource(const NormProgram& norm, const NormShape& shape, const NormConfig& config);
// What it begins with: the program's arithmetic and its operands, after `sizes`.
std::string NormOperands(
  const NormProgram& norm, const NormShape& shape, const std::string& sizes, bool stream_results, bool pass_l1);

// One variant of norm_tiles.cu, for every shape.
struct NormTiles {
  int vector, threads, batch;  // elements of an access; threads of a block; accesses that a thread has under way
  int min_blocks;  // of a multiprocessor
  int64_t groups, accesses, tiles;  // of a tile; of a row of it; tiles beside each other
  int64_t chunk, chunks;  // accesses of a block; blocks of a tile
  bool one_read;  // the blocks of a tile are a cluster and hold it; else two kernels read it
  int64_t static_bytes, held_bytes;  // of a block's shared memory
  int64_t blocks, moments_bytes;  // in all; of scratch memory
  bool stream_results;
};
NormTiles ConfigureNormTiles(const NormProgram& norm, const NormShape& shape, const DeviceFacts& gpu, bool aligned);
std::string NormTilesSource(const NormProgram& norm, const NormShape& shape, const NormTiles& config);

}  // namespace ortplugin
