"""The layout of a tensor as FusedAttention's text, "b s (1/3 h d)", from the terms of its axes.

What a Reshape has split (the windows of an image, say, that are one batch) may lie on several axes, one after the
other: then the tensor is read through a Reshape that makes them one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...graph import ONE, Length
from ...graph.lengths import product
from .axes import Atom, Axes, Term, flat

Names = Mapping[str, Sequence[Atom]]  # b, h, s, d: the atoms of each, outermost first


@dataclass(frozen=True)
class Layout:
  """The text, and the lengths to which the tensor has to be reshaped before that, or None."""

  text: str
  shape: tuple[int, ...] | None = None


@dataclass
class _Group:
  """An axis of the text: its factors, the terms that they are of, and the axes of the tensor that it covers."""

  factors: list[str]
  terms: list[Term]
  axes: list[int]


def layout_of(axes: Axes, given: Sequence[Length], names: Names, output: bool = False) -> Layout | None:
  """The layout of a tensor of the lengths `given`; None if there is no text for it.

  `output`: of Y, which is written whole and whose sizes all are known from Q and V.
  """
  if (groups := _groups(axes, names)) is None or not _place_ones(groups, names, output):
    return None
  if not output and any(len({"b", "s", "d"} & set(group.factors)) > 1 for group in groups):
    return None
  if output and any("/" in factor for group in groups for factor in group.factors):
    return None
  kept = [group for group in groups if group.factors]
  text = " ".join(each.factors[0] if len(each.factors) == 1 else f"({' '.join(each.factors)})" for each in kept)
  if [each.axes for each in kept] == [[axis] for axis in range(len(axes))]:
    return Layout(text)
  shape = _shape(kept, given, output)
  return None if shape is None else Layout(text, shape)


def _groups(axes: Axes, names: Names) -> list[_Group] | None:
  """The axes with the factors in their order; those that share a name are one."""
  owner = {id(atom): (name, place) for name, atoms in names.items() for place, atom in enumerate(atoms)}
  order = {name: [place for place, atom in enumerate(atoms) if atom.size != ONE] for name, atoms in names.items()}
  seen: dict[str, list[int]] = {name: [] for name in names}
  groups: list[_Group] = []
  open_name = ""
  for index, axis in enumerate(axes):
    group = _Group([], [], [index])
    if (terms := flat((axis,))) is None:
      return None
    for term in terms:
      if term.atom is None:
        if open_name:
          return None
        group.factors.append(f"{term.first}/{term.total.known}")
        group.terms.append(term)
        continue
      if id(term.atom) not in owner:
        return None
      name, place = owner[id(term.atom)]
      if term.total == ONE:
        group.terms.append(term)
        continue
      if open_name and name != open_name:
        return None
      if not open_name:
        group.factors.append(name)
      while open_name and not group.factors:
        before = groups.pop()
        group = _Group(before.factors, [*before.terms, *group.terms], [*before.axes, *group.axes])
      if not term.whole and (name != "h" or seen[name]):
        return None
      seen[name].append(place)
      group.terms.append(term)
      open_name = "" if len(seen[name]) == len(order[name]) else name
    groups.append(group)
  if open_name or any(seen[name] != order[name] for name in names):
    return None
  return _with_ranges(groups, names)


def _with_ranges(groups: list[_Group], names: Names) -> list[_Group] | None:
  """The factor h with its place in memory, where other heads lie beside these."""
  inner = size_of(names["h"][1:])
  for group in groups:
    for term in group.terms:
      if term.atom is not None and term.atom in names["h"] and not term.whole:
        total = term.total.known
        if inner is None or total is None or term.atom is not names["h"][0]:
          return None
        group.factors[group.factors.index("h")] = f"h:{term.first * inner}/{total * inner}"
  return groups


def _place_ones(groups: list[_Group], names: Names, output: bool) -> bool:
  """Gives names of size 1, which no axis shows, an axis of length 1 or, to h, a place before d."""
  written = {factor[0] for group in groups for factor in group.factors if factor[0] in names}
  missing = [name for name in "bshd" if name not in written]
  empty = [group for group in groups if not group.factors]
  for name in missing:
    own = [group for group in empty if any(term.atom in names[name] for term in group.terms)]
    if own or empty:
      chosen = (own or empty)[0]
      empty.remove(chosen)
      chosen.factors.append(name)
    elif name == "h":
      beside = next((group for group in groups if "d" in group.factors), None)
      if beside is None:
        return False
      beside.factors.insert(beside.factors.index("d"), "h")
    else:
      groups.insert(0, _Group([name], [], []))
  if not output:
    for group in empty:
      group.factors.append("0/1")
  return True


def _shape(groups: Sequence[_Group], given: Sequence[Length], output: bool) -> tuple[int, ...] | None:
  """The lengths of the groups as a Reshape takes them: 0 copies, -1 is what is left."""
  shape: list[int] = []
  for index, group in enumerate(groups):
    own = product([given[axis] for axis in group.axes])
    if own.known is not None:
      if not own.known:
        return None
      shape.append(own.known)
    elif group.axes == [index] and not output:
      shape.append(0)
    else:
      shape.append(-1)
  return tuple(shape) if shape.count(-1) <= 1 else None


def restored_shape(given: Sequence[Length]) -> tuple[int, ...] | None:
  """The lengths `given` as a Reshape takes them; None if more than one is unknown."""
  shape = tuple(-1 if each.known is None else each.known for each in given)
  return shape if shape.count(-1) <= 1 else None


def size_of(atoms: Sequence[Atom]) -> int | None:
  """The product of their sizes, where each is a number."""
  return product([atom.size for atom in atoms]).known
