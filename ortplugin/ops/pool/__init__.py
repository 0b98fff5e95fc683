"""FusedPool: the maximum or the average over windows, or over all of an image, in NCHW or NHWC.

    Y[n, c, o] = max or mean over k of X[n, c, o * stride + k * dilation - begin]         windows
    Y[n, c, 0] = max or mean over i of X[n, c, i]                                        global

docs/operators.md has the meaning in full; reference.py the formula.
Input: X, of 1 to 3 spatial dimensions; Output: Y, of X's dtype.
Errors: attributes that contradict each other or the shape, a kernel that is larger by more, another dtype, and with
    windows a spatial dimension of 0 elements of a batch that has images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto

from ...arrays import Array
from ...errors import ModelError
from ...graph import Dim, Shape, TensorType
from ...graph.conv_geometry import AUTO_PADS, MOST_SPATIAL
from .. import node_attributes as nodes
from ..base import Operator
from ..decompose import Builder
from .layout import as_channels_first, global_over_channels_last
from .reference import Window, pooled

NAME = "FusedPool"
KINDS = ("max", "average", "global_average", "global_max")
FLOATING = tuple(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))
BYTES = tuple(map(np.dtype, (np.int8, np.uint8)))

_INTS = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 0}  # name: its least number
_TYPES = {
  "kind": AttributeProto.STRING,
  "layout": AttributeProto.STRING,
  "auto_pad": AttributeProto.STRING,
  "ceil_mode": AttributeProto.INT,
  "count_include_pad": AttributeProto.INT,
  **dict.fromkeys(_INTS, AttributeProto.INTS),
}


@dataclass(frozen=True)
class Pool:
  """A node's attributes, checked and complete. Lists are empty for a global kind."""

  where: str  # for errors
  kind: str
  nhwc: bool = False
  auto_pad: str = "NOTSET"
  ceil_mode: bool = False
  count_include_pad: bool = False
  kernel_shape: tuple[int, ...] = ()
  strides: tuple[int, ...] = ()
  dilations: tuple[int, ...] = ()
  pads: tuple[int, ...] = ()  # all begins, then all ends

  @property
  def is_global(self) -> bool:
    """Whether all of an image is one window."""
    return self.kind.startswith("global_")

  @property
  def is_max(self) -> bool:
    """Whether it takes the maximum; else the average."""
    return self.kind.endswith("max")


def attributes_of(node: onnx.NodeProto) -> Pool:
  """The attributes of a FusedPool. Raises ModelError that names the node where they are wrong."""
  where = nodes.where_is(node)
  nodes.check_one_input(node)
  given = nodes.read(node, _TYPES)
  kind = given.pop("kind", None)
  if kind not in KINDS:
    raise ModelError(f"{where}: kind is {kind!r}, but must be one of {', '.join(KINDS)}")
  nhwc = nodes.is_nhwc(where, given)
  given.pop("layout", None)
  if kind.startswith("global_"):
    if given:
      raise ModelError(f"{where}: {', '.join(given)} beside kind '{kind}', which takes no windows; remove them")
    return Pool(where, kind, nhwc)
  nodes.check_word(where, given, "auto_pad", AUTO_PADS)
  flags = {name: nodes.check_flag(where, given, name) for name in ("ceil_mode", "count_include_pad")}
  if kind == "max" and flags["count_include_pad"]:
    raise ModelError(f"{where}: count_include_pad is 1 beside kind 'max', which counts nothing; remove it")
  if "kernel_shape" not in given:
    raise ModelError(f"{where}: the attribute 'kernel_shape' is missing")
  spatial = len(given["kernel_shape"])
  if spatial > MOST_SPATIAL:
    raise ModelError(f"{where}: kernel_shape has {spatial} numbers; there must be 1 to {MOST_SPATIAL}")
  for name, least in _INTS.items():
    nodes.check_numbers(where, given, name, 2 * spatial if name == "pads" else spatial, least)
  pool = Pool(
    where,
    kind,
    nhwc,
    given.get("auto_pad", AUTO_PADS[0]),
    flags["ceil_mode"],
    flags["count_include_pad"],
    given["kernel_shape"],
    given.get("strides", (1,) * spatial),
    given.get("dilations", (1,) * spatial),
    given.get("pads", (0,) * (2 * spatial)),
  )
  _check_pads(pool)
  return pool


def _check_pads(pool: Pool) -> None:
  if pool.auto_pad != "NOTSET" and any(pool.pads):
    raise ModelError(f"{pool.where}: pads is {list(pool.pads)} beside auto_pad {pool.auto_pad}; remove one of them")
  if pool.auto_pad.startswith("SAME") and max(pool.dilations) > 1:
    raise ModelError(
      f"{pool.where}: dilations is {list(pool.dilations)} beside auto_pad {pool.auto_pad}; write the pads instead"
    )
  if any(pad >= kernel for pad, kernel in zip(pool.pads, pool.kernel_shape * 2, strict=True)):
    raise ModelError(
      f"{pool.where}: pads is {list(pool.pads)}, but each must be smaller than the kernel, {list(pool.kernel_shape)}"
    )


def window_of(pool: Pool, axis: int, size: int) -> Window:
  """The windows along one spatial axis of `size` elements. Raises ModelError where there is none."""
  if pool.is_global:
    return Window(size, 1, size, 1, 1, 0, 0)
  kernel, stride, dilation = pool.kernel_shape[axis], pool.strides[axis], pool.dilations[axis]
  extent = (kernel - 1) * dilation + 1
  pad_begin, pad_end = pool.pads[axis], pool.pads[axis + len(pool.kernel_shape)]
  if pool.auto_pad.startswith("SAME"):
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    pad_begin, pad_end = total // 2, total - total // 2
    if pool.auto_pad == "SAME_LOWER":
      pad_begin, pad_end = pad_end, pad_begin
  room = size + pad_begin + pad_end - extent  # below 0 ONNX Runtime rounds toward 0, and refuses less than no window
  out = (-(-room // stride) if pool.ceil_mode or room < 0 else room // stride) + 1
  if out < 0:
    raise ModelError(
      f"{pool.where}: the kernel spans {extent} elements on spatial axis {axis}, but the padded input has only "
      f"{size + pad_begin + pad_end}"
    )
  if pool.ceil_mode and (out - 1) * stride >= size + pad_begin:  # it would begin in the padding
    out -= 1
  return Window(size, out, kernel, stride, dilation, pad_begin, pad_end)


def out_shape(pool: Pool, shape: Shape) -> Shape:
  """Y's shape, as far as X's tells it. Raises ModelError where X's does not fit."""
  nodes.check_rank(pool.where, shape, None if pool.is_global else len(pool.kernel_shape))
  sizes = shape[1:-1] if pool.nhwc else shape[2:]

  def out(axis: int, size: Dim) -> Dim:
    if size == 0 and shape[0] != 0 and isinstance(shape[0], int) and not pool.is_global:  # as in ONNX Runtime
      raise ModelError(f"{pool.where}: spatial axis {axis} of the input has no elements, so nothing can be pooled")
    if isinstance(size, int):
      return window_of(pool, axis, size).out
    return 1 if pool.is_global else None

  outs = tuple(out(axis, size) for axis, size in enumerate(sizes))
  return (shape[0], *outs, shape[-1]) if pool.nhwc else (*shape[:2], *outs)


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Y's dtype, which is X's, and its shape, None where X's does not tell."""
  pool = attributes_of(node)
  (x,) = inputs
  if x.dtype is not None and x.dtype not in (FLOATING + BYTES if pool.is_max else FLOATING):
    raise ModelError(f"{pool.where}: X is {x.dtype}, of which there is no {pool.kind}; cast it")
  return [TensorType(x.dtype, None if x.shape is None else out_shape(pool, x.shape))]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX.

  The operator of ONNX, with Transposes around it in NHWC; a global kind in NHWC is a reduction. ONNX's pooling has
  bfloat16 from opset 22 on, and MaxPool int8 and uint8 from 12. Raises ModelError for a dilated average before 19.
  """
  pool = attributes_of(node)
  builder = Builder(opset, f"{node.output[0]}/unfused")
  (x,), (y,) = node.input, node.output
  if pool.is_global:
    if pool.nhwc:
      global_over_channels_last(builder, "ReduceMax" if pool.is_max else "ReduceMean", x, y)
    else:
      builder.op("GlobalMaxPool" if pool.is_max else "GlobalAveragePool", x, output=y)
    return builder.nodes
  attributes: dict[str, Any] = {"kernel_shape": pool.kernel_shape, "strides": pool.strides}
  if pool.auto_pad == "NOTSET":
    attributes["pads"] = pool.pads
  else:
    attributes["auto_pad"] = pool.auto_pad
  if pool.ceil_mode:
    attributes["ceil_mode"] = 1
  if pool.count_include_pad:
    attributes["count_include_pad"] = 1
  if max(pool.dilations) > 1:
    if not pool.is_max and opset < 19:
      raise ModelError(
        f"{pool.where}: dilations of an average need opset 19 or later of ai.onnx, the model has {opset}; "
        "convert it with onnx.version_converter"
      )
    attributes["dilations"] = pool.dilations
  op = "MaxPool" if pool.is_max else "AveragePool"

  def pooling(value: str, output: str) -> None:
    builder.op(op, value, output=output, **attributes)

  as_channels_first(builder, pool.nhwc, len(pool.kernel_shape), x, y, pooling)
  return builder.nodes


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """`rounded`: in X's dtype. See reference.py."""
  pool = attributes_of(node)
  (x,) = inputs
  out_shape(pool, x.shape)
  sizes = x.shape[1:-1] if pool.nhwc else x.shape[2:]
  windows = [window_of(pool, axis, size) for axis, size in enumerate(sizes)]
  y = pooled(x, windows, pool.is_max, pool.count_include_pad, pool.nhwc)
  return [y.astype(x.dtype) if rounded else y]


OPERATOR = Operator(
  NAME,
  "maximum and average pooling, over windows or over all of an image, in NCHW or NHWC",
  infer_shapes,
  decompose,
  reference,
)
