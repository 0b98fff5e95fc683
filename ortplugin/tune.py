"""What each fused node runs fastest as on the machine at hand, measured and written into the node.

For every node of ours in the main graph, on the inputs that it gets when the model runs: its operator's variants
(`Operator.variants`, sets of attributes, on CUDA also `device_variants`, which the GPU is asked for) and its
decomposition into standard ONNX are timed against the node as it stands. The fastest is kept if it is faster by more
than MARGIN. So a rewrite that does not pay on this GPU is taken back, and a tuned model needs no file beside it. Nodes
in bodies of If, Loop and Scan stay as they are.

A candidate is timed as a session of many copies of it, on CUDA captured in a CUDA graph; the time of one is the slope
between a few copies and many. Each copy has its own inputs, so that caches hold no more than they do in a model.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from .errors import ModelError
from .ops import DOMAIN, Operator, find
from .ops.base import TensorType
from .session import CUDA, onnxruntime, run, run_on_host
from .session import session as make_session

MARGIN = 0.05  # the least gain, as a share of the node's time, for which it is changed
STANDARD = "standard ONNX"
_FEW = 2  # copies in the short session
_BYTES = 2**29  # of inputs and outputs in the long one, which bounds its copies
_ROUNDS = 12

Progress = Callable[[str], None]


@dataclass(frozen=True)
class TunedNode:
    """What was measured for one node.

    Attributes:
        node: its label.
        choice: the candidate that stands there now; "" names the node as it was.
        microseconds: candidate to the time of one run; None where it could not be measured.
    """

    node: str
    choice: str
    microseconds: dict[str, float | None]


def tune(
    model: ModelProto, feeds: Mapping[str, Any], provider: str, progress: Progress | None = None
) -> tuple[ModelProto, list[TunedNode]]:
    """A copy of `model` in which every fused node is what measured fastest, and the measurements.

    Args:
        model: an optimized model; not changed.
        feeds: host arrays by input name. The nodes are measured with the shapes and values that follow from them.
        provider: full name of the execution provider to measure on.
        progress: told which node is being measured.
    """
    result = ModelProto()
    result.CopyFrom(model)
    nodes = [node for node in model.graph.node if node.domain == DOMAIN]
    if not nodes:
        return result, []
    values = _inputs_of(model, nodes, feeds, provider)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    measured: dict[tuple[Any, ...], dict[str, float | None]] = {}
    variants: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    replaced: dict[str, list[NodeProto]] = {}
    report = []
    for node in nodes:
        operator = find(node.domain, node.op_type)
        if operator is None:
            raise ModelError(
                f"node '{node.name}' is of type {DOMAIN}::{node.op_type}, which this version does not know"
            )
        if progress is not None:
            progress(f"measuring {node.name}")
        inputs = {name: values[name] for name in node.input if name and name not in initializers}
        key = _key(node, inputs, initializers)
        if key not in variants:
            variants[key] = [
                *operator.variants(node),
                *_device_variants(operator, node, inputs, initializers, provider),
            ]
        candidates = _candidates(operator, node, opset, variants[key])
        if key not in measured:
            weights = [initializers[name] for name in dict.fromkeys(node.input) if name in initializers]
            measured[key] = {
                name: _time(model, node, nodes_of, inputs, weights, provider) for name, nodes_of in candidates.items()
            }
        times = measured[key]
        choice = _fastest(times)
        if choice:
            replaced[node.output[0]] = candidates[choice]
        report.append(TunedNode(f"{node.name} ({node.op_type})", choice, dict(times)))
    _replace(result, replaced)
    return result, report


def _device_variants(
    operator: Operator,
    node: NodeProto,
    inputs: Mapping[str, Any],
    initializers: Mapping[str, onnx.TensorProto],
    provider: str,
) -> Sequence[Mapping[str, Any]]:
    """What the GPU offers for a node's inputs; none where a node leaves out an input, or off CUDA."""
    if provider != CUDA or not all(node.input):
        return ()
    types = []
    for name in node.input:
        if name in initializers:
            tensor = initializers[name]
            types.append(TensorType(helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)))
        else:
            types.append(TensorType(inputs[name].dtype, inputs[name].shape))
    return operator.device_variants(node, types, [name in initializers for name in node.input])


def _candidates(
    operator: Operator, node: NodeProto, opset: int, variants: Sequence[Mapping[str, Any]]
) -> dict[str, list[NodeProto]]:
    """Name to nodes. The first, "", is the node as it stands."""
    found = {"": [node]}
    for attributes in variants:
        variant = NodeProto()
        variant.CopyFrom(node)
        kept = [attribute for attribute in variant.attribute if attribute.name not in attributes]
        del variant.attribute[:]
        variant.attribute.extend(kept)
        variant.attribute.extend(helper.make_attribute(name, value) for name, value in sorted(attributes.items()))
        if variant != node:
            found[", ".join(f"{name}={value}" for name, value in sorted(attributes.items()))] = [variant]
    with contextlib.suppress(ModelError):  # the standard may have no form of it at this opset
        found[STANDARD] = operator.decompose(node, opset)
    return found


def _fastest(times: Mapping[str, float | None]) -> str:
    """The candidate to take; "" where the node stays."""
    known = {name: value for name, value in times.items() if value is not None}
    if "" not in known:
        return ""
    best = min(known, key=lambda name: known[name])
    return best if known[best] < (1 - MARGIN) * known[""] else ""


def _key(node: NodeProto, inputs: Mapping[str, Any], initializers: Mapping[str, Any]) -> tuple[Any, ...]:
    """Nodes with equal keys are measured once: what they are, and the shapes and dtypes of what they get."""
    attributes = tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute))
    shapes = []
    for name in node.input:
        if name in initializers:
            shapes.append((tuple(initializers[name].dims), initializers[name].data_type))
        elif name:
            shapes.append((inputs[name].shape, str(inputs[name].dtype)))
    return (node.op_type, attributes, tuple(shapes), tuple(name in initializers for name in node.input))


def _inputs_of(
    model: ModelProto, nodes: Sequence[NodeProto], feeds: Mapping[str, Any], provider: str
) -> dict[str, Any]:
    """Every value that these nodes read and that is no initializer, as a host array, from one run of the model."""
    fixed = {tensor.name for tensor in model.graph.initializer} - {value.name for value in model.graph.input}
    wanted = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in fixed))
    values = {name: np.asarray(feeds[name]) for name in wanted if name in feeds}
    probe = ModelProto()
    probe.CopyFrom(model)
    produced = [name for name in wanted if name not in values]
    present = {value.name for value in probe.graph.output}
    probe.graph.output.extend(ValueInfoProto(name=name) for name in produced if name not in present)
    if produced:
        session = make_session(probe.SerializeToString(), providers=[provider])
        values.update(run_on_host(session, feeds, produced))
    return values


# ------------------------------------------------------------------------------------------------------------ timing


def _time(
    model: ModelProto,
    node: NodeProto,
    candidate: Sequence[NodeProto],
    inputs: Mapping[str, Any],
    weights: Sequence[onnx.TensorProto],
    provider: str,
) -> float | None:
    """Microseconds of one run of the candidate, or None where it can't be measured, as without a CUDA graph on CUDA."""
    size = sum(array.nbytes for array in inputs.values())
    many = max(_FEW + 2, min(40, _BYTES // max(1, 2 * size)))
    try:
        runs = [_runner(_copies(model, node, candidate, inputs, weights, count), inputs, count, provider)
                for count in (_FEW, many)]  # fmt: skip
    except Exception:  # ONNX Runtime's own classes have no common base; it says which kernel or memory lacks
        return None
    slopes: list[float] = []
    for _ in range(_ROUNDS):
        few, all_ = (min(_seconds(each) for _ in range(3)) for each in runs)
        slopes.append((all_ - few) / (many - _FEW) * 1e6)
    return max(float(statistics.median(slopes)), 0.0)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _copies(
    model: ModelProto,
    node: NodeProto,
    candidate: Sequence[NodeProto],
    inputs: Mapping[str, Any],
    weights: Sequence[onnx.TensorProto],
    count: int,
) -> ModelProto:
    """A model of `count` copies of the candidate, each with inputs of its own. Weights are shared."""
    shared = {tensor.name for tensor in weights}
    nodes, values, results = [], [], []
    for copy in range(count):
        for each in candidate:
            renamed = NodeProto()
            renamed.CopyFrom(each)
            renamed.name = f"{each.name}#{copy}"
            for names in (renamed.input, renamed.output):
                for index, name in enumerate(names):
                    if name and name not in shared:
                        names[index] = f"{name}#{copy}"
            nodes.append(renamed)
        values += [
            helper.make_tensor_value_info(f"{name}#{copy}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ]
        results += [ValueInfoProto(name=f"{name}#{copy}") for name in node.output if name]
    graph = helper.make_graph(nodes, "tune", values, results, list(weights))
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _runner(model: ModelProto, inputs: Mapping[str, Any], count: int, provider: str) -> Callable[[], object]:
    """A function that runs the model once, warmed up; on CUDA it replays a CUDA graph."""
    options = onnxruntime().SessionOptions()
    options.log_severity_level = 4
    feeds = {f"{name}#{copy}": array for name, array in inputs.items() for copy in range(count)}
    on_gpu = provider == CUDA
    session = make_session(model.SerializeToString(), providers=[provider], cuda_graph=on_gpu, session_options=options)
    run_once: Callable[[], object] = partial(run, session, feeds)
    if on_gpu:
        from . import device

        run_once = device.replay(session, feeds)
    for _ in range(3):
        run_once()
    return run_once


# ----------------------------------------------------------------------------------------------------------- the model


def _replace(model: ModelProto, replaced: Mapping[str, Sequence[NodeProto]]) -> None:
    """Puts other nodes in the place of those with these first outputs."""
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        nodes += replaced.get(node.output[0], [node]) if node.domain == DOMAIN else [node]
    rewritten = onnx.GraphProto()
    rewritten.node.extend(nodes)  # copies, since the next line frees the old ones
    del model.graph.node[:]
    model.graph.node.extend(rewritten.node)
    if not any(node.domain == DOMAIN for node in model.graph.node):
        for index in reversed(range(len(model.opset_import))):
            if model.opset_import[index].domain == DOMAIN:
                del model.opset_import[index]
