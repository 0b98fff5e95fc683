"""Operators that name axes, with channels last: the same axes under their new numbers."""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, optional_input
from ..emit import integers
from .fuse_pool import over_all_pixels
from .plan import Edit, Layouts, Plan, Rule, axis_last, to_last

REDUCTIONS = (
  "ReduceSum",
  "ReduceMean",
  "ReduceMax",
  "ReduceMin",
  "ReduceProd",
  "ReduceL1",
  "ReduceL2",
  "ReduceLogSum",
  "ReduceLogSumExp",
  "ReduceSumSquare",
)


def split_operands(
  scope: Scope, node: gs.Node, rank: int | None, indices: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
  """Those of the inputs that are variables of this rank, and the others; None if one is of unknown or higher rank."""
  reads: list[int] = []
  others: list[int] = []
  for index in indices:
    tensor = node.inputs[index]
    own = scope.rank(tensor)
    if own is None or rank is None or own > rank:
      return None
    (reads if own == rank and not scope.is_constant(tensor) else others).append(index)
  return tuple(reads), tuple(others)


def along_axis(default: int, inputs: int | None = None, least_opset: int = 0) -> Rule:
  """An operator with the attribute `axis`, all of whose first `inputs` inputs (None: all) have one rank."""

  def rule(scope: Scope, node: gs.Node) -> Plan | None:
    rank, axis = scope.rank(node.inputs[0]), int(node.attrs.get("axis", default))
    if rank is None or rank < 3 or scope.opset < least_opset or not -rank <= axis < rank:
      return None
    data = list(node.inputs[:inputs])
    makes = tuple(index for index, tensor in enumerate(node.outputs) if not tensor.is_empty())
    if any(scope.rank(tensor) != rank for tensor in (*data, *(node.outputs[index] for index in makes))):
      return None
    if (found := split_operands(scope, node, rank, range(len(data)))) is None:
      return None
    reads, constants = found

    def edit(layouts: Layouts, node: gs.Node) -> None:
      for index in constants:
        node.inputs[index] = layouts.weights(node.inputs[index], node)
      node.attrs["axis"] = axis_last(axis, rank)

    return Plan(reads, makes, edit)

  return rule


def elements(scope: Scope, node: gs.Node) -> Plan | None:
  """Gather of the elements along an axis, which stays one axis."""
  return along_axis(0, inputs=1)(scope, node) if scope.rank(node.inputs[1]) == 1 else None


def index_of_maximum(scope: Scope, node: gs.Node) -> Plan | None:
  """ArgMax and ArgMin: one axis, which stays or goes."""
  rank, axis = scope.rank(node.inputs[0]), int(node.attrs.get("axis", 0))
  if rank is None or rank < 3 or not -rank <= axis < rank:
    return None
  keeps = bool(node.attrs.get("keepdims", 1))
  if not keeps and not _in_order(rank, [axis % rank]):
    return None

  def edit(layouts: Layouts, node: gs.Node) -> None:
    node.attrs["axis"] = axis_last(axis, rank)

  return Plan((0,), (0,) if keeps else (), edit)


def _in_order(rank: int, removed: list[int]) -> bool:
  """Whether the other axes are in the order that they had with channels first."""
  order = [axis for axis in to_last(rank) if axis not in removed]
  return order == sorted(order)


def reduction(scope: Scope, node: gs.Node) -> Plan | None:
  """A sum, mean, maximum, ... over given axes."""
  rank, given = scope.rank(node.inputs[0]), scope.axes(node)
  if rank is None or rank < 3 or not given:
    return None
  if any(not -rank <= axis < rank for axis in given):
    return None
  keeps = bool(node.attrs.get("keepdims", 1))
  if not keeps and not _in_order(rank, [axis % rank for axis in given]):
    return None
  return Plan((0,), (0,) if keeps else (), with_axes(scope, sorted(axis_last(axis, rank) for axis in given)))


def with_axes(scope: Scope, axes: list[int]) -> Edit:
  """Gives the node other axes, where it has its own."""

  def edit(layouts: Layouts, node: gs.Node) -> None:
    if "axes" in node.attrs:
      node.attrs["axes"] = axes
    else:
      node.inputs[1] = integers(scope, axes, node.inputs[1].name)

  return edit


def pool_or_reduction(scope: Scope, node: gs.Node) -> Plan | None:
  """A mean or maximum: over all pixels it is a pool."""
  return over_all_pixels(scope, node) or reduction(scope, node)


def pad(scope: Scope, node: gs.Node) -> Plan | None:
  """Pad with constant pads, of all axes or of given ones."""
  rank, pads = scope.rank(node.inputs[0]), scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
  given = optional_input(node, 3)
  axes = None if given is None else scope.constant(given)
  if rank is None or rank < 3 or pads is None or (given is not None and axes is None):
    return None
  if axes is None and pads.size != 2 * rank:
    return None
  pads_begin, pads_end = pads[: pads.size // 2], pads[pads.size // 2 :]

  def edit(layouts: Layouts, node: gs.Node) -> None:
    if axes is None:
      order = to_last(rank)
      new = [int(part[axis]) for part in (pads_begin, pads_end) for axis in order]
      node.inputs[1] = integers(scope, new, node.inputs[1].name)
    else:
      given = [axis_last(int(axis), rank) for axis in np.reshape(axes, -1)]
      node.inputs[3] = integers(scope, given, node.inputs[3].name)

  return Plan((0,), (0,), edit)


def part(scope: Scope, node: gs.Node) -> Plan | None:
  """Slice along given axes, or along the first ones."""
  rank, count = scope.rank(node.inputs[0]), (scope.shape(node.inputs[1]) or (None,))[0]
  given = optional_input(node, 3)
  axes = scope.constant(given) if given is not None else range(count) if isinstance(count, int) else None
  if rank is None or rank < 3 or axes is None:
    return None
  new = [axis_last(int(axis), rank) for axis in np.reshape(axes, -1)]

  def edit(layouts: Layouts, node: gs.Node) -> None:
    constant = integers(scope, new, f"{node.outputs[0].name}_axes")
    if scope.rank(node.inputs[1]) == 1 and node.inputs[1].dtype is not None and node.inputs[1].dtype != constant.dtype:
      constant = scope.add_constant(constant.values.astype(node.inputs[1].dtype), constant.name)
    if len(node.inputs) > 3:
      node.inputs[3] = constant
    else:
      node.inputs.append(constant)

  return Plan((0,), (0,), edit)


def within_image(scope: Scope, node: gs.Node) -> Plan | None:
  """A Transpose of spatial axes alone."""
  rank = scope.rank(node.inputs[0])
  perm = [int(axis) for axis in node.attrs.get("perm") or ()]
  if rank is None or rank < 3 or len(perm) != rank or perm[:2] != [0, 1]:
    return None

  def edit(layouts: Layouts, node: gs.Node) -> None:
    node.attrs["perm"] = [axis_last(perm[axis], rank) for axis in to_last(rank)]

  return Plan((0,), (0,), edit)


AXIS_RULES: dict[str, Rule] = {
  "Concat": along_axis(0),
  "Gather": elements,
  "Split": along_axis(0, inputs=1),
  **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), along_axis(-1, least_opset=13)),
  "LpNormalization": along_axis(-1),
  **dict.fromkeys(("ArgMax", "ArgMin"), index_of_maximum),
  **dict.fromkeys(REDUCTIONS, reduction),
  **dict.fromkeys(("ReduceMean", "ReduceMax"), pool_or_reduction),
  "Pad": pad,
  "Slice": part,
  "Transpose": within_image,
}
