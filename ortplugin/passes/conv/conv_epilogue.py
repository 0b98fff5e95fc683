"""Pointwise operators after a convolution become its epilogue: activations, scales, residual sums, FusedPointwise.

    c = FusedConv(x, w, bias); s = Add(c, r); y = Relu(s)      becomes      y = FusedConv(x, w, bias, r)

What is drawn in is a chain (chain.py) that leaves one value for the others. Where two convolutions meet in an Add,
the later one takes it, which then can read the earlier one's result.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope, scopes
from ortplugin.graph.labels import label
from ortplugin.passes.base import Change, NearMiss, PassResult
from ortplugin.passes.conv.chain import conv_chain, flat_of
from ortplugin.passes.conv.fused import CONV, is_fused_conv
from ortplugin.passes.driver import Missed
from ortplugin.passes.emit import integers
from ortplugin.passes.members import Member, compose


class ConvEpilogue:
    """The pass; see the module."""

    name = "conv-epilogue"
    summary = "activations, scales, residual sums and other pointwise operators after a FusedConv become part of it"

    def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
        """Draws into each convolution of the graph and its bodies what it can; at most `limit` of them change."""
        changes: list[Change] = []
        misses: list[Missed] = []
        for scope in scopes(graph):
            while True:  # the near misses are the last sweep's, which changes nothing
                before, missed = len(changes), []
                for node in [each for each in reversed(scope.slots) if each is not None and is_fused_conv(scope, each)]:
                    if limit is not None and len(changes) >= limit:
                        break
                    members, outputs, reasons = conv_chain(scope, node)
                    missed += reasons
                    if len(members) > 1:
                        changes.append(self._draw(scope, members, outputs))
                if len(changes) == before or (limit is not None and len(changes) >= limit):
                    misses += missed
                    break
        found = dict.fromkeys(NearMiss(self.name, each.node, each.reason) for each in misses)
        return PassResult(tuple(changes), tuple(found))

    def _draw(self, scope: Scope, members: list[Member], outputs: list[gs.Tensor]) -> Change:
        conv = members[0].node
        nodes = [member.node for member in members]
        labels = tuple(label(node) for node in nodes)
        program, inputs = compose(members, outputs)
        assert inputs[0] is members[0].inputs[0]  # the convolution's value
        flat = flat_of(scope, members)
        made = [_pixels(scope, conv, tensor) if id(tensor) in flat else tensor for tensor in outputs]
        new = CONV.node_of(members[0], program, inputs)
        scope.replace(nodes, new, made)
        for pixels, tensor in zip(made, outputs, strict=True):
            if pixels is not tensor:
                view = [pixels, integers(scope, [0, int(pixels.shape[-1])], f"{tensor.name}_shape")]
                scope.insert_after(gs.Node("Reshape", scope.unique(f"{tensor.name}/Reshape"), {}, view, [tensor]), new)
        return Change(self.name, labels, label(new))


def _pixels(scope: Scope, conv: gs.Node, tensor: gs.Tensor) -> gs.Variable:
    """What the convolution makes instead of [N, M]: [N, 1, .., M]."""
    return gs.Variable(scope.unique(f"{tensor.name}_nhwc"), tensor.dtype, scope.shape(conv.outputs[0]))


CONV_EPILOGUE = ConvEpilogue()
