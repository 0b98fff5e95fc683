"""ConvGrad's sums as standard ONNX: dX is a ConvTranspose (a Conv, if transposed), dW a Conv of batches as channels."""

from collections.abc import Mapping
from typing import Any

from ..decompose import Builder
from .gradient import Gradient


def append(b: Builder, gradient: Gradient, dz: str, operands: Mapping[str, str], wanted: Mapping[str, str]) -> None:
  """Appends the nodes that make dX, dW and dB from `dz`."""
  parts = _Parts(b, gradient)
  z = parts.first(dz)
  if "dX" in wanted:
    w, x = parts.first(operands["W"]), operands.get("X")
    parts.data(z, w, None if x is None else parts.first(x), wanted["dX"])
  if "dW" in wanted:
    parts.weight(z, parts.first(operands["X"]), wanted["dW"])
  if "dB" in wanted:
    wide = "double" if gradient.dtype == "double" else "float"
    total = b.sum(b.cast(z, wide) if gradient.dtype != wide else z, (0, *range(2, gradient.rank + 2)), False)
    b.cast(total, gradient.weight_dtype, wanted["dB"])


class _Parts:
  def __init__(self, b: Builder, gradient: Gradient) -> None:
    self.b, self.gradient, self.rank = b, gradient, gradient.rank
    self.pads = [*gradient.pad_begin, *gradient.pad_end]

  def first(self, x: str) -> str:
    """Channels first."""
    if not self.gradient.channels_last:
      return x
    return self.b.op("Transpose", x, perm=[0, self.rank + 1, *range(1, self.rank + 1)])

  def last(self, x: str, output: str) -> None:
    """As the node's layout has it, under the output's name."""
    if self.gradient.channels_last:
      self.b.op("Transpose", x, output=output, perm=[0, *range(2, self.rank + 2), 1])
    else:
      self.b.op("Identity", x, output=output)

  def data(self, z: str, w: str, x: str | None, output: str) -> None:
    common: dict[str, Any] = {
      "strides": self.gradient.strides,
      "dilations": self.gradient.dilations,
      "group": self.gradient.group,
    }
    if self.gradient.transposed:
      dx = self.b.op("Conv", z, w, pads=self.pads, **common)
      reach = any(d > s for d, s in zip(self.gradient.dilations, self.gradient.strides, strict=True))
    else:
      padding = self.gradient.output_padding if x is None else [s - 1 for s in self.gradient.strides]
      reach = x is not None and any(padding)
      dx = self.b.op("ConvTranspose", z, w, pads=self.pads, output_padding=padding, **common)
    if reach and x is not None:
      dx = self._cropped(dx, x)
    elif reach:
      ends = [-(p // s) or 2**62 for p, s in zip(self.gradient.output_padding, self.gradient.strides, strict=True)]
      dx = self._sliced(dx, self.b.int64(ends))
    self.last(dx, output)

  def weight(self, z: str, x: str, output: str) -> None:
    b, group, wide = self.b, self.gradient.group, self.gradient.weight_dtype
    if wide != self.gradient.dtype:
      z, x = b.cast(z, wide), b.cast(x, wide)
    small, large = (x, z) if self.gradient.transposed else (z, x)
    swap = [1, 0, *range(2, self.rank + 2)]
    columns, rows = b.op("Transpose", large, perm=swap), b.op("Transpose", small, perm=swap)
    if group > 1:  # [C, N, ..] -> [group, C / group, N, ..] -> [C / group, group N, ..]
      shape = b.op("Shape", columns)
      sizes = self._slice_of(shape, 2, self.rank + 2)
      batch = self._slice_of(shape, 1, 2)
      split = b.op("Concat", b.int64([group, -1]), batch, sizes, axis=0)
      columns = b.op("Reshape", columns, split)
      columns = b.op("Transpose", columns, perm=[1, 0, *range(2, self.rank + 3)])
      batches = b.op("Mul", batch, b.int64([group]))
      joined = b.op("Concat", b.int64([-1]), batches, sizes, axis=0)
      columns = b.op("Reshape", columns, joined)
    dw = b.op(
        "Conv", columns, rows, pads=self.pads, strides=self.gradient.dilations, dilations=self.gradient.strides,
        group=group,
    )  # fmt: skip
    dw = b.op("Transpose", dw, perm=swap)
    if any(s > 1 for s in self.gradient.strides) or self.gradient.transposed:
      dw = self._sliced(dw, b.int64(self.gradient.kernel_shape))
    self.last(dw, output)

  def _slice_of(self, vector: str, start: int, end: int) -> str:
    return self.b.op("Slice", vector, self.b.int64([start]), self.b.int64([end]))

  def _cropped(self, value: str, like: str) -> str:
    """The first elements along the spatial axes, as many as `like` has."""
    return self._sliced(value, self._slice_of(self.b.op("Shape", like), 2, self.rank + 2))

  def _sliced(self, value: str, ends: str) -> str:
    axes = self.b.int64(range(2, self.rank + 2))
    return self.b.op("Slice", value, self.b.int64([0] * self.rank), ends, axes)
