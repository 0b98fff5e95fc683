"""An Expand before a pointwise operator goes behind it, or away where the operator broadcasts.

    y = Add(scores, Expand(m, [B, 1, S, T]))     scores [B, H, S, T]     becomes     y = Add(scores, m)
    y = Where(Expand(m, [B, 1, S, T]), 0, -inf)  becomes     y = Expand(Where(m, 0, -inf), [B, 1, S, T])

Less is computed and written so; masks arrive at attention as small as they were made. ONNX Runtime's CPU provider
expands no bfloat16: behind a Cast to it an Expand goes only on its way to the next pointwise operator.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ortplugin.graph.disputed import disputed
from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.pointwise import is_symmetric
from ortplugin.graph.shapes import broadcast, equal
from ortplugin.passes.driver import Applied, Outcome, RulePass
from ortplugin.passes.emit import integers


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Takes one Expand from a pointwise operator."""
  if not node.inputs or not is_symmetric(scope, node):
    return None
  for index, tensor in enumerate(node.inputs):
    expand = scope.producer(tensor)
    if expand is None or scope.op(expand) != "Expand" or expand.inputs[0].name in disputed(scope.graph):
      continue
    x, y = expand.inputs[0], node.outputs[0]
    operands = [scope.shape(x if at == index else each) for at, each in enumerate(node.inputs)]
    given, made = broadcast(operands), scope.shape(y)
    if given is None or made is None:
      continue
    labels = (label(expand), label(node))
    if equal(given, made):
      node.inputs[index] = x
    elif (
      all(isinstance(dim, int) for dim in (*given, *made))
      and not scope.used_beyond(tensor, [node])
      and (scope.op(node) != "Cast" or _may_be_expanded(scope, y))
    ):
      node.inputs[index] = x
      small = gs.Variable(scope.unique(f"{y.name}_small"), y.dtype, given)
      node.outputs[0] = small
      dims = integers(scope, [int(dim) for dim in made if isinstance(dim, int)], f"{y.name}_shape")
      scope.insert_after(gs.Node("Expand", scope.unique(f"{y.name}/Expand"), {}, [small, dims], [y]), node)
    else:
      continue
    if not scope.used_beyond(tensor, []):
      scope.remove(expand)
    return Applied(labels, node)
  return None


def _may_be_expanded(scope: Scope, y: gs.Tensor) -> bool:
  if y.dtype is not None and np.dtype(y.dtype).type.__module__ == "numpy":
    return True
  readers = scope.consumers(y)
  return len(readers) == 1 and not scope.used_beyond(y, readers) and is_symmetric(scope, readers[0])


LATE_EXPAND = RulePass("late-expand", "an Expand before a pointwise operator goes behind it, or away", rewrite)
