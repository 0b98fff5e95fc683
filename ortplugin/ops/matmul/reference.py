"""FusedMatMul in NumPy, in float64: what the kernels, the decomposition and the rewrites are compared with.

c[.., n] = sum over k of A[.., k] * B[k, n]
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...program import Program
from ..conv.reference import epilogue


def product(trans_b: bool, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
  """The product alone; `trans_b`: B is [N, K]."""
  wide = np.asarray(b).astype(np.float64)
  with np.errstate(all="ignore"):
    return np.asarray(np.asarray(a).astype(np.float64) @ (wide.T if trans_b else wide))


def matmul(
  trans_b: bool, program: Program, inputs: Sequence[npt.NDArray[Any]], rounded: bool = True, gated: bool = False
) -> list[npt.NDArray[np.generic]]:
  """The outputs of a FusedMatMul: A, B and the program's other parameters to one array for each result.

  `gated`: the first of these is weights, which are multiplied by A, too. `rounded`: each output has its result's dtype.
  Otherwise floating outputs are float64 before that last rounding.
  """
  a, b, *operands = inputs
  if gated:
    operands[0] = product(trans_b, a, operands[0])
  return epilogue(program, product(trans_b, a, b), operands, rounded)
