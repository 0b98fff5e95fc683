"""Where of -0, of which ONNX Runtime's CPU provider (1.31) may make +0: a value that is selected from the first operand
and equals 0 gives way to the 0 that stands for the second.

Behind a division that is an infinity of the wrong sign. So a model is judged in a form that restores the sign:

    y = (where(c, a, b) + 0) * (1 - 2 s),    s = 1 where -0 is selected: it is neither above nor below its negative,
                                             and above its reciprocal
"""

import onnx

from .emulate import spelled
from .maxima import FLOATS


def with_signs(node, dtype, name):
  """The nodes in place of a Where of floats; None for any other node."""
  if node.op_type != "Where" or node.domain not in ("", "ai.onnx") or dtype not in FLOATS:
    return None
  return _spelled(node, dtype, name)


def _spelled(node, dtype, name):
  condition, *values = node.input
  yield from spelled("otherwise = Not(c)", name, c=condition)
  for index, (value, chosen) in enumerate(zip(values, (condition, f"{name}/otherwise"), strict=True)):
    yield from spelled(  # Equal takes floats from opset 11 on; what is neither below nor above is 0, or NaN
      """negated = Neg(x)  minus = Less(x, negated)  plus = Less(negated, x)  other = Or(minus, plus)
      zero = Not(other)  reciprocal = Reciprocal(x)  below = Less(reciprocal, x)  negative = And(zero, below)
      chosen = And(negative, given)""",
      f"{name}/{index}",
      x=value,
      given=chosen,
    )
  bare = onnx.NodeProto()
  bare.CopyFrom(node)
  bare.output[0] = f"{name}/unsigned"
  yield bare
  yield from spelled(
    f"""negative = Or(first, second)  one = Cast<to={dtype}>(negative)  two = Add(one, one)
    wide = float {{1}}  unit = Cast<to={dtype}>(wide)  sign = Sub(unit, two)
    nothing = Sub(unit, unit)  plus = Add(unsigned, nothing)  y = Mul(plus, sign)""",
    name,
    first=f"{name}/0/chosen",
    second=f"{name}/1/chosen",
    y=node.output[0],
  )
