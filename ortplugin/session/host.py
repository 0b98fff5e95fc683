"""Sessions on host arrays."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UsageError, one_line
from .core import onnxruntime
from .elements import check_dtype, element_type, foreign

# dtypes that NumPy itself lacks travel to ONNX Runtime under an integer dtype of their size.
_CARRIER: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


def run_on_host(session: Any, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
  """Runs a session on host arrays, bfloat16 and float8 included; returns output name to array.

  Sequences and maps go in and come out as lists and dictionaries.
  """
  inputs = {value.name: element_type(value.type) for value in session.get_inputs()}
  inputs |= {value.name: element_type(value.type) for value in session.get_overridable_initializers()}
  arrays = {name: _host_array(name, value, inputs[name]) for name, value in feeds.items()}
  outputs = {value.name: element_type(value.type) for value in session.get_outputs()}
  involved = [inputs[name] for name in arrays] + [outputs[name] for name in names]
  if not any(element is not None and foreign(element[1]) for element in involved):
    return dict(zip(names, session.run(list(names), arrays), strict=True))
  values = {name: _to_ort_value(array, inputs[name]) for name, array in arrays.items()}
  results = session.run_with_ort_values(list(names), values)
  return {name: to_numpy(value, outputs[name]) for name, value in zip(names, results, strict=True)}


def _host_array(name: str, value: Any, element: tuple[int, np.dtype[Any]] | None) -> Any:
  if element is None:
    return value
  try:
    array = np.asarray(value)
  except (TypeError, ValueError, RuntimeError) as error:
    raise UsageError(
      f"input '{name}' is a {type(value).__name__} that NumPy can't read ({one_line(error)}); "
      "a session on the CPU takes host arrays"
    ) from error
  check_dtype(name, array.dtype, element[1])
  return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _to_ort_value(array: Any, element: tuple[int, np.dtype[Any]] | None) -> Any:
  ort_value = onnxruntime().OrtValue
  if element is not None and foreign(element[1]):
    return ort_value.ortvalue_from_numpy_with_onnx_type(array.view(_CARRIER[array.itemsize]), element[0])
  return ort_value.ortvalue_from_numpy(array)


def to_numpy(value: Any, element: tuple[int, np.dtype[Any]] | None) -> Any:
  """An OrtValue on the host as an array, whose element type is `element`; a sequence or a map as Python's."""
  if element is None or not foreign(element[1]):
    return value.numpy()
  shape = tuple(value.shape())
  if 0 in shape:
    return np.zeros(shape, element[1])
  held = (ctypes.c_char * value.tensor_size_in_bytes()).from_address(value.data_ptr())
  return np.frombuffer(bytes(held), element[1]).reshape(shape)
