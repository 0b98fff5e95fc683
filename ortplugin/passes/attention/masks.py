"""Masks as FusedAttention takes them: causal and window where they are constant, one operand for all that is left.

A constant that leaves each row a score as it is and puts -9e3 or less on others is a selection: exp underflows to 0
beside the score that stays, so -inf says the same. In a row that is masked whole a finite number says something else:
all its scores give way to the number, and the weights are equal. In float16, x + -65504 is -65504 for |x| < 16, while
FusedAttention adds in float32. There LOWEST does it: x + LOWEST is LOWEST for every score. So masks that are
filled in, or Where(mask, 0, -65504) in float16, become Where(mask, 0, LOWEST) in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.lengths import ONE, Length, dims, product
from ortplugin.graph.shapes import broadcast
from ortplugin.passes.attention.axes import Atom, flat
from ortplugin.passes.attention.scores import LARGE_NEGATIVE, Mask
from ortplugin.passes.emit import emit, integers
from ortplugin.program import NUMPY_DTYPES

LOWEST = -3e38  # float32 holds it
ABSORBING = -3e4  # in float16, a score beneath 8 that is added to such a number is lost
ELEMENTS = 1 << 23  # of constant masks that are looked at, and that one may have once it is repeated for each window

Array = npt.NDArray[Any]
Names = Mapping[str, Sequence[Atom]]  # b, h, s, t


@dataclass(frozen=True)
class Part:
    """A mask of rank 4: a constant, or a tensor and how it gets there."""

    mask: Mask
    values: Array | None = None
    expanded: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Masking:
    """What masks do."""

    causal: str = "none"
    window: int = 0
    parts: tuple[Part, ...] = ()
    """What the attributes don't say: their sum."""


def plan_masks(scope: Scope, masks: Sequence[Mask], names: Names) -> Masking | str:
    """The masks without any edit, or why they are none that FusedAttention takes.

    A conjunction of a constant and another mask, such as a triangle and a padding, is two masks if that leaves one
    operand: all that is false is -inf.
    """
    read = [_selecting(scope, mask) for mask in masks]
    divided = [part for mask in read for part in _conjuncts(scope, mask)]
    if len(divided) > len(read):
        masking = _planned(scope, divided, names)
        if isinstance(masking, Masking) and len(masking.parts) <= len(read):
            return masking
    return _planned(scope, read, names)


def _planned(scope: Scope, masks: Sequence[Mask], names: Names) -> Masking | str:
    parts: list[Part] = []
    for mask in masks:
        part = _part(scope, mask, names)
        if isinstance(part, str):
            return part
        parts.append(part)
    constant = [part for part in parts if part.values is not None]
    rest = [part for part in parts if part.values is None]
    if not constant:
        return Masking(parts=tuple(rest))
    total = constant[0].values
    for part in constant[1:]:
        total = total + part.values  # type: ignore[operator]
    assert total is not None
    total = _without_repeats(total)
    selected = _selection(total)
    if selected is None:
        return Masking(parts=(Part(constant[0].mask, total), *rest))
    if selected.all():
        return Masking(parts=tuple(rest))
    causal = _causal(selected)
    if causal is not None:
        return Masking(*causal, tuple(rest))
    return Masking(parts=(Part(constant[0].mask, selected), *rest))


def _selecting(scope: Scope, mask: Mask) -> Mask:
    """What is added as Where(bools, 0, number), if the number hides the score that it is added to, as these bools."""
    node = scope.producer(mask.tensor)
    if mask.filling is not None or node is None or scope.op(node) != "Where":
        return mask
    condition = scope.constant(node.inputs[0], ELEMENTS)
    if condition is not None and (condition.all() or not condition.any()):
        return _selecting(scope, Mask(node.inputs[1 if condition.all() else 2], mask.axes))
    hides = {"float16": ABSORBING}.get(scope.dtype(mask.tensor) or "", LOWEST / 100)
    for index, kept in ((2, True), (1, False)):
        filling = scope.scalar(node.inputs[index])
        if filling is not None and filling <= hides and scope.scalar(node.inputs[3 - index]) == 0:
            return Mask(node.inputs[0], mask.axes, filling, kept)
    return mask


def _without_repeats(values: Array) -> Array:
    """The values with length 1 along axes along which they are the same."""
    for axis in range(values.ndim):
        first = values.take([0], axis) if values.shape[axis] > 1 else values
        if first is not values and (values == first).all():
            values = first
    return values


def _conjuncts(scope: Scope, mask: Mask) -> list[Mask]:
    """The bools of an And with a constant, each on its own, where false is -inf."""
    node = scope.producer(mask.tensor)
    if mask.filling != -np.inf or not mask.kept or node is None or scope.op(node) != "And":
        return [mask]
    if not any(scope.is_constant(each) for each in node.inputs):
        return [mask]
    return [Mask(each, mask.axes, mask.filling, True) for each in node.inputs]


def _part(scope: Scope, mask: Mask, names: Names) -> Part | str:
    """The mask brought to rank 4."""
    given = dims(scope, mask.tensor)
    order = [id(leaf) for name in "bhst" for leaf in names[name] if leaf.size != ONE]
    terms = flat(mask.axes)
    if given is None or terms is None or len(given) > len(mask.axes):
        return f"the rank of the mask '{mask.tensor.name}' is unknown"
    if [id(term.atom) for term in terms if term.size != ONE] != order:
        return f"the axes of the scores to which '{mask.tensor.name}' is added are not batch, heads, rows and columns"
    aligned: list[Length] = [*[ONE] * (len(mask.axes) - len(given)), *given]
    present = {
        id(term.atom)
        for axis, dim in zip(mask.axes, aligned, strict=True)
        if dim != ONE
        for term in flat((axis,)) or ()
    }
    sizes, final, mixed = [], [], False
    for name in "bhst":
        leaves = [leaf for leaf in names[name] if leaf.size != ONE]
        own = [leaf for leaf in leaves if id(leaf) in present]
        mixed |= bool(own) and len(own) != len(leaves)
        final.append(_product(leaves) if own else 1)
    for axis, dim in zip(mask.axes, aligned, strict=True):
        leaves = [term.atom for term in axis if term.atom is not None]
        repeats = mixed and dim == ONE and any(_shares(names, leaf, present) for leaf in leaves)
        sizes.append(_product(leaves) if repeats else -1 if dim.known is None else dim.known)
    whole = [[id(term.atom) for term in flat((axis,)) or () if term.size != ONE] for axis in mask.axes]
    plain = len(mask.axes) == 4 and whole == [[id(x) for x in names[n] if x.size != ONE] for n in "bhst"]
    values = _values(scope, mask)
    if values is not None:
        values = values.reshape([1] * (len(mask.axes) - values.ndim) + list(values.shape))
        if mixed:
            if any(size < 0 for size in sizes) or np.prod(sizes, dtype=object) > ELEMENTS:
                return f"'{mask.tensor.name}' is repeated for each window, and is too large for that: {sizes}"
            values = np.broadcast_to(values, sizes)
        return Part(mask, values.reshape(final) if final.count(-1) <= 1 else values)
    if plain or (len(given) <= 2 and not mixed and len(mask.axes) - 2 >= 1 and _trailing(whole, names)):
        return Part(mask)
    if final.count(-1) > 1 or (mixed and any(size < 0 for size in sizes)):
        return f"the lengths of the mask '{mask.tensor.name}', which is viewed otherwise than the scores, are unknown"
    return Part(mask, None, tuple(sizes) if mixed else None, tuple(final))


def _trailing(whole: list[list[int]], names: Names) -> bool:
    return whole[-2:] == [[id(leaf) for leaf in names[name] if leaf.size != ONE] for name in "st"]


def _shares(names: Names, leaf: Atom, present: set[int]) -> bool:
    """Whether a part of the same batch or head is among those that index the mask."""
    return any(leaf in atoms and any(id(each) in present for each in atoms) for atoms in names.values())


def _product(leaves: Sequence[Atom]) -> int:
    known = product([leaf.size for leaf in leaves]).known
    return -1 if known is None else known


def _values(scope: Scope, mask: Mask) -> Array | None:
    """A constant mask as what is added, in float32."""
    array = scope.constant(mask.tensor, ELEMENTS)
    if array is None:
        return None
    if mask.filling is not None:
        filling = LOWEST if np.isfinite(mask.filling) else mask.filling
        selected: Array = np.where(array if mask.kept else ~array, np.float32(0), np.float32(filling))
        return selected
    wide: Array = array.astype(np.float32)
    if scope.dtype(mask.tensor) == "float16":
        wide = np.where(np.isfinite(wide) & (wide <= ABSORBING), np.float32(LOWEST), wide)
    return wide


def _selection(values: Array) -> Array | None:
    """Which scores stay, if the others surely get no weight; None for a bias and where a row is masked whole."""
    kept: Array = values == 0
    if not (kept | (values <= LARGE_NEGATIVE)).all() or not kept.any(axis=-1).all():
        return None
    return kept


def _causal(kept: Array) -> tuple[str, int] | None:
    """The attributes causal and window that select the same."""
    rows, columns = kept.shape[-2:]
    first = kept.reshape(-1, rows, columns)[0]
    if rows == 1 or not (kept == first).all():
        return None
    i, j = np.arange(rows)[:, None], np.arange(columns)[None, :]
    for name, offset in (("upper_left", 0), ("lower_right", columns - rows)):
        last = i + offset
        count = int(first[-1].sum())
        for window in (0, count):
            if (first == ((j <= last) & ((window == 0) | (j > last - window)))).all():
                return name, window
    return None


def emit_mask(scope: Scope, before: gs.Node, parts: Sequence[Part], dtype: str) -> gs.Tensor | None:
    """The operand, made by new nodes before `before`: bools, or numbers in the dtype of Q or float32."""
    if len(parts) == 1:
        return _emit_part(scope, before, parts[0], dtype, alone=True)
    tensors = [_emit_part(scope, before, part, dtype, alone=False) for part in parts]
    if not tensors:
        return None
    wide = any(scope.dtype(tensor) != dtype for tensor in tensors)
    result = _cast(scope, before, tensors[0]) if wide else tensors[0]
    for tensor in tensors[1:]:
        other = _cast(scope, before, tensor) if wide else tensor
        result = emit(scope, before, "Add", [result, other], broadcast([scope.shape(result), scope.shape(other)]))
    return result


def _cast(scope: Scope, before: gs.Node, tensor: gs.Tensor) -> gs.Tensor:
    """The tensor in float32."""
    if scope.dtype(tensor) == "float":
        return tensor
    result = emit(scope, before, "Cast", [tensor], scope.shape(tensor), to=onnx.TensorProto.FLOAT)
    result.dtype = np.dtype(np.float32)
    return result


def _emit_part(scope: Scope, before: gs.Node, part: Part, dtype: str, alone: bool) -> gs.Tensor:
    hint = f"{before.name or before.outputs[0].name}/mask"
    if part.values is not None:
        if part.values.dtype == np.bool_ and alone:
            return scope.add_constant(part.values, hint)
        values = part.values
        if values.dtype == np.bool_:
            values = np.where(values, np.float32(0), np.float32(-np.inf))
        finite = values[np.isfinite(values)]
        narrow = NUMPY_DTYPES[dtype] if not finite.size or np.abs(finite).max() < -ABSORBING else np.float32
        return scope.add_constant(values.astype(narrow), hint)
    same = part.expanded is None and part.shape is None
    if part.mask.filling is not None:
        tensor = _selected(scope, before, part.mask, alone, same)
    else:
        tensor = _absorbing(scope, before, part.mask.tensor, same)
    if part.expanded is not None:
        rank = len(part.expanded)
        missing = rank - (scope.rank(tensor) or 0)
        if missing:
            shape = [1] * missing + [d if isinstance(d, int) else -1 for d in scope.shape(tensor) or ()]
            tensor = emit(scope, before, "Reshape", [tensor, integers(scope, shape, "shape")], tuple(shape))
        tensor = emit(scope, before, "Expand", [tensor, integers(scope, part.expanded, "shape")], part.expanded)
    if part.shape is not None:
        known = tuple(None if dim < 0 else dim for dim in part.shape)
        tensor = emit(scope, before, "Reshape", [tensor, integers(scope, part.shape, "shape")], known)
    return tensor


def _selected(scope: Scope, before: gs.Node, mask: Mask, alone: bool, smaller: bool) -> gs.Tensor:
    """A mask of bools as it is, or with numbers in the place of the bools where false is not -inf.

    `smaller`: it may become one of another shape that broadcasts as well.
    """
    condition, kept = stripped(scope, mask.tensor, mask.kept) if smaller else (mask.tensor, mask.kept)
    assert mask.filling is not None
    if alone and mask.filling == -np.inf:
        return condition if kept else emit(scope, before, "Not", [condition], scope.shape(condition))
    filling = mask.filling if mask.filling == -np.inf else LOWEST
    return _where(scope, before, condition, None, filling, kept)


def _where(
    scope: Scope, before: gs.Node, condition: gs.Tensor, bias: gs.Tensor | None, filling: float, kept: bool
) -> gs.Tensor:
    """Where(condition, bias or 0, filling) in float32; the other way round unless `kept`."""
    other = scope.add_constant(np.array(filling, np.float32), "filling")
    stays = scope.add_constant(np.array(0, np.float32), "zero") if bias is None else _cast(scope, before, bias)
    operands = [stays, other] if kept else [other, stays]
    shape = broadcast([scope.shape(condition), scope.shape(stays)])
    result = emit(scope, before, "Where", [condition, *operands], shape)
    result.dtype = np.dtype(np.float32)
    return result


def _absorbing(scope: Scope, before: gs.Node, tensor: gs.Tensor, smaller: bool) -> gs.Tensor:
    """Where(mask, bias, -65504) in float16, in which it hides the score that it is added to, in float32."""
    node = scope.producer(tensor)
    if node is None or scope.op(node) != "Where" or scope.dtype(tensor) != "float16":
        return tensor
    for index, kept in ((2, True), (1, False)):
        filling, condition = scope.scalar(node.inputs[index]), node.inputs[0]
        if filling is not None and np.isfinite(filling) and filling <= ABSORBING:
            if smaller:
                condition, kept = stripped(scope, condition, kept)
            return _where(scope, before, condition, node.inputs[3 - index], LOWEST, kept)
    return tensor


def stripped(scope: Scope, condition: gs.Tensor, kept: bool) -> tuple[gs.Tensor, bool]:
    """The bools without the Not, and without the And with nothing but true, that make them."""
    node = scope.producer(condition)
    while node is not None and scope.op(node) in ("Not", "And"):
        if scope.op(node) == "Not":
            condition, kept = node.inputs[0], not kept
        else:
            true = [(scope.constant(each, ELEMENTS), other) for each, other in
                    zip(node.inputs, reversed(node.inputs), strict=True)]  # fmt: skip
            others = [other for values, other in true if values is not None and values.all()]
            if not others:
                break
            condition = others[0]
        node = scope.producer(condition)
    values = scope.constant(condition, ELEMENTS)
    smaller = None if values is None else _without_repeats(values)
    if smaller is not None and smaller is not values:
        condition = scope.add_constant(smaller, condition.name)
    return condition, kept
