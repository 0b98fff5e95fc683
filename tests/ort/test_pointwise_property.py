"""Random programs as FusedPointwise, as ONNX's own operators and in the reference: the same numbers.

Integers and bools are equal, NaNs and infinities are in the same places, other values within what rounding in the
dtype can do. The same programs in every run, unless ORTPLUGIN_PROPERTY_EXAMPLES says how many random ones to try.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
from hypothesis import HealthCheck, Phase, given, settings
from onnx import helper
from pointwise_programs import (
    POINTWISE,
    Array,
    Estimate,
    Example,
    bounds,
    estimates,
    examples,
    onnx_results,
    session_of,
)

import ortplugin
from ortplugin.ops.decompose import NUMPY_DTYPES, ONNX_DTYPES
from ortplugin.program import DTYPES, FLOATING, parse

GIVEN = os.environ.get("ORTPLUGIN_PROPERTY_EXAMPLES")
EXAMPLES = int(GIVEN or 1500)


def fused_results(example: Example, feeds: dict[str, Array]) -> dict[str, Array]:
    """The program as one FusedPointwise."""
    program = example.program
    names = [parameter.name for parameter in program.parameters]
    inputs = [helper.make_tensor_value_info(p.name, ONNX_DTYPES[p.dtype], shape)
              for p, shape in zip(program.parameters, example.shapes, strict=True)]  # fmt: skip
    nodes = []
    if example.copied:
        for index, (name, shape) in enumerate(zip(names, example.shapes, strict=True)):
            names[index] = f"copy_{name}"
            order = {"perm": range(len(shape))} if shape else {}
            nodes.append(helper.make_node("Transpose", [name], [names[index]], **order))
    outputs = [helper.make_tensor_value_info(f"out_{r.name}", ONNX_DTYPES[r.dtype], None) for r in program.results]
    nodes.append(helper.make_node("FusedPointwise", names, [each.name for each in outputs], "fused",
                                  domain="ortplugin", program=str(program)))  # fmt: skip
    options = onnxruntime.SessionOptions()
    ortplugin.register(options)
    found = ortplugin.run(session_of(helper.make_graph(nodes, "g", inputs, outputs), options), feeds)
    return {each.name: found[f"out_{each.name}"] for each in program.results}


def compare_fused(found: Array, wanted: Estimate, dtype: str, shape: tuple[int, ...]) -> None:
    """Against the reference, every element that is certain."""
    assert found.dtype == NUMPY_DTYPES[dtype]
    assert found.shape == shape
    known = ~np.broadcast_to(wanted.unknown, shape)
    value = np.broadcast_to(wanted.value, shape)
    if dtype not in FLOATING:
        np.testing.assert_array_equal(found[known], value[known])
        return
    low, high = (np.broadcast_to(each, shape)[known] for each in bounds(wanted, dtype))
    within(found.astype(np.float64)[known], low, high)


def compare_onnx(found: Array, wanted: Estimate, dtype: str) -> None:
    """ONNX Runtime's against the reference, every element that is certain and defined by ONNX."""
    known = ~(wanted.unknown | wanted.left_open)
    found = np.broadcast_to(found, known.shape)
    value = np.broadcast_to(wanted.value, known.shape)
    if dtype not in FLOATING:
        np.testing.assert_array_equal(found[known], value[known])
        return
    error = np.broadcast_to(wanted.error, known.shape)[known]
    within(found.astype(np.float64)[known], value[known] - error, value[known] + error)


def within(found: Array, low: Array, high: Array) -> None:
    np.testing.assert_array_equal(np.isnan(found), np.isnan(low))
    outside = ~((low <= found) & (found <= high)) & ~np.isnan(found)
    assert not outside.any(), f"{found[outside][:3]} instead of {low[outside][:3]} to {high[outside][:3]}"


def test_fused_like_onnxs_own_operators(library: Path) -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=GIVEN is None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(examples())
    def check(example: Example) -> None:
        program = example.program
        assert str(parse(str(program))) == str(program)
        arrays = example.inputs()
        feeds = {p.name: array for p, array in zip(program.parameters, arrays, strict=True)}
        wanted = estimates(program, arrays)
        shape = np.broadcast_shapes(*example.shapes)
        fused = fused_results(example, feeds)
        theirs = onnx_results(example, feeds)
        for result in program.results:
            estimate = wanted[result.name]
            try:
                compare_fused(fused[result.name], estimate, result.dtype, shape)
            except AssertionError as error:
                raise AssertionError(f"'{result.name}', fused: {error}\n{program}\n{feeds}") from error
            seen["elements"] += estimate.unknown.size
            seen["compared"] += int((~estimate.unknown).sum())
            if result.name in theirs:
                try:
                    compare_onnx(theirs[result.name], estimate, result.dtype)
                except AssertionError as error:
                    raise AssertionError(f"'{result.name}', ONNX: {error}\n{program}\n{feeds}") from error
                seen["compared with ONNX"] += int((~(estimate.unknown | estimate.left_open)).sum())
        seen.update({statement.op for statement in program.statements} | set(program.dtypes.values()))

    check()
    assert {*POINTWISE, *DTYPES} <= seen.keys()
    assert seen["compared"] > 0.8 * seen["elements"], seen
    assert seen["compared with ONNX"] > 0.5 * seen["elements"], seen
