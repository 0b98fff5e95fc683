"""Constant masks: what is added, which scores stay, and the triangles and windows that select the same.

A constant that leaves each row a score as it is and puts -9e3 or less on others is a selection: exp underflows to 0
beside the score that stays, so -inf says the same. In a row that is masked whole a finite number says something else:
all its scores give way to the number, and the weights are equal. In float16, x + -65504 is -65504 for |x| < 16, while
FusedAttention adds in float32. There LOWEST does it: x + LOWEST is LOWEST for every score. So masks that are
filled in, or Where(mask, 0, -65504) in float16, become Where(mask, 0, LOWEST) in float32.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope
from .scores import LARGE_NEGATIVE, Mask

LOWEST = -1e31  # and float32's lowest number + LOWEST is still that number, not -inf
ABSORBING = -3e4  # in float16, a score beneath 8 that is added to such a number is lost
ELEMENTS = 1 << 23  # of constant masks that are looked at, and that one may have once it is repeated for each window


def without_repeats(values: Array) -> Array:
  """The values with length 1 along axes along which they are the same."""
  for axis in range(values.ndim):
    first = values.take([0], axis) if values.shape[axis] > 1 else values
    if first is not values and (values == first).all():
      values = first
  return values


def hiding(scope: Scope, mask: gs.Tensor, alone: bool) -> float:
  """The highest number that, added by this mask, hides any score; a finite one does so where no other is added."""
  return {"float16": ABSORBING}.get(scope.dtype(mask) or "", LOWEST / 100) if alone else -np.inf


def filled_in(number: float) -> float:
  """What stands in float32 for a number that is filled in, so that a score added to it is lost: if it does, itself."""
  return number if number <= LOWEST / 100 else LOWEST


def mask_values(scope: Scope, mask: Mask) -> Array | None:
  """What a constant mask adds, in float32."""
  if (array := scope.constant(mask.tensor, ELEMENTS)) is None:
    return None
  wide: Array = array.astype(np.float32)
  if scope.dtype(mask.tensor) == "float16":
    wide = np.where(np.isfinite(wide) & (wide <= ABSORBING), np.float32(LOWEST), wide)
  return wide


def selection(values: Array) -> Array | None:
  """Which scores stay, if the others surely get no weight; None for a bias and where a row is masked whole."""
  kept: Array = values == 0
  if not (kept | (values <= LARGE_NEGATIVE)).all() or not kept.any(axis=-1).all():
    return None
  return kept


def causal_window(kept: Array) -> tuple[str, int] | None:
  """The attributes causal and window that select the same."""
  rows, columns = kept.shape[-2:]
  first = kept.reshape(-1, rows, columns)[0]
  if rows == 1 or not (kept == first).all():
    return None
  i, j = np.arange(rows)[:, None], np.arange(columns)[None, :]
  for name, offset in (("upper_left", 0), ("lower_right", columns - rows)):
    last = i + offset
    count = int(first[-1].sum())
    for window in (0, count):
      if (first == ((j <= last) & ((window == 0) | (j > last - window)))).all():
        return name, window
  return None
