"""The axes of operators that are attention already, and how these give them; what is not so is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.lengths import Length, dims
from ortplugin.passes.attention.axes import Atom, Axes, Term, whole
from ortplugin.passes.attention.core import Core
from ortplugin.passes.attention.node import LARGEST_HEAD
from ortplugin.passes.attention.scores import Chain
from ortplugin.passes.attention.views import Read


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


def core_of(node: gs.Node, reads: Sequence[Read], y: Read, chain: Chain, atoms: Atoms) -> Core:
    """The attention of one node."""
    q, k, v = reads
    return Core(q, k, v, y, chain, [atoms.b, atoms.h], atoms.s, atoms.t, atoms.d, atoms.e)


def default_scale(atoms: Atoms) -> float:
    """1 / sqrt(head size)"""
    return float(atoms.d.size.number**-0.5)


def optional_input(node: gs.Node, index: int) -> gs.Tensor | None:
    """An input that may be left out."""
    return node.inputs[index] if index < len(node.inputs) and not node.inputs[index].is_empty() else None


def check_absent(node: gs.Node, first: int, what: str, besides: int | None = None) -> None:
    """Raises NotFusableError where there is an input from `first` on, but for one."""
    found = [optional_input(node, index) for index in range(first, len(node.inputs)) if index != besides]
    given = next((each for each in found if each is not None), None)
    if given is not None:
        raise NotFusableError(f"it reads {what}, '{given.name}'")


def lengths_of(scope: Scope, tensor: gs.Tensor) -> list[Length]:
    """The lengths of a tensor's axes; raises NotFusableError where not even the rank is known."""
    found = dims(scope, tensor)
    if found is None:
        raise NotFusableError(f"the rank of '{tensor.name}' is unknown; fix the inputs' shapes with --input-shape")
    return found
