"""A graph of float32 and double as one of fp16 or bf16 and float32. The wide one is its oracle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from .graph import DOUBLE, FLOAT, HALVES

ELEMENTS = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
_TYPED = ("to", "dtype")


def narrow_model(model: onnx.ModelProto, dtype: str, kept: Collection[str]) -> onnx.ModelProto:
    """The model with `dtype` (fp16, bf16) for float32 and float32 for double; `kept`: initializers that stay."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    to = {TensorProto.FLOAT: ELEMENTS[dtype], TensorProto.DOUBLE: TensorProto.FLOAT}
    _graph(result.graph, to, dtype, kept)
    for function in result.functions:
        for node in function.node:
            _node(node, to, dtype)
    return result


def narrow_feeds(feeds: Mapping[str, Any], dtype: str, kept: Collection[str]) -> dict[str, Any]:
    """The feeds of the narrow model."""
    return {name: array if name in kept else narrow_array(array, dtype) for name, array in feeds.items()}


def narrow_array(array: Any, dtype: str) -> Any:
    """An array as the narrow model has it."""
    if array.dtype == FLOAT:
        with np.errstate(over="ignore"):
            return array.astype(HALVES[dtype])
    return array.astype(FLOAT) if array.dtype == DOUBLE else array


def _graph(graph: onnx.GraphProto, to: dict[int, int], dtype: str, kept: Collection[str]) -> None:
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.name not in kept and value.type.HasField("tensor_type"):
            tensor = value.type.tensor_type
            tensor.elem_type = to.get(tensor.elem_type, tensor.elem_type)
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _tensor(tensor, dtype)
    for node in graph.node:
        _node(node, to, dtype)


def _node(node: onnx.NodeProto, to: dict[int, int], dtype: str) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            _graph(attribute.g, to, dtype, ())
        elif attribute.type == AttributeProto.TENSOR:
            _tensor(attribute.t, dtype)
        elif attribute.name in _TYPED and attribute.type == AttributeProto.INT:
            attribute.i = to.get(attribute.i, attribute.i)


def _tensor(tensor: TensorProto, dtype: str) -> None:
    if tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE):
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(narrow_array(numpy_helper.to_array(tensor), dtype), name))


def walk(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    """The graph and the bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from walk(attribute.g)
