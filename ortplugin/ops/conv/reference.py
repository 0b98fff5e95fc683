"""FusedConv in NumPy, in float64: what the kernels, the decomposition and the rewrites are compared with."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ...arrays import Array, Wide
from ...graph.conv_geometry import ConvAttributes, windows
from ...program import Program
from .. import pointwise_reference


def conv(attributes: ConvAttributes, program: Program, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs of a FusedConv: X, W and the program's other parameters to one array of S for each result.

  `rounded`: each output has its result's dtype. Otherwise floating outputs are float64 before that last rounding,
  which is what a tolerance is measured from.
  """
  x, w, *operands = inputs
  return epilogue(program, convolution(attributes, x, w), operands, rounded)


def epilogue(program: Program, c: Wide, operands: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The program's results, its first parameter being `c`, whose shape all of them have.

  Raises ValueError where an operand does not broadcast to that shape.
  """
  found = pointwise_reference.values(program, [c, *operands])
  outputs = []
  for result in program.results:
    value = np.broadcast_to(found[result.name], c.shape)
    outputs.append(pointwise_reference.rounded(value, result.dtype) if rounded else np.array(value))
  return outputs


def convolution(attributes: ConvAttributes, x: Array, w: Array) -> Wide:
  """The convolution alone, in the node's layout.

  y[n, m, o] = sum over c and k of x[n, c, o * stride + k * dilation - begin] * w[m, c, k], zero beyond x
  """
  x, w = np.asarray(x).astype(np.float64), np.asarray(w).astype(np.float64)
  channels_last = attributes.layout == "NHWC"
  if channels_last:
    w = np.moveaxis(w, -1, 1)
    if attributes.input_layout == "NHWC":
      x = np.moveaxis(x, -1, 1)
  axes = windows(attributes, x.shape, w.shape)
  batch, group, rows = x.shape[0], attributes.group, w.shape[0]
  padded = np.pad(x, [(0, 0), (0, 0), *((each.pad_begin, each.pad_end) for each in axes)])
  out = tuple(each.out for each in axes)
  columns = w.shape[1]
  weights = np.moveaxis(w.reshape(group, rows // group, *w.shape[1:]), (1, 2), (-2, -1))  # of a tap: its matrices
  weights = np.moveaxis(weights, 0, -3)
  y = np.zeros((batch, group, rows // group, *out))
  with np.errstate(all="ignore"):
    for tap in product(*(range(each.kernel) for each in axes)):
      starts = [at * each.dilation for at, each in zip(tap, axes, strict=True)]
      seen = tuple(
        slice(start, start + (each.out - 1) * each.stride + 1 if each.out else start, each.stride)
        for start, each in zip(starts, axes, strict=True)
      )
      index: tuple[Any, ...] = (slice(None), slice(None), *seen)
      pixels = padded[index].reshape(batch, group, columns, math.prod(out))
      y += (weights[tap] @ pixels).reshape(y.shape)
  y = y.reshape(batch, rows, *out)
  return np.moveaxis(y, 1, -1) if channels_last else y
