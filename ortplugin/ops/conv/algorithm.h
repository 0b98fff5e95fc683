// The attribute `algorithm` of a convolution: how it is done on CUDA.
#pragma once

#include <optional>
#include <string>

#include "ortplugin/runtime/cudnn/cudnn.h"

namespace ortplugin {

// docs/operators.md has its values; cudnn::PlanText is what stands behind the colon.
struct ConvAlgorithm {
  enum class Kind : uint8_t { kAuto, kOwn, kFused, kSplit, kShuffle };
  Kind kind = Kind::kAuto;
  std::optional<cudnn::PlanText> plan;

  std::string ToString() const;
  // Throws Error with the text and what it may be.
  static ConvAlgorithm Parse(const std::string& text);
};

}  // namespace ortplugin
