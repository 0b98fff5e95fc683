"""The axes of operators that are attention already, and how these give them; what is not so is an error."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import Length, Scope, dims, optional_input, show
from .axes import Atom, Axes, Term, whole
from .core import Cache, Core
from .node import LARGEST_HEAD
from .scores import Chain, Mask, broadcasts
from .views import Read

CONTRIB = "com.microsoft"
PAST = {"Attention": 4, f"{CONTRIB}::MultiHeadAttention": 6}  # the first of the two inputs that are a cache


class NotFusableError(Exception):
  """What an operator asks for that FusedAttention has not."""


@dataclass(frozen=True)
class Atoms:
  """The indices of one attention."""

  b: Atom
  h: Atom
  kv: Atom
  """Of the heads of K and V, the outer part of h where these are fewer."""
  s: Atom
  t: Atom
  d: Atom
  e: Atom

  @property
  def scores(self) -> Axes:
    """The axes of the scores."""
    return tuple((whole(atom),) for atom in (self.b, self.h, self.s, self.t))

  @property
  def repeated(self) -> frozenset[Atom]:
    """The queries' heads of one head of K and V."""
    return frozenset(self.h.leaves()) - {self.kv}


def make_atoms(
  b: Length,
  heads: int | None,
  kv_heads: int | None,
  s: Length,
  t: Length,
  d: Length,
  e: Length,
  flat: bool,
  value_flat: bool | None = None,
) -> Atoms:
  """The indices; `flat`: d and e are the lengths of axes that hold the heads too."""
  if not heads or not kv_heads or heads % kv_heads:
    raise NotFusableError(f"it has {heads} heads, and {kv_heads} of K and V")
  head = d.over(Length(heads)) if flat else d
  value = e.over(Length(kv_heads)) if (flat if value_flat is None else value_flat) else e
  for size in (head, value):
    if size is None or size.known is None or not 1 <= size.known <= LARGEST_HEAD:
      raise NotFusableError(f"the head size is {size and size.known}, not one of 1 to {LARGEST_HEAD}")
  assert head is not None
  assert value is not None
  h = Atom(Length(heads))
  if kv_heads < heads:
    h.split(heads // kv_heads)
  return Atoms(Atom(b), h, h.leaves()[0], Atom(s), Atom(t), Atom(head), Atom(value))


def read_heads(tensor: gs.Tensor, heads: Atom, rows: Atom, size: Atom, atoms: Atoms, flat: bool) -> Read:
  """[B, S, H D] if `flat`, else [B, H, S, D]."""
  axes: Axes = ((whole(atoms.b),), (whole(heads),), (whole(rows),), (whole(size),))
  if flat:
    axes = (axes[0], axes[2], (*axes[1], *axes[3]))
  return Read(tensor, axes, atoms.repeated if heads is atoms.kv and heads is not atoms.h else frozenset())


def read_packed(tensor: gs.Tensor, index: int, count: int, rows: Atom, size: Atom, atoms: Atoms) -> Read:
  """[B, S, H, count, D]."""
  taken = Term(None, index, Length(count))
  return Read(tensor, ((whole(atoms.b),), (whole(rows),), (whole(atoms.h),), (taken,), (whole(size),)))


def read_mask(scope: Scope, mask: gs.Tensor, atoms: Atoms, filling: float | None) -> Mask:
  """What is added to the scores, or of bools where `filling` takes their place."""
  target = [atom.size for atom in (atoms.b, atoms.h, atoms.s, atoms.t)]
  if not broadcasts(lengths_of(scope, mask), target):
    raise NotFusableError(f"the mask, of shape {show(scope.shape(mask))}, may be larger than the scores")
  return Mask(mask, atoms.scores, filling)


def core_of(
  node: gs.Node, reads: Sequence[Read], y: Read, chain: Chain, atoms: Atoms, cache: Cache | None = None
) -> Core:
  """The attention of one node."""
  q, k, v = reads
  return Core(q, k, v, y, chain, [atoms.b, atoms.h], atoms.s, atoms.t, atoms.d, atoms.e, cache)


def cache_of(scope: Scope, node: gs.Node, added: Length) -> tuple[Cache, Length] | None:
  """The cache of one node, behind which K and V have `added` rows, and how many rows there are; None without one."""
  first = PAST.get(scope.op(node), len(node.inputs))
  past = [optional_input(node, first), optional_input(node, first + 1)]
  if past[0] is None or past[1] is None:
    if past[0] is not past[1]:
      raise NotFusableError("it has a past of K or of V alone")
    return None
  given = lengths_of(scope, past[0])
  if len(given) != 4 or lengths_of(scope, past[1])[2:3] != given[2:3]:
    shapes = " and ".join(show(scope.shape(each)) for each in past if each is not None)
    raise NotFusableError(f"its past, of shapes {shapes}, is not known to have one number of rows")
  present = node.outputs[1:3]
  if len(present) < 2 or any(each.is_empty() for each in present):
    raise NotFusableError(f"it reads a cache, '{past[0].name}', and does not write both that are present")
  total = dims(scope, present[0])
  if given[2].known is not None and added.known is not None:
    rows = Length(given[2].known + added.known)
  else:
    rows = Length(1, ((id(node), 2),)) if total is None or len(total) != 4 else total[2]
  return Cache((past[0], past[1]), (present[0], present[1]), Atom(added)), rows


def default_scale(atoms: Atoms) -> float:
  """1 / sqrt(head size)"""
  return float(atoms.d.size.number**-0.5)


def check_absent(node: gs.Node, first: int, what: str, besides: int | None = None) -> None:
  """Raises NotFusableError where there is an input from `first` on, but for one."""
  found = [optional_input(node, index) for index in range(first, len(node.inputs)) if index != besides]
  given = next((each for each in found if each is not None), None)
  if given is not None:
    raise NotFusableError(f"it reads {what}, '{given.name}'")


def lengths_of(scope: Scope, tensor: gs.Tensor) -> list[Length]:
  """The lengths of a tensor's axes; raises NotFusableError where not even the rank is known."""
  if (found := dims(scope, tensor)) is None:
    raise NotFusableError(f"the rank of '{tensor.name}' is unknown; fix the inputs' shapes with --input-shape")
  return found
