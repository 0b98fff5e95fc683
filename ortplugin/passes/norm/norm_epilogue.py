"""Pointwise operators that read a FusedLayerNorm's output are drawn into it: gamma, beta, Casts, activations, adds.

    n = FusedLayerNorm(x); y = Mul(n, gamma)         becomes      y = FusedLayerNorm(x, gamma)

n remains an output if something else needs it. That is sound if y surely has the shape of n, and if nothing that the
operator reads besides depends on the norm.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.pointwise import is_pointwise
from ortplugin.passes.absorb.core import Absorber, check_operand
from ortplugin.passes.absorb.members import Member, write_member
from ortplugin.passes.driver import RulePass
from ortplugin.passes.norm.fused import DTYPES, NORM, joined

HINTS = {"Mul": "gamma", "Add": "beta", "Sub": "beta", "PRelu": "slope", "Where": "condition"}


def _values(norm: Member) -> list[gs.Tensor]:
    """The results that depend on the norm."""
    results = zip(norm.program.results, norm.outputs, strict=True)
    return [tensor for result, tensor in results if result.name in norm.program.epilogue]


def _readers(scope: Scope, norm: Member) -> Iterator[gs.Node]:
    """Who reads a value of the norm."""
    found = {id(node): node for tensor in _values(norm) for node in scope.consumers(tensor)}
    yield from (node for node in found.values() if is_pointwise(scope, node))


def _member(scope: Scope, norm: Member, reader: gs.Node) -> Member:
    """What reads the norm's value, as a program. Raises NotPointwiseError or ProgramError."""
    made = {id(tensor) for tensor in norm.outputs}
    y = next(tensor for tensor in _values(norm) if any(tensor is each for each in reader.inputs))
    for each in reader.inputs:
        if not each.is_empty() and id(each) not in made:
            fits = scope.shape(each) == () or scope.broadcasts_to(each, y)
            check_operand(NORM, scope, norm.node, each, y, fits)
    hint = HINTS.get(scope.op(reader), "operand")
    hints = ["residual" if hint == "beta" and scope.same_shape(each, y) else hint for each in reader.inputs]
    return write_member(scope, reader, hints, DTYPES)


def _results(scope: Scope, norm: Member, reader: Member) -> list[gs.Tensor]:
    """What something needs of the norm; what is new takes the place of the first that nobody else reads."""
    made = reader.outputs[0]
    found = [each if scope.used_beyond(each, [reader.node]) else made for each in norm.outputs]
    return list({id(each): each for each in (*found, made)}.values())


NORM_EPILOGUE = RulePass(
    name="norm-epilogue",
    summary="gamma, beta, Casts, activations and other pointwise operators after a norm become part of it",
    rule=Absorber(NORM, _readers, _member, _results, joined),
)
