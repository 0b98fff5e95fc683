"""What the optimizer knows of an operator: a record of its name and of four functions on its node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx

from ..arrays import Array
from ..graph import DOMAIN, TensorType


class DeviceVariants(Protocol):
  """A function whose last argument, the GPU's number, may be left out for the first one."""

  def __call__(
    self, node: onnx.NodeProto, inputs: Sequence[TensorType], constant: Sequence[bool], device_id: int = 0
  ) -> Sequence[Mapping[str, Any]]:
    """Sets of attributes."""


@dataclass(frozen=True)
class Operator:
  """One fused operator. Every function takes the onnx.NodeProto and raises ModelError that names the node."""

  name: str
  summary: str
  infer_shapes: Callable[[onnx.NodeProto, Sequence[TensorType]], list[TensorType]]
  """(node, inputs) -> outputs"""
  decompose: Callable[[onnx.NodeProto, int], list[onnx.NodeProto]]
  """(node, opset of ai.onnx, 11 or later) -> the same in standard ONNX, reading and writing the same names"""
  reference: Callable[[onnx.NodeProto, Sequence[Array]], list[Array]]
  """(node, inputs) -> outputs in NumPy, computed in float64: what the kernels, the decomposition and the rewrites are
    compared with. `rounded`: each has its dtype; otherwise floating ones are float64 before that last rounding, which
    is what a tolerance is measured from. The formula is in the operator's reference.py."""
  domain: str = DOMAIN
  version: int = 1
  variants: Callable[[onnx.NodeProto], Sequence[Mapping[str, Any]]] = lambda node: ()
  """node -> sets of attributes with which it computes the same in another way; `optimize-model --tune` times them.
    Of those that set the same attributes it takes the best, and goes on from there with those that set others."""
  device_variants: DeviceVariants = lambda node, inputs, constant, device_id=0: ()
  """(node, inputs, whether each is an initializer, the GPU's number) -> more such sets, which only that GPU can
    tell"""
