"""Rows that are read of a tensor are taken before the operators that make all of its rows.

    y = Gather<axis = 1>(Add(x, MatMul(LayerNorm(x), w)), 0)     x [N, S, C]

becomes, with r = Gather<axis = 1>(x, [0]),

    y = Gather<axis = 1>(Add(r, MatMul(LayerNorm(r), w)), 0)     r [N, 1, C]

A classifier reads one row of its last layer, a language model that is asked for its next token one row of its logits.
What moves computes each row from the same row of its operands alone, and nothing else reads what it makes. It moves as
far as one tensor is left to take rows of, if that is past a product or a norm. One tensor may be read by its rows here
and as it is there, such as weights that are added as positions, too: rows are a matter of each operand.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, labelled
from ...graph.disputed import disputed_now
from ...graph.pointwise import is_symmetric
from ...ops.layer_norm.reference import axes_of
from ...program import ProgramError, parse
from ..driver import Applied, Outcome, RulePass
from ..emit import emit, integers

NORM = f"{DOMAIN}::FusedLayerNorm"
HEAVY = ("MatMul", "Gemm", NORM)
FAR = 64  # operators that are looked at
ROWS = 4096  # that are taken, at most


@dataclass(frozen=True)
class _Region:
  """Operators that make rows, the last first; the axis of the rows in each tensor; those of which rows are taken."""

  nodes: list[gs.Node]
  axes: dict[int, int]
  ends: list[gs.Tensor]
  rowed: dict[int, list[int]]
  """Of each node which operands have the rows; it reads its others as they are."""


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Moves one Gather."""
  if scope.op(node) != "Gather":
    return None
  x = node.inputs[0]
  if not (rank := scope.rank(x)):
    return None
  axis, indices = int(node.attrs.get("axis", 0)) % rank, scope.constant(node.inputs[1], ROWS)
  count = None if indices is None or indices.ndim > 1 else indices.size
  dim = (scope.shape(x) or ())[axis]
  if indices is None or not count or dim == 1 or (isinstance(dim, int) and 2 * count > dim):
    return None
  if (region := _region(scope, node, axis)) is None:
    return None
  labels = labelled(*reversed(region.nodes), node)
  made: dict[int, gs.Tensor] = {}
  rows = integers(scope, [int(each) for each in indices.reshape(-1)], f"{node.outputs[0].name}_rows")
  for each in region.ends:
    at = region.axes[id(each)]
    made[id(each)] = emit(scope, node, "Gather", [each, rows], _with_rows(scope, each, at, count), axis=at)
  for each in reversed(region.nodes):
    y, inputs = each.outputs[0], list(each.inputs)
    for index in region.rowed[id(each)]:
      inputs[index] = made[id(inputs[index])]
    new = gs.Node(each.op, each.name, dict(each.attrs), inputs, [], each.domain)
    if y is x and indices.ndim:
      break  # it makes what the Gather made
    shape = _with_rows(scope, y, region.axes[id(y)], count)
    made[id(y)] = scope.like(y, "rows", shape)
    new.outputs.append(made[id(y)])
    scope.insert(new, node)
  if not indices.ndim:
    axes = {"axes": [axis]} if scope.opset < 13 else {}
    new = gs.Node("Squeeze", node.name, axes, [made[id(x)], *([] if axes else [integers(scope, [axis], "axes")])])
  scope.replace([node], new, [node.outputs[0]])
  for each in region.nodes:
    scope.remove(each)
  return Applied(labels, new)


def _region(scope: Scope, node: gs.Node, axis: int) -> _Region | None:
  """The largest with one end, constants aside, and a product or a norm in it."""
  x = node.inputs[0]
  unsure = disputed_now(scope)
  axes, ends = {id(x): axis}, {id(x): x}
  nodes: list[gs.Node] = []
  rowed: dict[int, list[int]] = {}
  best: _Region | None = None
  queue = [-scope.position[id(each)] for each in [scope.producer(x)] if each is not None and each.outputs[0] is x]
  while queue and len(nodes) < FAR:
    each = scope.slots[-heapq.heappop(queue)]
    assert each is not None
    y = each.outputs[0]
    if scope.used_beyond(y, [node, *nodes]) or y.name in unsure or _read_whole(y, nodes, rowed):
      continue
    taken = _taken(scope, each, axes[id(y)])
    if taken is None or any(axes.get(id(each.inputs[index]), at) != at for index, at in taken):
      continue
    nodes.append(each)
    rowed[id(each)] = [index for index, _ in taken]
    del ends[id(y)]
    for tensor, at in ((each.inputs[index], at) for index, at in taken):
      if id(tensor) in ends:
        continue
      axes[id(tensor)], ends[id(tensor)] = at, tensor
      maker = scope.producer(tensor)
      if maker is not None and maker.outputs[0] is tensor and -scope.position[id(maker)] not in queue:
        heapq.heappush(queue, -scope.position[id(maker)])
    open_ends = [tensor for tensor in ends.values() if not scope.is_constant(tensor)]
    if len(open_ends) <= 1 and any(scope.op(member) in HEAVY for member in nodes):
      best = _Region(list(nodes), dict(axes), list(ends.values()), dict(rowed))
  return best


def _read_whole(y: gs.Tensor, nodes: list[gs.Node], rowed: dict[int, list[int]]) -> bool:
  """Whether one of the nodes reads the tensor as it is."""
  return any(t is y and at not in rowed[id(each)] for each in nodes for at, t in enumerate(each.inputs))


def _taken(scope: Scope, node: gs.Node, axis: int) -> list[tuple[int, int]] | None:
  """Which operands have the rows, and their axes of rows; None if it does not compute each row from its own."""
  op, y = scope.op(node), node.outputs[0]
  if (shape := scope.shape(y)) is None or len(node.outputs) != 1:
    return None
  if op == "Transpose":
    perm = node.attrs.get("perm") or range(len(shape))[::-1]
    return [(0, int(perm[axis]))]
  if op in ("MatMul", "Gemm"):
    x, w = node.inputs[:2]
    plain = scope.is_constant(w) and scope.rank(w) == 2 and scope.rank(x) == len(shape)
    if not plain or axis == len(shape) - 1 or node.attrs.get("transA", 0):
      return None
    return _rows_of(scope, {at: each for at, each in enumerate(node.inputs) if at != 1}, shape, axis)
  if op == NORM and not _keeps_rows(node, len(shape), axis):
    return None
  known = op == NORM or is_symmetric(scope, node)
  return _rows_of(scope, dict(enumerate(node.inputs)), shape, axis) if known else None


def _rows_of(
  scope: Scope, operands: Mapping[int, gs.Tensor], shape: tuple[int | str | None, ...], axis: int
) -> list[tuple[int, int]] | None:
  """Those that don't broadcast along the axis of a result of this shape; None where that is not known."""
  found = []
  for index, tensor in operands.items():
    given = () if tensor.is_empty() else scope.shape(tensor)
    if given is None or len(given) > len(shape):
      return None
    at = axis - (len(shape) - len(given))
    if at < 0 or given[at] == 1:
      continue
    if given[at] is None or given[at] != shape[axis]:
      return None
    found.append((index, at))
  return found or None


def _keeps_rows(node: gs.Node, rank: int, axis: int) -> bool:
  """Whether a norm is of each row."""
  try:
    core = parse(str(node.attrs.get("program", ""))).core
    return core is not None and "ordered" not in node.attrs and axis not in axes_of(core, rank)
  except (ProgramError, ValueError):
    return False


def _with_rows(scope: Scope, tensor: gs.Tensor, axis: int, count: int) -> tuple[int | str | None, ...]:
  given = scope.shape(tensor) or ()
  return (*given[:axis], count, *given[axis + 1 :])


EARLY_GATHER = RulePass("early-gather", "some rows are taken before the products and norms that make all", rewrite)
