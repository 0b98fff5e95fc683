"""How operators work on tensors whose axes have another order: `forms_of`, for any permutation.

y = Transpose<perm>(ReduceSum<axes = [1]>(x))     is     ReduceSum<axes = [3]>(Transpose(x))
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, element_count, optional_input
from ...graph.pointwise import is_symmetric
from ...graph.slices import constant_slices
from ..emit import integers
from .axes import REDUCTIONS
from .cut import price_of
from .fuse_pool import POOL_RULES, over_all_pixels
from .plan import Layouts, Plan, to_last

Edit = Callable[[gs.Node], None]
"""Changes a copy of the node that reads the permuted inputs."""


@dataclass(frozen=True)
class Permuted:
  """A form of a node: the permutation of each of its inputs that then has its axes in another order.

  `spared`: bytes that the node itself moves less.
  """

  inputs: dict[int, Sequence[int]]
  edit: Edit
  spared: int = 0


def forms_of(scope: Scope, node: gs.Node, perm: Sequence[int]) -> Iterator[Permuted]:
  """The forms of a node with one output that has its axes in the order `perm` then."""
  op, rank = scope.op(node), len(perm)
  if is_symmetric(scope, node) or op == f"{DOMAIN}::FusedPointwise":
    if (operands := _broadcast(scope, node, rank)) is not None:
      yield Permuted(dict.fromkeys(operands, perm), lambda new: None)
  elif op == "Concat" and all(scope.rank(each) == rank for each in node.inputs):
    yield Permuted(dict.fromkeys(range(len(node.inputs)), perm), _axis(perm.index(int(node.attrs["axis"]) % rank)))
  elif op in ("Softmax", "LogSoftmax") and scope.opset >= 13:
    old = int(node.attrs.get("axis", -1)) % rank
    new = perm.index(old)
    # Over another axis than the last ONNX Runtime's kernel transposes what it reads, and what it writes.
    spared = 2 * price_of(scope.shape(node.inputs[0]), node.inputs[0]) * ((old != rank - 1) - (new != rank - 1))
    yield Permuted({0: perm}, _axis(new), spared)
  elif op == "Pad" and (pads := scope.constant(node.inputs[1])) is not None and pads.size == 2 * rank:
    if optional_input(node, 3) is None:
      order = [int(part[axis]) for part in (pads[:rank], pads[rank:]) for axis in perm]
      yield Permuted({0: perm}, lambda new: _set(scope, new, 1, order))
  elif op == "Tile" and (repeats := scope.constant(node.inputs[1])) is not None and repeats.size == rank:
    yield Permuted({0: perm}, lambda new: _set(scope, new, 1, [int(repeats[axis]) for axis in perm]))
  elif op == "Slice" and (taken := constant_slices(scope, node, rank)) is not None:
    yield Permuted({0: perm}, lambda new: _slice(scope, new, perm, taken))
  elif op in REDUCTIONS:
    yield from _reductions(scope, node, perm)
  elif op in POOL_RULES and list(perm) == to_last(rank) and (plan := POOL_RULES[op](scope, node)) is not None:
    yield _planned(scope, plan, perm)


def reduced_axes(scope: Scope, node: gs.Node) -> list[int] | None:
  """The axes of a reduction, from the front; None where they are not known, or none are given."""
  rank, axes = scope.rank(node.inputs[0]), scope.axes(node)
  return sorted({axis % rank for axis in axes}) if rank and axes else None


def reduction(scope: Scope, node: gs.Node, order: Sequence[int]) -> Permuted | None:
  """The reduction of an input in this order: the same axes, which are others then; a global pool where it is one."""
  if (axes := reduced_axes(scope, node)) is None:
    return None
  if (
    list(order) == to_last(len(order))
    and node.attrs.get("keepdims", 1)
    and scope.op(node) in ("ReduceMean", "ReduceMax")
  ) and (plan := over_all_pixels(scope, node)) is not None:
    return _planned(scope, plan, order)
  new = sorted(order.index(axis) for axis in axes)

  def edit(made: gs.Node) -> None:
    if optional_input(made, 1) is not None:
      _set(scope, made, 1, new)
    else:
      made.attrs["axes"] = new

  return Permuted({0: order}, edit)


def orders_with(axes: Sequence[int], kept: Sequence[int]) -> Iterator[list[int]]:
  """The orders of all axes in which `kept` are in this order, and `axes` stand together somewhere."""
  for at in range(len(kept) + 1):
    yield [*kept[:at], *axes, *kept[at:]]


def _reductions(scope: Scope, node: gs.Node, perm: Sequence[int]) -> Iterator[Permuted]:
  axes, rank = reduced_axes(scope, node), scope.rank(node.inputs[0]) or 0
  if axes is None:
    return
  if node.attrs.get("keepdims", 1):
    orders = iter([list(perm)])
  else:
    kept = [axis for axis in range(rank) if axis not in axes]
    orders = orders_with(axes, [kept[axis] for axis in perm])
  for order in orders:
    if (found := reduction(scope, node, order)) is not None:
      yield found


def _broadcast(scope: Scope, node: gs.Node, rank: int) -> list[int] | None:
  """The inputs whose axes have an order; None where one is of unknown rank."""
  if len(node.outputs) != 1:
    return None
  found = []
  for index, tensor in enumerate(node.inputs):
    own = None if tensor.is_empty() else scope.rank(tensor)
    if tensor.is_empty() or element_count(scope.shape(tensor)) == 1:
      continue
    if own is None or own > rank:
      return None
    found.append(index)
  return found


def _planned(scope: Scope, plan: Plan, perm: Sequence[int]) -> Permuted:
  return Permuted(dict.fromkeys(plan.reads, perm), lambda new: plan.edit(Layouts(scope), new))


def _axis(axis: int) -> Edit:
  def edit(new: gs.Node) -> None:
    new.attrs["axis"] = axis

  return edit


def _slice(scope: Scope, new: gs.Node, perm: Sequence[int], taken: dict[int, slice]) -> None:
  numbers = [(each.start, each.stop, perm.index(axis), each.step) for axis, each in taken.items()]
  while len(new.inputs) > 1:
    new.inputs.pop()
  for column in zip(*numbers, strict=True):
    new.inputs.append(integers(scope, column, f"{new.name}_slice"))


def _set(scope: Scope, new: gs.Node, index: int, values: Sequence[int]) -> None:
  new.inputs[index] = integers(scope, values, f"{new.name}_{index}")
