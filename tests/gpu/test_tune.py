"""--tune on the GPU: candidates are timed in CUDA graphs, and the tuned model agrees with the original."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import ortplugin
from ortplugin import tune

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

DATA = Path(__file__).resolve().parent.parent / "data"
ROWS, UPDATES, WIDTH = 5000, 3000, 64


def scatter_model() -> ModelProto:
    """Rows of a matrix replaced, by the standard's operator."""
    node = helper.make_node("ScatterND", ["data", "at", "rows"], ["y"], "scatter")
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("data", TensorProto.FLOAT, [ROWS, WIDTH]),
            helper.make_tensor_value_info("at", TensorProto.INT64, [UPDATES, 1]),
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, [UPDATES, WIDTH]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, WIDTH])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_a_scatter(rng: np.random.Generator) -> None:
    feeds = {
        "data": rng.standard_normal((ROWS, WIDTH), dtype=np.float32),
        "at": rng.permutation(ROWS)[:UPDATES, None],
        "rows": rng.standard_normal((UPDATES, WIDTH), dtype=np.float32),
    }
    tuned, report = ortplugin.optimize(scatter_model(), tune=True, verify=True, providers=["cuda"], inputs=feeds)
    assert report.passed
    (entry,) = report.tuning
    times = entry.microseconds
    assert set(times) == {"", "algorithm=sequential", "algorithm=parallel", "algorithm=sorting", tune.STANDARD}
    default, standard = times[""], times[tune.STANDARD]
    assert default is not None
    assert standard is not None
    assert default < standard
    expected = feeds["data"].copy()
    expected[feeds["at"][:, 0]] = feeds["rows"]
    session = ortplugin.session(tuned.SerializeToString(), providers=["cuda"])
    assert (cupy.asnumpy(ortplugin.run(session, feeds)["y"]) == expected).all()


def test_a_transformer() -> None:
    _, report = ortplugin.optimize(DATA / "bert_dynamo.onnx", tune=True, verify=True, providers=["cuda"])
    assert report.passed
    assert report.tuning
    assert all(entry.microseconds[""] is not None for entry in report.tuning)
