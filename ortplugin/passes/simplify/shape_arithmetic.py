"""Shapes that are known become constants: Shape and Size of a value, and a Gather or Slice of a Shape."""

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...graph import Dim, Scope, element_count, label
from ..driver import Applied, Outcome, RulePass


def compute(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the node by a constant if what it computes is known."""
  if (handler := _HANDLERS.get(scope.op(node))) is None or scope.is_output(node.outputs[0]):
    return None
  if (value := handler(scope, node)) is None:
    return None
  y = node.outputs[0]
  name = label(node)
  constant = scope.add_constant(value, f"{y.name}_value")
  scope.remove(node)
  scope.substitute(y, constant)
  return Applied((name,), None)


def _dims(scope: Scope, tensor: gs.Tensor) -> list[Dim] | None:
  """The elements of a value that is a Shape, as far as they are known; None if it is none."""
  if (node := scope.producer(tensor, "Shape")) is None or node.inputs[0].shape is None:
    return None
  return list(node.inputs[0].shape)[slice(node.attrs.get("start", 0), node.attrs.get("end"))]


def _array(dims: list[Dim]) -> npt.NDArray[np.int64] | None:
  return np.array(dims, np.int64) if all(isinstance(dim, int) for dim in dims) else None


def _shape(scope: Scope, node: gs.Node) -> npt.NDArray[np.int64] | None:
  dims = _dims(scope, node.outputs[0])
  return None if dims is None else _array(dims)


def _size(scope: Scope, node: gs.Node) -> npt.NDArray[np.int64] | None:
  size = element_count(scope.shape(node.inputs[0]))
  return None if size is None or size >= 2**63 else np.array(size, np.int64)


def _gather(scope: Scope, node: gs.Node) -> npt.NDArray[np.int64] | None:
  dims = _dims(scope, node.inputs[0])
  indices = scope.constant(node.inputs[1])
  if dims is None or indices is None or any(not -len(dims) <= i < len(dims) for i in indices.reshape(-1)):
    return None
  picked = _array([dims[int(i)] for i in indices.reshape(-1)])
  return None if picked is None else picked.reshape(indices.shape)


def _slice(scope: Scope, node: gs.Node) -> npt.NDArray[np.int64] | None:
  dims = _dims(scope, node.inputs[0])
  bounds = [scope.constant(tensor) for tensor in node.inputs[1:]]
  if dims is None or not 2 <= len(bounds) <= 4 or any(b is None or b.size != 1 for b in bounds):
    return None
  numbers = [int(b.reshape(-1)[0]) for b in bounds if b is not None]
  start, end, axis, step = [*numbers, *[0, 0, 0, 1][len(numbers) :]]
  return _array(dims[start:end:step]) if axis in (0, -1) and step > 0 else None


_HANDLERS = {"Shape": _shape, "Size": _size, "Gather": _gather, "Slice": _slice}

SHAPE_ARITHMETIC = RulePass("shape-arithmetic", "shapes and lengths that are known become constants", compute)
