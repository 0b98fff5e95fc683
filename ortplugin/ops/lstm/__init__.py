"""FusedLSTM: the recurrence of an LSTM whose products of the inputs are there already.

    i, o, f, g = G[t, b, d] + R[d] h[t-1]        for each unit; t + 1 in place of t - 1 backwards
    c[t] = sigmoid(f) c[t-1] + sigmoid(i) tanh(g)
    h[t] = sigmoid(o) tanh(c[t])

docs/operators.md has the meaning in full.
Inputs: G, of each gate the product of the inputs and both biases, R, and h0 and c0 or neither. Outputs: Y, h of each
    step, and none, the first or both of Y_h and Y_c.
Errors: another dtype, an attribute that is none of these, shapes that do not fit each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto

from ...arrays import Array
from ...errors import ModelError
from ...graph import Dim, Shape, TensorType, show
from ...graph.conv_geometry import LARGEST
from ...program import NUMPY_DTYPES
from .. import node_attributes as nodes
from ..base import Operator
from ..decompose import Builder
from .reference import recurrence

NAME = "FusedLSTM"
GATES = 4
DTYPES = ("float16", "bfloat16", "float")
DIRECTIONS = ("forward", "reverse", "bidirectional")
FAST_HIDDEN, FAST_HIDDEN_TF32 = range(16, 129, 16), range(16, 97, 16)
"""Hidden sizes whose R the registers of a GPU's block hold, in fp16 and bf16, and in TF32: see lstm.cu."""

_TYPES = {
  "hidden_size": AttributeProto.INT,
  "dtype": AttributeProto.STRING,
  "direction": AttributeProto.STRING,
  "batch_first": AttributeProto.INT,
  "allow_tf32": AttributeProto.INT,
}


@dataclass(frozen=True)
class LSTM:
  """A node's attributes, checked and complete."""

  where: str  # for errors
  hidden: int
  dtype: str
  direction: str
  batch_first: bool

  @property
  def directions(self) -> int:
    """D."""
    return 2 if self.direction == "bidirectional" else 1


def attributes_of(node: onnx.NodeProto) -> LSTM:
  """The attributes of a FusedLSTM. Raises ModelError that names the node where they are wrong."""
  where = nodes.where_is(node)
  given = nodes.read(node, _TYPES)
  if len(node.input) not in (2, 4) or not all(node.input):
    raise ModelError(f"{where}: {len(node.input)} inputs, but it takes 2, G and R, or 4 with h0 and c0")
  if not 1 <= len(node.output) <= 3 or not all(node.output):
    raise ModelError(f"{where}: {len(node.output)} outputs, but it has 1 to 3: Y, Y_h and Y_c")
  hidden = given.get("hidden_size", 0)
  if not 1 <= hidden <= LARGEST:
    raise ModelError(f"{where}: hidden_size is {hidden}, but must be from 1 to {LARGEST}")
  if given.get("dtype") not in DTYPES:
    raise ModelError(f"{where}: dtype is {given.get('dtype', '')[:40]!r}, but must be one of {', '.join(DTYPES)}")
  nodes.check_word(where, given, "direction", DIRECTIONS)
  batch_first = nodes.check_flag(where, given, "batch_first")
  nodes.check_flag(where, given, "allow_tf32")
  return LSTM(where, hidden, given["dtype"], given.get("direction", DIRECTIONS[0]), batch_first)


def _check_shape(lstm: LSTM, name: str, shape: Shape | None, wanted: Shape) -> None:
  """Raises ModelError where the shape is known and surely another one; None in `wanted`: any length."""
  if shape is None:
    return
  pairs = zip(shape, wanted, strict=False)
  if len(shape) != len(wanted) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
    raise ModelError(f"{lstm.where}: {name} has the shape {show(shape)}, but must have {show(wanted)}")


def _batch(lstm: LSTM, g: Shape | None) -> Dim:
  """B, as far as G's shape tells it."""
  axes = [] if g is None else [dim for axis, dim in enumerate(g[:-1]) if axis != int(lstm.batch_first)]
  known = [dim for dim in axes if isinstance(dim, int)]
  if len(axes) == 1:
    return axes[0]
  return math.prod(known) if axes and len(known) == len(axes) else None


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """The outputs' dtype and shapes, None where G's does not tell."""
  lstm = attributes_of(node)
  h, d, dtype = lstm.hidden, lstm.directions, np.dtype(NUMPY_DTYPES[lstm.dtype])
  for name, tensor in zip(("G", "R", "h0", "c0"), inputs, strict=False):
    if tensor.dtype is not None and tensor.dtype != dtype:
      raise ModelError(f"{lstm.where}: {name} is {tensor.dtype}, but dtype is '{lstm.dtype}'; cast it")
  g = inputs[0].shape
  _check_shape(lstm, "G", g, (*(None,) * max(2, len(g or ()) - 1), d * h * GATES))
  _check_shape(lstm, "R", inputs[1].shape, (d, GATES * h, h))
  batch = _batch(lstm, g)
  for name, tensor in zip(("h0", "c0"), inputs[2:], strict=False):
    _check_shape(lstm, name, tensor.shape, (d, batch, h))
  y: Shape | None = None if g is None else (*g[:-1], d * h)
  return [TensorType(dtype, y), *[TensorType(dtype, (d, batch, h))] * (len(node.output) - 1)]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX.

  ONNX's LSTM in float32, whose W selects each gate's element of G; Casts, Transposes and a Reshape around it.
  """
  lstm = attributes_of(node)
  b = Builder(opset, f"{node.output[0]}/unfused")
  h, d = lstm.hidden, lstm.directions
  width, is_narrow = d * h * GATES, lstm.dtype != "float"

  def ints(*values: int) -> str:
    return b.int64(values)

  def finish(value: str, output: str, shape: str) -> None:
    value = b.op("Reshape", value, shape, output="" if is_narrow else output)
    if is_narrow:
      b.cast(value, lstm.dtype, output)

  def rows_of(value: str, axes: Sequence[int], *last: int) -> str:  # its lengths on these axes, then others
    lengths = b.op("Slice", b.op("Shape", value), ints(axes[0]), ints(axes[1]))
    return b.op("Concat", lengths, ints(*last), axis=0)

  g, r, *states = [b.cast(each, "float") if is_narrow else each for each in node.input]
  moved = b.op("Transpose", b.op("Reshape", g, ints(0, 0, -1, width)), perm=[1, 0, 2, 3]) if lstm.batch_first else g
  x = b.op("Reshape", moved, ints(0, -1, width))
  one = b.op("EyeLike", b.op("ConstantOfShape", ints(width, width)), dtype=onnx.TensorProto.FLOAT)
  by_gate = b.op("Transpose", b.op("Reshape", one, ints(d, h, GATES, width)), perm=[0, 2, 1, 3])
  w = b.op("Reshape", by_gate, ints(d, GATES * h, width))
  outputs = [f"{node.output[0]}/unfused/{name}" for name in ("Y", "Y_h", "Y_c")[: len(node.output)]]
  inputs = [x, w, r, *(["", "", *states] if states else [])]
  b.nodes.append(
    onnx.helper.make_node("LSTM", inputs, outputs, f"{outputs[0]}/LSTM", hidden_size=h, direction=lstm.direction)
  )
  y = b.op("Transpose", outputs[0], perm=[0, 2, 1, 3])
  if lstm.batch_first:
    y = b.op("Transpose", b.op("Reshape", y, rows_of(moved, (0, 3), d * h)), perm=[1, 0, 2, 3])
  finish(y, node.output[0], rows_of(g, (0, -1), d * h))
  for value, output in zip(outputs[1:], node.output[1:], strict=True):
    finish(value, output, ints(d, 0, h))
  return b.nodes


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """`rounded`: in the node's dtype. See reference.py."""
  lstm = attributes_of(node)
  infer_shapes(node, [TensorType(each.dtype, each.shape) for each in inputs])
  reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[lstm.direction]
  outputs = recurrence(inputs, lstm.hidden, reverse, int(lstm.batch_first))[: len(node.output)]
  return [each.astype(NUMPY_DTYPES[lstm.dtype]) if rounded else each for each in outputs]


OPERATOR = Operator(
  NAME, "the recurrence of an LSTM whose products of the inputs are there already", infer_shapes, decompose, reference
)
