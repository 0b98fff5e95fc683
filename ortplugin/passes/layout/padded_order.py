"""Steps with a Pad among them that put parts of a tensor in another order become one Gather: unfolded windows, shifts.

    a = Transpose<perm = [0, 3, 1, 2]>(x); b = Pad(a, 1 pixel all around)                      x [N, H, W, C]
    c = Gather<axis = 4>(Gather<axis = 2>(b, rows), columns); y = Transpose<perm = [0, 3, 5, 2, 4, 1]>(c)

becomes

    y = Reshape(Gather<axis = 1>(Pad(Reshape(x, [N, H W, C]), a row of zeros behind), order), shape)

VOLO's windows, and back, where the parts of several Gathers are added; and without the Pad, BoTNet's positions relative
to a row, which pad twice and cut that off again. The order is found by running the steps on the numbers of x's
elements; as many as always stay together are moved as one.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...graph import Scope, is_disputed, labelled, optional_input
from ...graph.slices import constant_slices
from ...program import FLOATING
from ..driver import Applied, Outcome, RulePass
from ..emit import emit, integers, reshape
from .row_order import MOVERS, ORDER, VIEWS, Steps, steps_to

STEPS = (*VIEWS, *MOVERS, "Pad")
ELEMENTS = 1 << 23  # of a tensor on the way, at most
PARTS = 1 << 20  # that are gathered, at most
ZERO = -1  # the number of a padded element

Numbers = npt.NDArray[np.int64]
"""Where each element of a tensor lies in x."""


class _UnknownError(Exception):
  """A step is not known, or too large."""


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the steps that end in this node, or in several Gathers of this Pad, as many as possible."""
  if scope.op(node) not in STEPS or scope.dtype(node.outputs[0]) not in FLOATING or scope.opset < 11:
    return None
  if _goes_on(scope, node):
    return None
  ends = _gathers(scope, node) if scope.op(node) == "Pad" else []
  for steps in reversed(list(steps_to(scope, node, STEPS))):
    movers = [scope.op(each) for each in steps.nodes if scope.op(each) not in VIEWS]
    few = len(movers) < (2 if ends else 3)
    if few or "Pad" not in movers or is_disputed(scope, steps.x):
      continue
    try:
      return _replace(scope, steps, ends or [node], [_numbers(scope, steps, end) for end in ends or [node]])
    except _UnknownError:
      continue
  return None


def _goes_on(scope: Scope, node: gs.Node) -> bool:
  """Whether one step alone reads what the node makes, so that the steps end there or behind."""
  readers = scope.consumers(node.outputs[0])
  if len(readers) != 1 or scope.used_beyond(node.outputs[0], readers) or scope.op(readers[0]) not in STEPS:
    return False
  return all(each is node.outputs[0] or each.is_empty() or scope.is_constant(each) for each in readers[0].inputs)


def _gathers(scope: Scope, node: gs.Node) -> list[gs.Node]:
  """Those that alone read what the node makes, if several do."""
  readers = scope.consumers(node.outputs[0])
  alone = not scope.used_beyond(node.outputs[0], readers) and len(readers) > 1
  data = all(scope.op(each) == "Gather" and each.inputs[1] is not node.outputs[0] for each in readers)
  return readers if alone and data else []


def _numbers(scope: Scope, steps: Steps, end: gs.Node) -> Numbers:
  """Where the elements that `end`, after the steps or the last of them, makes lie in x, in a flat order.

  Raises _UnknownError.
  """
  nodes = steps.nodes if end is steps.nodes[-1] else (*steps.nodes, end)
  shapes = [_lengths(scope, each) for each in (steps.x, *(node.outputs[0] for node in nodes))]
  found: dict[int, Numbers] = {id(steps.x): np.arange(math.prod(shapes[0])).reshape(shapes[0])}
  for node, made in zip(nodes, shapes[1:], strict=True):
    inputs = [found[id(each)] for each in (node.inputs if node.op == "Concat" else node.inputs[:1])]
    numbers = inputs[0].reshape(made) if scope.op(node) in VIEWS else _moved(scope, node, inputs)
    if list(numbers.shape) != made:
      raise _UnknownError
    found[id(node.outputs[0])] = numbers
  return found[id(end.outputs[0])].reshape(-1)


def _lengths(scope: Scope, tensor: gs.Tensor) -> list[int]:
  shape = scope.shape(tensor) or ()
  dims = [dim for dim in shape if isinstance(dim, int)]
  if not dims or len(dims) != len(shape) or not 0 < math.prod(dims) <= ELEMENTS:
    raise _UnknownError
  return dims


def _moved(scope: Scope, node: gs.Node, given: Sequence[Numbers]) -> Numbers:
  """The elements after a step that moves them. Raises _UnknownError."""
  x, op = given[0], scope.op(node)
  if op == "Transpose":
    return np.asarray(x.transpose([int(axis) for axis in node.attrs.get("perm") or range(x.ndim)[::-1]]))
  if op == "Concat":
    return np.concatenate(given, int(node.attrs["axis"]))
  if op == "Slice" and (taken := constant_slices(scope, node, x.ndim)) is not None:
    return np.asarray(x[tuple(taken.get(axis, slice(None)) for axis in range(x.ndim))])
  if op == "Gather" and (indices := scope.constant(node.inputs[1], ORDER)) is not None:
    axis = int(node.attrs.get("axis", 0)) % x.ndim
    if ((indices >= -x.shape[axis]) & (indices < x.shape[axis])).all():
      return np.asarray(x.take(indices, axis))
  if op == "Pad" and node.attrs.get("mode", "constant") == "constant":
    pads = scope.constant(node.inputs[1])
    filled = optional_input(node, 2)
    zero = filled is None or scope.scalar(filled) == 0
    if zero and optional_input(node, 3) is None and pads is not None and pads.size == 2 * x.ndim and pads.min() >= 0:
      return np.asarray(np.pad(x, pads.reshape(2, -1).T, constant_values=ZERO))
  raise _UnknownError


def _replace(scope: Scope, steps: Steps, ends: Sequence[gs.Node], numbers: Sequence[Numbers]) -> Applied:
  """One Gather for each of the ends. Raises _UnknownError where that is of too many parts."""
  first, dims = steps.nodes[-1], _lengths(scope, steps.x)
  shapes = [_lengths(scope, end.outputs[0]) for end in ends]
  width = _width(numbers, math.gcd(dims[-1], *(shape[-1] for shape in shapes)))
  orders, rows = [each[::width] // width for each in numbers], math.prod(dims) // width  # ZERO stays ZERO
  counts = sorted({dims[0], shapes[0][0], math.gcd(dims[0], shapes[0][0])}, reverse=True)
  images = next((count for count in counts if all(_repeats(each, count, rows) for each in orders)), 1)
  parts = [order[: len(order) // images] for order in orders]
  if any(len(one) > ORDER or len(one) * images > PARTS for one in parts):
    raise _UnknownError
  shared = [each for each in steps.nodes if all(each is not end for end in ends)]
  labels = labelled(*shared, *ends)
  moved = reshape(scope, first, steps.x, [images, rows // images, width])
  if any(ZERO in one for one in parts):
    pads = integers(scope, [0, 0, 0, 0, 1, 0], f"{first.outputs[0].name}_pads")
    moved = emit(scope, first, "Pad", [moved, pads], (images, rows // images + 1, width))
  made: list[gs.Node] = []
  for end, one, shape in zip(ends, parts, shapes, strict=True):
    y = end.outputs[0]
    indices = integers(scope, [int(each) for each in np.where(one == ZERO, rows // images, one)], f"{y.name}_order")
    part = emit(scope, end, "Gather", [moved, indices], (images, len(one), width), axis=1)
    made.append(gs.Node("Reshape", end.name, {}, [part, integers(scope, shape, f"{y.name}_shape")]))
    scope.replace([end], made[-1], [y])
  for step in reversed(shared):
    scope.remove(step)
  return Applied(labels, made[0])


def _width(numbers: Sequence[Numbers], most: int) -> int:
  """How many elements lie together in all tensors, everywhere; a divisor of `most`."""
  divisors = (width for width in range(most, 0, -1) if most % width == 0)
  return next(width for width in divisors if all(_together(each, width) for each in numbers))


def _together(numbers: Numbers, width: int) -> bool:
  parts = numbers.reshape(-1, width)
  first = parts[:, :1]
  is_row = (parts == np.where(first == ZERO, ZERO, first + np.arange(width))).all()
  return bool(is_row and not (first[first != ZERO] % width).any())


def _repeats(order: Numbers, images: int, rows: int) -> bool:
  """Whether each of so many images is ordered alike, from its own rows."""
  if len(order) % images or rows % images:
    return False
  each = order.reshape(images, -1)
  inside = (each[0] < rows // images).all()
  alike = np.where(each[0] == ZERO, ZERO, each[0] + np.arange(images)[:, None] * (rows // images))
  return bool(inside and (each == alike).all())


PADDED_ORDER = RulePass(
  "padded-order", "steps with a Pad that put parts of a tensor in another order become one Gather", rewrite
)
