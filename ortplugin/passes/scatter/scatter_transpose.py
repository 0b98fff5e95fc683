"""A scatter on the first axis of transposed data becomes one on data's own axis, as PyTorch's dynamo exporter writes
a[:, i:j] = v and index_copy:

    Transpose(UpdateSlice(Transpose(data), Transpose(updates), axes=[0]))    becomes    UpdateSlice(data, updates, ..)

so that data is not copied twice, and can be updated in place. Where the second Transpose does more than undo the first,
as between two such scatters, one Transpose remains, behind the scatter.
"""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, label, labelled
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import reshape, transpose

SCATTERS = ("ortplugin::UpdateSlice", "ortplugin::ScatterElements", "ortplugin::ScatterND")


def untranspose(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces a scatter between two Transposes that undo each other."""
  if scope.op(node) not in SCATTERS:
    return None
  before, perm = _transposed(scope, node.inputs[0])
  readers = scope.consumers(node.outputs[0])
  if before is None or perm is None or len(readers) != 1 or scope.op(readers[0]) != "Transpose":
    return None
  after = readers[0]
  if "perm" not in after.attrs:
    return None
  back = [perm.index(axis) for axis in range(len(perm))]
  if used := scope.used_beyond(node.outputs[0], [after]):
    return Missed(node, f"{used}, so {label(after)} has to stay")
  kind, indices, attributes = node.op, node.inputs[1], dict(node.attrs)
  if kind == "ScatterND":
    shape = scope.shape(indices)
    if shape is None or len(shape) != 2 or shape[1] != 1:
      return Missed(node, "its indices are not a column that one axis of data takes")
    kind, attributes["axis"] = "ScatterElements", perm[0]
    indices = reshape(scope, node, indices, [-1 if axis == perm[0] else 1 for axis in range(len(perm))])
  elif kind == "ScatterElements":
    attributes["axis"] = perm[int(attributes.get("axis", 0))]
    indices = _untransposed(scope, node, indices, perm, back)
  else:
    attributes["axes"] = [perm[axis] for axis in attributes["axes"]]
  at = 1 if kind == "UpdateSlice" else 2
  updates = _untransposed(scope, node, node.inputs[at], perm, back)
  rest = [updates, node.inputs[2]] if kind == "UpdateSlice" else [indices, updates]
  labels = labelled(before, node, after)
  new = gs.Node(kind, node.name, attributes, [before.inputs[0], *rest], [], DOMAIN)
  both = [perm[axis] for axis in after.attrs["perm"]]
  if both != sorted(both):
    x, y = before.inputs[0], node.outputs[0]
    new.outputs.append(scope.like(y, "updated", scope.shape(x)))
    scope.insert(new, node)
    new = gs.Node("Transpose", after.name, {"perm": both}, [new.outputs[0]], [])
  scope.replace([node, after], new, [after.outputs[0]])
  return Applied(labels, new)


def _transposed(scope: Scope, tensor: gs.Tensor) -> tuple[gs.Node | None, list[int] | None]:
  """The Transpose that makes the tensor, and its perm."""
  if (node := scope.producer(tensor, "Transpose")) is None or "perm" not in node.attrs:
    return None, None
  return node, list(node.attrs["perm"])


def _untransposed(
  scope: Scope, node: gs.Node, tensor: gs.Tensor, perm: Sequence[int], back: Sequence[int]
) -> gs.Tensor:
  """The tensor with its axes where data's are."""
  made, given = _transposed(scope, tensor)
  return made.inputs[0] if made is not None and given == perm else transpose(scope, node, tensor, back)


SCATTER_TRANSPOSE = RulePass("scatter-transpose", "scatters between Transposes work on the data as it is", untranspose)
