"""FusedPointwise: any chain of pointwise operators as one.

    outs[i] = program(ins[broadcast(i)])            for every index i of S, the shape that all inputs broadcast to

Attribute: `program` (string), docs/programs.md; it holds no core operator.
Inputs and outputs: the program's parameters (1 to 32) and results (1 to 16), of the dtypes declared there; every output
    has the shape S.
Errors: an invalid program, one with a core operator, another number of inputs or outputs than the program has, an input
    of another dtype than declared, shapes that do not broadcast.
"""

from collections.abc import Sequence

import onnx

from ...arrays import Array
from ...errors import ModelError
from ...graph import TensorType, broadcast
from ...program import NUMPY_DTYPES, Program
from ..base import Operator
from ..decompose import to_onnx
from ..node_program import read_program
from . import reference as reference_module

NAME = "FusedPointwise"


def program_of(node: onnx.NodeProto) -> Program:
  """The node's program, checked against its inputs and outputs."""
  program = read_program(node)
  if program.core is not None:
    raise ModelError(f"node '{node.name}' ({NAME}): the program holds a {program.core.op}; it must be pointwise")
  if not program.parameters:
    raise ModelError(f"node '{node.name}' ({NAME}): the program has no parameters")
  return program


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared and the shape S, None where the inputs' shapes do not tell."""
  program = program_of(node)
  shape = broadcast([tensor.shape for tensor in inputs])
  return [TensorType(NUMPY_DTYPES[result.dtype], shape) for result in program.results]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX."""
  return to_onnx(program_of(node), node.input, node.output, opset, f"{node.output[0]}/unfused")


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """See reference.py."""
  return reference_module.pointwise(program_of(node), inputs, rounded)


OPERATOR = Operator(NAME, "any chain of pointwise operators, with broadcasting", infer_shapes, decompose, reference)
