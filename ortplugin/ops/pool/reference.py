"""FusedPool and FusedResize in NumPy, in float64."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...arrays import Array


@dataclass(frozen=True)
class Window:
  """The windows along one spatial axis."""

  size: int  # of the input
  out: int  # how many there are
  kernel: int
  stride: int
  dilation: int
  pad_begin: int  # padding
  pad_end: int


def _computing(x: Array) -> Array:
  return x if x.dtype.kind in "iu" else x.astype(np.float64)


def pooled(x: Array, windows: Sequence[Window], is_max: bool, count_include_pad: bool, nhwc: bool) -> Array:
  """The maximum or the average over windows, in float64; a maximum of integers in their dtype.

  x: [N, C, spatial..], with `nhwc` [N, spatial.., C]; the result likewise. A maximum is NaN where an element is.
  """
  values = _computing(np.moveaxis(x, -1, 1) if nhwc else x)
  shape = (*x.shape[:1], values.shape[1], *(each.out for each in windows))
  lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
  if all(each == Window(each.size, 1, each.size, 1, 1, 0, 0) for each in windows):
    axes = tuple(range(2, values.ndim))
    with np.errstate(invalid="ignore"):
      if is_max:
        whole = np.max(values, axes, keepdims=True, initial=lowest)
      else:
        whole = np.sum(values, axes, keepdims=True) / max(1, math.prod(each.size for each in windows))
    return np.ascontiguousarray(np.moveaxis(whole, 1, -1)) if nhwc else np.asarray(whole)
  total = np.full(shape, lowest if is_max else 0, values.dtype)
  counts = np.zeros(shape[2:])
  for offsets in itertools.product(*(range(each.kernel) for each in windows)):
    at = [np.arange(w.out) * w.stride + k * w.dilation - w.pad_begin for w, k in zip(windows, offsets, strict=True)]
    inside = _all_of([(i >= 0) & (i < w.size) for i, w in zip(at, windows, strict=True)])
    padded = _all_of([i < w.size + w.pad_end for i, w in zip(at, windows, strict=True)])
    clipped = [np.clip(i, 0, w.size - 1) for i, w in zip(at, windows, strict=True)]
    taken = values
    for axis, i in enumerate(clipped, start=2):
      taken = np.take(taken, i, axis)
    if is_max:
      with np.errstate(invalid="ignore"):
        total = np.where(inside, np.maximum(total, taken), total)
    else:
      with np.errstate(invalid="ignore", over="ignore"):
        total = total + np.where(inside, taken, 0)
      counts += padded if count_include_pad else inside
  if not is_max:
    total = total / np.maximum(counts, 1)
  return np.ascontiguousarray(np.moveaxis(total, 1, -1)) if nhwc else total


def _all_of(masks: Sequence[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
  """Where all masks, each of an axis of its own, are true."""
  return functools.reduce(np.logical_and.outer, masks)


def coordinates(size: int, out: int, scale: float | None, mode: str) -> npt.NDArray[np.float32]:
  """Where each of `out` elements lies among `size`, computed in float32 in ONNX's order of operations."""
  f = np.float32
  position = np.arange(out, dtype=f)
  ratio = f(out) / f(size) if scale is None else f(scale)
  if mode == "asymmetric":
    return np.asarray(position / ratio)
  if mode == "align_corners":
    return np.zeros(1, f) if out == 1 else np.asarray(position * f(size - 1) / f(out - 1))
  if mode == "pytorch_half_pixel" and out == 1:
    return np.zeros(1, f)
  return np.asarray((position + f(0.5)) / ratio - f(0.5))


TIE = np.float32(1e-6)  # how far beside the middle of two elements a place may lie to count as the middle


def nearest(at: npt.NDArray[np.float32], size: int, mode: str) -> npt.NDArray[np.int64]:
  """The element next to each coordinate, in ONNX Runtime's way: the middle is 2 * TIE wide."""
  below = np.floor(at)
  part = at - below  # exact, as is what follows near the middle
  half = np.float32(0.5)
  after = {"round_prefer_floor": part - half > TIE, "round_prefer_ceil": part - half >= -TIE, "ceil": part > 0}
  rounded = below.astype(np.int64) + after.get(mode, np.zeros(at.shape, np.bool_))
  return np.asarray(np.clip(rounded, 0, size - 1), np.int64)


def resized(x: Array, at: Sequence[npt.NDArray[np.float32]] | None, nearest_mode: str | None, nhwc: bool) -> Array:
  """x at the coordinates `at` of each spatial axis: linearly in between, in float64, or the nearest element.

  x: [N, C, spatial..], with `nhwc` [N, spatial.., C]. Beyond the edges the elements at the edges count. Both elements
  that a coordinate lies between take part, even with weight 0: NaN and infinity times 0 are NaN. x itself where `at`
  is None.
  """
  if at is None:
    return _computing(x) if nearest_mode is None else x
  first = 1 if nhwc else 2
  values = x if nearest_mode is not None else _computing(x)
  for axis, position in enumerate(at, start=first):
    size = values.shape[axis]
    if nearest_mode is not None:
      values = np.take(values, nearest(position, size, nearest_mode), axis)
      continue
    inside = np.clip(position.astype(np.float64), 0, size - 1)
    low = np.floor(inside).astype(np.int64)
    weight = (inside - low).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    high = np.minimum(low + 1, size - 1)
    with np.errstate(invalid="ignore"):
      between = np.take(values, low, axis) * (1 - weight) + np.take(values, high, axis) * weight
    at_edge = (low == high).reshape(weight.shape)
    values = np.where(at_edge, np.take(values, low, axis), between)
  return values
