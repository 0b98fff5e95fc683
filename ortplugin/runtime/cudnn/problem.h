// What cudnn.h's parts ask of a problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ortplugin/runtime/cudnn/abi.h"
#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/target/target.h"

namespace ortplugin::cudnn {

// The tensor that the convolution computes.
const Tensor& ValueOf(const Problem& problem);

// Dense, with the axes in the order that they have in `like`.
Tensor DenseLike(std::vector<int64_t> dims, const Tensor& like);

// cuDNN has no convolutions of one spatial dimension: a second one, of length 1, goes before it.
Problem Lifted(Problem problem);

// The problem as the kernels take it that cuDNN compiles for an epilogue: they tell a layout by its strides, and a
// tensor of one pixel, whose channels are last and first at once, is channels last to them (9.19). Strides of such
// tensors are made so; nothing where another tensor's channels come first: cuDNN proposes plans for the two together
// that compute something else.
std::optional<Problem> InOneLayout(Problem problem);

// Whether it is a strided data gradient for which the kernels that cuDNN compiles with an epilogue are known to take
// longer than its ready-made ones without, and the epilogue in a kernel after it.
bool IsSlowWithEpilogue(const Problem& problem, const TargetLimits& limits);

// Whether sums are long, for so few results that their tiles leave half of the multiprocessors idle:
// cuDNN's ready-made kernels divide such sums among multiprocessors, but not those that it compiles.
bool HasLongSums(const Problem& problem, const TargetLimits& limits, int multiprocessors);

// Whether an identity may follow the convolution (PlanText): it has no epilogue, is fp16 or bf16, and is no weight
// gradient.
bool TakesIdentity(const Problem& problem);

// The problem with an identity as its epilogue, and whether it is one.
Problem WithIdentity(Problem problem);
bool HasIdentity(const Problem& problem);

// Whether plans with an identity are known to be faster.
bool IsFasterWithIdentity(const Problem& problem, const TargetLimits& limits, int multiprocessors);

// The forward convolution, with filters rotated by 180 degrees, whose sums are those of a data gradient of stride 1 and
// one group.
std::optional<Problem> Rotated180(const Problem& gradient);

// Whether of several results cuDNN may leave one as it is: one in fp32 that the program reads again, or the
// convolution's value, or a Cast of it, where not all have its dtype.
bool MayLoseResult(const Problem& problem);

// Whether a kernel without tensor cores is slower with an epilogue in it than the convolution alone and a kernel after
// it: a ready-made one in 16 bits, and in fp32 one that cuDNN compiles for the epilogue (all but bias, residual and
// Relu).
bool IsSlowWithoutTensorCores(DType dtype, bool is_compiled_here);

// Whether the plan cuts off what fp32 has beyond TF32, in place of rounding it to the nearest: every sum is smaller by
// some 7e-4 then, and so is the next layer's.
bool MayCutFactors(const Problem& problem, const PlanText& plan);

// Equal for problems that have the same plans: all but the names in the program.
std::string Signature(const Problem& problem);

// Of an engine configuration; cuDNN has 46 kinds.
constexpr size_t kMaxKnobs = 64;

abi::DataType DataTypeOf(DType dtype);

}  // namespace ortplugin::cudnn
