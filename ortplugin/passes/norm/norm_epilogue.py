"""Pointwise operators that read a FusedLayerNorm's output are drawn into it: gamma, beta, Casts, activations, adds.

    n = FusedLayerNorm(x); y = Mul(n, gamma)         becomes      y = FusedLayerNorm(x, gamma)

n remains an output if something else needs it. That is sound if y surely has the shape of n, and if nothing that the
operator reads besides depends on the norm.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.pointwise import NotPointwiseError, Writer, is_pointwise, write
from ortplugin.graph.shapes import show
from ortplugin.passes.driver import Applied, Missed, Outcome, RulePass
from ortplugin.passes.norm.fused import DTYPES, node_of, read_fused
from ortplugin.program import Parameter, Program, ProgramError

HINTS = {"Mul": "gamma", "Add": "beta", "Sub": "beta", "PRelu": "slope", "Where": "condition"}


def draw_in(scope: Scope, node: gs.Node) -> Outcome:
    """Merges the first operator that reads the norm and can be part of it."""
    fused = read_fused(scope, node)
    if fused is None:
        return None
    program, inputs = fused
    epilogue = program.epilogue
    misses: list[Missed] = []
    tried = set()
    for result, tensor in zip(program.results, list(node.outputs), strict=True):
        for consumer in scope.consumers(tensor) if result.name in epilogue else []:
            if id(consumer) in tried or not is_pointwise(scope, consumer):
                continue
            tried.add(id(consumer))
            try:
                return _draw(scope, node, program, inputs, tensor, consumer)
            except (NotPointwiseError, ProgramError) as reason:
                misses.append(Missed(label(consumer), str(reason)))
    return misses


def _draw(
    scope: Scope, node: gs.Node, program: Program, inputs: list[gs.Tensor], y: gs.Tensor, consumer: gs.Node
) -> Applied:
    """Merges `consumer`, which reads `y`, into the norm. Raises NotPointwiseError or ProgramError if it can't."""
    outputs = {id(tensor) for tensor in node.outputs}
    for operand in consumer.inputs:
        if operand.is_empty() or id(operand) in outputs:
            continue
        if scope.shape(operand) != () and not scope.broadcasts_to(operand, y):
            shapes = f"{show(scope.shape(operand))} does not surely broadcast to {show(scope.shape(y))}"
            raise NotPointwiseError(f"'{operand.name}' of shape {shapes}")
        if scope.depends_on(operand, node):
            raise NotPointwiseError(f"'{operand.name}', which it also reads, depends on the norm")

    names = {id(t): parameter.name for t, parameter in zip(inputs, program.parameters, strict=True)}
    names |= {id(t): result.name for t, result in zip(node.outputs, program.results, strict=True)}
    writer = Writer(program, names, scope, DTYPES)
    hint = HINTS.get(scope.op(consumer), "operand")
    hints = ["residual" if hint == "beta" and scope.same_shape(each, y) else hint for each in consumer.inputs]
    value = write(writer, consumer, hints)
    dtype = scope.dtype(consumer.outputs[0])
    assert dtype is not None

    results: list[tuple[Parameter, gs.Tensor]] = []
    made = (Parameter(dtype, value), consumer.outputs[0])
    for result, tensor in zip(program.results, node.outputs, strict=True):
        if scope.used_beyond(tensor, [consumer]):
            results.append((result, tensor))
        elif made not in results:  # the new result takes the place of the one that nobody else reads
            results.append(made)
    if made not in results:
        results.append(made)
    merged = program.with_statements(writer.statements, [result for result, _ in results], writer.parameters)
    new = node_of(merged.without_redundant_casts(), [*inputs, *writer.inputs], node.name)
    labels = (label(node), label(consumer))
    scope.replace([node, consumer], new, [tensor for _, tensor in results])
    return Applied(labels, new)


NORM_EPILOGUE = RulePass(
    name="norm-epilogue",
    summary="gamma, beta, Casts, activations and other pointwise operators after a norm become part of it",
    rule=draw_in,
)
