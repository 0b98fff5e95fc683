"""Rows that a finite number masks whole: whether what is added behind it decides their weights.

LOWEST stands for such a number in the operand, and swallows what is added to it unless that is far lower.
"""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...graph import Scope
from ...program import FLOATING
from .mask_values import ABSORBING, LOWEST, mask_values
from .scores import LARGE_NEGATIVE, Mask
from .views import FAR

_MOVING = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Transpose")


def deciding(scope: Scope, behind: Sequence[Mask], mask: Mask) -> str:
  """Why what is added to the finite number that `mask` fills in decides the weights of a row of such numbers; or ''.

  It does not where LOWEST stands for the number if it is 0, or nothing beside it. A constant mask that leaves each
  row a score, under biases, fills no row.
  """
  assert mask.filling is not None
  kept = mask_values(scope, mask)
  leaves = kept is not None and bool((kept == mask.kept).any(axis=-1).all())
  for each in behind if mask.filling > LOWEST / 100 else ():
    values = mask_values(scope, each)
    if leaves and values is not None and values.min(initial=0) > LARGE_NEGATIVE:
      continue
    if not _is_zero_or_lowest(scope, each):
      return (
        f"'{each.tensor.name}' is added to {mask.filling:g}, which '{mask.tensor.name}' fills in, and may decide a row"
        " that is masked whole"
      )
  return ""


def _is_zero_or_lowest(scope: Scope, mask: Mask) -> bool:
  """Whether what is added is surely 0, or so low that LOWEST is nothing beside it, or in float16 LOWEST itself."""
  if (values := mask_values(scope, mask)) is not None:
    return bool(((values == 0) | (values <= 100 * LOWEST) | (values == LOWEST)).all())
  node = scope.producer(mask.tensor, "Where")
  if node is not None and scope.dtype(mask.tensor) == "float16":
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
