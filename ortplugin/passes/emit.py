"""Small standard nodes that rewrites put before a node: views of a tensor, parts of an index."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import Scope, Shape, element_count
from ..program import NUMPY_DTYPES, ONNX_DTYPES

MOVED_ELEMENTS = 1 << 16  # constants up to this size are rearranged here, larger ones at run time


def emit(
  scope: Scope, before: gs.Node, op: str, inputs: Sequence[gs.Tensor], shape: Shape | None, **attributes: Any
) -> gs.Tensor:
  """The output, of the dtype of the first input and of `shape`, of a new node before `before`."""
  hint = f"{before.name or before.outputs[0].name}/{op}"
  output = gs.Variable(scope.unique(hint), inputs[0].dtype, shape)
  scope.insert(gs.Node(op, output.name, attributes, list(inputs), [output]), before)
  return output


def cast(scope: Scope, before: gs.Node, tensor: gs.Tensor, dtype: str) -> gs.Tensor:
  """The tensor in another dtype, as programs name it."""
  result = emit(scope, before, "Cast", [tensor], scope.shape(tensor), to=ONNX_DTYPES[dtype])
  result.dtype = np.dtype(NUMPY_DTYPES[dtype])
  return result


def integers(scope: Scope, values: Sequence[int], hint: str) -> gs.Constant:
  """A one-dimensional constant of int64."""
  return scope.add_constant(np.array(list(values), np.int64).reshape(len(values)), hint)


def unsqueeze(scope: Scope, before: gs.Node, tensor: gs.Tensor, axes: Sequence[int]) -> gs.Tensor:
  """The tensor, of known rank, with axes of length 1 at `axes` of the result, which count from the front."""
  if not axes:
    return tensor
  if (known := scope.constant(tensor, MOVED_ELEMENTS)) is not None:
    return scope.add_constant(np.expand_dims(known, tuple(axes)), tensor.name)
  dims = iter(scope.shape(tensor) or ())
  shape = tuple(1 if axis in axes else next(dims) for axis in range((scope.rank(tensor) or 0) + len(axes)))
  if scope.opset < 13:
    return emit(scope, before, "Unsqueeze", [tensor], shape, axes=list(axes))
  return emit(scope, before, "Unsqueeze", [tensor, integers(scope, axes, "axes")], shape)


def reshape(scope: Scope, before: gs.Node, tensor: gs.Tensor, dims: Sequence[int]) -> gs.Tensor:
  """The tensor with these dimensions, at most one of them -1."""
  if scope.shape(tensor) == tuple(dims):
    return tensor
  if (known := scope.constant(tensor, MOVED_ELEMENTS)) is not None:
    return scope.add_constant(known.reshape(dims), tensor.name)
  length = scope.shape(tensor)[0] if scope.rank(tensor) == 1 else None  # type: ignore[index]
  shape = tuple(length if dim == -1 else dim for dim in dims)
  return emit(scope, before, "Reshape", [tensor, integers(scope, dims, "shape")], shape)


def transpose(scope: Scope, before: gs.Node, tensor: gs.Tensor, perm: Sequence[int]) -> gs.Tensor:
  """The tensor with its axes in the order `perm`."""
  if (known := scope.constant(tensor, MOVED_ELEMENTS)) is not None:
    return scope.add_constant(known.transpose(perm), tensor.name)
  given = scope.shape(tensor)
  shape = None if given is None else tuple(given[axis] for axis in perm)
  return emit(scope, before, "Transpose", [tensor], shape, perm=list(perm))


def starts_of(scope: Scope, before: gs.Node, starts: Sequence[int | gs.Tensor]) -> gs.Tensor:
  """The starts of an UpdateSlice, one int64 for each: of a tensor its first element, 0 if it is a vector without."""
  known = [start for start in starts if isinstance(start, int)]
  if len(known) == len(starts):
    return integers(scope, known, f"{before.outputs[0].name}_starts")
  parts = [
    integers(scope, [start], "start") if isinstance(start, int) else _first(scope, before, start) for start in starts
  ]
  return parts[0] if len(parts) == 1 else emit(scope, before, "Concat", parts, (len(parts),), axis=0)


def _first(scope: Scope, before: gs.Node, tensor: gs.Tensor) -> gs.Tensor:
  if np.dtype(tensor.dtype) != np.int64:
    tensor = cast(scope, before, tensor, "int64")
  if element_count(scope.shape(tensor)) == 1:
    return reshape(scope, before, tensor, [1])
  zero, one = integers(scope, [0], "zero"), integers(scope, [1], "one")
  padded = emit(scope, before, "Concat", [tensor, zero], (None,), axis=0)
  return emit(scope, before, "Slice", [padded, zero, one], (1,))
