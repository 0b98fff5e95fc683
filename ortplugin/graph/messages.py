"""ONNX messages as they are in a file: walks over their parts, and copies without one of them."""

from collections.abc import Iterator
from typing import Any, TypeVar

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

Message = TypeVar("Message", bound=Any)


def copied(message: Message) -> Message:
  """A copy of a message."""
  copy: Message = type(message)()
  copy.CopyFrom(message)
  return copy


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
  """`graph` and, depth first, the bodies of its If, Loop and Scan nodes."""
  yield graph
  for node in graph.node:
    yield from _node_graphs(node)


def bodies(node: NodeProto) -> Iterator[GraphProto]:
  """Those of an If, Loop or Scan."""
  for attribute in node.attribute:
    if attribute.type == AttributeProto.GRAPH:
      yield attribute.g
    elif attribute.type == AttributeProto.GRAPHS:
      yield from attribute.graphs


def _node_graphs(node: NodeProto) -> Iterator[GraphProto]:
  for body in bodies(node):
    yield from walk_graphs(body)


def walk_nodes(model: ModelProto) -> Iterator[NodeProto]:
  """Every node: of the graph, of the bodies in it, and of the local functions and the bodies in them."""
  for graph in walk_graphs(model.graph):
    yield from graph.node
  for function in model.functions:
    for node in function.node:
      yield node
      for graph in _node_graphs(node):
        yield from graph.node


def walk_tensors(model: ModelProto) -> Iterator[tuple[TensorProto, str]]:
  """Every tensor of the model with the words that name it in an error."""
  graphs = list(walk_graphs(model.graph))
  for training in model.training_info:
    graphs += [*walk_graphs(training.initialization), *walk_graphs(training.algorithm)]
  for function in model.functions:
    for node in function.node:
      yield from _node_tensors(node)
      graphs += _node_graphs(node)
  for graph in graphs:
    for tensor in graph.initializer:
      yield tensor, f"initializer '{tensor.name}'"
    for sparse in graph.sparse_initializer:
      yield sparse.values, f"sparse initializer '{sparse.values.name}'"
      yield sparse.indices, f"the indices of sparse initializer '{sparse.values.name}'"
    for node in graph.node:
      yield from _node_tensors(node)


def _node_tensors(node: NodeProto) -> Iterator[tuple[TensorProto, str]]:
  for attribute in node.attribute:
    if attribute.type in (
      AttributeProto.TENSOR,
      AttributeProto.TENSORS,
      AttributeProto.SPARSE_TENSOR,
      AttributeProto.SPARSE_TENSORS,
    ):
      what = f"attribute '{attribute.name}' of node '{node.name}' ({node.op_type})"
      if attribute.HasField("t"):
        yield attribute.t, what
      for tensor in attribute.tensors:
        yield tensor, what
      for sparse in [
        *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
        *attribute.sparse_tensors,
      ]:
        yield sparse.values, what
        yield sparse.indices, what


def copy_fields(
  source: ModelProto | GraphProto | TensorProto, target: ModelProto | GraphProto | TensorProto, leave_out: str
) -> None:
  """Copies every field of a protobuf message but one."""
  for field, value in source.ListFields():
    if field.name == leave_out:
      continue
    if hasattr(value, "extend"):  # repeated
      getattr(target, field.name).extend(value)
    elif field.message_type is not None:
      getattr(target, field.name).CopyFrom(value)
    elif isinstance(value, bytes) and field.type == field.TYPE_STRING:  # not UTF-8, which only parsing can set
      target.MergeFromString(_varint(field.number << 3 | 2) + _varint(len(value)) + value)
    else:
      setattr(target, field.name, value)


def without_initializers(model: ModelProto) -> ModelProto:
  """A copy without the graph's initializers."""
  result = ModelProto()
  copy_fields(model, result, leave_out="graph")
  copy_fields(model.graph, result.graph, leave_out="initializer")
  return result


def standard_opset(holder: ModelProto | FunctionProto) -> int:
  """The version of the standard domain; 0 where it is not imported."""
  return next((each.version for each in holder.opset_import if each.domain in ("", "ai.onnx")), 0)


def _varint(number: int) -> bytes:
  """A number as protobuf writes tags and lengths: 7 bits a byte, the lowest first."""
  found = bytearray()
  while number > 0x7F:
    found.append(number & 0x7F | 0x80)
    number >>= 7
  return bytes([*found, number])
