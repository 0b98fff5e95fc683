"""A Transpose that moves only axes of length 1 becomes a Reshape, which moves nothing in memory.

y = Transpose<perm = [0, 3, 1, 2]>(x)      x [N, 1, 1, C]      becomes      y = Reshape(x, [0, C, 1, 1])

And a view of a view becomes one Reshape.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, Shape, is_disputed, labelled
from ...program import FLOATING
from ..driver import Applied, Outcome, RulePass, first_of, replaced
from ..emit import integers
from .movement import VIEWS, lengths
from .transpose_split import shorten


def merge(scope: Scope, node: gs.Node) -> Outcome:
  """Makes one Transpose of two, the first of which nothing else needs."""
  first = scope.producer(node.inputs[0], "Transpose") if scope.op(node) == "Transpose" else None
  if first is None or scope.used_beyond(node.inputs[0], [node]):
    return None
  inner, outer = _perm(scope, first), _perm(scope, node)
  if inner is None or outer is None or len(inner) != len(outer):
    return None
  y = node.outputs[0]
  new = gs.Node("Transpose", node.name, {"perm": [inner[axis] for axis in outer]}, [first.inputs[0]])
  return replaced(scope, [first, node], new, [y])


def _perm(scope: Scope, node: gs.Node) -> list[int] | None:
  """The permutation, which reverses the axes if it is not given; None if their number is not known then."""
  rank = scope.rank(node.inputs[0])
  perm = node.attrs.get("perm") or (None if rank is None else range(rank - 1, -1, -1))
  return None if perm is None else [int(axis) for axis in perm]


def as_view(scope: Scope, node: gs.Node) -> Outcome:
  """Makes a Transpose a Reshape."""
  shape = scope.shape(node.inputs[0]) if scope.op(node) == "Transpose" else None
  perm = None if shape is None else _perm(scope, node)
  target = _target(shape, perm) if shape is not None and perm is not None and len(perm) == len(shape) else None
  if target is None:
    return None
  y = node.outputs[0]
  new = gs.Node("Reshape", node.name, {}, [node.inputs[0], integers(scope, target, f"{y.name}_shape")])
  return replaced(scope, [node], new, [y])


def _target(shape: Shape, perm: list[int]) -> list[int] | None:
  """What a Reshape makes the permuted shape from, if the axes that are not 1 stay in order; else None."""
  moved = [axis for axis in perm if shape[axis] != 1]
  if moved != sorted(moved) or perm == sorted(perm) or 0 in shape:
    return None
  # An unknown length is copied where its axis stays, or it is what is left, if nothing else is unknown: beside a
  # length that may be 0 in some run, what is left is not known, and a Reshape fails where a Transpose does not.
  dims = [shape[axis] for axis in perm]
  target = [dim if isinstance(dim, int) else 0 if perm[at] == at else -1 for at, dim in enumerate(dims)]
  return target if -1 not in target or (target.count(-1) == 1 and 0 not in target) else None


def one_view(scope: Scope, node: gs.Node) -> Outcome:
  """Lets a view of a view read what the first does. ONNX Runtime may copy what both have, one after the other."""
  maker = scope.producer(node.inputs[0]) if scope.op(node) in VIEWS else None
  y, made = node.outputs[0], lengths(scope.shape(node.outputs[0]))
  if maker is None or made is None or scope.op(maker) not in VIEWS or scope.dtype(y) not in FLOATING:
    return None
  x = maker.inputs[0]
  if any(is_disputed(scope, tensor) for tensor in (x, node.inputs[0], y)):
    return None
  new = gs.Node("Reshape", node.name, {}, [x, integers(scope, made, f"{y.name}_shape")])
  labels = labelled(maker, node)
  scope.replace([node], new, [y])
  if not scope.used_beyond(maker.outputs[0], []):
    scope.remove(maker)
  return Applied(labels, new)


TRANSPOSE_VIEWS = RulePass(
  "transpose-views",
  "two Transposes become one, or none, also around Reshapes and Slices; one that moves only axes of length 1 a Reshape",
  first_of(merge, shorten, as_view, one_view),
)
