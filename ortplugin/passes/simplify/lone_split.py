"""A Split of which one part is read becomes a Slice, which other passes move.

    a, b, c = Split<axis = 1>(x)      with b and c for nobody      becomes      a = Slice(x, [0], [n], [1])

BoTNet's attention reads K and V from the projection itself; only the positions of Q are left of its Split.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope
from ..driver import Outcome, RulePass, replaced
from ..emit import integers


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the Split where the lengths before its one part are known."""
  if scope.op(node) != "Split" or scope.opset < 10:
    return None
  read = [index for index, tensor in enumerate(node.outputs) if not tensor.is_empty() and scope.used_beyond(tensor, [])]
  rank = scope.rank(node.inputs[0])
  if len(read) != 1 or not rank:
    return None
  axis = int(node.attrs.get("axis", 0)) % rank
  lengths = [(scope.shape(tensor) or (None,) * rank)[axis] for tensor in node.outputs[: read[0] + 1]]
  known = [length for length in lengths if isinstance(length, int)]
  if len(known) != len(lengths):
    return None
  y = node.outputs[read[0]]
  numbers = [[sum(known[:-1])], [sum(known)], [axis]]
  inputs = [node.inputs[0], *(integers(scope, each, f"{y.name}_slice") for each in numbers)]
  new = gs.Node("Slice", node.name, {}, inputs)
  return replaced(scope, [node], new, [y])


LONE_SPLIT = RulePass("lone-split", "a Split of which one part is read becomes a Slice", rewrite)
