"""The driver of rewrites: walks the nodes in order, applies what fires, collects what nearly did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ..graph import Scope, label, labelled, scopes
from ..graph.constant_values import constant_values
from ..graph.pattern import Match, Pattern, matches
from .base import Change, NearMiss, PassResult


@dataclass(frozen=True)
class Applied:
  """A rewrite was made: the labels of the nodes it replaced, and the node that stands there now, if any."""

  nodes: tuple[str, ...]
  node: gs.Node | None


@dataclass(frozen=True)
class Missed:
  """A rewrite nearly was: the node where it failed, and why."""

  node: gs.Node
  reason: str

  def near_miss(self, rewrite: str) -> NearMiss:
    """What the report has of it; `rewrite`: the pass's name."""
    return NearMiss(rewrite, label(self.node), self.reason)


PER_NODE = 20  # rewrites; a pass that makes more undoes what it did

Outcome = Applied | Missed | list[Missed] | None
Rule = Callable[[Scope, gs.Node], Outcome]


@dataclass(frozen=True)
class RulePass:
  """A pass made of one rule, which sees one node at a time and may change the graph around it through its Scope."""

  name: str
  summary: str
  rule: Rule
  keeps_constant_values: bool = False
  """Whether nodes stay of which ONNX Runtime computes the value once, as it loads the model."""

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Applies the rule to the graph and its bodies until it fires no more, or `limit` times."""
    changes: list[Change] = []
    misses: list[NearMiss] = []
    kept = constant_values(graph) if self.keeps_constant_values else frozenset()
    for scope in scopes(graph):
      misses += self._sweep(scope, changes, limit, kept)
    return PassResult(tuple(changes), tuple(dict.fromkeys(misses)))

  def _sweep(self, scope: Scope, changes: list[Change], limit: int | None, kept: frozenset[int]) -> list[NearMiss]:
    """Goes over the nodes but those of `kept` values until nothing changes; the near misses are the last round's."""
    most = len(changes) + PER_NODE * (len(scope.slots) + 1)
    while True:
      before = len(changes)
      misses: list[NearMiss] = []
      index, slots, rule = 0, scope.slots, self.rule
      while index < len(slots) and (limit is None or len(changes) < limit):
        node = slots[index]
        outcome = rule(scope, node) if node is not None and not _makes(node, kept) else None
        if outcome is None:
          index += 1
          continue
        if isinstance(outcome, Applied):
          scope.forget()  # the rule may have set shapes
          result = label(outcome.node) if outcome.node is not None else ""
          changes.append(Change(self.name, outcome.nodes, result))
          if len(changes) > most:
            raise RuntimeError(f"it comes to no end: the last of {len(changes)} rewrites was at {outcome.nodes[0]}")
          # The node that stands there now is looked at next: it may take in more.
          index = scope.position[id(outcome.node)] if outcome.node is not None else index + 1
          continue
        for missed in outcome if isinstance(outcome, list) else [outcome]:
          misses.append(missed.near_miss(self.name))
        index = scope.position[id(node)] + 1
      if len(changes) == before or (limit is not None and len(changes) >= limit):
        return misses


def _makes(node: gs.Node, values: frozenset[int]) -> bool:
  return bool(values) and any(id(tensor) in values for tensor in node.outputs)


@dataclass(frozen=True)
class PatternRewrite:
  """One pattern and what becomes of its matches."""

  pattern: Pattern
  check: Callable[[Match, Scope], str | None]
  """None if the rewrite is sound here, else the reason why not, with the value that failed."""
  rewrite: Callable[[Match, Scope], gs.Node]
  """The node that replaces the matched ones, without outputs: it gets the root's first."""

  def __call__(self, scope: Scope, node: gs.Node) -> Outcome:
    """Replaces the first match at this node that has no fault; else says what is wrong with the first one."""
    missed: Missed | None = None
    for match in matches(self.pattern, node, scope):
      reason = self.check(match, scope) or interior_use(match, scope)
      if reason is None:
        new = self.rewrite(match, scope)
        nodes = [*reversed(match.interior), match.root]
        return replaced(scope, nodes, new, [node.outputs[0]])
      missed = missed or Missed(node, reason)
    return missed


def replaced(scope: Scope, old: Sequence[gs.Node], new: gs.Node, outputs: Sequence[gs.Tensor]) -> Applied:
  """Puts `new` in the place of `old`, whose `outputs` it takes over (Scope.replace)."""
  labels = labelled(*old)
  scope.replace(old, new, outputs)
  return Applied(labels, new)


def interior_use(match: Match, scope: Scope) -> str | None:
  """Who needs a value that the rewrite would make disappear."""
  for node in match.interior:
    for tensor in node.outputs:
      if used := scope.used_beyond(tensor, match.nodes):
        return f"{used}, so {label(node)} has to stay"
  return None


def first_of(*rules: Rule) -> Rule:
  """A rule that applies the first of these that fires on a node; near misses are of the first that has any."""

  def rule(scope: Scope, node: gs.Node) -> Outcome:
    missed: Outcome = None
    for each in rules:
      outcome = each(scope, node)
      if isinstance(outcome, Applied):
        return outcome
      missed = missed or outcome
    return missed

  return rule
