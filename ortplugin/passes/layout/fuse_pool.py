"""Pools and Resize become FusedPool and FusedResize where the layout pass lets them have channels last.

    y = MaxPool(x)              becomes, between tensors with channels last,      y = FusedPool<kind = "max">(x)

So do AveragePool, GlobalAveragePool, GlobalMaxPool, and a ReduceMean or ReduceMax over all spatial axes. With channels
first, ONNX Runtime's own stay.
"""

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ...errors import ModelError
from ...graph import DOMAIN, Dim, Scope, TensorType
from ...graph.ort_shapes import may_crop, windows_fit
from ...ops import find
from ..emit import integers
from .plan import Layouts, Plan, Rule, shape_last

KINDS = {
  "MaxPool": "max",
  "AveragePool": "average",
  "GlobalAveragePool": "global_average",
  "GlobalMaxPool": "global_max",
  "ReduceMean": "global_average",
  "ReduceMax": "global_max",
}
KEPT = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")
LEAST = 1 << 20  # pixels of an open size


def plan(scope: Scope, node: gs.Node, op: str, attributes: dict[str, Any]) -> Plan | None:
  """The node as `op` with channels last; None if that takes none of these attributes, dtypes or shapes."""
  operator, x = find(DOMAIN, op), node.inputs[0]
  shape = scope.shape(x)
  if operator is None or shape is None or len(shape) < 3:
    return None
  attributes = {**attributes, "layout": "NHWC"}
  proto = onnx.helper.make_node(op, ["x"], ["y"], node.name, domain=DOMAIN, **attributes)
  try:
    operator.infer_shapes(proto, [TensorType(x.dtype, shape_last(shape))])
  except ModelError:
    return None

  def edit(layouts: Layouts, node: gs.Node) -> None:
    node.op, node.domain, node.attrs = op, DOMAIN, attributes
    while len(node.inputs) > 1:
      node.inputs.pop()

  return Plan((0,), (0,), edit)


def pool(scope: Scope, node: gs.Node) -> Plan | None:
  """MaxPool without indices, AveragePool and the global pools."""
  if any(not tensor.is_empty() for tensor in node.outputs[1:]) or node.attrs.get("storage_order", 0):
    return None
  attributes = {name: node.attrs[name] for name in KEPT if node.attrs.get(name, []) != []}  # an empty list is none
  if "kernel_shape" not in attributes:
    attributes = {}
  if may_crop(attributes, len(attributes.get("kernel_shape", ()))):
    return None
  least = 1 if scope.opset < 19 else LEAST  # from there on windows fit but in the smallest images
  if attributes.get("count_include_pad", 0) and not windows_fit(scope.shape(node.inputs[0]), attributes, least):
    return None
  return plan(scope, node, "FusedPool", {**attributes, "kind": KINDS[scope.op(node)]})


def ours(scope: Scope, node: gs.Node) -> Plan | None:
  """A pool or resize that is ours already."""
  return None if node.attrs.get("layout", "NCHW") == "NHWC" else plan(scope, node, node.op, dict(node.attrs))


def over_all_pixels(scope: Scope, node: gs.Node) -> Plan | None:
  """ReduceMean or ReduceMax that is a global pool; None for another."""
  rank, axes = scope.rank(node.inputs[0]), scope.axes(node)
  if not rank or not axes or sorted(axis % rank for axis in axes) != list(range(2, rank)):
    return None
  found = plan(scope, node, "FusedPool", {"kind": KINDS[scope.op(node)]})
  if found is None or node.attrs.get("keepdims", 1):
    return found
  channels = (scope.shape(node.inputs[0]) or ())[1]
  if not isinstance(channels, int) or not channels:
    return None  # a Reshape to 0 channels would copy a length of 1
  pooled = found.edit

  def edit(layouts: Layouts, node: gs.Node) -> None:
    """The pool, then a view without the axes of length 1."""
    output = node.outputs[0]
    shape = (*(scope.shape(output) or (None,))[:1], *[1] * (rank - 2), channels)
    node.outputs[0] = scope.like(output, "nhwc", shape)
    pooled(layouts, node)
    inputs = [node.outputs[0], integers(scope, [0, channels], f"{output.name}_shape")]
    scope.insert_after(gs.Node("Reshape", scope.unique(f"{output.name}/Reshape"), {}, inputs, [output]), node)

  return Plan((0,), (), edit)


def resize(scope: Scope, node: gs.Node) -> Plan | None:
  """Resize of the spatial axes by constant scales or sizes."""
  attributes = resize_attributes(scope, node)
  return None if attributes is None else plan(scope, node, "FusedResize", attributes)


def resize_attributes(scope: Scope, node: gs.Node) -> dict[str, Any] | None:
  """Those of a FusedResize for a Resize of the spatial axes by constants; None if it is none."""
  rank = scope.rank(node.inputs[0])
  given = [None if t.is_empty() else scope.constant(t) for t in node.inputs[1:]]
  known = [None if t.is_empty() or not scope.shape(t) or 0 in (scope.shape(t) or ()) else t for t in node.inputs[1:]]
  used = [
    index for index, tensor in enumerate(known) if tensor is not None and index > 0
  ]  # 0 is the region of interest
  if rank is None or len(used) != 1:
    return None
  values = given[used[0]]
  kept = {
    name: node.attrs[name] for name in ("mode", "coordinate_transformation_mode", "nearest_mode") if name in node.attrs
  }
  plain = {"antialias": 0, "exclude_outside": 0, "keep_aspect_ratio_policy": "stretch"}
  if values is None or any(node.attrs.get(name, value) != value for name, value in plain.items()):
    return None
  axes = [int(axis) % rank for axis in node.attrs.get("axes", range(rank))]
  by_axis = dict(zip(axes, values.tolist(), strict=True))
  shape = scope.shape(node.inputs[0]) or ()
  name = "scales" if used[0] == 1 else "sizes"
  fixed = [1, 1] if name == "scales" else list(shape[:2])
  if any(by_axis.get(axis, fixed[axis]) != fixed[axis] for axis in (0, 1)):
    return None
  spatial = [by_axis.get(axis, 1.0 if name == "scales" else shape[axis]) for axis in range(2, rank)]
  if any(not isinstance(each, (int, float)) for each in spatial):
    return None
  sizes = shape[2:] or (None,) * len(spatial)
  kept_sizes = (_may_keep(size, float(scale or 0)) for size, scale in zip(sizes, spatial, strict=True))
  if name == "scales" and set(spatial) != {1} and all(kept_sizes):
    return None  # where no size changes, ONNX Runtime's on the CPU copies X, whatever the scales
  return {**kept, name: spatial}


def _may_keep(size: Dim, scale: float) -> bool:
  """Whether so many elements, times the scale, may be as many, rounded down."""
  if isinstance(size, int):
    return int(np.float32(size) * np.float32(scale)) == size
  return 0.5 < scale < 2


POOL_RULES: dict[str, Rule] = {
  **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), pool),
  **dict.fromkeys((f"{DOMAIN}::FusedPool", f"{DOMAIN}::FusedResize"), ours),
  "Resize": resize,
}
