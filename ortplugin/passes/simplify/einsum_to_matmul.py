"""An Einsum of two operands becomes a MatMul, one without a sum a Mul, and one of one operand a ReduceSum or Transpose.

    y = Einsum<"bhid,bhjd->bhij">(q, k)     becomes     y = MatMul(q, Transpose<perm = [0, 1, 3, 2]>(k))

Labels of both operands are the batch if the result has them, else they are summed over; the others are rows of the
first operand (m) and columns of the second (n). Operands get the order batch, m, sum and batch, sum, n; several labels
of one kind are one axis of the product. What MatMul, attention and norms are to other passes, an Einsum is not, and
ONNX Runtime's copies what it reshapes.
"""

import math
from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.shapes import Dim
from ortplugin.passes.driver import Applied, Missed, Outcome, RulePass
from ortplugin.passes.emit import emit, integers, transpose
from ortplugin.program import FLOATING


class _StaysError(Exception):
  """Why the Einsum stays."""


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one Einsum."""
  if scope.op(node) != "Einsum" or scope.dtype(node.outputs[0]) not in FLOATING:
    return None
  labels = (label(node),)
  try:
    terms, result = _parse(str(node.attrs["equation"]), len(node.inputs))
    dims = _dims(scope, node, terms)
    if len(terms) == 1:
      new = _one(scope, node, terms[0], result)
    elif any(each in terms[1] and each not in result for each in terms[0]):
      new = _product(scope, node, terms, result, dims)
    else:
      new = _mul(scope, node, terms, result, dims)
  except _StaysError as reason:
    return Missed(label(node), str(reason))
  scope.replace([node], new, [node.outputs[0]])
  return Applied(labels, new)


def _parse(equation: str, operands: int) -> tuple[list[str], str]:
  """(the labels of each operand, those of the result)."""
  left, arrow, result = equation.replace(" ", "").partition("->")
  terms = left.split(",")
  if not arrow:
    result = "".join(sorted(each for each in set(left) if each.isalpha() and left.count(each) == 1))
  if "." in equation or len(terms) != operands or operands > 2:
    raise _StaysError(f"'{equation}' is no product of two operands, or has an ellipsis")
  if any(len(set(each)) != len(each) for each in (*terms, result)):
    raise _StaysError(f"'{equation}' has a label twice in one operand")
  if operands == 2 and any((each in terms[0]) + (each in terms[1]) + (each in result) < 2 for each in "".join(terms)):
    raise _StaysError(f"'{equation}' sums over an axis of one operand alone")
  return terms, result


def _dims(scope: Scope, node: gs.Node, terms: Sequence[str]) -> dict[str, Dim]:
  """The length of each label. An axis of length 1 would broadcast, so lengths must be the same, surely."""
  dims: dict[str, Dim] = {}
  for tensor, term in zip(node.inputs, terms, strict=True):
    shape = scope.shape(tensor)
    if shape is None or len(shape) != len(term):
      raise _StaysError(f"the shape of '{tensor.name}' is unknown")
    for each, dim in zip(term, shape, strict=True):
      if each in dims and (dim is None or dims[each] != dim):
        raise _StaysError(f"the lengths of '{each}', {dims[each]} and {dim}, may differ")
      dims[each] = dim
  return dims


def _one(scope: Scope, node: gs.Node, term: str, result: str) -> gs.Node:
  """Of one operand: the sum over what the result lacks, then its order."""
  x, summed = node.inputs[0], [axis for axis, each in enumerate(term) if each not in result]
  kept = [each for each in term if each in result]
  perm = [kept.index(each) for each in result]
  if not summed:
    return gs.Node("Transpose", node.name, {"perm": perm}, [x])
  given = scope.shape(x) or ()
  shape = tuple(dim for axis, dim in enumerate(given) if axis not in summed)
  if scope.opset < 13:
    x = emit(scope, node, "ReduceSum", [x], shape, axes=summed, keepdims=0)
  else:
    x = emit(scope, node, "ReduceSum", [x, integers(scope, summed, "axes")], shape, keepdims=0)
  return gs.Node("Transpose", node.name, {"perm": perm}, [x]) if result else gs.Node("Identity", node.name, {}, [x])


def _product(scope: Scope, node: gs.Node, terms: Sequence[str], result: str, dims: dict[str, Dim]) -> gs.Node:
  """The MatMul with its views and Transposes; the node that is to make the result."""
  at = (0, 1)  # the operands, first the one with the rows
  free = [[each for each in result if each in terms[i] and each not in terms[1 - i]] for i in at]
  if free[0] and free[1] and result.index(free[1][-1]) < result.index(free[0][0]):
    at, free, terms = (1, 0), free[::-1], terms[::-1]
  batch = [each for each in result if each in terms[0] and each in terms[1]]
  summed = [each for each in terms[0] if each not in result]
  rows, columns = free
  joined = rows if batch or not rows else rows[-1:]  # rows without a batch may be several axes
  outer = [*batch, *rows[: len(rows) - len(joined)]]
  made = [*outer, *joined, *columns]
  groups = [
    [*([each] for each in outer), joined, summed], [*([each] for each in batch), summed, columns],
    [*([each] for each in outer), joined, columns],
  ]  # fmt: skip
  views = [_numbers(each, dims) for each in groups]
  whole = views[2] is None
  back = None if whole else _numbers([[each] for each in made], dims, always=True)
  x = _in_order(scope, node, at[0], terms[0], [*outer, *joined, *summed], views[0])
  y = _in_order(scope, node, at[1], terms[1], [*batch, *summed, *columns], views[1])
  perm = [made.index(each) for each in result]
  if whole and perm == sorted(perm):
    return gs.Node("MatMul", node.name, {}, [x, y])
  z = emit(scope, node, "MatMul", [x, y], tuple(_dim(_length(each, dims)) for each in groups[2]))
  if perm == sorted(perm):
    return gs.Node("Reshape", node.name, {}, [z, integers(scope, back or (), "shape")])
  z = z if back is None else _view(scope, node, z, back)
  return gs.Node("Transpose", node.name, {"perm": perm}, [z])


def _mul(scope: Scope, node: gs.Node, terms: Sequence[str], result: str, dims: dict[str, Dim]) -> gs.Node:
  """Each axis in the result's order, 1 where an operand lacks it."""
  orders = [[each for each in result if each in term] for term in terms]
  starts = [result.index(each[0]) if each else len(result) for each in orders]
  views = [
    _numbers([[each] if each in term else [] for each in result[start:]], dims)
    for term, start in zip(terms, starts, strict=True)
  ]
  inputs = [_in_order(scope, node, i, terms[i], orders[i], views[i]) for i in (0, 1)]
  return gs.Node("Mul", node.name, {}, inputs)


def _in_order(
  scope: Scope, node: gs.Node, index: int, term: str, order: Sequence[str], view: list[int] | None
) -> gs.Tensor:
  """An operand with its axes in another order, and then in a view."""
  x, perm = node.inputs[index], [term.index(each) for each in order]
  x = x if perm == sorted(perm) else transpose(scope, node, x, perm)
  return x if view is None else _view(scope, node, x, view)


def _view(scope: Scope, node: gs.Node, x: gs.Tensor, numbers: list[int]) -> gs.Tensor:
  return emit(scope, node, "Reshape", [x, integers(scope, numbers, "shape")], tuple(_dim(each) for each in numbers))


def _numbers(groups: list[list[str]], dims: dict[str, Dim], always: bool = False) -> list[int] | None:
  """The shape for a Reshape to one axis for each group of labels; None where that changes nothing."""
  if not always and all(len(each) == 1 for each in groups):
    return None
  numbers = [_length(each, dims) for each in groups]
  if numbers.count(-1) > 1 or 0 in numbers:
    raise _StaysError(f"the lengths {dims} are not known well enough for a Reshape")
  return numbers


def _dim(number: int) -> Dim:
  return None if number == -1 else number


def _length(group: Sequence[str], dims: dict[str, Dim]) -> int:
  known = [dim for each in group if isinstance(dim := dims[each], int)]
  return math.prod(known) if len(known) == len(group) else -1


EINSUM_TO_MATMUL = RulePass("einsum-to-matmul", "an Einsum becomes a MatMul, a Mul or a ReduceSum", rewrite)
