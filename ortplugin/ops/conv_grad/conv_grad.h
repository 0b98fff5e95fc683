// ConvGrad: gradients of Conv and ConvTranspose. The specification is in ortplugin/ops/conv_grad/__init__.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ortplugin/ops/contraction.h"
#include "ortplugin/ops/sum_to/sum_to.h"
#include "ortplugin/runtime/ort/node_text.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

extern const Operator kConvGrad;

// A node's attributes, checked and complete.
struct GradNode {
  std::string text;  // of the program
  Program program;
  bool wants_x, wants_w, wants_b, wants_z;
  bool has_x, has_w;
  bool transposed, channels_last, allow_tf32;
  int64_t group;
  Shape kernel, strides, dilations, pads_begin, pads_end, output_padding;
  DType weight_dtype;  // of dW and dB
  std::string data_algorithm, weight_algorithm;

  // Throws Error where the node is none of this operator.
  static GradNode Read(const ShapeContext& node);
  static GradNode Read(const NodeInfo& node);
  static GradNode Read(const NodeText& node);

  size_t rank() const { return kernel.size(); }
  DType dtype() const { return program.result(0).dtype; }  // T
  size_t operands() const { return size_t(has_x) + size_t(has_w); }  // before the program's
  size_t gradients() const;  // among the outputs
  // dZ is the program's parameter itself, and need not be written.
  bool is_identity() const { return program.statements().empty() && program.parameters().size() == 1 && !wants_z; }
  // dZ is written, to an output or to scratch memory. Without dB it always is, unless the program is the identity.
  bool stores_z() const { return !is_identity() && (wants_x || wants_w || wants_z); }
  // The program with dB as its last result, and without dZ where that is not stored.
  SumProgram Sums() const;
};

// The shapes of one run. Those of tensors are in the node's layout.
struct GradShape {
  Shape z, x, w;
  Contraction contraction;  // of the convolution whose gradients are wanted; a transposed one's X is its result
};

// Throws Error where the inputs' shapes contradict each other or the attributes.
GradShape FitGrad(const GradNode& node, const Shapes& inputs);

// Checks inputs, outputs and what is known of shapes early. Returns the inputs' types.
TensorTypes CheckGrad(const GradNode& node, const NodeInfo& info);

// The CUDA C++ that pads elements of so many bytes with zeros, for tests as well as for launches.
std::string PadSource(size_t element_bytes);

std::unique_ptr<Kernel> CreateCudaConvGrad(const NodeInfo& info);

}  // namespace ortplugin
