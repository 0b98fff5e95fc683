"""Whether two dimensions are surely equal, also where shape inference has no name for them.

An extent is a length, a name (equal names are equal lengths), or the place where a dimension comes from: equal extents
are equal lengths in every run.
"""

import onnx_graphsurgeon as gs

from .facts import Scope
from .shapes import Dim

Extent = int | str | tuple[int, int]
BROADCASTING = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")


def extent(scope: Scope, tensor: gs.Tensor, axis: int) -> Extent:
  """The extent of an axis (from the front) of a tensor of known rank."""
  dim = _dim(scope, tensor, axis)
  if isinstance(dim, int):
    return dim
  node, rank = scope.producer(tensor), scope.rank(tensor) or 0
  if node is not None and scope.op(node) == "Unsqueeze":
    if (new := unsqueezed_axes(scope, node)) is not None and axis in new:
      return 1
    if new is not None and scope.rank(node.inputs[0]) == rank - len(new):
      return extent(scope, node.inputs[0], [each for each in range(rank) if each not in new].index(axis))
  if node is not None and scope.op(node) == "Range" and scope.scalar(node.inputs[2]) == 1:
    length = _distance(scope, node.inputs[0], node.inputs[1])
    if length is not None:
      return length
  if node is not None and scope.op(node) in BROADCASTING:
    # What is 1 there, or has no such axis, leaves the dimension to the other operand.
    others = [
      (each, axis - rank + own)
      for each in node.inputs
      if (own := scope.rank(each) or 0) >= rank - axis and _dim(scope, each, axis - rank + own) != 1
    ]
    if len(others) == 1 and all(scope.rank(each) is not None for each in node.inputs):
      return extent(scope, *others[0])
  return (id(tensor), axis) if dim is None else dim


def unsqueezed_axes(scope: Scope, node: gs.Node) -> list[int] | None:
  """The axes that an Unsqueeze adds, from the front of its result of known rank; None where they are not known."""
  axes, rank = scope.axes(node), scope.rank(node.outputs[0])
  return None if axes is None or not rank else sorted(axis % rank for axis in axes)


def _distance(scope: Scope, start: gs.Tensor, limit: gs.Tensor) -> Extent | None:
  """`limit` - `start`, where it is known to be a length: limit if start is 0, n if limit is start + n."""
  if scope.scalar(start) == 0:
    return _number(scope, limit)
  if (node := scope.producer(limit, "Add")) is None:
    return None
  rest = [each for each in node.inputs if each is not start]
  return _number(scope, rest[0]) if len(rest) == 1 else None


def extents(scope: Scope, shape: gs.Tensor) -> list[Extent] | None:
  """What a one-dimensional tensor that is used as a shape holds; None if that is not known."""
  if (values := scope.constant(shape)) is not None:
    return [int(each) for each in values.reshape(-1)]
  if (node := scope.producer(shape)) is None:
    return None
  op = scope.op(node)
  if op == "Shape" and scope.rank(node.inputs[0]) is not None:
    tensor = node.inputs[0]
    part = slice(node.attrs.get("start", 0), node.attrs.get("end"))
    return [extent(scope, tensor, axis) for axis in range(scope.rank(tensor) or 0)][part]
  if op == "Concat":
    parts = [extents(scope, each) for each in node.inputs]
    return None if None in parts else [each for part in parts if part is not None for each in part]
  if op == "Where":  # TorchScript: a length of -1 means 1, and a Shape has none
    test = scope.producer(node.inputs[0])
    minus = test is not None and scope.op(test) == "Equal" and scope.constant(test.inputs[1])
    if test is None or minus is None or minus is False or not (minus == -1).all():
      return None
    return extents(scope, node.inputs[2]) if test.inputs[0] is node.inputs[2] else None
  if op in ("Reshape", "Unsqueeze") and scope.shape(shape) == (1,):
    number = _number(scope, node.inputs[0])
    return None if number is None else [number]
  if op == "ScatterElements" and node.attrs.get("reduction", "none") == "none":
    return _replaced(scope, node)
  return None


def _number(scope: Scope, tensor: gs.Tensor) -> Extent | None:
  """The length that a tensor of one element holds; None if it is not known to be one."""
  if (node := scope.producer(tensor)) is None or not node.inputs:
    return None
  held = extents(scope, node.inputs[0])
  if held is not None and scope.op(node) == "Gather" and (at := scope.scalar(node.inputs[1])) is not None:
    return held[int(at)] if -len(held) <= at < len(held) else None
  single = held is not None and len(held) == 1 and scope.op(node) in ("Reshape", "Squeeze")
  return held[0] if held is not None and single else None


def _replaced(scope: Scope, node: gs.Node) -> list[Extent] | None:
  """A shape with one of its elements replaced."""
  whole, part = extents(scope, node.inputs[0]), extents(scope, node.inputs[2])
  at = scope.constant(node.inputs[1], 1)
  if whole is None or part is None or at is None or at.size != 1 or len(part) != 1:
    return None
  index = int(at.reshape(-1)[0])
  if not -len(whole) <= index < len(whole):
    return None
  whole[index] = part[0]
  return whole


def _dim(scope: Scope, tensor: gs.Tensor, axis: int) -> Dim:
  shape = scope.shape(tensor)
  return None if shape is None else shape[axis]
