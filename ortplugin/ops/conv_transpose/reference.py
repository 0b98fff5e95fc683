"""FusedConvTranspose in NumPy, in float64."""

from collections.abc import Sequence

import numpy as np

from ...arrays import Array, Wide
from ...graph.conv_geometry import ConvAttributes, windows
from ...program import Program
from ..conv.reference import epilogue
from ..conv_grad.reference import Window, data_gradient


def conv_transpose(
  attributes: ConvAttributes, program: Program, inputs: Sequence[Array], rounded: bool = True
) -> list[Array]:
  """The outputs of a FusedConvTranspose: X, W and the program's other parameters to one array of S for each result."""
  x, w, *operands = inputs
  results = epilogue(program, transposed_convolution(attributes, x, w), operands, rounded)
  if attributes.output_layout == attributes.layout:
    return results
  return [np.ascontiguousarray(np.moveaxis(each, -1, 1)) for each in results]


def transposed_convolution(attributes: ConvAttributes, x: Array, w: Array) -> Wide:
  """The transposed convolution alone, in the node's layout."""
  channels_last = attributes.layout == "NHWC"
  if channels_last:
    x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
  axes = windows(attributes, x.shape, w.shape)
  strides, dilations = [each.stride for each in axes], [each.dilation for each in axes]
  window = Window(strides, dilations, [each.pad_begin for each in axes], attributes.group)
  y = data_gradient(np.asarray(x), np.asarray(w), [each.out for each in axes], window)
  return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if channels_last else y
