"""Views that stand between pointwise operators move out of the way, so that what is on both sides can be one.

    a = Add(x, b); v = Reshape(a, shape); y = Relu(v)     becomes     u = Reshape(x, shape); v = Add(u, b); y = Relu(v)

A Reshape, Squeeze, Unsqueeze or Flatten moves up over a chain of pointwise operators, each read by the next alone, if
each has one operand of the chain's shape and its others mean the same on both shapes: they repeat over every axis that
the view changes. No view moves anything in memory, and as many of them remain. It stops at what is not pointwise; a
chain that begins at a pointwise operator which cannot be passed stays, or one set would only lose what another gains.

    e = Expand(x, shape); y = Mul(e, z)                   becomes     y = Mul(x, z)         where y has the shape of z

Transposes and Slices stay: they move data.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, Shape, is_pointwise, label, labelled, show
from ...program import OPERATORS
from ..driver import Applied, Missed, Outcome, RulePass, first_of

VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def move_up(scope: Scope, node: gs.Node) -> Outcome:
  """Moves a view that a pointwise operator reads up over the chain of them that makes its input."""
  if scope.op(node) not in VIEWS:
    return None
  given, shape, y = node.inputs[0], scope.shape(node.outputs[0]), node.outputs[0]
  if shape is None or not any(_passable(scope, each) for each in scope.consumers(y)):
    return None
  chain: list[tuple[gs.Node, int]] = []  # from the view up: each operator and which of its operands is the whole
  below = node
  while (maker := scope.producer(given)) is not None and is_pointwise(scope, maker):
    reason = scope.used_beyond(given, [below])
    at = None if reason else _whole(scope, maker, shape)
    if at is None:
      if chain or not reason:
        reason = reason or f"an operand does not repeat over all that becomes {show(shape)}"
        return Missed(node, f"{label(maker)} cannot be passed: {reason}")
      return None
    chain.append((maker, at))
    given, below = maker.inputs[at], maker
  return _moved(scope, node, chain, shape) if chain else None


def _moved(scope: Scope, view: gs.Node, chain: list[tuple[gs.Node, int]], shape: Shape) -> Applied:
  """The view first, then the chain on the view's shape; the last makes what the view made."""
  labels = (*(label(each) for each, _ in reversed(chain)), label(view))
  top, at = chain[-1]
  x = gs.Variable(scope.unique(f"{view.outputs[0].name}_before"), top.inputs[at].dtype, shape)
  new = [gs.Node(view.op, view.name, dict(view.attrs), [top.inputs[at], *view.inputs[1:]], [x], view.domain)]
  for maker, whole in reversed(chain):
    inputs = [x if index == whole else tensor for index, tensor in enumerate(maker.inputs)]
    outputs = []
    if maker is not chain[0][0]:
      x = scope.like(maker.outputs[0], "after", shape)
      outputs = [x]
    new.append(gs.Node(maker.op, maker.name, dict(maker.attrs), inputs, outputs, maker.domain))
  scope.replace([view, *(maker for maker, _ in chain)], new, [view.outputs[0]])
  return Applied(labels, new[0])


def _passable(scope: Scope, node: gs.Node) -> bool:
  return is_pointwise(scope, node) and scope.op(node) in OPERATORS


def _whole(scope: Scope, node: gs.Node, target: Shape) -> int | None:
  """Which operand alone gives the node's shape, if the others repeat over all that becomes `target`; else None."""
  y = node.outputs[0]
  if (shape := scope.shape(y)) is None or not _passable(scope, node):
    return None
  given = [(index, tensor) for index, tensor in enumerate(node.inputs) if not tensor.is_empty()]
  whole = [index for index, tensor in given if scope.same_shape(tensor, y)]
  if len(whole) != 1 or (scope.op(node) == "PRelu" and whole != [0]):
    return None
  kept = 0  # axes at the end that the view leaves as they are
  while kept < min(len(shape), len(target)) and _equal(shape[-1 - kept], target[-1 - kept]):
    kept += 1
  for index, tensor in given:
    dims = scope.shape(tensor)
    if index == whole[0]:
      continue
    if dims is None or len(dims) > len(target) or any(dim != 1 for dim in dims[: max(0, len(dims) - kept)]):
      return None
  return whole[0]


def _equal(a: int | str | None, b: int | str | None) -> bool:
  return a is not None and a == b


def read_unexpanded(scope: Scope, node: gs.Node) -> Outcome:
  """Lets a pointwise operator that broadcasts anyway read what an Expand reads."""
  if not _passable(scope, node) or scope.op(node) in ("PRelu", "Clip"):
    return None
  for index, tensor in enumerate(node.inputs):
    maker = None if tensor.is_empty() else scope.producer(tensor)
    if maker is None or scope.op(maker) != "Expand" or scope.is_output(tensor):
      continue
    others = [each for each in node.inputs if each is not tensor and not each.is_empty()]
    if any(scope.same_shape(each, node.outputs[0]) for each in others):
      node.inputs[index] = maker.inputs[0]
      return Applied(labelled(maker, node), node)
  return None


POINTWISE_VIEWS = RulePass(
  "pointwise-views",
  "Reshapes move up, and Expands away, from between pointwise operators",
  first_of(move_up, read_unexpanded),
)
