"""How the elements of a tensor are indexed by attention's batch, head, row and column, and what a view does to that.

A tensor of rank r that is a view of Q[b, h, s, d] has r axes, each a product of terms, row-major:

    [B, S, H D]       (b) (s) (h d)                Reshape(Transpose(Q))
    [B, S, 3, H, D]   (b) (s) (1/3) (h) (d)        of which Gather took the index 1

Going back over a Transpose permutes the axes, over a Reshape it divides the same terms otherwise; what a Slice or Gather
takes becomes a term that knows its place among what lies in memory, what an Expand repeats is not an index any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ortplugin.graph.extents import Extent


class Atom:
    """An index of attention. A Reshape may split it into an outer and an inner one; all that use it see both then."""

    def __init__(self, size: Extent) -> None:
        self.size = size
        self._parts: tuple[Atom, Atom] | None = None

    def split(self, inner: int) -> None:
        """Makes it a product of two: size / inner and inner."""
        assert isinstance(self.size, int)
        self._parts = (Atom(self.size // inner), Atom(inner))

    def leaves(self) -> list[Atom]:
        """What it consists of now, outermost first; itself if it was not split."""
        return [self] if self._parts is None else [leaf for part in self._parts for leaf in part.leaves()]


@dataclass(frozen=True)
class Term:
    """A factor of an axis: an atom, or one index (None), which lies at `first` among `total` in memory."""

    atom: Atom | None
    first: int
    total: Extent

    @property
    def whole(self) -> bool:
        """Whether nothing else lies beside it."""
        return self.atom is not None and self.total == self.atom.size

    @property
    def size(self) -> Extent:
        """How many of its elements are read."""
        return 1 if self.atom is None else self.atom.size


Axis = tuple[Term, ...]
Axes = tuple[Axis, ...]


def whole(atom: Atom) -> Term:
    """The atom with nothing beside it."""
    return Term(atom, 0, atom.size)


class Length(NamedTuple):
    """A product of lengths: of those that are known, and the others' names in order."""

    known: int
    names: tuple[Extent, ...] = ()

    def times(self, extent: Extent) -> Length:
        """The product with one more length."""
        if isinstance(extent, int):
            return Length(self.known * extent, self.names)
        return Length(self.known, tuple(sorted((*self.names, extent), key=str)))

    def quotient(self, other: Length) -> int | None:
        """self / other where that is a whole number; None if it is not known to be one."""
        if self.names != other.names or not other.known or self.known % other.known:
            return None
        return self.known // other.known

    def may_hold(self, other: Length) -> bool:
        """Whether `other` divides it, as far as is known."""
        names = list(self.names)
        for name in other.names:
            if name not in names:
                return False
            names.remove(name)
        return other.known != 0 and self.known % other.known == 0


def length(terms: Iterable[Term]) -> Length:
    """How many elements these terms have in memory."""
    result = Length(1)
    for term in terms:
        result = result.times(term.total)
    return result


def extent_of(axis: Axis) -> Extent | None:
    """The length of the axis in memory, where that is a number or one name."""
    found = length(axis)
    if not found.names:
        return found.known
    return found.names[0] if found.known == 1 and len(found.names) == 1 else None


def split_term(term: Term) -> list[Term] | None:
    """The same in terms of the atom's leaves; None where what is taken of the memory is no product of ranges."""
    if term.atom is None:
        return [term]
    leaves = term.atom.leaves()
    if len(leaves) == 1:
        return [term]
    if term.whole:
        return [whole(leaf) for leaf in leaves]
    inner = 1
    for leaf in leaves[1:]:
        assert isinstance(leaf.size, int)
        inner *= leaf.size
    if not isinstance(term.total, int) or term.first % inner or term.total % inner:
        return None
    return [Term(leaves[0], term.first // inner, term.total // inner), *(whole(leaf) for leaf in leaves[1:])]


def flat(axes: Axes) -> list[Term] | None:
    """All terms in the order of memory, in leaves; None as split_term."""
    result: list[Term] = []
    for axis in axes:
        for term in axis:
            parts = split_term(term)
            if parts is None:
                return None
            result += parts
    return result


def divided(term: Term, outer: int) -> list[Term] | None:
    """The term as a product of `outer` and what is left; None if it is none."""
    if not isinstance(term.total, int) or outer < 1 or term.total % outer:
        return None
    inner = term.total // outer
    if term.atom is None:
        return [Term(None, term.first // inner, outer), Term(None, term.first % inner, inner)]
    if not isinstance(term.size, int) or term.size % inner or term.first % inner:
        return None
    term.atom.split(inner)
    return split_term(term)


def regroup(axes: Axes, dims: Sequence[Extent]) -> Axes | None:
    """The same terms on axes of other lengths, as before a Reshape; None where the lengths don't tell how.

    Lengths are compared from the front and from the back. One axis in the middle takes what is left, since a Reshape
    keeps the number of elements.
    """
    terms = flat(axes)
    if terms is None:
        return None
    front: list[Axis] = []
    while len(front) < len(dims):
        taken = _take(terms, dims[len(front)])
        if taken is None:
            break
        front.append(taken)
    if len(front) == len(dims):
        if not front:
            return () if not terms else None
        return (*front[:-1], (*front[-1], *terms)) if length(terms) == Length(1) else None
    back: list[Axis] = []
    while len(front) + len(back) < len(dims) - 1:
        taken = _take_last(terms, dims[len(dims) - 1 - len(back)])
        if taken is None:
            return None
        back.insert(0, taken)
    middle = dims[len(front)]
    if isinstance(middle, int) and not length(terms).names:
        return None  # both are known, and differ
    return (*front, tuple(terms), *back)


def _take(terms: list[Term], dim: Extent) -> Axis | None:
    """Removes from the front what makes an axis of this length."""
    goal, found = Length(1).times(dim), Length(1)
    taken: list[Term] = []
    if goal == found and terms and terms[0].total == 1:
        return (terms.pop(0),)
    rest = list(terms)
    while found != goal:
        if not rest:
            return None
        more = found.times(rest[0].total)
        if not goal.may_hold(more):
            outer = goal.quotient(found)
            parts = None if outer is None else divided(rest[0], outer)
            if parts is None:
                return None
            rest[:1] = parts
            more = found.times(rest[0].total)
            if not goal.may_hold(more):
                return None
        taken.append(rest.pop(0))
        found = more
    terms[:] = rest
    return tuple(taken)


def _take_last(terms: list[Term], dim: Extent) -> Axis | None:
    """Removes from the back what makes an axis of this length; splits nothing."""
    goal, found = Length(1).times(dim), Length(1)
    taken: list[Term] = []
    rest = list(terms)
    while found != goal:
        if not rest or not goal.may_hold(found.times(rest[-1].total)):
            return None
        found = found.times(rest[-1].total)
        taken.insert(0, rest.pop())
    terms[:] = rest
    return tuple(taken)


def part_of(axis: Axis, start: int, count: Extent, total: Extent) -> Axis | None:
    """An axis of `total` elements of which `axis` is the part of `count` from `start` on; None if it can't be said."""
    if not isinstance(total, int) or not isinstance(count, int):
        return None
    if start == 0 and count == total:
        return axis
    terms = flat((axis,))
    if terms is None or length(terms) != Length(count):
        return None
    if count and start % count == 0 and total % count == 0:
        return (Term(None, start // count, total // count), *terms)
    inner = length(terms[1:])
    if not terms or inner.names or not inner.known or start % inner.known or total % inner.known:
        return None
    first = terms[0]
    return (replace(first, first=start // inner.known + first.first, total=total // inner.known), *terms[1:])


def atoms_of(axes: Axes) -> Iterator[Atom]:
    """Every leaf that indexes the tensor."""
    for axis in axes:
        for term in axis:
            if term.atom is not None:
                yield from term.atom.leaves()
