"""Graph nodes as statements of pointwise programs: which operators have one, and why a node of theirs may not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ..program import (
  DTYPES,
  INTEGERS,
  MAX_STATEMENTS,
  NUMPY_DTYPES,
  OPERATORS,
  Operand,
  Parameter,
  Program,
  Statement,
  fresh_name,
  integer_range,
)
from .facts import Scope, optional_input
from .labels import label

VARIADIC = {"Min": "Min", "Max": "Max", "Sum": "Add", "Mean": "Add"}  # each by the statement that it is a chain of
LOWEST = {
  "float16": -65504.0,
  "bfloat16": -3.3895313892515355e38,
  "float": -3.4028234663852886e38,
  "double": -1.7976931348623157e308,
}
CONTRIB = ("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "BiasAdd")
IN_FLOAT = ("float16", "bfloat16", "float", "int8", "int16", "uint8", "uint16")  # what float holds exactly


class NotPointwiseError(Exception):
  """Why a node of a pointwise operator is no statement; with the value that is in the way."""


@dataclass
class Writer:
  """Collects statements around a program: its own names, new parameters, and the tensors that these stand for."""

  program: Program
  names: dict[int, str]  # of tensors that are values of the program already, by id
  scope: Scope
  dtypes: Sequence[str] = DTYPES  # what the program may have: a fused operator may know fewer than the language
  statements: list[Statement] = field(default_factory=list)
  parameters: list[Parameter] = field(default_factory=list)
  inputs: list[gs.Tensor] = field(default_factory=list)

  def fresh(self, hint: str) -> str:
    """A name that no value has."""
    own = {each.name for each in self.statements} | {each.name for each in self.parameters}
    return fresh_name(hint, own | self.program.dtypes.keys())

  def emit(self, op: str, *operands: Operand, **attributes: float | str) -> str:
    """Adds a statement and returns its name."""
    if attributes.get("to", self.dtypes[0]) not in self.dtypes:
      raise NotPointwiseError(f"it takes {attributes['to']}; programs know {', '.join(self.dtypes)}")
    name = self.fresh("v_")
    self.statements.append(Statement(name, op, operands, tuple(attributes.items())))
    return name

  def name(self, tensor: gs.Tensor, hint: str) -> str:
    """The tensor's name in the program; a new parameter if it has none."""
    if id(tensor) not in self.names:
      dtype = known_dtype(self, tensor)
      self.names[id(tensor)] = self.fresh(hint)
      self.parameters.append(Parameter(dtype, self.names[id(tensor)]))
      self.inputs.append(tensor)
    return self.names[id(tensor)]


def is_pointwise(scope: Scope, node: gs.Node) -> bool:
  """Whether the node's operator has a statement, whatever stands in the way of this node."""
  op = scope.op(node)
  spec = OPERATORS.get(op)
  return op in _HANDLERS or (spec is not None and not spec.core)


def is_symmetric(scope: Scope, node: gs.Node) -> bool:
  """Whether a pointwise operator has one result, of the shape that its operands broadcast to, whichever is smaller.

  Dropout's mask has its data's shape, too, as has CastLike's result whatever the other operand's is; PRelu's slope
  must broadcast to its data, and a bias of com.microsoft's operators have its last length. Who makes an operand
  smaller must ask.
  """
  if not is_pointwise(scope, node) or len(node.outputs) != 1:
    return False
  return scope.op(node) not in ("PRelu", "CastLike") and (node.domain != "com.microsoft" or len(node.inputs) == 1)


def known_dtype(writer: Writer, tensor: gs.Tensor) -> str:
  """The tensor's dtype in the program. Raises NotPointwiseError if the program can have none of it."""
  dtype = writer.scope.dtype(tensor)
  if dtype not in writer.dtypes:
    kind = "of unknown dtype" if tensor.dtype is None else np.dtype(tensor.dtype).name
    raise NotPointwiseError(f"'{tensor.name}' is {kind}; programs know {', '.join(writer.dtypes)}")
  assert dtype is not None
  return dtype


def write(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  """Adds the statements that compute the node's output and returns the name of its value.

  `hints`: for each input, what to call it if it becomes a parameter. Raises NotPointwiseError with the reason.
  """
  scope = writer.scope
  if len(node.inputs) > MAX_STATEMENTS:  # asked first: what follows takes time in proportion to their square
    raise NotPointwiseError(f"{label(node)} has {len(node.inputs)} inputs; a program has {MAX_STATEMENTS} statements")
  for tensor in (*node.inputs, *node.outputs):
    if not tensor.is_empty() and not _is_exponent(scope, node, tensor):
      known_dtype(writer, tensor)
  op = scope.op(node)
  handler = _HANDLERS.get(op, _same_operator)
  return handler(writer, node, hints)


def _is_exponent(scope: Scope, node: gs.Node, tensor: gs.Tensor) -> bool:
  return scope.op(node) == "Pow" and tensor is node.inputs[1]


def _operand(writer: Writer, node: gs.Node, tensor: gs.Tensor, hint: str, dtype: str | None) -> Operand:
  """A literal, for a constant scalar that `dtype` (None: no literal here) holds exactly; else the tensor's name."""
  if dtype is not None and id(tensor) not in writer.names and _adds_no_dimension(writer.scope, node, tensor):
    number = literal(writer.scope, tensor, dtype)
    if number is not None:
      return number
  return writer.name(tensor, hint)


def _adds_no_dimension(scope: Scope, node: gs.Node, tensor: gs.Tensor) -> bool:
  """Whether the result keeps its rank without this input: one of shape [1, 1, 1] may have more dimensions."""
  if (rank := scope.rank(tensor)) is None or rank == 0:
    return rank == 0
  return any((scope.rank(t) or 0) >= rank and scope.scalar(t) is None for t in node.inputs if not t.is_empty())


def literal(scope: Scope, tensor: gs.Tensor, dtype: str) -> float | int | None:
  """The value of a constant with one element if `dtype` holds it exactly; else None. An int for an integer dtype."""
  array = scope.constant(tensor, 1)
  if array is None or array.size != 1 or scope.dtype(tensor) is None:
    return None
  value = array.reshape(())
  if dtype == "bool":
    return float(value) if value.dtype == np.bool_ else None
  if value.dtype == np.bool_:
    return None
  number = int(value) if value.dtype.kind in "iu" else float(value.astype(np.float64))
  if dtype in INTEGERS:
    low, high = integer_range(dtype)
    # The comparison with the range comes first: inf and nan are no int.
    return int(number) if low <= number <= high and number == int(number) else None
  with np.errstate(over="ignore"):
    same = float(np.float64(number).astype(NUMPY_DTYPES[dtype]))
  return float(number) if same == number or number != number else None


def _operands(writer: Writer, node: gs.Node, hints: Sequence[str]) -> list[Operand]:
  """Every input, constant scalars as literals as long as another operand gives the dtype."""
  scope = writer.scope
  spec = OPERATORS[VARIADIC.get(scope.op(node), scope.op(node))]
  variadic = scope.op(node) in VARIADIC
  letters = "T" * len(node.inputs) if variadic else spec.operands
  kind = "T" if "T" in letters else "B"  # of the operands that may be literals, if not all are
  typed = [t for t, letter in zip(node.inputs, letters, strict=True) if letter == kind]
  dtype = known_dtype(writer, typed[0])
  is_named = [id(t) in writer.names or literal(scope, t, dtype) is None for t in typed]
  giver = typed[is_named.index(True)] if True in is_named else typed[0]
  return [
    _operand(writer, node, t, hint, dtype if letter == kind and t is not giver else None)
    for t, letter, hint in zip(node.inputs, letters, hints, strict=True)
  ]


def _same_operator(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  spec = OPERATORS[writer.scope.op(node)]
  count = len(spec.operands)
  if len(node.inputs) != count or any(tensor.is_empty() for tensor in node.inputs):
    raise NotPointwiseError(f"{label(node)} has {len(node.inputs)} inputs; in a program {spec.name} has {count}")
  unknown = set(node.attrs) - {name for name, _ in spec.attributes}
  if unknown:
    raise NotPointwiseError(f"{label(node)} has the attribute '{min(unknown)}', which {spec.name} has in no program")
  attributes = {name: node.attrs[name] for name, _ in spec.attributes if name in node.attrs}
  return writer.emit(spec.name, *_operands(writer, node, hints), **attributes)


def _cast(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  """Cast, CastLike, and what changes nothing: a Cast to the dtype that the value has already."""
  return writer.emit("Cast", writer.name(node.inputs[0], hints[0]), to=known_dtype(writer, node.outputs[0]))


def _dropout(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  scope = writer.scope
  if scope.opset < 7:
    raise NotPointwiseError(f"{label(node)} is that of opset {scope.opset}; from opset 7 on it is known")
  for mask in node.outputs[1:]:
    used = "" if mask.is_empty() else scope.used_beyond(mask, [])
    if used:
      raise NotPointwiseError(f"its mask is wanted: {used}")
  if (mode := optional_input(node, 2)) is not None:
    training = scope.constant(mode, 1)
    if training is None or training.any():
      raise NotPointwiseError(f"'{mode.name}' is not surely false: {label(node)} may drop values")
  return _cast(writer, node, hints)


def _pow(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  base, exponent = node.inputs
  dtype = known_dtype(writer, base)
  number: float | int | None = None
  if id(exponent) not in writer.names and _adds_no_dimension(writer.scope, node, exponent):
    number = literal(writer.scope, exponent, dtype)
    if number is not None:
      return writer.emit("Pow", writer.name(base, hints[0]), number)
  other = writer.scope.dtype(exponent)
  if other == dtype:
    power = writer.name(exponent, hints[1])
    return writer.emit("Pow", _operand(writer, node, base, hints[0], dtype), power)
  # A dtype that holds both; as in ONNX, the result has the base's.
  wide = "float" if dtype in IN_FLOAT and other in IN_FLOAT else "double"
  x = writer.name(base, hints[0])
  n: Operand
  if _adds_no_dimension(writer.scope, node, exponent):
    number = literal(writer.scope, exponent, wide)
  if number is not None:
    n = number
  else:
    n = writer.name(exponent, hints[1])
    n = n if other == wide else writer.emit("Cast", n, to=wide)
  power = writer.emit("Pow", x if dtype == wide else writer.emit("Cast", x, to=wide), n)
  return power if dtype == wide else writer.emit("Cast", power, to=dtype)


def _variadic(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  if len(node.inputs) == 1:
    return _cast(writer, node, hints)
  operands = _operands(writer, node, hints)
  operands.sort(key=lambda operand: not isinstance(operand, str))  # one that gives the dtype comes first
  result = operands[0]
  for operand in operands[1:]:
    result = writer.emit(VARIADIC[str(node.op)], result, operand)
  if node.op == "Mean":
    result = writer.emit("Div", result, float(len(operands)))
  assert isinstance(result, str)
  return result


def _clip(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  x = node.inputs[0]
  dtype = known_dtype(writer, x)
  # Absent: the dtype's own limits, as the standard says.
  limits: list[Operand] = list(integer_range(dtype) if dtype in INTEGERS else (LOWEST[dtype], -LOWEST[dtype]))
  if writer.scope.opset < 11:
    given = (node.attrs.get("min"), node.attrs.get("max"))
    limits = [limit if number is None else float(number) for limit, number in zip(limits, given, strict=True)]
  for index in (1, 2):
    if (limit := optional_input(node, index)) is not None:
      limits[index - 1] = _operand(writer, node, limit, hints[index], dtype)
  return writer.emit("Clip", writer.name(x, hints[0]), *limits)


def _bias_add(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  x, bias, skip = node.inputs
  biased = writer.emit("Add", writer.name(x, hints[0]), writer.name(bias, "bias"))
  return writer.emit("Add", biased, writer.name(skip, "skip"))


def _contrib_gelu(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
  x = writer.name(node.inputs[0], hints[0])
  if (bias := optional_input(node, 1)) is not None:
    x = writer.emit("Add", x, writer.name(bias, "bias"))
  if node.op == "QuickGelu":
    return writer.emit("QuickGelu", x, alpha=float(node.attrs.get("alpha", 1.702)))
  return writer.emit("Gelu", x, approximate="tanh" if node.op == "FastGelu" else "none")


_HANDLERS: dict[str, Callable[[Writer, gs.Node, Sequence[str]], str]] = {
  **dict.fromkeys(("Cast", "CastLike", "Identity"), _cast),
  "Dropout": _dropout,
  "Pow": _pow,
  "Clip": _clip,
  **dict.fromkeys(VARIADIC, _variadic),
  **dict.fromkeys([f"com.microsoft::{name}" for name in CONTRIB], _contrib_gelu),
  "com.microsoft::BiasAdd": _bias_add,
}
