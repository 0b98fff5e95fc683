"""A transposed convolution of one pixel becomes a convolution with one channel for each number of its result.

    y = FusedConvTranspose(x, w, bias)       x [N, 1, 1, C]   w [C, h, w, M]   bias [M]   y [N, h, w, M], channels last

becomes

    z = FusedConv(x, v, biases)              v [h * w * M, 1, 1, C]   biases [h * w * M]   z [N, 1, 1, h * w * M]
    y = Reshape(z, [0, h, w, M])

which is a product of matrices. So begin generators of images: cuDNN takes 444 us for DCGAN's first layer at batch 64.
"""

from math import prod
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, ELEMENTS, Scope, labelled
from ...program import parse
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import integers
from .fused import OWN_INPUTS, conv_node, is_channels_last, why_invalid


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one FusedConvTranspose."""
  if scope.op(node) != f"{DOMAIN}::FusedConvTranspose" or not is_channels_last(node):
    return None
  shape = scope.shape(node.inputs[0])
  if shape is None or any(size != 1 for size in shape[1:-1]) or len(node.outputs) != 1:
    return None
  if "output_layout" in node.attrs:
    return None
  weights = scope.constant(node.inputs[1], ELEMENTS)
  reason = why_invalid(node) or _reason(node)
  if weights is None:
    reason = f"'{node.inputs[1].name}' is no constant"
  if reason is not None:
    return Missed(node, reason)
  assert weights is not None
  _, *kernel, channels = weights.shape
  operands = [_operand(scope, tensor, kernel) for tensor in node.inputs[OWN_INPUTS:]]
  if any(operand is None for operand in operands):
    name = next(t.name for t, made in zip(node.inputs[OWN_INPUTS:], operands, strict=True) if made is None)
    return Missed(node, f"'{name}' is no constant with one number or one for each channel")

  rows = np.moveaxis(weights, 0, -1).reshape(-1, *[1] * len(kernel), weights.shape[0])
  inputs = [node.inputs[0], scope.add_constant(rows, f"{node.inputs[1].name}_rows"), *operands]
  attributes: dict[str, Any] = {"layout": "NHWC", "kernel_shape": [1] * len(kernel)}
  if "allow_tf32" in node.attrs:
    attributes["allow_tf32"] = node.attrs["allow_tf32"]
  conv = conv_node("FusedConv", node.name, attributes, parse(str(node.attrs["program"])), inputs)
  y = node.outputs[0]
  long = scope.like(y, "row", (shape[0], *[1] * len(kernel), prod(kernel) * channels))
  conv.outputs.append(long)
  scope.insert(conv, node)
  target = integers(scope, [0, *kernel, channels], f"{y.name}_shape")
  view = gs.Node("Reshape", scope.unique(f"{y.name}/Reshape"), {}, [long, target])
  labels = labelled(node)
  scope.replace([node], view, [y])
  return Applied(labels, conv)


def _reason(node: gs.Node) -> str | None:
  """Why the result is not as large as the kernel, each pixel of it the product with one place of the weights."""
  attributes = node.attrs
  if attributes.get("group", 1) != 1:
    return f"it has {attributes['group']} groups"
  if attributes.get("output_shape") or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
    return "its pads depend on the shape"
  for name in ("pads", "output_padding"):
    if any(attributes.get(name) or ()):
      return f"it has {name} of {list(attributes[name])}"
  if any(each != 1 for each in attributes.get("dilations") or ()):
    return f"its kernel is dilated by {list(attributes['dilations'])}"
  return None


def _operand(scope: Scope, tensor: gs.Tensor, kernel: list[int]) -> gs.Tensor | None:
  """The operand for the long row of channels; None if it differs from pixel to pixel or is no constant."""
  values = scope.constant(tensor, ELEMENTS)
  if values is None or values.size not in (1, values.shape[-1] if values.ndim else 1):
    return None
  if values.size == 1:
    return tensor if values.ndim <= 1 else scope.add_constant(values.reshape(1), tensor.name)
  return scope.add_constant(np.tile(values.reshape(-1), prod(kernel)), tensor.name)


VECTOR_CONV_TRANSPOSE = RulePass(
  "vector-conv-transpose", "a transposed convolution of one pixel becomes a convolution of one pixel", rewrite
)
