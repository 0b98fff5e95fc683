"""Operators as programs over tensors, and several of them as one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from ..graph import DOMAIN, NotPointwiseError, Scope, is_pointwise
from ..graph.pointwise import Writer, write
from ..ops.pointwise import NAME
from ..program import (
  COMPARISONS,
  DTYPES,
  FLOATING,
  Operand,
  Parameter,
  Program,
  ProgramError,
  Statement,
  fresh_name,
  parse,
)
from .conditions import unknown_rank
from .operands import merged_duplicates

HINTS = {"Add": "bias", "Sub": "bias", "Mul": "scale", "Div": "scale", "PRelu": "slope", "Where": "condition"}

_SEED = Program((Parameter("float", "_"),), (Parameter("float", "_"),), ())

# A result of these jumps where an operand moves by a rounding; so does a Cast's to an integer or bool.
JUMPS = frozenset({*COMPARISONS, "Floor", "Ceil", "Round", "Sign", "Mod", "IsInf"})
HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Member:
  """One operator, or what was fused before, as a program: `inputs` and `outputs` are its parameters and results."""

  node: gs.Node
  program: Program
  inputs: tuple[gs.Tensor, ...]
  outputs: tuple[gs.Tensor, ...]

  @property
  def rounded(self) -> frozenset[str]:
    """The parameters that must be rounded to their narrow dtype, as the model has it, where they are computed."""
    jumping = {name for each in self.program.statements if _jumps(each) for name in each.names}
    return frozenset(p.name for p in self.program.parameters if p.name in jumping and p.dtype in HALF)


def _jumps(statement: Statement) -> bool:
  return statement.op in JUMPS or (statement.op == "Cast" and statement.attribute("to") not in FLOATING)


def read_fused(node: gs.Node, inputs: Sequence[gs.Tensor], outputs: Sequence[gs.Tensor]) -> Member:
  """A node of ours as its program, whose parameters and results stand for `inputs`, each once then, and `outputs`.

  Raises ProgramError if it is invalid, which the runtime names in full.
  """
  program = parse(str(node.attrs.get("program", "")))
  if len(program.parameters) != len(inputs) or len(program.results) != len(outputs):
    raise ProgramError("its program does not fit the node")
  program, inputs = merged_duplicates(program, inputs)
  return Member(node, program, tuple(inputs), tuple(outputs))


def member_of(scope: Scope, node: gs.Node, left_alone: frozenset[int] = frozenset()) -> Member | None:
  """The node as a program; None if it is not pointwise, or makes one of the tensors whose ids are in `left_alone`.

  Raises NotPointwiseError or ProgramError with the reason why it is none.
  """
  if scope.op(node) == f"{DOMAIN}::{NAME}":
    member = read_fused(node, node.inputs, node.outputs)
    if member.program.core:
      raise ProgramError("its program does not fit the node")
    return member
  if not is_pointwise(scope, node) or id(node.outputs[0]) in left_alone:
    return None
  output = node.outputs[0]
  check_ranks(scope, [*node.inputs, output])
  hint = HINTS.get(scope.op(node), "operand")
  return write_member(scope, node, ["x" if scope.same_shape(each, output) else hint for each in node.inputs])


def check_ranks(scope: Scope, tensors: Iterable[gs.Tensor]) -> None:
  """Raises NotPointwiseError where the rank of one is unknown."""
  for tensor in tensors:
    reason = None if tensor.is_empty() else unknown_rank(scope, tensor)
    if reason:
      raise NotPointwiseError(reason)


def write_member(scope: Scope, node: gs.Node, hints: Sequence[str], dtypes: Sequence[str] = DTYPES) -> Member:
  """A pointwise operator as a program of these dtypes whose parameters are called by `hints`, one for each input.

  Raises NotPointwiseError or ProgramError with the reason why it is none.
  """
  writer = Writer(_SEED, {}, scope, dtypes)
  value = write(writer, node, hints)
  dtype = scope.dtype(node.outputs[0])
  assert dtype is not None
  program = Program(tuple(writer.parameters), (Parameter(dtype, value),), tuple(writer.statements))
  return Member(node, program, tuple(writer.inputs), (node.outputs[0],))


def compose(members: list[Member], outputs: list[gs.Tensor]) -> tuple[Program, list[gs.Tensor]]:
  """One program of the members, in order, whose results are `outputs`; and what its parameters stand for."""
  values: dict[int, Parameter] = {}  # of tensors
  tensors: dict[str, gs.Tensor] = {}  # of parameters
  statements: list[Statement] = []

  def emit(statement: Statement) -> str:
    statements.append(replace(statement, name=f"v_{len(statements)}"))
    return statements[-1].name

  for member in members:
    local: dict[str, str] = {}
    rounded = member.rounded
    for parameter, tensor in zip(member.program.parameters, member.inputs, strict=True):
      if id(tensor) not in values:
        values[id(tensor)] = Parameter(parameter.dtype, fresh_name(parameter.name, tensors))
        tensors[values[id(tensor)].name] = tensor
      name = values[id(tensor)].name
      if parameter.name in rounded and name not in tensors:
        name = emit(Statement("v", "Cast", (name,), (("to", parameter.dtype),)))
      local[parameter.name] = name
    for statement in member.program.statements:
      operands: tuple[Operand, ...] = tuple(local[x] if isinstance(x, str) else x for x in statement.operands)
      local[statement.name] = emit(replace(statement, operands=operands))
    for result, tensor in zip(member.program.results, member.outputs, strict=True):
      values[id(tensor)] = Parameter(result.dtype, local[result.name])
  parameters = tuple(values[id(tensor)] for tensor in tensors.values())
  results = tuple(values[id(tensor)] for tensor in outputs)
  program = Program(parameters, results, tuple(statements)).without_redundant_casts()
  return program.readable(), [tensors[each.name] for each in program.parameters]
