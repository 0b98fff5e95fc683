"""How the elements of a tensor are indexed by attention's batch, head, row and column, and what a view does to that.

A tensor of rank r that is a view of Q[b, h, s, d] has r axes, each a product of terms, row-major:

    [B, S, H D]       (b) (s) (h d)                Reshape(Transpose(Q))
    [B, S, 3, H, D]   (b) (s) (1/3) (h) (d)        of which Gather took the index 1

Going back over a Transpose permutes the axes, over a Reshape it divides the same terms otherwise. What a Slice or
Gather takes becomes a term that knows its place in memory, what an Expand repeats is not an index any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...graph import ONE, Length
from ...graph.lengths import product


class Atom:
  """An index of attention. A Reshape may split it into an outer and an inner one; all that use it see both then."""

  def __init__(self, size: Length) -> None:
    self.size = size
    self._parts: tuple[Atom, Atom] | None = None

  def split(self, inner: int) -> None:
    """Makes it a product of two: size / inner and inner."""
    outer = self.size.over(Length(inner))
    assert outer is not None
    self._parts = (Atom(outer), Atom(Length(inner)))

  def leaves(self) -> list[Atom]:
    """What it consists of now, outermost first; itself if it was not split."""
    return [self] if self._parts is None else [leaf for part in self._parts for leaf in part.leaves()]


@dataclass(frozen=True)
class Term:
  """A factor of an axis: an atom, or one index (None), which lies at `first` among `total` in memory."""

  atom: Atom | None
  first: int
  total: Length

  @property
  def whole(self) -> bool:
    """Whether nothing else lies beside it."""
    return self.atom is not None and self.total == self.atom.size

  @property
  def size(self) -> Length:
    """How many of its elements are read."""
    return ONE if self.atom is None else self.atom.size


Axis = tuple[Term, ...]
Axes = tuple[Axis, ...]


def whole(atom: Atom) -> Term:
  """The atom with nothing beside it."""
  return Term(atom, 0, atom.size)


def length(terms: Iterable[Term]) -> Length:
  """How many elements these terms have in memory."""
  return product([term.total for term in terms])


def split_term(term: Term) -> list[Term] | None:
  """The same in terms of the atom's leaves; None where what is taken of the memory is no product of ranges."""
  if term.atom is None:
    return [term]
  leaves = term.atom.leaves()
  if len(leaves) == 1:
    return [term]
  if term.whole:
    return [whole(leaf) for leaf in leaves]
  inner = product([leaf.size for leaf in leaves[1:]]).known
  total = term.total.over(Length(inner)) if inner else None
  if not inner or total is None or term.first % inner:
    return None
  return [Term(leaves[0], term.first // inner, total), *(whole(leaf) for leaf in leaves[1:])]


def flat(axes: Axes) -> list[Term] | None:
  """All terms in the order of memory, in leaves; None as split_term."""
  result: list[Term] = []
  for axis in axes:
    for term in axis:
      if (parts := split_term(term)) is None:
        return None
      result += parts
  return result


def divided(term: Term, outer: Length) -> list[Term] | None:
  """The term as a product of `outer` and what is left; None if it is none."""
  inner = term.total.over(outer)
  number = None if inner is None else inner.known
  if inner is None or not number:
    return None
  if term.atom is None:
    return [Term(None, term.first // number, outer), Term(None, term.first % number, inner)]
  if term.size.over(inner) is None or term.first % number:
    return None
  term.atom.split(number)
  return split_term(term)


def regroup(axes: Axes, dims: Sequence[Length]) -> Axes | None:
  """The same terms on axes of other lengths, as before a Reshape; None where the lengths don't tell how.

  Lengths are compared from the front and from the back. One axis in the middle takes what is left, since a Reshape
  keeps the number of elements.
  """
  if (terms := flat(axes)) is None:
    return None
  front: list[Axis] = []
  while len(front) < len(dims):
    if (taken := _take(terms, dims[len(front)])) is None:
      break
    front.append(taken)
  if len(front) == len(dims):
    if length(terms) != ONE:
      return None
    return (*front[:-1], (*front[-1], *terms)) if front else ()
  back: list[Axis] = []
  while len(front) + len(back) < len(dims) - 1:
    if (taken := _take_last(terms, dims[len(dims) - 1 - len(back)])) is None:
      return None
    back.insert(0, taken)
  if not dims[len(front)].names:
    return None
  return (*front, tuple(terms), *back)


def _take(terms: list[Term], goal: Length) -> Axis | None:
  """Removes from the front what makes an axis of this length."""
  if goal == ONE:
    return (terms.pop(0),) if terms and terms[0].total == ONE else ()
  rest, found = list(terms), ONE
  taken: list[Term] = []
  while found != goal:
    if not rest:
      return None
    if (left := goal.over(found)) is None:
      return None
    if left.over(rest[0].total) is None:
      if (parts := divided(rest[0], left)) is None:
        return None
      rest[:1] = parts
      if left.over(rest[0].total) is None:
        return None
    found = found.times(rest[0].total)
    taken.append(rest.pop(0))
  terms[:] = rest
  return tuple(taken)


def _take_last(terms: list[Term], goal: Length) -> Axis | None:
  """Removes from the back what makes an axis of this length; splits nothing."""
  rest, left = list(terms), goal
  taken: list[Term] = []
  while left != ONE:
    less = left.over(rest[-1].total) if rest else None
    if less is None:
      return None
    left = less
    taken.insert(0, rest.pop())
  terms[:] = rest
  return tuple(taken)


def part_of(axis: Axis, start: int, count: int, total: int) -> Axis | None:
  """An axis of `total` elements of which `axis` is the part of `count` from `start` on; None if it can't be said."""
  if start == 0 and count == total:
    return axis
  if (terms := flat((axis,))) is None or length(terms) != Length(count):
    return None
  if count and start % count == 0 and total % count == 0:
    return (Term(None, start // count, Length(total // count)), *terms)
  inner = length(terms[1:]).known
  if not terms or not inner or start % inner or total % inner:
    return None
  first = terms[0]
  return (replace(first, first=start // inner + first.first, total=Length(total // inner)), *terms[1:])


def atoms_of(axes: Axes) -> Iterator[Atom]:
  """Every leaf that indexes the tensor."""
  for axis in axes:
    for term in axis:
      if term.atom is not None:
        yield from term.atom.leaves()
