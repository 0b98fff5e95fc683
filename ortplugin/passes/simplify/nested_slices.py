"""An update of a slice of a slice becomes one, as PyTorch's dynamo exporter writes a[i, j:k] = v:

    part = Gather(data, i)  or  Slice(data, start, end)
    UpdateSlice(data, UpdateSlice(part, updates, ..), ..)    becomes    UpdateSlice(data, updates, ..)

if both times the same part of data is meant; all starts are constant.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, Shape, label
from ...graph.extents import extent, unsqueezed_axes
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import integers, unsqueeze

Slices = dict[int, tuple[int, int]]  # axis: start, step


@dataclass(frozen=True)
class _Update:
  node: gs.Node
  slices: Slices


def flatten(scope: Scope, node: gs.Node) -> Outcome:
  """Lets the outer update take the inner one's updates."""
  if (outer := _update(scope, node)) is None:
    return None
  between = scope.producer(node.inputs[1])
  missing: list[int] = []
  if between is not None and scope.op(between) == "Unsqueeze":
    missing = unsqueezed_axes(scope, between) or []
    inner = _update(scope, scope.producer(between.inputs[0])) if missing else None
  else:
    inner, between = _update(scope, between), None
  part = None if inner is None else scope.producer(inner.node.inputs[0])
  if inner is None or part is None or not part.inputs or part.inputs[0] is not node.inputs[0]:
    return None
  if (taken := _part(scope, part, missing)) is None:
    return None
  shape = scope.shape(node.inputs[0])
  if shape is None or _wrapped(taken, shape) != _wrapped(outer.slices, shape):
    return Missed(node, f"{label(part)} takes {taken} of '{part.inputs[0].name}', not {outer.slices}")
  for value, readers in ((inner.node.outputs[0], [between or node]), (node.inputs[1], [node])):
    if used := scope.used_beyond(value, readers):
      return Missed(inner.node, f"{used}, so it has to stay")
  kept = [axis for axis in range(len(shape)) if axis not in missing]  # data's axis of each of the inner update
  merged = dict(outer.slices)
  for axis, (start, step) in inner.slices.items():
    first, stride = merged.get(kept[axis], (0, 1))
    merged[kept[axis]] = (first + start * stride, step * stride)
  updates = inner.node.inputs[1]
  for axis, whole in enumerate(kept):  # what was whole inside must not be one element that broadcasts
    fits = extent(scope, updates, axis) == extent(scope, inner.node.inputs[0], axis)
    if axis not in inner.slices and whole in outer.slices and not fits:
      return Missed(inner.node, f"'{updates.name}' may broadcast on axis {axis}")
  if any(abs(number) >= 1 << 63 for each in merged.values() for number in each):
    return Missed(node, "a start or step of the two together does not fit in 64 bits")
  axes = sorted(merged)
  labels = tuple(label(each) for each in (part, inner.node, between, node) if each is not None)
  starts = integers(scope, [merged[axis][0] for axis in axes], f"{node.outputs[0].name}_starts")
  steps = [merged[axis][1] for axis in axes]
  attributes = {"axes": axes, **({"steps": steps} if set(steps) != {1} else {})}
  updates = unsqueeze(scope, node, updates, missing)
  new = gs.Node("UpdateSlice", node.name, attributes, [node.inputs[0], updates, starts], [], DOMAIN)
  scope.replace([each for each in (inner.node, between, node) if each is not None], new, [node.outputs[0]])
  return Applied(labels, new)


def _update(scope: Scope, node: gs.Node | None) -> _Update | None:
  """An UpdateSlice from the front with constant starts, none of them negative."""
  if node is None or scope.op(node) != "ortplugin::UpdateSlice" or scope.rank(node.inputs[0]) is None:
    return None
  starts, axes = scope.constant(node.inputs[2]), list(node.attrs["axes"])
  if starts is None or starts.size != len(axes):
    return None
  steps = node.attrs.get("steps") or [1] * len(axes)
  found = {axis: (int(start), int(step)) for axis, start, step in zip(axes, starts.reshape(-1), steps, strict=True)}
  slices = _wrapped(found, scope.shape(node.inputs[0]) or ())
  return _Update(node, slices) if all(start >= 0 for start, _ in slices.values()) else None


def _wrapped(slices: Slices, shape: Shape) -> Slices:
  """Starts from the front, where the size of the axis is known."""
  sizes = {axis: size for axis in slices if isinstance(size := shape[axis], int)}
  return {axis: (start + (sizes.get(axis, 0) if start < 0 else 0), step) for axis, (start, step) in slices.items()}


def _part(scope: Scope, node: gs.Node, missing: list[int]) -> Slices | None:
  """What a Gather of one index or a Slice takes of its input; `missing`: the axes that it drops."""
  op, numbers = scope.op(node), [scope.constant(each) for each in node.inputs[1:]]
  if op == "Gather" and numbers[0] is not None and numbers[0].ndim == 0:
    axis = int(node.attrs.get("axis", 0)) % (scope.rank(node.inputs[0]) or 1)
    return {axis: (int(numbers[0]), 1)} if missing == [axis] else None
  if op != "Slice" or missing or len(numbers) < 2 or any(each is None for each in numbers):
    return None
  values = [[int(i) for i in each.reshape(-1)] for each in numbers if each is not None]
  starts = values[0]
  axes = [a % (scope.rank(node.inputs[0]) or 1) for a in values[2]] if len(values) > 2 else list(range(len(starts)))
  steps = values[3] if len(values) > 3 else [1] * len(starts)
  found = {a: (start, step) for a, start, step in zip(axes, starts, steps, strict=True)}
  # Beyond the end a Slice stops, on which an update fails; with a known size it is known whether it does.
  shape = scope.shape(node.inputs[0]) or ()
  inside = all(0 <= s < shape[a] if isinstance(shape[a], int) else s == 0 for a, (s, _) in found.items())  # type: ignore[operator]
  return found if inside and all(step > 0 for step in steps) else None


NESTED_SLICES = RulePass("nested-slices", "an update of a slice of a slice becomes one update", flatten)
