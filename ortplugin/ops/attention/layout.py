"""How the tensors of an attention lie, as text in einops' notation: "b s (1/3 h d)".

docs/operators.md says what a layout is. In a product there is at most one of b, s and d: its size is that of the axis
over those of the heads and of the i/n.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...graph import Dim, Shape, show

STANDARD = "b h s d"
MOST_ATOMS = 16
LARGEST = 2**31 - 1  # of every number

_TOKEN = re.compile(r"[()]|[^ ()]+")
_NUMBERS = re.compile(r"(h:)?([0-9]{1,10})/([0-9]{1,10})")


@dataclass(frozen=True)
class Atom:
  """An axis, or a factor of one."""

  name: str  # "b", "s", "h" or "d"; "/" where one index is taken
  first: int = 0  # that index; of h the first head
  total: int = 0  # that axis's length; of h the heads in the tensor, 0 where these are all

  def __str__(self) -> str:
    slice_of = f"{self.first}/{self.total}" if self.total else ""
    return {"/": "", "h": "h:" if slice_of else "h"}.get(self.name, self.name) + slice_of

  def length(self, heads: int) -> int | None:
    """Its elements in a tensor of so many heads; None of b, s and d, which only the tensor's shape tells."""
    return None if self.name in "bsd" else self.total or heads


@dataclass(frozen=True)
class Layout:
  """The axes of a tensor. `str` gives the text again."""

  axes: tuple[tuple[Atom, ...], ...]

  def __str__(self) -> str:
    return " ".join(f"({' '.join(map(str, axis))})" if len(axis) > 1 else str(axis[0]) for axis in self.axes)

  @property
  def atoms(self) -> tuple[Atom, ...]:
    """All atoms in the order of the text."""
    return tuple(atom for axis in self.axes for atom in axis)

  @property
  def order(self) -> str:
    """The names of b, s, h and d in the order of the text."""
    return "".join(atom.name for atom in self.atoms if atom.name != "/")


@dataclass(frozen=True)
class Sizes:
  """The sizes of a tensor's b, s and d, as far as they are known."""

  b: Dim
  s: Dim
  d: Dim


def parse(text: str, *, is_output: bool = False) -> Layout:
  """The layout of this text. `is_output`: without i/n and h:first/total. Raises ValueError with the reason."""
  axes: list[tuple[Atom, ...]] = []
  product: list[Atom] | None = None
  tokens = _TOKEN.findall(text[: 64 * MOST_ATOMS])
  for token in tokens:
    if token == "(" and product is None:
      product = []
    elif token == ")" and product:
      axes.append(tuple(product))
      product = None
    elif token in "()":
      raise ValueError("its parentheses do not enclose one product of atoms each")
    elif product is None:
      axes.append((_atom(token),))
    else:
      product.append(_atom(token))
  if product is not None:
    raise ValueError("its parentheses do not enclose one product of atoms each")
  layout = Layout(tuple(axes))
  if len(text) > 64 * MOST_ATOMS or len(layout.atoms) > MOST_ATOMS:
    raise ValueError(f"it is longer than the {MOST_ATOMS} atoms that a layout may have")
  if sorted(layout.order) != ["b", "d", "h", "s"]:
    raise ValueError("b, s, h and d must each stand there once")
  if is_output and any(atom.total for atom in layout.atoms):
    raise ValueError("an output is all of its tensor: i/n and h:first/total have no place in it")
  if not is_output and any(sum(atom.name in "bsd" for atom in axis) > 1 for axis in axes):
    raise ValueError("a product has more than one of b, s and d, whose sizes the tensor's shape does not tell")
  return layout


def _atom(token: str) -> Atom:
  if token in ("b", "s", "h", "d"):
    return Atom(token)
  numbers = _NUMBERS.fullmatch(token)
  if numbers is None:
    raise ValueError(f"{token[:40]!r} is none of the atoms b, s, h, d, h:first/total and i/n")
  first, total = int(numbers[2]), int(numbers[3])
  if first >= total or total > LARGEST:
    raise ValueError(f"{token!r} must be a number from 0 to below another one, which is at most {LARGEST}")
  return Atom("h" if numbers[1] else "/", first, total)


def sizes(layout: Layout, heads: int, shape: Shape) -> Sizes:
  """b, s and d of a tensor of this shape. Raises ValueError where the shape does not fit the layout."""
  if len(shape) != len(layout.axes):
    raise ValueError(f"its shape is {show(shape)}, but its layout '{layout}' has {len(layout.axes)} axes")
  found: dict[str, Dim] = {}
  for number, (axis, dim) in enumerate(zip(layout.axes, shape, strict=True)):
    known = math.prod(atom.length(heads) or 1 for atom in axis)
    open_atom = next((atom.name for atom in axis if atom.name in "bsd"), None)
    if isinstance(dim, int) and (dim % known if open_atom else dim != known):
      wanted = f"a multiple of {known}" if open_atom else str(known)
      raise ValueError(f"its shape is {show(shape)}, but by its layout '{layout}' axis {number} has {wanted}")
    if open_atom:
      found[open_atom] = dim // known if isinstance(dim, int) else dim if known == 1 else None
  return Sizes(**found)


def shape_of(layout: Layout, heads: int, of: Sizes) -> Shape:
  """The shape of a tensor of these sizes, of which the layout says how it lies."""
  lengths = {"b": of.b, "s": of.s, "d": of.d}

  def product(axis: Sequence[Atom]) -> Dim:
    dims = [lengths.get(atom.name, atom.length(heads)) for atom in axis]
    known = math.prod(dim for dim in dims if isinstance(dim, int))
    others = [dim for dim in dims if not isinstance(dim, int)]
    if not others:
      return known
    return others[0] if known == 1 and len(others) == 1 else None

  return tuple(product(axis) for axis in layout.axes)
