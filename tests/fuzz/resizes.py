"""Linear Resize of one spatial dimension beside infinities and NaN.

ONNX Runtime (1.31) takes [N, C, W] for an image of C rows: the row below takes part with weight 0, and a NaN or an
infinity there makes a NaN. FusedResize leaves it out, as ONNX's definition does (docs/operators.md). So the original is
judged as a Resize of [N, C, 1, W], whose rows have nothing below them; where the node names the axis, of [N, C, W, 1].
"""

import onnx
from onnx import numpy_helper

from ortplugin.graph import walk_nodes

from .emulate import spelled

ONE_DIMENSION = 3  # scales or sizes of [N, C, W]


def constant_lengths(model):
  """The number of elements of each constant, by name."""
  lengths = {each.name: numpy_helper.to_array(each).size for each in model.graph.initializer}
  for node in walk_nodes(model):
    if node.op_type == "Constant":
      for each in node.attribute:
        size = numpy_helper.to_array(each.t).size if each.HasField("t") else len(each.floats or each.ints)
        lengths[node.output[0]] = size
  return lengths


def in_two_dimensions(node, name, lengths):
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


def _spelled(node, name, used):
  made = onnx.NodeProto()
  made.CopyFrom(node)
  yield from spelled(
    """image = {0,0,1,-1}  row = {0,0,-1}
    first = {0,1}  last = {2}
    x = Reshape(given, image)""",
    name,
    given=node.input[0],
  )
  made.input[0], made.output[0] = f"{name}/x", f"{name}/y"
  for each in made.attribute:
    if each.name == "scales":
      each.floats.insert(2, 1.0)
  for index in used:
    is_sizes = node.op_type == "Resize" and index == len(("X", "roi", "scales"))
    yield from spelled(
      f"""one = Constant<value={"int64" if is_sizes else "float"}[1] {{1}}>()
      before = Gather(vector, first)  after = Gather(vector, last)  all = Concat<axis=0>(before, one, after)""",
      f"{name}/{index}", vector=node.input[index], first=f"{name}/first", last=f"{name}/last",
    )  # fmt: skip
    made.input[index] = f"{name}/{index}/all"
  yield made
  yield from spelled("result = Reshape(y, row)", name, result=node.output[0])


def _beside_an_axis(node, name):
  """The node on a tensor with one more axis of length 1, the last."""
  made = onnx.NodeProto()
  made.CopyFrom(node)
  made.input[0], made.output[0] = f"{name}/x", f"{name}/y"
  for each in made.attribute:
    if each.name == "axes":
      each.ints[:] = [axis - (axis < 0) for axis in each.ints]
  yield from spelled("last = {-1}  x = Unsqueeze(given, last)", name, given=node.input[0])
  yield made
  yield from spelled("result = Squeeze(y, last)", name, result=node.output[0])
