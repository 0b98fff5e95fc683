"""The scatter operators in NumPy: one update after another, in row-major order of `updates`.

    out = data
    for k in 0 .. count - 1:    out[target(k)] = fold(out[target(k)], update(k))

fold is `update` without a reduction, otherwise sum, product, minimum or maximum, as docs/operators.md has them.

Every function takes `skip_invalid`: what a GPU does with an index that is out of range, which is to leave that update
out. Otherwise it raises ValueError, as the CPU kernel does.
"""

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ...arrays import Array

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def scatter_nd(
  data: Array, indices: Array, updates: Array, reduction: str = "none", wide: bool = False, skip_invalid: bool = False
) -> Array:
  """ONNX's ScatterND: indices [..., q], updates [..., data.shape[q:]].

  `wide`: floating results are float64, with float64 sums and products that are never rounded to data's dtype.
  Raises ValueError where shapes don't fit.
  """
  if indices.ndim < 1 or not 1 <= indices.shape[-1] <= data.ndim:
    raise ValueError(f"indices of the shape {indices.shape} don't index data of the shape {data.shape}")
  q = indices.shape[-1]
  if updates.shape != (*indices.shape[:-1], *data.shape[q:]):
    raise ValueError(
      f"updates have the shape {updates.shape}, but indices of the shape {indices.shape} into data of the shape "
      f"{data.shape} need {(*indices.shape[:-1], *data.shape[q:])}"
    )
  width = math.prod(data.shape[q:])
  count = math.prod(indices.shape[:-1])
  rows = indices.reshape(count, q)
  if data.size and updates.size:
    keep, rows = _in_range(rows, np.array(data.shape[:q], np.int64), indices.shape, skip_invalid)
  else:  # nothing is written, so nothing is checked
    keep, rows = np.zeros(count, bool), rows
  strides = np.array([math.prod(data.shape[axis + 1 :]) for axis in range(q)], np.int64)
  first: Array = np.asarray(rows[keep] @ strides)
  targets = np.add.outer(first, np.arange(width))
  return _fold(data, targets.reshape(-1), updates.reshape(count, width)[keep].reshape(-1), reduction, wide)


def scatter_elements(
  data: Array,
  indices: Array,
  updates: Array,
  axis: int = 0,
  reduction: str = "none",
  wide: bool = False,
  skip_invalid: bool = False,
) -> Array:
  """ONNX's ScatterElements, whose indices may also broadcast to updates' shape.

  out[.., indices[i, .., j, .., k], ..] = fold(.., updates[i, .., j, .., k]), the index standing on `axis`. `wide` as
  in `scatter_nd`. Raises ValueError where shapes don't fit.
  """
  rank = data.ndim
  if rank == 0 or not -rank <= axis < rank:
    raise ValueError(f"axis {axis} is out of range for data of the shape {data.shape}")
  axis %= rank
  if indices.ndim != rank or updates.ndim != rank:
    raise ValueError(f"data has rank {rank}, indices have {indices.ndim} and updates {updates.ndim}")
  full = np.broadcast_to(indices, updates.shape).astype(np.int64)
  for other, (size, limit) in enumerate(zip(updates.shape, data.shape, strict=True)):
    if other != axis and size > limit:
      raise ValueError(f"updates have the shape {updates.shape}, too large for data {data.shape} on axis {other}")
  if data.size == 0 or updates.size == 0:
    keep, on_axis = np.zeros(updates.size, bool), full.reshape(-1)
  else:
    limit = np.array([data.shape[axis]], np.int64)
    keep, rows = _in_range(full.reshape(-1, 1), limit, updates.shape, skip_invalid)
    on_axis = rows[:, 0]
  position = list(np.indices(updates.shape).reshape(rank, -1))
  position[axis] = on_axis
  strides = [math.prod(data.shape[other + 1 :]) for other in range(rank)]
  targets: Array = np.asarray(sum(p * stride for p, stride in zip(position, strides, strict=True)))
  return _fold(data, targets[keep], updates.reshape(-1)[keep], reduction, wide)


def update_slice(
  data: Array, updates: Array, starts: Array, axes: Sequence[int], steps: Sequence[int] = (), skip_invalid: bool = False
) -> Array:
  """data with the slice start, start + step, .. on each of `axes` replaced by updates.

  On an axis of `axes` the slice has as many elements as updates there; on every other axis it is whole, and updates
  have data's size or 1 there. Raises ValueError where shapes don't fit.
  """
  steps = list(steps) or [1] * len(axes)
  given = [int(start) for start in np.asarray(starts).reshape(-1)]
  if not len(axes) == len(steps) == len(given):
    raise ValueError(f"{len(axes)} axes, {len(steps)} steps and {len(given)} starts are not equally many")
  if updates.ndim != data.ndim or any(not 0 <= axis < data.ndim for axis in axes):
    raise ValueError(f"updates of the shape {updates.shape} on the axes {axes} of data of the shape {data.shape}")
  picked = [np.arange(size) for size in data.shape]
  values = updates
  out: Array = data.copy()
  for axis, step in zip(axes, steps, strict=True):
    if updates.shape[axis] and (updates.shape[axis] - 1) * abs(step) >= data.shape[axis]:
      raise ValueError(f"{updates.shape[axis]} elements at step {step} are beyond axis {axis} of {data.shape}")
  if data.size == 0 or updates.size == 0:
    return out
  for axis, start, step in zip(axes, given, steps, strict=True):
    size, count = data.shape[axis], updates.shape[axis]
    first = start + size if start < 0 else start
    positions = first + step * np.arange(count)
    valid = (positions >= 0) & (positions < size)
    if not (valid.all() or skip_invalid):
      raise ValueError(f"{count} elements from {start} at step {step} leave axis {axis}, whose size is {size}")
    picked[axis] = positions[valid]
    values = values.compress(valid, axis)
  out[np.ix_(*picked)] = values
  return out


def _in_range(rows: Array, limits: Array, shape: tuple[int, ...], skip_invalid: bool) -> tuple[Array, Array]:
  """(which rows of indices are valid, the rows with negative ones counted from the end)."""
  valid = ((rows >= -limits) & (rows < limits)).reshape(len(rows), -1)
  if not (valid.all() or skip_invalid):
    row, component = (int(i) for i in np.argwhere(~valid)[0])
    limit = int(limits[component])
    raise ValueError(
      f"index {int(rows[row, component])} at {row * rows.shape[1] + component} of {shape} is out of range; "
      f"it must be from {-limit} to {limit - 1}"
    )
  return np.asarray(valid.all(axis=1)), np.where(rows < 0, rows + limits, rows)


def _fold(data: Array, targets: Array, updates: Array, reduction: str, wide: bool) -> Array:
  """data with flat `updates` folded into the flat positions `targets`, in order."""
  is_floating = data.dtype.kind == "f" or data.dtype in HALVES
  out: Array = data.copy()
  if reduction == "none":
    out.reshape(-1)[targets] = updates  # NumPy: of repeated indices the last one stays
    return out.astype(np.float64) if wide and is_floating else out
  precise = np.dtype(np.float32) if data.dtype in HALVES else data.dtype
  if wide and is_floating:
    precise = np.dtype(np.float64)
  with np.errstate(all="ignore"):
    folded = data.astype(precise).reshape(-1)
    values = updates.astype(precise)
    if reduction in ("add", "mul"):
      {"add": np.add, "mul": np.multiply}[reduction].at(folded, targets, values)
    elif not is_floating:
      {"min": np.minimum, "max": np.maximum}[reduction].at(folded, targets, values)
    else:
      folded = _extreme(folded, targets, values, reduction)
    if wide and is_floating:
      return np.asarray(folded.reshape(data.shape))
    # Elements that no update meets keep their bits, NaN's payload among them.
    out.reshape(-1)[targets] = folded[targets].astype(data.dtype)
  return out


def _extreme(folded: Array, targets: Array, values: Array, reduction: str) -> Array:
  """minimum or maximum by integers that order as the floating numbers do; NaN is beyond all of them."""
  integer = np.dtype(f"i{folded.itemsize}")
  limits = np.iinfo(integer)

  def flip(bits: Array) -> Array:  # its own inverse
    return np.asarray(bits ^ ((bits >> (limits.bits - 1)) & limits.max))

  nan = limits.min if reduction == "min" else limits.max
  keys, update_keys = (
    np.where(np.isnan(each), np.array(nan, integer), flip(each.view(integer))) for each in (folded, values)
  )
  {"min": np.minimum, "max": np.maximum}[reduction].at(keys, targets, update_keys)
  return np.where(keys == nan, np.array(np.nan, folded.dtype), flip(keys).view(folded.dtype))
