"""Scatters whose indices form a slice become an UpdateSlice, which reads no index: a[i] = v, a[:, j:k] = v, a[::2] = v.

The indices are constant, or grids of Range, Reshape, Expand and Concat as exporters build them; then `starts` is
computed at run time. A slice has no duplicates and its elements lie start, start + step, .. from one end of the axis:
indices that may turn from negative to positive ones between are none. There have to be as many indices as updates, or
the scatter would be in error; the slice is as long as updates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Dim, Scope
from ...graph.columns import Column
from ...graph.extents import extent
from ...graph.progression import Progression, progression
from ...ops.decompose import MINIMUM_OPSET
from ..driver import Applied, Missed, Outcome, RulePass, replaced
from ..emit import starts_of, unsqueeze
from .node import ScatterNode, columns_of, grid, read_scatter


@dataclass(frozen=True)
class _Axis:
  """The slice on one axis of data."""

  axis: int
  terms: Progression
  is_whole: bool


def update(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces a scatter of a slice."""
  scatter = read_scatter(scope, node)
  if not isinstance(scatter, ScatterNode) or scatter.reduction != "none" or scope.opset < MINIMUM_OPSET:
    return None  # fuse-scatter says what is wrong with it
  if (found := columns_of(scope, scatter)) is None:
    return None
  if scatter.by_axis:
    placed: tuple[list[tuple[int, Column]], list[int]] | None = _along_axis(scope, scatter, found[0])
  else:
    placed = _placed(scope, scatter, found)
  if placed is None:
    return None
  components, missing = placed
  shape, lengths = scope.shape(scatter.data) or (), list(scope.shape(scatter.updates) or ())
  for axis in missing:
    lengths.insert(axis, 1)
  slices: list[_Axis] = []
  for axis, column in components:
    size, length = shape[axis], lengths[axis]
    terms = progression(scope, column.vector, size if isinstance(size, int) else None)
    if terms is None:
      return None
    if reason := terms.reason or _range_reason(terms, axis, size, length):
      return Missed(node, reason)
    vector = column.vector
    along = length is not None and length == size  # as far as shape inference knows
    if isinstance(vector, gs.Tensor) and scope.rank(vector) == 1:
      along |= extent(scope, vector, 0) == extent(scope, scatter.data, axis)
    from_start = isinstance(terms.start, int) and (terms.start, terms.step) == (0, 1)
    slices.append(_Axis(axis, terms, from_start and along))
  if scatter.by_axis:  # on the other axes an update lies where it stands
    others = [axis for axis in range(scatter.rank) if axis != scatter.axis]
    slices += [_Axis(a, Progression(0, 1), lengths[a] is not None and lengths[a] == shape[a]) for a in others]
  partial = [each for each in slices if not each.is_whole] or slices[:1]
  return _replace(scope, scatter, sorted(partial, key=lambda each: each.axis), missing)


def _along_axis(
  scope: Scope, scatter: ScatterNode, column: Column
) -> tuple[list[tuple[int, Column]], list[int]] | None:
  """ScatterElements: its only component, if it is a vector on its axis as long as updates there, or one index.

  An index that varies along another axis is none of a slice, also where updates has length 1 on the scatter's axis:
  then every update goes to a place of its own.
  """
  if column.axis not in (None, scatter.axis):
    return None
  axis = scatter.axis
  stretched = scatter.ours and extent(scope, scatter.indices, axis) != extent(scope, scatter.updates, axis)
  single = (scope.shape(scatter.updates) or ())[axis] == 1
  return ([(axis, column)], []) if single or (column.axis is not None and not stretched) else None


def _placed(
  scope: Scope, scatter: ScatterNode, found: Sequence[Column]
) -> tuple[list[tuple[int, Column]], list[int]] | None:
  """ScatterND: its components, if they go along the grid's axes in order, and the axes that updates lacks."""
  dims = grid(scope, scatter)
  used = {column.axis for column in found}
  missing, at = [], 0
  for component, column in enumerate(found):
    if column.axis is None and not (at < len(dims) and dims[at] == 1 and at not in used):
      missing.append(component)  # one place, and no axis for it
    elif column.axis in (None, at):
      at += 1
    else:
      return None
  return (list(enumerate(found)), missing) if at == len(dims) else None


def _range_reason(terms: Progression, axis: int, size: Dim, length: Dim) -> str:
  """Why known indices are none of a slice in an axis of this size; '' if they are, or that can't be told."""
  if not isinstance(size, int):
    return ""
  if isinstance(terms.start, int) and isinstance(length, int) and length > 0:
    for index in (terms.start, terms.start + (length - 1) * terms.step):
      if not -size <= index < size:
        return f"the index {index} is out of range for axis {axis} of size {size}"
  return ""


def _replace(scope: Scope, scatter: ScatterNode, slices: Sequence[_Axis], missing: Sequence[int]) -> Applied:
  node = scatter.node
  updates = unsqueeze(scope, node, scatter.updates, missing)
  steps = [each.terms.step for each in slices]
  attributes = {"axes": [each.axis for each in slices], **({"steps": steps} if set(steps) != {1} else {})}
  inputs = [scatter.data, updates, starts_of(scope, node, [each.terms.start for each in slices])]
  new = gs.Node("UpdateSlice", node.name, attributes, inputs, [], DOMAIN)
  return replaced(scope, [node], new, [node.outputs[0]])


UPDATE_SLICE = RulePass(
  "update-slice", "scatters whose indices form a slice become UpdateSlice, which reads no index", update
)
