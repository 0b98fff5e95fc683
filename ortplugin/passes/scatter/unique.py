"""Whether a scatter surely updates no element twice: then its order does not matter, and nothing has to be sorted."""

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope
from ...graph.columns import INDEX_ELEMENTS, Vector, columns, trace
from ...graph.progression import progression
from .node import ScatterNode, grid

REARRANGE = ("Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")


def is_unique(scope: Scope, scatter: ScatterNode) -> bool:
  """Whether surely no element of data is updated twice."""
  return _unique_on_axis(scope, scatter) if scatter.by_axis else _unique_tuples(scope, scatter)


def _unique_on_axis(scope: Scope, scatter: ScatterNode) -> bool:
  """Distinct indices along the axis: on the others every update has its own place."""
  axis, shape, length = scatter.axis, scope.shape(scatter.data) or (), scope.shape(scatter.updates) or ()
  if length[axis] == 1:
    return True
  if scatter.ours:
    return bool(scatter.node.attrs.get("unique", 0))  # indices may have been broadcast: said when it was made
  if (known := scope.constant(scatter.indices, INDEX_ELEMENTS)) is not None:
    wrapped = _wrapped(known, shape[axis])
    return wrapped is not None and bool((np.diff(np.sort(wrapped, axis), axis=axis) > 0).all())
  if (node := scope.producer(scatter.indices, "TopK")) is not None:
    return int(node.attrs.get("axis", -1)) % scatter.rank == axis and scatter.indices is node.outputs[1]
  column = trace(scope, scatter.indices)
  return column is not None and column.axis == axis and is_distinct(scope, column.vector, shape[axis], length[axis])


def _unique_tuples(scope: Scope, scatter: ScatterNode) -> bool:
  """On each axis of the grid that is longer than 1 a component that is nowhere the same."""
  data, dims = scope.shape(scatter.data) or (), grid(scope, scatter)
  if all(dim == 1 for dim in dims):
    return True
  if (known := scope.constant(scatter.indices, INDEX_ELEMENTS)) is not None:
    parts = [_wrapped(known[..., c].reshape(-1), data[c]) for c in range(known.shape[-1])]
    if any(part is None for part in parts):
      return False
    rows = np.stack([part for part in parts if part is not None], -1)
    return len(np.unique(rows, axis=0)) == len(rows)
  nonzero = scope.producer(scatter.indices, "Transpose")
  if nonzero is not None and nonzero.attrs.get("perm", [1, 0]) == [1, 0]:
    return scope.producer(nonzero.inputs[0], "NonZero") is not None
  if (found := columns(scope, scatter.indices)) is None:
    return False
  distinct = {
    column.axis
    for column, size in zip(found, data, strict=False)
    if column.axis is not None and is_distinct(scope, column.vector, size, dims[column.axis])
  }
  return all(dim == 1 or axis in distinct for axis, dim in enumerate(dims))


def is_distinct(scope: Scope, vector: Vector, size: object, length: object) -> bool:
  """Whether surely no two elements of an index vector of this length mean the same place on an axis of this size."""
  if isinstance(vector, np.ndarray):
    wrapped = _wrapped(vector, size)
    return wrapped is not None and len(np.unique(wrapped)) == wrapped.size
  if _of_different_places(scope, vector):
    return True
  if (terms := progression(scope, vector, None)) is None:
    return False
  span = (length - 1) * abs(terms.step) if isinstance(length, int) else None
  return not terms.reason or (span is not None and isinstance(size, int) and span < size)


def _of_different_places(scope: Scope, vector: gs.Tensor) -> bool:
  """Whether these are elements of NonZero's or TopK's result for a vector: places in it, none of them twice."""
  while (rearranged := scope.producer(vector, *REARRANGE)) is not None:
    vector = rearranged.inputs[0]
  if (node := scope.producer(vector, "NonZero", "TopK")) is None or scope.rank(node.inputs[0]) != 1:
    return False
  return vector is node.outputs[-1]


def _wrapped(indices: Array, size: object) -> Array | None:
  """The indices counted from the front; None where that needs a size that is not known."""
  wide = indices.astype(np.int64)
  if isinstance(size, int):
    return np.where(wide < 0, wide + size, wide)
  return wide if (wide >= 0).all() or (wide < 0).all() else None
