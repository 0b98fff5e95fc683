"""FusedConv: a convolution and any pointwise program of its result.

    c[n, m, o] = sum over i and k of X[n, i, o * stride + k * dilation - begin] * W[m, i, k]
    outs       = program(c, operands)             bias, activation, residual: whatever the program says

docs/operators.md has the meaning in full; reference.py the formula.
Inputs: X, W, then one operand for each of the program's parameters but the first, in order, of the dtypes declared.
Outputs: one for each of the program's results (1 to 16), in order, with the dtype declared there and the shape S of
    the convolution, to which every operand must broadcast.
Errors: an invalid program or one with a core operator, attributes that contradict each other or the shapes, channels
    that the groups do not divide or that X and W disagree on, a kernel larger than the padded input, another number of
    inputs or outputs than the program has, an input of another dtype than declared, an operand that does not broadcast.
"""

from collections.abc import Sequence
from functools import partial

import onnx

from ...arrays import Array
from ...graph.conv_geometry import ConvAttributes, out_shape, read_attributes
from ...graph.shapes import TensorType
from ..base import Operator
from ..conv_epilogue import check_attributes, decompose_around, infer_results, read_epilogue
from . import reference as reference_module
from .algorithms import device_variants

NAME = "FusedConv"
ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def attributes_of(node: onnx.NodeProto) -> ConvAttributes:
  """The node's attributes of Conv and its layout, checked. Raises ModelError that names the node."""
  check_attributes(node)
  return read_attributes(node)


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared and the convolution's shape, None where the inputs' shapes do not tell."""
  return infer_results(node, read_epilogue(node), inputs, partial(out_shape, attributes_of(node)))


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX: a Conv and what `decompose_around` puts around it."""
  return decompose_around(node, attributes_of(node), read_epilogue(node), opset, "Conv", ATTRIBUTES)


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs in NumPy, computed in float64; see reference.py."""
  return reference_module.conv(attributes_of(node), read_epilogue(node), inputs, rounded)


OPERATOR = Operator(
  NAME,
  "a convolution with bias, activation, residual and whatever else is pointwise, in NCHW or NHWC",
  infer_shapes,
  decompose,
  reference,
  device_variants=device_variants,
)
