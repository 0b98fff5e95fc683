"""A pass of chains: each operator of a kind draws in what is pointwise behind it (absorb.py has the walk)."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ..graph import Scope, label, labelled, scopes
from .absorb import Chain
from .base import Change, NearMiss, PassResult
from .members import Member


@dataclass(frozen=True)
class ChainPass:
  """A pass that makes each chain part of the operator with which it begins, the last of a graph first.

  begins: whether a node is such an operator. chain: its chain, as chain_of has it. draw: replaces the members of one,
  which leave those values, and returns the node that stands there now.
  """

  name: str
  summary: str
  begins: Callable[[Scope, gs.Node], bool]
  chain: Callable[[Scope, gs.Node], Chain]
  draw: Callable[[Scope, list[Member], list[gs.Tensor]], gs.Node]

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Draws into each such operator of the graph and its bodies what it can; at most `limit` of them change."""
    changes: list[Change] = []
    misses: list[NearMiss] = []
    for scope in scopes(graph):
      while True:  # the near misses are the last sweep's, which changes nothing
        before, missed = len(changes), []
        for node in [each for each in reversed(scope.slots) if each is not None and self.begins(scope, each)]:
          if limit is not None and len(changes) >= limit:
            break
          members, outputs, reasons = self.chain(scope, node)
          missed += [each.near_miss(self.name) for each in reasons]
          if len(members) > 1:
            labels = labelled(*(member.node for member in members))
            changes.append(Change(self.name, labels, label(self.draw(scope, members, outputs))))
        if len(changes) == before or (limit is not None and len(changes) >= limit):
          misses += missed
          break
    return PassResult(tuple(changes), tuple(dict.fromkeys(misses)))
