"""Rotary position embeddings of Q and K become part of the attention that reads them:

    FusedAttention(rotated(Q), rotated(K), V)     becomes     FusedAttention(Q, K, V, cos, sin), rotary = "half"

rotations.py knows how they are written, tables.py what cos and sin must be. Q and K are then read from the tensors of
which they are views, as in fuse_attention.py, so that the products before them may become one. The node rounds what is
rotated once, the operators that it replaces after each of them. A cache of keys is rotated already: then Q stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.lengths import Length, dims
from ortplugin.graph.shapes import show
from ortplugin.ops.attention import layout as layouts
from ortplugin.passes.attention.axes import Atom, Axis, Term, length, whole
from ortplugin.passes.attention.layouts import layout_of
from ortplugin.passes.attention.node import is_attention
from ortplugin.passes.attention.rotations import Rotation, rotation_of
from ortplugin.passes.attention.tables import Place, make_tables
from ortplugin.passes.attention.views import reads
from ortplugin.passes.driver import Applied, Missed, Outcome, RulePass

Sizes = dict[str, Length]


@dataclass(frozen=True)
class _Operand:
    """Q or K of a node: its layout, the sizes of its b, h, s and d, and its rotation."""

    index: int
    layout: layouts.Layout
    sizes: Sizes
    rotation: Rotation

    @property
    def place(self) -> Place:
        """Where batch and sequence lie."""
        axes = {axis[0].name: number for number, axis in enumerate(self.layout.axes) if len(axis) == 1}
        return Place(len(self.layout.axes), axes.get("b"), axes.get("s"), self.sizes["b"], self.sizes["s"])


def draw_in(scope: Scope, node: gs.Node) -> Outcome:
    """Lets one attention rotate Q and K."""
    if not is_attention(scope, node) or "rotary" in node.attrs:
        return None
    rotations = [rotation_of(scope, tensor) for tensor in node.inputs[:2]]
    found = [_operand(scope, node, index, each) for index, each in enumerate(rotations) if each is not None]
    if not found:
        return None
    if len(found) == 1:
        other = node.inputs[0 if rotations[0] is None else 1]
        made = scope.producer(other)
        by = f", made by {label(made)}, is" if made is not None else " is"
        return Missed(label(node), f"only one of Q and K is rotated: '{other.name}'{by} not, as a cache of keys is not")
    operands = [each for each in found if isinstance(each, _Operand)]
    reason = next((each for each in found if isinstance(each, str)), None) or _unlike(scope, *operands)
    for each in operands:
        reason = reason or scope.used_beyond(node.inputs[each.index], [node]) or None
    if reason:
        return Missed(label(node), reason)
    tables = make_tables(scope, node, operands[0].rotation, operands[0].place)
    if isinstance(tables, str):
        return Missed(label(node), tables)
    old = {id(each): each for operand in operands for each in operand.rotation.nodes}
    for operand in operands:
        old |= {id(each): each for each in _read_before(scope, node, operand)}
    node.inputs.extend(tables)
    node.attrs["rotary"] = "interleaved" if operands[0].rotation.interleaved else "half"
    dtype = scope.dtype(tables[0])
    if dtype != node.attrs["qkv_dtype"]:
        node.attrs["rotary_dtype"] = dtype
    labels = tuple(label(each) for each in old.values())
    _remove_unused(scope, old)
    return Applied(labels, node)


def _operand(scope: Scope, node: gs.Node, index: int, rotation: Rotation) -> _Operand | str:
    """Q or K; or why its rotation is not one along the heads."""
    name, heads = (("q_layout", "heads"), ("k_layout", "kv_heads"))[index]
    tensor = node.inputs[index]
    layout, given = layouts.parse(str(node.attrs.get(name, layouts.STANDARD))), dims(scope, tensor)
    sizes = None if given is None else _sizes(layout, given, int(node.attrs[heads]))
    if sizes is None:
        return f"'{tensor.name}' has sizes that are not known"
    if dims(scope, rotation.x) != given:
        return f"'{rotation.x.name}', which is rotated, is not known to have the shape of the result"
    last, operator = layout.axes[-1], rotation.operator
    alone = [atom.name for atom in last] == ["d"]
    if operator is not None and not alone and len(layout.axes) == 3:
        count = int(operator.attrs.get("num_heads", 0))
        width = (given or [])[-1]
        alone = last[-1].name == "d" and bool(count) and width == sizes["d"].times(Length(count))
    if not alone or (operator is not None and layout.order not in ("bhsd", "bshd")):
        return f"'{tensor.name}', which lies as '{layout}', is not rotated along each head"
    if operator is not None and (len(layout.axes) == 4) != (layout.order == "bhsd"):
        return f"'{tensor.name}', which lies as '{layout}', is not as {label(operator)} takes it"
    if sizes["d"].known is None or 2 * rotation.pairs > sizes["d"].number:
        return f"{2 * rotation.pairs} elements of a head of {sizes['d'].known} are rotated"
    rotated = 0 if operator is None else int(operator.attrs.get("rotary_embedding_dim", 0))
    if operator is not None and (rotated or sizes["d"].number) != 2 * rotation.pairs:
        return f"{label(operator)} rotates {rotated or sizes['d'].number} elements by {rotation.pairs} columns"
    if scope.dtype(rotation.x) != node.attrs["qkv_dtype"]:
        return f"'{rotation.x.name}', which is rotated, is {scope.dtype(rotation.x)}, not {node.attrs['dtype']}"
    return _Operand(index, layout, sizes, rotation)


def _sizes(layout: layouts.Layout, given: list[Length], heads: int) -> Sizes | None:
    """The sizes of b, h, s and d of a tensor of these lengths, if they are known."""
    found = {"h": Length(heads)}
    for axis, of_axis in zip(layout.axes, given, strict=True):
        rest: Length | None = of_axis
        for atom in axis:
            rest = None if rest is None else rest.over(Length(atom.length(heads) or 1))
        name = next((atom.name for atom in axis if atom.name in "bsd"), None)
        if rest is None:
            return None
        if name is not None:
            found[name] = rest
    return found


def _unlike(scope: Scope, q: _Operand, k: _Operand) -> str | None:
    """Why Q and K are not rotated alike."""
    a, b = q.rotation, k.rotation
    if q.sizes["s"] != k.sizes["s"]:
        return "there are not known to be as many keys as queries"
    if (a.interleaved, a.pairs, a.is_doubled) != (b.interleaved, b.pairs, b.is_doubled):
        return "Q and K are rotated in different ways"
    tensors = [(a.cos, b.cos), (a.sin, b.sin)]
    if a.operator is not None and b.operator is not None:
        tensors += [*zip(a.operator.inputs[1:], b.operator.inputs[1:], strict=False)]
    for one, other in tensors:
        if one is not other and not _equal(scope, one, other):
            return f"Q and K are rotated by different tables, '{one.name}' and '{other.name}'"
    table = scope.dtype(a.cos)
    if table != scope.dtype(a.sin) or table not in (scope.dtype(a.x), "float"):
        return f"the tables are {table} and {scope.dtype(a.sin)}, what is rotated is {scope.dtype(a.x)}"
    shapes = [scope.shape(each) for each in (a.cos, a.sin)]
    return None if shapes[0] == shapes[1] else f"the tables have the shapes {show(shapes[0])} and {show(shapes[1])}"


def _equal(scope: Scope, one: gs.Tensor, other: gs.Tensor) -> bool:
    values = [scope.constant(each, 1 << 26) for each in (one, other)]
    if values[0] is None or values[1] is None:
        return False
    return values[0].shape == values[1].shape and values[0].tobytes() == values[1].tobytes()


def _read_before(scope: Scope, node: gs.Node, operand: _Operand) -> list[gs.Node]:
    """Lets the node read what was rotated, or the farthest tensor that it is a view of; views left out."""
    name, heads = (("q_layout", "heads"), ("k_layout", "kv_heads"))[operand.index]
    atoms = {letter: Atom(size) for letter, size in operand.sizes.items()}
    count = int(node.attrs[heads])
    axes: list[Axis] = []
    for axis in operand.layout.axes:
        terms = []
        for each in axis:
            total = Length(each.total or count)
            if each.name == "/":
                terms.append(Term(None, each.first, total))
            else:
                terms.append(Term(atoms["h"], each.first, total) if each.name == "h" else whole(atoms[each.name]))
        axes.append(tuple(terms))
    node.inputs[operand.index] = operand.rotation.x
    views = reads(scope, operand.rotation.x, tuple(axes), True)
    for read in reversed(views[1:]):
        names = {letter: atom.leaves() for letter, atom in atoms.items()}
        found = None if read.repeated else layout_of(read.axes, [length(axis) for axis in read.axes], names)
        if found is not None and found.shape is None and scope.dtype(read.tensor) == node.attrs["qkv_dtype"]:
            node.inputs[operand.index] = read.tensor
            node.attrs[name] = found.text
            node.attrs["scale"] = float(node.attrs.get("scale", 1.0)) * read.factor
            made = (scope.producer(each.tensor) for each in views[: read.depth])
            return [each for each in made if each is not None]
    return []


def _remove_unused(scope: Scope, nodes: dict[int, gs.Node]) -> None:
    """Takes those out that nothing reads any more."""
    for each in sorted(nodes.values(), key=lambda node: -scope.position[id(node)]):
        if not any(scope.used_beyond(tensor, []) for tensor in each.outputs):
            scope.remove(each)


ATTENTION_ROTARY = RulePass("attention-rotary", "rotary embeddings of Q and K become part of FusedAttention", draw_in)
