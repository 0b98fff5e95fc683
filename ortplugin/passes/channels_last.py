"""Convolutions in half precision get their channels last, and with them all between them that can have that.

    y = FusedConv(x, w)     becomes     t = Transpose(x); u = FusedConv<layout = "NHWC">(t, v); y = Transpose(u)

and no Transpose stays between operators that work in either order. Which of these have channels last is decided at
once for each region of the graph, the operators that a convolution is connected to through them: where the order
changes, a tensor is transposed, and the cheapest division of the region (graph/min_cut.py) moves the fewest bytes. The
convolutions have channels last; the inputs and outputs of the graph, and operators that know channels first only, do
not. Transposes that the model has count as what they are: one of them may be what a region needs.

Weights are transposed here. After this pass no convolution is left for it to change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope, scopes
from ortplugin.graph.labels import label
from ortplugin.graph.min_cut import INFINITE, min_cut
from ortplugin.passes.base import Change, NearMiss, PassResult
from ortplugin.passes.fused_conv import conv_dtype, is_channels_last, is_fused_conv
from ortplugin.passes.layout_plan import Layouts, Plan, is_perm, is_vector, to_first, to_last
from ortplugin.passes.layout_rules import rule_of
from ortplugin.passes.pointwise_cost import LAUNCH_BYTES

HALF = ("float16", "bfloat16")
GUESS = 64  # for a length that is not known


@dataclass
class _Region:
    """Operators that may have channels last, with their plans, connected through tensors; by place, in order."""

    plans: dict[int, Plan] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)  # the convolutions that shall


class ChannelsLast:
    """The pass; see the module."""

    name = "channels-last"
    summary = "convolutions in float16, bfloat16 and TF32, and what is between them, have channels last"

    def __init__(self, always: bool = False) -> None:
        """`always`: in every dtype."""
        self._always = always

    def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
        """Changes the regions of the graph and its bodies, at most `limit` of them."""
        changes: list[Change] = []
        misses: list[NearMiss] = []
        for scope in scopes(graph):
            while limit is None or len(changes) < limit:
                regions, missed = self._regions(scope)
                if not regions:
                    misses += missed
                    break
                changes.append(self._change(scope, regions[0]))
        return PassResult(tuple(changes), tuple(misses))

    def _wants(self, scope: Scope, node: gs.Node) -> bool:
        """Whether the node is a convolution that shall have channels last and has not."""
        if not is_fused_conv(scope, node) or is_channels_last(node):
            return False
        dtype = conv_dtype(scope, node)
        fast = dtype in HALF or (dtype == "float" and bool(node.attrs.get("allow_tf32", 0)))
        return fast or (self._always and dtype is not None)

    def _regions(self, scope: Scope) -> tuple[list[_Region], list[NearMiss]]:
        """The regions with a convolution that shall have channels last, in order of their first operator."""
        nodes = {place: node for place, node in enumerate(scope.slots) if node is not None}
        seeds = [place for place, node in nodes.items() if self._wants(scope, node)]
        if not seeds:
            return [], []
        plans = {place: plan for place, node in nodes.items() if (plan := rule_of(scope, node)) is not None}
        misses = [
            NearMiss(self.name, label(nodes[place]), "the rank or kernel of its weights, or of an operand, is unknown")
            for place in seeds
            if place not in plans
        ]
        parent = {place: place for place in plans}

        def find(place: int) -> int:
            while parent[place] != place:
                parent[place] = parent[parent[place]]
                place = parent[place]
            return place

        for place, plan in plans.items():
            for tensor in (nodes[place].inputs[index] for index in plan.reads):
                for other in _sharing(scope, tensor, plans):
                    parent[find(other)] = find(place)
        found: dict[int, _Region] = {}
        wanted = {find(place) for place in seeds if place in plans}
        for place, plan in plans.items():
            if find(place) in wanted:
                found.setdefault(find(place), _Region()).plans[place] = plan
        for place in seeds:
            if place in plans:
                found[find(place)].seeds.append(place)
        return list(found.values()), misses

    def _change(self, scope: Scope, region: _Region) -> Change:
        chosen = [(scope.slots[place], region.plans[place]) for place in _cheapest(scope, region)]
        convolutions = [scope.slots[place] for place in region.seeds]
        labels = tuple(label(node) for node in convolutions if node is not None)
        layouts = Layouts(scope)
        ends: dict[int, gs.Node] = {}  # Transposes beside the region, some of which nothing needs any more
        for node, plan in chosen:
            assert node is not None
            for index in plan.reads:
                maker = scope.producer(node.inputs[index])
                if maker is not None and is_perm(scope, maker, to_first):
                    ends[id(maker)] = maker
                node.inputs[index] = layouts.last(node.inputs[index], node)
            old = [node.outputs[index] for index in plan.makes]
            plan.edit(layouts, node)
            for index, tensor in zip(plan.makes, old, strict=True):
                node.outputs[index] = layouts.made(tensor)
                for reader in [each for each in scope.consumers(tensor) if is_perm(scope, each, to_last)]:
                    _skip(scope, reader, node.outputs[index])
        for maker in ends.values():
            if not maker.outputs[0].outputs and not scope.is_output(maker.outputs[0]):
                scope.remove(maker)
        layouts.finish()
        return Change(self.name, labels, labels[0])


def _skip(scope: Scope, transpose: gs.Node, last: gs.Tensor) -> None:
    """Lets what reads a Transpose to channels last read what has them last already."""
    if scope.is_output(transpose.outputs[0]):
        transpose.op, transpose.attrs = "Identity", {}
        transpose.inputs[0] = last
        return
    scope.substitute(transpose.outputs[0], last)
    scope.remove(transpose)


def _sharing(scope: Scope, tensor: gs.Tensor, plans: dict[int, Plan]) -> list[int]:
    """The places of the operators that make or read the tensor with channels last, if they have them last."""
    found = []
    for node in (scope.producer(tensor), *scope.consumers(tensor)):
        place = -1 if node is None else scope.position[id(node)]
        if node is None or place not in plans:
            continue
        plan = plans[place]
        if any(node.outputs[i] is tensor for i in plan.makes) or any(node.inputs[i] is tensor for i in plan.reads):
            found.append(place)
    return found


def _cheapest(scope: Scope, region: _Region) -> list[int]:
    """The places of the operators of the region that have channels last in its cheapest division, in order.

    A tensor that an operator with channels last makes costs a Transpose if anything reads it with channels first, and
    the other way round; however many read it.
    """
    source, sink = 0, 1
    number = {place: index for index, place in enumerate(region.plans, 2)}
    count = len(number) + 2
    edges = [(source, number[place], INFINITE) for place in region.seeds]
    tensors = {
        id(tensor): tensor
        for place, plan in region.plans.items()
        if (node := scope.slots[place]) is not None
        for tensor in (*(node.inputs[i] for i in plan.reads), *(node.outputs[i] for i in plan.makes))
    }
    for tensor in tensors.values():
        maker, readers = _ends(scope, region, number, tensor)
        price = _price(scope, tensor)
        to, back = count, count + 1  # whether it is needed with channels last, and whether never with channels first
        count += 2
        edges += [(to, maker, price), (maker, back, price)]
        for reader in readers:
            edges += [(reader, to, INFINITE), (back, reader, INFINITE)]
    last = min_cut(count, edges, source, sink)
    return [place for place, index in number.items() if last[index]]


def _ends(scope: Scope, region: _Region, number: dict[int, int], tensor: gs.Tensor) -> tuple[int, list[int]]:
    """The nodes of the cut's graph that stand for what makes the tensor and for what reads it."""
    source, sink = 0, 1

    def of(node: gs.Node | None, ports: str) -> int:
        place = -1 if node is None else scope.position.get(id(node), -1)
        if node is None or place not in number:
            return sink
        plan = region.plans[place]
        held, chosen = (node.outputs, plan.makes) if ports == "makes" else (node.inputs, plan.reads)
        whole = all(index in chosen for index, each in enumerate(held) if each is tensor)
        return number[place] if whole else sink

    producer = scope.producer(tensor)
    maker = of(producer, "makes")
    if producer is not None and maker == sink and is_perm(scope, producer, to_first):
        maker = source
    readers = [source if is_perm(scope, node, to_last) else of(node, "reads") for node in tensor.outputs]
    return maker, readers + [sink] * scope.is_output(tensor)


def _price(scope: Scope, tensor: gs.Tensor) -> int:
    """What the Transpose of the tensor costs, in bytes that the GPU could have moved in its time."""
    shape = scope.shape(tensor)
    if is_vector(shape):
        return 1
    size = 2 if tensor.dtype is None else int(tensor.dtype.itemsize)
    for dim in shape or ():
        size *= dim if isinstance(dim, int) else GUESS
    return min(LAUNCH_BYTES + 2 * size, INFINITE >> 24)


CHANNELS_LAST = ChannelsLast()
CHANNELS_LAST_ALWAYS = ChannelsLast(always=True)
