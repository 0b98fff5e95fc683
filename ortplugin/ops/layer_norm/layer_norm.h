// FusedLayerNorm: layer or RMS normalisation with the pointwise operators before and after it. The specification is in
// ortplugin/ops/layer_norm/__init__.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

extern const Operator kFusedLayerNorm;

// A node's program, taken apart: prologue, core, epilogue.
struct NormProgram {
  Program program;
  bool is_rms;
  int64_t axis;  // as the program has it: may be negative
  double epsilon;
  ValueId summed, normalized;                // s and n of the formula
  std::vector<uint32_t> prologue, epilogue;  // statements
  // What each phase reads and writes. A result that the prologue computes is written there.
  Phase prologue_operands{"Prologue", {}, {}}, epilogue_operands{"Epilogue", {}, {}};

  // Throws Error where the text is no program of this operator.
  static NormProgram Parse(const std::string& text);
};

// The shapes of one run, as a [rows, width] matrix.
struct NormShape {
  Shape shape;  // of the normalised value and so of every result
  size_t axis;
  int64_t rows, width;
  std::vector<Access> accesses;  // of each parameter
};

// Throws Error where the inputs' shapes don't fit the program.
NormShape FitShapes(const NormProgram& norm, const std::vector<Shape>& inputs);

// What both kernels check when they are created: throws Error where inputs, outputs or the shapes that are known early
// don't fit the program. Returns the inputs' types.
std::vector<TensorType> CheckNode(const NormProgram& norm, const NodeInfo& info);

std::unique_ptr<Kernel> CreateCudaLayerNorm(const NodeInfo& info);

// The whole CUDA C++ of one variant of the kernel, for tests as well as for launches.
struct NormConfig {
  bool streamed;      // rows are cut into chunks and read twice
  int vector;         // elements of an access
  int lanes, groups;  // threads of a row; rows of a block
  int items;          // accesses of a lane
  int min_blocks;     // of a multiprocessor: bounds the registers of a thread
  int rows_at_once;
  int line;  // accesses of a cache line, where rows start between lines; else 1
  bool prefetch;
  bool stream_results, pass_l1;  // cache hints: results leave first; what is read once does not enter L1
  int64_t chunk, chunks;         // streamed: elements of a piece, pieces of a row
};

// `aligned`: every tensor starts at a multiple of 16 bytes.
NormConfig ConfigureLayerNorm(const NormProgram& norm, const NormShape& shape, const cuda::DeviceFacts& gpu,
                              bool aligned);
std::string LayerNormSource(const NormProgram& norm, const NormShape& shape, const NormConfig& config);

}  // namespace ortplugin
