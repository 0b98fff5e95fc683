"""FusedLayerNorm: layer or RMS normalisation with everything pointwise around it.

    s    = prologue(inputs)                                   any pointwise program; S is its shape
    n    = (s - mean(s)) / sqrt(var(s) + epsilon)             LayerNormalization, or
    n    = s / sqrt(mean(s^2) + epsilon)                      RMSNormalization
    outs = epilogue(n, s, inputs)                             any pointwise program; gamma and beta are a Mul and an Add

mean and var (biased, of the squared deviations) are taken over the axes that docs/programs.md says, with groups over
each of their parts.

Domain `ortplugin`, version 1.
Attribute: `program` (string), docs/programs.md; it holds exactly one LayerNormalization or RMSNormalization.
Inputs: one for each of the program's parameters, in order; float16, bfloat16, float, double or bool as declared. The
    prologue's inputs broadcast to S as in ONNX; every other input must broadcast to S.
Outputs: one for each of the program's results, in order, with the dtype declared there and the shape S.
Reductions run in float32, in float64 for double. Other arithmetic likewise.
Errors: an invalid program, another number of inputs or outputs than the program has, an input of another dtype than
    declared, shapes that do not broadcast, an axis out of range, groups that do not divide theirs, more than two runs
    of axes.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from ortplugin.arrays import Array
from ortplugin.errors import ModelError
from ortplugin.graph.shapes import TensorType, broadcast
from ortplugin.ops.base import Operator
from ortplugin.ops.decompose import Builder, to_onnx
from ortplugin.ops.layer_norm import reference as reference_module
from ortplugin.ops.node_program import read_program
from ortplugin.program import NUMPY_DTYPES, Program, Statement, sum_axes

NAME = "FusedLayerNorm"


def program_of(node: onnx.NodeProto) -> Program:
  """The node's program, checked against its inputs and outputs. Raises ModelError that names the node."""
  program = read_program(node)
  if program.core is None or program.core.op not in ("LayerNormalization", "RMSNormalization"):
    raise ModelError(f"node '{node.name}' ({NAME}): the program holds no LayerNormalization or RMSNormalization")
  return program


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared and the shape S, None where the inputs' shapes do not tell."""
  program = program_of(node)
  prologue = program.prologue
  shapes = [
    tensor.shape for parameter, tensor in zip(program.parameters, inputs, strict=True) if parameter.name in prologue
  ]
  shape = broadcast(shapes)
  return [TensorType(NUMPY_DTYPES[result.dtype], shape) for result in program.results]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX at this opset of the domain ai.onnx (11 or later), under the same output names."""
  return to_onnx(program_of(node), node.input, node.output, opset, f"{node.output[0]}/unfused", core)


def core(builder: Builder, statement: Statement, dtype: str, x: str, output: str) -> None:
  """The normalisation itself, in float32 (double in double): ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Div."""
  axis, axes = int(statement.number("axis")), sum_axes(str(statement.attribute("axes")))
  if axes is None and axis >= 0:
    raise ModelError(
      f"'{output}': axis {axis} counts from the front, which has no decomposition without the rank; "
      "write it as a negative number"
    )
  axes = axes or tuple(range(axis, 0))
  wide = dtype if dtype == "double" else "float"
  s = x if dtype == wide else builder.cast(x, wide)
  shape = ""
  if groups := int(statement.number("groups")):
    shape = builder.op("Shape", s)
    s, axes = _with_groups(builder, s, shape, axis, axes, groups)
  centred = builder.op("Sub", s, builder.mean(s, axes)) if statement.op == "LayerNormalization" else s
  variance = builder.mean(builder.op("Mul", centred, centred), axes)
  epsilon = builder.constant(statement.number("epsilon"), wide)
  deviation = builder.op("Sqrt", builder.op("Add", variance, epsilon))
  y = builder.op("Div", centred, deviation, output="" if groups or dtype != wide else output)
  if groups:
    y = _reshape(builder, y, shape, "" if dtype != wide else output)
  if dtype != wide:
    builder.cast(y, dtype, output)


def _with_groups(
  builder: Builder, s: str, shape: str, axis: int, axes: tuple[int, ...], groups: int
) -> tuple[str, tuple[int, ...]]:
  """`s` with an axis of groups in front of what each of them has of the axis `axis`; the axes to normalise over."""
  if axis < -1:
    raise ModelError(
      f"axis {axis} in groups counts from the end, which has no decomposition; write -1 or from the front"
    )

  def part(first: int, last: int) -> str:
    bounds = [builder.constant([each], np.dtype(np.int64)) for each in (first, last, 0)]
    return builder.op("Slice", shape, *bounds)

  end = np.iinfo(np.int64).max
  count = builder.constant([groups], np.dtype(np.int64))
  length = builder.op("Div", part(axis, end if axis == -1 else axis + 1), count)
  after = [] if axis == -1 else [part(axis + 1, end)]
  target = builder.op("Concat", part(0, axis), count, length, *after, axis=0)
  moved = [each if axis == -1 or each < axis else each + 1 for each in axes]
  return _reshape(builder, s, target), (*moved, -1 if axis == -1 else axis + 1)


def _reshape(builder: Builder, value: str, shape: str, output: str = "") -> str:
  zero = {"allowzero": 1} if builder.opset >= 14 else {}  # before 14 a length of 0 is copied
  return builder.op("Reshape", value, shape, output=output, **zero)


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs in NumPy, computed in float64; see reference.py."""
  return reference_module.layer_norm(program_of(node), inputs, rounded)


OPERATOR = Operator(
  name=NAME,
  summary="layer or RMS normalisation with pointwise prologue and epilogue",
  infer_shapes=infer_shapes,
  decompose=decompose,
  reference=reference,
)
