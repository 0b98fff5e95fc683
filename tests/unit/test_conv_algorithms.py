"""What a convolution offers to --tune: asked of the native library, which has to have a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from ortplugin.errors import ModelError
from ortplugin.ops import find
from ortplugin.ops.base import TensorType
from ortplugin.ops.conv.algorithms import device_variants
from ortplugin.session import gpu_count

HALF = np.dtype(np.float16)
PROGRAM = "(float16 c, float16 b) => (float16 y) { v = Add(c, b) y = Relu(v) }"


def node_of(**attributes: object) -> onnx.NodeProto:
    return helper.make_node(
        "FusedConv", ["x", "w", "b"], ["y"], "conv7", domain="ortplugin", program=PROGRAM, kernel_shape=[3, 3],
        layout="NHWC", **attributes,
    )  # fmt: skip


def types(x: Sequence[int | str | None] | None) -> list[TensorType]:
    shape = None if x is None else tuple(x)
    return [TensorType(HALF, shape), TensorType(HALF, (8, 3, 3, 16)), TensorType(HALF, (8,))]


def test_the_operator_has_them() -> None:
    operator = find("ortplugin", "FusedConv")
    assert operator is not None
    assert operator.device_variants is device_variants
    assert not operator.variants(node_of())


@pytest.mark.parametrize("x", [None, ("n", 9, 9, 16), (2, None, 9, 16)])
def test_unknown_shapes_have_none(x: Sequence[int | str | None] | None) -> None:
    assert device_variants(node_of(), types(x), [False, True, True]) == ()


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is there")
def test_without_a_gpu_the_node_and_what_lacks_are_named(library: Path) -> None:
    with pytest.raises(ModelError, match=r"node 'conv7' \(FusedConv\): its algorithms can't be listed: .*libcuda"):
        device_variants(node_of(), types((2, 9, 9, 16)), [False, True, True])


def test_a_node_that_is_wrong_is_refused_before() -> None:
    with pytest.raises(ModelError, match=r"node 'conv7'.*strides"):
        device_variants(node_of(strides=[1, 2, 3]), types((2, 9, 9, 16)), [False, True, True])
