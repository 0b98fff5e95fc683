"""Pointwise operators that make what a FusedLayerNorm normalises are drawn into it: residual and bias adds, Casts, ...

    s = Add(x, residual); y = FusedLayerNorm(s)      becomes      y, s = FusedLayerNorm(x, residual)

where s is an output only if something else needs it. That is sound if s surely has the shape of y, and if nothing else
that the norm reads depends on s.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.pointwise import NotPointwiseError, is_pointwise
from ortplugin.graph.shapes import Shape, show
from ortplugin.passes.absorb.core import Absorber
from ortplugin.passes.absorb.members import Member, write_member
from ortplugin.passes.conditions import unknown_rank
from ortplugin.passes.driver import RulePass
from ortplugin.passes.norm.fused import DTYPES, NORM, joined


def _makers(scope: Scope, norm: Member) -> Iterator[gs.Node]:
    """Who makes what is normalised, and Casts of what else the norm reads.

    What is smaller than the normalised value is cheaper computed once, except for a Cast of its own.
    """
    prologue = norm.program.prologue
    for parameter, tensor in zip(norm.program.parameters, norm.inputs, strict=True):
        maker = scope.producer(tensor)
        if maker is None or not is_pointwise(scope, maker):
            continue
        whole = parameter.name in prologue and not _surely_smaller(scope.shape(tensor), scope.shape(norm.outputs[0]))
        if whole or (scope.op(maker) == "Cast" and not scope.used_beyond(tensor, [norm.node])):
            yield maker


def _member(scope: Scope, norm: Member, maker: gs.Node) -> Member:
    """What makes one of the norm's inputs, as a program. Raises NotPointwiseError or ProgramError."""
    y, tensor = norm.outputs[0], maker.outputs[0]
    for each in maker.inputs:
        reason = None if each.is_empty() else unknown_rank(scope, each)
        if reason:
            raise NotPointwiseError(reason)
    names = {id(t): parameter.name for t, parameter in zip(norm.inputs, norm.program.parameters, strict=True)}
    kept = scope.used_beyond(tensor, [norm.node])
    normalised = norm.program.core.names if norm.program.core else ()
    if kept and names.get(id(tensor)) not in normalised and not scope.same_shape(tensor, y):
        shapes = f"{show(scope.shape(tensor))} is not surely that of the norm, {show(scope.shape(y))}"
        raise NotPointwiseError(f"{kept}, and its shape {shapes}")
    # Names for what it reads: its first large input inherits that of what it makes.
    large = [not _surely_smaller(scope.shape(each), scope.shape(y)) for each in maker.inputs]
    first = large.index(True) if True in large else 0
    small = {"Add": "bias", "Sub": "bias", "Mul": "scale", "Div": "scale"}.get(scope.op(maker), "operand")
    hints = ["residual" if is_large else small for is_large in large]
    hints[first] = names.get(id(tensor), small)
    hints = [names.get(id(each), hint) for each, hint in zip(maker.inputs, hints, strict=True)]
    return write_member(scope, maker, hints, DTYPES)


def _results(scope: Scope, norm: Member, maker: Member) -> list[gs.Tensor]:
    """What the norm gives out, and what else something needs."""
    kept = scope.used_beyond(maker.outputs[0], [norm.node])
    return [*norm.outputs, *(maker.outputs if kept else ())]


def _surely_smaller(shape: Shape | None, whole: Shape | None) -> bool:
    """Whether a tensor of `shape` has surely fewer elements than one of the shape `whole` that it broadcasts to."""
    if shape is None or whole is None:
        return False
    # A model's own value_info may contradict itself: a rank that is larger is no error here, and no smaller tensor.
    if len(shape) != len(whole):
        return len(shape) < len(whole)
    return any(a == 1 and b != 1 for a, b in zip(shape, whole, strict=True))


CYCLE = "{kept}, and '{tensor}', which the norm also reads, depends on it"
NORM_PROLOGUE = RulePass(
    name="norm-prologue",
    summary="residual and bias adds, Casts and other pointwise operators before a norm become part of it",
    rule=Absorber(NORM, _makers, _member, _results, joined, CYCLE),
)
