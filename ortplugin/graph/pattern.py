"""Patterns that read like the graph they match.

    x = value("x")
    mean = op("ReduceMean", x, maybe(), tag="mean")
    d = maybe_cast(op("Sub", x, mean))
    variance = op("ReduceMean", any_of(op("Mul", d, d), op("Pow", d, number(2))), maybe(), tag="mean")
    pattern = op("Div", d, op("Sqrt", op("Add", variance, value("epsilon"), commute=True)))

A pattern matches the value that a node makes. Where one stands twice, each place is matched on its own, so that a graph
which computes the same thing twice matches as well; `value(name)` must be the same tensor everywhere. Conditions that a
pattern cannot say belong into the rewrite's check, which gives the reason when they fail.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from .facts import Scope


@dataclass(frozen=True)
class Match:
  """What a pattern found: tensors by the names of `value`, nodes by tag, and all matched nodes, the root first."""

  values: Mapping[str, gs.Tensor] = field(default_factory=dict)
  tagged: tuple[tuple[str, gs.Node], ...] = ()
  nodes: tuple[gs.Node, ...] = ()

  def tag(self, name: str) -> list[gs.Node]:
    """The nodes that a pattern with this tag matched, each once."""
    return list({id(node): node for tag, node in self.tagged if tag == name}.values())

  @property
  def root(self) -> gs.Node:
    """The node that makes the matched value."""
    return self.nodes[0]

  @property
  def interior(self) -> list[gs.Node]:
    """The matched nodes but the root, each once."""
    return [node for node in {id(node): node for node in self.nodes}.values() if node is not self.root]


class Pattern:
  """Something that a value may match, in one way or several."""

  def match(self, tensor: gs.Tensor, scope: Scope, so_far: Match) -> Iterator[Match]:
    """Every way in which the tensor matches, each added to `so_far`."""
    raise TypeError(type(self).__name__)

  @property
  def roots(self) -> frozenset[str]:
    """The operators that the node of a match may have."""
    return frozenset()


@dataclass(frozen=True)
class _Value(Pattern):
  name: str

  def match(self, tensor: gs.Tensor, scope: Scope, so_far: Match) -> Iterator[Match]:
    if (bound := so_far.values.get(self.name)) is None:
      yield Match({**so_far.values, self.name: tensor}, so_far.tagged, so_far.nodes)
    elif bound is tensor:
      yield so_far


@dataclass(frozen=True)
class _Number(Pattern):
  number: float

  def match(self, tensor: gs.Tensor, scope: Scope, so_far: Match) -> Iterator[Match]:
    if scope.scalar(tensor) == self.number:
      yield so_far


@dataclass(frozen=True)
class _Any(Pattern):
  patterns: tuple[Pattern, ...]

  def match(self, tensor: gs.Tensor, scope: Scope, so_far: Match) -> Iterator[Match]:
    for pattern in self.patterns:
      yield from pattern.match(tensor, scope, so_far)

  @property
  def roots(self) -> frozenset[str]:
    return frozenset().union(*(pattern.roots for pattern in self.patterns))


@dataclass(frozen=True)
class _Maybe(Pattern):
  """An input that may be absent or anything."""

  def match(self, tensor: gs.Tensor, scope: Scope, so_far: Match) -> Iterator[Match]:
    yield so_far


@dataclass(frozen=True)
class _Op(Pattern):
  op: str
  inputs: tuple[Pattern, ...]
  commute: bool
  tag: str

  def match(self, tensor: gs.Tensor, scope: Scope, so_far: Match) -> Iterator[Match]:
    node = scope.producer(tensor)
    if node is None or scope.op(node) != self.op or tensor is not node.outputs[0]:
      return
    given = list(node.inputs)
    required = sum(not isinstance(pattern, _Maybe) for pattern in self.inputs)
    if not required <= len(given) <= len(self.inputs):
      return
    tagged = (*so_far.tagged, (self.tag, node)) if self.tag else so_far.tagged
    start = Match(so_far.values, tagged, (*so_far.nodes, node))
    yield from self._inputs(given, 0, scope, start)
    if self.commute and given[0] is not given[1]:
      yield from self._inputs([given[1], given[0]], 0, scope, start)

  def _inputs(self, given: list[gs.Tensor], index: int, scope: Scope, so_far: Match) -> Iterator[Match]:
    if index == len(given):
      yield so_far
      return
    for match in self.inputs[index].match(given[index], scope, so_far):
      yield from self._inputs(given, index + 1, scope, match)

  @property
  def roots(self) -> frozenset[str]:
    return frozenset({self.op})


def value(name: str) -> Pattern:
  """Any tensor; the same one wherever the name stands."""
  return _Value(name)


def number(value_: float) -> Pattern:
  """A constant with one element of this value, in any numeric dtype."""
  return _Number(value_)


def any_of(*patterns: Pattern) -> Pattern:
  """One of the patterns, tried in order."""
  return _Any(patterns)


def maybe() -> Pattern:
  """An input that may be absent; what it is, the check decides."""
  return _Maybe()


def op(op_: str, *inputs: Pattern, commute: bool = False, tag: str = "") -> Pattern:
  """The first output of a node of this operator of ai.onnx ('domain::Name' for another) with these inputs.

  `commute`: its two inputs may be swapped. `tag`: the name under which Match.tag finds the node.
  """
  return _Op(op_, inputs, commute, tag)


def maybe_cast(pattern: Pattern) -> Pattern:
  """The pattern, or a Cast of it (tag 'cast')."""
  return any_of(pattern, op("Cast", pattern, tag="cast"))


def matches(pattern: Pattern, node: gs.Node, scope: Scope) -> Iterator[Match]:
  """Every match of the pattern whose root is this node."""
  if scope.op(node) in pattern.roots and node.outputs and not node.outputs[0].is_empty():
    yield from pattern.match(node.outputs[0], scope, Match())
