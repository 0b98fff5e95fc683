// FusedMatMulNorm: a matrix product with its program, and a norm of the program's results or of A. The specification is
// in ortplugin/ops/matmul/norm.py.
#pragma once

#include <memory>
#include <vector>

#include "ortplugin/ops/layer_norm/layer_norm.h"
#include "ortplugin/ops/matmul/matmul.h"

namespace ortplugin {

extern const Operator kFusedMatMulNorm;

// A node of a model. Its inputs are the product's, then the norm's without what it has from the product, or with what
// is normalised in place of A.
struct MatMulNormNode {
  MatMulNode product;
  NormProgram norm;  // its first parameters are the product's results, or its only result is A
  bool norm_first;
  bool keeps_product;  // the product's results are outputs, too, the first ones
  enum class Algorithm { kAuto, kWhole, kApart } algorithm;  // of a GPU: one kernel, or two

  // Parameters of the norm that are no inputs behind the product's.
  size_t values() const { return norm_first ? 1 : product.program->results().size(); }
  size_t input_count() const { return product.input_count() + norm.program.parameters().size() - values(); }
  // Throws Error where the input has another type than the programs say.
  void CheckInput(size_t input, ort::ElementType type) const;
  // Of all inputs the product's shapes, and the norm's. Throw Error where these contradict each other.
  Shapes ProductShapes(const Shapes& shapes) const;
  Shapes NormShapes(const Shapes& shapes) const;

  // Throws Error where programs, inputs and outputs don't fit together as far as they are known early.
  static MatMulNormNode Read(const NodeInfo& info, TensorTypes* inputs);
};

std::unique_ptr<Kernel> CreateCudaMatMulNorm(const NodeInfo& info);

}  // namespace ortplugin
