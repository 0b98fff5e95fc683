"""Where of -0, of which ONNX Runtime's CPU provider (1.31) may make +0: a value that is selected from the first operand
and equals 0 gives way to the 0 that stands for the second.

Behind a division that is an infinity of the wrong sign. So a model is judged in a form that restores the sign:

    y = (where(c, a, b) + 0) * (1 - 2 s),    s = 1 where -0 is selected: it is neither above nor below its negative,
                                             and above its reciprocal
"""

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

from .maxima import FLOATS


def with_signs(node: onnx.NodeProto, dtype: int, name: str) -> Iterator[onnx.NodeProto] | None:
  """The nodes in place of a Where of floats; None for any other node."""
  if node.op_type != "Where" or node.domain not in ("", "ai.onnx") or dtype not in FLOATS:
    return None
  return _spelled(node, dtype, name)


def _spelled(node: onnx.NodeProto, dtype: int, name: str) -> Iterator[onnx.NodeProto]:
  condition, *values = node.input
  yield helper.make_node("Not", [condition], [f"{name}/otherwise"])
  for index, (value, chosen) in enumerate(zip(values, (condition, f"{name}/otherwise"), strict=True)):
    at = f"{name}/{index}"
    yield helper.make_node("Neg", [value], [f"{at}/negated"])
    yield helper.make_node("Less", [value, f"{at}/negated"], [f"{at}/minus"])  # Equal takes floats from opset 11 on
    yield helper.make_node("Less", [f"{at}/negated", value], [f"{at}/plus"])
    yield helper.make_node("Or", [f"{at}/minus", f"{at}/plus"], [f"{at}/other"])
    yield helper.make_node("Not", [f"{at}/other"], [f"{at}/zero"])  # or NaN
    yield helper.make_node("Reciprocal", [value], [f"{at}/reciprocal"])
    yield helper.make_node("Less", [f"{at}/reciprocal", value], [f"{at}/below"])
    yield helper.make_node("And", [f"{at}/zero", f"{at}/below"], [f"{at}/negative"])
    yield helper.make_node("And", [f"{at}/negative", chosen], [f"{at}/chosen"])
  yield helper.make_node("Or", [f"{name}/0/chosen", f"{name}/1/chosen"], [f"{name}/negative"])
  yield helper.make_node("Cast", [f"{name}/negative"], [f"{name}/one"], to=dtype)
  yield helper.make_node("Add", [f"{name}/one", f"{name}/one"], [f"{name}/two"])
  one = helper.make_tensor("value", TensorProto.FLOAT, [], [1.0])
  yield helper.make_node("Constant", [], [f"{name}/unit/float"], value=one)
  yield helper.make_node("Cast", [f"{name}/unit/float"], [f"{name}/unit"], to=dtype)
  yield helper.make_node("Sub", [f"{name}/unit", f"{name}/two"], [f"{name}/sign"])
  bare = onnx.NodeProto()
  bare.CopyFrom(node)
  bare.output[0] = f"{name}/unsigned"
  yield bare
  yield helper.make_node("Sub", [f"{name}/unit", f"{name}/unit"], [f"{name}/nothing"])
  yield helper.make_node("Add", [bare.output[0], f"{name}/nothing"], [f"{name}/plus"])
  yield helper.make_node("Mul", [f"{name}/plus", f"{name}/sign"], [node.output[0]])
