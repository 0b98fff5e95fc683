"""`--precision`: the dtype in which a model's floating operators compute (docs/precision.md)."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import UsageError

Dtype = np.dtype[Any]
FLOAT32, FLOAT16, BFLOAT16 = (np.dtype(each) for each in (np.float32, np.float16, ml_dtypes.bfloat16))
_FINFO: Any = ml_dtypes.finfo  # NumPy's knows its own dtypes only


@dataclass(frozen=True)
class Precision:
  """A target: the dtype that floating operators get, and those that become it."""

  name: str
  dtype: Dtype
  sources: tuple[Dtype, ...]

  @property
  def narrows(self) -> bool:
    """Whether values lose bits, so that some operators have to stay."""
    return bool(self.dtype.itemsize < 4)

  @property
  def largest(self) -> float:
    """The largest finite number of the dtype."""
    return float(_FINFO(self.dtype).max)

  @property
  def epsilon(self) -> float:
    """The distance from 1 to the next number."""
    return float(_FINFO(self.dtype).eps)


PRECISIONS: dict[str, Precision] = {
  "fp16": Precision("fp16", FLOAT16, (FLOAT32, BFLOAT16)),
  "bf16": Precision("bf16", BFLOAT16, (FLOAT32, FLOAT16)),
  "fp32": Precision("fp32", FLOAT32, (FLOAT16, BFLOAT16)),
  "tf32": Precision("tf32", FLOAT32, ()),
}


def resolve(name: str) -> Precision:
  """The precision of this name; UsageError if there is none."""
  if name not in PRECISIONS:
    raise UsageError(f"there is no precision '{name}'; choose one of {', '.join(PRECISIONS)}")
  return PRECISIONS[name]
