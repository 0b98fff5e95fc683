"""Pointwise convolutions with channels first that have engines of ours, which read the image as it lies."""

import math

import onnx_graphsurgeon as gs

from ...graph import Dim, Scope, Shape
from ...target import ENGINES
from .fused import conv_dtype, is_channels_last

FEW = ENGINES["nchw_few_most_channels"]
MOST_CHANNELS = ENGINES["nchw_gemm_most_channels"]
PIXELS = ENGINES["nchw_gemm_pixels"]
PLAIN = {"strides": 1, "dilations": 1, "kernel_shape": 1, "pads": 0}  # what all numbers of an attribute are


def has_engine(dtype: str | None, x: Shape | None, filters: Dim) -> bool:
  """Whether there is one for X [N, C, ..] of this dtype and so many filters."""
  if x is None or len(x) < 3 or not isinstance(x[1], int) or not isinstance(filters, int):
    return False
  channels, spatial = x[1], [dim for dim in x[2:] if isinstance(dim, int)]
  if max(channels, filters) <= FEW and dtype in ("float16", "bfloat16", "float"):
    return True
  is_aligned = len(spatial) == len(x) - 2 and math.prod(spatial) % PIXELS == 0
  return is_aligned and dtype in ("float16", "bfloat16") and channels <= MOST_CHANNELS and channels % 2 == 0


def is_plane(scope: Scope, node: gs.Node) -> bool:
  """Whether a convolution of ours is one that such an engine takes."""
  weights = scope.shape(node.inputs[1])
  if node.op != "FusedConv" or is_channels_last(node) or "kernel_shape" not in node.attrs or weights is None:
    return False
  plain = all(set(node.attrs.get(name) or [value]) == {value} for name, value in PLAIN.items())
  is_alone = node.attrs.get("group", 1) == 1 and node.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
  return plain and is_alone and has_engine(conv_dtype(scope, node), scope.shape(node.inputs[0]), weights[0])
