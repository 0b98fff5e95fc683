"""An Einsum of two operands that sums becomes a MatMul, one of one operand a Transpose.

    y = Einsum<"bhid,bhjd->bhij">(q, k)     becomes     y = MatMul(q, Transpose<perm = [0, 1, 3, 2]>(k))

Labels of both operands are the batch if the result has them, else they are summed over; the others are rows of the
first and columns of the second. Several labels of one kind are one axis of the product. What MatMul, attention and
norms are to other passes, an Einsum is not, and ONNX Runtime's copies what it reshapes.
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

Groups = list[list[str]]


class _StaysError(Exception):
  """Why the Einsum stays."""


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one Einsum."""
  if scope.op(node) != "Einsum" or scope.dtype(node.outputs[0]) not in FLOATING:
    return None
  try:
    terms, result = _parse(str(node.attrs["equation"]), len(node.inputs))
    dims = _dims(scope, node, terms)
    if len(terms) == 1:
      new = gs.Node("Transpose", node.name, {"perm": [terms[0].index(each) for each in result]}, [node.inputs[0]])
    else:
      new = _product(scope, node, terms, result, dims)
  except _StaysError as reason:
    return Missed(label(node), str(reason))
  labels = (label(node),)
  scope.replace([node], new, [node.outputs[0]])
  return Applied(labels, new)


def _parse(equation: str, operands: int) -> tuple[list[str], str]:
  """(the labels of each operand, those of the result)."""
  left, arrow, result = equation.replace(" ", "").partition("->")
  terms = left.split(",")
  if not arrow:
    result = "".join(sorted(each for each in set(left) if each.isalpha() and left.count(each) == 1))
  if "." in equation or len(terms) != operands or operands > 2 or any(len({*t}) != len(t) for t in (*terms, result)):
    raise _StaysError(f"'{equation}' has an ellipsis, more than two operands, or one with a label twice")
  alone = [each for each in left if each.isalpha() and left.count(each) == 1 and each not in result]
  if alone or (operands == 2 and not any(each in terms[1] and each not in result for each in terms[0])):
    raise _StaysError(f"'{equation}' sums over no axis of both, or over {alone} of one operand")
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


def _product(scope: Scope, node: gs.Node, terms: Sequence[str], result: str, dims: dict[str, Dim]) -> gs.Node:
  """The MatMul with its views and Transposes; the node that is to make the result."""
  operands = list(node.inputs)
  rows, columns = ([each for each in result if each in terms[i] and each not in terms[1 - i]] for i in (0, 1))
  if rows and columns and result.index(columns[-1]) < result.index(rows[0]):
    operands, terms, rows, columns = operands[::-1], terms[::-1], columns, rows
  batch = [each for each in result if each in terms[0] and each in terms[1]]
  summed = [each for each in terms[0] if each not in result]
  joined = rows if batch else rows[-1:]  # rows without a batch may be several axes
  outer = [[each] for each in (*batch, *rows[: len(rows) - len(joined)])]
  groups = [[*outer, joined, summed], [*([each] for each in batch), summed, columns], [*outer, joined, columns]]
  made = [each for group in groups[2] for each in group]
  apart = [[each] for each in made]
  views = [_numbers(each, dims) for each in groups]
  back = None if views[2] is None else _numbers(apart, dims, always=True)
  for i in (0, 1):
    perm = [terms[i].index(each) for group in groups[i] for each in group]
    operands[i] = operands[i] if perm == sorted(perm) else transpose(scope, node, operands[i], perm)
    operands[i] = _view(scope, node, operands[i], views[i])
  perm = [made.index(each) for each in result]
  turns = perm != sorted(perm)
  if back is None and not turns:
    return gs.Node("MatMul", node.name, {}, operands)
  z = emit(scope, node, "MatMul", operands, _shape(groups[2], dims))
  if not turns:
    return gs.Node("Reshape", node.name, {}, [z, integers(scope, back or (), "shape")])
  return gs.Node("Transpose", node.name, {"perm": perm}, [_view(scope, node, z, back)])


def _view(scope: Scope, node: gs.Node, x: gs.Tensor, numbers: list[int] | None) -> gs.Tensor:
  if numbers is None:
    return x
  shape = tuple(None if each == -1 else each for each in numbers)
  return emit(scope, node, "Reshape", [x, integers(scope, numbers, "shape")], shape)


def _numbers(groups: Groups, dims: dict[str, Dim], always: bool = False) -> list[int] | None:
  """The shape for a Reshape to one axis for each group of labels; None where that changes nothing."""
  if not always and all(len(each) == 1 for each in groups):
    return None
  numbers = [-1 if dim is None else dim for dim in _shape(groups, dims)]
  if numbers.count(-1) > 1 or 0 in numbers:
    raise _StaysError(f"the lengths {dims} are not known well enough for a Reshape")
  return numbers


def _shape(groups: Groups, dims: dict[str, Dim]) -> tuple[int | None, ...]:
  lengths = [[dims[each] for each in group] for group in groups]
  return tuple(math.prod(d) if all(isinstance(n, int) for n in d) else None for d in lengths)  # type: ignore[arg-type]


EINSUM_TO_MATMUL = RulePass("einsum-to-matmul", "an Einsum becomes a MatMul or a Transpose", rewrite)
