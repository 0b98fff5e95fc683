"""What a chain of Transposes, views and Slices does to a tensor, told by the atoms of its axes; and its shortest form.

An atom is a factor of an axis that stays in one piece throughout. [N, H, W, 12], transposed to [N, 12, H, W] and
reshaped to [N, 3, 4, H W], has the atoms N, H, W, 3, 4 before and N, 3, 4, H, W after. Lengths of 1 have none, and
atoms that stay neighbours move as one. The shortest form is a Slice, a Reshape, a Transpose and a Reshape,
each only where it changes something.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import Scope, Shape
from ...graph.slices import constant_slices
from ..emit import integers
from .cut import price_of

UNKNOWN = -1  # the one length that the others tell, as in the shape of a Reshape
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Form:
  """The shortest form of a chain: what is None, or empty, changes nothing."""

  slices: dict[int, slice]
  cut: list[int]
  """The shape after the Slice, at most one length UNKNOWN, as in those below."""
  split: list[int] | None
  """The shape before the Transpose."""
  perm: list[int] | None
  joined: list[int] | None
  """The shape after it."""

  @property
  def movers(self) -> int:
    """How many of its operators move memory."""
    return bool(self.slices) + (self.perm is not None)

  def price(self, x: gs.Tensor) -> int:
    """What they move of x, in bytes."""
    return self.movers * price_of(self.cut, x)

  @property
  def operators(self) -> int:
    """How many there are."""
    return max(1, self.movers + (self.split is not None) + (self.joined is not None))

  def nodes(self, scope: Scope, x: gs.Tensor, name: str) -> list[gs.Node]:
    """The operators, one after the other, all but the last with an output; `name` is a hint for values."""
    steps: list[tuple[str, list[list[int]], dict[str, list[int]], list[int]]] = []  # with constants and shapes
    shape = self.cut
    if self.slices:
      taken = list(self.slices.values())
      numbers = [[each.start for each in taken], [each.stop for each in taken], list(self.slices)]
      steps.append(("Slice", [*numbers, [each.step for each in taken]], {}, shape))
    if self.split is not None:
      steps.append(("Reshape", [shape := self.split], {}, shape))
    if self.perm is not None:
      steps.append(("Transpose", [], {"perm": self.perm}, shape := [shape[axis] for axis in self.perm]))
    if self.joined is not None or not steps:
      steps.append(("Reshape", [shape if self.joined is None else self.joined], {}, shape))
    made: list[gs.Node] = []
    for op, constants, attributes, shape in steps:
      if made:
        x = made[-1].outputs[0]
      hint = f"{name}/{op}"
      inputs = [x, *(integers(scope, each, f"{hint}_{number}") for number, each in enumerate(constants))]
      made.append(gs.Node(op, "", dict(attributes), inputs))
      if len(made) < len(steps):
        made[-1].name = scope.unique(hint)
        dims = tuple(None if dim == UNKNOWN else dim for dim in shape)
        made[-1].outputs.append(gs.Variable(made[-1].name, x.dtype, dims))
    return made


@dataclass(eq=False)
class _Atom:
  length: int


class Movement:
  """A tensor's atoms, in its own order and in that of the steps so far."""

  def __init__(self, lengths: Sequence[int]) -> None:
    self._slices: dict[int, slice] = {}
    self._lengths = list(lengths)  # of the tensor, of which `slices` is taken
    self._made = list(lengths)
    self._axes = [[_Atom(length)] if length != 1 else [] for length in lengths]
    self._homes = [list(atoms) for atoms in self._axes]

  def take(self, scope: Scope, x: gs.Tensor, chain: Sequence[gs.Node]) -> list[int] | None:
    """Takes in the chain that starts at x, its last step first; what each moves, in bytes, or None if not possible.

    x's lengths alone tell it: with two guesses of one that is not known, a chain would be cheaper than itself.
    """
    prices: list[int] = []
    for each in reversed(chain):
      if not self.step(scope, each):
        return None
      prices.insert(0, 0 if scope.op(each) in VIEWS else price_of(self._lengths, x))
    return prices

  def permute(self, perm: Sequence[int]) -> None:
    """Takes in a Transpose."""
    self._axes, self._made = [self._axes[axis] for axis in perm], [self._made[axis] for axis in perm]

  def step(self, scope: Scope, node: gs.Node) -> bool:
    """Takes in a step; False if that is not possible, after which nothing more can be."""
    op, made = scope.op(node), lengths(scope.shape(node.outputs[0]))
    if made is None:
      return False
    if op == "Transpose":
      self.permute([int(axis) for axis in node.attrs.get("perm") or range(len(self._axes))[::-1]])
      return True
    if op == "Slice":
      taken = constant_slices(scope, node, len(self._axes))
      return taken is not None and all(self._slice(axis, each, made[axis]) for axis, each in taken.items())
    return op in VIEWS and self._view(made)

  def _slice(self, axis: int, taken: slice, made: int) -> bool:
    atoms = self._axes[axis]
    if len(atoms) != 1 or UNKNOWN in (made, self._made[axis]):
      return False
    home = next(index for index, each in enumerate(self._homes) if atoms[0] in each)
    if len(self._homes[home]) != 1 or home in self._slices:
      return False
    self._slices[home] = taken
    self._lengths[home] = self._made[axis] = atoms[0].length = made
    if made == 1:
      self._axes[axis], self._homes[home] = [], []
    return True

  def _view(self, made: list[int]) -> bool:
    atoms = [atom for axis in self._axes for atom in axis]
    pieces = _pieces([atom.length for atom in atoms], made)
    if pieces is None:
      return False
    axes: list[list[_Atom]] = [[] for _ in made]
    for index, atom in enumerate(atoms):
      parts = [(_Atom(length), axis) for length, at, axis in pieces if at == index]
      for part, axis in parts:
        axes[axis].append(part)
      home = next(each for each in self._homes if atom in each)
      at = home.index(atom)
      home[at : at + 1] = [part for part, _ in parts]
    self._axes, self._made = axes, made
    return True

  def shortest(self) -> Form:
    """The fewest operators that do the same."""
    place = {id(atom): at for at, atom in enumerate(atom for home in self._homes for atom in home)}
    order = [place[id(atom)] for axis in self._axes for atom in axis]
    if order == sorted(order):
      return Form(self._slices, self._lengths, None, None, _unless(self._made, self._lengths))
    starts = {at for before, at in zip([-2, *order], order, strict=False) if at != before + 1}  # of what moves as one
    made = [[place[id(atom)] for atom in axis] for axis in self._axes]
    forms = [self._of_axes()]
    if not any(starts & set(axis[1:]) for axis in made):
      perm = _places(made)
      split = [self._made[perm.index(at)] for at in range(len(perm))]
      forms.append(Form(self._slices, self._lengths, _unless(split, self._lengths), perm, None))
    forms.append(self.moved_first())
    if not any(forms):
      flat, groups = [atom.length for home in self._homes for atom in home], sorted(starts)
      split = [_product(flat[at:end]) for at, end in zip(groups, [*groups[1:], len(flat)], strict=True)]
      perm = [groups.index(at) for at in order if at in starts]
      forms.append(Form(self._slices, self._lengths, split, perm, self._made))
    return min((each for each in forms if each is not None), key=lambda form: form.operators)

  def _of_axes(self) -> Form | None:
    """The Transpose that takes each of the tensor's axes as it is; None if that is not all."""
    if len(self._axes) != len(self._homes):
      return None
    axes = [[id(atom) for atom in axis] for axis in self._axes]
    homes = [[id(atom) for atom in home] for home in self._homes]
    single = iter([at for at, home in enumerate(homes) if not home])
    perm = [next(single, -1) if not axis else homes.index(axis) if axis in homes else -1 for axis in axes]
    return None if -1 in perm else Form(self._slices, self._lengths, None, perm, None)

  def moved_first(self) -> Form | None:
    """The form that transposes the tensor's own axes, then has a view at most; None where axes come apart."""
    places = {id(atom): at for at, atom in enumerate(atom for axis in self._axes for atom in axis)}
    homes = [[places[id(atom)] for atom in home] for home in self._homes]
    if any(b != a + 1 for home in homes for a, b in itertools.pairwise(home)):
      return None
    back = _places(homes)
    perm = [back.index(at) for at in range(len(back))]
    joined = _unless(self._made, [self._lengths[axis] for axis in perm])
    return Form(self._slices, self._lengths, None, perm, joined)


def transpose_and_view(scope: Scope, x: gs.Tensor, steps: Sequence[gs.Node]) -> Form | None:
  """The chain of steps, the last one first, as a Transpose of x's axes and a view."""
  given = lengths(scope.shape(x))
  movement = None if given is None else Movement(given)
  return None if movement is None or movement.take(scope, x, steps) is None else movement.moved_first()


def lengths(shape: Shape | None) -> list[int] | None:
  """The shape with at most one length UNKNOWN; None if more are, or if it is empty somewhere."""
  if shape is None or 0 in shape:
    return None
  found = [dim if isinstance(dim, int) else UNKNOWN for dim in shape]
  return found if found.count(UNKNOWN) < 2 else None


def _places(axes: Sequence[Sequence[int]]) -> list[int]:
  """For each axis its place in the order of what it holds; what holds nothing comes after the one before it."""
  keys: list[tuple[int, int]] = []
  for number, axis in enumerate(axes):
    keys.append((axis[0] if axis else keys[-1][0] if keys else -1, number))
  return [sorted(keys).index(key) for key in keys]


def _unless(made: list[int], given: list[int]) -> list[int] | None:
  return None if made == given else made


def _product(numbers: Sequence[int]) -> int:
  product = 1
  for each in numbers:
    product *= abs(each)
  return UNKNOWN if UNKNOWN in numbers else product


def _pieces(given: Sequence[int], made: Sequence[int]) -> list[tuple[int, int, int]] | None:
  """The common factors of both, in order: each with its place in `given` and in `made`; None where they have none."""
  rest = [[[at, length] for at, length in enumerate(each) if length != 1] for each in (given, made)]
  front: list[tuple[int, int, int]] = []
  back: list[tuple[int, int, int]] = []
  for end, found in ((0, front), (-1, back)):
    while all(rest) and UNKNOWN not in (rest[0][end][1], rest[1][end][1]):
      (at, a), (axis, b) = rest[0][end], rest[1][end]
      factor = min(a, b)
      if max(a, b) % factor:
        return None
      found.append((factor, at, axis))
      for each in rest:
        each[end][1] //= factor
        if each[end][1] == 1:
          del each[end]
  if not any(rest):
    return [*front, *reversed(back)]
  unknown = [[length for _, length in each].count(UNKNOWN) for each in rest]
  if unknown != [1, 1] or min(map(len, rest)) != 1:
    return None
  one = len(rest[0]) == 1
  middle = [(b if one else a, at, axis) for at, a in rest[0] for axis, b in rest[1]]
  return [*front, *middle, *reversed(back)]
