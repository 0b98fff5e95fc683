"""Standard ONNX, which has channels first, for tensors that have them last."""

from collections.abc import Callable

import numpy as np

from ..decompose import Builder


def as_channels_first(
  b: Builder, nhwc: bool, spatial: int, x: str, y: str, operator: Callable[[str, str], None]
) -> None:
  """`operator(input, output)` from x to y, between Transposes where `nhwc`."""
  if not nhwc:
    operator(x, y)
    return
  channels_first = b.op("Transpose", x, perm=[0, spatial + 1, *range(1, spatial + 1)])
  made = f"{y}/channels_first"
  operator(channels_first, made)
  b.op("Transpose", made, output=y, perm=[0, *range(2, spatial + 2), 1])


def global_over_channels_last(b: Builder, reduction: str, x: str, y: str) -> None:
  """`reduction` over all axes but the first and the last, which stay with length 1, whatever x's rank."""
  shape = b.op("Shape", x)
  zero, one, minus = (b.int64([number]) for number in (0, 1, -1))
  most = b.int64([np.iinfo(np.int64).max])
  batch = b.op("Slice", shape, zero, one, zero)
  sizes = b.op("Slice", shape, one, minus, zero)
  channels = b.op("Slice", shape, minus, most, zero)
  flat = b.op("Concat", batch, _reduced(b, "ReduceProd", sizes, 0), channels, axis=0)
  # Before opset 14 a 0 stands for x's own size there, so that images without pixels do not fit.
  rows = b.op("Reshape", x, flat, allowzero=1) if b.opset >= 14 else b.op("Reshape", x, flat)
  reduced = _reduced(b, reduction, rows, 1)
  ones = b.op("Expand", one, b.op("Shape", sizes))
  b.op("Reshape", reduced, b.op("Concat", batch, ones, channels, axis=0), output=y)


def _reduced(b: Builder, reduction: str, value: str, axis: int) -> str:
  if b.opset < 18:
    return b.op(reduction, value, axes=[axis], keepdims=1)
  return b.op(reduction, value, b.int64([axis]), keepdims=1)
