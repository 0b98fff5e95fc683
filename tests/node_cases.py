"""What the cases of every operator share: making a model of nodes, drawing inputs, comparing outputs.

Inputs come from a seed, the expectation from the float64 reference. An operator's `check` compares; its docstring
derives the tolerance.
"""

import re
import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import all_attributes, built, computed, parametrize

from ortplugin.arrays import Array
from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN
from ortplugin.ops import Operator, TensorType, find
from ortplugin.program import DTYPE_NAMES, FLOATING, INTEGERS, NUMPY_DTYPES, parse

Shape = tuple[int, ...]

OPSET = 18  # of ai.onnx, where a decomposition or a comparison needs it

# Half the distance between neighbouring numbers, relative to the number: what one rounding may change.
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float": 2.0**-24, "double": 2.0**-53}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float": 2.0**-149, "double": 2.0**-1074}


# ---- models


def model_with(nodes, inputs, outputs, constants=(), *, opset=OPSET, ir_version=9):
  """A model of `nodes`. Inputs are given by name, dtype and shape; outputs leave their shape to inference."""
  given = {name: (dtype, shape) for name, dtype, shape in inputs}
  results = {name: (dtype, None) for name, dtype in outputs}
  model = built(nodes, given, results, opset, ir_version, domains=[DOMAIN], weights=dict(constants))
  return model.SerializeToString()


def identity_model(kind, opset):
  """y = x, of two open dimensions and an element type of TensorProto."""
  node, of = helper.make_node("Identity", ["x"], ["y"]), (kind, ["n", "m"])
  return built([node], {"x": of}, {"y": of}, opset, 10 if opset >= 21 else 8).SerializeToString()


def changed(node, changes):
  """The node with other attributes, of which None leaves one out, "inputs" and "outputs"."""
  values = {"inputs": node.input, "outputs": node.output, **all_attributes(node), **changes}
  names = values.pop("inputs"), values.pop("outputs")
  kept = {name: value for name, value in values.items() if value is not None}
  return helper.make_node(node.op_type, *names, node.name, domain=node.domain, **kept)


def assert_invalid(node, reason):
  """The decomposition and shape inference refuse the node with its name, its operator and the reason."""
  operator, unknown = find(node.domain, node.op_type), [TensorType(None, None)] * len(node.input)
  for refuse in (lambda: operator.decompose(node, OPSET), lambda: operator.infer_shapes(node, unknown)):
    with pytest.raises(ModelError) as caught:
      refuse()
    assert f"node '{node.name}' ({node.op_type})" in str(caught.value)
    assert reason in str(caught.value)


def invalid_nodes(wrong, node=lambda made: made):
  """A test of each invalid node, by the reason: `wrong` has nodes, or what `node` makes one of."""

  @parametrize("reason", wrong)
  def test(reason):
    assert_invalid(node(wrong[reason]), reason)

  return test


def output_name(program, result):
  """The result's name; another one where it is a parameter, as one value can't be input and output of a node."""
  return f"{result.name}_out" if result in program.parameters else result.name


def results_of(program):
  """Name and dtype of each result of a program, as outputs of its node."""
  return [(output_name(program, result), result.dtype) for result in program.results]


def named(cases):
  """The cases by their names, of which each is one case's."""
  found = {case.name: case for case in cases}
  assert len(found) == len(cases), "two cases have one name"
  return found


def planar(**attributes):
  """Attributes of a window over two axes: a number stands for each of them, for `pads` at both ends."""
  counts = {"kernel_shape": 2, "strides": 2, "dilations": 2, "output_padding": 2, "pads": 4}
  return {
    name: [value] * counts[name] if name in counts and isinstance(value, int) else value
    for name, value in attributes.items()
  }


def typed(text, dtype):
  return re.sub(r"\bT\b", dtype, text)


def normal_inputs(name, shapes, dtypes):
  """Standard normal numbers for each shape and dtype, the same whenever the case has this name."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  return [
    np.asarray(rng.standard_normal(shape)).astype(NUMPY_DTYPES[dtype])
    for shape, dtype in zip(shapes, dtypes, strict=True)
  ]


def run_at_opset(model, inputs, opset):
  """The outputs in ONNX Runtime of a model of standard operators, declared to be of this opset."""
  made = onnx.load_model_from_string(model)
  del made.opset_import[:]
  made.opset_import.append(helper.make_opsetid("", opset))
  made.ir_version = 10 if opset >= 21 else 8
  return computed(made, dict(zip((each.name for each in made.graph.input), inputs, strict=True)))


@dataclass(frozen=True)
class ProgramCase:
  """One node of an operator that a program describes, with its inputs.

  `values` is the row of VALUES that makes the floating parameters; bools are fair coins, integers span their dtype
  with `values` "whole range" and lie from 1 to 5 otherwise. `exact` names the floating results that must have the
  reference's very bits, signs of zeros included.
  """

  operator: ClassVar[Operator]
  node_name: ClassVar[str]

  name: str
  text: str
  shapes: tuple[Shape, ...]
  values: str = "normal"
  exact: tuple[str, ...] = ()

  @property
  def program(self):
    return parse(self.text)

  def inputs(self):
    rng = np.random.default_rng(zlib.crc32(self.name.encode()))
    given = zip(self.program.parameters, self.shapes, strict=True)
    return [self._made(rng, number, each.dtype, shape) for number, (each, shape) in enumerate(given)]

  def _made(self, rng, number, dtype, shape):
    numpy = NUMPY_DTYPES[dtype]
    if dtype == "bool":
      return np.asarray(rng.random(shape) < 0.5)
    if dtype in INTEGERS:
      info = np.iinfo(numpy)
      low, high = (info.min, info.max) if self.values == "whole range" else (1, 5)
      return np.asarray(rng.integers(low, high, shape, dtype=numpy, endpoint=True))
    with np.errstate(over="ignore"):
      return np.asarray(self._numbers(rng, number, shape), np.float64).astype(numpy)

  def _numbers(self, rng, number, shape):
    """What stands in the floating parameter of that number."""
    return VALUES["normal" if self.values == "whole range" else self.values](rng, shape or (1,)).reshape(shape)

  def feeds(self):
    return dict(zip((parameter.name for parameter in self.program.parameters), self.inputs(), strict=True))

  def node(self):
    return self.node_of(self.text)

  def model(self, shapes=None):
    """A model of this one node, with the case's shapes or those given. Outputs leave their shape to inference."""
    return self.model_of(self.text, self.shapes if shapes is None else shapes)

  @classmethod
  def node_of(cls, text, name=None):
    """A node that reads and writes values named as in the program."""
    program = parse(text)
    names = [parameter.name for parameter in program.parameters]
    outputs = [output for output, _ in results_of(program)]
    return helper.make_node(cls.operator.name, names, outputs, name or cls.node_name, domain=DOMAIN, program=text)

  @classmethod
  def decomposed(cls, text, inputs, opset):
    """What the program's decomposition gives in ONNX Runtime."""
    nodes = cls.operator.decompose(cls.node_of(text), opset)
    return run_at_opset(cls.model_of(text, [each.shape for each in inputs], nodes), inputs, opset)

  @classmethod
  def of_floats(cls, programs):
    """A case in each floating dtype of each named program, in which T stands for it, with its shapes."""
    return [
      cls(f"{name}, {dtype}", typed(text, dtype), shapes)
      for name, (text, shapes) in programs.items()
      for dtype in FLOATING
    ]

  @classmethod
  def model_of(cls, text, shapes, nodes=None):
    """A model with the program's parameters as inputs; its nodes are `nodes`, else the program's own."""
    program = parse(text)
    inputs = [(each.name, each.dtype, shape) for each, shape in zip(program.parameters, shapes, strict=True)]
    return model_with([cls.node_of(text)] if nodes is None else nodes, inputs, results_of(program))


class ProductCase:
  """What cases of a product with a program behind it share; the subclass has `text`, `shapes`, `inputs`, `node`.

  `factors`: the names of what is multiplied, of which the second may be a `constant` of the model.
  """

  factors = ("X", "W")
  constant = False

  @property
  def program(self):
    return parse(self.text)

  @property
  def dtypes(self):
    """Those of the inputs: two of the product, and the operands'."""
    value, *others = self.program.parameters
    return [value.dtype, value.dtype, *(each.dtype for each in others)]

  @property
  def names(self):
    return [*self.factors, *(each.name for each in self.program.parameters[1:])]

  @property
  def constants(self):
    """Names of the inputs that are constants of the model."""
    return self.factors[1:] if self.constant else ()

  @property
  def results(self):
    return results_of(self.program)

  def feeds(self):
    """What a run is given, by name."""
    given = dict(zip(self.names, self.inputs(), strict=True))
    return {name: array for name, array in given.items() if name not in self.constants}

  def model(self, shapes=None, nodes=None, opset=OPSET):
    """A model of this one node (or of `nodes`), with the case's shapes or those given.

    Outputs leave their shape to inference.
    """
    given = zip(self.names, self.dtypes, self.shapes if shapes is None else shapes, strict=True)
    inputs = [each for each in given if each[0] not in self.constants]
    arrays = dict(zip(self.names, self.inputs(), strict=True))
    constants = [(name, arrays[name]) for name in self.constants]
    return model_with([self.node()] if nodes is None else nodes, inputs, self.results, constants, opset=opset)


# ---- comparison


@dataclass(frozen=True)
class Expectation:
  """The reference's outputs: `wide` before the last rounding, `outputs` in their own dtypes.

  `slack`: for each result the error that arithmetic in the kernel's precision may make, element by element.
  """

  wide: list[Array]
  outputs: list[Array]
  slack: list[Array]


def check_results(case, outputs, expected):
  """Compares the results of a case's program, as `compare` does; returns the largest part of the slack used.

  The unit roundoff of a result is twice that of a coarser dtype that the program casts to, where one of two
  neighbours may be taken.
  """
  program = case.program
  assert len(outputs) == len(program.results)
  cast_to = [str(each.attribute("to")) for each in program.statements if each.op == "Cast"]
  coarse = [2 * UNIT_ROUNDOFF[dtype] for dtype in cast_to if dtype in FLOATING]
  used = 0.0
  for result, got, wanted, wide, slack in zip(
    program.results, outputs, expected.outputs, expected.wide, expected.slack, strict=True
  ):
    unit = max([UNIT_ROUNDOFF.get(result.dtype, 0.0), *coarse])
    where = f"{case.name}: result '{result.name}'"
    used = max(used, compare(where, got, wanted, wide, slack, unit, exact=result.name in case.exact))
  return used


def compare(where, got, wanted, wide, slack, unit=None, *, exact=False):
  """Compares one output with the reference.

  Shape and dtype are equal, so are the masks of NaN and the signed infinities, and so are bools and integers, and the
  bits of all but NaN where they must be `exact`. Otherwise

      |got - wide| <= unit |wide| + smallest / 2 + slack

  where `wide` is the reference before its rounding to the output's dtype, `unit` the unit roundoff of that dtype if
  it is not given, and `smallest` its smallest subnormal number. Returns the largest part of the slack that was used.
  """
  same_kind(where, got, wanted)
  dtype = DTYPE_NAMES[wanted.dtype]
  if dtype not in FLOATING or got.size == 0:
    np.testing.assert_array_equal(got, wanted, err_msg=where)
    return 0.0
  found, rounded = np.asarray(got).astype(np.float64), np.asarray(wanted).astype(np.float64)
  if exact:
    same = (bits(got) == bits(wanted)) | (np.isnan(found) & np.isnan(rounded))
    assert same.all(), f"{where} differs in bits at {_first(~same)}: {got[~same][0]} for {wanted[~same][0]}"
    return 0.0
  np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded), err_msg=f"{where}: NaN")
  infinite = np.isinf(found) | np.isinf(rounded)
  np.testing.assert_array_equal(found[infinite], rounded[infinite], err_msg=f"{where}: infinities")
  finite = np.isfinite(rounded)
  true, slack = np.where(finite, wide, 0.0), np.where(finite, slack, 0.0)
  error = np.abs(np.where(finite, found, 0.0) - true)
  rounding = (UNIT_ROUNDOFF[dtype] if unit is None else unit) * np.abs(true) + SMALLEST[dtype] / 2
  bad = ~(error <= rounding + slack)  # an error that is no number is bad too
  assert not bad.any(), (
    f"{where}: {int(bad.sum())} of {error.size} elements differ too much, the first at {_first(bad)}: "
    f"{found[bad][0]!r} instead of {true[bad][0]!r}, allowed {(rounding + slack)[bad][0]:.3g}"
  )
  with np.errstate(all="ignore"):
    return max(0.0, float(np.where(slack > 0, (error - rounding) / slack, 0).max()))


def same_kind(where, got, wanted):
  assert got.shape == wanted.shape, f"{where} has the shape {got.shape} instead of {wanted.shape}"
  assert got.dtype == wanted.dtype, f"{where} is {got.dtype} instead of {wanted.dtype}"


def steps(count):
  """One element moved by so many of the dtype's steps."""

  def change(y):
    y.reshape(-1).view(f"i{y.itemsize}")[5] += count
    return y

  return change


def bits(array):
  """The elements as unsigned integers."""
  return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def _first(mask):
  return [int(i) for i in np.argwhere(mask)[0]]


# ---- values


def _normal(rng, shape):
  return rng.standard_normal(shape) * 2 + 0.5


def _constant_rows(rng, shape):
  """Variance 0: what is left is sqrt(epsilon)."""
  return np.broadcast_to(rng.standard_normal((*shape[:-1], 1)), shape)


def _ones(rng, shape):
  return np.ones(shape)


def _offset(rng, shape):
  """Mean 1000 and deviation 1: E[x^2] - E[x]^2 loses every digit in float32."""
  return 1000 + rng.standard_normal(shape)


def _large(rng, shape):
  """From 300 to 60000 with both signs: squares and sums overflow float16 (ORT 29034)."""
  return np.exp(rng.uniform(np.log(300), np.log(60000), shape)) * rng.choice([-1.0, 1.0], shape)


def _large_positive(rng, shape):
  """All near 60000: already the sum of two overflows float16."""
  return rng.uniform(30000, 60000, shape)


def _special_rows(rng, shape):
  """One NaN, +Inf, -Inf, or both infinities in every other row; the rows between must not notice."""
  x = rng.standard_normal(shape)
  rows = x.reshape(-1, shape[-1])
  for row in range(0, len(rows), 2):
    at = rng.integers(shape[-1])
    rows[row, at] = (np.nan, np.inf, -np.inf)[row // 2 % 3]
    if row // 2 % 4 == 3:
      rows[row, (at + 1) % shape[-1]] = -np.inf
  return x


def _denormal(rng, shape):
  """Denormals of float16 (and of float, scaled): flushed to zero, the rows would be constant."""
  return np.rint(rng.uniform(-200, 200, shape)) * 2.0**-24


def _denormal_float(rng, shape):
  return np.rint(rng.uniform(-200, 200, shape)) * 2.0**-149


def _negative_zero(rng, shape):
  return np.where(rng.random(shape) < 0.5, -0.0, 0.0)


def _spike(rng, shape):
  """Zeros but for one element of each row: the largest x_hat that a width allows, sqrt(width - 1)."""
  x = np.zeros(shape)
  rows = x.reshape(-1, shape[-1])
  rows[np.arange(len(rows)), rng.integers(shape[-1], size=len(rows))] = 100
  return x


VALUES = {
  "normal": _normal,
  "constant rows": _constant_rows,
  "ones": _ones,
  "offset": _offset,
  "large": _large,
  "large positive": _large_positive,
  "special rows": _special_rows,
  "denormal": _denormal,
  "denormal float": _denormal_float,
  "negative zero": _negative_zero,
  "spike": _spike,
}
