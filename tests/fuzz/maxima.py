"""Maxima and minima of NaN, which ONNX leaves open: what is compared where ONNX Runtime's providers disagree.

docs/operators.md has what ONNX Runtime's CPU provider makes of a NaN in a pool or a scatter. ReduceMin is as ReduceMax;
of more elements, both depend on how their axis lies in memory. So a model whose values hang on it is judged in a form
in which these operators propagate NaN:

    y = pool(x) * r / r,    r = 1 - pool(1 where x is NaN, else 0)

which is exact where nothing is NaN. Both models get this form, the optimized one for what it has left of ONNX's nodes.

Hardmax (CPU, 1.32) of a row with a NaN finds its maximum or none by the axis and how much lies behind it. Here such a
row is NaN:

    y = Hardmax(x) * s / s,     s = Softmax(0 / (1 where x is a number, else 0)), which has the axes of Hardmax
"""

import onnx
from onnx import TensorProto

from .emulate import spelled

# What becomes of a pool with channels last is a ReduceMax.
POOLS = ("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin")
SCATTERS = ("ScatterND", "ScatterElements")
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def propagating(node, dtype, name):
  """The nodes in place of one whose maximum of NaN is open; None for any other, and where the dtype is unknown."""
  if dtype in FLOATS and node.op_type == "Hardmax" and node.domain in ("", "ai.onnx"):
    return _hardmax(node, dtype, name)
  return _spelled(node, dtype, name) if dtype in FLOATS and _is_open(node) else None


def _hardmax(node, dtype, name):
  yield from spelled(_LIMITS, name)
  yield from _number(node.input[0], name, name)
  yield from spelled("nothing = Div(zero, one)", name)
  bare, marker = onnx.NodeProto(), onnx.NodeProto()
  bare.CopyFrom(node)
  marker.CopyFrom(node)
  marker.name, marker.op_type = "", "Softmax"
  bare.output[0], marker.input[0], marker.output[0] = f"{name}/bare", f"{name}/nothing", f"{name}/none"
  yield from (bare, marker)
  yield from _times_unit(node, dtype, name)


def _is_open(node):
  if node.domain not in ("", "ai.onnx"):
    return False
  if node.op_type in POOLS:
    return True
  reductions = [each.s for each in node.attribute if each.name == "reduction"]
  return node.op_type in SCATTERS and reductions in ([b"max"], [b"min"])


def _spelled(node, dtype, name):
  yield from spelled(_LIMITS, name)
  marks = list(node.input)
  for index in [0] if node.op_type in POOLS else [0, 2]:
    at = f"{name}/{index}/is"
    yield from _number(node.input[index], at, name)
    yield from spelled("nan = Sub(unit, one)", at, unit=f"{name}/unit")
    marks[index] = f"{at}/nan"
  bare, marker = onnx.NodeProto(), onnx.NodeProto()
  bare.CopyFrom(node)
  marker.CopyFrom(node)
  marker.name, marker.op_type = "", "ReduceMax" if node.op_type == "ReduceMin" else node.op_type
  bare.output[0] = f"{name}/bare"
  del marker.input[:], marker.output[:]
  marker.input.extend(marks)
  marker.output.append(f"{name}/any")
  for attribute in marker.attribute:
    if attribute.name == "reduction":
      attribute.s = b"max"
  yield from (bare, marker)
  yield from spelled("none = Sub(unit, any)", name)
  yield from _times_unit(node, dtype, name)


_LIMITS = "zero = float {0}  unit = float {1}"


def _number(source, at, name):
  """`at`/one: 1 where the source is a number, else 0. Greater, Less and Or are in every opset, IsNaN from 9 on."""
  yield from spelled(
    """wide = Cast<to=1>(x)  above = Greater(wide, zero)  below = Less(wide, unit)  number = Or(above, below)
    one = Cast<to=1>(number)""",
    at,
    x=source,
    zero=f"{name}/zero",
    unit=f"{name}/unit",
  )


def _times_unit(node, dtype, name):
  """The node's value: `name`/bare times `name`/none / `name`/none, which is 1 or NaN."""
  text = f"factor = Div(none, none)  narrow = Cast<to={dtype}>(factor)  y = Mul(bare, narrow)"
  yield from spelled(text, name, y=node.output[0])
