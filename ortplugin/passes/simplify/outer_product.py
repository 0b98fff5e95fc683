"""A MatMul of a column and a row becomes a Mul, which broadcasts, and which is fused with its neighbours:

    MatMul(x, y)    x [.., M, 1]  y [.., 1, N]    becomes    Mul(x, y)

Exporters write the angles of rotary embeddings so: frequencies times positions. Each element is one product, rounded
once; TF32, which would round its factors too, is not asked for.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, labelled
from ..driver import Applied, Outcome, RulePass


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one MatMul."""
  if scope.op(node) != "MatMul" or scope.dtype(node.outputs[0]) not in ("float16", "bfloat16", "float", "double"):
    return None
  x, y = (scope.shape(each) for each in node.inputs)
  if x is None or y is None or len(x) < 2 or len(y) < 2 or x[-1] != 1 or y[-2] != 1:
    return None
  new = gs.Node("Mul", node.name, {}, list(node.inputs))
  scope.replace([node], new, [node.outputs[0]])
  return Applied(labelled(node), new)


OUTER_PRODUCT = RulePass("outer-product", "a MatMul of a column and a row becomes a Mul", rewrite)
