"""Operators that ONNX Runtime computes in double with the precision of float32: the form in which they are judged.

Its Shrink of double computes in float32, as from opset 21 on the statistics of its GroupNormalization do, and the
constants of its Gelu by tanh, FastGelu and HardSwish are float32 numbers (1.31.1); its Sigmoid of double has an
absolute error of a rounding of 1, and so QuickGelu and Swish, of which -40 gives 0. Ours compute in double throughout.
A tolerance of float32 for what hangs on such a node would hide any other mistake in double, so the node is spelled out,
in the original as well as where the optimized model has it still. Each has to load as it is before: the form runs where
ONNX Runtime lacks the node's kernel, too.

    Shrink:          y = x < -lambd ? x + bias : x > lambd ? x - bias : 0
    Sigmoid:         y = 1 / (1 + e^-x)
    HardSwish:       y = x max(0, min(1, x / 6 + 0.5))
    Gelu, FastGelu:  y = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

In float32 some of its kernels have an absolute error of a rounding of 1, however small y is: Sigmoid of -14 is 7.7e-7
for 8.3e-7, and so Swish, QuickGelu, every Gelu, Elu, Celu and Selu. Where a whole output is that small, or is a
comparison with x, what it gives with these nodes computed in double (`through_double`) tells how far off the original
is itself.
"""

import math

import onnx
from onnx import TensorProto, helper

from ortplugin.graph import walk_nodes

from .emulate import respelled, spelled
from .evaluate import CONTRIB


def in_double(model):
  """The model with these operators in double throughout; the model itself if it has none of them in double."""
  if not any(_is_rough(node) for node in walk_nodes(model)):
    return model
  return respelled(model, _spell) or model


def through_double(model):
  """The model with float32 nodes of small values computed in double; None if it has none."""
  return respelled(model, _widen)


def in_float(model, operators):
  """The model with the double nodes of some operators computed in float32, as ONNX Runtime has no others of them."""

  def narrow(node, dtype, name):
    if dtype != TensorProto.DOUBLE or node.op_type not in operators:
      return None
    return _in_casts(node, name, lambda same, _: iter([same]), TensorProto.FLOAT)

  return respelled(model, narrow) or model


def _widen(node, dtype, name):
  spell = _SMALL.get((node.domain, node.op_type))
  if dtype != TensorProto.FLOAT or spell is None:
    return None
  return _in_casts(node, name, spell)


def _in_casts(node, name, spell, dtype=TensorProto.DOUBLE):
  """What `spell` makes of the node in `dtype`; around it, its inputs and its output have the other dtype."""
  wide = onnx.NodeProto()
  wide.CopyFrom(node)
  for index, source in enumerate(node.input):
    if source:
      wide.input[index] = f"{name}/in{index}"
      yield helper.make_node("Cast", [source], [wide.input[index]], to=dtype)
  wide.output[0] = f"{name}/out"
  yield from spell(wide, name)
  back = TensorProto.FLOAT if dtype == TensorProto.DOUBLE else TensorProto.DOUBLE
  yield helper.make_node("Cast", [wide.output[0]], [node.output[0]], to=back)


def _is_rough(node):
  if node.op_type == "Gelu" and node.domain == "":
    return any(each.name == "approximate" and each.s == b"tanh" for each in node.attribute)
  return (node.domain, node.op_type) in _ROUGH or (node.domain, node.op_type) == (CONTRIB, "FastGelu")


def _spell(node, dtype, name):
  if dtype != TensorProto.DOUBLE or not _is_rough(node):
    return None
  return _ROUGH.get((node.domain, node.op_type), _gelu)(node, name)


def _constant(name, value):
  return helper.make_node("Constant", [], [name], value=helper.make_tensor("value", TensorProto.DOUBLE, [], [value]))


def _shrink(node, name):
  given = {each.name: each.f for each in node.attribute}
  lambd = given.get("lambd", 0.5)
  for which, value in (("bias", given.get("bias", 0.0)), ("low", -lambd), ("high", lambd)):
    yield _constant(f"{name}/{which}", value)
  yield from spelled(
    """zero = double {0}  below = Less(x, low)  above = Greater(x, high)
    more = Add(x, bias)  less = Sub(x, bias)  right = Where(above, less, zero)  y = Where(below, more, right)""",
    name,
    x=node.input[0],
    y=node.output[0],
  )


def _hard_swish(node, name):
  yield from spelled(
    """six = double {6}  half = double {0.5}
    zero = double {0}  one = double {1}
    sixth = Div(x, six)  line = Add(sixth, half)  below = Min(line, one)  gate = Max(below, zero)  y = Mul(x, gate)""",
    name,
    x=node.input[0],
    y=node.output[0],
  )


def _sigmoid(node, name):
  yield from spelled(_LOGISTIC, name, x=node.input[0], y=node.output[0])


# 1 / (1 + e^-x): of double, too, ONNX Runtime's Sigmoid of -40 is 0.
_LOGISTIC = """unit = double {1}  negated = Neg(x)  exp = Exp(negated)
  divisor = Add(unit, exp)  y = Div(unit, divisor)"""


def _swish(node, name):
  """Of ONNX with alpha 1, and QuickGelu with alpha 1.702, where they don't say."""
  usual = 1.0 if node.op_type == "Swish" else helper.make_attribute("alpha", 1.702).f
  yield _constant(f"{name}/alpha", next((each.f for each in node.attribute if each.name == "alpha"), usual))
  yield from spelled("scaled = Mul(x, alpha)", name, x=node.input[0])
  yield from spelled(_LOGISTIC, name, x=f"{name}/scaled", y=f"{name}/gate")
  yield from spelled("y = Mul(x, gate)", name, x=node.input[0], y=node.output[0])


def _elu(node, name):
  """gamma (max(x, 0) + alpha (e^(min(x, 0) / scale) - 1)), by operators that every opset has in double; the scale is
  alpha in a Celu and 1 in an Elu and a Selu"""
  values = {"alpha": 1.0, "gamma": 1.0} if node.op_type != "Selu" else {"alpha": 1.67326319, "gamma": 1.05070102}
  values |= {each.name: each.f for each in node.attribute}
  scale = values["alpha"] if node.op_type == "Celu" else 1.0
  for which, value in (("one", 1.0), ("scale", scale), *values.items()):
    yield _constant(f"{name}/{which}", value)
  yield from spelled(
    """negated = Neg(x)  depth = Relu(negated)  below = Neg(depth)  exponent = Div(below, scale)
    exp = Exp(exponent)  less = Sub(exp, one)  negative = Mul(less, alpha)
    positive = Relu(x)  sum = Add(positive, negative)  y = Mul(sum, gamma)""",
    name,
    x=node.input[0],
    y=node.output[0],
  )


def _with_bias(node, name):
  """The value that a Gelu is of, and what adds the bias to it, if there is one."""
  if len(node.input) < 2 or not node.input[1]:
    return node.input[0], []
  return f"{name}/x", [helper.make_node("Add", node.input[:2], [f"{name}/x"])]


def _gelu(node, name):
  x, before = _with_bias(node, name)
  yield from before
  yield _constant(f"{name}/root", math.sqrt(2 / math.pi))
  yield from spelled(
    """half = double {0.5}  one = double {1}
    cubic = double {0.044715}
    square = Mul(x, x)  cube = Mul(square, x)  rest = Mul(cube, cubic)  sum = Add(x, rest)  scaled = Mul(sum, root)
    tanh = Tanh(scaled)  gate = Add(tanh, one)  halved = Mul(x, half)  y = Mul(halved, gate)""",
    name,
    x=x,
    y=node.output[0],
  )


# erfc(z) = t e^(-z^2 + polynomial in t), t = 1 / (1 + z / 2), to 1.2e-7 of itself (Numerical Recipes, erfcc), the
# highest coefficient first.
_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
         -1.26551223)  # fmt: skip


def _exact_gelu(node, name):
  """x Phi(x), of the input and a bias if there is one. ONNX Runtime has no Erf of double."""
  x, before = _with_bias(node, name)
  yield from before
  last = len(_ERFC) - 1
  yield _constant(f"{name}/root", math.sqrt(0.5))
  for index, value in enumerate(_ERFC):
    yield _constant(f"{name}/{'c' if index else 'sum'}{index}", value)
  horner = "  ".join(f"p{i} = Mul(sum{i - 1}, t)  sum{i} = Add(p{i}, c{i})" for i in range(1, last + 1))
  # Where is none before opset 9.
  yield from spelled(
    f"""half = double {{0.5}}  one = double {{1}}
    zero = double {{0}}
    magnitude = Abs(x)  z = Mul(magnitude, root)  half_z = Mul(z, half)  divisor = Add(half_z, one)
    t = Div(one, divisor)  {horner}  square = Mul(z, z)  exponent = Sub(sum{last}, square)
    power = Exp(exponent)  erfc = Mul(power, t)  tail = Mul(erfc, half)  rest = Sub(one, tail)
    negative = Less(x, zero)  of_tail = Cast<to={TensorProto.DOUBLE}>(negative)  of_rest = Sub(one, of_tail)
    left = Mul(of_tail, tail)  right = Mul(of_rest, rest)  share = Add(left, right)  y = Mul(x, share)""",
    name,
    x=x,
    y=node.output[0],
  )


def _either_gelu(node, name):
  yield from (_gelu if _is_rough(node) else _exact_gelu)(node, name)


def _group_norm(node, name):
  """The scale's length is that of the groups before opset 21, then that of the channels."""
  given = {each.name: each for each in node.attribute}
  epsilon = given.get("epsilon", helper.make_attribute("epsilon", 1e-5)).f
  yield _constant(f"{name}/epsilon", epsilon)
  yield from spelled(
    f"""zero = int64[1] {{0}}  one = int64[1] {{1}}
    last = int64[1] {{-1}}  groups = int64[1] {{{given["num_groups"].i}}}
    shape = Shape(x)  images = Gather(shape, zero)  grouped = Concat<axis=0>(images, groups, last)
    rows = Reshape(x, grouped)  mean = ReduceMean(rows, last)  less = Sub(rows, mean)  square = Mul(less, less)
    variance = ReduceMean(square, last)  more = Add(variance, epsilon)  deviation = Sqrt(more)
    normal = Div(less, deviation)  count = Shape(scale)  spread = Concat<axis=0>(images, count, last)
    wide = Reshape(normal, spread)  factor = Unsqueeze(scale, one)  offset = Unsqueeze(bias, one)
    scaled = Mul(wide, factor)  moved = Add(scaled, offset)  y = Reshape(moved, shape)""",
    name,
    **dict(zip(("x", "scale", "bias"), node.input, strict=True)),
    y=node.output[0],
  )


_ROUGH = {
  ("", "GroupNormalization"): _group_norm,
  ("", "Shrink"): _shrink,
  ("", "HardSwish"): _hard_swish,
  ("", "Sigmoid"): _sigmoid,
  ("", "Swish"): _swish,
  (CONTRIB, "QuickGelu"): _swish,
}
_SMALL = {
  ("", "Sigmoid"): _sigmoid,
  ("", "Swish"): _swish,
  (CONTRIB, "QuickGelu"): _swish,
  ("", "Elu"): _elu,
  ("", "Celu"): _elu,
  ("", "Selu"): _elu,
  ("", "Gelu"): _either_gelu,
  (CONTRIB, "Gelu"): _exact_gelu,
  (CONTRIB, "BiasGelu"): _exact_gelu,
  (CONTRIB, "FastGelu"): _gelu,
}
