"""Steps that put the rows of a tensor in another order become one Gather: Swin's shifted windows, merged patches.

    a = Concat<axis = 1>(Slice(x, 3 : H), Slice(x, 0 : 3))                       x [N, H, W, C], rolled
    b = Transpose<perm = [0, 1, 3, 2, 4, 5]>(Reshape(a, [N, H/7, 7, W/7, 7, C]))
    y = Reshape(b, [-1, 49, C])                                                  in windows

becomes

    y = Reshape(Gather<axis = 1>(Reshape(x, [N, H W, C]), order), [-1, 49, C])

A row is the last axis of x, wherever it stands in between: from MaxViT's windows to its grid it is channels first. The
order is found by running the steps on the numbers of the rows. All of them have to be constant, and at least two of
them move memory, a Concat or Gather among them, or three: one or two Transposes alone have kernels of their own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope, is_disputed
from ...graph.slices import constant_slices
from ...program import FLOATING
from ..driver import Applied, Missed, Outcome, RulePass, replaced
from ..emit import emit, integers, reshape

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
MOVERS = ("Concat", "Gather", "Slice", "Transpose")
FAR = 32  # steps that are looked at
ROWS = 1 << 22  # of x, or of what the steps make of them, that are numbered
ORDER = 1 << 16  # rows in an order that is written into the model

Rows = npt.NDArray[np.int64]
"""The numbers of x's rows, as they lie in another tensor: its shape, the rows' axis divided by the length of a row."""


class NotRowsError(Exception):
  """A step does not move whole rows, or is not known."""


@dataclass(frozen=True)
class Steps:
  """Nodes, in order, that lead from one tensor alone to the output of the last."""

  x: gs.Tensor
  nodes: tuple[gs.Node, ...]
  images: str | None = None
  """The name of the first length of all tensors, which no step knows."""


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the steps that end in this node, as many as possible."""
  if scope.op(node) not in (*VIEWS, *MOVERS) or scope.dtype(node.outputs[0]) not in FLOATING:
    return None
  missed: Missed | None = None
  for steps in reversed(list(steps_to(scope, node, (*VIEWS, *MOVERS)))):
    movers = [scope.op(each) for each in steps.nodes if scope.op(each) in MOVERS]
    few = len(movers) < (2 if {"Concat", "Gather"} & set(movers) else 3)
    if few or is_disputed(scope, steps.x):
      continue
    if any(not isinstance(dim, int) for dim in scope.shape(steps.x) or (None,)):
      reason = f"the shape of '{steps.x.name}' is not known; fix the shapes of the model's inputs with --input-shape"
      missed = missed or Missed(node, reason)
      continue
    try:
      return _replace(scope, steps, order_of(scope, steps))
    except NotRowsError:
      continue
  return missed


def steps_to(scope: Scope, last: gs.Node, ops: Sequence[str]) -> Iterator[Steps]:
  """The steps, of `ops`, up to the node that nothing else needs, from each tensor they all come from; fewest first."""
  nodes = [last]
  open_ends = _data(scope, last)
  for _ in range(FAR):
    if len(open_ends) == 1 and not scope.is_constant(open_ends[0]):
      yield Steps(open_ends[0], tuple(sorted(nodes, key=lambda node: scope.position[id(node)])))
    makers = [scope.producer(each) for each in open_ends]
    found = [
      (scope.position[id(maker)], tensor, maker)
      for maker, tensor in zip(makers, open_ends, strict=True)
      if maker is not None and scope.op(maker) in ops and not scope.used_beyond(tensor, nodes)
    ]
    if not found:
      return
    _, tensor, maker = max(found, key=lambda each: each[0])
    nodes.append(maker)
    ends = [each for each in open_ends if each is not tensor] + _data(scope, maker)
    open_ends = list({id(each): each for each in ends}.values())


def _data(scope: Scope, node: gs.Node) -> list[gs.Tensor]:
  """What a step moves."""
  inputs = list(node.inputs) if scope.op(node) == "Concat" else [node.inputs[0]]
  return list({id(each): each for each in inputs}.values())


def order_of(scope: Scope, steps: Steps) -> Rows:
  """For each row of the result its number in x; of two images where their number has a name. Raises NotRowsError."""
  *dims, width = lengths(scope, steps.x, steps.images)
  made = [lengths(scope, node.outputs[0], steps.images) for node in steps.nodes]
  # What is too large is found before anything is numbered.
  if not width or not dims or any(not 0 < math.prod(shape) // width <= ROWS for shape in ([*dims, width], *made)):
    raise NotRowsError
  if math.prod(made[-1]) // width > ORDER * max(dims[0], made[-1][0]):
    raise NotRowsError
  found = {id(steps.x): (np.arange(math.prod(dims)).reshape(*dims, 1), len(dims))}
  for node in steps.nodes:
    given = [found[id(each)] for each in (node.inputs if node.op == "Concat" else node.inputs[:1])]
    if len({axis for _, axis in given}) != 1:
      raise NotRowsError
    made_shape = lengths(scope, node.outputs[0], steps.images)
    rows, axis = _moved(scope, node, [each for each, _ in given], given[0][1], made_shape, width)
    shape = [dim // width if at == axis else dim for at, dim in enumerate(made_shape)]
    if made_shape[axis] % width or rows.size != math.prod(shape) or (node.op in MOVERS and list(rows.shape) != shape):
      raise NotRowsError
    found[id(node.outputs[0])] = rows.reshape(shape), axis
  rows, axis = found[id(steps.nodes[-1].outputs[0])]
  if axis != rows.ndim - 1:
    raise NotRowsError
  return rows.reshape(-1)


def lengths(scope: Scope, tensor: gs.Tensor, images: str | None = None) -> list[int]:
  """The shape, 2 for a first length of the name `images`. Raises NotRowsError where it is not known, or has no axis."""
  first, *others = scope.shape(tensor) or (None,)
  dims = [dim for dim in (2 if images and first == images else first, *others) if isinstance(dim, int)]
  if images and first != images:
    raise NotRowsError
  if not dims or len(dims) != scope.rank(tensor):
    raise NotRowsError
  return dims


def _moved(
  scope: Scope, node: gs.Node, given: Sequence[Rows], axis: int, made: Sequence[int], width: int
) -> tuple[Rows, int]:
  """The rows after a step that makes a tensor of this shape, and their axis, which was `axis` before.

  Raises NotRowsError where the step takes rows apart.
  """
  rows, op, rank = given[0], scope.op(node), given[0].ndim
  if op == "Concat":
    if sum(each.size for each in given) > ROWS or (axis != rank - 1 and int(node.attrs["axis"]) % rank == axis):
      raise NotRowsError
    joined: Rows = np.concatenate(given, int(node.attrs["axis"]))
    return joined, axis
  if op == "Transpose":
    perm = [int(each) for each in node.attrs.get("perm") or range(rank)[::-1]]
    if perm.index(axis) != axis and rows.shape[axis] != 1:
      raise NotRowsError
    turned: Rows = rows.transpose(perm)
    return turned, perm.index(axis)
  if op == "Gather":
    along = int(node.attrs.get("axis", 0)) % rank
    indices = scope.constant(node.inputs[1], ORDER)
    if indices is None or along == axis or not _within(indices, rows.shape[along]):
      raise NotRowsError
    if rows.size // rows.shape[along] * indices.size > ROWS:
      raise NotRowsError
    return np.asarray(rows.take(indices, along)), axis + (indices.ndim - 1 if along < axis else 0)
  if op == "Slice":
    part: Rows = rows[_slices(scope, node, rank, axis)]
    return part, axis
  return rows, _axis_of_view(rows, axis, made, width)


def _axis_of_view(rows: Rows, axis: int, made: Sequence[int], width: int) -> int:
  """Where a view has the axis of rows: last, of any number of them, or as far from the first as it was, of one.

  Raises NotRowsError if nowhere.
  """
  if axis == rows.ndim - 1 and made[-1] % width == 0:
    return len(made) - 1
  before = math.prod(rows.shape[:axis])
  places = [at for at, dim in enumerate(made) if dim == width and math.prod(made[:at]) == before]
  if not places or rows.shape[axis] != 1:
    raise NotRowsError
  return places[0]


def _within(indices: Array, size: int) -> bool:
  return bool(((indices >= -size) & (indices < size)).all())


def _slices(scope: Scope, node: gs.Node, rank: int, rows: int) -> tuple[slice, ...]:
  """What a Slice takes. Raises NotRowsError where that is not known, goes backwards, or divides rows."""
  if (found := constant_slices(scope, node, rank)) is None or rows in found:
    raise NotRowsError
  return tuple(found.get(axis, slice(None)) for axis in range(rank))


def _replace(scope: Scope, steps: Steps, order: Rows) -> Applied:
  last = steps.nodes[-1]
  y, (*dims, width) = last.outputs[0], lengths(scope, steps.x)
  shape, rows = lengths(scope, y), math.prod(dims)
  counts = sorted({dims[0], shape[0], math.gcd(dims[0], shape[0])}, reverse=True)
  images = next((count for count in counts if repeats(order, count, rows)), 1)
  one = order[: len(order) // images]
  if len(one) > ORDER:
    raise NotRowsError
  moved = reshape(scope, last, steps.x, [images, rows // images, width])
  if not np.array_equal(one, np.arange(rows // images)):
    indices = integers(scope, [int(each) for each in one], f"{y.name}_order")
    moved = emit(scope, last, "Gather", [moved, indices], (images, len(one), width), axis=1)
  new = gs.Node("Reshape", last.name, {}, [moved, integers(scope, shape, f"{y.name}_shape")])
  return replaced(scope, steps.nodes, new, [y])


def repeats(order: Rows, images: int, rows: int) -> bool:
  """Whether each of so many images is ordered alike, from its own rows."""
  if not len(order) or len(order) % images or rows % images:
    return False
  one = order.reshape(images, -1)
  return bool((one == one[0] + np.arange(images)[:, None] * (rows // images)).all() and (one[0] < rows // images).all())


ROW_ORDER = RulePass("row-order", "steps that put the rows of a tensor in another order become one Gather", rewrite)
