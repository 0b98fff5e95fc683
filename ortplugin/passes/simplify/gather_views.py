"""A Gather or GatherND that reads all of a tensor, in order, becomes a Reshape: BERT's mask, a channels-last average.

y = GatherND(x, [[[[0, 0], [0, 1], ..]], [[[1, 0], ..]], ..])     x [B, S]     becomes     y = Reshape(x, [B, 1, 1, S])
"""

import math

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope, element_count
from ...graph.disputed import disputed_now
from ..driver import Outcome, RulePass, replaced
from ..emit import integers

INDICES = 1 << 20  # that are looked at


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one node."""
  if scope.op(node) not in ("Gather", "GatherND") or scope.is_constant(node.inputs[0]):
    return None
  x, indices = node.inputs[0], scope.constant(node.inputs[1], INDICES)
  shape = scope.shape(x)
  if indices is None or not shape or not element_count(shape) or x.name in disputed_now(scope):
    return None
  dims = [int(dim) for dim in shape or () if isinstance(dim, int)]
  if (made := _shape(scope, node, dims, indices)) is None:
    return None
  y = node.outputs[0]
  new = gs.Node("Reshape", node.name, {}, [x, integers(scope, made, f"{y.name}_shape")])
  return replaced(scope, [node], new, [y])


def _shape(scope: Scope, node: gs.Node, dims: list[int], indices: Array) -> list[int] | None:
  """The shape of what is read, if that is all, in order; else None."""
  if scope.op(node) == "Gather":
    axis = int(node.attrs.get("axis", 0)) % len(dims)
    places, count = indices.astype(np.int64), dims[axis]
    before, lengths, after = dims[:axis], list(indices.shape), dims[axis + 1 :]
    places = np.where(places < 0, places + count, places)
  else:
    depth = indices.shape[-1] if indices.ndim else 0
    if node.attrs.get("batch_dims", 0) or not 1 <= depth <= len(dims):
      return None
    before, lengths, after = [], list(indices.shape[:-1]), dims[depth:]
    limits = np.array(dims[:depth])
    count, rows = math.prod(dims[:depth]), indices.reshape(-1, depth)
    rows = np.where(rows < 0, rows + limits, rows)
    if not ((rows >= 0) & (rows < limits)).all():
      return None
    places = np.ravel_multi_index(tuple(rows.T), tuple(dims[:depth]))
  if places.size != count or not np.array_equal(places.reshape(-1), np.arange(count)):
    return None
  return [*before, *lengths, *after]


GATHER_VIEWS = RulePass("gather-views", "a Gather or GatherND of all, in order, becomes a Reshape", rewrite)
