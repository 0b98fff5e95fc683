#include "ortplugin/runtime/program/epilogue.h"

namespace ortplugin {
namespace {

size_t InputCount(const Program& program, size_t own_inputs) { return program.parameters().size() - 1 + own_inputs; }

[[noreturn]] void FailOperand(
  const Program& program, size_t own_inputs, size_t input, const Shape& shape, const Shape& full) {
  const Value& parameter = program.parameter(input - own_inputs + 1);
  Fail("input ", input, " ('", parameter.name, "'): the shape ", ToString(shape), " does not broadcast to ",
    ToString(full));
}

bool Broadcasts(const Shape& shape, const Shape& full) {
  if (shape.size() > full.size()) return false;
  const size_t lead = full.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1 && shape[i] != -1 && full[lead + i] != -1 && shape[i] != full[lead + i]) return false;
  return true;
}

}  // namespace

Program ParseEpilogue(const std::string& text) {
  Program program = Program::Parse(text);
  CheckIsPointwise(program);
  if (program.parameters().empty()) Fail("the program has no parameter; the first is the operator's own value");
  if (!IsFloating(ValueType(program)))
    Fail("the program's first parameter is ", NameOf(ValueType(program)), "; it must be of a floating dtype");
  return program;
}

DType ValueType(const Program& program) { return program.parameter(0).dtype; }

std::optional<size_t> ValueResult(const Program& program, DType wide) {
  const std::vector<ValueId>& results = program.results();
  std::optional<size_t> place;
  for (size_t r = results.size(); r-- > 0;) {
    if (program.value(results[r]).dtype != wide) continue;
    if (results[r] == program.parameters()[0]) return r;
    place = r;
  }
  return place;
}

void CheckInput(const Program& program, size_t own_inputs, size_t input, ort::ElementType type) {
  const size_t parameter = input < own_inputs ? 0 : input - own_inputs + 1;
  const Value& value = program.parameter(parameter);
  if (ToOrt(value.dtype) != type)
    Fail("input ", input, " is ", NameOfOrt(type), " but the program's parameter '", value.name, "' is ",
      NameOf(value.dtype));
}

RunInputs ReadInputs(const Program& program, size_t own_inputs, Run& run) {
  RunInputs inputs;
  for (size_t i = 0; i < InputCount(program, own_inputs); ++i) {
    inputs.tensors.push_back(run.input(i));
    CheckInput(program, own_inputs, i, inputs.tensors[i].type);
    inputs.shapes.push_back(inputs.tensors[i].shape);
  }
  return inputs;
}

TensorTypes CheckEpilogue(const Program& program, size_t own_inputs, const NodeInfo& info) {
  const size_t inputs = InputCount(program, own_inputs), outputs = program.results().size();
  if (info.input_count() != inputs)
    Fail("with its program of ", program.parameters().size(), " parameters the node takes ", inputs, " inputs; it has ",
      info.input_count());
  if (info.output_count() != outputs)
    Fail("the program has ", outputs, " results, the node ", info.output_count(), " outputs");
  TensorTypes types;
  for (size_t i = 0; i < inputs; ++i) {
    types.push_back(info.input(i));
    CheckInput(program, own_inputs, i, types[i].type);
  }
  return types;
}

TensorTypes EpilogueInputs(const Program& program, size_t own_inputs, const ShapeContext& context) {
  const size_t inputs = InputCount(program, own_inputs);
  if (context.input_count() != inputs)
    Fail("with its program of ", program.parameters().size(), " parameters the node takes ", inputs, " inputs; it has ",
      context.input_count());
  TensorTypes types;
  for (size_t i = 0; i < inputs; ++i) {
    types.push_back(context.input(i));
    if (types[i].type != ort::kUndefined) CheckInput(program, own_inputs, i, types[i].type);
  }
  return types;
}

void InferEpilogue(const Program& program, size_t own_inputs, const TensorTypes& inputs, const TensorType& value,
  TensorType output, ShapeContext* context) {
  for (size_t i = own_inputs; i < inputs.size(); ++i)
    if (value.has_shape && inputs[i].has_shape && !Broadcasts(inputs[i].shape, value.shape))
      FailOperand(program, own_inputs, i, inputs[i].shape, value.shape);
  for (size_t r = 0; r < program.results().size(); ++r) {
    output.type = ToOrt(program.result(r).dtype);
    context->set_output(r, output);
  }
}

Axes EpilogueAxes(const Program& program, size_t own_inputs, const Shape& full, const Shapes& shapes) {
  Shapes parameters{full};
  for (size_t i = own_inputs; i < shapes.size(); ++i) {
    if (!Broadcasts(shapes[i], full)) FailOperand(program, own_inputs, i, shapes[i], full);
    parameters.push_back(shapes[i]);
  }
  return JoinAxes(full, parameters);
}

}  // namespace ortplugin
