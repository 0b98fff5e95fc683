"""What is pointwise before a ConvGrad becomes part of its program: the gradients of activations, residual sums, scales.

    p = Greater(y, 0); dz = Where(p, dy, 0); dX, dW, dB = ConvGrad(X, W, dz)
                                             becomes      dX, dW, dB = ConvGrad(X, W, dy, y)

Where the bias's gradient is wanted, dz is read anyway to be summed: made in the same launch it is written once and not
read again. A value that something else needs too becomes one more output. Without a bias's gradient nothing is gained,
and the operators stay.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.pointwise import NotPointwiseError
from ortplugin.graph.shapes import broadcast, equal, show
from ortplugin.ops.conv_grad.gradient import NAME
from ortplugin.passes.absorb.core import Absorber, Core, Joined, makers
from ortplugin.passes.absorb.members import Member, member_of
from ortplugin.passes.driver import RulePass


def _words(node: gs.Node, name: str) -> list[str]:
    return str(node.attrs.get(name, "")).split()


GRAD = Core((NAME,), "the gradients", own=lambda node: (len(_words(node, "operands")), len(_words(node, "gradients"))))


def _read(scope: Scope, node: gs.Node) -> Member | None:
    """The ConvGrad as a program whose first output is dZ, be it one of the node or not; None without a bias."""
    gradients = _words(node, "gradients")
    grad = GRAD.read(scope, node) if "dB" in gradients else None
    if grad is None:
        return None
    program, dz = grad.program, grad.outputs[0]
    if program.results[0] in program.parameters:
        dz = grad.inputs[program.parameters.index(program.results[0])]
    elif "dZ" in gradients:
        dz = node.outputs[gradients.index("dZ")]
    return replace(grad, outputs=(dz, *grad.outputs[1:]))


def _member(scope: Scope, grad: Member, maker: gs.Node) -> Member | None:
    """What makes one of the program's inputs, of the shape of dZ. Raises NotPointwiseError or ProgramError."""
    other = member_of(scope, maker)
    if other is None:
        return None
    if len(grad.inputs) != len(grad.node.inputs) - GRAD.own(grad.node)[0]:
        raise NotPointwiseError(f"{label(grad.node)} reads a value twice")
    whole = broadcast([scope.shape(tensor) for tensor in grad.inputs])
    for tensor in other.outputs:
        if not equal(scope.shape(tensor), whole):
            raise NotPointwiseError(f"'{tensor.name}' is not known to have the shape of dZ, {show(whole)}")
    return other


def _results(scope: Scope, grad: Member, other: Member) -> list[gs.Tensor]:
    nodes = [grad.node, other.node]
    return [*grad.outputs, *(t for t in other.outputs if t is not grad.outputs[0] and scope.used_beyond(t, nodes))]


def _make(scope: Scope, joined: Joined) -> tuple[gs.Node, list[gs.Tensor]]:
    """The node, and its outputs with one name for dZ, which it may have given out and `other` too."""
    grad, other = joined.first, joined.other
    node, (dz, *others) = grad.node, joined.results
    named = dict(zip(_words(node, "gradients"), node.outputs, strict=False))
    if any(dz is each for each in other.outputs) and scope.used_beyond(dz, [node, other.node]):
        # All that others read of what is replaced needs a place among the outputs; dZ has one alone.
        kept, twin = dz, named.get("dZ")
        if twin is not None and scope.is_output(twin):
            kept, twin = twin, dz
        if twin is not None and scope.is_output(twin):
            raise NotPointwiseError(f"'{kept.name}' and '{twin.name}', one value, are both graph outputs")
        named["dZ"] = kept
        if twin is not None:
            scope.substitute(twin, kept)
    new = GRAD.node_of(grad, joined.program, joined.inputs)
    new.attrs["gradients"] = " ".join(named)
    return new, [*named.values(), *others]


CYCLE = "'{tensor}', which {late} reads, depends on it"
FUSE_CONV_GRAD = RulePass(
    "fuse-conv-grad",
    "pointwise operators before a convolution's gradients become part of them",
    Absorber(GRAD, makers, _member, _results, _make, CYCLE, _read),
)
