"""ScatterND, ScatterElements and Scatter become the operators of the same name here, with what is known of the indices.

    ScatterElements(data, Expand(index, shape), updates)                 index_copy, index_fill, index_add
        becomes ScatterElements(data, index, updates), which broadcasts the index;
    ScatterND(data, Concat(0 .. n, .., index, .., 0 .. m), updates)      a[:, index] = updates
        becomes ScatterElements on the axis of `index`.

`unique=1` is written where no element can be updated twice.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope
from ...graph.columns import INDEX_ELEMENTS, Column
from ...graph.progression import progression
from ..driver import Missed, Outcome, RulePass, replaced
from ..emit import reshape, unsqueeze
from .node import ScatterNode, columns_of, read_scatter
from .unique import is_unique


def fuse(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces a standard scatter; lets one that is ours read a smaller index."""
  if (scatter := read_scatter(scope, node)) is None or isinstance(scatter, Missed):
    return scatter
  op, axis = ("ScatterElements", scatter.axis) if scatter.by_axis else ("ScatterND", None)
  unique = is_unique(scope, scatter)
  indices = _smaller(scope, scatter) if scatter.by_axis else scatter.indices
  if not scatter.by_axis and (one := _one_axis(scope, scatter)) is not None:
    op, axis = "ScatterElements", one[0]
    indices = _on_axis(scope, node, one[1], one[0], scatter.rank)
  if scatter.ours and indices is scatter.indices:
    return None
  attributes = {**node.attrs, **({} if axis is None else {"axis": axis}), **({"unique": 1} if unique else {})}
  if scatter.reduction == "none":
    attributes.pop("reduction", None)
  new = gs.Node(op, node.name, attributes, [scatter.data, indices, scatter.updates], [], DOMAIN)
  return replaced(scope, [node], new, [node.outputs[0]])


def _smaller(scope: Scope, scatter: ScatterNode) -> gs.Tensor:
  """The indices before they were repeated to the updates' shape."""
  indices = scatter.indices
  if (known := scope.constant(indices, INDEX_ELEMENTS)) is not None and known.size > 1:
    small = known
    for axis in range(known.ndim):
      if (small == small.take([0], axis)).all():
        small = small.take([0], axis)
    return indices if small.size == known.size else scope.add_constant(small, indices.name)
  while (node := scope.producer(indices, "Expand", "Tile")) is not None:
    x = node.inputs[0]
    rank = scope.rank(x)
    if rank is None or rank > scatter.rank or (scope.op(node) == "Tile" and not _is_broadcast(scope, node)):
      break
    indices = x
  missing = scatter.rank - (scope.rank(indices) or 0)
  return unsqueeze(scope, scatter.node, indices, range(missing))


def _is_broadcast(scope: Scope, tile: gs.Node) -> bool:
  """Whether a Tile repeats single elements only."""
  repeats, shape = scope.constant(tile.inputs[1]), scope.shape(tile.inputs[0])
  if repeats is None or shape is None:
    return False
  return all(repeat == 1 or dim == 1 for repeat, dim in zip(repeats.reshape(-1), shape, strict=True))


def _one_axis(scope: Scope, scatter: ScatterNode) -> tuple[int, Column] | None:
  """The only component that is not the place in the grid itself, if the others are; None for another ScatterND."""
  found = columns_of(scope, scatter)
  rank = scope.rank(scatter.indices) or 0
  if found is None or not 2 <= len(found) == rank - 1:
    return None
  others = [c for c, column in enumerate(found) if not _is_place(scope, column, c)]
  if len(others) != 1 or found[others[0]].axis not in (None, others[0]):
    return None
  return others[0], found[others[0]]


def _is_place(scope: Scope, column: Column, axis: int) -> bool:
  terms = progression(scope, column.vector, None) if column.axis == axis else None
  return terms is not None and isinstance(terms.start, int) and (terms.start, terms.step, terms.reason) == (0, 1, "")


def _on_axis(scope: Scope, node: gs.Node, column: Column, axis: int, rank: int) -> gs.Tensor:
  """The component as ScatterElements' indices, of length 1 on the other axes."""
  dims = [-1 if i == axis and column.axis is not None else 1 for i in range(rank)]
  if isinstance(column.vector, np.ndarray):
    return scope.add_constant(column.vector.reshape(dims), node.inputs[1].name)
  return reshape(scope, node, column.vector, dims)


FUSE_SCATTER = RulePass(
  "fuse-scatter",
  "ScatterND and ScatterElements become ortplugin's, with unexpanded and unique indices where they are",
  fuse,
)
