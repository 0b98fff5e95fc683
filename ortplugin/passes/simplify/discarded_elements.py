"""Elements of a constant that no integer holds, and that nothing reads in the end, become 0: T5's relative positions.

    y = Where(near, distance, Min(Cast<int64>(c), 15))     c = log(distance), -inf where distance is 0, which is near

A Cast of such a number to an integer is not defined, so that folding leaves it, and all that follows, to run time.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope, is_pointwise, labelled
from ..driver import Applied, Outcome, RulePass

ELEMENTS = 1 << 22  # of constants that are looked at
FAR = 16  # operators between a Cast and the Where


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Gives one Cast a constant that it can cast."""
  if scope.op(node) != "Cast" or node.outputs[0].dtype is None or np.dtype(node.outputs[0].dtype).kind not in "iu":
    return None
  if (x := scope.constant(node.inputs[0], ELEMENTS)) is None or x.dtype.kind in "iub":
    return None
  limits, wide = np.iinfo(node.outputs[0].dtype), x.astype(np.float64)
  fits = np.isfinite(wide) & (wide > limits.min) & (wide < limits.max)
  if fits.all() or not _are_discarded(scope, node, ~fits):
    return None
  labels = labelled(node)
  node.inputs[0] = scope.add_constant(np.where(fits, x, np.zeros((), x.dtype)), node.inputs[0].name)
  return Applied(labels, node)


def _are_discarded(scope: Scope, node: gs.Node, elements: Array) -> bool:
  """Whether pointwise operators lead the node's output to a Where that takes the other input for these elements."""
  for _ in range(FAR):
    tensor, readers = node.outputs[0], scope.consumers(node.outputs[0])
    if len(readers) != 1 or scope.used_beyond(tensor, readers) or not is_pointwise(scope, readers[0]):
      return False
    (node,) = readers
    places = [at for at, each in enumerate(node.inputs) if each is tensor]
    if scope.shape(node.outputs[0]) != elements.shape:
      return False
    if scope.op(node) != "Where":
      continue
    if (condition := scope.constant(node.inputs[0], ELEMENTS)) is not None and places in ([1], [2]):
      taken = condition if places == [1] else ~condition
      return not (np.broadcast_to(taken, elements.shape) & elements).any()
  return False


DISCARDED_ELEMENTS = RulePass(
  "discarded-elements", "elements that no integer holds, and that a Where discards, become 0 before a Cast", rewrite
)
