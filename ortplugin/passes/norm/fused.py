"""The FusedLayerNorm node in the optimizer: how it is made from a normalisation, and read again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope
from ...ops.layer_norm import NAME
from ...program import FLOATING, Operand, Parameter, Program, Statement
from ..absorb import Core
from ..members import Member
from ..operands import merged_duplicates

DTYPES = (*FLOATING, "bool")  # of a norm's program: its kernels read and write no integers
WIDTH = {"float16": 1, "bfloat16": 1, "float": 2, "double": 3}


Over = Mapping[str, float | str]


def over_axes(axes: Sequence[int], rank: int) -> Over | None:
  """The attributes of a core over `axes`, in order from 0 on, of a value of this rank; None if it has none."""
  if list(axes) == list(range(rank - len(axes), rank)):
    return {"axis": -len(axes)}
  runs = sum(axis - 1 not in axes for axis in axes)
  return {"axes": " ".join(map(str, axes))} if runs == 1 or (runs == 2 and axes[-1] == rank - 1) else None


@dataclass(frozen=True)
class Norm:
  """One normalisation as found in a graph: what is added up, normalised, scaled and shifted."""

  core: str  # LayerNormalization or RMSNormalization
  over: Over  # attributes of the core that say which axes
  epsilon: float
  addends: Sequence[gs.Tensor]  # their sum is normalised
  names: Sequence[str]  # of the addends, in the program
  dtype: str  # of the addends
  result: str  # dtype of what comes out, and of gamma and beta
  gamma: gs.Tensor | None = None
  beta: gs.Tensor | None = None
  keep_sum: bool = False  # the sum is a result too


def fused_node(norm: Norm, name: str) -> gs.Node:
  """The FusedLayerNorm node, without outputs: they are y, and the sum if it is kept."""
  inputs = list(norm.addends)
  parameters = [Parameter(norm.dtype, each) for each in norm.names]
  statements: list[Statement] = []

  def emit(op: str, *operands: Operand, **attributes: float | str) -> str:
    statements.append(Statement(f"v{len(statements)}", op, operands, tuple(attributes.items())))
    return statements[-1].name

  s = norm.names[0]
  for each in norm.names[1:]:
    s = emit("Add", s, each)
  wide = core_dtype(norm.dtype, norm.result)
  x = s if wide == norm.dtype else emit("Cast", s, to=wide)
  y = emit(norm.core, x, epsilon=norm.epsilon, **norm.over)
  if wide != norm.result:
    y = emit("Cast", y, to=norm.result)
  for tensor, op, hint in ((norm.gamma, "Mul", "gamma"), (norm.beta, "Add", "beta")):
    if tensor is not None:
      parameters.append(Parameter(norm.result, hint))
      inputs.append(tensor)
      y = emit(op, y, hint)
  results = [Parameter(norm.result, y)]
  if norm.keep_sum:
    results.append(Parameter(norm.dtype, s))
  program = Program(tuple(parameters), tuple(results), tuple(statements))
  return node_of(program, inputs, name)


def node_of(program: Program, inputs: Sequence[gs.Tensor], name: str) -> gs.Node:
  """A FusedLayerNorm node without outputs, its inputs in the order in which the program reads them, each once."""
  program, inputs = merged_duplicates(program, inputs)
  first_use = [operand for statement in program.statements for operand in statement.names]
  order = sorted(range(len(inputs)), key=lambda i: first_use.index(program.parameters[i].name))
  program = replace(program, parameters=tuple(program.parameters[i] for i in order))
  return gs.Node(NAME, name, {"program": str(program.readable())}, [inputs[i] for i in order], [], DOMAIN)


class NormCore(Core):
  """What FusedLayerNorm is to what is pointwise around it (passes/absorb.py)."""

  operators = (NAME,)
  called = "the norm"
  statements = ("LayerNormalization", "RMSNormalization")

  def read(self, scope: Scope, node: gs.Node) -> Member | None:
    """The node as a program; None for one that reads rows in an order, of which that says nothing."""
    return None if "ordered" in node.attrs else super().read(scope, node)

  def node_of(self, first: Member, program: Program, inputs: Sequence[gs.Tensor]) -> gs.Node:
    """The node with another program."""
    return node_of(program, inputs, first.node.name)


def core_dtype(given: str, result: str) -> str:
  """The dtype to normalise in: the common one, else float, or double where one is double and neither is half."""
  if given == result:
    return given
  return "double" if WIDTH[given] + WIDTH[result] >= 5 else "float"
