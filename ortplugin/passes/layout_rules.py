"""How operators work with channels last: convolutions, pointwise ones, and those that name axes.

RULES is the table, by operator; layout_views.py and fuse_pool.py hold the rules of views, pools and Resize.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.pointwise import is_pointwise
from ortplugin.ops import DOMAIN
from ortplugin.passes.emit import integers
from ortplugin.passes.fuse_pool import POOL_RULES, over_all_pixels
from ortplugin.passes.fused_conv import OWN_INPUTS, is_channels_last, is_fused_conv
from ortplugin.passes.layout_plan import Layouts, Plan, Rule, axis_last, to_last
from ortplugin.passes.layout_views import VIEW_RULES

# Those of ONNX Runtime whose second input is a bias for the last axis.
BIASED = ("com.microsoft::BiasGelu", "com.microsoft::FastGelu", "com.microsoft::BiasAdd")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
              "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip


def rule_of(scope: Scope, node: gs.Node) -> Plan | None:
    """How the node works with channels last; None if it does not."""
    if is_fused_conv(scope, node):
        return convolution(scope, node)
    op = scope.op(node)
    if op == f"{DOMAIN}::FusedPointwise" or (is_pointwise(scope, node) and op not in BIASED):
        return pointwise(scope, node)
    rule = RULES.get(op)
    return None if rule is None else rule(scope, node)


def convolution(scope: Scope, node: gs.Node) -> Plan | None:
    """A convolution of ours: X and what is added to its result; the weights' axes are in the same order."""
    rank = scope.rank(node.inputs[0])
    operands = _operands(scope, node, rank, range(OWN_INPUTS, len(node.inputs)))
    if rank is None or operands is None or is_channels_last(node) or "kernel_shape" not in node.attrs:
        return None
    if scope.rank(node.inputs[1]) != rank:
        return None
    reads, others = operands

    def edit(layouts: Layouts, node: gs.Node) -> None:
        node.inputs[1] = layouts.weights(node.inputs[1], node)
        for index in others:
            node.inputs[index] = layouts.operand(node.inputs[index], rank, node)
        node.attrs["layout"] = "NHWC"

    return Plan((0, *reads), tuple(range(len(node.outputs))), edit)


def pointwise(scope: Scope, node: gs.Node) -> Plan | None:
    """What broadcasts its operands to one shape."""
    ranks = [scope.rank(tensor) for tensor in node.outputs if not tensor.is_empty()]
    rank = ranks[0] if ranks else None
    at = [
        index
        for index, tensor in enumerate(node.inputs)
        if not tensor.is_empty() and not _is_setting(scope, node, index)
    ]
    operands = _operands(scope, node, rank, at)
    if rank is None or rank < 3 or operands is None or not operands[0] or set(ranks) != {rank}:
        return None
    reads, others = operands

    def edit(layouts: Layouts, node: gs.Node) -> None:
        for index in others:
            node.inputs[index] = layouts.operand(node.inputs[index], rank, node)

    return Plan(reads, tuple(i for i, tensor in enumerate(node.outputs) if not tensor.is_empty()), edit)


def _is_setting(scope: Scope, node: gs.Node, index: int) -> bool:
    """Whether an input has no part in the result's shape: Dropout's ratio, the dtype of a CastLike."""
    return index > 0 and scope.op(node) in ("Dropout", "CastLike")


def _operands(
    scope: Scope, node: gs.Node, rank: int | None, indices: range | list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Those of the inputs that are variables of this rank, and the others; None if one is of unknown or higher rank."""
    reads: list[int] = []
    others: list[int] = []
    for index in indices:
        tensor = node.inputs[index]
        own = scope.rank(tensor)
        if own is None or rank is None or own > rank:
            return None
        (reads if own == rank and not scope.is_constant(tensor) else others).append(index)
    return tuple(reads), tuple(others)


def along_axis(default: int, inputs: int | None = None, least_opset: int = 0) -> Rule:
    """An operator with the attribute `axis`, all of whose first `inputs` inputs (None: all) have one rank."""

    def rule(scope: Scope, node: gs.Node) -> Plan | None:
        rank, axis = scope.rank(node.inputs[0]), int(node.attrs.get("axis", default))
        if rank is None or rank < 3 or scope.opset < least_opset or not -rank <= axis < rank:
            return None
        data = list(node.inputs[:inputs])
        makes = tuple(index for index, tensor in enumerate(node.outputs) if not tensor.is_empty())
        if any(scope.rank(tensor) != rank for tensor in (*data, *(node.outputs[index] for index in makes))):
            return None
        found = _operands(scope, node, rank, range(len(data)))
        if found is None:
            return None
        reads, constants = found

        def edit(layouts: Layouts, node: gs.Node) -> None:
            for index in constants:
                node.inputs[index] = layouts.weights(node.inputs[index], node)
            node.attrs["axis"] = axis_last(axis, rank)

        return Plan(reads, makes, edit)

    return rule


def index_of_maximum(scope: Scope, node: gs.Node) -> Plan | None:
    """ArgMax and ArgMin: one axis, which stays or goes."""
    rank, axis = scope.rank(node.inputs[0]), int(node.attrs.get("axis", 0))
    if rank is None or rank < 3 or not -rank <= axis < rank:
        return None
    keeps = bool(node.attrs.get("keepdims", 1))
    if not keeps and not _in_order(rank, [axis % rank]):
        return None

    def edit(layouts: Layouts, node: gs.Node) -> None:
        node.attrs["axis"] = axis_last(axis, rank)

    return Plan((0,), (0,) if keeps else (), edit)


def _in_order(rank: int, removed: list[int]) -> bool:
    """Whether the other axes are in the order that they had with channels first."""
    order = [axis for axis in to_last(rank) if axis not in removed]
    return order == sorted(order)


def reduction(scope: Scope, node: gs.Node) -> Plan | None:
    """A sum, mean, maximum, ... over given axes."""
    rank = scope.rank(node.inputs[0])
    as_input = len(node.inputs) > 1 and not node.inputs[1].is_empty()
    axes = scope.constant(node.inputs[1]) if as_input else node.attrs.get("axes")
    if rank is None or rank < 3 or axes is None or not len(axes):
        return None
    given = [int(axis) for axis in axes]
    if any(not -rank <= axis < rank for axis in given):
        return None
    keeps = bool(node.attrs.get("keepdims", 1))
    if not keeps and not _in_order(rank, [axis % rank for axis in given]):
        return None
    new = sorted(axis_last(axis, rank) for axis in given)

    def edit(layouts: Layouts, node: gs.Node) -> None:
        if as_input:
            node.inputs[1] = integers(scope, new, node.inputs[1].name)
        else:
            node.attrs["axes"] = new

    return Plan((0,), (0,) if keeps else (), edit)


def pool_or_reduction(scope: Scope, node: gs.Node) -> Plan | None:
    """A mean or maximum: over all pixels it is a pool."""
    return over_all_pixels(scope, node) or reduction(scope, node)


def pad(scope: Scope, node: gs.Node) -> Plan | None:
    """Pad with constant pads, of all axes or of given ones."""
    rank, pads = scope.rank(node.inputs[0]), scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    with_axes = len(node.inputs) > 3 and not node.inputs[3].is_empty()
    axes = scope.constant(node.inputs[3]) if with_axes else None
    if rank is None or rank < 3 or pads is None or (with_axes and axes is None):
        return None
    if axes is None and pads.size != 2 * rank:
        return None
    begin, end = pads[: pads.size // 2], pads[pads.size // 2 :]

    def edit(layouts: Layouts, node: gs.Node) -> None:
        if axes is None:
            order = to_last(rank)
            new = [int(part[axis]) for part in (begin, end) for axis in order]
            node.inputs[1] = integers(scope, new, node.inputs[1].name)
        else:
            node.inputs[3] = integers(scope, [axis_last(int(axis), rank) for axis in axes], node.inputs[3].name)

    return Plan((0,), (0,), edit)


def part(scope: Scope, node: gs.Node) -> Plan | None:
    """Slice along given axes, or along the first ones."""
    rank, count = scope.rank(node.inputs[0]), (scope.shape(node.inputs[1]) or (None,))[0]
    given = len(node.inputs) > 3 and not node.inputs[3].is_empty()
    axes = scope.constant(node.inputs[3]) if given else range(count) if isinstance(count, int) else None
    if rank is None or rank < 3 or axes is None:
        return None
    new = [axis_last(int(axis), rank) for axis in axes]

    def edit(layouts: Layouts, node: gs.Node) -> None:
        constant = integers(scope, new, f"{node.outputs[0].name}_axes")
        if (
            scope.rank(node.inputs[1]) == 1
            and node.inputs[1].dtype is not None
            and node.inputs[1].dtype != constant.dtype
        ):
            constant = scope.add_constant(constant.values.astype(node.inputs[1].dtype), constant.name)
        if len(node.inputs) > 3:
            node.inputs[3] = constant
        else:
            node.inputs.append(constant)

    return Plan((0,), (0,), edit)


RULES: dict[str, Rule] = {
    "Concat": along_axis(0),
    "Split": along_axis(0, inputs=1),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), along_axis(-1, least_opset=13)),
    "LpNormalization": along_axis(-1),
    **dict.fromkeys(("ArgMax", "ArgMin"), index_of_maximum),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(("ReduceMean", "ReduceMax"), pool_or_reduction),
    "Pad": pad,
    "Slice": part,
    **VIEW_RULES,
    **POOL_RULES,
}
