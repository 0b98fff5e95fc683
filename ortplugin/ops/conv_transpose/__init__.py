"""FusedConvTranspose: a transposed convolution and any pointwise program of its result.

    c[n, m, i] = sum over j, o and k with o * stride + k * dilation - begin = i of X[n, j, o] * W[j, m, k]
    outs       = program(c, operands)             bias, activation, residual: whatever the program says

docs/operators.md has the meaning in full; reference.py the formula.
Inputs, outputs and errors: FusedConv's; pads that leave nothing of the result are one, too. S is in the output layout,
    and operands broadcast to it in the layout.
"""

from collections.abc import Sequence
from functools import partial

import onnx

from ...arrays import Array
from ...graph import TensorType
from ...graph.conv_geometry import ConvAttributes, first, out_shape, read_attributes
from ...graph.ort_shapes import CONV_TRANSPOSE
from ..base import Operator
from ..conv.algorithms import device_variants
from ..conv_epilogue import check_attributes, decompose_around, infer_results, read_epilogue
from . import reference as reference_module

NAME = "FusedConvTranspose"


def attributes_of(node: onnx.NodeProto) -> ConvAttributes:
  """The node's attributes of ConvTranspose and its layout, checked. Raises ModelError that names the node."""
  check_attributes(node)
  return read_attributes(node, transposed=True)


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared and the result's shape, None where the inputs' shapes do not tell."""
  attributes = attributes_of(node)
  results = infer_results(node, read_epilogue(node), inputs, partial(out_shape, attributes))
  if attributes.output_layout == attributes.layout:
    return results
  return [TensorType(each.dtype, None if each.shape is None else first(each.shape)) for each in results]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX: a ConvTranspose and what `decompose_around` puts around it."""
  return decompose_around(node, attributes_of(node), read_epilogue(node), opset, "ConvTranspose", CONV_TRANSPOSE)


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """See reference.py."""
  return reference_module.conv_transpose(attributes_of(node), read_epilogue(node), inputs, rounded)


OPERATOR = Operator(
  NAME,
  "a transposed convolution with bias, activation and whatever else is pointwise, in NCHW or NHWC",
  infer_shapes,
  decompose,
  reference,
  device_variants=partial(device_variants, transposed=True),
)
