"""Attention that is written out becomes FusedAttention:

    y = MatMul(Softmax(scale * MatMul(q, k^T) + mask), v)     becomes     y = FusedAttention(Q, K, V, mask)

A walk from the second product back to the first (scores.py) finds scale, softcap and masks; what is a constant triangle
becomes causal (masks.py). From q, k and v it goes on over views (views.py) to the tensors that the projections wrote and
says how these lie there (layouts.py); from y likewise forwards. The scores stay in float32 inside, so that the result
may differ from the original's by what that rounds on the way. PyTorch's Where(IsNaN(p), 0, p) is taken for what it is
written for: rows that are masked whole are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.shapes import show
from ortplugin.passes.attention.axes import Atom, Axes, Axis, atoms_of, length, whole
from ortplugin.passes.attention.lengths import Length, dims
from ortplugin.passes.attention.layouts import Layout, Names, layout_of, restored_shape, size_of
from ortplugin.passes.attention.masks import Masking, plan_masks
from ortplugin.passes.attention.node import DTYPES, LARGEST_HEAD, Attention, attention_node, replaced
from ortplugin.passes.attention.products import Product, product_of
from ortplugin.passes.attention.scores import Chain, Scores, is_over, score_dims, softmax_before, trace_scores
from ortplugin.passes.attention.views import FAR, Read, forward, reads, unbroadcast
from ortplugin.passes.conditions import unsupported
from ortplugin.passes.driver import Applied, Missed, Outcome, RulePass


class _Core(NamedTuple):
    """Attention before it is decided how its tensors are read: the reads of each, nearest first, and the atoms."""

    q: list[Read]
    k: list[Read]
    v: list[Read]
    y: list[Read]
    scores: Scores
    batch: list[Atom]
    """Of batch and heads, outermost first."""
    rows: Atom
    columns: Atom
    head: Atom
    value: Atom


@dataclass(frozen=True)
class _Choice:
    """How the tensors are read for one division of the leading axes into batch and heads."""

    q: tuple[Read, Layout]
    k: tuple[Read, Layout]
    v: tuple[Read, Layout]
    y: tuple[Read, Layout]
    heads: int
    kv_heads: int
    names: Names

    @property
    def gain(self) -> int:
        """The views that are no nodes any more."""
        return sum(read.depth - (layout.shape is not None) for read, layout in (self.q, self.k, self.v, self.y))


def fuse(scope: Scope, node: gs.Node) -> Outcome:
    """Replaces the attention that ends in this product."""
    core = _core(scope, node)
    if core is None or isinstance(core, Missed):
        return core
    y = core.y[0].tensor
    tensors = [each[0].tensor for each in (core.q, core.k, core.v, core.y)]
    dtypes = {scope.dtype(tensor) for tensor in tensors}
    dtype = scope.dtype(y)
    if len(dtypes) != 1 or dtype not in DTYPES:
        found = ", ".join(f"'{each.name}' is {scope.dtype(each)}" for each in tensors)
        return Missed(label(node), f"{found}; attention is fused in {' and '.join(DTYPES)}")
    reason = unsupported(scope) or _used_beside(scope, core)
    if reason:
        return Missed(label(node), reason)
    choice = _choose(core)
    if isinstance(choice, str):
        return Missed(label(node), choice)
    masking = plan_masks(scope, core.scores.chain.masks, {**choice.names, "t": core.columns.leaves()})
    if isinstance(masking, str):
        return Missed(label(node), masking)
    return _apply(scope, node, core, choice, masking, dtype)


def _apply(scope: Scope, node: gs.Node, core: _Core, choice: _Choice, masking: Masking, dtype: str) -> Applied:
    chain = core.scores.chain
    factor = chain.factor * choice.q[0].factor * choice.k[0].factor
    read, layout = choice.y
    given = Attention(
        (choice.q[0].tensor, choice.k[0].tensor, choice.v[0].tensor),
        (choice.q[1], choice.k[1], choice.v[1]),
        layout.text,
        choice.heads,
        choice.kv_heads,
        scale=factor * (chain.softcap or 1.0),
        softcap=chain.softcap,
        masking=masking,
        zeroed=chain.zeroed,
    )
    inner = list({id(each): each for each in chain.nodes}.values())
    after = [scope.producer(each.tensor) for each in core.y[1:] if each.depth <= read.depth]
    old = [*reversed(inner), *(each for each in after if each is not None)]
    labels = tuple(label(each) for each in old)
    shape = restored_shape(_lengths(read)) if layout.shape is not None else None
    new = attention_node(scope, node, given, dtype)
    replaced(scope, old, new, read.tensor, shape, read.tensor.dtype)
    return Applied(labels, new)


def _core(scope: Scope, node: gs.Node) -> _Core | Missed | None:
    """The attention that ends in this node; None if no Softmax leads to it."""
    product = product_of(scope, node)
    if product is None:
        return None
    for side in (0, 1):
        own, others = score_dims(scope, node.inputs[side]), dims(scope, node.inputs[1 - side])
        if own is None or others is None:
            return None
        letters = dict(zip(product.operands[1 - side], others, strict=True))
        letters |= dict(zip(product.operands[side], own, strict=True))
        atoms = {letter: Atom(each) for letter, each in letters.items()}
        axes = tuple((whole(atoms[letter]),) for letter in product.operands[side])
        found = softmax_before(scope, node.inputs[side], axes, Chain((node,)))
        if found is not None:
            return _inside(scope, product, side, atoms, found)
    return None


def _inside(
    scope: Scope, second: Product, side: int, atoms: dict[str, Atom], found: tuple[gs.Node, Axes, Chain]
) -> _Core | Missed:
    softmax, axes, chain = found
    columns, node = atoms[second.summed], second.node
    axis = int(softmax.attrs.get("axis", -1 if scope.opset >= 13 else 1))
    if axis not in (-1, len(axes) - 1) or not is_over(axes, -1, columns):
        return Missed(label(softmax), f"its axis {axis} is not that over which {label(node)} adds up")
    row, column = second.own(side)[-1], second.own(1 - side)[-1]
    rows, value = atoms[row], atoms[column]
    leading = [letter for letter in second.result if letter not in (row, column)]
    letters = {letter: (whole(atom),) for letter, atom in atoms.items()}
    v = _read(scope, node.inputs[1 - side], second.operands[1 - side], letters, leading)
    if v is None:
        return Missed(label(node), _unlike(scope, node))
    scores = trace_scores(scope, softmax.inputs[0], axes, chain)
    if isinstance(scores, Missed):
        return scores
    read = _queries_and_keys(scope, scores, rows, columns)
    if isinstance(read, Missed):
        return read
    q, k, head = read
    result = Read(node.outputs[0], tuple(letters[letter] for letter in second.result))
    return _Core(
        q=_from(scope, q, True), k=_from(scope, k, True), v=_from(scope, v, False), y=_results(scope, result),
        scores=scores, batch=[atoms[letter] for letter in leading],
        rows=rows, columns=columns, head=head, value=value,
    )  # fmt: skip


def _queries_and_keys(scope: Scope, scores: Scores, rows: Atom, columns: Atom) -> tuple[Read, Read, Atom] | Missed:
    """The operands of the first product, and the index of its sum."""
    first = scores.product
    letters = dict(zip(first.result, scores.axes, strict=True))
    for side in (0, 1):
        row = [each for each in first.own(side) if is_over((letters[each],), 0, rows)]
        column = [each for each in first.own(1 - side) if is_over((letters[each],), 0, columns)]
        if row and column:
            break
    else:
        return Missed(label(first.node), "its rows and columns are not those of the Softmax")
    tensors = first.node.inputs[side], first.node.inputs[1 - side]
    head = Atom((dims(scope, tensors[0]) or [])[first.operands[side].index(first.summed)])
    letters[first.summed] = (whole(head),)
    leading = [letter for letter in first.result if letter not in (row[0], column[0])]
    q, k = (
        _read(scope, tensor, first.operands[each], letters, leading)
        for tensor, each in zip(tensors, (side, 1 - side), strict=True)
    )
    if q is None or q.repeated or k is None:
        return Missed(label(first.node), _unlike(scope, first.node))
    return q, k, head


def _unlike(scope: Scope, node: gs.Node) -> str:
    shapes = [f"'{each.name}' of shape {show(scope.shape(each))}" for each in node.inputs]
    return f"{' and '.join(shapes)} are not known to have the same leading axes"


def _read(
    scope: Scope, tensor: gs.Tensor, operand: str, letters: Mapping[str, Axis], absent: Iterable[str]
) -> Read | None:
    """How an operand of a product is indexed, where an axis of length 1 is repeated; None if lengths don't tell.

    `absent`: letters of leading axes, which it lacks if its rank is lower.
    """
    given = dims(scope, tensor)
    axes = tuple(letters[letter] for letter in operand)
    if given is None:
        return None
    kept, repeated = unbroadcast(axes, given, [length(axis) for axis in axes])
    lacking = atoms_of(tuple(letters[letter] for letter in absent if letter not in operand))
    return None if kept is None else Read(tensor, kept, repeated | frozenset(lacking))


def _from(scope: Scope, read: Read, scaled: bool) -> list[Read]:
    """The reads from this one on."""
    found = reads(scope, read.tensor, read.axes, scaled)
    return [Read(each.tensor, each.axes, each.repeated | read.repeated, each.factor, each.depth) for each in found]


def _results(scope: Scope, result: Read) -> list[Read]:
    found = [result]
    while len(found) < FAR:
        after = forward(scope, found[-1])
        if after is None:
            break
        found.append(after)
    return found


def _used_beside(scope: Scope, core: _Core) -> str | None:
    """Who needs a value that would disappear."""
    nodes = core.scores.chain.nodes
    for node in nodes[1:]:
        for tensor in node.outputs:
            used = scope.used_beyond(tensor, nodes)
            if used:
                return f"{used}, so {label(node)} has to stay"
    return None


def _choose(core: _Core) -> _Choice | str:
    """The division into batch and heads that leaves the fewest views; or why there is none."""
    for name, atom in (("queries and keys", core.head), ("values", core.value)):
        size = size_of(atom.leaves())
        if size is None or not 1 <= size <= LARGEST_HEAD:
            return f"the head size of {name} is {'unknown' if size is None else size}, not one of 1 to {LARGEST_HEAD}"
    leaves = [leaf for atom in core.batch for leaf in atom.leaves()]
    last = len(leaves) - len(core.batch[-1].leaves()) if len(core.batch) > 1 else len(leaves)
    order = [last, *(each for each in range(len(leaves), 0, -1) if each != last)]
    best: _Choice | None = None
    for division in order:
        choice = _divided(core, leaves[:division], leaves[division:])
        if choice is not None and (best is None or choice.gain > best.gain):
            best = choice
    return best or "batch, heads, rows and columns don't lie in its operands as one layout can say"


def _divided(core: _Core, batch: Sequence[Atom], heads: Sequence[Atom]) -> _Choice | None:
    count = size_of(heads)
    rows, columns = core.rows.leaves(), core.columns.leaves()
    head, value = core.head.leaves(), core.value.leaves()
    if count is None:
        return None
    q = next(_laid_out(core.q, {"b": batch, "h": heads, "s": rows, "d": head}), None)
    y = next(_laid_out(core.y, {"b": batch, "h": heads, "s": rows, "d": value}, output=True), None)
    if q is None or y is None:
        return None
    best: _Choice | None = None
    for k in _laid_out(core.k, {"b": batch, "h": heads, "s": columns, "d": head}):
        for v in _laid_out(core.v, {"b": batch, "h": heads, "s": columns, "d": value}):
            groups = [_kv_heads(read, batch, heads) for read in (k[0], v[0])]
            if groups[0] is None or groups[0] != groups[1]:
                continue
            kv_heads = size_of(groups[0])
            if kv_heads is None:
                continue
            names = {"b": batch, "h": heads, "s": rows}
            choice = _Choice(q[:2], k[:2], v[:2], y[:2], count, kv_heads, names)
            if best is None or choice.gain > best.gain:
                best = choice
    return best


def _kv_heads(read: Read, batch: Sequence[Atom], heads: Sequence[Atom]) -> list[Atom] | None:
    """The heads that K or V has: all but the last ones that are repeated; None if others are."""
    repeated = {leaf for atom in read.repeated for leaf in atom.leaves()}
    if any(leaf in repeated and leaf.size != 1 for leaf in batch):
        return None
    kept = [leaf for leaf in heads if leaf not in repeated]
    return kept if list(heads[: len(kept)]) == kept else None


def _laid_out(found: Sequence[Read], names: Names, output: bool = False) -> Iterator[tuple[Read, Layout]]:
    """The reads that a layout says, farthest first."""
    for read in reversed(found):
        repeated = {leaf for atom in read.repeated for leaf in atom.leaves()}
        own = {name: [leaf for leaf in atoms if leaf not in repeated] for name, atoms in names.items()}
        layout = layout_of(read.axes, _lengths(read), own, output)
        if layout is None or (output and layout.shape is not None and restored_shape(_lengths(read)) is None):
            continue
        yield read, layout


def _lengths(read: Read) -> list[Length]:
    """The lengths of the tensor's axes."""
    return [length(axis) for axis in read.axes]


FUSE_ATTENTION = RulePass("fuse-attention", "attention that is written out becomes FusedAttention", fuse)
