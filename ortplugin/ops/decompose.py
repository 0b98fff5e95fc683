"""Pointwise programs as standard ONNX: each statement becomes the operator of its name, or several where it must.

What the optimizer's restore step writes back and what tests compare with. Operators run in their own dtype, so a
float16 value is rounded after each of them, where the fused kernel rounds only what it stores. Where ONNX leaves a
result open (integers divided by zero, shifted by their width or more, or raised beyond their range, floats cast beyond
an integer's range) the plain operator stands, whose result is then the runtime's, not the one that docs/programs.md
defines; wherever ONNX defines it both are the same.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ..errors import ModelError
from ..program import ATTRIBUTES, INTEGERS, NUMPY_DTYPES, ONNX_DTYPES, UNSIGNED, Operand, Program, Statement

MINIMUM_OPSET = 11


class Builder:
  """Collects ONNX nodes, naming what lies between them `prefix` + operator + a number."""

  def __init__(self, opset: int, prefix: str) -> None:
    if opset < MINIMUM_OPSET:
      raise ModelError(
        f"the decomposition needs opset {MINIMUM_OPSET} or later of ai.onnx, the model has {opset}; "
        "convert it with onnx.version_converter"
      )
    self.opset = opset
    self.nodes: list[onnx.NodeProto] = []
    self._prefix = prefix
    self._count = 0

  def _name(self, op: str) -> str:
    self._count += 1
    return f"{self._prefix}/{op}_{self._count}"

  def op(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
    """Appends a node with one output and returns the output's name."""
    name = self._name(op)
    output = output or name
    self.nodes.append(helper.make_node(op, inputs, [output], name, **attributes))
    return output

  def constant(self, value: npt.ArrayLike, dtype: str | np.dtype[np.generic]) -> str:
    """A tensor of the values, in a dtype of the programs or of NumPy."""
    with np.errstate(over="ignore"):  # a number beyond the dtype is its infinity
      array = np.asarray(value).astype(NUMPY_DTYPES[dtype] if isinstance(dtype, str) else dtype)
    return self.op("Constant", value=numpy_helper.from_array(array))

  def int64(self, value: npt.ArrayLike) -> str:
    """A tensor of the values in int64."""
    return self.constant(value, np.dtype(np.int64))

  def cast(self, value: str, dtype: str, output: str = "") -> str:
    """The value in another dtype of the programs."""
    return self.op("Cast", value, output=output, to=ONNX_DTYPES[dtype])

  def mean(self, value: str, axes: Sequence[int]) -> str:
    """The mean over `axes`, which stay with length 1."""
    if self.opset >= 18:
      return self.op("ReduceMean", value, self.int64(axes), keepdims=1)
    return self.op("ReduceMean", value, axes=list(axes), keepdims=1)

  def sum(self, value: str, axes: Sequence[int], keepdims: bool, output: str = "") -> str:
    """The sum over `axes`."""
    if self.opset >= 13:
      return self.op("ReduceSum", value, self.int64(axes), output=output, keepdims=int(keepdims))
    return self.op("ReduceSum", value, output=output, axes=list(axes), keepdims=int(keepdims))


Core = Callable[[Builder, Statement, str, str, str], None]
"""Appends a core statement's nodes: builder, statement, dtype, the operand's name, the output's name."""


def to_onnx(
  program: Program,
  inputs: Sequence[str],
  outputs: Sequence[str],
  opset: int,
  name_prefix: str,
  core: Core | None = None,
  whole: str | None = None,
) -> list[onnx.NodeProto]:
  """The program as nodes of standard ONNX that read `inputs` and write `outputs`.

  `name_prefix` starts the names of all nodes and values in between. `core` writes the core statements, for a SumTo
  with an operand that has the shape S. `whole`: the parameter that has the shape S by itself, if one surely has.
  Raises ModelError below opset 11, and where the opset lacks an operator that nothing else expresses.
  """
  builder = Builder(opset, name_prefix)
  names = {parameter.name: name for parameter, name in zip(program.parameters, inputs, strict=True)}
  shapes = _Shapes(builder, program, names, whole)
  final: dict[str, str] = {}
  for result, output in zip(program.results, outputs, strict=True):
    if shapes.is_final(result.name):
      final.setdefault(result.name, output)
  for statement in program.statements:
    dtype = program.operand_dtype(statement)
    operands = [_input(builder, operand, dtype, names) for operand in statement.operands]
    output = final.get(statement.name, "")
    if statement.spec.core:
      if core is None:
        raise ModelError(f"a program of this operator holds no {statement.op}")
      operand = operands[0]
      if statement.op == "SumTo" and not shapes.is_final(statement.names[0]):
        operand = shapes.expand(statement.names[0])
      names[statement.name] = output or f"{name_prefix}/{statement.name}"
      core(builder, statement, dtype, operand, names[statement.name])
    else:
      names[statement.name] = _emit(builder, statement, dtype, operands, output)
  for result, output in zip(program.results, outputs, strict=True):
    if not shapes.is_final(result.name):
      shapes.expand(result.name, output)
    elif names[result.name] != output:  # the same value twice
      builder.op("Identity", names[result.name], output=output)
  return builder.nodes


class _Shapes:
  """Which values have the shape that a result must have, S unless it is a sum, and how the others get it."""

  def __init__(self, builder: Builder, program: Program, names: dict[str, str], whole: str | None) -> None:
    self._builder = builder
    self._names = names
    self._sums: set[str] = set()
    core = program.core
    self._normalised = core.names[0] if core is not None and core.op != "SumTo" else whole
    # A value has the shape S if it depends on all of these, which together have it.
    needed = [self._normalised] if self._normalised else [each.name for each in program.parameters]
    self._missing = {name: [each for each in needed if each != name] for name in program.dtypes}
    for statement in program.statements:
      if statement.op == "SumTo" or self._sums.intersection(statement.names):
        self._sums.add(statement.name)
      if statement.name != self._normalised:
        missing = [set(self._missing[name]) for name in statement.names]
        self._missing[statement.name] = [each for each in needed if all(each in some for some in missing)]

  def is_final(self, name: str) -> bool:
    """Whether the value has its result's shape by itself."""
    return name in self._sums or not self._missing[name]

  def expand(self, name: str, output: str = "") -> str:
    """The value with the shape S, once every value that it depends on is named."""
    whole = next((n for n in self._names if n not in self._sums and not self._missing[n]), None)
    sources = [whole] if whole is not None else self._missing[name]
    value = self._names[name]
    for source in sources:  # Expand broadcasts both ways, so one after the other leads to S
      shape = self._builder.op("Shape", self._names[source])
      value = self._builder.op("Expand", value, shape, output=output if source is sources[-1] else "")
    return value


def _input(builder: Builder, operand: Operand, dtype: str, names: dict[str, str]) -> str:
  return names[operand] if isinstance(operand, str) else builder.constant(operand, dtype)


def _takes(op: str, opset: int, dtype: str) -> bool:
  """Whether the standard has `op` at this opset, for tensors of this dtype in every operand."""
  try:
    schema = onnx.defs.get_schema(op, opset, "")
  except onnx.defs.SchemaError:
    return False
  variables = {each.type_str for each in schema.inputs[1 if op == "Where" else 0 :]}  # Pow has two, of T and T1
  allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
  return all(f"tensor({dtype})" in allowed.get(variable, [variable]) for variable in variables)


def _emit(builder: Builder, statement: Statement, dtype: str, operands: Sequence[str], output: str) -> str:
  op = statement.op
  attributes = {
    name: int(value) if ATTRIBUTES[name].kind == "Flag" and not isinstance(value, str) else value
    for name, value in statement.attributes
  }
  if op == "Cast":
    return builder.cast(operands[0], str(attributes["to"]), output)
  if op == "PRelu" and not isinstance(statement.operands[0], str):
    # ONNX's has the shape of its first operand, which is a scalar here: its slope would not broadcast to that.
    if statement.operands[0] < 0:
      product = Statement(statement.name, "Mul", statement.operands)
      return _emit(builder, product, dtype, operands, output)
    return builder.op("Expand", operands[0], builder.op("Shape", operands[1]), output=output)
  if op in ("LessOrEqual", "GreaterOrEqual") and builder.opset < 12:
    strict = builder.op(op.removesuffix("OrEqual"), *operands)
    return builder.op("Or", strict, builder.op("Equal", *operands), output=output)
  if op == "QuickGelu" or not _takes(op, builder.opset, dtype):
    if dtype in INTEGERS:
      return _emit_integer(builder, statement, dtype, operands, attributes, output)
    if op in _REWRITTEN:
      return _REWRITTEN[op](builder, statement, dtype, operands[0], output)
    # Before opset 13 to 22, most operators lack bfloat16, a few float16 or double: run them in float32.
    return _in_dtype(builder, statement, "float", dtype, operands, attributes, output)
  return builder.op(op, *operands, output=output, **attributes)


def _in_dtype(
  b: Builder,
  statement: Statement,
  wide: str,
  dtype: str,
  operands: Sequence[str],
  attributes: dict[str, Any],
  output: str,
) -> str:
  """The operator on operands cast to `wide`, its result cast back."""
  cast = [b.cast(x, wide) if statement.spec.operands[i] == "T" else x for i, x in enumerate(operands)]
  if statement.spec.result == "B":
    return b.op(statement.op, *cast, output=output, **attributes)
  return b.cast(b.op(statement.op, *cast, **attributes), dtype, output)


def _emit_integer(
  b: Builder, statement: Statement, dtype: str, operands: Sequence[str], attributes: dict[str, Any], output: str
) -> str:
  """An operator on integers of a dtype that the standard does not give it at this opset."""
  op = statement.op
  if op == "Neg":  # unsigned
    negated = Statement(statement.name, "Sub", ("zero", "x"))
    return _emit(b, negated, dtype, [b.constant(0, dtype), operands[0]], output)
  if op == "Relu":
    if dtype in UNSIGNED:
      return b.op("Identity", operands[0], output=output)
    return _maximum(b, operands[0], b.constant(0, dtype), output)
  if op == "Max":
    return _maximum(b, operands[0], operands[1], output)
  if op == "Min":
    return _minimum(b, operands[0], operands[1], output)
  if op == "Clip":
    return _minimum(b, _maximum(b, operands[0], operands[1], ""), operands[2], output)
  if op == "Pow":
    return _in_dtype(b, statement, "double", dtype, operands, attributes, output)
  if _takes(op, b.opset, "int32"):  # 8 and 16 bits: the result's low bits are the same
    return _in_dtype(b, statement, "int32", dtype, operands, attributes, output)
  raise ModelError(
    f"'{statement.name} = {op}' of {dtype} has no equivalent in opset {b.opset} of ai.onnx; "
    "convert the model to opset 18 or later with onnx.version_converter"
  )


def _maximum(b: Builder, x: str, y: str, output: str) -> str:
  return b.op("Where", b.op("Less", x, y), y, x, output=output)


def _minimum(b: Builder, x: str, y: str, output: str) -> str:
  return b.op("Where", b.op("Less", y, x), y, x, output=output)


def _gelu(b: Builder, statement: Statement, dtype: str, x: str, output: str) -> str:
  if statement.attribute("approximate") == "tanh":  # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    cube = b.op("Mul", b.op("Mul", x, x), x)
    inner = b.op("Add", x, b.op("Mul", cube, b.constant(0.044715, dtype)))
    gate = b.op("Tanh", b.op("Mul", inner, b.constant(math.sqrt(2 / math.pi), dtype)))
  else:  # 0.5 x (1 + erf(x / sqrt(2)))
    scaled = b.op("Div", x, b.constant(math.sqrt(2), dtype))
    gate = b.op("Erf", scaled) if _takes("Erf", b.opset, dtype) else b.cast(b.op("Erf", b.cast(scaled, "float")), dtype)
  half = b.op("Mul", x, b.constant(0.5, dtype))
  return b.op("Mul", half, b.op("Add", gate, b.constant(1, dtype)), output=output)


def _swish(b: Builder, statement: Statement, dtype: str, x: str, output: str) -> str:  # x sigmoid(alpha x)
  alpha = statement.number("alpha")
  scaled = x if alpha == 1 else b.op("Mul", x, b.constant(alpha, dtype))
  return b.op("Mul", x, b.op("Sigmoid", scaled), output=output)


def _mish(b: Builder, statement: Statement, dtype: str, x: str, output: str) -> str:  # x tanh(log(1 + e^x))
  if not _takes("Softplus", b.opset, dtype):
    return b.cast(_mish(b, statement, "float", b.cast(x, "float"), ""), dtype, output)
  return b.op("Mul", x, b.op("Tanh", b.op("Softplus", x)), output=output)


def _hard_swish(
  b: Builder, statement: Statement, dtype: str, x: str, output: str
) -> str:  # x max(0, min(1, x/6 + 1/2))
  gate = b.op("Add", b.op("Div", x, b.constant(6, dtype)), b.constant(0.5, dtype))
  clipped = b.op("Max", b.op("Min", gate, b.constant(1, dtype)), b.constant(0, dtype))
  return b.op("Mul", x, clipped, output=output)


def _celu(b: Builder, statement: Statement, dtype: str, x: str, output: str) -> str:
  # max(0, x) + min(0, alpha (e^(x/alpha) - 1))
  alpha, zero = b.constant(statement.number("alpha"), dtype), b.constant(0, dtype)
  low = b.op("Mul", b.op("Sub", b.op("Exp", b.op("Div", x, alpha)), b.constant(1, dtype)), alpha)
  return b.op("Add", b.op("Max", x, zero), b.op("Min", low, zero), output=output)


_REWRITTEN: dict[str, Callable[[Builder, Statement, str, str, str], str]] = {
  "Gelu": _gelu,
  "Swish": _swish,
  "QuickGelu": _swish,
  "Mish": _mish,
  "HardSwish": _hard_swish,
  "Celu": _celu,
}
