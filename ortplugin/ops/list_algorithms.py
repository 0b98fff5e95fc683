"""Asks the native library (list_algorithms.cc) for the algorithms of a node: only it sees the GPU and its cuDNN."""

import ctypes
from collections.abc import Sequence

import numpy as np
import onnx

from ..errors import ModelError
from ..graph import TensorType

_ANSWER = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def text_of(node: onnx.NodeProto, inputs: Sequence[TensorType], constant: Sequence[bool]) -> str | None:
  """The node as runtime/ort/node_text.h reads it; None where a length of an input is not known."""
  lines = [node.op_type]
  for attribute in node.attribute:
    value = onnx.helper.get_attribute_value(attribute)
    value = value.decode() if isinstance(value, bytes) else " ".join(map(str, np.atleast_1d(value)))
    lines.append(f"{attribute.name}={' '.join(value.splitlines())}")
  for kind, fixed in zip(inputs, constant, strict=True):
    if kind.shape is None or not all(isinstance(dim, int) for dim in kind.shape):
      return None
    lines.append(f"[{' '.join(map(str, kind.shape))}]{' constant' if fixed else ''}")
  return "\n".join(lines)


def ask(node: onnx.NodeProto, text: str, device_id: int = 0) -> list[str]:
  """The lines that the library answers for a GPU to the node's text.

  Raises ModelError that names the node if the library can't tell, as without cuDNN.
  """
  from ..session import library_path, onnxruntime

  onnxruntime()  # which loads cuDNN from its wheel
  call = ctypes.CDLL(library_path()).OrtPluginListAlgorithms
  call.argtypes = [ctypes.c_char_p, ctypes.c_int, _ANSWER]
  call.restype = ctypes.c_int
  answers: list[bytes] = []
  failed = call(text.encode(), device_id, _ANSWER(answers.append))
  answer = answers[0].decode(errors="replace")
  if failed:
    raise ModelError(f"node '{node.name}' ({node.op_type}): its algorithms can't be listed: {answer}")
  return answer.splitlines()
