"""What the optimizer knows of an operator: a record of its name and of four functions on its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortplugin.graph.shapes import Shape

DOMAIN = "ortplugin"


@dataclass(frozen=True)
class TensorType:
    """A tensor's dtype and shape, each None where unknown."""

    dtype: np.dtype[np.generic] | None
    shape: Shape | None


@dataclass(frozen=True)
class Operator:
    """One fused operator. Every function takes the onnx.NodeProto and raises ModelError that names the node."""

    name: str
    domain: str
    version: int
    summary: str
    infer_shapes: Callable[[onnx.NodeProto, Sequence[TensorType]], list[TensorType]]
    """(node, inputs) -> outputs"""
    decompose: Callable[[onnx.NodeProto, int], list[onnx.NodeProto]]
    """(node, opset of ai.onnx) -> the same in standard ONNX, reading and writing the same names"""
    reference: Callable[[onnx.NodeProto, Sequence[npt.NDArray[Any]]], list[npt.NDArray[np.generic]]]
    """(node, inputs) -> outputs, computed in float64"""
    variants: Callable[[onnx.NodeProto], Sequence[Mapping[str, Any]]] = lambda node: ()
    """node -> sets of attributes with which it computes the same in another way; `optimize-model --tune` times them.
    Of those that set the same attributes it takes the best, and goes on from there with those that set others."""
    device_variants: Callable[[onnx.NodeProto, Sequence[TensorType], Sequence[bool]], Sequence[Mapping[str, Any]]] = (
        lambda node, inputs, constant: ()
    )
    """(node, inputs, whether each is an initializer) -> more such sets, which only the GPU at hand can tell"""
