"""FusedLayerNorm: layer or RMS normalisation with everything pointwise around it.

    s    = prologue(inputs)                                   any pointwise program; S is its shape
    n    = (s - mean(s)) / sqrt(var(s) + epsilon)             LayerNormalization, or
    n    = s / sqrt(mean(s^2) + epsilon)                      RMSNormalization
    outs = epilogue(n, s, inputs)                             any pointwise program; gamma and beta are a Mul and an Add

mean and var (biased, of the squared deviations) are taken over the axes that docs/programs.md says, with groups over
each of their parts.

Attribute: `program` (string), docs/programs.md; it holds exactly one LayerNormalization or RMSNormalization.
Optional attributes `ordered`, `order`, `image` (ints): the inputs whose numbers `ordered` holds are read in an order.
    Each is [N, rows, c] and stands for [N, *image, k * c], in which row i of an image is its rows order[i * k], ..,
    order[i * k + k - 1] side by side. `image` is the length of `order` where it is absent, k what its product leaves
    of that length. The norm is over the last axis alone then, axis=-1.
Inputs and outputs: the program's parameters and results, of the dtypes declared there; every output has the shape S.
    The prologue's inputs broadcast to S as in ONNX; every other input must broadcast to S.
Errors: an invalid program, another number of inputs or outputs than the program has, an input of another dtype than
    declared, shapes that do not broadcast, an axis out of range, groups that do not divide theirs, more than two runs
    of axes.
"""

import math
from collections.abc import Sequence

import numpy as np
import onnx

from ...arrays import Array
from ...errors import ModelError
from ...graph.shapes import TensorType, broadcast, show
from ...program import NUMPY_DTYPES, Program, Statement, sum_axes
from ..base import Operator
from ..decompose import Builder, to_onnx
from ..node_program import read_program
from . import reference as reference_module

NAME = "FusedLayerNorm"


def program_of(node: onnx.NodeProto) -> Program:
  """The node's program, checked against its inputs and outputs. Raises ModelError that names the node."""
  program = read_program(node)
  if program.core is None or program.core.op not in ("LayerNormalization", "RMSNormalization"):
    raise ModelError(f"node '{node.name}' ({NAME}): the program holds no LayerNormalization or RMSNormalization")
  return program


def order_of(node: onnx.NodeProto, program: Program) -> tuple[list[int], Array]:
  """The numbers of the inputs that are read in an order, and that order: [*image, k]. Raises ModelError."""
  given = {each.name: list(each.ints) for each in node.attribute}
  ordered, order = given.get("ordered", []), given.get("order", [])
  if not ordered and not order:
    return [], np.zeros((0, 1), np.int64)
  image, inputs, core = given.get("image") or [len(order)], range(len(program.parameters)), program.core
  fits = order and ordered and set(ordered) <= set(inputs) and min(image) > 0 and not len(order) % math.prod(image)
  if not fits or min(order) < 0 or core is None or core.number("axis") != -1 or core.attribute("axes"):
    raise ModelError(
      f"node '{node.name}' ({NAME}): 'ordered', {ordered}, must be numbers of inputs, 'order' rows from 0 on, of which "
      f"it has {len(order)}, 'image', {image}, a shape that divides these, and axis -1"
    )
  return ordered, np.array(order, np.int64).reshape(*image, -1)


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared and the shape S, None where the inputs' shapes do not tell."""
  program = program_of(node)
  ordered, order = order_of(node, program)
  shapes = [tensor.shape for tensor in inputs]
  for i in ordered:
    given, largest = shapes[i], order.max()
    if given is not None and (len(given) != 3 or (isinstance(given[1], int) and largest >= given[1])):
      where = f"node '{node.name}' ({NAME}): input '{node.input[i]}' of shape {show(given)}"
      raise ModelError(f"{where} must be [images, rows, width] with more rows than {largest}, which 'order' holds")
    *image, k = order.shape
    width = None if given is None else given[2] * k if isinstance(given[2], int) else given[2] if k == 1 else None
    shapes[i] = given and (given[0], *image, width)
  prologue = program.prologue
  shape = broadcast([each for each, p in zip(shapes, program.parameters, strict=True) if p.name in prologue])
  return [TensorType(NUMPY_DTYPES[result.dtype], shape) for result in program.results]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX."""
  program = program_of(node)
  ordered, order = order_of(node, program)
  builder, inputs = Builder(opset, f"{node.output[0]}/ordered"), list(node.input)
  for i in ordered:
    parts = [builder.constant(order[..., part], order.dtype) for part in range(order.shape[-1])]
    rows = [builder.op("Gather", node.input[i], part, axis=1) for part in parts]
    inputs[i] = rows[0] if len(rows) == 1 else builder.op("Concat", *rows, axis=-1)
  return builder.nodes + to_onnx(program, inputs, node.output, opset, f"{node.output[0]}/unfused", core)


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
    bounds = [builder.int64([each]) for each in (first, last, 0)]
    return builder.op("Slice", shape, *bounds)

  end = np.iinfo(np.int64).max
  count = builder.int64([groups])
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
  program = program_of(node)
  ordered, order = order_of(node, program)
  given = [reference_module.in_order(each, order) if i in ordered else each for i, each in enumerate(inputs)]
  return reference_module.layer_norm(program, given, rounded)


OPERATOR = Operator(
  NAME, "layer or RMS normalisation with pointwise prologue and epilogue", infer_shapes, decompose, reference
)
