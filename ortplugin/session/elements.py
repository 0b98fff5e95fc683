"""The dtypes of tensors: ONNX Runtime's names of them, ONNX's numbers and NumPy's dtypes."""

from typing import Any

import ml_dtypes
import numpy as np

from ..errors import UsageError

# ONNX Runtime's name of a tensor type -> (ONNX element type, a TensorProto.DataType, and NumPy dtype). Numbers, because
# importing onnx takes longer than everything else that `import ortplugin` does.
_ELEMENTS: dict[str, tuple[int, np.dtype[Any]]] = {
  "float": (1, np.dtype(np.float32)),
  "double": (11, np.dtype(np.float64)),
  "float16": (10, np.dtype(np.float16)),
  "bfloat16": (16, np.dtype(ml_dtypes.bfloat16)),
  "float8e4m3fn": (17, np.dtype(ml_dtypes.float8_e4m3fn)),
  "float8e4m3fnuz": (18, np.dtype(ml_dtypes.float8_e4m3fnuz)),
  "float8e5m2": (19, np.dtype(ml_dtypes.float8_e5m2)),
  "float8e5m2fnuz": (20, np.dtype(ml_dtypes.float8_e5m2fnuz)),
  "int8": (3, np.dtype(np.int8)),
  "int16": (5, np.dtype(np.int16)),
  "int32": (6, np.dtype(np.int32)),
  "int64": (7, np.dtype(np.int64)),
  "uint8": (2, np.dtype(np.uint8)),
  "uint16": (4, np.dtype(np.uint16)),
  "uint32": (12, np.dtype(np.uint32)),
  "uint64": (13, np.dtype(np.uint64)),
  "bool": (9, np.dtype(np.bool_)),
  "string": (8, np.dtype(np.object_)),
}


def element_type(ort_type: str) -> tuple[int, np.dtype[Any]] | None:
  """(ONNX element type, NumPy dtype) of a type such as 'tensor(float16)'; None for what is no tensor."""
  if ort_type.startswith("tensor(") and ort_type.endswith(")"):
    return _ELEMENTS.get(ort_type[len("tensor(") : -1])
  return None


def foreign(dtype: np.dtype[Any]) -> bool:
  """Whether ml_dtypes, not NumPy, defines this dtype."""
  return dtype.type.__module__.startswith("ml_dtypes")


def check_dtype(name: str, got: np.dtype[Any], wanted: np.dtype[Any]) -> None:
  """Raises UsageError unless an input's dtype is the one that the model wants."""
  strings = wanted == np.dtype(np.object_) and got.kind in "OUST"
  if got != wanted and not strings:
    raise UsageError(f"input '{name}' is {got}, the model wants {wanted}; convert it with .astype('{wanted}')")
