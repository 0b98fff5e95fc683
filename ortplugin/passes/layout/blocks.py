"""DepthToSpace and SpaceToDepth with channels last: one Transpose between views, as they are with channels first."""

import onnx_graphsurgeon as gs

from ...graph import Scope
from ..emit import integers
from .plan import Edit, Layouts, Plan, Rule


def _sizes(scope: Scope, node: gs.Node) -> tuple[int, int, int, int] | None:
  """Channels, height, width and the blocks' size, where they are known."""
  shape, b = scope.shape(node.inputs[0]), int(node.attrs.get("blocksize", 0))
  if shape is None or len(shape) != 4 or b < 1:
    return None
  _, channels, height, width = (dim if isinstance(dim, int) else 0 for dim in shape)
  return (channels, height, width, b) if channels > 0 and height > 0 and width > 0 else None


def depth_to_space(scope: Scope, node: gs.Node) -> Plan | None:
  """[N, H, W, C b b] to [N, H b, W b, C]; the mode says in which order the channels hold the blocks."""
  if (sizes := _sizes(scope, node)) is None:
    return None
  channels, height, width, b = sizes
  depth = channels // (b * b)
  if node.attrs.get("mode", "DCR") == "CRD":
    split, perm = [0, height, width, depth, b, b], [0, 1, 4, 2, 5, 3]
  else:
    split, perm = [0, height, width, b, b, depth], [0, 1, 3, 2, 4, 5]
  return Plan((0,), (0,), _moved(scope, split, perm, [0, height * b, width * b, depth]))


def space_to_depth(scope: Scope, node: gs.Node) -> Plan | None:
  """[N, H b, W b, C] to [N, H, W, b b C]."""
  if (sizes := _sizes(scope, node)) is None:
    return None
  channels, height, width, b = sizes
  if height % b or width % b:
    return None
  split = [0, height // b, b, width // b, b, channels]
  return Plan((0,), (0,), _moved(scope, split, [0, 1, 3, 2, 4, 5], [0, height // b, width // b, channels * b * b]))


def _moved(scope: Scope, split: list[int], perm: list[int], joined: list[int]) -> Edit:
  """The node becomes the second Reshape of three operators."""

  def edit(layouts: Layouts, node: gs.Node) -> None:
    x, name = node.inputs[0], node.name or node.outputs[0].name
    batch = (scope.shape(x) or (None,))[0]
    parts = gs.Variable(scope.unique(f"{name}/parts"), x.dtype, (batch, *split[1:]))
    turned = gs.Variable(scope.unique(f"{name}/turned"), x.dtype, (batch, *(split[axis] for axis in perm[1:])))
    first = [x, integers(scope, split, f"{parts.name}_shape")]
    scope.insert(gs.Node("Reshape", parts.name, {}, first, [parts]), node)
    scope.insert(gs.Node("Transpose", turned.name, {"perm": perm}, [parts], [turned]), node)
    node.op, node.attrs = "Reshape", {}
    node.inputs[0] = turned
    node.inputs.append(integers(scope, joined, f"{name}_shape"))

  return edit


BLOCK_RULES: dict[str, Rule] = {"DepthToSpace": depth_to_space, "SpaceToDepth": space_to_depth}
