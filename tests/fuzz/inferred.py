"""The shapes that `annotate` believes of an original's values, against those that ONNX Runtime computes.

A wrong one need not show in outputs: it takes a pass that relies on it.
"""

import numpy as np
import onnx

from ortplugin.errors import ModelError
from ortplugin.graph import import_model
from ortplugin.model.annotate import annotate
from ortplugin.model.upgrade import upgrade


def contradiction(model, values):
  """What is believed of a value that is not so; "" if nothing is. `values`: of one run, inputs included."""
  bare = onnx.ModelProto()
  bare.CopyFrom(model)
  # What the model says is the model's: onnx's inference, which wrote some of it, is wrong behind a Slice before opset
  # 11 and a Concat beside an empty tensor.
  del bare.graph.value_info[:]
  for dim in (each for output in bare.graph.output for each in output.type.tensor_type.shape.dim):
    dim.Clear()
  try:
    graph = import_model(upgrade(bare))
  except ModelError:
    return ""
  annotate(graph)
  lengths = {}
  for tensor in [*graph.inputs, *(tensor for node in graph.nodes for tensor in node.outputs)]:
    value = values.get(tensor.name)
    if tensor.shape is None or not isinstance(value, np.ndarray):
      continue
    known = [
      lengths.setdefault(d, n) if isinstance(d, str) else d for d, n in zip(tensor.shape, value.shape, strict=False)
    ]
    if len(tensor.shape) != value.ndim or any(
      d is not None and d != n for d, n in zip(known, value.shape, strict=True)
    ):
      op = tensor.inputs[0].op if tensor.inputs else "input"
      return f"'{tensor.name}' ({op}) is taken for {tuple(tensor.shape)} and is {value.shape}"
  return ""
