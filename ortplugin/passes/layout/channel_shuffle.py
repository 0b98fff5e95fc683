"""A shuffle of channels, written as Reshape, Transpose, Reshape, becomes one Gather of them.

    a = Reshape(x, [N, g, C/g, H, W]); b = Transpose<perm = [0, 2, 1, 3, 4]>(a); y = Reshape(b, [N, C, H, W])

becomes `y = Gather<axis = 1>(x, order)`: it names its axis, so that it can have channels last.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope
from ..driver import Missed, Outcome, RulePass, replaced

CHANNELS = 1 << 16  # of which an order is written into the model


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the three nodes, of which `node` is the last."""
  transpose = _maker(scope, node, "Reshape", "Transpose")
  first = None if transpose is None else _maker(scope, transpose, "Transpose", "Reshape")
  if transpose is None or first is None:
    return None
  x, y = first.inputs[0], node.outputs[0]
  given, split, made = scope.shape(x), scope.shape(first.outputs[0]), scope.shape(y)
  if given is None or split is None or made is None or len(given) < 3 or len(split) != len(given) + 1:
    return None
  if list(transpose.attrs.get("perm", ())) != [0, 2, 1, *range(3, len(split))]:
    return None
  # All but the batch are numbers, so that the batch is the same throughout.
  if not all(isinstance(dim, int) and dim > 0 for dim in (*given[1:], *split[1:])):
    return None
  if split[3:] != given[2:] or made[1:] != given[1:]:
    return None
  for maker, reader in ((first, transpose), (transpose, node)):
    if used := scope.used_beyond(maker.outputs[0], [reader]):
      return Missed(node, used)
  groups, members = (int(dim) for dim in split[1:3] if isinstance(dim, int))
  if groups * members > CHANNELS:  # a shape is only a claim: no constant is made as long as it says
    return Missed(node, f"{groups * members} channels are more than {CHANNELS}")
  order = np.arange(groups * members).reshape(groups, members).T.reshape(-1)
  indices = scope.add_constant(order.astype(np.int64), f"{y.name}_order")
  gather = gs.Node("Gather", node.name, {"axis": 1}, [x, indices])
  nodes = [first, transpose, node]
  return replaced(scope, nodes, gather, [y])


def _maker(scope: Scope, node: gs.Node, op: str, wanted: str) -> gs.Node | None:
  """What makes the first input of a node of the operator `op`, if that is a `wanted`."""
  return scope.producer(node.inputs[0], wanted) if scope.op(node) == op else None


CHANNEL_SHUFFLE = RulePass(
  "channel-shuffle", "Reshape, Transpose, Reshape that shuffle channels become a Gather", rewrite
)
