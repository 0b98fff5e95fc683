"""The operand that FusedAttention reads as its mask: bools, or numbers in the dtype of Q or float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.shapes import broadcast
from ortplugin.passes.attention.mask_values import ABSORBING, ELEMENTS, LOWEST, without_repeats
from ortplugin.passes.attention.masks import Part
from ortplugin.passes.attention.scores import Mask
from ortplugin.passes.emit import emit, integers
from ortplugin.program import NUMPY_DTYPES


def emit_mask(scope: Scope, before: gs.Node, parts: Sequence[Part], dtype: str) -> gs.Tensor | None:
  """The operand, made by new nodes before `before`: bools, or numbers in the dtype of Q or float32."""
  if len(parts) == 1:
    return _emit_part(scope, before, parts[0], dtype, alone=True)
  tensors = [_emit_part(scope, before, part, dtype, alone=False) for part in parts]
  if not tensors:
    return None
  wide = any(scope.dtype(tensor) != dtype for tensor in tensors)
  result = _cast(scope, before, tensors[0]) if wide else tensors[0]
  for tensor in tensors[1:]:
    other = _cast(scope, before, tensor) if wide else tensor
    result = emit(scope, before, "Add", [result, other], broadcast([scope.shape(result), scope.shape(other)]))
  return result


def _cast(scope: Scope, before: gs.Node, tensor: gs.Tensor) -> gs.Tensor:
  """The tensor in float32."""
  if scope.dtype(tensor) == "float":
    return tensor
  result = emit(scope, before, "Cast", [tensor], scope.shape(tensor), to=onnx.TensorProto.FLOAT)
  result.dtype = np.dtype(np.float32)
  return result


def _emit_part(scope: Scope, before: gs.Node, part: Part, dtype: str, alone: bool) -> gs.Tensor:
  hint = f"{before.name or before.outputs[0].name}/mask"
  if part.values is not None:
    if part.values.dtype == np.bool_ and alone:
      return scope.add_constant(part.values, hint)
    values = part.values
    if values.dtype == np.bool_:
      values = np.where(values, np.float32(0), np.float32(-np.inf))
    finite = values[np.isfinite(values)]
    narrow = NUMPY_DTYPES[dtype] if not finite.size or np.abs(finite).max() < -ABSORBING else np.float32
    return scope.add_constant(values.astype(narrow), hint)
  same = part.expanded is None and part.shape is None
  if part.mask.filling is not None:
    tensor = _selected(scope, before, part.mask, alone, same)
  else:
    tensor = _absorbing(scope, before, part.mask.tensor, same)
  if part.expanded is not None:
    rank = len(part.expanded)
    missing = rank - (scope.rank(tensor) or 0)
    if missing:
      shape = [1] * missing + [d if isinstance(d, int) else -1 for d in scope.shape(tensor) or ()]
      tensor = emit(scope, before, "Reshape", [tensor, integers(scope, shape, "shape")], tuple(shape))
    tensor = emit(scope, before, "Expand", [tensor, integers(scope, part.expanded, "shape")], part.expanded)
  if part.shape is not None:
    known = tuple(None if dim < 0 else dim for dim in part.shape)
    tensor = emit(scope, before, "Reshape", [tensor, integers(scope, part.shape, "shape")], known)
  return tensor


def _selected(scope: Scope, before: gs.Node, mask: Mask, alone: bool, smaller: bool) -> gs.Tensor:
  """A mask of bools as it is, or with numbers in the place of the bools where false is not -inf.

  `smaller`: it may become one of another shape that broadcasts as well.
  """
  condition, kept = stripped(scope, mask.tensor, mask.kept) if smaller else (mask.tensor, mask.kept)
  assert mask.filling is not None
  if alone and mask.filling == -np.inf:
    return condition if kept else emit(scope, before, "Not", [condition], scope.shape(condition))
  filling = mask.filling if mask.filling == -np.inf else LOWEST
  return _where(scope, before, condition, None, filling, kept)


def _where(
  scope: Scope, before: gs.Node, condition: gs.Tensor, bias: gs.Tensor | None, filling: float, kept: bool
) -> gs.Tensor:
  """Where(condition, bias or 0, filling) in float32; the other way round unless `kept`."""
  other = scope.add_constant(np.array(filling, np.float32), "filling")
  stays = scope.add_constant(np.array(0, np.float32), "zero") if bias is None else _cast(scope, before, bias)
  operands = [stays, other] if kept else [other, stays]
  shape = broadcast([scope.shape(condition), scope.shape(stays)])
  result = emit(scope, before, "Where", [condition, *operands], shape)
  result.dtype = np.dtype(np.float32)
  return result


def _absorbing(scope: Scope, before: gs.Node, tensor: gs.Tensor, smaller: bool) -> gs.Tensor:
  """Where(mask, bias, -65504) in float16, in which it hides the score that it is added to, in float32."""
  node = scope.producer(tensor)
  if node is None or scope.op(node) != "Where" or scope.dtype(tensor) != "float16":
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
  node = scope.producer(condition)
  while node is not None and scope.op(node) in ("Not", "And"):
    if scope.op(node) == "Not":
      condition, kept = node.inputs[0], not kept
    else:
      true = [(scope.constant(each, ELEMENTS), other) for each, other in
              zip(node.inputs, reversed(node.inputs), strict=True)]  # fmt: skip
      others = [other for values, other in true if values is not None and values.all()]
      if not others:
        break
      condition = others[0]
    node = scope.producer(condition)
  values = scope.constant(condition, ELEMENTS)
  smaller = None if values is None else without_repeats(values)
  if smaller is not None and smaller is not values:
    condition = scope.add_constant(smaller, condition.name)
  return condition, kept
