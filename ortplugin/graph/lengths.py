"""Whether tensors surely have equal lengths where shape inference has no name for them: where the lengths come from.

Exporters of models for any batch reshape by what a Shape gives: [B, S, H, D] to Concat(Shape(x)[0], S, H * D). The way
back from an axis leads to the axis whose length it has, over operators that keep it and through such arithmetic. Two
axes have one length if their ways meet, or come to one name.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ortplugin.graph.certainty import is_generated
from ortplugin.graph.domains import DOMAIN
from ortplugin.graph.facts import Scope
from ortplugin.graph.pointwise import is_pointwise

FAR = 64  # steps back, at most

Place = tuple[gs.Tensor, int]  # a tensor and one of its axes, from the front; of a vector an element of it
KEEPING = ("FusedPointwise", "FusedLayerNorm")  # results have the shape that all inputs broadcast to


def same_lengths(scope: Scope, a: gs.Tensor, b: gs.Tensor) -> bool:
    """Whether both have surely the same shape."""
    rank = scope.rank(a)
    return rank is not None and rank == scope.rank(b) and all(same_length(scope, a, b, axis) for axis in range(rank))


def same_length(scope: Scope, a: gs.Tensor, b: gs.Tensor, axis: int) -> bool:
    """Whether two tensors of known rank have surely one length along an axis."""
    dims = [(scope.shape(each) or ())[axis] for each in (a, b)]
    if dims[0] is not None and dims[0] == dims[1]:
        return True
    if any(isinstance(dim, int) for dim in dims):
        return False
    return not {*_way(scope, (a, axis))}.isdisjoint(_way(scope, (b, axis)))


def _way(scope: Scope, place: Place) -> Iterator[tuple[int, int] | str]:
    """The places on the way back from an axis, and the names of its length."""
    at: Place | None = place
    for _ in range(FAR):
        if at is None:
            return
        yield id(at[0]), at[1]
        dim = (scope.shape(at[0]) or (None,) * (at[1] + 1))[at[1]]
        if isinstance(dim, str) and not is_generated(dim):
            yield dim
        at = _back(scope, *at)


def _back(scope: Scope, tensor: gs.Tensor, axis: int) -> Place | None:
    """The axis that has the length of another one, of the operator before it; None if that can't be told."""
    node, rank = scope.producer(tensor), scope.rank(tensor)
    if node is None or rank is None:
        return None
    op, x = scope.op(node), node.inputs[0] if node.inputs else tensor
    if op == "Reshape":
        return _element(scope, node.inputs[1], axis, x, bool(node.attrs.get("allowzero", 0)))
    if op == "Transpose":
        perm = node.attrs.get("perm") or list(range(rank))[::-1]
        return x, int(perm[axis])
    if op in ("Softmax", "LayerNormalization"):
        return x, axis
    if op in ("MatMul", f"{DOMAIN}::FusedMatMul"):
        return (x, axis) if axis < rank - 1 and scope.rank(x) == rank and scope.rank(node.inputs[1]) == 2 else None
    if is_pointwise(scope, node) or (node.domain == DOMAIN and node.op in KEEPING):
        return _only_long(scope, node, axis, rank)
    return None


def _only_long(scope: Scope, node: gs.Node, axis: int, rank: int) -> Place | None:
    """The axis of the only input that is not of length 1 there."""
    found: list[Place] = []
    for each in node.inputs:
        shape = scope.shape(each)
        if each.is_empty():
            continue
        if shape is None:
            return None
        own = axis - rank + len(shape)
        if own >= 0 and shape[own] != 1 and not any(each is tensor for tensor, _ in found):
            found.append((each, own))
    return found[0] if len(found) == 1 else None


def _element(scope: Scope, vector: gs.Tensor, index: int, reshaped: gs.Tensor, allowzero: bool) -> Place | None:
    """The axis whose length an element of a vector is, with which `reshaped` is reshaped; None if it is of none."""
    for _ in range(FAR):
        values, node = scope.constant(vector), scope.producer(vector)
        if values is not None and values.ndim == 1 and index < len(values):
            return (reshaped, index) if values[index] == 0 and not allowzero else None
        if node is None:
            return None
        op, x = scope.op(node), node.inputs[0]
        if op == "Shape":
            start = int(node.attrs.get("start", 0))
            return (x, index + start) if start >= 0 and index + start < (scope.rank(x) or 0) else None
        if op == "Concat":
            found = _part(scope, node, index)
            if found is None:
                return None
            vector, index = found
        elif op in ("Cast", "Identity", "Unsqueeze", "Squeeze") and scope.rank(x) in (0, 1):
            vector = x
        elif op == "Gather" and scope.rank(x) == 1:
            chosen = scope.constant(node.inputs[1])
            if chosen is None or index >= chosen.size or chosen.reshape(-1)[index] < 0:
                return None
            vector, index = x, int(chosen.reshape(-1)[index])
        elif op == "Slice" and scope.rank(x) == 1 and len(node.inputs) in (3, 4):
            first = scope.scalar(node.inputs[1])
            if first is None or first < 0:
                return None
            vector, index = x, index + int(first)
        else:
            return None
    return None


def _part(scope: Scope, node: gs.Node, index: int) -> Place | None:
    """The input of a Concat of vectors that an element comes from, and its place there."""
    for each in node.inputs:
        shape = scope.shape(each)
        if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
            return None
        if index < shape[0]:
            return each, index
        index -= shape[0]
    return None
