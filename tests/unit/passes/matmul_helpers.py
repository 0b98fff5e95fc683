"""What the tests of matrix products share: models in half precision with their weights."""

import numpy as np
import onnx
from onnx import numpy_helper
from onnx_models import add_weights
from pass_helpers import model

DTYPE = np.dtype(np.float16)


def weighted(text: str, weights: dict[str, tuple[int, ...]], opset: int = 17, half: bool = True) -> onnx.ModelProto:
  """A model from ONNX's textual syntax with initializers of these shapes; `f` stands for float16 (or float)."""
  made = model(text.replace("f[", "float16[" if half else "float["), opset, ir=8)
  for number, (name, shape) in enumerate(weights.items()):
    values = np.random.default_rng(number).standard_normal(shape) / 4
    add_weights(made, **{name: np.asarray(values, DTYPE if half else np.float32)})
  return made


def inputs_of(optimized: onnx.ModelProto, op: str = "FusedMatMul") -> list[list[str]]:
  return [list(node.input) for node in optimized.graph.node if node.op_type == op]


def constant(optimized: onnx.ModelProto, name: str) -> np.ndarray:
  return next(numpy_helper.to_array(each) for each in optimized.graph.initializer if each.name == name)


def attribute(node: onnx.NodeProto, name: str) -> int:
  return next(int(each.i) for each in node.attribute if each.name == name)
