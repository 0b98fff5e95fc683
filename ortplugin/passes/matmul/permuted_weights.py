"""A product of rows that were transposed within reads them as they were, with weights in that order.

    b = Reshape(Transpose<perm = [0, 3, 1, 2]>(x), [N, C H W])        x [N, H, W, C]
    y = FusedMatMul(b, w)                                             w [C H W, M]

becomes

    y = FusedMatMul(Reshape(x, [N, H W C]), w')

The first linear layer behind convolutions with channels last: VGG's, AlexNet's, a small classifier's.
"""

import math

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, is_disputed, labelled
from ...ops.matmul import NAME
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import integers
from ..layout.movement import VIEWS, Movement, lengths

WEIGHTS = 1 << 27  # elements that are rearranged here; VGG has 103 million


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Rearranges the weights of this product, and of its gate."""
  if node.op != NAME:
    return None
  chain: list[gs.Node] = []
  reader, x = node, node.inputs[0]
  while (step := scope.producer(x, *VIEWS, "Transpose")) is not None:
    chain.append(step)
    x = step.inputs[0]
  if not any(scope.op(step) == "Transpose" for step in chain):
    return None
  given, rows = lengths(scope.shape(x)), lengths(scope.shape(node.inputs[0]))
  movement = None if given is None else Movement(given)
  if given is None or rows is None or movement is None or movement.take(scope, x, chain) is None:
    return None
  form = movement.moved_first()
  if form is None or form.perm is None or form.slices or is_disputed(scope, x):
    return None
  lead = next((axis for axis in range(len(given)) if math.prod(given[axis:]) == rows[-1]), None)
  if lead is None or form.perm[:lead] != list(range(lead)):
    return None  # rows change places, too
  for step in chain:
    if reason := scope.used_beyond(step.outputs[0], [reader]):
      return Missed(node, reason)
    reader = step
  weights = [1, 2][: 1 + int(node.attrs.get("gated", 0))]
  arrays = [scope.constant(node.inputs[index], WEIGHTS) for index in weights]
  moved = [axis - lead for axis in form.perm[lead:]]
  axis = int(bool(node.attrs.get("trans_b", 0)))
  inputs = list(node.inputs)
  for index, array in zip(weights, arrays, strict=True):
    tensor = node.inputs[index]
    if array is None or array.ndim != 2 or scope.used_beyond(tensor, [node]):
      return Missed(node, f"'{tensor.name}' is no constant matrix of up to {WEIGHTS} elements that it alone reads")
    inputs[index] = scope.add_constant(_moved(array, axis, given[lead:], moved), tensor.name)
  labels = labelled(*reversed(chain), node)
  name = node.inputs[0].name
  view = gs.Node("Reshape", scope.unique(f"{name}/Reshape"), {}, [x, integers(scope, rows, f"{name}_shape")])
  view.outputs.append(scope.like(node.inputs[0], "rows", scope.shape(node.inputs[0])))
  inputs[0] = view.outputs[0]
  new = gs.Node(node.op, node.name, dict(node.attrs), inputs, [], node.domain)
  scope.replace([*reversed(chain), node], [view, new], list(node.outputs))
  return Applied(labels, new)


def _moved(array: np.ndarray, axis: int, sizes: list[int], perm: list[int]) -> np.ndarray:
  """The matrix, whose axis has these sizes in the order `perm`, with that axis in their own."""
  ordered = [sizes[each] for each in perm]
  split = array.reshape(*array.shape[:axis], *ordered, *array.shape[axis + 1 :])
  back = [axis + perm.index(each) for each in range(len(perm))]
  others = list(range(split.ndim))
  others[axis : axis + len(perm)] = back
  return np.ascontiguousarray(split.transpose(others)).reshape(array.shape)


PERMUTED_WEIGHTS = RulePass("permuted-weights", "products read rows as they are, not transposed within", rewrite)
