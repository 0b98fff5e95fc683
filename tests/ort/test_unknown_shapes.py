"""What stands behind a tensor whose rank ONNX Runtime can't tell: no operator may conclude a shape from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from node_cases import Array, model_with
from onnx import TensorProto, helper

from ort.host import make
from ortplugin.graph.domains import DOMAIN
from ortplugin.ops import OPERATORS

# Each operator's inputs, the attributes, and how many outputs it has. The first input's shape is not known.
IMAGE, WEIGHTS, GRADIENT = (2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3)
CONV = {"kernel_shape": [3, 3], "program": "(float x) => (float y) { y = Relu(x) }"}
NODES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "FusedPointwise": ([IMAGE], {"program": "(float x) => (float y) { y = Abs(x) }"}),
    "FusedSumTo": ([IMAGE], {"program": '(float x) => (float y) { y = SumTo<axes="1">(x) }'}),
    "FusedLayerNorm": ([IMAGE], {"program": "(float x) => (float y) { y = LayerNormalization<epsilon=0.1>(x) }"}),
    "FusedConv": ([IMAGE, WEIGHTS], CONV),
    "FusedConvTranspose": ([(2, 4, 5, 5), WEIGHTS], CONV),
    "ConvGrad": (
        [IMAGE, WEIGHTS, GRADIENT],
        {"kernel_shape": [3, 3], "gradients": "dX", "operands": "X W", "program": "(float dz) => (float dz) {}"},
    ),
    "FusedPool": ([IMAGE], {"kind": "max", "kernel_shape": [2, 2]}),
    "FusedResize": ([IMAGE], {"sizes": [7, 8], "mode": "linear"}),
    "ScatterND": ([IMAGE, np.array([[1]]), (1, 3, 5, 5)], {}),
    "ScatterElements": ([IMAGE, np.zeros(IMAGE, np.int64), IMAGE], {"axis": 1, "reduction": "add"}),
    "UpdateSlice": ([IMAGE, (2, 3, 1, 5), np.array([2])], {"axes": [2]}),
}


def _outputs(model: bytes, feeds: dict[str, Array]) -> Array:
    (found,) = make(model).run(None, feeds)
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("name", [operator.name for operator in OPERATORS])
def test_an_unknown_rank_is_no_scalar(library: Path, name: str) -> None:
    """Gather would refuse a scalar when the session is made."""
    given, attributes = NODES[name]
    rng = np.random.default_rng(5)
    constants = [(f"i{k}", value) for k, value in enumerate(given) if isinstance(value, np.ndarray)]
    arrays = {f"i{k}": rng.standard_normal(v).astype(np.float32) for k, v in enumerate(given) if isinstance(v, tuple)}
    inputs = [f"i{k}" for k in range(len(given))]
    known = helper.make_node(name, inputs, ["y"], domain=DOMAIN, **attributes)
    hidden = helper.make_node(name, ["h", *inputs[1:]], ["y"], domain=DOMAIN, **attributes)
    declared = [(key, "float", value.shape) for key, value in arrays.items()]
    plain = model_with([known], declared, [("y", "float")], constants)
    model = onnx.load_from_string(
        model_with(
            [
                helper.make_node("Reshape", ["i0", "shape"], ["h"]),
                hidden,
                helper.make_node("Gather", ["y", "places"], ["z"], axis=0),
            ],
            [*declared, ("shape", "int64", ("rank",))],
            [("z", "float")],
            [*constants, ("places", np.array([1, 0]))],
        )
    )
    model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    wanted = _outputs(plain, arrays)
    found = _outputs(model.SerializeToString(), {**arrays, "shape": np.array(arrays["i0"].shape)})
    assert np.array_equal(found, wanted[[1, 0]])
