"""Maxima and minima of NaN, which ONNX leaves open: what is compared where ONNX Runtime's providers disagree.

Ours propagate NaN, as ONNX Runtime's Max, Min, Clip and Relu do, and as its pools do on CUDA (cuDNN
is told to). On its CPU provider (1.31.1) a NaN in a pool or a scatter is the result of comparisons that are false:

    MaxPool, GlobalMaxPool, ReduceMax of [nan, 1, 2]: 2; of NaN alone: -3.4e38; the first with its indices, too: nan
    ScatterND, ScatterElements with max or min: the update where data is NaN, NaN where the update is

So a model whose values hang on it is judged in a form in which these operators propagate NaN:

    y = pool(x) * r / r,    r = 1 - pool(1 where x is NaN, else 0)

which is exact where nothing is NaN. Both models get this form, the optimized one for what it has left of ONNX's nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

POOLS = ("MaxPool", "GlobalMaxPool", "ReduceMax")  # what becomes of a pool with channels last is a ReduceMax
SCATTERS = ("ScatterND", "ScatterElements")
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def propagating(node: onnx.NodeProto, dtype: int, name: str) -> Iterator[onnx.NodeProto] | None:
    """The nodes in place of one whose maximum of NaN is open; None for any other, and where the dtype is unknown."""
    return _spelled(node, dtype, name) if dtype in FLOATS and _is_open(node) else None


def _is_open(node: onnx.NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in POOLS:
        return True
    reductions = [each.s for each in node.attribute if each.name == "reduction"]
    return node.op_type in SCATTERS and reductions in ([b"max"], [b"min"])


def _spelled(node: onnx.NodeProto, dtype: int, name: str) -> Iterator[onnx.NodeProto]:
    """The nodes in place of one. Greater, Less and Or are in every opset, IsNaN and Where from 9 on."""
    for value in (0, 1):
        constant = helper.make_tensor("value", TensorProto.FLOAT, [], [value])
        yield helper.make_node("Constant", [], [f"{name}/{value}"], value=constant)
    marks = list(node.input)
    for index in [0] if node.op_type in POOLS else [0, 2]:
        at = f"{name}/{index}/is"
        yield helper.make_node("Cast", [node.input[index]], [f"{at}/float"], to=TensorProto.FLOAT)
        yield helper.make_node("Greater", [f"{at}/float", f"{name}/0"], [f"{at}/above"])
        yield helper.make_node("Less", [f"{at}/float", f"{name}/1"], [f"{at}/below"])
        yield helper.make_node("Or", [f"{at}/above", f"{at}/below"], [f"{at}/number"])
        yield helper.make_node("Cast", [f"{at}/number"], [f"{at}/one"], to=TensorProto.FLOAT)
        yield helper.make_node("Sub", [f"{name}/1", f"{at}/one"], [f"{at}/nan"])
        marks[index] = f"{at}/nan"
    bare, marker = onnx.NodeProto(), onnx.NodeProto()
    bare.CopyFrom(node)
    marker.CopyFrom(node)
    marker.name = ""
    bare.output[0] = f"{name}/bare"
    del marker.input[:], marker.output[:]
    marker.input.extend(marks)
    marker.output.append(f"{name}/any")
    for attribute in marker.attribute:
        if attribute.name == "reduction":
            attribute.s = b"max"
    yield from (bare, marker)
    yield helper.make_node("Sub", [f"{name}/1", f"{name}/any"], [f"{name}/none"])
    yield helper.make_node("Div", [f"{name}/none", f"{name}/none"], [f"{name}/factor"])
    yield helper.make_node("Cast", [f"{name}/factor"], [f"{name}/factor/own"], to=dtype)
    yield helper.make_node("Mul", [f"{name}/bare", f"{name}/factor/own"], [node.output[0]])
