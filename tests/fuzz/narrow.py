"""A graph of float32 and double as one of fp16 or bf16 and float32, whose oracle it is, or as one of double alone."""

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from ortplugin.graph import walk_nodes

from .graph import DOUBLE, FLOAT, HALVES

ELEMENTS = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
_TYPED = ("to", "dtype")


def narrow_model(model, dtype, kept):
  """The model with `dtype` (fp16, bf16) for float32 and float32 for double; `kept`: initializers that stay."""
  to = {TensorProto.FLOAT: ELEMENTS[dtype], TensorProto.DOUBLE: TensorProto.FLOAT}
  return _converted(model, to, lambda array: narrow_array(array, dtype), kept)


def widen_model(model, kept):
  """The model with double for float32; `kept`: initializers that stay. It need not run: some operators have none."""
  return _converted(with_tensors(model), {TensorProto.FLOAT: TensorProto.DOUBLE}, _in_double, kept)


def with_tensors(model):
  """The model with a tensor in each Constant that holds floats, so that it is converted."""
  result = onnx.ModelProto()
  result.CopyFrom(model)
  for node in walk_nodes(result):
    for each in node.attribute if node.op_type == "Constant" else ():
      if each.name in ("value_float", "value_floats"):
        values = np.asarray(each.f if each.name == "value_float" else list(each.floats), FLOAT)
        each.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
  return result


def widen_feeds(feeds, kept):
  return {name: array if name in kept else _in_double(array) for name, array in feeds.items()}


def _in_double(array):
  return array.astype(DOUBLE) if array.dtype == FLOAT else array


def narrow_feeds(feeds, dtype, kept):
  return {name: array if name in kept else narrow_array(array, dtype) for name, array in feeds.items()}


def narrow_array(array, dtype):
  if array.dtype == FLOAT:
    with np.errstate(over="ignore"):
      return array.astype(HALVES[dtype])
  return array.astype(FLOAT) if array.dtype == DOUBLE else array


def _converted(model, to, convert, kept):
  result = onnx.ModelProto()
  result.CopyFrom(model)
  _graph(result.graph, to, convert, kept)
  for function in result.functions:
    for node in function.node:
      _node(node, to, convert)
  return result


def _graph(graph, to, convert, kept):
  for value in [*graph.input, *graph.output, *graph.value_info]:
    if value.name not in kept and value.type.HasField("tensor_type"):
      tensor = value.type.tensor_type
      tensor.elem_type = to.get(tensor.elem_type, tensor.elem_type)
  for tensor in graph.initializer:
    if tensor.name not in kept:
      _tensor(tensor, convert)
  for node in graph.node:
    _node(node, to, convert)


def _node(node, to, convert):
  for attribute in node.attribute:
    if attribute.type == AttributeProto.GRAPH:
      _graph(attribute.g, to, convert, ())
    elif attribute.type == AttributeProto.TENSOR:
      _tensor(attribute.t, convert)
    elif attribute.name in _TYPED and attribute.type == AttributeProto.INT:
      attribute.i = to.get(attribute.i, attribute.i)


def _tensor(tensor, convert):
  if tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE):
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(convert(numpy_helper.to_array(tensor)), name))


def walk(graph):
  yield graph
  for node in graph.node:
    for attribute in node.attribute:
      if attribute.type == AttributeProto.GRAPH:
        yield from walk(attribute.g)
