"""Pointwise operators that work on one another's results become one FusedPointwise.

    s = Add(x, r); y = Relu(s)                       becomes      y = FusedPointwise(x, r)

A set is connected: by what one of its operators makes and another reads, or by an input that two of them read. Every
result has the shape of the whole set; what is smaller is an interior value. What anything else needs remains an output.
No path leaves a set and comes back (graph/merging.py keeps that so, and near linear). Which neighbours join is
decided by passes/pointwise/cost.py. Arithmetic on shapes stays where ONNX Runtime computes it (graph/shape_values.py),
a single operator stays as it is, and so does what ONNX Runtime folds into a Conv's weights. This pass runs after those
of better operators, which have drawn in what they take.
"""

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, NotPointwiseError, Scope, is_pointwise, label, labelled, scopes
from ...graph.constant_values import constant_values
from ...graph.shape_values import shape_values
from ...ops.pointwise import NAME
from ...program import ProgramError
from ..base import Change, NearMiss, PassResult
from ..conditions import unsupported
from ..driver import Missed
from ..members import Member, compose, member_of
from .sets import PointwiseSets


class FusePointwise:
  """The pass; see the module."""

  name = "fuse-pointwise"
  summary = "connected pointwise operators become one, with any broadcasting and several outputs"

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Fuses the sets of the graph and its bodies, at most `limit` of them."""
    changes: list[Change] = []
    misses: list[NearMiss] = []
    left_alone = shape_values(graph) | constant_values(graph)
    for scope in scopes(graph):
      while True:  # twice as a rule: what is fused then finds no more to join, and says why
        members, missed = find_members(scope, left_alone)
        partition = PointwiseSets(scope, members)
        left = None if limit is None else limit - len(changes)
        chosen = partition.sets[:left]
        changes += [fuse(self.name, scope, *each) for each in chosen]
        if not chosen:
          break
      misses += [each.near_miss(self.name) for each in (*missed, *partition.misses)]
    return PassResult(tuple(changes), tuple(dict.fromkeys(misses)))


def fuse(rewrite: str, scope: Scope, members: list[Member], outputs: list[gs.Tensor]) -> Change:
  """Puts one FusedPointwise in the place of the members, in order; `outputs`: what something else needs of them."""
  nodes = [member.node for member in members]
  labels = labelled(*nodes)
  program, inputs = compose(members, outputs)
  new = gs.Node(NAME, nodes[-1].name, {"program": str(program)}, inputs, [], DOMAIN)
  scope.replace(nodes, new, outputs)
  return Change(rewrite, labels, label(new))


def find_members(scope: Scope, left_alone: frozenset[int]) -> tuple[dict[int, Member], list[Missed]]:
  """The operators that may be in a set, by place; and why others may not that stand beside a pointwise one.

  `left_alone`: the ids of the tensors that no set may make.
  """
  members: dict[int, Member] = {}
  misses: list[Missed] = []
  if unsupported(scope):
    return members, misses
  folded: set[int] = set()
  for place, node in enumerate(scope.slots):
    if node is None:
      continue
    if _folds_into_conv(scope, node, folded):
      folded.add(id(node.outputs[0]))
      continue
    try:
      if (member := member_of(scope, node, left_alone)) is not None:
        members[place] = member
    except (NotPointwiseError, ProgramError) as reason:
      if _has_neighbour(scope, node):
        misses.append(Missed(node, str(reason)))
  return members, misses


def _folds_into_conv(scope: Scope, node: gs.Node, folded: set[int]) -> bool:
  """Whether ONNX Runtime folds the node into weights: a Mul or Add of a constant per channel right after a Conv.

  `folded`: the ids of what such nodes made.
  """
  if scope.op(node) not in ("Add", "Mul") or len(node.inputs) != 2:
    return False
  for x, other in (node.inputs, reversed(node.inputs)):
    maker, dims, rank = scope.producer(x), scope.shape(other), scope.rank(x)
    if maker is None or dims is None or rank is None or not rank - 1 <= len(dims) <= rank:
      continue
    after_conv = scope.op(maker) == "Conv" and all(scope.is_constant(weight) for weight in maker.inputs[1:])
    per_channel = all(dim == 1 for axis, dim in enumerate(dims, rank - len(dims)) if axis != 1)
    if (after_conv or id(x) in folded) and per_channel and scope.is_constant(other):
      return not scope.used_beyond(x, [node])
  return False


def _has_neighbour(scope: Scope, node: gs.Node) -> bool:
  makers = [scope.producer(tensor) for tensor in node.inputs]
  beside = [*(each for each in makers if each is not None), *scope.consumers(node.outputs[0])]
  return any(is_pointwise(scope, each) for each in beside)


FUSE_POINTWISE = FusePointwise()
