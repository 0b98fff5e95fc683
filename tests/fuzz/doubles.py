"""Operators that ONNX Runtime computes in double with the precision of float32: the form in which they are judged.

Its Shrink of double computes in float32, and the constants of its Gelu by tanh, FastGelu and HardSwish are float32
numbers (1.31.1); its Sigmoid of double has an absolute error of a rounding of 1, and so QuickGelu and Swish, of which
-40 gives 0. Ours compute in double throughout. A tolerance of float32 for what hangs on such a node would hide
any other mistake in double, so the node is spelled out, in the original as well as where the optimized model has it
still. Each has to load as it is before: the form runs where ONNX Runtime lacks the node's kernel, too.

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
from collections.abc import Callable, Collection, Iterator

import onnx
from onnx import TensorProto, helper

from ortplugin.graph.messages import walk_nodes

from .emulate import respelled
from .evaluate import CONTRIB

Spelling = Callable[[onnx.NodeProto, str], Iterator[onnx.NodeProto]]  # of a node, with a unique name


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
  """The model with these operators in double throughout; the model itself if it has none of them in double."""
  if not any(_is_rough(node) for node in walk_nodes(model)):
    return model
  return respelled(model, _spell) or model


def through_double(model: onnx.ModelProto) -> onnx.ModelProto | None:
  """The model with float32 nodes of small values computed in double; None if it has none."""
  return respelled(model, _widen)


def in_float(model: onnx.ModelProto, operators: Collection[str]) -> onnx.ModelProto:
  """The model with the double nodes of some operators computed in float32, as ONNX Runtime has no others of them."""

  def narrow(node: onnx.NodeProto, dtype: int, name: str) -> Iterator[onnx.NodeProto] | None:
    if dtype != TensorProto.DOUBLE or node.op_type not in operators:
      return None
    return _in_casts(node, name, lambda same, _: iter([same]), TensorProto.FLOAT)

  return respelled(model, narrow) or model


def _widen(node: onnx.NodeProto, dtype: int, name: str) -> Iterator[onnx.NodeProto] | None:
  spell = _SMALL.get((node.domain, node.op_type))
  if dtype != TensorProto.FLOAT or spell is None:
    return None
  return _in_casts(node, name, spell)


def _in_casts(
  node: onnx.NodeProto, name: str, spell: Callable[..., Iterator[onnx.NodeProto]], dtype: int = TensorProto.DOUBLE
) -> Iterator[onnx.NodeProto]:
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


def _is_rough(node: onnx.NodeProto) -> bool:
  if node.op_type == "Gelu" and node.domain == "":
    return any(each.name == "approximate" and each.s == b"tanh" for each in node.attribute)
  return (node.domain, node.op_type) in _ROUGH or (node.domain, node.op_type) == (CONTRIB, "FastGelu")


def _spell(node: onnx.NodeProto, dtype: int, name: str) -> Iterator[onnx.NodeProto] | None:
  if dtype != TensorProto.DOUBLE or not _is_rough(node):
    return None
  return _ROUGH.get((node.domain, node.op_type), _gelu)(node, name)


def _constant(name: str, value: float) -> onnx.NodeProto:
  return helper.make_node("Constant", [], [name], value=helper.make_tensor("value", TensorProto.DOUBLE, [], [value]))


def _shrink(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  given = {each.name: each.f for each in node.attribute}
  x, bias, lambd = node.input[0], given.get("bias", 0.0), given.get("lambd", 0.5)
  for which, value in (("zero", 0.0), ("bias", bias), ("low", -lambd), ("high", lambd)):
    yield _constant(f"{name}/{which}", value)
  yield helper.make_node("Less", [x, f"{name}/low"], [f"{name}/below"])
  yield helper.make_node("Greater", [x, f"{name}/high"], [f"{name}/above"])
  yield helper.make_node("Add", [x, f"{name}/bias"], [f"{name}/more"])
  yield helper.make_node("Sub", [x, f"{name}/bias"], [f"{name}/less"])
  yield helper.make_node("Where", [f"{name}/above", f"{name}/less", f"{name}/zero"], [f"{name}/right"])
  yield helper.make_node("Where", [f"{name}/below", f"{name}/more", f"{name}/right"], [node.output[0]])


def _hard_swish(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  for which, value in (("six", 6.0), ("half", 0.5), ("zero", 0.0), ("one", 1.0)):
    yield _constant(f"{name}/{which}", value)
  yield helper.make_node("Div", [node.input[0], f"{name}/six"], [f"{name}/sixth"])
  yield helper.make_node("Add", [f"{name}/sixth", f"{name}/half"], [f"{name}/line"])
  yield helper.make_node("Min", [f"{name}/line", f"{name}/one"], [f"{name}/below"])
  yield helper.make_node("Max", [f"{name}/below", f"{name}/zero"], [f"{name}/gate"])
  yield helper.make_node("Mul", [node.input[0], f"{name}/gate"], [node.output[0]])


def _sigmoid(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  yield from _logistic(node.input[0], node.output[0], name)


def _logistic(x: str, y: str, name: str) -> Iterator[onnx.NodeProto]:
  """1 / (1 + e^-x): of double, too, ONNX Runtime's Sigmoid of -40 is 0."""
  yield _constant(f"{name}/unit", 1.0)
  yield helper.make_node("Neg", [x], [f"{name}/negated"])
  yield helper.make_node("Exp", [f"{name}/negated"], [f"{name}/exp"])
  yield helper.make_node("Add", [f"{name}/unit", f"{name}/exp"], [f"{name}/divisor"])
  yield helper.make_node("Div", [f"{name}/unit", f"{name}/divisor"], [y])


def _swish(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  """Of ONNX with alpha 1, and QuickGelu with alpha 1.702, where they don't say."""
  usual = 1.0 if node.op_type == "Swish" else helper.make_attribute("alpha", 1.702).f
  yield _constant(f"{name}/alpha", next((each.f for each in node.attribute if each.name == "alpha"), usual))
  yield helper.make_node("Mul", [node.input[0], f"{name}/alpha"], [f"{name}/scaled"])
  yield from _logistic(f"{name}/scaled", f"{name}/gate", name)
  yield helper.make_node("Mul", [node.input[0], f"{name}/gate"], [node.output[0]])


def _elu(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  """gamma (max(x, 0) + alpha (e^(min(x, 0) / scale) - 1)), by operators that every opset has in double; the scale is
  alpha in a Celu and 1 in an Elu and a Selu"""
  values = {"alpha": 1.0, "gamma": 1.0} if node.op_type != "Selu" else {"alpha": 1.67326319, "gamma": 1.05070102}
  values |= {each.name: each.f for each in node.attribute}
  scale = values["alpha"] if node.op_type == "Celu" else 1.0
  for which, value in (("one", 1.0), ("scale", scale), *values.items()):
    yield _constant(f"{name}/{which}", value)
  x = node.input[0]
  yield helper.make_node("Neg", [x], [f"{name}/negated"])
  yield helper.make_node("Relu", [f"{name}/negated"], [f"{name}/depth"])
  yield helper.make_node("Neg", [f"{name}/depth"], [f"{name}/below"])
  yield helper.make_node("Div", [f"{name}/below", f"{name}/scale"], [f"{name}/exponent"])
  yield helper.make_node("Exp", [f"{name}/exponent"], [f"{name}/exp"])
  yield helper.make_node("Sub", [f"{name}/exp", f"{name}/one"], [f"{name}/less"])
  yield helper.make_node("Mul", [f"{name}/less", f"{name}/alpha"], [f"{name}/negative"])
  yield helper.make_node("Relu", [x], [f"{name}/positive"])
  yield helper.make_node("Add", [f"{name}/positive", f"{name}/negative"], [f"{name}/sum"])
  yield helper.make_node("Mul", [f"{name}/sum", f"{name}/gamma"], [node.output[0]])


def _gelu(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  x = node.input[0]
  if len(node.input) > 1 and node.input[1]:
    yield helper.make_node("Add", [x, node.input[1]], [f"{name}/x"])
    x = f"{name}/x"
  for which, value in (("half", 0.5), ("one", 1.0), ("cubic", 0.044715), ("root", math.sqrt(2 / math.pi))):
    yield _constant(f"{name}/{which}", value)
  for op, left, right, made in (
      ("Mul", x, x, "square"), ("Mul", f"{name}/square", x, "cube"), ("Mul", f"{name}/cube", f"{name}/cubic", "rest"),
      ("Add", x, f"{name}/rest", "sum"), ("Mul", f"{name}/sum", f"{name}/root", "scaled"),
  ):  # fmt: skip
    yield helper.make_node(op, [left, right], [f"{name}/{made}"])
  yield helper.make_node("Tanh", [f"{name}/scaled"], [f"{name}/tanh"])
  yield helper.make_node("Add", [f"{name}/tanh", f"{name}/one"], [f"{name}/gate"])
  yield helper.make_node("Mul", [x, f"{name}/half"], [f"{name}/halved"])
  yield helper.make_node("Mul", [f"{name}/halved", f"{name}/gate"], [node.output[0]])


# erfc(z) = t e^(-z^2 + polynomial in t), t = 1 / (1 + z / 2), to 1.2e-7 of itself (Numerical Recipes, erfcc), the
# highest coefficient first.
_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
         -1.26551223)  # fmt: skip


def _exact_gelu(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  """x Phi(x), of the input and a bias if there is one. ONNX Runtime has no Erf of double."""
  x = node.input[0]
  if len(node.input) > 1 and node.input[1]:
    yield helper.make_node("Add", [x, node.input[1]], [f"{name}/x"])
    x = f"{name}/x"
  for which, value in (("half", 0.5), ("one", 1.0), ("zero", 0.0), ("root", math.sqrt(0.5))):
    yield _constant(f"{name}/{which}", value)
  for index, value in enumerate(_ERFC):
    yield _constant(f"{name}/c{index}", value)

  def step(op: str, made: str, *inputs: str) -> onnx.NodeProto:
    return helper.make_node(op, [each if each == x else f"{name}/{each}" for each in inputs], [f"{name}/{made}"])

  yield step("Abs", "magnitude", x)
  yield step("Mul", "z", "magnitude", "root")
  yield step("Mul", "half z", "z", "half")
  yield step("Add", "divisor", "half z", "one")
  yield step("Div", "t", "one", "divisor")
  total = "c0"
  for index in range(1, len(_ERFC)):
    yield step("Mul", f"product{index}", total, "t")
    yield step("Add", f"sum{index}", f"product{index}", f"c{index}")
    total = f"sum{index}"
  yield step("Mul", "square", "z", "z")
  yield step("Sub", "exponent", total, "square")
  yield step("Exp", "power", "exponent")
  yield step("Mul", "erfc", "power", "t")
  yield step("Mul", "tail", "erfc", "half")
  yield step("Sub", "rest", "one", "tail")
  yield step("Less", "negative", x, "zero")  # Where is none before opset 9
  yield helper.make_node("Cast", [f"{name}/negative"], [f"{name}/of tail"], to=TensorProto.DOUBLE)
  yield step("Sub", "of rest", "one", "of tail")
  yield step("Mul", "left", "of tail", "tail")
  yield step("Mul", "right", "of rest", "rest")
  yield step("Add", "share", "left", "right")
  yield helper.make_node("Mul", [x, f"{name}/share"], [node.output[0]])


def _either_gelu(node: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
  yield from (_gelu if _is_rough(node) else _exact_gelu)(node, name)


_ROUGH = {("", "Shrink"): _shrink, ("", "HardSwish"): _hard_swish, ("", "Sigmoid"): _sigmoid, ("", "Swish"): _swish,
          (CONTRIB, "QuickGelu"): _swish}  # fmt: skip
_SMALL = {("", "Sigmoid"): _sigmoid, ("", "Swish"): _swish, (CONTRIB, "QuickGelu"): _swish, ("", "Elu"): _elu,
          ("", "Celu"): _elu, ("", "Selu"): _elu, ("", "Gelu"): _either_gelu, (CONTRIB, "Gelu"): _exact_gelu,
          (CONTRIB, "BiasGelu"): _exact_gelu, (CONTRIB, "FastGelu"): _gelu}  # fmt: skip
