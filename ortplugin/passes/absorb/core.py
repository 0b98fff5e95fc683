"""How an operator of ours draws in what is pointwise beside it, whatever its core is.

    s = Add(x, r); n = FusedLayerNorm(s); y = Relu(n)      becomes      y = FusedLayerNorm(x, r)

An operator says in a Core what it is: its names, which inputs and outputs are its own, where its value stands in the
program, and which neighbours it takes. Reading it, trying the neighbours one after another, keeping the graph free of
cycles, composing the programs and replacing the nodes are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ortplugin.graph.domains import DOMAIN
from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.pointwise import NotPointwiseError
from ortplugin.graph.shapes import show
from ortplugin.passes.absorb.members import Member, compose, read_fused
from ortplugin.passes.driver import Applied, Missed, Outcome
from ortplugin.program import Program, ProgramError


@dataclass(frozen=True)
class Core:
    """An operator whose program goes with something that is not pointwise, its core.

    operators: its names in our domain.
    called: what reasons call it.
    own: how many inputs and outputs of a node come before those of its program.
    statements: the core's operators in the program. None: the core stands outside. Its value is the program's first
        parameter, or with `prologue` what it reads is the first result; there a tensor without a name stands for it.
    prologue: whether it takes what is before the core.
    """

    operators: tuple[str, ...]
    called: str
    own: Callable[[gs.Node], tuple[int, int]] = lambda _: (0, 0)
    statements: tuple[str, ...] = ()
    prologue: bool = True

    def read(self, scope: Scope, node: gs.Node) -> Member | None:
        """The node as a program; None for another operator, and for an invalid node."""
        if node.op not in self.operators or scope.op(node) != f"{DOMAIN}::{node.op}":
            return None
        first_input, first_output = self.own(node)
        if len(node.inputs) < max(1, first_input) or len(node.outputs) < first_output:
            return None
        inputs, outputs = list(node.inputs[first_input:]), list(node.outputs[first_output:])
        if not self.statements:
            dtype = node.inputs[0].dtype
            stand_in = gs.Variable("", None if dtype is None else np.dtype(dtype))
            (outputs if self.prologue else inputs).insert(0, stand_in)
        try:
            member = read_fused(node, inputs, outputs)
        except ProgramError:
            return None  # the runtime names the fault
        cores = member.program.cores
        known = all(each.op in self.statements for each in cores) and bool(cores) == bool(self.statements)
        return member if known else None

    def node_of(self, first: Member, program: Program, inputs: Sequence[gs.Tensor]) -> gs.Node:
        """The node `first` with another program, whose parameters stand for `inputs`; without outputs."""
        node, own = first.node, self.own(first.node)[0]
        operands = inputs if self.statements or self.prologue else inputs[1:]
        attributes = {**node.attrs, "program": str(program)}
        return gs.Node(node.op, node.name, attributes, [*node.inputs[:own], *operands], [], DOMAIN)


@dataclass(frozen=True)
class Joined:
    """A core's node and a neighbour as one program: its parameters stand for `inputs`, its results for `results`."""

    first: Member
    other: Member
    program: Program
    inputs: list[gs.Tensor]
    results: list[gs.Tensor]


@dataclass(frozen=True)
class Absorber:
    """A rule (passes/driver.py) that joins a core's node with the first of its neighbours that may be part of it.

    core: what it is.
    neighbours: who is tried, in order.
    member: a neighbour as a program, None if it has no business here. Raises NotPointwiseError or ProgramError where it
        is a near miss. It proves that shapes stay as they are.
    results: of all that the core's node and the neighbour make what the two give out as one, in order.
    make: the node, without outputs, and the outputs that it takes over. Raises NotPointwiseError where it can't be.
    cycle: why the two can't be one where '{tensor}', which the later one, {late}, reads, depends on {early}. {kept} is
        who else needs what the earlier one makes.
    read: the core's node as a program, None if it is none; core.read if not given.
    """

    core: Core
    neighbours: Callable[[Scope, Member], Iterable[gs.Node]]
    member: Callable[[Scope, Member, gs.Node], Member | None]
    results: Callable[[Scope, Member, Member], list[gs.Tensor]]
    make: Callable[[Scope, Joined], tuple[gs.Node, list[gs.Tensor]]]
    cycle: str = "'{tensor}', which the one reads, depends on the other, {early}"
    read: Callable[[Scope, gs.Node], Member | None] | None = None

    def __call__(self, scope: Scope, node: gs.Node) -> Outcome:
        """Joins the node with a neighbour, or says why with none of them."""
        first = (self.read or self.core.read)(scope, node)
        if first is None:
            return None
        misses: list[Missed] = []
        for each in self.neighbours(scope, first):
            try:
                other = self.member(scope, first, each)
                if other is not None:
                    return self._join(scope, first, other)
            except (NotPointwiseError, ProgramError) as reason:
                misses.append(Missed(label(each), str(reason)))
        return misses

    def _join(self, scope: Scope, first: Member, other: Member) -> Applied:
        members = in_order(scope, [first, other])
        nodes = [each.node for each in members]
        own = first.node.inputs[: self.core.own(first.node)[0]] if members[1] is first else []
        self._check_acyclic(scope, members[0], members[1], own)
        results = self.results(scope, first, other)
        program, inputs = compose(members, results)
        labels = tuple(label(each) for each in nodes)
        new, outputs = self.make(scope, Joined(first, other, program, inputs, results))
        scope.replace(nodes, new, outputs)
        return Applied(labels, new)

    def _check_acyclic(self, scope: Scope, early: Member, late: Member, own: Sequence[gs.Tensor]) -> None:
        """Raises NotPointwiseError where a path leaves the earlier one and comes back to what the later one reads.

        `own`: what the later one reads beside its program, which can't make it.
        """
        a, b = early.node, late.node
        kept = next((used for t in early.outputs if (used := scope.used_beyond(t, [a, b]))), "")
        back = [*own, *(t for t in late.inputs if kept and scope.producer(t) is not a)]
        for tensor in back:
            if scope.depends_on(tensor, a):
                names = {"tensor": tensor.name, "early": label(a), "late": label(b), "kept": kept}
                raise NotPointwiseError(self.cycle.format(**names))


def in_order(scope: Scope, members: Iterable[Member]) -> list[Member]:
    """The members as their nodes stand in the graph: who makes a value before who reads it."""
    return sorted(members, key=lambda each: scope.position[id(each.node)])


def needed(scope: Scope, members: Sequence[Member]) -> list[gs.Tensor]:
    """What the members make and something else needs."""
    nodes = [member.node for member in members]
    return [tensor for member in members for tensor in member.outputs if scope.used_beyond(tensor, nodes)]


def makers(scope: Scope, member: Member) -> Iterator[gs.Node]:
    """Who makes what the program reads."""
    for tensor in member.inputs:
        maker = scope.producer(tensor)
        if maker is not None:
            yield maker


def check_operand(core: Core, scope: Scope, node: gs.Node, tensor: gs.Tensor, whole: gs.Tensor, fits: bool) -> None:
    """Raises NotPointwiseError where what reads a core's value can't join because of `tensor`, which it reads besides.

    node: the core's. whole: a tensor of its value's shape, which no operand may enlarge; `fits` says that it does not.
    """
    if not fits:
        shapes = f"{show(scope.shape(tensor))} does not surely broadcast to {show(scope.shape(whole))}"
        raise NotPointwiseError(f"'{tensor.name}' of shape {shapes}")
    if scope.depends_on(tensor, node):
        raise NotPointwiseError(f"'{tensor.name}', which it also reads, depends on {core.called}")
