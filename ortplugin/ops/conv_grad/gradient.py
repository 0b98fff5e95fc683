"""A ConvGrad node as it is read and checked: attributes, program, and the shapes of what it reads and makes."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from ...errors import ModelError
from ...graph import Dim, Shape
from ...program import FLOATING, Program, parse

NAME = "ConvGrad"
GRADIENTS = ("dX", "dW", "dB", "dZ")
OPERANDS = ("X", "W")


@dataclass(frozen=True)
class Gradient:
  """A node's attributes, checked and complete."""

  program: Program
  gradients: tuple[str, ...]
  operands: tuple[str, ...]
  transposed: bool
  channels_last: bool
  group: int
  strides: tuple[int, ...]
  dilations: tuple[int, ...]
  pad_begin: tuple[int, ...]
  pad_end: tuple[int, ...]
  kernel_shape: tuple[int, ...]
  output_padding: tuple[int, ...]
  weight_dtype: str

  @property
  def dtype(self) -> str:
    """T."""
    return self.program.results[0].dtype

  @property
  def rank(self) -> int:
    """The number of spatial axes."""
    return len(self.kernel_shape)

  def large(self, axis: int, small: Dim) -> int | None:
    """The least spatial size of the convolution's larger tensor that goes with this size of the smaller."""
    if not isinstance(small, int):
      return None
    extent = (self.kernel_shape[axis] - 1) * self.dilations[axis] + 1
    return (small - 1) * self.strides[axis] + extent - self.pad_begin[axis] - self.pad_end[axis]


def gradient_of(node: onnx.NodeProto) -> Gradient:
  """The node's attributes, checked against its inputs and outputs. Raises ModelError that names the node."""
  where = f"node '{node.name}' ({NAME})"
  given = {each.name: helper.get_attribute_value(each) for each in node.attribute}

  def text(name: str, default: str) -> str:
    value = given.get(name, default.encode())
    if not isinstance(value, bytes):
      raise ModelError(f"{where}: the attribute '{name}' must be a string")
    return value.decode("utf-8", "replace")

  def words(name: str, allowed: Sequence[str]) -> tuple[str, ...]:
    found = tuple(text(name, "").split())
    if found != tuple(each for each in allowed if each in found):
      raise ModelError(f"{where}: {name}='{' '.join(found)}' must be some of {', '.join(allowed)}, in this order")
    return found

  def whole(name: str, default: int, least: int, most: int | None = None) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or value < least or (most is not None and value > most):
      raise ModelError(f"{where}: {name}={value} must be {least} " + ("or more" if most is None else f"to {most}"))
    return value

  def sizes(name: str, least: int, count: int) -> tuple[int, ...]:
    value = given.get(name, [least] * count)
    if not isinstance(value, list) or any(not isinstance(v, int) or v < least for v in value):
      raise ModelError(f"{where}: {name}={value} must be integers, each {least} or more")
    if len(value) != count:
      raise ModelError(f"{where}: {name}={value} must have {count} numbers, as kernel_shape says")
    return tuple(value)

  kernel = given.get("kernel_shape")
  if not isinstance(kernel, list) or not 1 <= len(kernel) <= 3:
    raise ModelError(f"{where}: the attribute 'kernel_shape' must have 1 to 3 numbers")
  rank = len(kernel)

  program = _program(where, text("program", ""))
  dtype = program.results[0].dtype
  gradient = Gradient(
    program,
    words("gradients", GRADIENTS),
    words("operands", OPERANDS),
    whole("transposed", 0, 0, 1) == 1,
    text("layout", "NCHW") == "NHWC",
    whole("group", 1, 1),
    sizes("strides", 1, rank),
    sizes("dilations", 1, rank),
    sizes("pads", 0, 2 * rank)[:rank],
    sizes("pads", 0, 2 * rank)[rank:],
    sizes("kernel_shape", 1, rank),
    sizes("output_padding", 0, rank),
    text("weight_dtype", dtype),
  )
  if text("layout", "NCHW") not in ("NCHW", "NHWC"):
    raise ModelError(f"{where}: layout='{text('layout', '')}' must be NCHW or NHWC")
  if gradient.weight_dtype not in FLOATING:
    raise ModelError(f"{where}: weight_dtype='{gradient.weight_dtype}' must be one of {', '.join(FLOATING)}")
  for wanted, needed in (("dX", "W"), ("dW", "X")):
    if wanted in gradient.gradients and needed not in gradient.operands:
      raise ModelError(f"{where}: {wanted} needs {needed}; add it to operands='{' '.join(gradient.operands)}'")
  if not gradient.gradients:
    raise ModelError(f"{where}: gradients='' must name at least one of {', '.join(GRADIENTS)}")
  for what, found, expected in (
    ("inputs", len(node.input), len(gradient.operands) + len(program.parameters)),
    ("outputs", len(node.output), len(gradient.gradients) + len(program.results) - 1),
  ):
    if found != expected:
      raise ModelError(f"{where}: {found} {what}, but its operands, gradients and program make {expected}")
  return gradient


def _program(where: str, text: str) -> Program:
  if not text:
    raise ModelError(f"{where}: the attribute 'program' is missing")
  try:
    program = parse(text)
  except ModelError as error:
    raise ModelError(f"{where}: {error}") from error
  if program.core is not None:
    raise ModelError(f"{where}: the program holds a {program.core.op}; it must be pointwise")
  if not program.parameters or program.results[0].dtype not in FLOATING:
    raise ModelError(f"{where}: the program's first result must be a floating value of its parameters")
  return program


@dataclass(frozen=True)
class Shapes:
  """The shapes of one node's tensors, channels first; None where unknown."""

  z: Shape | None
  x: Shape | None
  w: Shape | None

  @staticmethod
  def last(shape: Shape | None, channels_last: bool) -> Shape | None:
    """The shape as the node's layout has it."""
    return shape if shape is None or not channels_last else (shape[0], *shape[2:], shape[1])

  @staticmethod
  def first(shape: Shape | None, channels_last: bool) -> Shape | None:
    """The shape channels first, from the node's layout."""
    return shape if shape is None or not channels_last else (shape[0], shape[-1], *shape[1:-1])


def shapes_of(where: str, gradient: Gradient, operands: Sequence[Shape | None], whole: Shape | None) -> Shapes:
  """What `operands` (in the node's order and layout) and S tell of all shapes. Raises ModelError if they disagree."""
  known = dict(zip(gradient.operands, operands, strict=True))
  x, w, z = (Shapes.first(each, gradient.channels_last) for each in (known.get("X"), known.get("W"), whole))
  if any(each is not None and len(each) != gradient.rank + 2 for each in (x, w, z)):
    raise ModelError(f"{where}: kernel_shape={list(gradient.kernel_shape)} has another rank than {_show(x, w, z)}")
  if w is None:
    small, large = (x, z) if gradient.transposed else (z, x)
    columns = large[1] if large is not None else None
    columns = columns // gradient.group if isinstance(columns, int) else None
    w = (small[1] if small is not None else None, columns, *gradient.kernel_shape)
  if x is None and z is not None and "X" not in gradient.operands:
    x = (z[0], *_data_shape(gradient, z, w))
  _check(where, gradient, Shapes(z, x, w))
  return Shapes(z, x, w)


def _data_shape(gradient: Gradient, z: Shape, w: Shape) -> list[Dim]:
  """Channels and sizes of X, from Z and W."""
  if not gradient.transposed:
    channels = w[1] * gradient.group if isinstance(w[1], int) else None
    least = [gradient.large(axis, size) for axis, size in enumerate(z[2:])]
    return [
      channels,
      *(max(s + p, 0) if s is not None else None for s, p in zip(least, gradient.output_padding, strict=True)),
    ]
  dims: list[Dim] = [w[0]]
  for axis, size in enumerate(z[2:]):
    one = gradient.large(axis, 1)
    assert one is not None
    steps = size - one - gradient.output_padding[axis] if isinstance(size, int) else None
    dims.append(None if steps is None else max(steps // gradient.strides[axis] + 1, 0))
  return dims


def _check(where: str, gradient: Gradient, shapes: Shapes) -> None:
  z, x, w = shapes.z, shapes.x, shapes.w
  small, large = (x, z) if gradient.transposed else (z, x)
  group = gradient.group

  def differ(a: Dim, b: Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b

  def fail(reason: str) -> ModelError:
    return ModelError(f"{where}: {reason}: {_show(x, w, z)}, group={group}")

  if w is not None and any(differ(a, b) for a, b in zip(w[2:], gradient.kernel_shape, strict=True)):
    raise fail(f"kernel_shape={list(gradient.kernel_shape)} is not W's")
  if w is not None and isinstance(w[0], int) and w[0] % group:
    raise fail("the groups do not divide W")
  for shape in (x, z):
    if shape is not None and isinstance(shape[1], int) and shape[1] % group:
      raise fail("the groups do not divide the channels")
  if x is not None and z is not None and differ(x[0], z[0]):
    raise fail("X and S have different batches")
  if w is not None and small is not None and differ(w[0], small[1]):
    raise fail("W does not have the channels")
  if w is not None and large is not None and isinstance(w[1], int) and differ(w[1] * group, large[1]):
    raise fail("W does not have the channels")
  if small is None or large is None:
    return
  for axis, (a, b) in enumerate(zip(small[2:], large[2:], strict=True)):
    if (least := gradient.large(axis, a)) is None or not isinstance(b, int):
      continue
    room = gradient.strides[axis]
    if gradient.transposed:  # where output_padding may be as large
      room = max(room, gradient.dilations[axis])
    if not 0 <= b - least < room:
      raise fail(f"along spatial axis {axis} the sizes {a} and {b} do not belong together")


def _show(x: Shape | None, w: Shape | None, z: Shape | None) -> str:
  def text(shape: Shape | None) -> str:
    return "?" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"

  return f"X {text(x)}, W {text(w)}, S {text(z)} (channels first)"
