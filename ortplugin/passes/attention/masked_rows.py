"""Rows that a finite number masks whole, alone or with another mask: whether that other one decides their weights.

LOWEST stands for such a number in the operand. It swallows what is added to it unless that is far lower, and is lower
than what is added to other scores, whether or not the number is.
"""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope
from ...program import FLOATING
from .mask_values import ABSORBING, LOWEST, mask_values
from .scores import LARGE_NEGATIVE, Mask
from .views import FAR

_MOVING = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Transpose")


def deciding(scope: Scope, masks: Sequence[Mask], mask: Mask) -> str:
  """Why what others add decides the weights of a row in which `mask` fills in a finite number; or ''.

  Behind it that does not where LOWEST stands for the number if it is 0, or nothing beside it. A constant mask that
  leaves each row a score, under biases, fills no row. In front of it, it does not where it is surely above the number.
  `masks`: all of them, from the Softmax back.
  """
  assert mask.filling is not None
  at = masks.index(mask)
  behind, in_front = masks[:at], masks[at + 1 :]
  kept = mask_values(scope, mask)
  leaves = kept is not None and bool((kept == mask.kept).any(axis=-1).all())
  for each in behind if mask.filling > LOWEST / 100 else ():
    values = mask_values(scope, each)
    if leaves and values is not None and values.min(initial=0) > LARGE_NEGATIVE:
      continue
    if not _is_zero_or_lowest(scope, each, mask.filling):
      return (
        f"'{each.tensor.name}' is added to {mask.filling:g}, which '{mask.tensor.name}' fills in, and may decide a row"
        " that is masked whole"
      )
  for each in in_front if mask.filling > LOWEST / 100 else ():
    if each.filling is None and _is_below(scope, each, mask.filling):
      return f"'{each.tensor.name}' may add less than {mask.filling:g}, which '{mask.tensor.name}' fills in"
  return ""


def _is_below(scope: Scope, mask: Mask, filling: float) -> bool:
  """Whether it adds a number that is lower than the one that is filled in, and not than LOWEST.

  Of float16's lowest numbers both become LOWEST, as each absorbs the scores.
  """
  if scope.dtype(mask.tensor) == "float16" and filling <= ABSORBING:
    return False
  values, node = mask_values(scope, mask), scope.producer(mask.tensor, "Where")
  numbers = [scope.scalar(each) for each in node.inputs[1:]] if node is not None else []
  if values is None:
    values = np.array([each for each in numbers if each is not None], np.float32)
  return bool(((values > 100 * LOWEST) & (values <= filling / 2)).any())


def _is_zero_or_lowest(scope: Scope, mask: Mask, filling: float) -> bool:
  """Whether what is added is surely 0, or so low that LOWEST is nothing beside it; or in float16, beside another number
  that absorbs scores, LOWEST itself.
  """
  absorbs = filling <= ABSORBING
  if (values := mask_values(scope, mask)) is not None:
    return bool(((values == 0) | (values <= 100 * LOWEST) | ((values == LOWEST) & absorbs)).all())
  node = scope.producer(mask.tensor, "Where")
  if node is not None and absorbs and scope.dtype(mask.tensor) == "float16":
    numbers = [scope.scalar(each) for each in node.inputs[1:]]  # emit_mask has LOWEST in the place of the lower one
    return 0 in numbers and any(number is not None and number <= ABSORBING for number in numbers)
  return _has_two_values(scope, mask.tensor, FAR)


def _has_two_values(scope: Scope, tensor: gs.Tensor, steps: int) -> bool:
  """Whether each element is 0 or very low, as Where(bools, 0, lowest) and (1 - integers) * lowest are.

  The latter is very high where the integer is 2: so high that LOWEST is nothing beside it, as the number is not.
  """
  number, node = scope.scalar(tensor), scope.producer(tensor)
  if number is not None:
    return number == 0 or number <= 100 * LOWEST
  if node is None or not steps:
    return False
  op = scope.op(node)
  if op == "Where":
    return all(_has_two_values(scope, each, steps - 1) for each in node.inputs[1:])
  if op == "Mul":
    factors = [scope.scalar(each) for each in node.inputs]
    return any(
      factor is not None and abs(factor) >= -100 * LOWEST and _is_integral(scope, whole, steps - 1)
      for whole, factor in zip(node.inputs, reversed(factors), strict=True)
    )
  return op in _MOVING and _has_two_values(scope, node.inputs[0], steps - 1)


def _is_integral(scope: Scope, tensor: gs.Tensor, steps: int) -> bool:
  """Whether each element is an integer, whatever its dtype."""
  number, node = scope.scalar(tensor), scope.producer(tensor)
  if number is not None:
    return float(number).is_integer()
  if scope.dtype(tensor) not in (None, *FLOATING):
    return True
  if node is None or not steps:
    return False
  if scope.op(node) in ("Sub", "Add", "Mul"):
    return all(_is_integral(scope, each, steps - 1) for each in node.inputs)
  return scope.op(node) in _MOVING and _is_integral(scope, node.inputs[0], steps - 1)
