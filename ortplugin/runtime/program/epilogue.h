// The pointwise program of an operator with a core of its own, such as a convolution: the program's first parameter is
// the core's value, which the operator makes of its first inputs, `own_inputs` of them. The node's other inputs are the
// program's other parameters. Every result has the value's shape.
#pragma once

#include <optional>
#include <string>

#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// Throws Error where the text is no such program: one with a core operator, or whose value is of no floating dtype.
Program ParseEpilogue(const std::string& text);

// The dtype of the core's value.
DType ValueType(const Program& program);

// The result in whose memory a value of the dtype `wide` can be made: its own, else the first of that dtype.
std::optional<size_t> ValueResult(const Program& program, DType wide);

// Throws Error where an input, those of the core included, has another type than the program says.
void CheckInput(const Program& program, size_t own_inputs, size_t input, ort::ElementType type);

// The inputs of a run, checked like that.
RunInputs ReadInputs(const Program& program, size_t own_inputs, Run& run);

// What kernels check when they are created: throws Error where a node has other inputs or outputs than the program.
// Returns the inputs' types.
TensorTypes CheckEpilogue(const Program& program, size_t own_inputs, const NodeInfo& info);

// The inputs' types where shapes are inferred, checked like that.
TensorTypes EpilogueInputs(const Program& program, size_t own_inputs, const ShapeContext& context);
// Gives every output the shape of `output`. Throws Error where an operand, of the types of all inputs, can't broadcast
// to that of `value`.
void InferEpilogue(const Program& program, size_t own_inputs, const TensorTypes& inputs, const TensorType& value,
  TensorType output, ShapeContext* context);
// The value's own shape.
inline void InferEpilogue(const Program& program, size_t own_inputs, const TensorTypes& inputs, const TensorType& value,
  ShapeContext* context) {
  InferEpilogue(program, own_inputs, inputs, value, value, context);
}

// The axes that the program's parameters have in a value of the shape `full`; `shapes`: of all inputs. Throws Error
// that names the operand which does not broadcast.
Axes EpilogueAxes(const Program& program, size_t own_inputs, const Shape& full, const Shapes& shapes);

}  // namespace ortplugin
