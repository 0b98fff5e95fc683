"""The geometry of convolutions and transposed convolutions: attributes, padding and output sizes, as ONNX has them.

    Conv           out = floor((in + begin + end - extent) / stride) + 1
    ConvTranspose  out = (in - 1) * stride + output_padding + extent - begin - end
    extent = (kernel - 1) * dilation + 1

Every shape here is channels first unless a function says otherwise; `first` and `last` change between the layouts. A
dimension is a length, a name or None, and stays a name where its length does not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from ..errors import ModelError
from .shapes import Dim, Shape, show

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
LAYOUTS = ("NCHW", "NHWC")
MOST_SPATIAL = 3
LARGEST = 2**31 - 1  # of every number: products of two then have no overflow in 64 bits
_INTS = ("dilations", "kernel_shape", "pads", "strides", "output_padding", "output_shape")


@dataclass(frozen=True)
class ConvAttributes:
  """The attributes of a convolution that is fused, checked against each other. None: absent."""

  where: str  # "node 'name' (FusedConv)", for errors
  transposed: bool
  auto_pad: str
  group: int
  layout: str
  input_layout: str  # that of X
  output_layout: str  # that of every output
  dilations: tuple[int, ...] | None
  kernel_shape: tuple[int, ...] | None
  pads: tuple[int, ...] | None  # all begins, then all ends
  strides: tuple[int, ...] | None
  output_padding: tuple[int, ...] | None
  output_shape: tuple[int, ...] | None

  @property
  def spatial(self) -> int | None:
    """How many spatial dimensions the attributes say there are; None if they do not."""
    for values in (self.kernel_shape, self.strides, self.dilations, self.output_padding, self.output_shape):
      if values is not None:
        return len(values)
    return None if self.pads is None else len(self.pads) // 2

  def step(self, axis: int) -> tuple[int, int]:
    """Stride and dilation along a spatial axis."""
    return _at(self.strides, axis, 1), _at(self.dilations, axis, 1)

  def fail(self, reason: str) -> ModelError:
    """The error that names the node."""
    return ModelError(f"{self.where}: {reason}")


@dataclass(frozen=True)
class Window:
  """One spatial dimension of a convolution whose sizes are known."""

  kernel: int
  stride: int
  dilation: int
  pad_begin: int  # the padding; what is cut off the ends of a transposed convolution's result
  pad_end: int
  size: int  # of the input
  out: int

  @property
  def extent(self) -> int:
    """The elements from the kernel's first to its last."""
    return (self.kernel - 1) * self.dilation + 1


def read_attributes(node: onnx.NodeProto, transposed: bool = False) -> ConvAttributes:
  """The node's attributes of Conv or, `transposed`, ConvTranspose, and `layout`. Raises ModelError."""
  where = f"node '{node.name}' ({node.op_type})"
  given = {each.name: each for each in node.attribute}

  def get(name: str, kind: int) -> onnx.AttributeProto | None:
    if (attribute := given.get(name)) is not None and attribute.type != kind:
      wanted = onnx.AttributeProto.AttributeType.Name(kind)
      raise ModelError(f"{where}: the attribute '{name}' has another type than the operator gives it, {wanted}")
    return attribute

  def word(name: str, allowed: Sequence[str]) -> str:
    """The attribute; the first of `allowed` where it is absent."""
    attribute = get(name, onnx.AttributeProto.STRING)
    text = allowed[0] if attribute is None else attribute.s.decode("utf-8", "replace")
    if text not in allowed:
      raise ModelError(f"{where}: {name} is {text!r}; it must be one of {', '.join(allowed)}")
    return text

  def integers(name: str) -> tuple[int, ...] | None:
    attribute = get(name, onnx.AttributeProto.INTS)
    return None if attribute is None or not attribute.ints else tuple(attribute.ints)

  group = get("group", onnx.AttributeProto.INT)
  lists = {name: integers(name) if transposed or not name.startswith("output") else None for name in _INTS}
  layout = word("layout", LAYOUTS)
  layouts = tuple(dict.fromkeys((layout, "NCHW")))
  attributes = ConvAttributes(
    where,
    transposed,
    word("auto_pad", AUTO_PADS),
    1 if group is None else group.i,
    layout,
    layout if transposed else word("input_layout", layouts),
    word("output_layout", layouts) if transposed else layout,
    **lists,
  )
  _check(attributes)
  return attributes


def _check(attributes: ConvAttributes) -> None:
  spatial = attributes.spatial
  if not 1 <= attributes.group <= LARGEST:
    raise attributes.fail(f"group is {attributes.group}; it must be at least 1")
  if spatial is not None and not 1 <= spatial <= MOST_SPATIAL:
    raise attributes.fail(f"the attributes are of {spatial} spatial dimensions; there must be 1 to {MOST_SPATIAL}")
  for name in _INTS:
    values: tuple[int, ...] | None = getattr(attributes, name)
    if values is None or spatial is None:
      continue
    wanted = spatial * 2 if name == "pads" else spatial
    if len(values) != wanted:
      raise attributes.fail(
        f"{name} has {len(values)} numbers, {list(values)}; for {spatial} spatial dimensions it takes {wanted}"
      )
    least = 0 if name in ("pads", "output_padding", "output_shape") else 1
    if not all(least <= value <= LARGEST for value in values):
      raise attributes.fail(f"{name} is {list(values)}; its numbers must be from {least} to {LARGEST}")
  if attributes.auto_pad != "NOTSET" and any(attributes.pads or ()):
    raise attributes.fail(
      f"pads is {list(attributes.pads or ())} beside auto_pad {attributes.auto_pad}; remove one of them"
    )
  if attributes.layout == "NHWC" and attributes.kernel_shape is None:
    raise attributes.fail("kernel_shape is missing; with the layout NHWC it must be given")


def first(shape: Shape) -> Shape:
  """A shape with channels last, of data or of weights, as the same with channels first."""
  return (shape[0], shape[-1], *shape[1:-1])


def last(shape: Shape) -> Shape:
  """A shape with channels first, of data or of weights, as the same with channels last."""
  return (shape[0], *shape[2:], shape[1])


def pads_of(attributes: ConvAttributes, size: Dim, kernel: Dim, axis: int) -> tuple[int, int] | None:
  """Begin and end of the padding of one spatial axis of a Conv; None where it depends on what is not known."""
  if attributes.auto_pad == "VALID" or (attributes.auto_pad == "NOTSET" and attributes.pads is None):
    return 0, 0
  if attributes.auto_pad == "NOTSET":
    assert attributes.pads is not None
    return attributes.pads[axis], attributes.pads[axis + len(attributes.pads) // 2]
  if not isinstance(kernel, int):
    return None
  stride, dilation = attributes.step(axis)
  extent = (kernel - 1) * dilation + 1
  if isinstance(size, int):
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
  elif stride == 1:
    total = extent - 1
  else:
    return None
  small = total // 2
  return (small, total - small) if attributes.auto_pad == "SAME_UPPER" else (total - small, small)


def transposed_pads_of(attributes: ConvAttributes, size: Dim, kernel: Dim, axis: int) -> tuple[int, int] | None:
  """Begin and end of what one spatial axis of a ConvTranspose loses; None where that is not known."""
  same = attributes.auto_pad.startswith("SAME")
  if not same and attributes.output_shape is None:
    if attributes.auto_pad == "VALID" or attributes.pads is None:
      return 0, 0
    return attributes.pads[axis], attributes.pads[axis + len(attributes.pads) // 2]
  if not isinstance(kernel, int) or not isinstance(size, int):
    return None
  stride = _at(attributes.strides, axis, 1)
  wanted = size * stride if attributes.output_shape is None else attributes.output_shape[axis]
  total = max(_whole_size(attributes, size, kernel, axis) - wanted, 0)
  small = total // 2
  return (small, total - small) if attributes.auto_pad == "SAME_UPPER" else (total - small, small)


def _whole_size(attributes: ConvAttributes, size: int, kernel: int, axis: int) -> int:
  """The size of a ConvTranspose's result before anything is cut off."""
  stride, dilation = attributes.step(axis)
  return (size - 1) * stride + _at(attributes.output_padding, axis, 0) + (kernel - 1) * dilation + 1


def _at(values: Sequence[int] | None, axis: int, absent: int) -> int:
  return absent if values is None else values[axis]


def out_size(attributes: ConvAttributes, size: Dim, kernel: Dim, axis: int) -> Dim:
  """One spatial size of the result. Raises ModelError where the kernel is larger than the padded input."""
  stride, dilation = attributes.step(axis)
  if attributes.transposed:
    return _transposed_size(attributes, size, kernel, axis)
  pads = pads_of(attributes, size, kernel, axis)
  if attributes.auto_pad.startswith("SAME"):
    return -(-size // stride) if isinstance(size, int) else size if stride == 1 else None
  if pads is None or not isinstance(kernel, int):
    return None
  extent = (kernel - 1) * dilation + 1
  if not isinstance(size, int):
    return size if stride == 1 and sum(pads) == extent - 1 else None
  if size + sum(pads) < extent:
    raise attributes.fail(
      f"the kernel covers {extent} elements of spatial axis {axis}, whose size with its padding is "
      f"{size + sum(pads)}; pad more, or use a smaller kernel or dilation"
    )
  return (size + sum(pads) - extent) // stride + 1


def _transposed_size(attributes: ConvAttributes, size: Dim, kernel: Dim, axis: int) -> Dim:
  if attributes.output_shape is not None:
    return attributes.output_shape[axis]
  stride, dilation = attributes.step(axis)
  pads = transposed_pads_of(attributes, size, kernel, axis)
  if isinstance(size, int) and isinstance(kernel, int) and pads is not None:
    out = _whole_size(attributes, size, kernel, axis) - sum(pads)
    if out < 0 or (size > 0 and out == 0):
      raise attributes.fail(f"spatial axis {axis} of the result would have the size {out}; lower its pads")
    return max(out, 0)
  if attributes.auto_pad.startswith("SAME") or not isinstance(kernel, int) or pads is None:
    return None
  grown = _at(attributes.output_padding, axis, 0) + (kernel - 1) * dilation - sum(pads)
  return size if stride == 1 and grown == 0 else None


def out_shape(attributes: ConvAttributes, x: Shape | None, w: Shape | None) -> Shape | None:
  """The result's shape, in the node's layout, from those of X and W; None where its rank is not known.

  Raises ModelError where X, W and the attributes contradict each other.
  """
  if attributes.input_layout == "NHWC":
    x = None if x is None else first(x)
  if attributes.layout == "NHWC":
    w = None if w is None else first(w)
  rank = next((len(shape) for shape in (x, w) if shape is not None), None)
  if rank is None and attributes.spatial is not None:
    rank = attributes.spatial + 2
  if rank is None:
    return None
  x, w = x or (None,) * rank, w or (None,) * rank
  kernel = _fit(attributes, x, w, rank)
  group = attributes.group
  channels = w[1] * group if attributes.transposed and isinstance(w[1], int) else None
  if not attributes.transposed:
    channels = w[0] if isinstance(w[0], int) else None
  sizes = tuple(out_size(attributes, x[axis + 2], kernel[axis], axis) for axis in range(rank - 2))
  shape = (x[0], channels, *sizes)
  return last(shape) if attributes.layout == "NHWC" else shape


def _fit(attributes: ConvAttributes, x: Shape, w: Shape, rank: int) -> Shape:
  """Checks X and W, channels first, against each other and the attributes; returns the kernel's sizes."""
  if not 3 <= rank <= MOST_SPATIAL + 2 or len(w) != rank:
    raise attributes.fail(
      f"X has the shape {show(x)} and W {show(w)}, channels first; both must have one rank from 3 to {MOST_SPATIAL + 2}"
    )
  if attributes.spatial not in (None, rank - 2):
    raise attributes.fail(f"the attributes are of {attributes.spatial} spatial dimensions, X and W of {rank - 2}")
  kernel = w[2:]
  if attributes.kernel_shape is not None:
    if any(isinstance(a, int) and a != b for a, b in zip(kernel, attributes.kernel_shape, strict=True)):
      raise attributes.fail(f"kernel_shape is {list(attributes.kernel_shape)}, but W has the kernel {show(kernel)}")
    kernel = attributes.kernel_shape
  if 0 in kernel:
    raise attributes.fail(f"W has the kernel {show(kernel)}; each of its sizes must be at least 1")
  group, channels = attributes.group, x[1]
  rows = w[0]
  if isinstance(rows, int) and rows % group:
    raise attributes.fail(
      f"W has {rows} {'input' if attributes.transposed else 'output'} channels, which {group} groups do not divide"
    )
  wanted = rows if attributes.transposed else w[1] * group if isinstance(w[1], int) else None
  if isinstance(channels, int) and isinstance(wanted, int) and channels != wanted:
    raise attributes.fail(f"X has {channels} channels, W with {group} groups is for {wanted}")
  return kernel


def windows(attributes: ConvAttributes, x: Sequence[int], w: Sequence[int]) -> tuple[Window, ...]:
  """Every spatial dimension, from whole shapes of X and W with channels first. Raises ModelError as out_shape."""
  rank = len(x)
  kernel = _fit(attributes, tuple(x), tuple(w), rank)
  pads = transposed_pads_of if attributes.transposed else pads_of
  found = []
  for axis in range(rank - 2):
    size, extent = x[axis + 2], kernel[axis]
    out, padding = out_size(attributes, size, extent, axis), pads(attributes, size, extent, axis)
    assert isinstance(extent, int)
    assert isinstance(out, int)
    assert padding is not None
    stride, dilation = attributes.step(axis)
    found.append(Window(extent, stride, dilation, *padding, size, out))
  return tuple(found)
