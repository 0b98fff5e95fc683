"""Names of lengths of a model of opset 10, of which onnx infers that a Slice keeps the open lengths that it cuts."""

from collections.abc import Iterator, Mapping

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from ..graph import walk_graphs
from ..graph.messages import bodies

OPSET = 10


def forget(graph: GraphProto, constants: Mapping[str, TensorProto]) -> None:
  """Takes the names from what `graph` and its bodies say of values that follow from a Slice of open lengths."""
  said = {each.name: each for body in walk_graphs(graph) for each in _said(body)}
  shapes = {
    name for body in walk_graphs(graph) for node in body.node if node.op_type == "Shape" for name in node.output
  }
  closed = {name for name in shapes if name not in said or not _open(said[name])}  # open if of a value of unknown rank
  closed.update(constants)
  following: set[str] = set()
  before = -1
  while before < len(following):  # what a body reads may be made behind it in the order of this walk
    before = len(following)
    for body in walk_graphs(graph):
      for node in body.node:
        cuts = node.op_type == "Slice" and node.input[0] not in closed and _cuts_open(node, said, constants)
        if cuts or not following.isdisjoint(_read(node)):
          following.update(node.output, *([each.name for each in inner.input] for inner in bodies(node)))
  for body in walk_graphs(graph):
    for each in _said(body):
      for dim in each.type.tensor_type.shape.dim if each.name in following else ():
        dim.ClearField("dim_param")


def _said(body: GraphProto) -> Iterator[ValueInfoProto]:
  yield from body.input
  yield from body.output
  yield from body.value_info


def _open(value: ValueInfoProto) -> bool:
  return any(dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _read(node: NodeProto) -> Iterator[str]:
  """What the node reads, and what nodes in its bodies read or make; "" stands for what is left out."""
  yield from filter(None, node.input)
  for body in bodies(node):
    for each in body.node:
      yield from _read(each)
      yield from filter(None, each.output)


def _cuts_open(node: NodeProto, said: Mapping[str, ValueInfoProto], constants: Mapping[str, TensorProto]) -> bool:
  """Whether a Slice may cut an open length: surely not where its axes and their lengths are known."""
  if node.input[0] not in said:
    return True
  dims = said[node.input[0]].type.tensor_type.shape.dim
  axes = range(len(dims))
  if len(node.input) > 3 and node.input[3] in constants:
    axes = numpy_helper.to_array(constants[node.input[3]]).reshape(-1).tolist()
  return any(not -len(dims) <= axis < len(dims) or bool(dims[axis].dim_param) for axis in axes)
