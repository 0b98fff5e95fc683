"""Random pointwise programs: how they are made, what ONNX Runtime's own operators make of them, and how much a result
may be off.

The ONNX graph of a program is written here operator by operator, not by the optimizer's decomposition. It computes
float16 and bfloat16 in float and rounds where a Cast says so, as a fused operator does.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph, NotImplemented as NotImplemented_

from ortplugin import run
from ortplugin.ops.pointwise_reference import evaluate, rounded
from ortplugin.program import (
  DTYPES,
  FLOATING,
  INTEGERS,
  NUMPY_DTYPES,
  ONNX_DTYPES,
  OPERATORS,
  UNSIGNED,
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


# ---- ONNX's own operators

WIDER = {
  "int8": ("int32", "int64"),
  "int16": ("int32", "int64"),
  "uint8": ("int32", "int64"),
  "uint16": ("int32", "int64"),
  "int32": ("int64",),
  "uint32": ("int64",),
}
MODULAR = ("Add", "Sub", "Mul")  # a uint64's low bits are those of the same in int64


IMPRECISE = {  # what ONNX Runtime computes in less than the dtype
  ("Shrink", "double"): "its attributes are float and so is the arithmetic",
  ("Gelu", "double"): "its constants are float",
  ("HardSwish", "double"): "its constant, one sixth, is float",
}
FLAGS = ("fmod", "detect_negative", "detect_positive")


@cache
def runs(op, dtype, attributes):
  """Whether ONNX Runtime's CPU provider has the operator for the dtype."""
  letters = OPERATORS[op].operands
  kinds = [TensorProto.BOOL if letter == "B" else ONNX_DTYPES[dtype] for letter in letters]
  # The limits of Clip are scalars.
  inputs = [
    helper.make_tensor_value_info(f"x{i}", kind, [] if op == "Clip" and i else [2]) for i, kind in enumerate(kinds)
  ]
  node = helper.make_node(op, [each.name for each in inputs], ["y"], **dict(attributes))
  output = helper.make_tensor_value_info("y", ONNX_DTYPES["bool" if OPERATORS[op].result == "B" else dtype], [2])
  try:
    session_of(helper.make_graph([node], "g", inputs, [output]))
  except (NotImplemented_, InvalidGraph):  # no kernel, or not even in the standard
    return False
  return True


def model_of(graph, opset=OPSET):
  imports = [helper.make_opsetid("", opset), helper.make_opsetid("ortplugin", 1)]
  return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def session_of(graph, options=None, opset=OPSET):
  options = options or onnxruntime.SessionOptions()
  options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
  options.log_severity_level = 4
  options.intra_op_num_threads = 1
  return onnxruntime.InferenceSession(model_of(graph, opset), options, providers=["CPUExecutionProvider"])


class _Graph:
  """A program as ONNX's own operators. Values of the 16-bit floating dtypes are float here."""

  def __init__(self, example):
    self.program = example.program
    self.nodes = []
    self.initializers = []
    self.names = {}
    self.shapes = {}
    for parameter, shape in zip(self.program.parameters, example.shapes, strict=True):
      name = parameter.name
      self.names[name] = name if computed(parameter.dtype) == parameter.dtype else self.cast(name, "float")
      self.shapes[name] = shape
    self.complete = all([self.add(statement) for statement in self.program.statements])

  def op(self, op, *inputs, **attributes):
    output = f"{op}_{len(self.nodes)}"
    self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
    return output

  def cast(self, name, to):
    return self.op("Cast", name, to=ONNX_DTYPES[to])

  def constant(self, value, dtype):
    name = f"constant_{len(self.initializers)}"
    self.initializers.append(numpy_helper.from_array(np.asarray(value, NUMPY_DTYPES[dtype]), name))
    return name

  def add(self, statement):
    """Adds the statement; False if ONNX Runtime has nothing for it, and then its value is not there."""
    dtype = self.program.operand_dtype(statement)
    if any(name not in self.names for name in statement.names):
      return False
    operands = [
      self.names[x]
      if isinstance(x, str)
      # The literal as its own dtype has it.
      else self.constant(np.asarray(x, NUMPY_DTYPES[dtype]).astype(NUMPY_DTYPES[computed(dtype)]), computed(dtype))
      for x in statement.operands
    ]
    value = self.value(statement, computed(dtype), operands)
    if value is None:
      return False
    self.names[statement.name] = value
    shapes = [self.shapes[name] for name in statement.names]
    self.shapes[statement.name] = np.broadcast_shapes(*shapes)
    return True

  def value(self, statement, dtype, operands):
    op = statement.op
    x = operands[0]
    if op == "Cast":
      to = str(statement.attribute("to"))
      cast = self.cast(x, to)
      return cast if computed(to) == to else self.cast(cast, computed(to))
    if op in ("Swish", "QuickGelu"):
      gate = self.op("Sigmoid", self.op("Mul", x, self.constant(statement.number("alpha"), dtype)))
      return self.op("Mul", x, gate) if runs("Sigmoid", dtype, ()) else None
    if op == "PRelu" and isinstance(statement.operands[0], str):
      # ONNX broadcasts the slope only.
      shapes = [self.shapes[each] for each in statement.names]
      operands[0] = self.op("Expand", x, self.constant(np.array(np.broadcast_shapes(*shapes)), "int64"))
    elif op == "PRelu":
      operands[0] = self.op("Expand", x, self.constant(np.array(self.shapes[statement.names[0]]), "int64"))
    if op == "Clip" and any(isinstance(each, str) for each in statement.operands[1:]):
      # ONNX's limits are scalars.
      above = self.supported("Max", dtype, operands[:2], {})
      return above and self.supported("Min", dtype, [above, operands[2]], {})
    if op in ("Div", "Mod") and dtype in INTEGERS:
      # ONNX leaves a division by 0 and of the lowest value by -1 open; ONNX Runtime's process ends in them.
      for each, step in ((0, "Add"),) if dtype in UNSIGNED else ((0, "Add"), (-1, "Sub")):
        is_it = self.supported("Equal", dtype, [operands[1], self.constant(each, dtype)], {})
        moved = is_it and self.supported(step, dtype, [operands[1], self.cast(is_it, dtype)], {})
        if moved is None:
          return None
        operands[1] = moved
    attributes = {
      name: int(value) if name in FLAGS and not isinstance(value, str) else value
      for name, value in statement.attributes
    }
    return self.supported(op, dtype, operands, attributes)

  def supported(self, op, dtype, operands, attributes):
    """The operator, if need be on another dtype whose result has the same low bits."""
    spec = OPERATORS[op]
    if (op, dtype) in IMPRECISE:
      return None
    if runs(op, dtype, tuple(attributes.items())):
      return self.op(op, *operands, **attributes)
    if dtype in UNSIGNED and op in ("Abs", "Relu"):
      return operands[0]
    if op == "Neg":
      return self.supported("Sub", dtype, [self.constant(0, dtype), operands[0]], {})
    if op == "Relu" and dtype in INTEGERS:
      return self.supported("Max", dtype, [operands[0], self.constant(0, dtype)], {})
    if op == "BitwiseNot":
      return self.supported("Sub", dtype, [self.constant(-1, "int64"), operands[0]], {})
    if op == "Where" and dtype == "bool":
      condition, a, b = operands
      return self.op("Or", self.op("And", condition, a), self.op("And", self.op("Not", condition), b))
    wider = ("int64",) if dtype == "uint64" and op in MODULAR else WIDER.get(dtype, ())
    for wide in wider:
      if runs(op, wide, tuple(attributes.items())):
        cast = [self.cast(x, wide) if letter == "T" else x for x, letter in zip(operands, spec.operands, strict=True)]
        result = self.op(op, *cast, **attributes)
        return result if spec.result == "B" else self.cast(result, dtype)
    return None


def computed(dtype):
  return "float" if dtype in ("float16", "bfloat16") else dtype


def fused_graph(example, instead=()):
  """The program as one FusedPointwise, or the nodes given; the output of the result `y` is `out_y`."""
  program = example.program
  names = [parameter.name for parameter in program.parameters]
  inputs = [
    helper.make_tensor_value_info(p.name, ONNX_DTYPES[p.dtype], shape)
    for p, shape in zip(program.parameters, example.shapes, strict=True)
  ]
  nodes = list(instead)
  if example.copied and not instead:
    for index, (name, shape) in enumerate(zip(names, example.shapes, strict=True)):
      names[index] = f"copy_{name}"
      order = {"perm": range(len(shape))} if shape else {}
      nodes.append(helper.make_node("Transpose", [name], [names[index]], **order))
  outputs = [helper.make_tensor_value_info(f"out_{r.name}", ONNX_DTYPES[r.dtype], None) for r in program.results]
  if not instead:
    nodes.append(
      helper.make_node(
        "FusedPointwise", names, [each.name for each in outputs], "fused", domain="ortplugin", program=str(program)
      )
    )
  return helper.make_graph(nodes, "g", inputs, outputs)


def onnx_results(example):
  """What ONNX Runtime's own operators give: by name, the results that they can compute, before the last rounding."""
  graph = _Graph(example)
  program = example.program
  results = [each for each in program.results if each.name in graph.names]
  if not results:
    return {}
  outputs = [
    helper.make_tensor_value_info(graph.op("Identity", graph.names[each.name]), ONNX_DTYPES[computed(each.dtype)], None)
    for each in results
  ]
  inputs = [
    helper.make_tensor_value_info(p.name, ONNX_DTYPES[p.dtype], s)
    for p, s in zip(program.parameters, example.shapes, strict=True)
  ]
  found = run(session_of(helper.make_graph(graph.nodes, "g", inputs, outputs, graph.initializers)), example.feeds())
  return {each.name: found[output.name] for each, output in zip(results, outputs, strict=True)}


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
  """A value with its error, element by element. `unknown`: no answer can be called wrong; `left_open`: ONNX does."""

  value: Array
  error: Array
  unknown: Array
  left_open: Array
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
      found[statement.name] = _estimate(statement, dtype, program.dtypes[statement.name], operands)
  return found


def _given(array, dtype):
  value = array.astype(np.float64) if dtype in FLOATING else array
  none = np.zeros(value.shape, bool)
  return Estimate(value, np.zeros(value.shape), none, none, given=True)


def _estimate(statement, dtype, result, operands):
  op = statement.op
  value = evaluate(statement, [each.value for each in operands])
  unknown = np.zeros(value.shape, bool)
  left_open = _left_open(statement, dtype, operands, value)
  for each in operands:
    unknown = unknown | each.unknown
    left_open = left_open | each.left_open
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
      other = operands[1] if op == "Equal" else Estimate(np.zeros(()), np.zeros(()), np.False_, np.False_)
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
  return Estimate(value, error, unknown, left_open)


def _left_open(statement, dtype, operands, value):
  op = statement.op
  x = operands[0].value
  if op == "Cast" and dtype in FLOATING and value.dtype.kind in "iu":
    low, high = integer_range(value.dtype.name)
    error = operands[0].error
    return ~((np.trunc(x - error) >= low) & (np.trunc(x + error) < float(high + 1)))
  if op == "Clip" and dtype in FLOATING:
    return np.broadcast_to(np.isnan(operands[1].value) | np.isnan(operands[2].value), value.shape)
  if dtype not in INTEGERS:
    return np.zeros(value.shape, bool)
  if op in ("Div", "Mod"):
    y = operands[1].value
    left_open = (y == 0) | ((y < 0) & (y == y.dtype.type(0) - 1))  # what the graph does not divide by
    if op == "Mod" and statement.number("fmod") and dtype in ("int64", "uint64"):
      # ONNX Runtime computes the C function, in double.
      left_open = left_open | (np.abs(x.astype(np.float64)) > 2.0**53) | (np.abs(y.astype(np.float64)) > 2.0**53)
    return left_open
  if op == "BitShift":
    return np.broadcast_to(operands[1].value >= 8 * x.dtype.itemsize, value.shape)
  if op == "Pow":
    exponent = operands[1].value.astype(np.float64)
    power = np.power(x.astype(np.float64), exponent)
    low, high = integer_range(dtype)
    certain = (np.abs(power) <= 2.0**53) & (power >= low) & (power <= high)
    return ~(certain & (np.abs(exponent) <= 2.0**53))  # beyond, double forgets whether it is odd
  return np.zeros(value.shape, bool)


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


def compare_onnx(found, wanted, dtype):
  """ONNX Runtime's against the reference, every element that is certain and defined by ONNX."""
  shape = np.broadcast_shapes(found.shape, wanted.value.shape)
  known = ~np.broadcast_to(wanted.unknown | wanted.left_open, shape)
  found, value, error = (np.broadcast_to(each, shape)[known] for each in (found, wanted.value, wanted.error))
  if dtype not in FLOATING:
    np.testing.assert_array_equal(found, value)
  else:
    within(found.astype(np.float64), value - error, value + error)


def within(found, low, high):
  np.testing.assert_array_equal(np.isnan(found), np.isnan(low))
  outside = ~((low <= found) & (found <= high)) & ~np.isnan(found)
  assert not outside.any(), f"{found[outside][:3]} instead of {low[outside][:3]} to {high[outside][:3]}"
