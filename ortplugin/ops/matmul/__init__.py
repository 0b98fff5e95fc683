"""FusedMatMul: a matrix product and any pointwise program of its result.

    c[.., n] = sum over k of A[.., k] * B[k, n]
    outs     = program(c, operands)               bias, activation, residual: whatever the program says

docs/operators.md has the meaning in full.
Inputs: A [.., K] of one dimension or more, B [K, N], [N, K] with `trans_b`, then one operand for each of the program's
    parameters but the first, in order, of the dtypes declared. With `gated` the first operand is weights as B is, and
    the program's second parameter is their product with A.
Outputs: one for each of the program's results (1 to 16), in order, with the dtype declared there and the shape [.., N].
Errors: FusedConv's of a program and its operands; B of other than two dimensions, A and B that disagree on K,
    a gate of another dtype or shape than B.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ...errors import ModelError
from ...graph.shapes import Shape, TensorType, show
from ...program import Program
from ..base import Operator
from ..conv.algorithms import variants_of
from ..conv_epilogue import check_attributes, infer_results, read_epilogue
from ..decompose import Builder, to_onnx
from ..node_attributes import where_is
from . import reference as reference_module

NAME = "FusedMatMul"


def flag(node: onnx.NodeProto, name: str) -> bool:
  """An attribute that is 0, as where it is left out, or 1. Raises ModelError that names the node."""
  given = next((each for each in node.attribute if each.name == name), None)
  if given is not None and (given.type != onnx.AttributeProto.INT or given.i not in (0, 1)):
    raise ModelError(f"{where_is(node)}: {name} must be 0 or 1")
  return given is not None and bool(given.i)


def trans_b_of(node: onnx.NodeProto) -> bool:
  """The node's `trans_b`; its other attributes but the program are checked too. Raises ModelError that names it."""
  check_attributes(node)
  return flag(node, "trans_b")


def is_gated(node: onnx.NodeProto, program: Program) -> bool:
  """The node's `gated`. Raises ModelError that names it, also where the program has no such parameter."""
  value, *operands = program.parameters
  gated = flag(node, "gated")
  if gated and (not operands or operands[0].dtype != value.dtype):
    raise ModelError(f"{where_is(node)}: with gated=1 the program's second parameter must be {value.dtype}")
  return gated


def program_of(node: onnx.NodeProto) -> Program:
  """The node's program, checked against its inputs and outputs. Raises ModelError that names the node."""
  return read_epilogue(node, own_inputs=2)


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared and the product's shape, None where the inputs' shapes do not tell."""
  trans_b, program = trans_b_of(node), program_of(node)

  def shape(a: Shape | None, b: Shape | None) -> Shape | None:
    where = where_is(node)
    if a == ():
      raise ModelError(f"{where}: A is a scalar; it must have one dimension at least, the last of length K")
    if b is not None and len(b) != 2:
      raise ModelError(f"{where}: B has the shape {show(b)}; it must have two dimensions")
    n, k = (None, None) if b is None else b if trans_b else (b[1], b[0])
    if a is not None and isinstance(a[-1], int) and isinstance(k, int) and a[-1] != k:
      raise ModelError(f"{where}: A has the shape {show(a)}; with B {show(b)} its last length must be {k}")
    return None if a is None else (*a[:-1], n)

  if is_gated(node, program):
    weights, gate = inputs[1].shape, inputs[2].shape
    known = [] if weights is None or gate is None else zip(weights, gate, strict=False)
    if any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in known):
      where = where_is(node)
      raise ModelError(f"{where}: the gate's weights have the shape {show(gate)}; it must be B's, {show(weights)}")
    value = TensorType(inputs[2].dtype, shape(inputs[0].shape, gate))
    inputs = [*inputs[:2], value, *inputs[3:]]
  return infer_results(node, program, inputs, shape)


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX.

  A MatMul, of B transposed with `trans_b`, one more for a gate, and the program's operators. (Before opset 13 there is
  no bfloat16.)
  """
  trans_b, program = trans_b_of(node), program_of(node)
  prefix = f"{node.output[0]}/unfused"
  builder = Builder(opset, f"{prefix}/product")
  a, b, *operands = node.input
  value = program.parameters[0]
  if trans_b:
    b = builder.op("Transpose", b, perm=[1, 0])
  if is_gated(node, program):
    weights = builder.op("Transpose", operands[0], perm=[1, 0]) if trans_b else operands[0]
    operands[0] = builder.op("MatMul", a, weights)
  outputs = {each.name: output for each, output in zip(program.results, node.output, strict=True)}
  result = outputs.get(value.name, f"{prefix}/value")
  builder.op("MatMul", a, b, output=result)
  return builder.nodes + to_onnx(program, [result, *operands], node.output, opset, prefix, whole=value.name)


def reference(
  node: onnx.NodeProto, inputs: Sequence[npt.NDArray[Any]], rounded: bool = True
) -> list[npt.NDArray[np.generic]]:
  """The outputs in NumPy, computed in float64; see reference.py."""
  trans_b, program = trans_b_of(node), program_of(node)
  return reference_module.matmul(trans_b, program, inputs, rounded, is_gated(node, program))


def device_variants(
  node: onnx.NodeProto, inputs: Sequence[TensorType], constant: Sequence[bool], device_id: int = 0
) -> Sequence[Mapping[str, Any]]:
  """{"algorithm": text} for each one that a GPU offers for inputs of these shapes; none where one is unknown."""
  infer_shapes(node, inputs)
  return variants_of(node, inputs, constant, device_id)


OPERATOR = Operator(
  name=NAME,
  summary="a matrix product with bias, activation, residual and whatever else is pointwise",
  infer_shapes=infer_shapes,
  decompose=decompose,
  reference=reference,
  device_variants=device_variants,
)
