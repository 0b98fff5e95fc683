// A pointwise program as cuDNN's pointwise operations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ortplugin/runtime/cudnn/abi.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin::cudnn {

struct PointwiseOperand {
  enum class Kind : uint8_t { kNone, kConvolution, kParameter, kScalar, kNode };
  Kind kind = Kind::kNone;
  uint32_t index = 0;  // of the program's parameter (from 1 on), of scalars, or of nodes

  friend bool operator==(const PointwiseOperand& a, const PointwiseOperand& b) {
    return a.kind == b.kind && a.index == b.index;
  }
};

struct PointwiseNode {
  abi::PointwiseMode mode;
  PointwiseOperand x, b, t;  // b of two operands, t the condition of kSelect
  DType dtype;  // of its value: kBool of comparisons; else of the graph's arithmetic, or of the result
  std::vector<std::pair<abi::Attribute, double>> attributes;
  int result = -1;  // the program's result that it writes; else its value is seen by other nodes only
};

struct PointwiseGraph {
  std::vector<PointwiseNode> nodes;  // in an order in which they can be computed
  std::vector<double> scalars;
  DType math;  // of the arithmetic and the scalars: float, or double where the convolution's value is
};

// Empty, with the reason in `why`, where cuDNN lacks an operation or a dtype. Program semantics are kept but for these,
// where a graph of cuDNN's decides: the sign of zeros, and the rounding of products and sums that are done together.
std::optional<PointwiseGraph> MapProgram(const Program& program, std::string* why);

}  // namespace ortplugin::cudnn
