"""What a Slice takes of each axis, where its starts, ends, axes and steps are constant."""

import onnx_graphsurgeon as gs

from .facts import Scope


def constant_slices(scope: Scope, node: gs.Node, rank: int) -> dict[int, slice] | None:
  """For each axis, from the front, that a Slice of a tensor of this rank names, what it takes of it, forwards.

  None where a number is not constant or a step is negative.
  """
  given = [*node.inputs[1:], None, None]
  numbers = [None if each is None or each.is_empty() else scope.constant(each) for each in given[:4]]
  if len(node.inputs) < 3 or any(
    number is None and each is not None and not each.is_empty() for number, each in zip(numbers, given, strict=False)
  ):
    return None
  starts, ends, axes, steps = numbers
  if starts is None or ends is None:
    return None
  found: dict[int, slice] = {}
  for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
    step = 1 if steps is None else int(steps[at])
    if step < 1:
      return None
    found[(at if axes is None else int(axes[at])) % rank] = slice(int(start), int(end), step)
  return found
