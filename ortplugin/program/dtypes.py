"""The dtypes of pointwise programs: their names in the language, in NumPy and in ONNX, and which numbers each holds."""

from typing import Final

import ml_dtypes
import numpy as np
from onnx import TensorProto

FLOATING: Final = ("float16", "bfloat16", "float", "double")
SIGNED: Final = ("int8", "int16", "int32", "int64")
UNSIGNED: Final = ("uint8", "uint16", "uint32", "uint64")
INTEGERS: Final = (*SIGNED, *UNSIGNED)
NUMBERS: Final = (*FLOATING, *INTEGERS)
DTYPES: Final = (*NUMBERS, "bool")
SUMS: Final = (*FLOATING, "int32", "int64", "uint32", "uint64")  # what SumTo adds up

ONNX_DTYPES: dict[str, int] = {
  "float16": TensorProto.FLOAT16,
  "bfloat16": TensorProto.BFLOAT16,
  "float": TensorProto.FLOAT,
  "double": TensorProto.DOUBLE,
  **{name: int(TensorProto.DataType.Value(name.upper())) for name in INTEGERS},
  "bool": TensorProto.BOOL,
}
NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {
  "float16": np.dtype(np.float16),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
  "float": np.dtype(np.float32),
  "double": np.dtype(np.float64),
  **{name: np.dtype(name) for name in INTEGERS},
  "bool": np.dtype(np.bool_),
}
DTYPE_NAMES: dict[np.dtype[np.generic], str] = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def integer_range(dtype: str) -> tuple[int, int]:
  """The lowest and the highest value of an integer dtype."""
  bits = int(dtype.lstrip("uint"))
  return (0, 2**bits - 1) if dtype in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def holds(wide: str, narrow: str) -> bool:
  """Whether every value of `narrow`, as it is before it is rounded to be stored, is one of `wide`."""
  if narrow == "bool":
    return wide != "bool"
  if narrow in FLOATING:
    return wide == "double" or (wide == "float" and narrow != "double")
  low, high = integer_range(narrow)
  if wide in INTEGERS:
    lowest, highest = integer_range(wide)
    return lowest <= low and high <= highest
  return high <= {"bfloat16": 2**8, "float16": 2**11, "float": 2**24, "double": 2**53}.get(wide, 0)
