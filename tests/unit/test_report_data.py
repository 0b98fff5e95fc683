"""What the report says beyond counts: regions, what weights take, times by operator, what to try next; its schema."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import onnx
import pytest
from json_schema import SCHEMA, faults
from onnx import TensorProto, helper, numpy_helper
from test_report import full_report

from ortplugin.optimizer import optimize
from ortplugin.passes.base import Change, NearMiss
from ortplugin.report import (
    Dropped,
    InputComparison,
    NodeTime,
    OutputComparison,
    Profile,
    ProviderVerification,
    Report,
    Timeline,
    TunedNode,
    Weights,
    weigh,
)
from ortplugin.report.regions import Region, find_regions

CONV, RELU, NORM, FUSED = "c (Conv)", "r (Relu)", "n (LayerNormalization)", "c (FusedConv)"


def rich_report() -> Report:
    """One with something under every key."""
    report = full_report()
    report.opset, report.functions, report.precision = (9, 11), {"f::g": 2}, "fp16"
    report.tuning = [TunedNode("n (FusedConv)", "a=1", {"": 3.0, "a=1": None, "a=2": 2.0}, ("a=2",))]
    report.guilty = report.changes[0]
    report.dropped = [Dropped("norm-prologue", ("add (Add)",), "output 'y' differs")]
    report.labels_before = frozenset({"id (Identity)", "ln (LayerNormalization)", "add (Add)"})
    report.labels_after = frozenset({"ln (FusedLayerNorm)"})
    largest = {"name": "w", "dtype": "float32", "shape": [1000], "bytes": 4000}
    report.weights_before = Weights(2, 4000, {"float32": 4000}, (largest,))
    report.weights_after = Weights(0, 0, {}, ())
    before = (
        NodeTime("ln", "ai.onnx::LayerNormalization", 3.0, 64, ("ln (LayerNormalization)",)),
        NodeTime("mm", "ai.onnx::MatMul", 1.0, 64, ("mm (MatMul)",)),
    )
    after = (NodeTime("ln", "ortplugin::FusedLayerNorm", 1.5, 64, ("ln (FusedLayerNorm)",)),)
    report.profile = Profile("CPUExecutionProvider", "generated", Timeline(4.5, 9, before), Timeline(2.0, 9, after))
    return report


def data_of(report: Report) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(report.to_json())
    return data


# ------------------------------------------------------------------------------------------------------------- schema


@pytest.mark.parametrize("report", [Report(), Report("restore"), Report("profile"), full_report(), rich_report()])
def test_reports_fit_the_schema(report: Report) -> None:
    assert list(faults(data_of(report))) == []


def places(value: Any) -> int:
    """How many keys there are in it."""
    if isinstance(value, dict):
        return len(value) + sum(map(places, value.values()))
    return sum(map(places, value)) if isinstance(value, list) else 0


def test_the_schema_refuses_what_is_missing_odd_or_of_another_type() -> None:
    whole = data_of(rich_report())
    assert places(whole) > 150
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"]) == set(whole)
    changes = {
        "next": [{"option": "x"}],
        "fused": "2",
        "action": "undo",
        "regions": [{**whole["regions"][0], "size": 3}],
        "profile": {**whole["profile"], "original": {**whole["profile"]["original"], "runs": 1.5}},
        "seconds": {"load": None},
    }
    for key, value in changes.items():
        assert list(faults({**copy.deepcopy(whole), key: value})), key
    assert list(faults({key: whole[key] for key in whole if key != "memory"})) == ["report lacks memory"]


# ------------------------------------------------------------------------------------------------------------ regions


def test_a_region_is_traced_through_all_its_rewrites() -> None:
    changes = [
        Change("fuse-conv", (CONV,), FUSED),
        Change("channels-last", (FUSED, "d (FusedConv)"), FUSED),
        Change("conv-epilogue", (FUSED, RELU), FUSED),
        Change("dead-nodes", ("made (Reshape)", "s (Shape)"), ""),
        Change("sum-to-add", ("t (Sum)",), "t (Add)"),
    ]
    before = {CONV, RELU, "s (Shape)", "t (Sum)"}
    found = find_regions(changes, before, {FUSED, "d (FusedConv)", "t (Add)"})
    fused = Region(FUSED, [CONV, RELU], {"conv-epilogue": 1, "channels-last": 1, "fuse-conv": 1})
    replaced, removed = Region("t (Add)", ["t (Sum)"], {"sum-to-add": 1}), Region("", ["s (Shape)"], {"dead-nodes": 1})
    assert found == [fused, replaced, removed]
    assert [region.kind for region in found] == ["fused", "replaced", "removed"]


def test_a_node_that_stays_belongs_to_what_takes_it_last() -> None:
    """Of a Cast that two fused nodes compute again, and a layout that changes nodes which stand on."""
    changes = [
        Change("p", ("cast (Cast)", "a (Add)"), "a (FusedPointwise)"),
        Change("p", ("cast (Cast)", "b (Add)"), "b (FusedPointwise)"),
    ]
    before = {"cast (Cast)", "a (Add)", "b (Add)"}
    after = {"a (FusedPointwise)", "b (FusedPointwise)"}
    assert [region.nodes for region in find_regions(changes, before, after)] == [
        ["a (Add)"],
        ["cast (Cast)", "b (Add)"],
    ]
    kept = find_regions(changes, before, {*after, "cast (Cast)"})
    assert [region.nodes for region in kept] == [["a (Add)"], ["b (Add)"]]


def test_regions_of_a_real_model_hold_each_original_node_once() -> None:
    from exported import DATA

    _, report = optimize(DATA / "mobilenet_torchscript_opset17.onnx")
    data = data_of(report)
    nodes = [node for region in data["regions"] for node in region["nodes"]]
    assert len(nodes) == len(set(nodes)) > 20
    assert set(nodes) <= report.labels_before
    fused = [region for region in data["regions"] if region["kind"] == "fused"]
    assert {region["result"] for region in fused} <= report.labels_after
    assert {"n2 (Conv)", "n3 (HardSwish)"} in [set(region["nodes"]) for region in fused]


# ------------------------------------------------------------------------------------------------- weights and times


def test_weights_are_counted_in_bodies_too() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["o"])], "b", [], [helper.make_tensor_value_info("o", 1, None)],
        [numpy_helper.from_array(np.zeros((2, 3), np.float16), "w")],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)], "g", [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)],
        [numpy_helper.from_array(np.bool_(True), "c"), helper.make_tensor("i4", TensorProto.INT4, [3], [1, 2, 3])],
    )  # fmt: skip
    found = weigh(helper.make_model(graph))
    assert (found.weights, found.bytes) == (4, 2 * 12 + 1 + 2)
    assert found.dtypes == {"bool": 1, "float16": 24, "int4": 2}
    assert found.largest[0] == {"name": "w", "dtype": "float16", "shape": [2, 3], "bytes": 12}
    assert weigh(onnx.ModelProto()) == Weights(0, 0, {}, ())


def test_times_are_summed_by_operator_and_by_who_could_take_them() -> None:
    profile = data_of(rich_report())["profile"]
    norm, product = profile["original"]["operators"]
    assert norm == {
        "operator": "ai.onnx::LayerNormalization",
        "count": 1,
        "ms": 3.0,
        "share": 0.75,
        "taken_share": 0.75,
    }
    assert product["taken_share"] == 0
    assert profile["original"]["taken_share"] == 0.75
    assert [node["taken_by"] for node in profile["original"]["nodes"]] == ["ln (FusedLayerNorm)", None]
    assert profile["optimized"]["taken_share"] == 1


def test_a_node_of_which_a_part_stays_is_not_taken() -> None:
    """As ONNX Runtime's product with a factor, of which we would take the factor."""
    taken = {"mul (Mul)": "mul (FusedPointwise)"}
    line = Timeline(1.0, 1, (NodeTime("f", "com.microsoft::FusedMatMul", 1.0, 0, ("mul (Mul)", "mm (MatMul)")),))
    assert line.to_dict(taken)["taken_share"] == 0
    assert line.to_dict({**taken, "mm (MatMul)": "mul (FusedMatMul)"})["taken_share"] == 1


# ------------------------------------------------------------------------------------------------------------- advice


def options(report: Report) -> list[str]:
    return [each["option"] for each in data_of(report)["next"]]


def test_what_to_try_next_follows_from_what_happened() -> None:
    assert options(Report()) == []
    report = full_report()  # on generated inputs and a user's, on the CPU alone
    assert options(report) == ["change the model", "--provider cuda"]
    report.near_misses = [NearMiss("r", "a (Add)", "the rank of 'x' is unknown; fix it with --input-shape")]
    report.verification = []
    assert options(report) == ["--input-shape NAME:SIZE,...", "--verify"]
    case = InputComparison("generated", (OutputComparison("y", True),))
    report.verification = [ProviderVerification("CUDAExecutionProvider", (case,), 1.0, 2.0)]
    assert options(report) == ["--input-shape NAME:SIZE,...", "--inputs data.npz", "--tune", "keep the original"]
    report.guilty, report.weights_before = report.changes[0], Weights(1, 8, {"float32": 8}, ())
    assert options(report)[::2] == ["--drop-guilty", "--precision fp16", "--tune"]
    report = rich_report()
    report.action, report.near_misses, report.guilty = "profile", [], None
    assert options(report)[-2:] == ["-o OUT", "--explain"]
    assert "25% of the original's time on this CPU is in ai.onnx::MatMul" in data_of(report)["next"][-1]["why"]
