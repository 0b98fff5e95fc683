// The attribute `algorithm` of a convolution: how it is done on CUDA.
#pragma once

#include <optional>
#include <string>

#include "ortplugin/runtime/cudnn/cudnn.h"

namespace ortplugin {

// "auto"          our engine where one is known to be the fastest, else cuDNN with the program fused, else split
// "own"           our engine
// "fused"         cuDNN's first plan with the program in it;   "fused:engine=3;k2=1" that plan
// "split"         cuDNN's first plan without the epilogue, then our pointwise kernel;        "split:engine=3;k2=1"
// "shuffle"       of a transposed convolution without overlap: cuDNN's first plan of a GEMM, then our kernel that
//                 puts its pixels in their places, with the program;   "shuffle:engine=3;k2=1"
// "fused:engine=4;k24=1;identity", "split:..;identity": a plan of another kind for a kernel without the program
// (cudnn::PlanText).
// A choice that the shapes, the GPU or the cuDNN at hand don't have is "auto".
struct ConvAlgorithm {
  enum class Kind : uint8_t { kAuto, kOwn, kFused, kSplit, kShuffle };
  Kind kind = Kind::kAuto;
  std::optional<cudnn::PlanText> plan;

  std::string ToString() const;
  // Throws Error with the text and what it may be.
  static ConvAlgorithm Parse(const std::string& text);
};

}  // namespace ortplugin
