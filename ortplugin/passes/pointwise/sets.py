"""Which pointwise operators of a graph become one: maximal sets that the cost rule, the shapes and the limits allow."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, element_count, show
from ...graph.merging import Merging
from ...graph.order import tensors_read
from ...program import MAX_CHARACTERS, MAX_PARAMETERS, MAX_RESULTS, MAX_STATEMENTS
from ..driver import Missed
from ..members import Member
from .cost import too_dear, work


@dataclass
class _Set:
  """Members that become one node, by the places of their nodes in the graph."""

  members: list[int]
  whole: gs.Tensor  # of the shape of all results
  statements: int
  characters: int
  work: int
  reads: dict[int, int]  # how often members read a tensor, by id; without those that only they read
  made: dict[int, gs.Tensor]  # what they make and something else reads, or a graph gives out


class PointwiseSets:
  """The partition of a scope's members. `sets` and `misses` are what came of it."""

  def __init__(self, scope: Scope, members: dict[int, Member]) -> None:
    """`members`: by the place of the node in scope.slots, in order."""
    self._scope = scope
    self._members = members
    self._graph = Merging(_predecessors(scope))
    self._roots: dict[int, int] = {}
    self._sets: dict[int, _Set] = {}
    self._reasons: dict[int, tuple[int, str]] = {}  # by the producer: its first reader that is apart, and why
    for place, member in members.items():
      self._add(place, member)
    for pairs in (self._producers(), self._small_producers(), self._siblings()):
      for a, b, why_near in pairs:
        self._merge(a, b, why_near)

  @property
  def sets(self) -> list[tuple[list[Member], list[gs.Tensor]]]:
    """The sets of two and more, in order: the members and what they make that something else needs."""
    found = []
    for places in sorted(sorted(each.members) for each in self._sets.values() if len(each.members) > 1):
      members, made = [self._members[place] for place in places], self._of(places[0]).made
      found.append((members, [tensor for each in members for tensor in each.outputs if id(tensor) in made]))
    return found

  @property
  def misses(self) -> list[Missed]:
    """Why what is made in one set and read in another is not in one, in order; one reason for each that is made."""
    found = sorted((at, reason) for a, (at, reason) in self._reasons.items() if self._apart(a, at))
    return [Missed(self._members[at].node, reason) for at, reason in dict.fromkeys(found)]

  def _apart(self, a: int, b: int) -> bool:
    return self._graph.find(a) != self._graph.find(b)

  def _of(self, place: int) -> _Set:
    return self._sets[self._graph.find(place)]

  def _add(self, place: int, member: Member) -> None:
    reads: dict[int, int] = {}
    for tensor in member.inputs:
      reads[id(tensor)] = sum(each is tensor for each in member.node.inputs)
    roots = {self._root(tensor) for tensor in member.inputs}
    root = roots.pop() if len(roots) == 1 else id(member.outputs[0])
    self._roots.update((id(tensor), root) for tensor in member.outputs)
    statements = member.program.statements
    self._sets[place] = _Set(
      [place],
      member.outputs[0],
      len(statements) + len(member.rounded),
      sum(len(str(each)) + 24 * (1 + len(each.operands)) for each in statements),
      work(each.op for each in statements),
      reads,
      {id(tensor): tensor for tensor in member.outputs},
    )

  # Shapes

  def _root(self, tensor: gs.Tensor) -> int:
    """The id of a tensor from which operators that keep the shape lead to this one."""
    return self._roots.get(id(tensor), id(tensor))

  def _same_shape(self, a: gs.Tensor, b: gs.Tensor) -> bool:
    return self._root(a) == self._root(b) or self._scope.same_shape(a, b)

  # Pairs to try, in order

  def _producers(self) -> Iterator[tuple[int, int, bool]]:
    """Every member with each that makes one of its inputs, of the same shape."""
    for place, member in self._members.items():
      for tensor in member.inputs:
        maker = self._scope.producer(tensor)
        at = None if maker is None else self._scope.position[id(maker)]
        if at not in self._members or not self._apart(at, place):
          continue
        if self._same_shape(tensor, self._of(place).whole):
          yield at, place, True
        elif not self._scope.broadcasts_to(tensor, member.outputs[0]):
          wanted = show(self._scope.shape(member.outputs[0]))
          shapes = f"{show(self._scope.shape(tensor))} is not surely {wanted}"
          self._reasons.setdefault(at, (place, f"the shape of '{tensor.name}', {shapes}"))

  def _small_producers(self) -> Iterator[tuple[int, int, bool]]:
    """Every set on a smaller shape with the only one that reads what it makes; the last first."""
    scope = self._scope
    for place in reversed(self._members):
      made = list(self._sets[place].made.values()) if place in self._sets else []
      places = [scope.position.get(id(node), -1) for tensor in made for node in tensor.outputs]
      outside = [each for each in places if each < 0 or self._graph.find(each) != place]
      readers = {self._graph.find(each) for each in outside if each in self._members}
      larger = [r for r in readers if not self._same_shape(self._sets[place].whole, self._sets[r].whole)]
      if not larger:
        continue
      reader = min(larger)
      within = [self._members[each].node for each in (*self._of(place).members, *self._of(reader).members)]
      used = next((used for tensor in made if (used := scope.used_beyond(tensor, within))), "")
      if used:
        self._reasons.setdefault(place, (reader, f"it is computed apart: {used}"))
      elif all(tensor.outputs for tensor in made):
        yield place, reader, True

  def _siblings(self) -> Iterator[tuple[int, int, bool]]:
    """Sets that read one tensor of their shape, each with the next."""
    readers: dict[int, list[int]] = {}
    for place, member in self._members.items():
      for tensor in member.inputs:
        if self._same_shape(tensor, self._of(place).whole):
          readers.setdefault(id(tensor), []).append(place)
    for places in readers.values():
      for a, b in pairwise(places):
        if self._apart(a, b) and self._same_shape(self._of(a).whole, self._of(b).whole):
          yield a, b, False

  # Merging

  def _merge(self, a: int, b: int, near: bool) -> None:
    """Makes the sets of these two members one, if that is allowed; `near`: else the report tells why."""
    first, last = self._of(a), self._of(b)
    small = not self._same_shape(first.whole, last.whole)
    reason = self._too_large(first, last) or (self._recomputed(first, last) if small else None)
    joined = self._graph.find(a), self._graph.find(b)
    reason = reason or self._graph.merge(a, b)
    if reason is None:
      for each in joined:
        del self._sets[each]
      self._sets[self._graph.find(b)] = self._joined(first, last)
    elif near:
      self._reasons.setdefault(a, (b, f"'{self._members[a].outputs[0].name}' is computed apart: {reason}"))

  def _joined(self, first: _Set, last: _Set) -> _Set:
    reads = dict(last.reads)
    for each, count in first.reads.items():
      reads[each] = reads.get(each, 0) + count
    made = {**first.made, **last.made}
    for each in [each for each in made if each in reads]:
      if reads[each] == len(made[each].outputs) and not self._scope.is_output(made[each]):
        del made[each], reads[each]
    return _Set(
      first.members + last.members,
      last.whole,
      first.statements + last.statements,
      first.characters + last.characters,
      first.work + last.work,
      reads,
      made,
    )

  def _too_large(self, first: _Set, last: _Set) -> str | None:
    joined = self._joined(first, last)
    for what, count, limit in (
      ("inputs", sum(each not in joined.made for each in joined.reads), MAX_PARAMETERS),
      ("outputs", len(joined.made), MAX_RESULTS),
      ("statements", joined.statements, MAX_STATEMENTS),
      ("characters", joined.characters, MAX_CHARACTERS),
    ):
      if count > limit:
        return f"together they have {count} {what}, and the limit is {limit}"
    return None

  def _recomputed(self, first: _Set, last: _Set) -> str | None:
    """Why the set `first`, on a smaller shape, stays apart."""
    scope = self._scope
    if not scope.broadcasts_to(first.whole, last.whole):
      shapes = f"{show(scope.shape(first.whole))} does not surely broadcast to {show(scope.shape(last.whole))}"
      return f"its shape {shapes}"
    added = sum(each not in last.reads for each in first.reads)
    sizes = [tensor_bytes(tensor) for tensor in first.made.values()]
    small = None if None in sizes else sum(each or 0 for each in sizes)
    return too_dear(first.work + max(0, added - 1), small, element_count(scope.shape(last.whole)))


def tensor_bytes(tensor: gs.Tensor) -> int | None:
  """The size of the tensor's elements; None if its dtype or a length is unknown."""
  count = element_count(None if tensor.shape is None else tuple(tensor.shape))
  return None if count is None or tensor.dtype is None else count * int(np.dtype(tensor.dtype).itemsize)


def _predecessors(scope: Scope) -> Sequence[Sequence[int]]:
  """For each place in scope.slots the places of the nodes that it needs, what its bodies read included."""

  def needed(tensors: Iterable[gs.Tensor]) -> list[int]:
    found = {scope.position[id(node)] for t in tensors for node in t.inputs if id(node) in scope.position}
    return sorted(found)

  return [[] if node is None else needed(tensors_read(node)) for node in scope.slots]
