"""Which pointwise operators after a convolution become its epilogue.

A set of operators that follow from the convolution's value, in the graph's order, as long as it leaves one value for
the others: HardSwish written as x * Clip(x + 3, 0, 6) / 6 reads the value twice, and only whole is it one value again.
So a convolution does not join one neighbour after another as passes/absorb.py has it; all else is from there.
Every result has the shape S of the convolution, so no operand may enlarge it; and what else an operator reads must not
depend on the convolution: a squeeze-excite's gate does. A view of one pixel, [N, 1, 1, M] to [N, M], is passed.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.pointwise import NotPointwiseError
from ortplugin.passes.absorb import needed
from ortplugin.passes.conv.extents import same_lengths
from ortplugin.passes.conv.fused import CONV, is_channels_last
from ortplugin.passes.driver import Missed
from ortplugin.passes.members import Member, member_of
from ortplugin.program import (
    FLOATING,
    MAX_PARAMETERS,
    MAX_STATEMENTS,
    Parameter,
    Program,
    ProgramError,
    fresh_name,
)

FAR = 64  # operators that are looked at, at most, for a place where one value is left
VIEWS = ("Reshape", "Flatten", "Squeeze")
DTYPES = (*FLOATING, "bool")  # of what an epilogue reads and makes


def chain_of(scope: Scope, conv: gs.Node) -> tuple[list[Member], list[gs.Tensor], list[Missed]]:
    """The convolution and what it draws in, in order; what they make for others; why there is no more."""
    first = CONV.read(scope, conv)
    if first is None:
        return [], [], []
    members, misses = [first], []
    best, outputs = 1, needed(scope, members)
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
            member = _view(scope, node, conv) or _drawable(scope, node, conv, members)
        except (NotPointwiseError, ProgramError) as reason:
            misses.append(Missed(label(node), str(reason)))
            continue
        if member is None:
            continue
        members.append(member)
        left = needed(scope, members)
        if member.program.statements and 0 < len(left) <= allowed and _fits(members):
            best, outputs = len(members), left
        follow(member.outputs)
    left_out = [member for member in members[best:] if member.program.statements]
    if left_out:
        kept = [member.node for member in (*members[:best], left_out[0])]
        used = next((u for each in members[:best] for t in each.outputs if (u := scope.used_beyond(t, kept))), "")
        misses.append(Missed(label(kept[-1]), used or "together with what is before it, it exceeds a program's limits"))
    return members[:best], outputs, misses


def _view(scope: Scope, node: gs.Node, conv: gs.Node) -> Member | None:
    """A view of the convolution's value [N, 1, .., M] as [N, M]: a member that computes nothing. None if it is none."""
    if scope.op(node) not in VIEWS or not is_channels_last(conv):
        return None
    x, y = node.inputs[0], node.outputs[0]
    shape, dtype = scope.shape(x), scope.dtype(x)
    if shape is None or dtype not in DTYPES or len(shape) < 3 or not isinstance(shape[-1], int) or shape[-1] < 1:
        return None
    if any(dim != 1 for dim in shape[1:-1]) or scope.rank(y) != 2 or (scope.shape(y) or ())[-1:] != shape[-1:]:
        return None
    value = Parameter(dtype, "x")
    return Member(node, Program((value,), (value,), ()), (x,), (y,))


def flat_of(scope: Scope, members: list[Member]) -> set[int]:
    """The ids of what the members make after a view of one pixel."""
    found: set[int] = set()
    for member in members[1:]:
        if not member.program.statements or any(id(tensor) in found for tensor in member.inputs):
            found.update(id(tensor) for tensor in member.outputs)
    return found


def _drawable(scope: Scope, node: gs.Node, conv: gs.Node, members: list[Member]) -> Member | None:
    """The node as one more member of the chain; None if it is not pointwise.

    Raises NotPointwiseError or ProgramError with the reason why it can't be one.
    """
    if scope.op(node) == "Identity":  # remove-identities takes it; here it would be a Cast, a program of its own
        return None
    member = member_of(scope, node)
    if member is None:
        return None
    # A program has no value that nothing reads, and dead-nodes may be left out: ask before a value is one of a program.
    unread = next((each for each in node.outputs if not each.outputs and not scope.is_output(each)), None)
    if unread is not None:
        raise NotPointwiseError(f"nothing reads '{unread.name}'")
    whole = conv.outputs[0]
    made = {id(tensor) for each in members for tensor in each.outputs}
    flat = flat_of(scope, members)
    inside = [id(tensor) in flat for tensor in member.inputs if id(tensor) in made]
    names: dict[str, str] = {}
    for parameter, tensor in zip(member.program.parameters, member.inputs, strict=True):
        if id(tensor) in made:
            if parameter.name in member.rounded:
                raise NotPointwiseError(f"'{tensor.name}' has to be rounded to {parameter.dtype} before it")
            continue
        same = scope.same_shape(tensor, whole) or same_lengths(scope, tensor, whole)
        flattens = any(inside) and scope.rank(tensor) not in (0, 1)
        fits = (same or scope.broadcasts_to(tensor, whole)) and not flattens
        CONV.check_operand(scope, conv, tensor, whole, fits)
        if same:
            names[parameter.name] = fresh_name("residual", [*member.program.dtypes, *names.values()])
    if any(inside) != all(inside):
        raise NotPointwiseError("it reads the convolution's value and a view of it")
    program = member.program.renamed(names)
    for each in (*program.parameters, *program.results):
        if each.dtype not in DTYPES:
            raise NotPointwiseError(f"it has a value of {each.dtype}; an epilogue knows {', '.join(DTYPES)}")
    return replace(member, program=program)


def _fits(members: list[Member]) -> bool:
    """Whether one program can hold them."""
    made = {id(tensor) for member in members for tensor in member.outputs}
    read = {id(tensor) for member in members for tensor in member.inputs} - made
    statements = sum(len(member.program.statements) for member in members)
    return len(read) <= MAX_PARAMETERS and statements <= MAX_STATEMENTS
