"""What the tests of matrix products share: models in half precision with their weights."""

import numpy as np
from onnx import numpy_helper
from pass_helpers import add_weights, model, run_pass

DTYPE = np.dtype(np.float16)


def weighted(text, weights, opset=17, half=True):
  """A model from ONNX's textual syntax with initializers of these shapes; `f` stands for float16 (or float)."""
  made = model(text.replace("f[", "float16[" if half else "float["), opset, ir=8)
  for number, (name, shape) in enumerate(weights.items()):
    values = np.random.default_rng(number).standard_normal(shape) / 4
    add_weights(made, **{name: np.asarray(values, DTYPE if half else np.float32)})
  return made


def inputs_of(optimized, op="FusedMatMul"):
  return [list(node.input) for node in optimized.graph.node if node.op_type == op]


def constant(optimized, name):
  return next(numpy_helper.to_array(each) for each in optimized.graph.initializer if each.name == name)


def attribute(node, name):
  return next(int(each.i) for each in node.attribute if each.name == name)


def assert_stays(original, rewrite, reason):
  _, result = run_pass(original, rewrite, changes=0)
  assert any(reason in miss.reason for miss in result.near_misses), result.near_misses
