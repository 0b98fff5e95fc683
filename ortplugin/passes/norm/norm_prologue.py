"""Pointwise operators that make what a FusedLayerNorm normalises are drawn into it: residual and bias adds, Casts, ...

    s = Add(x, residual); y = FusedLayerNorm(s)      becomes      y, s = FusedLayerNorm(x, residual)

where s is an output only if something else needs it. That is sound if s surely has the shape of y, and if nothing else
that the norm reads depends on s.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.pointwise import NotPointwiseError, Writer, is_pointwise, write
from ortplugin.graph.shapes import Shape, show
from ortplugin.passes.conditions import unknown_rank
from ortplugin.passes.driver import Applied, Missed, Outcome, RulePass
from ortplugin.passes.norm.fused import DTYPES, node_of, read_fused
from ortplugin.program import Program, ProgramError


def draw_in(scope: Scope, node: gs.Node) -> Outcome:
    """Merges the first operator that makes what the norm reads and can be part of it."""
    fused = read_fused(scope, node)
    if fused is None:
        return None
    program, inputs = fused
    prologue = program.prologue
    misses: list[Missed] = []
    for parameter, tensor in zip(program.parameters, inputs, strict=True):
        producer = scope.producer(tensor)
        if producer is None or not is_pointwise(scope, producer):
            continue
        # What is smaller than the normalised value is cheaper computed once, except for a Cast of its own.
        whole = parameter.name in prologue and not _surely_smaller(scope.shape(tensor), scope.shape(node.outputs[0]))
        if whole or (scope.op(producer) == "Cast" and not scope.used_beyond(tensor, [node])):
            try:
                return _draw(scope, node, program, inputs, parameter.name, producer)
            except (NotPointwiseError, ProgramError) as reason:
                misses.append(Missed(label(producer), str(reason)))
    return misses


def _draw(
    scope: Scope, node: gs.Node, program: Program, inputs: list[gs.Tensor], parameter: str, producer: gs.Node
) -> Applied:
    """Merges `producer`, which makes the parameter, into the norm. Raises NotPointwiseError or ProgramError."""
    y, tensor = node.outputs[0], producer.outputs[0]
    for each in producer.inputs:
        reason = None if each.is_empty() else unknown_rank(scope, each)
        if reason:
            raise NotPointwiseError(reason)
    kept = scope.used_beyond(tensor, [node])
    if kept:
        is_normalised = program.core is not None and parameter in program.core.names
        if not is_normalised and not scope.same_shape(tensor, y):
            shapes = f"{show(scope.shape(tensor))} is not surely that of the norm, {show(scope.shape(y))}"
            raise NotPointwiseError(f"{kept}, and its shape {shapes}")
        for other in inputs:
            if other is not tensor and scope.depends_on(other, producer):
                raise NotPointwiseError(f"{kept}, and '{other.name}', which the norm also reads, depends on it")

    value = program.fresh("v")  # frees the parameter's name for what it is made of
    program = program.renamed({parameter: value})
    others = [each for each in inputs if each is not tensor]
    names = [each.name for each in program.parameters if each.name != value]
    writer = Writer(program, {id(t): name for t, name in zip(others, names, strict=True)}, scope, DTYPES)
    hints = _hints(scope, producer, y, parameter)
    write(writer, producer, hints)
    merged = program.with_producer(value, writer.statements, writer.parameters)
    outputs = list(node.outputs)
    if kept:
        merged = merged.with_result(value)
        outputs.append(tensor)
    new = node_of(merged.without_redundant_casts(), [*others, *writer.inputs], node.name)
    labels = (label(producer), label(node))
    scope.replace([producer, node], new, outputs)
    return Applied(labels, new)


def _surely_smaller(shape: Shape | None, whole: Shape | None) -> bool:
    """Whether a tensor of `shape` has surely fewer elements than one of the shape `whole` that it broadcasts to."""
    if shape is None or whole is None:
        return False
    # A model's own value_info may contradict itself: a rank that is larger is no error here, and no smaller tensor.
    if len(shape) != len(whole):
        return len(shape) < len(whole)
    return any(a == 1 and b != 1 for a, b in zip(shape, whole, strict=True))


def _hints(scope: Scope, producer: gs.Node, y: gs.Tensor, parameter: str) -> list[str]:
    """Names for the producer's inputs: its first large one inherits the parameter's."""
    large = [not _surely_smaller(scope.shape(each), scope.shape(y)) for each in producer.inputs]
    first = large.index(True) if True in large else 0
    small = {"Add": "bias", "Sub": "bias", "Mul": "scale", "Div": "scale"}.get(scope.op(producer), "operand")
    return [parameter if index == first else "residual" if is_large else small for index, is_large in enumerate(large)]


NORM_PROLOGUE = RulePass(
    name="norm-prologue",
    summary="residual and bias adds, Casts and other pointwise operators before a norm become part of it",
    rule=draw_in,
)
