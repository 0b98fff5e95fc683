"""Attention that is written out becomes FusedAttention:

    y = MatMul(Softmax(scale * MatMul(q, k^T) + mask), v)     becomes     y = FusedAttention(Q, K, V, mask)

docs/architecture.md has the way from the second product back. The scores stay in float32 inside, so that the result may
differ from the original's by what that rounds on the way. PyTorch's Where(IsNaN(p), 0, p) is taken for what it is
written for: rows that are masked whole are 0.

Of float32 it is a pass of its own, where a GPU runs the model and target/ says that this pays.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import onnx_graphsurgeon as gs

from ...graph import Length, Scope, dims, label, show
from ...target import DEFAULT
from ..driver import Missed, Outcome, RulePass, first_of
from .attention_operators import fuse_operator
from .axes import Atom, Axes, Axis, atoms_of, length, whole
from .core import Core, fuse_core
from .node import EXACT_HEAD, LARGEST_HEAD
from .products import Product, product_of
from .scores import Chain, Scores, is_over, score_dims, softmax_before, trace_scores
from .views import Read, unbroadcast

FLOAT32_PAYS = bool(DEFAULT["attention_tf32_pays"])
PRODUCTS = ("MatMul", "Gemm", "Einsum")
FAR = 64  # values that are looked at before it is not sure


def fuse(scope: Scope, node: gs.Node, float32: int = 0) -> Outcome:
  """Replaces the attention that ends in this product; `float32`: in that dtype alone, heads up to this size."""
  core = _core(scope, node)
  return fuse_core(scope, node, core, float32) if isinstance(core, Core) else core


def fuse_float32(largest: int, scope: Scope, node: gs.Node) -> Outcome:
  """Replaces attention in float32 of heads up to `largest` that ends in this node, of either kind."""
  if not FLOAT32_PAYS or not node.outputs or scope.dtype(node.outputs[0]) != "float":
    return None
  return fuse_operator(scope, node, largest) or fuse(scope, node, largest)


def _core(scope: Scope, node: gs.Node) -> Core | Missed | None:
  """The attention that ends in this node; None if no Softmax leads to it."""
  if (product := product_of(scope, node)) is None:
    return None
  for side in (0, 1):
    if not _has_softmax(scope, node.inputs[side]):
      continue
    own, others = score_dims(scope, node.inputs[side]), dims(scope, node.inputs[1 - side])
    if own is None or others is None:
      return None
    letters = dict(zip(product.operands[1 - side], others, strict=True))
    summed = letters[product.summed]
    letters |= dict(zip(product.operands[side], own, strict=True))
    repeats = _may_repeat(scope, product, letters[product.summed], summed)
    if letters[product.summed].known is None:
      letters[product.summed] = summed  # one length, which either operand may tell
    atoms = {letter: Atom(each) for letter, each in letters.items()}
    axes = tuple((whole(atoms[letter]),) for letter in product.operands[side])
    found = softmax_before(scope, node.inputs[side], axes, Chain((node,)))
    if found is not None and repeats:
      return Missed(node, repeats)
    if found is not None:
      return _inside(scope, product, side, atoms, found)
  return None


def _has_softmax(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether a Softmax stands before the tensor, without a product between: most products are told so at once."""
  stack, seen = [tensor], {id(tensor)}
  while stack and len(seen) < FAR:
    if (node := scope.producer(stack.pop())) is None or scope.op(node) in PRODUCTS:
      continue
    if scope.op(node) == "Softmax":
      return True
    stack += [each for each in node.inputs if id(each) not in seen]
    seen.update(id(each) for each in node.inputs)
  return bool(stack)


def _inside(
  scope: Scope, second: Product, side: int, atoms: dict[str, Atom], found: tuple[gs.Node, Axes, Chain]
) -> Core | Missed:
  softmax, axes, chain = found
  columns, node = atoms[second.summed], second.node
  axis = int(softmax.attrs.get("axis", -1 if scope.opset >= 13 else 1))
  if axis not in (-1, len(axes) - 1) or not is_over(axes, -1, columns):
    return Missed(softmax, f"its axis {axis} is not that over which {label(node)} adds up")
  row, column = second.own(side)[-1], second.own(1 - side)[-1]
  rows, value = atoms[row], atoms[column]
  leading = [letter for letter in second.result if letter not in (row, column)]
  letters = {letter: (whole(atom),) for letter, atom in atoms.items()}
  if (v := _read(scope, second, 1 - side, letters, leading)) is None:
    return Missed(node, _unlike(scope, node))
  scores = trace_scores(scope, softmax.inputs[0], axes, chain)
  if isinstance(scores, Missed):
    return scores
  read = _queries_and_keys(scope, scores, rows, columns)
  if isinstance(read, Missed):
    return read
  q, k, head = read
  result = Read(node.outputs[0], tuple(letters[letter] for letter in second.result))
  batch = [atoms[letter] for letter in leading]
  return Core(q, k, v, result, scores.chain, batch, rows, columns, head, value)


def _queries_and_keys(scope: Scope, scores: Scores, rows: Atom, columns: Atom) -> tuple[Read, Read, Atom] | Missed:
  """The operands of the first product, and the index of its sum."""
  first = scores.product
  letters = dict(zip(first.result, scores.axes, strict=True))
  for side in (0, 1):
    row = [each for each in first.own(side) if is_over((letters[each],), 0, rows)]
    column = [each for each in first.own(1 - side) if is_over((letters[each],), 0, columns)]
    if row and column:
      break
  else:
    return Missed(first.node, "its rows and columns are not those of the Softmax")
  sizes = [(dims(scope, first.node.inputs[each]) or [])[first.operands[each].index(first.summed)] for each in (0, 1)]
  if repeats := _may_repeat(scope, first, *sizes):
    return Missed(first.node, repeats)
  head = Atom(sizes[0] if sizes[1].known is None else sizes[1])
  letters[first.summed] = (whole(head),)
  leading = [letter for letter in first.result if letter not in (row[0], column[0])]
  q, k = (_read(scope, first, each, letters, leading) for each in (side, 1 - side))
  if q is None or q.repeated or k is None:
    return Missed(first.node, _unlike(scope, first.node))
  return q, k, head


def _may_repeat(scope: Scope, product: Product, one: Length, other: Length) -> str:
  """Why one operand may have one element for all of the sum, which Einsum repeats and a MatMul forbids; or ''."""
  alike = scope.op(product.node) == "MatMul" or one == other
  return "" if alike else f"the lengths of the sum over '{product.summed}' are not known to be equal"


def _unlike(scope: Scope, node: gs.Node) -> str:
  shapes = [f"'{each.name}' of shape {show(scope.shape(each))}" for each in node.inputs]
  return f"{' and '.join(shapes)} are not known to have the same leading axes"


def _read(
  scope: Scope, product: Product, side: int, letters: Mapping[str, Axis], leading: Iterable[str]
) -> Read | None:
  """How an operand of a product is indexed, where an axis of length 1 is repeated; None if lengths don't tell.

  Those of the sum are one length in both operands. `leading`: axes which it lacks if its rank is lower.
  """
  tensor, operand = product.node.inputs[side], product.operands[side]
  if (given := dims(scope, tensor)) is None:
    return None
  axes = tuple(letters[letter] for letter in operand)
  made = [length(axis) for axis in axes]
  at = operand.index(product.summed)
  given[at] = made[at]
  kept, repeated = unbroadcast(axes, given, made)
  lacking = atoms_of(tuple(letters[letter] for letter in leading if letter not in operand))
  return None if kept is None else Read(tensor, kept, repeated | frozenset(lacking))


FUSE_ATTENTION = RulePass(
  "fuse-attention", "attention, written out or one operator, becomes FusedAttention", first_of(fuse, fuse_operator)
)
ATTENTION_FLOAT32, ATTENTION_EXACT = (
  RulePass("attention-float32", "attention of float32 becomes FusedAttention", partial(fuse_float32, largest))
  for largest in (LARGEST_HEAD, EXACT_HEAD)
)
