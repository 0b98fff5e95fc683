"""Pointwise operators after a convolution become its epilogue: activations, scales, residual sums, FusedPointwise.

    c = FusedConv(x, w, bias); s = Add(c, r); y = Relu(s)      becomes      y = FusedConv(x, w, bias, r)

What is drawn in is a set of operators that follow from the convolution's value, in the graph's order, as long as it
leaves one value for the others: HardSwish written as x * Clip(x + 3, 0, 6) / 6 reads the value twice, and only whole is
it one value again. Every result has the shape S of the convolution, so no operand may enlarge it; and what else an
operator reads must not depend on the convolution: a squeeze-excite's gate does. Where two convolutions meet in an Add,
the later one takes it, which then can read the earlier one's result.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope, scopes
from ortplugin.graph.labels import label
from ortplugin.graph.pointwise import NotPointwiseError
from ortplugin.graph.shapes import show
from ortplugin.passes.base import Change, NearMiss, PassResult
from ortplugin.passes.driver import Missed
from ortplugin.passes.fuse_pointwise import compose, member_of
from ortplugin.passes.fused_conv import OWN_INPUTS, conv_node, is_fused_conv, member_of_conv
from ortplugin.passes.pointwise_sets import Member
from ortplugin.program import FLOATING, MAX_PARAMETERS, MAX_STATEMENTS, ProgramError, fresh_name

FAR = 64  # operators that are looked at, at most, for a place where one value is left
DTYPES = (*FLOATING, "bool")  # of what an epilogue reads and makes


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
                    members, outputs, reasons = chain_of(scope, node)
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
        new = conv_node(conv.op, conv.name, conv.attrs, program, [*conv.inputs[:OWN_INPUTS], *inputs[1:]])
        scope.replace(nodes, new, outputs)
        return Change(self.name, labels, label(new))


def chain_of(scope: Scope, conv: gs.Node) -> tuple[list[Member], list[gs.Tensor], list[Missed]]:
    """The convolution and what it draws in, in order; what they make for others; why there is no more."""
    first = member_of_conv(scope, conv)
    if first is None:
        return [], [], []
    members, misses = [first], []
    made = {id(tensor) for tensor in conv.outputs}
    best, outputs = 1, _for_others(scope, members)
    allowed = max(1, len(outputs))
    queue: list[int] = []  # the places of what reads the chain's values; topological order, so makers come first
    seen: set[int] = set()

    def follow(tensors: tuple[gs.Tensor, ...]) -> None:
        for place in (scope.position[id(node)] for tensor in tensors for node in scope.consumers(tensor)):
            if place not in seen:
                seen.add(place)
                heapq.heappush(queue, place)

    follow(first.outputs)
    while queue and len(members) < FAR:
        node = scope.slots[heapq.heappop(queue)]
        assert node is not None
        try:
            member = _drawable(scope, node, conv, made)
        except (NotPointwiseError, ProgramError) as reason:
            misses.append(Missed(label(node), str(reason)))
            continue
        if member is None:
            continue
        members.append(member)
        made.update(id(tensor) for tensor in member.outputs)
        left = _for_others(scope, members)
        if 0 < len(left) <= allowed and _fits(members):
            best, outputs = len(members), left
        follow(member.outputs)
    if best < len(members):
        kept = [member.node for member in members[: best + 1]]
        used = next((u for each in members[:best] for t in each.outputs if (u := scope.used_beyond(t, kept))), "")
        misses.append(Missed(label(kept[-1]), used or "together with what is before it, it exceeds a program's limits"))
    return members[:best], outputs, misses


def _drawable(scope: Scope, node: gs.Node, conv: gs.Node, made: set[int]) -> Member | None:
    """The node as a member of the chain that makes the tensors of the ids `made`; None if it is not pointwise.

    Raises NotPointwiseError or ProgramError with the reason why it can't be one.
    """
    member = member_of(scope, node, frozenset())
    if member is None:
        return None
    whole = conv.outputs[0]
    names: dict[str, str] = {}
    for parameter, tensor in zip(member.program.parameters, member.inputs, strict=True):
        if id(tensor) in made:
            if parameter.name in member.rounded:
                raise NotPointwiseError(f"'{tensor.name}' has to be rounded to {parameter.dtype} before it")
            continue
        if not scope.broadcasts_to(tensor, whole):
            shapes = f"{show(scope.shape(tensor))} does not surely broadcast to {show(scope.shape(whole))}"
            raise NotPointwiseError(f"'{tensor.name}' of shape {shapes}")
        if scope.depends_on(tensor, conv):
            raise NotPointwiseError(f"'{tensor.name}', which it also reads, depends on the convolution")
        if scope.same_shape(tensor, whole):
            names[parameter.name] = fresh_name("residual", [*member.program.dtypes, *names.values()])
    program = member.program.renamed(names)
    for each in (*program.parameters, *program.results):
        if each.dtype not in DTYPES:
            raise NotPointwiseError(f"it has a value of {each.dtype}; an epilogue knows {', '.join(DTYPES)}")
    return replace(member, program=program)


def _for_others(scope: Scope, members: list[Member]) -> list[gs.Tensor]:
    """What the members make and something else needs."""
    nodes = [member.node for member in members]
    return [tensor for member in members for tensor in member.outputs if scope.used_beyond(tensor, nodes)]


def _fits(members: list[Member]) -> bool:
    """Whether one program can hold them."""
    made = {id(tensor) for member in members for tensor in member.outputs}
    read = {id(tensor) for member in members for tensor in member.inputs} - made
    statements = sum(len(member.program.statements) for member in members)
    return len(read) <= MAX_PARAMETERS and statements <= MAX_STATEMENTS


CONV_EPILOGUE = ConvEpilogue()
