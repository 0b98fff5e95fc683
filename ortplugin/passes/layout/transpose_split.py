"""Two Transposes around a Reshape that splits axes become one after it, or none.

    a = Transpose<perm = [0, 3, 1, 2]>(x); b = Reshape(a, [N, A, K, H, W]); y = Transpose<perm = [0, 3, 4, 1, 2]>(b)

with x [N, H, W, A K] becomes y = Reshape(x, [N, H, W, A, K]): the heads of detectors, after a convolution with channels
last.
"""

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.shapes import Shape
from ortplugin.passes.driver import Applied, Outcome
from ortplugin.passes.emit import integers


def split_first(scope: Scope, node: gs.Node) -> Outcome:
  """Moves the split before both Transposes, of which `node` is the second."""
  found = _chain(scope, node)
  if found is None:
    return None
  first, split = found
  x, given, made = first.inputs[0], scope.shape(first.outputs[0]), scope.shape(split.outputs[0])
  inner, outer = ([int(axis) for axis in each.attrs.get("perm") or ()] for each in (first, node))
  if given is None or made is None or len(inner) != len(given) or len(outer) != len(made):
    return None
  groups = _groups(given, made)
  if groups is None:
    return None
  order = [axis for place in range(len(inner)) for axis in groups[inner.index(place)]]  # of `made`, once x is split
  target = [dim if isinstance(dim, int) else -1 for dim in (made[axis] for axis in order)]
  y = node.outputs[0]
  perm = [order.index(axis) for axis in outer]
  reshape = gs.Node("Reshape", split.name, {}, [x, integers(scope, target, f"{y.name}_split")])
  new = [reshape]
  if perm != sorted(perm):
    parts = gs.Variable(scope.unique(f"{y.name}_parts"), y.dtype, tuple(made[axis] for axis in order))
    reshape.outputs.append(parts)
    new.append(gs.Node("Transpose", node.name, {"perm": perm}, [parts]))
  labels = tuple(label(each) for each in (first, split, node))
  scope.replace([first, split, node], new, [y])
  return Applied(labels, new[-1])


def _chain(scope: Scope, node: gs.Node) -> tuple[gs.Node, gs.Node] | None:
  """The Transpose and the Reshape before a Transpose, if nothing else needs what they make."""
  split = scope.producer(node.inputs[0]) if scope.op(node) == "Transpose" else None
  if split is None or scope.op(split) != "Reshape" or scope.used_beyond(node.inputs[0], [node]):
    return None
  first = scope.producer(split.inputs[0])
  if first is None or scope.op(first) != "Transpose" or scope.used_beyond(split.inputs[0], [split]):
    return None
  return first, split


def _groups(given: Shape, made: Shape) -> list[list[int]] | None:
  """For each axis of `given` the axes of `made` that it is split into; None if that is not all the Reshape does."""
  unknown = [[index for index, dim in enumerate(shape) if not isinstance(dim, int)] for shape in (given, made)]
  if len(unknown[0]) != len(unknown[1]) or len(unknown[0]) > 1 or 0 in (*given, *made):
    return None  # of one, the others tell
  groups: list[list[int]] = []
  at = 0
  for place, dim in enumerate(given):
    taken: list[int] = []
    product = 1
    while at < len(made) and (
      (isinstance(dim, int) and product < dim)
      or not taken
      or (isinstance(dim, int) and made[at] == 1 and len(made) - at > len(given) - place - 1)
    ):
      part = made[at]
      if isinstance(part, int) != isinstance(dim, int):
        return None
      taken.append(at)
      product *= part if isinstance(part, int) else 1
      at += 1
    if not taken or (isinstance(dim, int) and product != dim):
      return None
    groups.append(taken)
  return groups if at == len(made) else None
