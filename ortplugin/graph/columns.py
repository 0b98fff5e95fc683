"""Index grids as exporters build them, from Range, Reshape, Unsqueeze, Expand, Tile and Concat: what lies in them.

A column is one component of every index. Where it varies along one axis of the grid only, it is a vector on that axis;
where that vector is start, start + step, start + 2 step, ..., the column is a slice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import onnx_graphsurgeon as gs

from ..arrays import Array
from .extents import extent, extents, unsqueezed_axes
from .facts import Scope

INDEX_ELEMENTS = 1 << 22  # constant indices up to this many elements are looked at

Vector: TypeAlias = gs.Tensor | Array


@dataclass(frozen=True)
class Column:
  """What an index tensor holds that varies along at most one of its axes."""

  axis: int | None  # that axis, from the front; None: all elements are the same
  vector: Vector  # its elements in order, in any shape; one element if axis is None


def columns(scope: Scope, indices: gs.Tensor) -> list[Column] | None:
  """The components of ScatterND's `indices`, over all its axes but the last; None where one can't be told."""
  if not (shape := scope.shape(indices)):
    return None
  if (array := scope.constant(indices, INDEX_ELEMENTS)) is not None:
    found = [_of_array(array[..., component]) for component in range(array.shape[-1])]
    return [each for each in found if each is not None] if None not in found else None
  node = scope.producer(indices, "Concat")
  if node is not None and node.attrs["axis"] in (-1, len(shape) - 1):
    parts = [columns(scope, each) for each in node.inputs]
    return None if None in parts else [each for part in parts if part is not None for each in part]
  column = trace(scope, indices) if shape[-1] == 1 else None
  if column is None:
    return None
  return [Column(None, column.vector) if column.axis == len(shape) - 1 else column]


def trace(scope: Scope, tensor: gs.Tensor) -> Column | None:
  """The tensor as a column over its own axes; None where it varies along several, or that can't be told."""
  if (array := scope.constant(tensor, INDEX_ELEMENTS)) is not None:
    return _of_array(array)
  if (shape := scope.shape(tensor)) is None:
    return None
  node = scope.producer(tensor)
  handler = None if node is None else _HANDLERS.get(scope.op(node))
  found = None if handler is None or node is None else handler(scope, node)
  if found is not None:
    return found
  long = [axis for axis, dim in enumerate(shape) if dim != 1]
  return Column(long[0] if long else None, tensor) if len(long) <= 1 else None


def _of_array(array: Array) -> Column | None:
  if array.size == 0:
    return None
  varying = [axis for axis in range(array.ndim) if (array != array.take([0], axis)).any()]
  if len(varying) > 1:
    return None
  return Column(
    varying[0] if varying else None,
    array[tuple(slice(None) if axis in varying else 0 for axis in range(array.ndim))].reshape(-1),
  )


def _unsqueeze(scope: Scope, node: gs.Node) -> Column | None:
  inner, axes = trace(scope, node.inputs[0]), unsqueezed_axes(scope, node)
  if inner is None or axes is None or inner.axis is None:
    return inner if axes is not None else None
  kept = [axis for axis in range(scope.rank(node.outputs[0]) or 0) if axis not in axes]
  return Column(kept[inner.axis], inner.vector)


def _expand(scope: Scope, node: gs.Node) -> Column | None:
  x, y = node.inputs[0], node.outputs[0]
  if (inner := trace(scope, x)) is None or inner.axis is None:
    return inner
  axis = inner.axis + (scope.rank(y) or 0) - (scope.rank(x) or 0)
  own = extent(scope, x, inner.axis)
  # A vector that may have one element may be stretched along its own axis: then it would be no vector.
  if (isinstance(own, int) and own != 1) or own == extent(scope, y, axis):
    return Column(axis, inner.vector)
  if (target := extents(scope, node.inputs[1])) is None or axis < 0:
    return None
  at = axis - (scope.rank(y) or 0) + len(target)
  return Column(axis, inner.vector) if at < 0 or target[at] in (1, own) else None


def _tile(scope: Scope, node: gs.Node) -> Column | None:
  inner, repeats = trace(scope, node.inputs[0]), scope.constant(node.inputs[1])
  if inner is None or inner.axis is None:
    return inner
  return inner if repeats is not None and repeats[inner.axis] == 1 else None


def _reshape(scope: Scope, node: gs.Node) -> Column | None:
  x, dims = node.inputs[0], scope.constant(node.inputs[1])
  inner = trace(scope, x) if scope.rank(x) in (0, 1) else None
  if dims is None or inner is None or (dims == 0).any() or (dims != 1).sum() > 1:
    return None
  long = [axis for axis, dim in enumerate(dims) if dim != 1]
  return Column(long[0] if long and inner.axis is not None else None, inner.vector)


def _transpose(scope: Scope, node: gs.Node) -> Column | None:
  inner, perm = trace(scope, node.inputs[0]), node.attrs.get("perm")
  if inner is None or inner.axis is None:
    return inner
  return None if perm is None else Column(list(perm).index(inner.axis), inner.vector)


_HANDLERS: dict[str, Callable[[Scope, gs.Node], Column | None]] = {
  "Unsqueeze": _unsqueeze,
  "Expand": _expand,
  "Tile": _tile,
  "Reshape": _reshape,
  "Transpose": _transpose,
}
