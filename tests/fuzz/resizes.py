"""Linear Resize of one spatial dimension beside infinities and NaN.

ONNX Runtime (1.31) takes [N, C, W] for an image of C rows: the row below takes part with weight 0, and a NaN or an
infinity there makes a NaN. FusedResize leaves it out, as ONNX's definition does (docs/operators.md). So the original is
judged as a Resize of [N, C, 1, W], whose rows have nothing below them; where the node names the axis, of [N, C, W, 1].
"""

from collections.abc import Iterator, Mapping

import onnx
from onnx import helper, numpy_helper

from ortplugin.graph.messages import walk_nodes

ONE_DIMENSION = 3  # scales or sizes of [N, C, W]


def constant_lengths(model: onnx.ModelProto) -> dict[str, int]:
  """The number of elements of each constant, by name."""
  lengths = {each.name: numpy_helper.to_array(each).size for each in model.graph.initializer}
  for node in walk_nodes(model):
    if node.op_type == "Constant":
      for each in node.attribute:
        size = numpy_helper.to_array(each.t).size if each.HasField("t") else len(each.floats or each.ints)
        lengths[node.output[0]] = size
  return lengths


def in_two_dimensions(node: onnx.NodeProto, name: str, lengths: Mapping[str, int]) -> Iterator[onnx.NodeProto] | None:
  """The nodes in place of a linear Resize of three scales or sizes; None for any other node."""
  attributes = {each.name: each for each in node.attribute}
  if node.domain not in ("", "ai.onnx") or node.op_type not in ("Resize", "Upsample"):
    return None
  if "mode" not in attributes or attributes["mode"].s != b"linear":
    return None
  if "axes" in attributes:
    return _beside_an_axis(node, name) if len(attributes["axes"].ints) == 1 else None
  used = [index for index, each in enumerate(node.input) if index and lengths.get(each) == ONE_DIMENSION]
  old = "scales" in attributes and len(attributes["scales"].floats) == ONE_DIMENSION  # Upsample's before opset 9
  return _spelled(node, name, used) if used or old else None


def _spelled(node: onnx.NodeProto, name: str, used: list[int]) -> Iterator[onnx.NodeProto]:
  made = onnx.NodeProto()
  made.CopyFrom(node)
  for constant, values in (("image", [0, 0, 1, -1]), ("row", [0, 0, -1]), ("first", [0, 1]), ("last", [2])):
    yield helper.make_node("Constant", [], [f"{name}/{constant}"], value=_integers(values))
  yield helper.make_node("Reshape", [node.input[0], f"{name}/image"], [f"{name}/x"])
  made.input[0], made.output[0] = f"{name}/x", f"{name}/y"
  for each in made.attribute:
    if each.name == "scales":
      each.floats.insert(2, 1.0)
  for index in used:
    vector, own = node.input[index], f"{name}/{index}"
    is_sizes = node.op_type == "Resize" and index == len(("X", "roi", "scales"))
    one = _integers([1]) if is_sizes else helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [1.0])
    yield helper.make_node("Constant", [], [f"{own}/one"], value=one)
    yield helper.make_node("Gather", [vector, f"{name}/first"], [f"{own}/first"])
    yield helper.make_node("Gather", [vector, f"{name}/last"], [f"{own}/last"])
    yield helper.make_node("Concat", [f"{own}/first", f"{own}/one", f"{own}/last"], [f"{own}/all"], axis=0)
    made.input[index] = f"{own}/all"
  yield made
  yield helper.make_node("Reshape", [f"{name}/y", f"{name}/row"], [node.output[0]])


def _beside_an_axis(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  """The node on a tensor with one more axis of length 1, the last."""
  made = onnx.NodeProto()
  made.CopyFrom(node)
  made.input[0], made.output[0] = f"{name}/x", f"{name}/y"
  for each in made.attribute:
    if each.name == "axes":
      each.ints[:] = [axis - (axis < 0) for axis in each.ints]
  yield helper.make_node("Constant", [], [f"{name}/last"], value=_integers([-1]))
  yield helper.make_node("Unsqueeze", [node.input[0], f"{name}/last"], [f"{name}/x"])
  yield made
  yield helper.make_node("Squeeze", [f"{name}/y", f"{name}/last"], [node.output[0]])


def _integers(values: list[int]) -> onnx.TensorProto:
  return helper.make_tensor("value", onnx.TensorProto.INT64, [len(values)], values)
