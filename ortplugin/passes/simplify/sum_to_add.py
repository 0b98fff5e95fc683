"""Sum of two tensors becomes an Add, which is what other passes look for; Sum of one an Identity.

A Sum of three or more stays: it may round once where a chain of Adds rounds after each.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, labelled
from ..driver import Applied, Outcome, RulePass

NAMES = {1: "Identity", 2: "Add"}
BROADCASTS = 7  # the opset from which on an Add broadcasts as NumPy does


def rename(scope: Scope, node: gs.Node) -> Outcome:
  """Gives a Sum of one or two tensors its simpler name."""
  if scope.op(node) != "Sum" or len(node.inputs) not in NAMES or scope.opset < BROADCASTS:
    return None
  if len(node.inputs) == 2 and 0 in (scope.shape(node.outputs[0]) or ()):
    return None  # on CUDA ONNX Runtime (1.31) makes one node of an Add and a Softmax, which divides by its 0 elements
  labels = labelled(node)
  node.op = NAMES[len(node.inputs)]
  return Applied(labels, node)


SUM_TO_ADD = RulePass("sum-to-add", "Sum of two tensors becomes Add, Sum of one Identity", rename)
