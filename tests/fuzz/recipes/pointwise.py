"""Pointwise operators."""

import numpy as np

from ..evaluate import CONTRIB, to_onnx
from ..graph import BOOL, INT, UnfitError
from .table import glue

_UNARY = """
    Abs Neg Sign Relu Reciprocal Sqrt Exp Log Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh
    Atanh Erf Sigmoid Softplus Softsign HardSwish Mish Identity
"""
UNARY = _UNARY.split()
USUAL = ["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Erf", "Sqrt", "Identity", "HardSwish", "Softplus"]
ATTRIBUTES = {
  "LeakyRelu": ("alpha",),
  "Elu": ("alpha",),
  "Celu": ("alpha",),
  "Selu": ("alpha", "gamma"),
  "HardSigmoid": ("alpha", "beta"),
  "ThresholdedRelu": ("alpha",),
  "Shrink": ("bias", "lambd"),
  "Swish": ("alpha",),
}
INTEGER_UNARY = ["Abs", "Neg", "Sign", "Relu", "Identity", "BitwiseNot"]
ARITHMETIC = ["Add", "Sub", "Mul", "Div"]
COMPARISONS = ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]


def positive(g, x):
  """Its magnitude, so that roots and logarithms exist; now and then the value as it is."""
  return x if g.chance(0.1) else g.op("Abs", x)


def two(g, x, dtype=None):
  """The value and an operand that broadcasts with it, in either order."""
  operands = [x, g.fitting(x.shape, x.dtype if dtype is None else dtype)]
  return operands if g.chance(0.6) else operands[::-1]


@glue(6)
def unary(g):
  x = g.pick("main" if g.chance(0.85) else "float")
  op = g.choice(USUAL if g.chance(0.6) else UNARY)
  return g.op(op, positive(g, x) if op in ("Sqrt", "Log", "Reciprocal") else x)


@glue(3)
def unary_with_attributes(g):
  op = g.choice(ATTRIBUTES)
  given = {name: round(g.rng.uniform(0.05, 1.5), 2) for name in ATTRIBUTES[op] if g.chance(0.6)}
  if op == "Celu" and g.style.dtype != "fp32":
    op = "Elu"
  return g.op(op, g.pick(), **given)


@glue(1)
def gelu(g):
  x = g.pick()
  if g.style.dtype == "fp64":
    raise UnfitError("its constants are those of float32 in ONNX's definition and in ONNX Runtime")
  if g.opset >= 20 and g.chance(0.6):
    return g.op("Gelu", x, approximate=g.choice([None, "none", "tanh"]))
  op = g.choice(["Gelu", "FastGelu", "QuickGelu", "BiasGelu"])
  if op == "QuickGelu":
    return g.op(op, x, domain=CONTRIB, alpha=g.choice([None, 1.0, 1.702]))
  if op == "BiasGelu" or (op == "FastGelu" and g.chance(0.5) and x.rank):
    return g.op(op, x, g.weights(*x.shape[-1:]), domain=CONTRIB)
  return g.op(op, x, domain=CONTRIB)


@glue(7)
def arithmetic(g):
  x = g.pick("main" if g.chance(0.9) else "number")
  op = g.choice(ARITHMETIC)
  if op == "Div" and g.chance(0.7):
    return (
      g.op(op, g.fitting(x.shape, x.dtype), x)
      if x.is_float and g.chance(0.3)
      else g.op(op, x, g.constant(np.asarray(g.choice([2, 3, 4 if x.dtype.kind == "u" else -4]), x.dtype)))
    )
  return g.op(op, *two(g, x))


@glue(2)
def power(g):
  x = g.pick()
  exponent = g.choice([2.0, 2.0, 3.0, 0.5, -1.0, 1.0, 0.0, 1.5, -2.0])
  base = x if exponent in (2.0, 3.0, 1.0, 0.0) else positive(g, x)
  other = g.scalar(exponent)
  if g.opset >= 12 and exponent == int(exponent) and g.chance(0.3):
    other = g.constant(int(exponent), g.choice([np.int64, np.int32]))
  return g.op("Pow", base, other)


@glue(2)
def variadic(g):
  x = g.pick("main" if g.chance(0.8) or g.opset < 12 else "number")
  op = g.choice(["Min", "Max", "Sum", "Mean"])
  operands = [x, *(g.fitting(x.shape, x.dtype) for _ in range(g.choice([0, 1, 1, 2, 3])))]
  g.rng.shuffle(operands)
  return g.op(op, *operands)


@glue(2)
def clip(g):
  x = g.pick()
  low, high = g.choice([(0.0, 6.0), (-1.0, 1.0), (None, 2.0), (0.0, None), (None, None), (1.0, -1.0)])
  if g.opset < 11:
    return g.op("Clip", x, min=low, max=high)
  limits = [None if each is None else g.constant(each, x.dtype) for each in (low, high)]
  return g.op("Clip", x, *limits)


@glue(1.5)
def prelu(g):
  x = g.pick(ranks=range(1, 7))
  slope = g.choice([(1,), x.shape[1:2] + (1,) * (x.rank - 2), x.shape[-1:], ()])
  return g.op("PRelu", x, g.weights(*slope))


@glue(1)
def modulo(g):
  x = g.pick("int" if g.chance(0.6) else "main")
  if x.is_float:
    return g.op("Mod", x, g.scalar(g.choice([2.0, 1.5, -3.0])), fmod=1)
  return g.op("Mod", x, g.constant(g.choice([2, 3, 5]), x.dtype), fmod=g.choice([None, 0, 1]))


@glue(2.5)
def compare(g):
  x = g.pick("main" if g.chance(0.7) else "number")
  other = g.constant(np.asarray(0), x.dtype) if g.chance(0.5) else g.fitting(x.shape, x.dtype)
  return g.op(g.choice(COMPARISONS), *((x, other) if g.chance(0.7) else (other, x)))


@glue(1.5)
def logic(g):
  x = g.pick("bool")
  op = g.choice(["And", "Or", "Xor", "Not", "Equal"])
  return g.op(op, x) if op == "Not" else g.op(op, *two(g, x))


@glue(1)
def tests(g):
  x = g.pick()
  if g.chance(0.5):
    return g.op("IsNaN", x)
  signs = {"detect_negative": g.choice([None, 0, 1]), "detect_positive": g.choice([None, 0, 1])}
  return g.op("IsInf", x, **signs)


@glue(2.5)
def where(g):
  x = g.pick("any" if g.chance(0.2) else "main")
  mask = g.fitting(x.shape, BOOL)
  other = (
    g.scalar(g.choice([0.0, -1e4, 1.0])) if x.dtype == g.style.main and g.chance(0.4) else g.fitting(x.shape, x.dtype)
  )
  return g.op("Where", mask, *((x, other) if g.chance(0.5) else (other, x)))


@glue(2.5)
def cast(g):
  x = g.pick("any")
  targets = [g.style.main, g.style.main, g.style.other, INT, np.dtype(np.int32), BOOL, np.dtype(np.uint8)]
  dtype = g.choice(targets)
  if x.is_float and dtype.kind in "iu" and not np.isfinite(x.array).all():
    dtype = g.style.other  # what an infinite number is as an integer, nobody says
  if x.is_float and dtype == np.uint8:
    dtype = np.dtype(np.int32)  # what a number beyond an integer's range becomes, ONNX does not say
  if g.opset >= 15 and g.chance(0.25):
    return g.op("CastLike", x, g.pick("any", where=lambda value: value.dtype == dtype))
  return g.op("Cast", x, to=to_onnx(dtype))


@glue(1)
def round_trip(g):
  """A Cast there and back, which passes may not drop where it rounds."""
  x = g.pick("any")
  there = g.choice([g.style.other, g.style.main, np.dtype(np.int32), INT, BOOL])
  if x.is_float and there.kind in "iu" and not np.isfinite(x.array).all():
    there = g.style.other
  return g.op("Cast", g.op("Cast", x, to=to_onnx(there)), to=to_onnx(x.dtype))


@glue(1)
def integers(g):
  x = g.pick("int") if g.chance(0.7) else g.input(g.numbers([g.dim() for _ in range(g.choice([1, 2, 3]))], dtype=INT))
  op = g.choice(["unary", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", *ARITHMETIC[:3]])
  if op == "unary":
    return g.op(g.choice(INTEGER_UNARY), x)
  if op == "BitShift":
    wide = g.op("Cast", g.op("Abs", x), to=to_onnx(np.dtype(np.uint32)))
    return g.op(op, wide, g.constant(g.choice([0, 1, 3]), np.uint32), direction=g.choice(["LEFT", "RIGHT"]))
  return g.op(op, *two(g, x))


@glue(1)
def dropout(g):
  x = g.pick()
  if g.opset < 12:
    return g.op("Dropout", x, outputs=g.choice([1, 1, 2]), ratio=g.choice([None, 0.3]))
  ratio = g.choice([None, g.constant(0.4, np.float32) if g.style.dtype != "bf16" else None])
  training = g.constant(False) if g.chance(0.3) else None
  return g.op("Dropout", x, ratio, training, outputs=g.choice([1, 1, 2]))


@glue(1)
def leaf(g):
  rank = g.choice([0, 1, 2, 3, 3, 4, 4, 5, 6])
  dtype = g.choice([g.style.main] * 5 + [g.style.other, INT, np.dtype(np.int32), BOOL, np.dtype(np.uint8)])
  array = g.numbers([g.dim() for _ in range(rank)], dtype=dtype)
  return g.input(array) if g.chance(0.7) else g.add(g.constant(array).name, array, "constant")
