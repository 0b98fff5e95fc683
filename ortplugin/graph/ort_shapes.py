"""Shapes that onnx's inference gets wrong: what ONNX Runtime computes instead, or that they are open.

What follows from a wrong shape is wrong as well, so these nodes are hidden from onnx (`DOMAIN`) and told here. Other
rewrites write shapes into Reshapes and value_info: they must be what ONNX Runtime computes. The two were compared over
all combinations of attributes and opsets (tests/unit/test_ort_shapes.py); an operator that is found to differ comes
here, and there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from ..errors import ModelError
from .conv_geometry import out_shape as conv_shape, read_attributes
from .convert import attached, node_proto
from .domains import DEFAULT_DOMAINS
from .facts import CONSTANT_ELEMENTS, known_values
from .shapes import Dim, Shape, TensorType, broadcast

DOMAIN = "ortplugin.hidden"  # onnx knows no operator of it

POOLS = ("MaxPool", "AveragePool", "LpPool")
SCALED = ("Resize", "Upsample")
OPERATORS = (*POOLS, *SCALED, "Attention", "Concat", "ConvTranspose", "PRelu", "STFT")
CONV_TRANSPOSE = (  # its attributes
  "auto_pad",
  "dilations",
  "group",
  "kernel_shape",
  "output_padding",
  "output_shape",
  "pads",
  "strides",
)


def hide(proto: onnx.NodeProto, node: gs.Node | None = None) -> None:
  """Gives the message a domain that onnx does not know, if onnx may infer another shape than ONNX Runtime computes.

  A PRelu becomes an Add instead: onnx gives it the shape of X, ONNX Runtime that of both, however they broadcast.

  Args:
      proto: a node, of a graph or of a local function.
      node: where it comes from, if that is a graph.
  """
  if proto.domain not in DEFAULT_DOMAINS:
    return
  if proto.op_type == "PRelu":
    proto.op_type = "Add"
  elif _is_wrong(proto, node):
    proto.domain = DOMAIN


def may_differ(proto: onnx.NodeProto) -> bool:
  """Whether onnx may infer another shape of the node than ONNX Runtime computes, for some inputs."""
  return proto.domain in DEFAULT_DOMAINS and (proto.op_type == "PRelu" or _is_wrong(proto, None))


def is_hidden(node: gs.Node) -> bool:
  """Whether `hide` hides the node, so that `told` is asked; of a PRelu, whether its shape is known not to be X's."""
  if node.op not in OPERATORS or (node.domain or "") not in DEFAULT_DOMAINS:
    return False
  if node.op == "PRelu":
    x, shape = node.inputs[0].shape, broadcast([each.shape for each in node.inputs])
    return shape is not None and (len(shape) != len(x) or any(_differ(*each) for each in zip(shape, x, strict=True)))
  return _is_wrong(node_proto(node), node)


def _differ(a: Dim, b: Dim) -> bool:
  return isinstance(a, int) and isinstance(b, int) and a != b


def _is_wrong(proto: onnx.NodeProto, node: gs.Node | None) -> bool:
  if proto.op_type not in OPERATORS:
    return False
  # An attribute that a local function takes from its call may have any value.
  named = {each.name for each in proto.attribute if each.ref_attr_name}
  given = {each.name: helper.get_attribute_value(each) for each in proto.attribute if not each.ref_attr_name}

  def may_be(name: str, test: bool) -> bool:
    return name in named or test

  same = may_be("auto_pad", given.get("auto_pad", b"").startswith(b"SAME"))
  if proto.op_type in POOLS:
    # onnx lets a last window begin beyond the image, before opset 22, makes one where none fits, and counts SAME's
    # pads with the dilations.
    ceil = may_be("ceil_mode", bool(given.get("ceil_mode", 0)))
    return ceil or (same and may_be("dilations", any(each != 1 for each in given.get("dilations", ()))))
  if proto.op_type == "ConvTranspose":
    grown = may_be("output_padding", any(given.get("output_padding", ())))
    return (same and grown) or may_be("output_shape", bool(given.get("output_shape", ())))
  if proto.op_type in SCALED:  # onnx multiplies in more bits than the float32 that ONNX Runtime does it in
    scales = None if node is None else _scales(node)
    return node is None or (scales is not None and any(each * 16 % 1 or each > 256 for each in scales))
  if proto.op_type == "Concat":
    return node is not None and attached(node, "has_misfits") is not None
  if proto.op_type == "Attention":  # onnx takes an open length for 0 where it multiplies or adds lengths
    shapes = [each.shape for each in node.inputs if not each.is_empty()] if node is not None else [None]
    return any(shape is None or not all(isinstance(dim, int) for dim in shape) for shape in shapes)
  return proto.op_type == "STFT"  # of which ONNX Runtime by default gives one side


def told(node: gs.Node) -> list[TensorType]:
  """The dtypes and shapes of a hidden node's outputs, as far as its inputs tell."""
  given = [TensorType(each.dtype, None if each.shape is None else tuple(each.shape)) for each in node.inputs]
  x = given[0]
  if node.op in POOLS:
    shape = None if x.shape is None else _pooled(node.attrs, x.shape)
    return [TensorType(x.dtype, shape), TensorType(np.dtype(np.int64), shape)]
  if node.op == "PRelu":
    return [TensorType(x.dtype, broadcast([each.shape for each in given]))]
  if node.op == "Concat":
    return [TensorType(x.dtype, _agreed(node))]
  if node.op == "Attention":
    return [TensorType(x.dtype, _attended(node))]
  if node.op == "ConvTranspose":
    return [TensorType(x.dtype, _transposed(node, [each.shape for each in given]))]
  if node.op == "STFT":
    return [TensorType(x.dtype, (None if x.shape is None else x.shape[0], None, None, 2))]
  return [TensorType(x.dtype, None if x.shape is None else _scaled(node, x.shape))]


def mark_misfits(nodes: Iterable[gs.Node]) -> bool:
  """Marks for `hide` each Concat that is seen by now to leave inputs out; whether one was not marked before.

  What onnx inferred behind that one may be wrong: inference begins anew.
  """
  found = [node for node in nodes if _has_misfits(node) and attached(node, "has_misfits") is None]
  for node in found:
    node.has_misfits = True
  return bool(found)


def _has_misfits(node: gs.Node) -> bool:
  """Whether, of a Concat, a tensor without elements differs from the others in another axis: ONNX Runtime leaves it
  out there."""
  if node.op != "Concat" or (node.domain or "") not in DEFAULT_DOMAINS:
    return False
  shapes, axis = [each.shape for each in node.inputs], node.attrs.get("axis")
  if any(shape is None for shape in shapes) or all(0 not in shape for shape in shapes) or not isinstance(axis, int):
    return False
  rank = len(shapes[0])
  others = {tuple(dim for at, dim in enumerate(shape) if at != axis % rank) for shape in shapes if rank}
  return all(len(shape) == rank for shape in shapes) and len(others) > 1


def _agreed(concat: gs.Node) -> Shape | None:
  """The lengths that all tensors have; along the axis where they are joined it depends on which of them is empty."""
  if any(each.shape is None or len(each.shape) != len(concat.inputs[0].shape) for each in concat.inputs):
    return None
  axis = concat.attrs["axis"] % len(concat.inputs[0].shape)
  lengths = enumerate(zip(*(each.shape for each in concat.inputs), strict=True))
  return tuple(dims[0] if at != axis and len(set(dims)) == 1 else None for at, dims in lengths)


def ceil_adds_nothing(pool: gs.Node) -> bool:
  """Whether it is known that a pool in ceil_mode has no more windows than without it."""
  x, same = pool.inputs[0].shape, str(pool.attrs.get("auto_pad", "")).startswith("SAME")
  strided = any(a > b for a, b in zip(pool.attrs.get("strides", ()), pool.attrs.get("kernel_shape", ()), strict=False))
  if x is None or (same and strided):  # without it ONNX Runtime refuses pads below 0
    return False
  if pool.attrs.get("count_include_pad") and not windows_fit(tuple(x), pool.attrs):
    return False
  with_it, without = (_pooled({**pool.attrs, "ceil_mode": ceil}, tuple(x)) for ceil in (1, 0))
  if with_it is None or with_it != without:
    return False
  return all(size is not None or _rounds_nothing(pool.attrs, axis) for axis, size in enumerate(with_it[2:]))


def _rounds_nothing(attributes: Mapping[str, Any], axis: int) -> bool:
  """Whether ceil_mode changes nothing along a spatial axis of any size: each window begins at the next element."""
  strides = attributes.get("strides")
  return not strides or strides[axis] == 1


def pads_without_ceil(pool: gs.Node) -> list[int] | None:
  """The pads with which a pool has its windows without ceil_mode; None if they are not known to make the same.

  What lies beyond the pads counts in no window but one of an AveragePool that includes them.
  """
  x, attributes = pool.inputs[0].shape, pool.attrs
  kernel, spatial = attributes.get("kernel_shape") or [], len(x or ()) - 2
  made = None if x is None else _pooled(attributes, tuple(x))
  outs = list((made or ())[2:])
  dilated = any(each != 1 for each in attributes.get("dilations") or ())
  auto_pad = str(attributes.get("auto_pad", "NOTSET"))
  if attributes.get("count_include_pad") or dilated or auto_pad.startswith("SAME") or not outs:
    return None
  if not all(isinstance(out, int) or _rounds_nothing(attributes, axis) for axis, out in enumerate(outs)):
    return None
  pads = [0] * (2 * spatial) if auto_pad == "VALID" else list(attributes.get("pads") or [0] * (2 * spatial))
  strides = attributes.get("strides") or [1] * spatial
  for axis, (out, stride, window, size) in enumerate(zip(outs, strides, kernel, x[2:], strict=True)):
    if isinstance(out, int):
      pads[spatial + axis] = max((out - 1) * stride + window - size - pads[axis], 0)
  return pads


def windows_fit(shape: Shape | None, attributes: Mapping[str, Any], least: int = 1) -> bool:
  """Whether no window of a pool is larger than the padded image. An open size is taken to be `least` or more.

  Where one is larger, ONNX Runtime counts what an average has beyond the padding, too: before opset 19, and in 1.32.
  """
  kernel = attributes["kernel_shape"]
  if attributes.get("auto_pad", "NOTSET").startswith("SAME"):
    return True
  pads = attributes.get("pads") or [0] * (2 * len(kernel))
  sizes = (least,) * len(kernel) if shape is None else shape[2:]
  return len(sizes) == len(kernel) and all(
    (size if isinstance(size, int) else least) + pads[axis] + pads[axis + len(kernel)] >= kernel[axis]
    for axis, size in enumerate(sizes)
  )


def may_crop(attributes: Mapping[str, Any], spatial: int) -> bool:
  """Whether ONNX Runtime may begin behind the first element of an axis, by what auto_pad SAME asks for.

  It takes (ceil(size / stride) - 1) * stride + extent - size for the padding also where that is negative, and begins
  half of it, rounded toward 0, before the image: behind the first element from -2 on, but in some kernels not there
  either. `spatial`: how many spatial axes there are; a kernel that is not said is taken for 1.
  """
  if not str(attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
    return False
  given = (attributes.get(name) or [1] * spatial for name in ("kernel_shape", "dilations", "strides"))
  return any(stride - ((size - 1) * step + 1) > 1 for size, step, stride in zip(*given, strict=False))


def _pooled(attributes: Mapping[str, Any], shape: Shape) -> Shape | None:
  spatial = len(shape) - 2
  kernel = attributes.get("kernel_shape") or []
  if len(kernel) != spatial:
    return None
  return (*shape[:2], *(_pooled_size(attributes, axis, spatial, shape[axis + 2]) for axis in range(spatial)))


def _pooled_size(attributes: Mapping[str, Any], axis: int, spatial: int, size: Dim) -> Dim:
  """out = (in + pads - extent) / stride + 1, rounded as ceil_mode says; no last window begins in the padding."""
  if not isinstance(size, int):
    return None
  auto_pad = str(attributes.get("auto_pad", "NOTSET"))
  kernel = int(attributes["kernel_shape"][axis])
  stride, dilation = (int((attributes.get(name) or [1] * spatial)[axis]) for name in ("strides", "dilations"))
  pads = [int(each) for each in attributes.get("pads") or [0] * (2 * spatial)]
  pad_begin, pad_end = (pads[axis], pads[axis + spatial]) if auto_pad == "NOTSET" else (0, 0)
  if auto_pad.startswith("SAME"):  # as if nothing were dilated
    total = (-(-size // stride) - 1) * stride + kernel - size
    pad_begin = (total + 1) // 2 if auto_pad == "SAME_LOWER" else total // 2
    pad_end = total - pad_begin
  room = size + pad_begin + pad_end - dilation * (kernel - 1) - 1
  if stride < 1:
    return None
  ceil = -(-room // stride) + 1
  out = room // stride + 1 if room >= 0 else ceil  # both round towards zero
  if attributes.get("ceil_mode", 0):
    out = ceil - ((ceil - 1) * stride >= size + pad_begin)
  return out if out >= 0 else None


def _attended(node: gs.Node) -> Shape | None:
  """Q's shape with V's width: of four axes, the second those of the heads, or of three with heads side by side."""
  q, v = node.inputs[0].shape, node.inputs[2].shape
  if q is None or v is None or len(q) != len(v) or len(q) not in (3, 4):
    return None
  if len(q) == 4:
    return (*q[:3], v[3])
  heads, kv_heads = (node.attrs.get(name) for name in ("q_num_heads", "kv_num_heads"))
  width = v[2] // kv_heads * heads if isinstance(v[2], int) and heads and kv_heads else None
  return (*q[:2], width)


def _transposed(node: gs.Node, shapes: Sequence[Shape | None]) -> Shape | None:
  attributes = {name: node.attrs[name] for name in CONV_TRANSPOSE if node.attrs.get(name, []) != []}
  try:
    read = read_attributes(helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes), transposed=True)
    return conv_shape(read, shapes[0], shapes[1] if len(shapes) > 1 else None)
  except ModelError:  # an invalid node is reported where it is used, not here
    return None


def _scaled(node: gs.Node, shape: Shape) -> Shape:
  """The sizes times the scales, in float32, rounded down; of a Resize of some axes those."""
  scales = _scales(node)
  axes = [int(axis) % len(shape) for axis in node.attrs.get("axes") or range(len(shape))]
  if scales is None or len(scales) != len(axes):
    return (None,) * len(shape)
  dims = list(shape)
  for axis, scale in zip(axes, scales, strict=True):
    size = dims[axis]
    if scale != 1:
      dims[axis] = int(np.float32(size) * np.float32(scale)) if isinstance(size, int) else None
  return tuple(dims)


def _scales(node: gs.Node) -> list[float] | None:
  """The constant scales of a Resize or Upsample; None where it has none, or sizes."""
  if "scales" in node.attrs:  # Upsample before opset 9
    return list(node.attrs["scales"])
  if len(node.inputs) > 3 and not node.inputs[3].is_empty():
    return None
  at = min(2, len(node.inputs) - 1)  # beside a region of interest from opset 11 on
  scales = known_values(node.inputs[at], CONSTANT_ELEMENTS) if at > 0 else None
  return None if scales is None else [float(each) for each in scales.reshape(-1)]
