"""Models for the tests, whose inputs, outputs and nodes are given in ONNX's textual syntax."""

import re

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortplugin.graph import import_model
from ortplugin.model.annotate import annotate

parametrize, one_in = pytest.mark.parametrize, pytest.mark.one_in

_CONSTANT = re.compile(r"(^|(?<=[\]{})>]))(\s*\w+ = )([a-z]+\d*(?:\[[^\]]*\])? \{[^{}]*\})")
_VECTOR = re.compile(r"(^|(?<=[{})>]))(\s*\w+ = )(\{[-0-9, ]+\})")
_UNTYPED = re.compile(r"\b((?:b?float|double|u?int|bool|string)\d*(?:\[[^\]]*\])? )(\w+(?:, |\) => \())(?=\w+\s*[,)])")
_SHORTER = (
  (re.compile(r"(Transpose<)([0-9, ]+)>"), r"\1perm=[\2]>"),
  (re.compile(r"(If\(\w+\)\s*<\s*)(?=\w+ \(\) =>)"), r"\1then_branch = "),
  (re.compile(r"(\},\s*)(?=\w+ \(\) =>)"), r"\1else_branch = "),
)


def in_full(text):
  """ONNX's textual syntax of text that may be shorter.

  Constants may be 'a = float {0.5}' or 'a = {1, 2}', of int64. In '(float[N,4] x, y, int64 i) => (float z)' a value
  without a type has that of the value before it. A permutation may be 'Transpose<1,0>(x)', and the bodies of an If are
  'If(c) <then () => (float a) { nodes }, otherwise () => (float b) { nodes }>', in this order and of any name.
  """
  whole, count = text, 1
  while count:
    whole, count = _UNTYPED.subn(r"\1\2\1", whole)
  for pattern, full in _SHORTER:
    whole = pattern.sub(full, whole)
  whole = _VECTOR.sub(lambda match: f"{match[2]}int64[{match[3].count(',') + 1}] {match[3]}", whole)
  return _CONSTANT.sub(r"\1\2Constant<value=\3>()", whole)


def parsed(graph, opset=17, ir=8, *, domains=(), weights=None):
  """A model: `graph` is '(inputs) => (outputs) <initializers> { nodes }', as `in_full` takes it, or has a name before.

  `domains` are those in use besides ONNX's own, each in its version 1; `weights` are arrays for more initializers.
  """
  imports = ", ".join([f'"" : {opset}', *(f'"{domain}" : 1' for domain in domains)])
  named = f"g {graph}" if graph.startswith("(") else graph
  model = onnx.parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]> {in_full(named)}")
  add_weights(model, **(weights or {}))
  return model


def add_weights(model, /, **weights):
  """Arrays for more initializers, by name."""
  model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items())


def infos(values):
  def info(name, dtype, shape):
    kind = dtype if isinstance(dtype, int) else TensorProto.DataType.Value(dtype.upper())
    return helper.make_tensor_value_info(name, kind, shape)

  return [info(name, *each) for name, each in values.items()]


def value_infos(text):
  """Descriptions of values, as in 'float[N,4] x, int64 i'."""
  return parsed(f"({text}) => () {{}}").graph.input


def built(nodes, inputs, outputs, *versions, **options):
  """A model of nodes: `inputs` and `outputs` are as in 'float[N,4] x, int64 i', or by name; the rest as of `parsed`."""
  texts = [each if isinstance(each, str) else "" for each in (inputs, outputs)]
  model = parsed("g ({}) => ({}) {{}}".format(*texts), *versions, **options)
  for listed, values in ((model.graph.input, inputs), (model.graph.output, outputs)):
    listed.extend([] if isinstance(values, str) else infos(values))
  model.graph.node.extend(nodes)
  return model


def op_types(model):
  return [node.op_type for node in model.graph.node]


def nodes_of(model, op_type):
  """The graph's nodes of one operator in order."""
  return [node for node in model.graph.node if node.op_type == op_type]


def initializers(model):
  return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def all_attributes(node):
  return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def annotated(model):
  """The model's graph with the dtypes and shapes that inference finds."""
  graph = import_model(model)
  annotate(graph)
  return graph


def serialized(model):
  """Its bytes, which it may be already."""
  return model if isinstance(model, bytes) else model.SerializeToString()


def computed(model, feeds):
  """The outputs in ONNX Runtime on the CPU, without the library."""
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  session = onnxruntime.InferenceSession(serialized(model), options, providers=["CPUExecutionProvider"])
  return list(session.run(None, dict(feeds)))


def ones(*shape):
  return np.ones(shape, np.float32)


def zeros(*shape):
  return np.zeros(shape, np.float32)


def raises(error, words):
  """A block does, with these words, a regular expression, in the message."""
  return pytest.raises(error, match=words)
