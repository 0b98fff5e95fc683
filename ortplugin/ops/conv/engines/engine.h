// Our engines for two-dimensional convolutions: what they share, and how they are asked for. table.cc has their table.
//
// How FusedConv uses them, once for each combination of shapes:
//
//   Contraction problem{...};                              // every address must be a multiple of 16 bytes
//   std::optional<EngineKernel> kernel = FindEngineKernel(program, problem, device, true);
//   if (kernel) loaded = kernel->Load(device);
//
// and in each run, with the addresses of the node's inputs (X, W, then the operands) and then of its outputs:
//
//   loaded.Launch(device, stream, addresses.data(), addresses.size());
//
// What comes before the text of name.cu is generated for the node at hand (name.cc, engine.cc): the sizes as macros,
// the operands and `apply`, which is the program.
//
// Kernels wait for the kernel before them (griddepcontrol.wait) before they write, and before they read anything but
// weights that are `constant_weights`. The only exception is the table of tile schedulers that conv_1x1.cu keeps in its
// module. They need no workspace and give the same bits in every run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ortplugin/ops/contraction.h"
#include "ortplugin/ops/layer_norm/layer_norm.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/engine_kernel.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// The functions of a line of the table, as which the engines' headers declare theirs. `program` has one parameter, the
// convolution's value, and one more for each of problem.operands.
using EngineTest = bool(const Program& program, const Contraction& problem, const DeviceFacts& device);
using EngineMake = EngineKernel(const Program& program, const Contraction& problem, const DeviceFacts& device);
// Empty where no tile configuration fits the GPU's memory.
using EngineTry = std::optional<EngineKernel>(
  const Program& program, const Contraction& problem, const DeviceFacts& device);

struct Engine {
  const char* name;
  EngineTest* fits;  // whether its kernel computes this problem on this GPU
  // Whether it is known to be faster than a library's engine there, where it fits: measured on that GPU (target.h), or
  // better by construction, which the line's reason says.
  EngineTest* beats_library;
  EngineTry* make;
  const char* reason;  // what it is for, why it stands where it stands, and why it is the fastest
};

const std::vector<Engine>& EngineTable();

// The kernel of the first engine of the table that fits this problem and is known to beat a library's. Where there is
// none, nothing; or without `only_where_fast`, for those that time it, that of the most general engine that fits.
// Nothing for other than two spatial dimensions.
std::optional<EngineKernel> FindEngineKernel(
  const Program& program, const Contraction& problem, const DeviceFacts& device, bool only_where_fast);

// ---- What the engines share

// Bytes of an element.
inline int64_t Size(const Contraction& problem) { return int64_t(SizeOf(problem.dtype())); }

// For the engines of NHWC: all indices and offsets of the problem's tensors fit 31 bits, and nothing is empty or of a
// dtype without an engine. Of a gate nothing but for `takes_gate`.
bool FitsEngines(const Program& program, const Contraction& problem, bool takes_gate = false);

// A norm of whole rows of the program's results, which are its first parameters: float `prologue(x)` of the only one.
struct NormTail {
  const NormProgram* norm;
  Shapes operands;  // of its other parameters, as the problem's
  bool stores_values;  // whether the program's results are written, too
  bool of_input = false;  // or a norm of X, whose only result is what is multiplied
};

// CUDA C++ in front of an engine's kernel: the problem's sizes as macros (CHANNELS, .., PAD_LEFT), of which heights and
// widths may read the kernel's Arguments, by the name `a` (has_open_sizes, sizes.cuh); TILES_H and TILES_W, how
// many TILE_H x TILE_W cover a result; CONSTANT_WEIGHTS; OF_IMAGE, whether TileOperands depend on n; and for the
// epilogue:
//   struct Arguments { const void* in[]; void* out[]; and batch, image_h, image_w, out_h, out_w, tiles_h, tiles_w }
//   TileOperands<N>:  load(a, n, m): operands that do not depend on the pixel (a bias, a scale of each channel)
//   PixelOperands<N>: load(a, n, y, x, m, offset): the others; `offset` is that of the pixel's channel m in Y
//   Results<N>:       store(a, offset), from the output 0 on, or from a third argument on
//   apply(tile, pixel, j, value, results): the program for channel m + j and the convolution's value of it, behind
//     which stands that of the gate where there is one (GATED); with one argument more its results are set in that
//     place instead of j
// N channels from m on, a multiple of N, are read and written at once; N must divide M. Also storage_t, X's type. For
// the epilogue of a norm the same stands with `Norm` before the names; its `apply` has s and n in place of the value.
std::string ConvPreamble(const Program& program, const Contraction& problem, const NormTail* tail = nullptr);

// IS_RMS and EPSILON.
std::string NormConstants(const NormProgram& norm);

// An argument of a kernel with open sizes: a size, from 1 to 2^31 - 1, and what divides by it.
uint64_t OpenSize(int64_t size);

// Room for the addresses, then the numbers of Arguments. `tile_h`, `tile_w`: the kernel's TILE_H and TILE_W, where it
// has them.
std::vector<uint64_t> ConvArguments(const Program& program, const Contraction& problem, int64_t tile_h = 1,
  int64_t tile_w = 1, const NormTail* tail = nullptr);

}  // namespace ortplugin
