"""Whether two tensors have the same shape in every run, where only their way through convolutions tells.

In a network for images of any size the lengths after a convolution with strides have no name. But two that come from
one length by the same arithmetic are equal: a residual block's result and its shortcut.

    out = floor((in + total) / stride) + 1, total = begin + end - extent of the kernel
"""

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, is_pointwise
from ...graph.certainty import is_generated
from .fused import is_channels_last

Extent = int | str | tuple[object, ...]
"""A length, its name, (id of a tensor, axis) for where it comes from, (extent, stride, total) for what came of it."""

WINDOWS = ("FusedConv", "FusedPool")
FAR = 256  # operators back from a tensor, at most


def same_lengths(scope: Scope, a: gs.Tensor, b: gs.Tensor) -> bool:
  """Whether both have surely the same shape."""
  if (rank := scope.rank(a)) is None or rank != scope.rank(b):
    return False
  return all(extent(scope, a, axis) == extent(scope, b, axis) for axis in range(rank))


def extent(scope: Scope, tensor: gs.Tensor, axis: int) -> Extent:
  """The extent of an axis, from the front, of a tensor of known rank; equal extents are equal lengths."""
  steps: list[tuple[int, int]] = []  # strides and totals on the way back
  for _ in range(FAR):
    shape = scope.shape(tensor)
    dim = None if shape is None else shape[axis]
    node = scope.producer(tensor)
    told = dim is not None and not is_generated(dim)
    found = None if told or node is None else _back(scope, node, axis, len(shape or ()))
    if found is None:
      break
    tensor, axis, step = found
    steps += [] if step == (1, -1) else [step]
  start: Extent = (id(tensor), axis) if dim is None else dim
  for step in reversed(steps):
    start = (start, *step)
  return start


def _back(scope: Scope, node: gs.Node, axis: int, rank: int) -> tuple[gs.Tensor, int, tuple[int, int]] | None:
  """The input and its axis that have the extent, before the stride and total that the node applies; None if none."""
  if node.domain == DOMAIN and node.op in WINDOWS:
    spatial = axis - 1 if is_channels_last(node) else axis - 2
    if axis == 0:
      return node.inputs[0], axis, (1, -1)
    step = _step(node, spatial, rank - 2) if 0 <= spatial < rank - 2 else None
    channels_last = node.attrs.get("input_layout", node.attrs.get("layout")) == "NHWC"
    return None if step is None else (node.inputs[0], spatial + (1 if channels_last else 2), step)
  if is_pointwise(scope, node) or (node.domain == DOMAIN and node.op == "FusedPointwise"):
    others = [t for t in node.inputs if not t.is_empty() and not _is_one(scope, t, axis, rank)]
    return (others[0], axis, (1, -1)) if len(others) == 1 and scope.rank(others[0]) == rank else None
  return None


def _is_one(scope: Scope, tensor: gs.Tensor, axis: int, rank: int) -> bool:
  """Whether the tensor has length 1 where a tensor of this rank has the axis."""
  shape = scope.shape(tensor)
  return shape is not None and (len(shape) < rank - axis or shape[axis - rank] == 1)


def _step(node: gs.Node, spatial: int, count: int) -> tuple[int, int] | None:
  """Stride and total of a spatial axis of a convolution or pool; None where they are not known."""
  attributes = node.attrs
  kernel = attributes.get("kernel_shape")
  if kernel is None or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or attributes.get("ceil_mode"):
    return None
  strides, dilations = (attributes.get(name) or [1] * count for name in ("strides", "dilations"))
  pads = attributes.get("pads") or [0] * (2 * count)
  covered = (int(kernel[spatial]) - 1) * int(dilations[spatial]) + 1
  return int(strides[spatial]), int(pads[spatial]) + int(pads[spatial + count]) - covered
