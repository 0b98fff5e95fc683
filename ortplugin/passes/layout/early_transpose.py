"""Transposes go up over operators that work in any order of axes, where they meet Transposes and both cancel.

    a = Transpose<perm = [0, 3, 1, 2]>(x); b = Reshape(a, [N, 2, C, H, W])                x [N, H, W, 2 C]
    y = Transpose<perm = [0, 2, 3, 1]>(ReduceSum<axes = [1]>(Mul(b, scale)))              scale [N, 2, C, 1, 1]

becomes

    b = Reshape(x, [N, H, W, 2, C]); y = ReduceSum<axes = [3]>(Mul(b, Reshape(scale, [N, 1, 1, 2, C])))

ResNeSt's split attention, between convolutions with channels last. What is small, or has no Transpose to cancel, is
transposed there; it is done where fewer bytes move in all. A reduction that keeps the others' order needs no Transpose
behind it: it reads what was transposed before, with other axes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import Scope, is_disputed, label
from ..driver import Applied, Outcome, RulePass
from ..emit import MOVED_ELEMENTS, integers, unsqueeze
from .axes import REDUCTIONS
from .cut import price_of
from .movement import VIEWS, Movement, lengths, transpose_and_view
from .orders import Permuted, forms_of, orders_with, reduced_axes, reduction

FAR = 12  # operators that a Transpose passes, and steps of one chain, at most


@dataclass(frozen=True)
class _Offer:
  """A tensor in another order: what it costs, in bytes, and what makes it before a node."""

  price: int
  make: Callable[[gs.Node], gs.Tensor]


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Moves this Transpose up, or what stands above this reduction."""
  if scope.op(node) == "Transpose":
    return _transpose(scope, node)
  return _reduction(scope, node) if scope.op(node) in REDUCTIONS else None


def _transpose(scope: Scope, node: gs.Node) -> Outcome:
  removed, z = [node], node.inputs[0]
  while (view := scope.producer(z, *VIEWS)) is not None and not scope.used_beyond(z, removed[-1:]):
    removed.append(view)
    z = view.inputs[0]
  form = transpose_and_view(scope, z, removed)
  maker = scope.producer(z)
  if form is None or form.perm is None or maker is None or scope.used_beyond(z, removed) or is_disputed(scope, z):
    return None
  y = node.outputs[0]
  offer = _before(scope, maker, form.perm, 0)
  if offer is None or offer.price >= price_of(scope.shape(z), z):
    return None
  moved = offer.make(node)
  inputs = [moved] if form.joined is None else [moved, integers(scope, form.joined, f"{y.name}_shape")]
  new = gs.Node("Identity" if form.joined is None else "Reshape", node.name, {}, inputs)
  labels = [label(each) for each in removed]
  scope.replace(removed, new, [y])
  return Applied(tuple(reversed([*labels, *_prune(scope, z)])), new)


def _reduction(scope: Scope, node: gs.Node) -> Outcome:
  x, y, axes = node.inputs[0], node.outputs[0], reduced_axes(scope, node)
  made = lengths(scope.shape(y))
  if axes is None or made is None or is_disputed(scope, x):
    return None
  kept = [axis for axis in range(scope.rank(x) or 0) if axis not in axes]
  best: tuple[_Offer, Permuted] | None = None
  for order in orders_with(axes, kept):
    found = None if order == sorted(order) else reduction(scope, node, order)
    offer = None if found is None else _moved(scope, x, order, node, 0)
    if found is not None and offer is not None and offer.price < (0 if best is None else best[0].price):
      best = offer, found
  if best is None:
    return None
  inputs = [best[0].make(node), *node.inputs[1:]]
  whole = scope.like(y, "moved", None)
  first = gs.Node(node.op, scope.unique(f"{y.name}/{node.op}"), dict(node.attrs), inputs, [whole], node.domain)
  best[1].edit(first)
  scope.insert(first, node)
  new = gs.Node("Reshape", node.name, {}, [whole, integers(scope, made, f"{y.name}_shape")])
  labels = [label(node)]
  scope.replace([node], new, [y])
  return Applied(tuple(reversed([*labels, *_prune(scope, x)])), first)


def _moved(scope: Scope, tensor: gs.Tensor, perm: Sequence[int], reader: gs.Node, depth: int) -> _Offer | None:
  """The tensor in this order, without what `reader` alone reads."""
  lead, known = len(perm) - (scope.rank(tensor) or 0), scope.constant(tensor, MOVED_ELEMENTS)
  if known is not None:
    array = known.reshape((1,) * lead + known.shape).transpose(perm)
    return _Offer(0, lambda before: scope.add_constant(array, tensor.name))
  chain: list[gs.Node] = []
  above = tensor
  while not lead and len(chain) < FAR and (step := scope.producer(above)) is not None:
    if scope.op(step) not in (*VIEWS, "Transpose", "Slice"):
      break
    chain.append(step)
    above = step.inputs[0]
  offers: list[_Offer | None] = []  # of several that cost as much the first: pointwise operators stay together
  maker = scope.producer(tensor)
  if not lead and depth < FAR and maker is not None and not scope.used_beyond(tensor, [reader]):
    offers.append(_before(scope, maker, perm, depth + 1))
  offers += [_chained(scope, tensor, chain[:count], perm, reader) for count in range(len(chain) + 1)]
  return min((each for each in offers if each is not None), key=lambda offer: offer.price, default=None)


def _chained(
  scope: Scope, tensor: gs.Tensor, chain: Sequence[gs.Node], perm: Sequence[int], reader: gs.Node
) -> _Offer | None:
  """The tensor in this order, from what stands before a chain of steps, the last one first."""
  x = chain[-1].inputs[0] if chain else tensor
  shape = scope.shape(x)
  given = None if shape is None else lengths((*(1,) * (len(perm) - (scope.rank(tensor) or 0)), *shape))
  movement = None if given is None or is_disputed(scope, x) else Movement(given)
  prices = None if movement is None else movement.take(scope, x, chain)
  if given is None or movement is None or prices is None:
    return None
  movement.permute(perm)
  form = movement.shortest()
  price = form.price(x)
  last = reader
  for step, spared in zip(chain, prices, strict=True):
    if scope.used_beyond(step.outputs[0], [last]):
      break
    price -= spared
    last = step

  def make(before: gs.Node) -> gs.Tensor:
    source = unsqueeze(scope, before, x, range(len(given) - (scope.rank(x) or 0)))
    if not form.movers and form.joined is None:
      return source
    nodes = form.nodes(scope, source, f"{tensor.name}_moved")
    for each in nodes:
      scope.insert(each, before)
    nodes[-1].name = scope.unique(f"{tensor.name}_moved")
    moved = gs.Variable(nodes[-1].name, tensor.dtype, _permuted(scope, tensor, perm))
    nodes[-1].outputs.append(moved)
    return moved

  return _Offer(price, make)


def _before(scope: Scope, maker: gs.Node, perm: Sequence[int], depth: int) -> _Offer | None:
  """What an operator makes in this order, from inputs that have another order, too."""
  best: tuple[int, Permuted, dict[int, _Offer]] | None = None
  for found in forms_of(scope, maker, perm):
    offers: dict[int, _Offer] = {}  # of each tensor once
    for index, order in found.inputs.items():
      tensor = maker.inputs[index]
      offer = offers.get(id(tensor)) or _moved(scope, tensor, order, maker, depth)
      if offer is None:
        break
      offers[id(tensor)] = offer
    else:
      price = sum(offer.price for offer in offers.values()) - found.spared
      if best is None or price < best[0]:
        best = price, found, offers
  if best is None:
    return None
  price, form, operands = best

  def make(before: gs.Node) -> gs.Tensor:
    moved = {key: offer.make(before) for key, offer in operands.items()}
    inputs = [moved[id(each)] if index in form.inputs else each for index, each in enumerate(maker.inputs)]
    old = maker.outputs[0]
    name = scope.unique(f"{old.name}_moved")
    output = gs.Variable(name, old.dtype, _permuted(scope, old, perm))
    new = gs.Node(maker.op, name, dict(maker.attrs), inputs, [output], maker.domain)
    form.edit(new)
    scope.insert(new, before)
    return output

  return _Offer(price, make)


def _permuted(scope: Scope, tensor: gs.Tensor, perm: Sequence[int]) -> tuple[int | str | None, ...] | None:
  if (shape := scope.shape(tensor)) is None:
    return None
  whole = (*(1,) * (len(perm) - len(shape)), *shape)
  return tuple(whole[axis] for axis in perm)


def _prune(scope: Scope, tensor: gs.Tensor) -> list[str]:
  """Removes what makes the tensor, as far as nothing reads it; the labels, the last one first."""
  maker = scope.producer(tensor)
  if maker is None or any(scope.used_beyond(each, []) for each in maker.outputs):
    return []
  labels, inputs = [label(maker)], list(maker.inputs)
  scope.remove(maker)
  for each in inputs:
    labels += _prune(scope, each)
  return labels


EARLY_TRANSPOSE = RulePass(
  "early-transpose", "Transposes go up over what works in any order, where they cancel others", rewrite
)
