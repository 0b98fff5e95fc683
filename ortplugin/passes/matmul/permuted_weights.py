"""A product of rows that were transposed within reads them as they were, with weights in that order.

    b = Reshape(Transpose<perm = [0, 3, 1, 2]>(x), [N, C H W])        x [N, H, W, C]
    y = FusedMatMul(b, w)                                             w [C H W, M]

becomes

    y = FusedMatMul(Reshape(x, [N, H W C]), w')

The first linear layer behind convolutions with channels last: VGG's, AlexNet's, a small classifier's.
"""

import math

import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope, is_disputed, labelled
from ...ops.matmul import NAME
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import integers
from ..layout.movement import VIEWS, lengths, transpose_and_view

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
  form = transpose_and_view(scope, x, chain)
  given, rows = lengths(scope.shape(x)), lengths(scope.shape(node.inputs[0]))
  if form is None or form.perm is None or given is None or rows is None or is_disputed(scope, x):
    return None
  lead = next((axis for axis in range(len(given)) if math.prod(given[axis:]) == rows[-1]), None)
  if lead is None or form.perm[:lead] != list(range(lead)):
    return None  # rows change places, too
  for step in chain:
    if reason := scope.used_beyond(step.outputs[0], [reader]):
      return Missed(node, reason)
    reader = step
  weights = [1, 2][: 1 + int(node.attrs.get("gated", 0))]
  arrays: dict[int, Array] = {}
  for index in weights:
    tensor = node.inputs[index]
    array = scope.constant(tensor, WEIGHTS)
    if array is None or array.ndim != 2 or scope.used_beyond(tensor, [node]):
      return Missed(node, f"'{tensor.name}' is no constant matrix of up to {WEIGHTS} elements that it alone reads")
    arrays[index] = array
  inputs = list(node.inputs)
  perm, axis = [each - lead for each in form.perm[lead:]], int(node.attrs.get("trans_b", 0))
  for index, array in arrays.items():
    inputs[index] = scope.add_constant(_moved(array, axis, given[lead:], perm), inputs[index].name)
  labels = labelled(*reversed(chain), node)
  name = node.inputs[0].name
  view = gs.Node("Reshape", scope.unique(f"{name}/Reshape"), {}, [x, integers(scope, rows, f"{name}_shape")])
  view.outputs.append(scope.like(node.inputs[0], "rows", scope.shape(node.inputs[0])))
  inputs[0] = view.outputs[0]
  new = gs.Node(node.op, node.name, dict(node.attrs), inputs, [], node.domain)
  scope.replace([*reversed(chain), node], [view, new], list(node.outputs))
  return Applied(labels, new)


def _moved(array: Array, axis: int, sizes: list[int], perm: list[int]) -> Array:
  """The matrix, whose axis has these sizes in the order `perm`, with that axis in their own."""
  split = array.reshape(*array.shape[:axis], *(sizes[each] for each in perm), *array.shape[axis + 1 :])
  back = [axis + perm.index(each) for each in range(len(perm))]
  moved: Array = split.transpose(*range(axis), *back, *range(axis + len(perm), split.ndim))
  return moved.reshape(array.shape)


PERMUTED_WEIGHTS = RulePass("permuted-weights", "products read rows as they are, not transposed within", rewrite)
