"""FusedTranspose in NumPy.

y = Transpose(x[starts : ends])
"""

from collections.abc import Sequence

import numpy as np

from ...arrays import Array


def transpose(x: Array, perm: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Array:
  """x's window, whose bounds are those of NumPy's slices, with its axes in the order `perm`."""
  window = x[tuple(slice(start, end) for start, end in zip(starts, ends, strict=True))]
  return np.ascontiguousarray(window.transpose(perm))
