"""A chain of Transposes, Reshapes and Slices becomes the shortest that does the same: one Transpose, or none.

    a = Transpose<perm = [0, 3, 1, 2]>(x); b = Reshape(a, [N, A, K, H, W]); y = Transpose<perm = [0, 3, 4, 1, 2]>(b)

with x [N, H, W, A K] becomes y = Reshape(x, [N, H, W, A, K]): the heads of detectors, after a convolution with channels
last.

    a = Transpose<perm = [0, 3, 1, 2]>(x); b = Reshape(a, [N / 2, 2, C, H W]); y = Transpose<perm = [0, 1, 3, 2]>(b)

with x [N, H, W, C] becomes y = Reshape(x, [N / 2, 2, H W, C]): MViT's pooled keys and values.

What is read by others, too, stays, and the new chain stands beside it, if fewer bytes move then. Slices come first.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, is_disputed, labelled
from ..driver import Applied, Outcome
from .movement import VIEWS, Form, Movement, lengths

FAR = 16  # steps that are looked at
MOVERS = ("Transpose", "Slice")


def shorten(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the chain that ends in this Transpose or Slice by what moves the fewest bytes, if those are fewer."""
  if scope.op(node) not in MOVERS:
    return None
  chain = [node]
  while (step := scope.producer(chain[-1].inputs[0])) is not None and len(chain) < FAR:
    if scope.op(step) not in (*MOVERS, *VIEWS):
      break
    chain.append(step)
  best: tuple[int, int] = (0, 0)  # how many bytes fewer move, and how many operators fewer there are
  found: tuple[gs.Tensor, list[gs.Node], Form] | None = None
  for count in range(len(chain), 1, -1):
    x = chain[count - 1].inputs[0]
    given = lengths(scope.shape(x))
    movement = None if given is None else Movement(given)
    prices = None if movement is None else movement.take(scope, x, chain[:count])
    if movement is not None and prices is not None:
      removed = _unshared(scope, chain[:count])
      if not any(scope.op(each) == "Transpose" for each in removed):
        break  # Slices alone are rows in another order
      form = movement.shortest()
      gain = sum(prices[: len(removed)]) - form.price(x), len(removed) - form.operators
      if gain[0] > 0 and gain > best:
        best, found = gain, (x, removed, form)
  if found is None or is_disputed(scope, found[0]):
    return None
  labels = labelled(*reversed(found[1]))
  return Applied(labels, _replace(scope, *found))


def _unshared(scope: Scope, chain: list[gs.Node]) -> list[gs.Node]:
  """The steps that the last one alone needs, it among them; the last one first."""
  removed = chain[:1]
  for step in chain[1:]:
    if scope.used_beyond(step.outputs[0], removed):
      break
    removed.append(step)
  return removed


def _replace(scope: Scope, x: gs.Tensor, removed: list[gs.Node], form: Form) -> gs.Node:
  """Puts the form of what leads from x to the first of `removed` in its place; its last node."""
  node, y = removed[0], removed[0].outputs[0]
  *before, new = form.nodes(scope, x, node.name or y.name)
  for each in before:
    scope.insert(each, node)
  new.name = node.name
  scope.replace(removed, new, [y])
  return new
