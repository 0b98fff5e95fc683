"""FusedResize: an image of another size, by the nearest element or linearly in between, in NCHW or NHWC.

    Y[n, c, o] = X[n, c, nearest(at(o))]                                  nearest
    Y[n, c, o] = (1 - w) X[n, c, i] + w X[n, c, i + 1], i + w = at(o)      linear, one spatial axis after the other

docs/operators.md has the meaning in full; reference.py the formula.
Input: X, of 1 to 3 spatial dimensions; Output: Y, of X's dtype.
Errors: attributes that contradict each other or the shape, `sizes` for a spatial dimension of 0 elements, another
    dtype.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from ...arrays import Array
from ...errors import ModelError
from ...graph import Dim, Shape, TensorType
from ...graph.conv_geometry import LARGEST, MOST_SPATIAL
from .. import node_attributes as nodes
from ..base import Operator
from ..decompose import Builder
from . import BYTES, FLOATING
from .layout import as_channels_first
from .reference import coordinates, resized

NAME = "FusedResize"
MODES = ("nearest", "linear")
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

_WORDS = {"mode": MODES, "coordinate_transformation_mode": COORDINATES, "nearest_mode": NEAREST_MODES}
_TYPES = {
  **dict.fromkeys((*_WORDS, "layout"), AttributeProto.STRING),
  "sizes": AttributeProto.INTS,
  "scales": AttributeProto.FLOATS,
}


@dataclass(frozen=True)
class Resize:
  """A node's attributes, checked and complete. Of sizes and scales one is empty."""

  where: str  # for errors
  mode: str
  coordinates: str
  nearest_mode: str
  nhwc: bool
  sizes: tuple[int, ...]
  scales: tuple[float, ...]

  @property
  def spatial(self) -> int:
    """How many spatial dimensions there are."""
    return len(self.sizes or self.scales)


def attributes_of(node: onnx.NodeProto) -> Resize:
  """The attributes of a FusedResize. Raises ModelError that names the node where they are wrong."""
  where = nodes.where_is(node)
  nodes.check_one_input(node)
  given = nodes.read(node, _TYPES)
  for word, allowed in _WORDS.items():
    nodes.check_word(where, given, word, allowed)
  nhwc = nodes.is_nhwc(where, given)
  if ("sizes" in given) == ("scales" in given):
    raise ModelError(f"{where}: it needs the attribute 'sizes' or 'scales', and not both")
  name = "sizes" if "sizes" in given else "scales"
  spatial = len(given[name])
  if spatial > MOST_SPATIAL:
    raise ModelError(f"{where}: {name} has {spatial} numbers; there must be 1 to {MOST_SPATIAL}")
  if name == "sizes":
    nodes.check_numbers(where, given, name, spatial, 1)
  elif not all(math.isfinite(scale) and scale > 0 for scale in given[name]):
    raise ModelError(f"{where}: scales is {list(given[name])}; its numbers must be positive")
  mode, coordinate_mode, nearest_mode = (given.get(word, allowed[0]) for word, allowed in _WORDS.items())
  return Resize(where, mode, coordinate_mode, nearest_mode, nhwc, given.get("sizes", ()), given.get("scales", ()))


def out_size(resize: Resize, axis: int, size: int) -> int:
  """Y's size along one spatial axis. Raises ModelError where `sizes` asks for elements of none, or for too many.

  As in ONNX Runtime an axis without elements has none whatever its scale, and a small scale may leave none.
  """
  if resize.sizes:
    if size == 0:
      raise ModelError(
        f"{resize.where}: spatial axis {axis} of the input has no elements, of which sizes asks for "
        f"{resize.sizes[axis]}"
      )
    return resize.sizes[axis]
  out = float(np.float32(size) * np.float32(resize.scales[axis]))
  if not out <= LARGEST:
    raise ModelError(
      f"{resize.where}: the scale {resize.scales[axis]} makes {out:g} elements of the {size} on spatial axis "
      f"{axis}; there must be at most {LARGEST}"
    )
  return int(out)


def out_shape(resize: Resize, shape: Shape) -> Shape:
  """Y's shape, as far as X's tells it. Raises ModelError where X's does not fit."""
  nodes.check_rank(resize.where, shape, resize.spatial)
  sizes = shape[1:-1] if resize.nhwc else shape[2:]

  def out(axis: int, size: Dim) -> Dim:
    if isinstance(size, int):
      return out_size(resize, axis, size)
    return resize.sizes[axis] if resize.sizes else None

  outs = tuple(out(axis, size) for axis, size in enumerate(sizes))
  return (shape[0], *outs, shape[-1]) if resize.nhwc else (*shape[:2], *outs)


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Y's dtype, which is X's, and its shape, None where X's does not tell."""
  resize = attributes_of(node)
  (x,) = inputs
  dtypes = FLOATING if resize.mode == "linear" else (*FLOATING, *BYTES, np.dtype(np.int32))
  if x.dtype is not None and x.dtype not in dtypes:
    raise ModelError(f"{resize.where}: X is {x.dtype}, of which there is no {resize.mode} resizing; cast it")
  return [TensorType(x.dtype, None if x.shape is None else out_shape(resize, x.shape))]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX.

  ONNX's Resize, with Transposes around it in NHWC; it has bfloat16 from opset 13 on.
  """
  resize = attributes_of(node)
  b = Builder(opset, f"{node.output[0]}/unfused")
  attributes: dict[str, Any] = {"mode": resize.mode, "coordinate_transformation_mode": resize.coordinates}
  if resize.mode == "nearest":
    attributes["nearest_mode"] = resize.nearest_mode

  def resizing(value: str, output: str) -> None:
    nothing = "" if b.opset >= 13 else b.constant([], np.dtype(np.float32))  # before, these inputs must be there
    if resize.scales:
      scales = b.constant([1, 1, *resize.scales], np.dtype(np.float32))
      b.op("Resize", value, nothing, scales, output=output, **attributes)
      return
    start = b.op("Slice", b.op("Shape", value), b.int64([0]), b.int64([2]))
    sizes = b.op("Concat", start, b.int64(resize.sizes), axis=0)
    b.op("Resize", value, nothing, nothing, sizes, output=output, **attributes)

  as_channels_first(b, resize.nhwc, resize.spatial, node.input[0], node.output[0], resizing)
  return b.nodes


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """`rounded`: in X's dtype. See reference.py."""
  resize = attributes_of(node)
  (x,) = inputs
  at = []
  sizes = x.shape[1:-1] if resize.nhwc else x.shape[2:]
  for axis, size in enumerate(sizes):
    scale = resize.scales[axis] if resize.scales else None
    at.append(coordinates(size, out_size(resize, axis, size), scale, resize.coordinates))
  is_copy = all(scale == 1 for scale in resize.scales) and (not resize.sizes or sizes == resize.sizes)
  y = resized(x, None if is_copy else at, resize.nearest_mode if resize.mode == "nearest" else None, resize.nhwc)
  return [y.astype(x.dtype) if rounded else y]


OPERATOR = Operator(
  NAME,
  "an image of another size, by the nearest element or linearly, in NCHW or NHWC",
  infer_shapes,
  decompose,
  reference,
)
