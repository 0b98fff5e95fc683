"""The sign of a maximum of 0 and -0, which IEEE 754 and ONNX leave open and ONNX Runtime's vectors take by chance.

So is that of activations at -0: by ONNX's formula a Celu is a sum of a maximum and a minimum, whoever computes it.

Behind a division it is that of an infinity. `signed` is a model in which each such result that is 0 has one sign, which
is one of two ways to compute it.
"""

import onnx

from .emulate import respelled, spelled
from .maxima import FLOATS

MAXIMA = ("Clip", "Max", "Min", "Relu")
ACTIVATIONS = (
    "Celu", "Elu", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Selu", "Shrink", "Softsign", "ThresholdedRelu"
)  # fmt: skip


def signed(model, negative):
  """The model in which what is 0 of maxima and minima is -0, or +0; None if it has none."""

  def spell(node, dtype, name):
    is_open = node.op_type in MAXIMA + ACTIVATIONS and node.domain in ("", "ai.onnx") and dtype in FLOATS
    return _spelled(node, dtype, name, negative) if is_open else None

  return respelled(model, spell)


def _spelled(node, dtype, name, negative):
  """y + 0 is +0 for both zeros; -(-y + 0) is -0."""
  bare = onnx.NodeProto()
  bare.CopyFrom(node)
  bare.output[0] = f"{name}/open"
  yield bare
  way = "turned = Neg(open)  plus = Add(turned, zero)  y = Neg(plus)" if negative else "y = Add(open, zero)"
  yield from spelled(f"wide = float {{0}}  zero = Cast<to={dtype}>(wide)  {way}", name, y=node.output[0])
