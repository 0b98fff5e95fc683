"""Vectors that are start, start + step, start + 2 step, ..: constants, and what Range, Slice and Add make."""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..arrays import Array
from .columns import Vector
from .facts import Scope, optional_input
from .labels import label
from .shapes import element_count

_KEEPS_SIGN = """
    Abs Add Cast Concat Expand Gather GatherND Identity Max Mul ReduceMax ReduceMin ReduceSum Reshape Slice Squeeze Tile
    Transpose Unsqueeze
"""
KEEPS_SIGN = frozenset(_KEEPS_SIGN.split())
NEVER_NEGATIVE = frozenset({"Abs", "ArgMax", "ArgMin", "NonZero", "Relu", "Shape", "Size"})
DATA_ONLY = frozenset({"Expand", "Gather", "GatherND", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze"})
SAFE_DEPTH = 32  # producers in a row that are asked for the sign


@dataclass(frozen=True)
class Progression:
  """start, start + step, ..; as long as the vector that it is."""

  start: int | gs.Tensor  # a tensor: of one element, or the vector itself, whose first element it is
  step: int
  reason: str = ""  # why its elements may change sign, which index vectors mean differently from slices


def progression(scope: Scope, vector: Vector, size: int | None) -> Progression | None:
  """The vector as a progression; None if it is surely or possibly none.

  `size`: of the axis that it indexes, where known; a constant's negative elements count from there.
  """
  if isinstance(vector, np.ndarray):
    return _of_array(vector, size)
  if element_count(scope.shape(vector)) == 1:
    return Progression(vector, 1)
  if (constant := scope.constant(vector)) is not None:
    return _of_array(constant.reshape(-1), size)
  if (node := scope.producer(vector)) is None or scope.rank(vector) != 1:
    return None
  op = scope.op(node)
  if op == "Range":
    return _of_range(scope, node)
  if op == "Slice":
    return _of_slice(scope, node)
  if op == "Add":
    return _of_sum(scope, node)
  return None


def is_non_negative(scope: Scope, tensor: gs.Tensor, depth: int = SAFE_DEPTH) -> bool:
  """Whether no element can be negative, overflow aside."""
  if (constant := scope.constant(tensor)) is not None:
    return constant.dtype.kind in "iub" and bool((constant >= 0).all())
  if (node := scope.producer(tensor)) is None or depth == 0:
    return False
  op = scope.op(node)
  if op in NEVER_NEGATIVE:
    return True
  if op == "Range":
    steps = [scope.scalar(node.inputs[2]), scope.scalar(node.inputs[1])]
    upwards = steps[0] is not None and (steps[0] > 0 or (steps[1] is not None and steps[1] >= -1))
    return upwards and is_non_negative(scope, node.inputs[0], depth - 1)
  if op not in KEEPS_SIGN or (op == "Cast" and np.dtype(tensor.dtype or np.float32).kind not in "iu"):
    return False
  given = node.inputs[:1] if op in DATA_ONLY or op.startswith("Reduce") else node.inputs
  return all(is_non_negative(scope, each, depth - 1) for each in given if not each.is_empty())


def _of_array(array: Array, size: int | None) -> Progression | None:
  values = [int(each) for each in array.reshape(-1)]
  if size is not None and all(-size <= each < size for each in values):
    values = [each % size for each in values]
  step = values[1] - values[0] if len(values) > 1 else 1
  if step == 0 or values != list(range(values[0], values[0] + step * len(values), step)):
    return None
  return None if min(values) < 0 <= max(values) else Progression(values[0], step)


def _of_range(scope: Scope, node: gs.Node) -> Progression | None:
  step = scope.scalar(node.inputs[2])
  if not step or step != int(step):
    return None
  start = scope.scalar(node.inputs[0])
  reason = ""
  if not is_non_negative(scope, node.outputs[0]):
    what = "start" if step > 0 else "start or limit"
    reason = f"the {what} of {label(node)} may be negative, and its indices would go on at the other end"
  first = node.inputs[0] if element_count(scope.shape(node.inputs[0])) == 1 else node.outputs[0]
  return Progression(first if start is None else int(start), int(step), reason)


def _of_slice(scope: Scope, node: gs.Node) -> Progression | None:
  whole = progression(scope, node.inputs[0], None)
  given = optional_input(node, 4)
  step = 1.0 if given is None else scope.scalar(given)
  if whole is None or not step:
    return None
  return Progression(node.outputs[0], whole.step * int(step), whole.reason)


def _of_sum(scope: Scope, node: gs.Node) -> Progression | None:
  y = node.outputs[0]
  for a, b in (node.inputs, reversed(node.inputs)):
    if element_count(scope.shape(b)) != 1 or scope.rank(a) != 1:
      continue
    if (terms := progression(scope, a, None)) is not None:
      reason = "" if is_non_negative(scope, y) else f"{label(node)} may give negative indices and others"
      return Progression(y, terms.step, reason)
  return None
