"""What is pointwise before a ConvGrad becomes part of its program: the gradients of activations, residual sums, scales.

    p = Greater(y, 0); dz = Where(p, dy, 0); dX, dW, dB = ConvGrad(X, W, dz)
                                             becomes      dX, dW, dB = ConvGrad(X, W, dy, y)

Where the bias's gradient is wanted, dz is read anyway to be summed: made in the same launch it is written once and not
read again. A value that something else needs too becomes one more output. Without a bias's gradient nothing is gained,
and the operators stay.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ortplugin.graph.domains import DOMAIN
from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.pointwise import NotPointwiseError
from ortplugin.graph.shapes import broadcast, equal, show
from ortplugin.ops.conv_grad.gradient import NAME
from ortplugin.passes.absorb.members import Member, compose, member_of
from ortplugin.passes.driver import Applied, Missed, Outcome, RulePass
from ortplugin.program import ProgramError, parse


def fuse(scope: Scope, node: gs.Node) -> Outcome:
    """Draws one operator into a ConvGrad."""
    if scope.op(node) != f"{DOMAIN}::{NAME}" or "dB" not in _words(node, "gradients"):
        return None
    grad = _member(node)
    if grad is None:
        return None
    misses = []
    for tensor in grad.inputs:
        maker = scope.producer(tensor)
        if maker is None:
            continue
        try:
            other = member_of(scope, maker, frozenset())
            if other is not None:
                return _join(scope, grad, other)
        except (NotPointwiseError, ProgramError) as reason:
            misses.append(Missed(label(maker), str(reason)))
    return misses


def _words(node: gs.Node, name: str) -> list[str]:
    return str(node.attrs.get(name, "")).split()


def _member(node: gs.Node) -> Member | None:
    """The ConvGrad as a program whose first output is dZ, be it one of the node or not; None if it is invalid."""
    try:
        program = parse(str(node.attrs.get("program", "")))
    except ProgramError:
        return None  # the runtime names the fault
    first, gradients = len(_words(node, "operands")), _words(node, "gradients")
    params = list(node.inputs[first:])
    if len(params) != len(program.parameters) or len(node.outputs) != len(gradients) + len(program.results) - 1:
        return None
    if program.results[0] in program.parameters:
        dz = params[program.parameters.index(program.results[0])]
    elif "dZ" in gradients:
        dz = node.outputs[gradients.index("dZ")]
    else:
        dz = gs.Variable("", None if params[0].dtype is None else np.dtype(params[0].dtype))
    return Member(node, program, tuple(params), (dz, *node.outputs[len(gradients) :]))


def _join(scope: Scope, grad: Member, other: Member) -> Applied:
    """Makes the two one. Raises NotPointwiseError or ProgramError where that would make a cycle or break a limit."""
    node, nodes = grad.node, [grad.node, other.node]
    if len(set(map(id, grad.inputs))) != len(grad.inputs):
        raise NotPointwiseError(f"{label(node)} reads a value twice")
    whole = broadcast([scope.shape(tensor) for tensor in grad.inputs])
    for tensor in other.outputs:
        if not equal(scope.shape(tensor), whole):
            raise NotPointwiseError(f"'{tensor.name}' is not known to have the shape of dZ, {show(whole)}")
    for tensor in node.inputs:
        if scope.producer(tensor) is not other.node and scope.depends_on(tensor, other.node):
            raise NotPointwiseError(f"'{tensor.name}', which {label(node)} reads, depends on it")
    gradients = _words(node, "gradients")
    dz, named = grad.outputs[0], dict(zip(gradients, node.outputs, strict=False))
    twin: gs.Tensor | None = None
    kept = dz
    if any(dz is each for each in other.outputs) and scope.used_beyond(dz, nodes):
        # All that others read of what is replaced needs a place among the outputs; dZ has one alone.
        twin = named.get("dZ")
        if twin is not None and scope.is_output(twin):
            kept, twin = twin, dz
        if twin is not None and scope.is_output(twin):
            raise NotPointwiseError(f"'{kept.name}' and '{twin.name}', one value, are both graph outputs")
        named["dZ"] = kept
    extra = [each for each in other.outputs if each is not dz and scope.used_beyond(each, nodes)]
    program, inputs = compose([other, grad], [dz, *grad.outputs[1:], *extra])
    operands = node.inputs[: len(_words(node, "operands"))]
    attributes = {**node.attrs, "program": str(program), "gradients": " ".join(named)}
    new = gs.Node(NAME, node.name, attributes, [*operands, *inputs], [], DOMAIN)
    labels = (label(other.node), label(node))
    scope.replace([other.node, node], new, [*named.values(), *grad.outputs[1:], *extra])
    if twin is not None:
        scope.substitute(twin, kept)
    return Applied(labels, new)


FUSE_CONV_GRAD = RulePass(
    "fuse-conv-grad", "pointwise operators before a convolution's gradients become part of them", fuse
)
