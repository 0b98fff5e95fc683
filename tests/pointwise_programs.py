"""Random pointwise programs: how they are made, and how much a result may be off."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from onnx import helper

from ortplugin.ops.pointwise_reference import evaluate, rounded
from ortplugin.program import (
  DTYPES,
  FLOATING,
  INTEGERS,
  NUMPY_DTYPES,
  ONNX_DTYPES,
  OPERATORS,
  Parameter,
  Program,
  Statement,
  drop_unused,
  integer_range,
)

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
OPSET = 20

# ---- strategies

COMMON = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Where", "Clip", "Cast", "Sigmoid", "Less", "Abs")
POINTWISE = tuple(name for name, spec in OPERATORS.items() if not spec.core)
FLOAT_LITERALS = (0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -0.25, 0.1, 1e-3, 100.0, -2.5, -0.0, np.inf, -np.inf, np.nan)
ALPHAS = (0.01, 0.2, 0.5, 1.0, 1.702, -0.5, 2.0)
STYLES = ("near", "near", "positive", "whole", "special")


_NUMBERS = st.integers(0, 119)
_OPERATORS = st.sampled_from((*POINTWISE, *COMMON * 5))


def pick(draw, choices):
  """One of a few choices; building a strategy for each of them takes longer than all the rest."""
  return choices[draw(_NUMBERS) % len(choices)]


@dataclass(frozen=True)
class Example:
  program: Program
  shapes: tuple[Shape, ...]
  styles: tuple[str, ...]
  seed: int
  copied: bool  # the inputs are values that the graph makes, whose memory the operator may be given for its outputs

  def inputs(self):
    rng = np.random.default_rng(self.seed)
    return [
      made(rng, parameter.dtype, shape, style)
      for parameter, shape, style in zip(self.program.parameters, self.shapes, self.styles, strict=True)
    ]

  def feeds(self):
    return {p.name: array for p, array in zip(self.program.parameters, self.inputs(), strict=True)}


def made(rng, dtype, shape, style):
  """near: about 0; positive; whole: whole numbers, of an integer dtype all of its range; special: NaN, inf, ends."""
  numpy = NUMPY_DTYPES[dtype]
  if dtype == "bool":
    return np.asarray(rng.random(shape) < 0.5)
  if dtype in INTEGERS:
    low, high = integer_range(dtype)
    if style in ("near", "positive"):
      return rng.integers(1 if style == "positive" else max(low, -9), 10, shape).astype(numpy)
    numbers = np.asarray(rng.integers(low, high, shape, numpy, endpoint=True))
    ends = rng.choice(np.array([low, low + 1, 0, 1, high - 1, high], numpy), shape)
    return np.where(rng.random(shape) < 0.3, ends, numbers) if style == "special" else numbers
  numbers = np.asarray(rng.uniform(0.1 if style == "positive" else -3, 3, shape))
  if style == "whole":
    numbers = np.rint(numbers * 3)
  if style == "special":
    chosen = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -1.0, 300.0, -300.0, 1e-6, 30000.0], shape)
    numbers = np.where(rng.random(shape) < 0.5, chosen, numbers)
  return np.asarray(numbers).astype(numpy)


@st.composite
def shapes_of(draw, count):
  """Shapes that broadcast: of one whole shape, some with axes of length 1, some without the first axes."""
  whole = pick(draw, [(), (1,), (7,), (64,), (3, 5), (2, 33), (4, 1, 6), (2, 3, 4), (1, 130), (2, 1, 3, 5),
                      (3, 2, 2, 8), (0, 3), (2, 2, 1, 2, 9), (2, 4111)])  # fmt: skip
  shapes = []
  for _ in range(count):
    kind = pick(draw, ["whole", "whole", "ones", "short", "scalar"])
    shape = tuple(1 if kind == "ones" and pick(draw, [False, True]) else n for n in whole)
    shapes.append(shape[pick(draw, range(len(shape) + 1)) :] if kind == "short" else () if kind == "scalar" else shape)
  return tuple(shapes)


class _Pool:
  def __init__(self, draw, parameters):
    self.draw = draw
    self.dtypes = {parameter.name: parameter.dtype for parameter in parameters}
    self.statements = []

  def names_of(self, dtypes):
    return [name for name, dtype in self.dtypes.items() if dtype in dtypes]

  def add(self, op, operands, attributes, dtype):
    name = f"v{len(self.statements)}"
    self.statements.append(Statement(name, op, tuple(operands), tuple(attributes.items())))
    self.dtypes[name] = dtype
    return name

  def value(self, dtypes):
    """A value of one of the dtypes, by a Cast if there is none; the later ones are likelier."""
    found = self.names_of(dtypes)
    if not found:
      to = pick(self.draw, dtypes)
      return self.add("Cast", [pick(self.draw, list(self.dtypes))], {"to": to}, to)
    return pick(self.draw, [*found, *found[-3:]])

  def literal(self, dtype):
    if dtype in FLOATING:
      return pick(self.draw, FLOAT_LITERALS)
    if dtype == "bool":
      return float(pick(self.draw, (False, True)))
    low, high = integer_range(dtype)
    return pick(self.draw, [n for n in (low, -3, -1, 0, 1, 2, 3, 7, high) if low <= n <= high])

  def statement(self):
    spec = OPERATORS[self.draw(_OPERATORS)]
    bound = ""
    giver = ""
    if "T" in spec.operands:
      giver = self.value(spec.types)
      bound = self.dtypes[giver]
    at = spec.operands.index("T") if giver else 0
    if giver and spec.operands.count("T") > 1 and pick(self.draw, (False, True)):
      at = len(spec.operands) - 1
    operands = []
    for index, letter in enumerate(spec.operands):
      if letter == "B":
        operands.append(self.value(["bool"]))
      elif index == at:
        operands.append(giver)
      elif pick(self.draw, (False, False, False, True)):
        operands.append(self.literal(bound))
      else:
        operands.append(self.value([bound]))
    attributes = self.attributes(spec, bound)
    self.add(spec.name, operands, attributes, {"T": bound, "B": "bool", "C": str(attributes.get("to"))}[spec.result])

  def attributes(self, spec, dtype):
    drawn = {}
    for name, default in spec.attributes:
      if name == "to":
        drawn[name] = pick(self.draw, DTYPES)
      elif name == "direction":
        drawn[name] = pick(self.draw, ["LEFT", "RIGHT"])
      elif name == "approximate":
        drawn[name] = pick(self.draw, ["none", "tanh"])
      elif name == "fmod":
        drawn[name] = 1 if dtype in FLOATING else pick(self.draw, (0, 1))
      elif name.startswith("detect"):
        drawn[name] = pick(self.draw, (0, 1))
      else:
        drawn[name] = pick(self.draw, [*ALPHAS, float(default or 0.0)])
    return drawn


@st.composite
def examples(draw):
  """1 to 6 parameters of a few dtypes, 1 to 12 statements, and as results what nothing uses and some of the rest."""
  palette = [pick(draw, DTYPES) for _ in range(1 + pick(draw, range(3)))]
  count = 1 + pick(draw, range(6))
  parameters = [Parameter(pick(draw, palette), f"p{i}") for i in range(count)]
  pool = _Pool(draw, parameters)
  for _ in range(1 + pick(draw, range(12))):
    pool.statement()
  used = {name for statement in pool.statements for name in statement.names}
  names = [name for name in pool.dtypes if name not in used or pick(draw, (False,) * 7 + (True,))]
  program = drop_unused(parameters, [Parameter(pool.dtypes[name], name) for name in names[-16:]], pool.statements)
  shapes = draw(shapes_of(len(program.parameters)))
  styles = tuple(pick(draw, STYLES) for _ in program.parameters)
  return Example(program, shapes, styles, draw(_NUMBERS) * 120 + draw(_NUMBERS), pick(draw, (False, True)))


# ---- models


def model_of(graph):
  imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("ortplugin", 1)]
  return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def computed(dtype):
  return "float" if dtype in ("float16", "bfloat16") else dtype


def fused_graph(example):
  """The program as one FusedPointwise; the output of the result `y` is `out_y`."""
  program = example.program
  names = [parameter.name for parameter in program.parameters]
  inputs = [
    helper.make_tensor_value_info(p.name, ONNX_DTYPES[p.dtype], shape)
    for p, shape in zip(program.parameters, example.shapes, strict=True)
  ]
  nodes = []
  if example.copied:
    for index, (name, shape) in enumerate(zip(names, example.shapes, strict=True)):
      names[index] = f"copy_{name}"
      order = {"perm": range(len(shape))} if shape else {}
      nodes.append(helper.make_node("Transpose", [name], [names[index]], **order))
  outputs = [helper.make_tensor_value_info(f"out_{r.name}", ONNX_DTYPES[r.dtype], None) for r in program.results]
  results = [each.name for each in outputs]
  nodes.append(helper.make_node("FusedPointwise", names, results, "fused", domain="ortplugin", program=str(program)))
  return helper.make_graph(nodes, "g", inputs, outputs)


# ---- what may differ

# What one statement's result may be off by, in units of roundoff of its arithmetic. ONNX Runtime's own approximations
# of some functions (its vectorised exp, tanh, erf and what is made of them) have an absolute error besides.
EXACT = (
  "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu", "Min", "Max", "Clip",
  "Where", "Cast", "ThresholdedRelu",
)  # fmt: skip
FUNDAMENTAL = ("Add", "Sub", "Mul", "Div", "Reciprocal", "Sqrt", "LeakyRelu", "PRelu", "Shrink", "Mod")
ROUNDOFF = {"float": 2.0**-24, "double": 2.0**-53}
LARGEST = {"float": 3.4e38, "double": 1.7e308}
SMALLEST = {"float": 1.2e-38, "double": 2.3e-308}


@dataclass(frozen=True)
class Estimate:
  """A value with its error, element by element. `unknown`: no answer can be called wrong."""

  value: Array
  error: Array
  unknown: Array
  given: bool = False  # a parameter or a literal: the sign of a zero is certain


def estimates(program, inputs):
  """Every value of the program in float64 (integers exactly), and how far off arithmetic in its dtype may be."""
  found = {}
  for parameter, array in zip(program.parameters, inputs, strict=True):
    found[parameter.name] = _given(array, parameter.dtype)
  with np.errstate(all="ignore"):
    for statement in program.statements:
      dtype = program.operand_dtype(statement)
      operands = [
        found[x] if isinstance(x, str) else _given(np.asarray(x, NUMPY_DTYPES[dtype]), dtype)
        for x in statement.operands
      ]
      found[statement.name] = _estimate(statement, program.dtypes[statement.name], operands)
  return found


def _given(array, dtype):
  value = array.astype(np.float64) if dtype in FLOATING else array
  none = np.zeros(value.shape, bool)
  return Estimate(value, np.zeros(value.shape), none, given=True)


def _estimate(statement, result, operands):
  op = statement.op
  value = evaluate(statement, [each.value for each in operands])
  unknown = np.zeros(value.shape, bool)
  for each in operands:
    unknown = unknown | each.unknown
  error = np.zeros(value.shape)
  uncertain = [each.value.dtype.kind == "f" and bool(each.error.any()) for each in operands]
  if any(uncertain):
    for signs in product(*[(-1, 1) if each else (0,) for each in uncertain]):
      given = [e.value + s * e.error if s else e.value for e, s in zip(operands, signs, strict=True)]
      moved = evaluate(statement, given)
      if value.dtype.kind == "f":
        same = (moved == value) | (np.isnan(moved) & np.isnan(value))
        difference = np.where(same, 0.0, np.abs(moved - value))
        unknown = unknown | ~np.isfinite(difference)
        error = np.maximum(error, np.where(np.isfinite(difference), difference, 0.0))
      else:
        unknown = unknown | (moved != value)
    # What happens between the ends is not seen: at a pole, or over many periods.
    if op == "Equal" or (op == "Cast" and result == "bool"):
      # Of two values that are not quite the same the ends are not equal either.
      other = operands[1] if op == "Equal" else Estimate(np.zeros(()), np.zeros(()), np.False_)
      error_of_both = operands[0].error + other.error
      near = np.abs(operands[0].value.astype(np.float64) - other.value) <= error_of_both
      unknown = unknown | (near & (error_of_both > 0))
    if op == "Pow" and value.dtype.kind == "f":  # of a negative number only if the exponent is a whole one
      exponent = operands[1]
      may_be_whole = (exponent.error > 0) & (np.abs(exponent.value - np.rint(exponent.value)) <= exponent.error)
      unknown = unknown | (may_be_whole & (operands[0].value < 0))
    if op not in (*EXACT, "Add", "Sub", "Mul") and value.dtype.kind == "f":
      unknown = unknown | (error > 0.05 * np.abs(value)) & (error > 1e-4)
      for each in operands:
        unknown = unknown | (each.error > 0.5)
  if op in ("Div", "Reciprocal", "Pow"):  # the sign of a zero decides, and not all agree on it
    zero = operands[-1 if op == "Div" else 0]
    if not zero.given:
      unknown = unknown | (zero.value == 0)
  arithmetic = computed(result)
  if arithmetic in ROUNDOFF and op not in EXACT:
    size = np.abs(value)
    units = 4.0
    if op not in FUNDAMENTAL:
      units = 32.0
      for each in operands:
        if each.value.dtype.kind == "f":
          size = np.maximum(size, np.where(np.isfinite(each.value), np.abs(each.value), 0.0))
      size = np.maximum(size, 1.0) if op != "Exp" else size
    error = error + np.where(np.isfinite(size), units * ROUNDOFF[arithmetic] * size, 0.0)
  if arithmetic in LARGEST:
    error = error + np.where(np.abs(value) < 1e3 * SMALLEST[arithmetic], SMALLEST[arithmetic], 0.0) * (op not in EXACT)
    unknown = unknown | (np.isfinite(value) & (np.abs(value) + error > LARGEST[arithmetic]))
  return Estimate(value, error, unknown)


def bounds(estimate, dtype):
  """The least and the greatest value of a floating dtype that a result may have, in float64."""
  low, high = (rounded(estimate.value + sign * estimate.error, dtype).astype(np.float64) for sign in (-1, 1))
  return low, high


def compare_fused(found, wanted, dtype, shape):
  """Against the reference, every element that is certain."""
  assert found.dtype == NUMPY_DTYPES[dtype]
  assert found.shape == shape
  known = ~np.broadcast_to(wanted.unknown, shape)
  value = np.broadcast_to(wanted.value, shape)
  if dtype not in FLOATING:
    np.testing.assert_array_equal(found[known], value[known])
    return
  low, high = (np.broadcast_to(each, shape)[known] for each in bounds(wanted, dtype))
  within(found.astype(np.float64)[known], low, high)


def within(found, low, high):
  np.testing.assert_array_equal(np.isnan(found), np.isnan(low))
  outside = ~((low <= found) & (found <= high)) & ~np.isnan(found)
  assert not outside.any(), f"{found[outside][:3]} instead of {low[outside][:3]} to {high[outside][:3]}"
