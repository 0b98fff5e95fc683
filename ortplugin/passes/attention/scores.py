"""The way back from the probabilities that multiply V to the product of Q and K, in any order that exporters write.

    p = [Where(IsNaN(p), 0, p)] [Cast] Softmax(s)
    s = [Max(s, the lowest number)] of masks after masks, Add(s, mask) or Where(mask, s, -inf)
    s = [softcap * Tanh] of the scaled product of Q and K

Views of the scores (Swin adds a mask to windows on an axis of their own) and Casts may stand anywhere between.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import ONE, Length, Scope, dims, show
from ...graph.lengths import agreed
from ...program import FLOATING
from ..driver import Missed
from .axes import Atom, Axes, flat, regroup
from .products import Product, product_of
from .views import FAR, RESHAPES, Read, backward, scalar_operand

# From here on down a number that is added to a score, or put in its place, leaves no weight beside a score that keeps
# its value: exp(-9e3) is 0 in every dtype, also where scores differ by thousands. -1e4 is -9984 in bfloat16.
LARGE_NEGATIVE = -9e3
# In float16 half of it, which is what a lower number becomes there (precision/ranges.py).
LOWEST_OF = {"float16": -32752.0, "bfloat16": -(2.0**128 - 2.0**120), "float": float(np.finfo(np.float32).min)}


@dataclass(frozen=True)
class Mask:
  """What is added to the scores; or, for bools, which of the scores give way to `filling`."""

  tensor: gs.Tensor
  axes: Axes
  """Of the scores that it broadcasts to."""
  filling: float | None = None
  kept: bool = True
  """Of bools: which of them let the score stay."""


@dataclass(frozen=True)
class Chain:
  """The nodes passed, from the second product on, and what they do to the scores."""

  nodes: tuple[gs.Node, ...]
  masks: tuple[Mask, ...] = ()
  factor: float = 1.0
  softcap: float = 0.0
  zeroed: bool = False
  """Whether rows that are masked whole are 0, where the softmax of -inf alone is NaN."""
  causal: str = ""
  """Whether query i sees the keys j <= i alone, besides what masks say."""
  window: int = 0
  """Of these so many last ones; 0: all."""


class Scores(NamedTuple):
  """The first product, how its result is indexed, and what follows it."""

  product: Product
  axes: Axes
  chain: Chain


def softmax_before(scope: Scope, tensor: gs.Tensor, axes: Axes, chain: Chain) -> tuple[gs.Node, Axes, Chain] | None:
  """The Softmax that makes these probabilities, the axes of its result, and the nodes between; None without one."""
  while len(chain.nodes) < FAR:
    if (node := scope.producer(tensor)) is None or not node.inputs:
      return None
    op = scope.op(node)
    chain = replace(chain, nodes=(*chain.nodes, node))
    if op == "Softmax":
      return node, axes, chain
    if op == "Where":
      if (check := _nan_check(scope, node)) is None:
        return None
      tensor = node.inputs[2]
      chain = replace(chain, nodes=(*chain.nodes, check), zeroed=True)
    elif op == "Cast" and scope.dtype(node.inputs[0]) in FLOATING:
      tensor = node.inputs[0]
    else:
      if (read := _viewed(scope, tensor, axes)) is None:
        return None
      tensor, axes = read
  return None


def _viewed(scope: Scope, tensor: gs.Tensor, axes: Axes) -> tuple[gs.Tensor, Axes] | None:
  """What a view of the scores reads."""
  if (node := scope.producer(tensor, *RESHAPES)) is not None:
    given = score_dims(scope, node.inputs[0])
    before = None if given is None else regroup(axes, given)
    return None if before is None else (node.inputs[0], before)
  read = backward(scope, Read(tensor, axes))
  return None if read is None or read.repeated else (read.tensor, read.axes)


def score_dims(scope: Scope, tensor: gs.Tensor) -> list[Length] | None:
  """The lengths of scores or probabilities: those of the product, if the masks on the way broadcast to it."""
  return _score_dims(scope, tensor, FAR) or dims(scope, tensor)


def _score_dims(scope: Scope, tensor: gs.Tensor, steps: int) -> list[Length] | None:
  node = scope.producer(tensor)
  if node is None or not node.inputs or not steps:
    return None
  op = scope.op(node)
  if (product := product_of(scope, node)) is not None:
    return _product_dims(scope, product)
  if op in ("Softmax", "Cast", "Tanh", "Identity"):
    return _score_dims(scope, node.inputs[0], steps - 1)
  if op in ("Mul", "Div"):
    scaled = scalar_operand(scope, node)
    return None if scaled is None else _score_dims(scope, scaled[0], steps - 1)
  if op in ("Add", "Where", "Max"):
    operands = list(node.inputs[-2:]) if _nan_check(scope, node) is None else [node.inputs[2]]
    found = (_score_dims(scope, each, steps - 1) for each in operands)
    # A mask of more dimensions than the scores makes others of them.
    return next((each for each in found if each is not None and len(each) == scope.rank(tensor)), None)
  if op in RESHAPES:
    before = _score_dims(scope, node.inputs[0], steps - 1)
    return None if before is None else dims(scope, tensor, {id(node.inputs[0]): before})
  return None


def _product_dims(scope: Scope, product: Product) -> list[Length] | None:
  lengths: dict[str, list[Length]] = {}
  for tensor, operand in zip(product.node.inputs, product.operands, strict=True):
    for letter, each in zip(operand, dims(scope, tensor) or (), strict=False):
      lengths.setdefault(letter, []).append(each)
  found = [agreed(lengths.get(letter, [])) for letter in product.result]
  if (known := dims(scope, product.node.outputs[0])) is None or len(known) != len(found):
    return None
  return [own or each for own, each in zip(found, known, strict=True)]


def fits(scope: Scope, mask: gs.Tensor, scores: gs.Tensor) -> bool:
  """Whether scores with the mask surely have the scores' own shape."""
  given, target = dims(scope, mask), score_dims(scope, scores)
  return given is not None and target is not None and broadcasts(given, target)


def broadcasts(given: Sequence[Length], target: Sequence[Length]) -> bool:
  """Whether a mask of these lengths, in a valid model, surely broadcasts to those of the scores."""
  return len(given) <= len(target) and all(
    dim in (ONE, goal) or (dim.known is None and goal.known not in (None, 1))
    for dim, goal in zip(reversed(given), reversed(target), strict=False)
  )


def _nan_check(scope: Scope, node: gs.Node) -> gs.Node | None:
  """The IsNaN of Where(IsNaN(p), 0, p), as PyTorch writes it for rows that are masked whole."""
  if scope.op(node) != "Where":
    return None
  check = scope.producer(node.inputs[0], "IsNaN")
  if check is None or check.inputs[0] is not node.inputs[2]:
    return None
  return check if scope.scalar(node.inputs[1]) == 0 else None


def is_over(axes: Axes, axis: int, atom: Atom) -> bool:
  """Whether this axis, counted from either end, is all of the atom and nothing else."""
  terms = flat((axes[axis],))
  return terms is not None and all(t.whole for t in terms) and [t.atom for t in terms] == atom.leaves()


def trace_scores(scope: Scope, tensor: gs.Tensor, axes: Axes, chain: Chain) -> Scores | Missed:
  """Goes from the scores that enter the Softmax back to the product of Q and K."""
  node = scope.producer(tensor)
  if node is None or not node.inputs or len(chain.nodes) >= FAR:
    return Missed(chain.nodes[-1], f"'{tensor.name}' is not computed from a product of queries and keys")
  op = scope.op(node)
  if (product := product_of(scope, node)) is not None:
    return Scores(product, axes, replace(chain, nodes=(*chain.nodes, node)))
  chain = replace(chain, nodes=(*chain.nodes, node))
  if op == "Cast" and scope.dtype(node.inputs[0]) in FLOATING:
    return trace_scores(scope, node.inputs[0], axes, chain)
  if op in ("Mul", "Div"):
    if (scaled := scalar_operand(scope, node)) is None:
      return Missed(node, "its factor is no constant number")
    return trace_scores(scope, scaled[0], axes, replace(chain, factor=chain.factor * scaled[1]))
  if op == "Tanh":
    if chain.softcap or not chain.factor > 0:
      return Missed(node, f"its result is multiplied by {chain.factor:g}, which is no cap")
    return trace_scores(scope, node.inputs[0], axes, replace(chain, factor=1.0, softcap=chain.factor))
  if op in ("Add", "Where"):
    return _masked(scope, node, op, axes, chain)
  if op == "Max":
    if (above := _above_floor(scope, node)) is None:
      return Missed(node, "it changes scores, or -inf that a mask may add")
    return trace_scores(scope, above, axes, chain)
  if (read := _viewed(scope, tensor, axes)) is None:
    return Missed(node, "it stands between the product of queries and keys and the Softmax")
  return trace_scores(scope, *read, chain)


def _masked(scope: Scope, node: gs.Node, op: str, axes: Axes, chain: Chain) -> Scores | Missed:
  """Through an Add or Where, by that one of its operands that leads to a product."""
  if chain.softcap or chain.factor != 1:
    return Missed(node, "the scores are scaled or capped after they are masked")
  missed: Missed | None = None
  for scores, others, kept in _operands(node, op):
    mask = _mask(scope, op, scores, others, axes, kept)
    found = trace_scores(scope, scores, axes, replace(chain, masks=(*chain.masks, mask))) if mask else None
    if isinstance(found, Scores):
      if all(fits(scope, each, scores) for each in others):
        return found
      shapes = " and ".join(show(scope.shape(each)) for each in others)
      return Missed(node, f"the mask of shape {shapes} may be larger than the scores")
    missed = missed or found
  return missed or Missed(node, "it neither adds a mask nor fills in a large negative number")


def _above_floor(scope: Scope, node: gs.Node) -> gs.Tensor | None:
  """What Max(Add(s, mask), floor) is of, as OPT and XGLM write it, where that changes no score.

  The floor is the lowest finite number, and the mask is finite: a sum below it is one of a score that is masked anyway.
  """
  for scores, floor in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
    number, added = scope.scalar(floor), scope.producer(scores, "Add")
    lowest = LOWEST_OF.get(scope.dtype(scores) or "")
    if number is None or lowest is None or not number <= lowest or added is None:
      continue
    if any(_is_finite(scope, each) for each in added.inputs):
      return scores
  return None


def _is_finite(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether it is surely made of finite constants."""
  if scope.is_constant(tensor):
    values = scope.constant(tensor)
    return values is not None and bool(np.isfinite(values.astype(np.float64)).all())
  node = scope.producer(tensor)
  if node is None:
    return False
  if scope.op(node) == "Where":
    return all(_is_finite(scope, each) for each in node.inputs[1:])
  return scope.op(node) in (*RESHAPES, "Expand", "Slice", "Identity") and _is_finite(scope, node.inputs[0])


def _operands(node: gs.Node, op: str) -> list[tuple[gs.Tensor, list[gs.Tensor], bool]]:
  """The scores, the others, and which bools let a score stay, in both ways."""
  if op == "Add":
    a, b = node.inputs
    return [(a, [b], True), (b, [a], True)]
  condition, a, b = node.inputs
  return [(a, [condition, b], True), (b, [condition, a], False)]


def _mask(scope: Scope, op: str, scores: gs.Tensor, others: list[gs.Tensor], axes: Axes, kept: bool) -> Mask | None:
  if scope.is_constant(scores):
    return None
  if op == "Add":
    return Mask(others[0], axes) if scope.dtype(others[0]) in FLOATING else None
  filling = scope.scalar(others[1])
  if filling is None or math.isnan(filling) or filling > LARGE_NEGATIVE:
    return None
  return Mask(others[0], axes, filling, kept)
