"""FusedSumTo: sums over some axes of what pointwise operators compute, and such values themselves, in one pass.

    v    = program(ins[broadcast(i)])         for every index i of S, the shape that all inputs broadcast to
    outs = sum of v over `axes`, or v         each a SumTo of the program, or any other value of it

So are the gradients of what broadcasts: lerp's dx = SumTo((1 - w) dout) beside dy = w dout, a bias's SumTo(dout).

Attribute: `program` (string), docs/programs.md; it holds at least one SumTo and no other core operator. Nothing follows
    a SumTo but one Cast, whose value is a result.
Inputs and outputs: the program's parameters (1 to 32) and results (1 to 16), of the dtypes declared there. A SumTo has
    what its axes leave of S, every other result the shape S.
Sums of no elements are 0. Floating sums have an order that depends on the shapes and the device alone: equal inputs
    give equal bits.
Errors: an invalid program, one without SumTo or with a normalisation, a SumTo that is computed with, an axis beyond the
    rank of S, another number of inputs or outputs than the program has, an input of another dtype than declared, shapes
    that do not broadcast.
"""

from collections.abc import Sequence

import onnx

from ...arrays import Array
from ...errors import ModelError
from ...graph import Shape, TensorType, broadcast
from ...program import NUMPY_DTYPES, Program, Statement, sum_axes
from ..base import Operator
from ..decompose import Builder, to_onnx
from ..node_program import read_program
from . import reference as reference_module

NAME = "FusedSumTo"

# What sums run in where the operand's dtype has too few bits, or ONNX Runtime no ReduceSum: 64 bits of any sign add up
# to the same low bits.
_WIDE = {"float16": "float", "bfloat16": "float", "uint32": "int64", "uint64": "int64"}


def program_of(node: onnx.NodeProto) -> Program:
  """The node's program, checked against its inputs and outputs."""
  program = read_program(node)
  if reason := why_no_sum(program):
    raise ModelError(f"node '{node.name}' ({NAME}): {reason}")
  return program


def why_no_sum(program: Program) -> str | None:
  """Why the program is none of this operator; None if it is one."""
  if not program.cores:
    return "the program holds no SumTo"
  other = next((each for each in program.cores if each.op != "SumTo"), None)
  if other is not None:
    return f"the program holds a {other.op}, which another fused operator has"
  if not program.parameters:
    return "the program has no parameters, so its results have no shape"
  results = {each.name for each in program.results}
  ends = {each.name for each in program.cores}
  for statement in program.statements:
    used = ends.intersection(statement.names)
    if used and (statement.op != "Cast" or statement.name not in results or not _is_sum(program, statement)):
      return f"'{statement.name}' computes with the sum '{min(used)}'; only a Cast that is a result may"
    if used:
      ends.add(statement.name)
  return None


def _is_sum(program: Program, cast: Statement) -> bool:
  maker = program.statement(cast.names[0])
  return maker is not None and maker.op == "SumTo"


def sum_of(program: Program, result: str) -> Statement | None:
  """The SumTo that the result is, or is a Cast of; None for a result of the shape S."""
  if (statement := program.statement(result)) is not None and statement.op == "Cast":
    maker = program.statement(statement.names[0])
    statement = maker if maker is not None and maker.op == "SumTo" else statement
  return statement if statement is not None and statement.op == "SumTo" else None


def axes_of(statement: Statement) -> tuple[tuple[int, ...], bool]:
  """The axes of a SumTo, ascending, and whether they stay with length 1."""
  axes = sum_axes(str(statement.attribute("axes")))
  assert axes is not None  # or the program could not be
  return axes, statement.number("keepdims") == 1


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared, and its shape, None where the inputs' shapes do not tell."""
  program = program_of(node)
  whole = broadcast([tensor.shape for tensor in inputs])
  types = []
  for result in program.results:
    statement = sum_of(program, result.name)
    shape = whole
    if statement is not None and whole is not None:
      axes, keepdims = axes_of(statement)
      if axes[-1] >= len(whole):
        raise ModelError(
          f"node '{node.name}' ({NAME}): '{statement.name}' sums over axis {axes[-1]}, but the inputs "
          f"broadcast to {len(whole)} dimensions"
        )
      shape = summed_shape(whole, axes, keepdims)
    types.append(TensorType(NUMPY_DTYPES[result.dtype], shape))
  return types


def summed_shape(whole: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
  """What a sum over `axes` leaves of the shape."""
  if keepdims:
    return tuple(1 if axis in axes else dim for axis, dim in enumerate(whole))
  return tuple(dim for axis, dim in enumerate(whole) if axis not in axes)


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX."""
  return to_onnx(program_of(node), node.input, node.output, opset, f"{node.output[0]}/unfused", core)


def core(builder: Builder, statement: Statement, dtype: str, x: str, output: str) -> None:
  """A SumTo as ReduceSum: of 16-bit floats in float32."""
  axes, keepdims = axes_of(statement)
  if (wide := _WIDE.get(dtype)) is None:
    builder.sum(x, axes, keepdims, output)
  else:
    builder.cast(builder.sum(builder.cast(x, wide), axes, keepdims), dtype, output)


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """See reference.py."""
  return reference_module.sum_to(program_of(node), inputs, rounded)


OPERATOR = Operator(
  NAME,
  "sums over axes of what pointwise operators compute, and such values, in one pass",
  infer_shapes,
  decompose,
  reference,
)
