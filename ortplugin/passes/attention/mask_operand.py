"""The operand that FusedAttention reads as its mask: bools, or numbers in the dtype of Q or float32."""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, broadcast
from ...program import NUMPY_DTYPES
from ..emit import cast, emit, integers
from .mask_values import ABSORBING, ELEMENTS, LOWEST, filled_in, without_repeats
from .masks import Part


def emit_mask(scope: Scope, before: gs.Node, parts: Sequence[Part], dtype: str) -> gs.Tensor | None:
  """The operand, made by new nodes before `before`: bools, or numbers in the dtype of Q or float32."""
  result: gs.Tensor | None = None
  for part in parts:
    if part.mask.filling is None:
      added = _added(scope, before, part, dtype)
      result = added if result is None else _sum(scope, before, result, added)
      continue
    condition, kept = _condition(scope, before, part)
    if len(parts) == 1 and part.mask.filling == -np.inf:
      return condition if kept else emit(scope, before, "Not", [condition], scope.shape(condition))
    result = _where(scope, before, condition, result, filled_in(part.mask.filling), kept)
  return result


def _sum(scope: Scope, before: gs.Node, a: gs.Tensor, b: gs.Tensor) -> gs.Tensor:
  if scope.dtype(a) != scope.dtype(b):
    a, b = _in_float(scope, before, a), _in_float(scope, before, b)
  return emit(scope, before, "Add", [a, b], broadcast([scope.shape(a), scope.shape(b)]))


def _in_float(scope: Scope, before: gs.Node, tensor: gs.Tensor) -> gs.Tensor:
  return tensor if scope.dtype(tensor) == "float" else cast(scope, before, tensor, "float")


def _added(scope: Scope, before: gs.Node, part: Part, dtype: str) -> gs.Tensor:
  """Numbers, in the dtype of Q where that holds a constant's."""
  if part.values is None:
    tensor = _absorbing(scope, before, part.mask.tensor, part.expanded is None and part.shape is None)
    return _viewed(scope, before, part, tensor)
  finite = part.values[np.isfinite(part.values)]
  narrow = NUMPY_DTYPES[dtype] if not finite.size or np.abs(finite).max() < -ABSORBING else np.float32
  return scope.add_constant(part.values.astype(narrow), _hint(before))


def _condition(scope: Scope, before: gs.Node, part: Part) -> tuple[gs.Tensor, bool]:
  """The bools, and which of them let a score stay."""
  if part.values is not None:
    return scope.add_constant(part.values, _hint(before)), True
  if part.expanded is None and part.shape is None:
    return stripped(scope, part.mask.tensor, part.mask.kept)
  return _viewed(scope, before, part, part.mask.tensor), part.mask.kept


def _hint(before: gs.Node) -> str:
  return f"{before.name or before.outputs[0].name}/mask"


def _viewed(scope: Scope, before: gs.Node, part: Part, tensor: gs.Tensor) -> gs.Tensor:
  """The tensor as the part's four dimensions."""
  if part.expanded is not None:
    rank = len(part.expanded)
    if missing := rank - (scope.rank(tensor) or 0):
      shape = [1] * missing + [d if isinstance(d, int) else -1 for d in scope.shape(tensor) or ()]
      tensor = emit(scope, before, "Reshape", [tensor, integers(scope, shape, "shape")], tuple(shape))
    tensor = emit(scope, before, "Expand", [tensor, integers(scope, part.expanded, "shape")], part.expanded)
  if part.shape is not None:
    known = tuple(None if dim < 0 else dim for dim in part.shape)
    tensor = emit(scope, before, "Reshape", [tensor, integers(scope, part.shape, "shape")], known)
  return tensor


def _where(
  scope: Scope, before: gs.Node, condition: gs.Tensor, bias: gs.Tensor | None, filling: float, kept: bool
) -> gs.Tensor:
  """Where(condition, bias or 0, filling) in float32; the other way round unless `kept`."""
  other = scope.add_constant(np.array(filling, np.float32), "filling")
  stays = scope.add_constant(np.array(0, np.float32), "zero") if bias is None else _in_float(scope, before, bias)
  operands = [stays, other] if kept else [other, stays]
  shape = broadcast([scope.shape(condition), scope.shape(stays)])
  result = emit(scope, before, "Where", [condition, *operands], shape)
  result.dtype = np.dtype(np.float32)
  return result


def _absorbing(scope: Scope, before: gs.Node, tensor: gs.Tensor, smaller: bool) -> gs.Tensor:
  """Where(mask, bias, -65504) in float16, in which it hides the score that it is added to, in float32."""
  if (node := scope.producer(tensor, "Where")) is None or scope.dtype(tensor) != "float16":
    return tensor
  for index, kept in ((2, True), (1, False)):
    filling, condition = scope.scalar(node.inputs[index]), node.inputs[0]
    if filling is not None and np.isfinite(filling) and filling <= ABSORBING:
      if smaller:
        condition, kept = stripped(scope, condition, kept)
      return _where(scope, before, condition, node.inputs[3 - index], LOWEST, kept)
  return tensor


def stripped(scope: Scope, condition: gs.Tensor, kept: bool) -> tuple[gs.Tensor, bool]:
  """The bools without the Not, and without the And with nothing but true, that make them."""
  while (node := scope.producer(condition, "Not", "And")) is not None:
    if scope.op(node) == "Not":
      condition, kept = node.inputs[0], not kept
    else:
      true = [
        (scope.constant(each, ELEMENTS), other) for each, other in zip(node.inputs, reversed(node.inputs), strict=True)
      ]
      others = [other for values, other in true if values is not None and values.all()]
      if not others:
        break
      condition = others[0]
  values = scope.constant(condition, ELEMENTS)
  smaller = None if values is None else without_repeats(values)
  if smaller is not None and smaller is not values:
    condition = scope.add_constant(smaller, condition.name)
  return condition, kept
