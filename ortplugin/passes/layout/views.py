"""Views of a tensor with channels last: those that keep batch and channels, and those of one pixel for each."""

import onnx_graphsurgeon as gs

from ...graph import Scope, Shape, element_count
from ..emit import integers
from .axes import with_axes
from .plan import Edit, Layouts, Plan, Rule, axis_last, is_vector, to_last


def _unchanged(layouts: Layouts, node: gs.Node) -> None:
  pass


def reshape(scope: Scope, node: gs.Node) -> Plan | None:
  """[N, C, A..] to [N, C, B..]; [N, C, 1, ..] to [N, C] and back; of one pixel also to anything else."""
  given, made = scope.shape(node.inputs[0]), scope.shape(node.outputs[0])
  target = scope.constant(node.inputs[1])
  if given is None or made is None or target is None or (node.attrs.get("allowzero", 0) and 0 in target):
    return None
  dims = [int(dim) for dim in target]
  if len(given) > 2 and len(made) > 2 and _same_front(given, made):
    # All but the batch as numbers; that is known, or copied, or what is left.
    rest = [made[axis] if dim == 0 else dim for axis, dim in enumerate(dims)]
    new = [dims[0], *rest[2:], made[1]]
    if any(not isinstance(dim, int) for dim in new):
      return None
    return Plan((0,), (0,), _to(scope, [int(dim) for dim in new if isinstance(dim, int)]))
  if is_vector(given) and 0 not in dims[1:]:
    return Plan((0,), (), _unchanged)
  if len(given) == 2 and is_vector(made) and _same_front(given, made) and isinstance(made[1], int):
    return Plan((), (0,), _to(scope, [dims[0], *[1] * (len(made) - 2), made[1]]))
  return None


def _same_front(given: Shape, made: Shape) -> bool:
  """Whether batch and channels are those of before."""
  pixels = element_count(given[2:])
  same_batch = given[0] is not None and given[0] == made[0]
  same_batch = same_batch or (pixels is not None and pixels > 0 and pixels == element_count(made[2:]))
  return same_batch and given[1] == made[1] and isinstance(given[1], int) and given[1] > 0


def _to(scope: Scope, dims: list[int]) -> Edit:
  def edit(layouts: Layouts, node: gs.Node) -> None:
    node.inputs[1] = integers(scope, dims, node.inputs[1].name)

  return edit


def flatten(scope: Scope, node: gs.Node) -> Plan | None:
  """Flatten of one pixel for each channel."""
  one = is_vector(scope.shape(node.inputs[0])) and int(node.attrs.get("axis", 1)) == 1
  return Plan((0,), (), _unchanged) if one else None


def squeeze(scope: Scope, node: gs.Node) -> Plan | None:
  """Squeeze of all spatial axes."""
  rank, axes = scope.rank(node.inputs[0]), scope.axes(node)
  if rank is None or rank < 3 or axes is None or sorted(axis % rank for axis in axes) != list(range(2, rank)):
    return None
  return Plan((0,), (), with_axes(scope, [axis_last(axis, rank) for axis in range(2, rank)]))


def unsqueeze(scope: Scope, node: gs.Node) -> Plan | None:
  """Unsqueeze of [N, C] to one pixel for each channel."""
  rank, axes = scope.rank(node.outputs[0]), scope.axes(node)
  if rank is None or scope.rank(node.inputs[0]) != 2 or axes is None:
    return None
  if sorted(axis % rank for axis in axes) != list(range(2, rank)):
    return None
  return Plan((), (0,), with_axes(scope, [axis_last(axis, rank) for axis in range(2, rank)]))


def lengths(scope: Scope, node: gs.Node) -> Plan | None:
  """Shape: the lengths in the old order are taken from those in the new one."""
  if (rank := scope.rank(node.inputs[0])) is None or rank < 3:
    return None
  order = [to_last(rank).index(axis) for axis in range(rank)][slice(node.attrs.get("start", 0), node.attrs.get("end"))]

  def edit(layouts: Layouts, node: gs.Node) -> None:
    whole = scope.like(node.outputs[0], "nhwc", (rank,))
    output = node.outputs[0]
    node.outputs[0] = whole
    for name in ("start", "end"):
      node.attrs.pop(name, None)
    indices = integers(scope, order, f"{output.name}_order")
    scope.insert_after(
      gs.Node("Gather", scope.unique(f"{output.name}/Gather"), {"axis": 0}, [whole, indices], [output]), node
    )

  return Plan((0,), (), edit)


VIEW_RULES: dict[str, Rule] = {
  "Reshape": reshape,
  "Flatten": flatten,
  "Squeeze": squeeze,
  "Unsqueeze": unsqueeze,
  "Shape": lengths,
  "Size": lambda scope, node: Plan((0,), (), _unchanged) if (scope.rank(node.inputs[0]) or 0) > 2 else None,
}
