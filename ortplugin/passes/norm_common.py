"""What the recognisers of normalisations share: the core's program, the fused node, and the checks on shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.pattern import Match
from ortplugin.graph.shapes import Shape
from ortplugin.ops import DOMAIN
from ortplugin.ops.layer_norm import NAME
from ortplugin.passes.driver import Applied, Missed
from ortplugin.program import FLOATING, Operand, Parameter, Program, ProgramError, Statement, parse

WIDTH = {"float16": 1, "bfloat16": 1, "float": 2, "double": 3}


@dataclass(frozen=True)
class Norm:
    """One normalisation as found in a graph: what is added up, normalised, scaled and shifted."""

    core: str  # LayerNormalization or RMSNormalization
    axis: int  # negative
    epsilon: float
    addends: Sequence[gs.Tensor]  # their sum is normalised
    names: Sequence[str]  # of the addends, in the program
    dtype: str  # of the addends
    result: str  # dtype of what comes out, and of gamma and beta
    gamma: gs.Tensor | None = None
    beta: gs.Tensor | None = None
    keep_sum: bool = False  # the sum is a result too


def fused_node(norm: Norm, name: str) -> gs.Node:
    """The FusedLayerNorm node, without outputs: they are y, and the sum if it is kept."""
    inputs = list(norm.addends)
    parameters = [Parameter(norm.dtype, each) for each in norm.names]
    statements: list[Statement] = []

    def emit(op: str, *operands: Operand, **attributes: float | str) -> str:
        statements.append(Statement(f"v{len(statements)}", op, operands, tuple(attributes.items())))
        return statements[-1].name

    s = norm.names[0]
    for each in norm.names[1:]:
        s = emit("Add", s, each)
    wide = core_dtype(norm.dtype, norm.result)
    x = s if wide == norm.dtype else emit("Cast", s, to=wide)
    y = emit(norm.core, x, axis=norm.axis, epsilon=norm.epsilon)
    if wide != norm.result:
        y = emit("Cast", y, to=norm.result)
    for tensor, op, hint in ((norm.gamma, "Mul", "gamma"), (norm.beta, "Add", "beta")):
        if tensor is not None:
            parameters.append(Parameter(norm.result, hint))
            inputs.append(tensor)
            y = emit(op, y, hint)
    results = [Parameter(norm.result, y)]
    if norm.keep_sum:
        results.append(Parameter(norm.dtype, s))
    program = Program(tuple(parameters), tuple(results), tuple(statements))
    return node_of(program, inputs, name)


def node_of(program: Program, inputs: Sequence[gs.Tensor], name: str) -> gs.Node:
    """A FusedLayerNorm node without outputs; its inputs come in the order in which the program reads them, each once."""
    program, inputs = merged_duplicates(program, inputs)
    first_use = [operand for statement in program.statements for operand in statement.names]
    order = sorted(range(len(inputs)), key=lambda i: first_use.index(program.parameters[i].name))
    program = replace(program, parameters=tuple(program.parameters[i] for i in order))
    return gs.Node(NAME, name, {"program": str(program.readable())}, [inputs[i] for i in order], [], DOMAIN)


def merged_duplicates(program: Program, inputs: Sequence[gs.Tensor]) -> tuple[Program, list[gs.Tensor]]:
    """The same with one parameter for each tensor."""
    kept: dict[int, str] = {}
    for tensor, parameter in zip(inputs, program.parameters, strict=True):
        name = kept.setdefault(id(tensor), parameter.name)
        if name != parameter.name:
            program = program.merged(name, parameter.name)
    return program, list({id(tensor): tensor for tensor in inputs}.values())


def read_fused(scope: Scope, node: gs.Node) -> tuple[Program, list[gs.Tensor]] | None:
    """The program of a FusedLayerNorm node and its inputs, each once; None for another node and for an invalid one."""
    if scope.op(node) != f"{DOMAIN}::{NAME}":
        return None
    try:
        program = parse(str(node.attrs.get("program", "")))
    except ProgramError:
        return None  # the runtime names the fault
    if len(program.parameters) != len(node.inputs) or len(program.results) != len(node.outputs) or not program.core:
        return None
    return merged_duplicates(program, list(node.inputs))


def core_dtype(given: str, result: str) -> str:
    """The dtype to normalise in: the common one, else float, or double where one is double and neither is half."""
    if given == result:
        return given
    return "double" if WIDTH[given] + WIDTH[result] >= 5 else "float"


def floating(scope: Scope, tensor: gs.Tensor) -> str | None:
    """Why the tensor's dtype is none to normalise in; None if it is one."""
    if scope.dtype(tensor) in FLOATING:
        return None
    if tensor.dtype is None:
        return f"the dtype of '{tensor.name}' is unknown"
    return f"the dtype of '{tensor.name}' is {np.dtype(tensor.dtype).name}, none of {', '.join(FLOATING)}"


def negative_axis(scope: Scope, x: gs.Tensor, axis: int) -> int | str:
    """`axis` counted from the end, or the reason why it can't be told."""
    if axis < 0:
        return axis
    rank = scope.rank(x)
    if rank is None or axis >= rank:
        return f"the axis {axis} counts from the front and the rank of '{x.name}' is {rank or 'unknown'}"
    return axis - rank


def trailing_axes(scope: Scope, mean: gs.Node, x: gs.Tensor) -> int | str:
    """The first axis, negative, that a ReduceMean takes the mean over up to the last one; or why that is not so."""
    if mean.attrs.get("keepdims", 1) != 1:
        return f"{label(mean)} has keepdims={mean.attrs['keepdims']}; it must be 1"
    rank = scope.rank(x)
    axes: list[int] | None = mean.attrs.get("axes")
    if axes is None and len(mean.inputs) > 1 and not mean.inputs[1].is_empty():
        values = scope.constant(mean.inputs[1])
        if values is None:
            return f"the axes '{mean.inputs[1].name}' of {label(mean)} are no constant"
        axes = [int(axis) for axis in values.reshape(-1)]
    if not axes:
        if mean.attrs.get("noop_with_empty_axes", 0):
            return f"{label(mean)} has no axes, and noop_with_empty_axes=1"
        if not rank:
            return f"{label(mean)} is over all axes, and the rank of '{x.name}' is {'unknown' if rank is None else 0}"
        return -rank
    if rank is None and any(axis >= 0 for axis in axes):
        return f"the axes {axes} of {label(mean)} count from the front and the rank of '{x.name}' is unknown"
    counted = sorted(axis if axis < 0 else axis - (rank or 0) for axis in axes)
    if counted != list(range(-len(counted), 0)):
        return f"the axes {list(axes)} of {label(mean)} are not the trailing ones"
    return counted[0]


def epsilon_of(scope: Scope, tensor: gs.Tensor, axis: int) -> float | str:
    """The number that is added to the variance, or why it is none."""
    value = scope.scalar(tensor)
    if value is None:
        return f"epsilon, '{tensor.name}', is no constant scalar"
    rank = scope.rank(tensor) or 0
    if rank > -axis:
        return f"epsilon, '{tensor.name}', has {rank} dimensions, more than the {-axis} that are normalised"
    if not math.isfinite(value) or value < 0:
        return f"epsilon is {value}"
    return value


def shape_conflict(scope: Scope, name: str, tensor: gs.Tensor, x: gs.Tensor) -> str | None:
    """Why `tensor` would not broadcast to the shape of `x`, where the known lengths tell; None if they don't."""
    shape, target = scope.shape(tensor), scope.shape(x)
    if shape is None or target is None:
        return None
    fits = len(shape) <= len(target) and all(
        not isinstance(a, int) or a == 1 or not isinstance(b, int) or a == b
        for a, b in zip(reversed(shape), reversed(target), strict=False)
    )
    return None if fits else f"{name}, '{tensor.name}', of shape {show(shape)} does not broadcast to {show(target)}"


def show(shape: Shape | None) -> str:
    """A shape for a report."""
    return "unknown" if shape is None else "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def cast_problem(match: Match, scope: Scope, dtypes: Sequence[str]) -> str | None:
    """Why the Casts that a pattern passed over matter; None if each is to a floating dtype of enough precision."""
    least = min(WIDTH[dtype] for dtype in dtypes)
    for cast in match.tag("cast"):
        dtype = scope.dtype(cast.outputs[0])
        if dtype not in FLOATING:
            return f"{label(cast)} goes through the dtype {cast.outputs[0].dtype}"
        if WIDTH[dtype] < least:
            return f"{label(cast)} loses precision, going through {dtype}"
    return None


def read_decomposed(match: Match, scope: Scope, core: str) -> Norm | str:
    """The normalisation that a match (values 'x' and 'epsilon', tags 'mean' and 'cast') is, or why it is none."""
    x, y = match.values["x"], match.root.outputs[0]
    problem = floating(scope, x) or floating(scope, y)
    if problem:
        return problem
    axes = [trailing_axes(scope, mean, x) for mean in match.tag("mean")]
    for axis in axes:
        if isinstance(axis, str):
            return axis
    first = axes[0]
    if isinstance(first, str) or len(set(axes)) != 1:
        return f"the means are over different axes, from {' and from '.join(map(str, axes))} on"
    epsilon = epsilon_of(scope, match.values["epsilon"], first)
    if isinstance(epsilon, str):
        return epsilon
    given, result = scope.dtype(x) or "", scope.dtype(y) or ""
    return cast_problem(match, scope, [given, result]) or Norm(core, first, epsilon, [x], ["x"], given, result)


def check_decomposed(match: Match, scope: Scope) -> str | None:
    """Why the match is no normalisation to replace; None if it is one."""
    norm = read_decomposed(match, scope, "")
    return norm if isinstance(norm, str) else None


def decomposed_norm(match: Match, scope: Scope, core: str) -> gs.Node:
    """The fused node of a match that check_decomposed found no fault with."""
    norm = read_decomposed(match, scope, core)
    if isinstance(norm, str):
        raise ValueError(norm)
    return fused_node(norm, match.root.name or match.root.outputs[0].name)


def fuse_operator(
    scope: Scope,
    node: gs.Node,
    core: str,
    x: Sequence[gs.Tensor],
    gamma: gs.Tensor | None,
    beta: gs.Tensor | None,
    epsilon: float,
    sum_output: int | None = None,
) -> Applied | Missed:
    """Replaces a node that is a whole normalisation. `x`: what is added up. `sum_output`: which output is the sum."""

    def missed(reason: str) -> Missed:
        return Missed(label(node), reason)

    for tensor in (*x, node.outputs[0], *(each for each in (gamma, beta) if each is not None)):
        problem = floating(scope, tensor)
        if problem:
            return missed(problem)
    dtype, result = scope.dtype(x[0]) or "", scope.dtype(node.outputs[0]) or ""
    # The dtype that the mean is kept in says how precisely the standard computes it; 1 is float32.
    if node.attrs.get("stash_type", 1) not in ((1, 11) if dtype == "double" else (1,)):
        return missed(f"stash_type is {node.attrs['stash_type']}; only 1, float32, is known")
    axis = negative_axis(scope, x[0], int(node.attrs.get("axis", -1)))
    if isinstance(axis, str):
        return missed(axis)
    for name, tensor in (("gamma", gamma), ("beta", beta)):
        if tensor is None:
            continue
        if scope.dtype(tensor) != result:
            return missed(f"{name}, '{tensor.name}', is {scope.dtype(tensor)}, the result is {result}")
        conflict = shape_conflict(scope, name, tensor, x[0])
        if conflict:
            return missed(conflict)
    outputs = [node.outputs[0]]
    for index, tensor in enumerate(node.outputs[1:], start=1):
        if tensor.is_empty():
            continue
        if index == sum_output:
            outputs.append(tensor)
        else:
            used = scope.used_beyond(tensor, [])
            if used:
                return missed(f"the statistics are wanted too: {used}")
    names = ["x", "residual", "bias"][: len(x)]
    norm = Norm(core, axis, epsilon, x, names, dtype, result, gamma, beta, keep_sum=len(outputs) > 1)
    new = fused_node(norm, node.name)
    name = label(node)
    scope.replace([node], new, outputs)
    return Applied((name,), new)


def optional(node: gs.Node, index: int) -> gs.Tensor | None:
    """An input that may be left out."""
    return node.inputs[index] if index < len(node.inputs) and not node.inputs[index].is_empty() else None
