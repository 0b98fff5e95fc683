"""What scales and shifts each channel by constants, and weights that take such factors in."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ..arrays import Array, Wide
from .convert import attached
from .facts import Scope
from .labels import label

_FINFO: Any = ml_dtypes.finfo  # NumPy's knows its own dtypes only

ELEMENTS = 1 << 26  # constants up to this size are read


class NotFoldableError(Exception):
  """Why something can't become part of weights; with the value that is in the way."""


@dataclass(frozen=True)
class Affine:
  """y = x * scale + shift for each channel."""

  scale: Wide  # [channels], or [1] for all of them
  shift: Wide  # likewise

  def fits(self, channels: int) -> bool:
    """Whether there is one factor for each of so many channels, or one for all."""
    return self.scale.size in (1, channels) and self.shift.size in (1, channels)


def constant(scope: Scope, tensor: gs.Tensor, what: str) -> Array:
  """The floating point value of a constant that no caller may override. Raises NotFoldableError if it is none."""
  if attached(tensor, "initial") is not None:
    raise NotFoldableError(f"a caller may override {what}, '{tensor.name}', which is a graph input")
  if (array := scope.constant(tensor, ELEMENTS)) is None or scope.dtype(tensor) in (None, "bool"):
    raise NotFoldableError(f"{what}, '{tensor.name}', is no constant")
  return array


def batch_norm(scope: Scope, node: gs.Node) -> Affine:
  """What a BatchNormalization in inference does. Raises NotFoldableError.

  scale = gamma / sqrt(var + epsilon); shift = beta - mean * scale
  """
  training = scope.opset < 7 or bool(node.attrs.get("training_mode", 0))
  if training or any(not each.is_empty() for each in node.outputs[1:]):
    raise NotFoldableError(f"{label(node)} is in training mode")
  if not node.attrs.get("spatial", 1):  # before opset 9: 0 has statistics for every position
    raise NotFoldableError(f"{label(node)} has spatial = 0")
  names = ("the scale", "the bias", "the mean", "the variance")
  gamma, beta, mean, variance = (
    constant(scope, each, f"{name} of {label(node)}").astype(np.float64)
    for each, name in zip(node.inputs[1:], names, strict=True)
  )
  if any(each.shape != gamma.shape or each.ndim != 1 for each in (gamma, beta, mean, variance)):
    raise NotFoldableError(f"the parameters of {label(node)} are not all of one shape [channels]")
  with np.errstate(all="ignore"):  # what is not finite is found when it is stored
    scale = gamma / np.sqrt(variance + float(node.attrs.get("epsilon", 1e-5)))
    return Affine(scale, beta - mean * scale)


def channel_operand(scope: Scope, node: gs.Node, x: gs.Tensor, channels: int, rank: int) -> Affine:
  """What Mul, Div, Add or Sub with a constant does to x [N, channels, ...] of this rank. Raises NotFoldableError."""
  first = node.inputs[0] is x
  other = node.inputs[1] if first else node.inputs[0]
  array = constant(scope, other, "the operand").astype(np.float64)
  dims = [1] * (rank - array.ndim) + list(array.shape)
  if len(dims) > rank or dims[1] not in (1, channels) or any(dim != 1 for dim in (dims[0], *dims[2:])):
    wanted = ", ".join(str(dim) for dim in (channels, *[1] * (rank - 2)))
    raise NotFoldableError(
      f"'{other.name}' of shape {list(array.shape)} is neither one number nor one per channel, [{wanted}]"
    )
  c = array.reshape(-1)
  op = scope.op(node)
  if op == "Div" and not first:
    raise NotFoldableError(f"{label(node)} divides by '{x.name}'")
  with np.errstate(all="ignore"):
    scale = {"Mul": c, "Div": 1 / c}.get(op, np.full_like(c, 1 if first or op == "Add" else -1))
  shift = {"Add": c, "Sub": -c if first else c}.get(op, np.zeros_like(c))
  return Affine(scale, shift)


def scaled_rows(weight: Array, factors: Wide) -> Wide:
  """Weights [rows, ...] times a factor for each row, or one for all."""
  return weight.astype(np.float64) * factors.reshape(-1, *[1] * (weight.ndim - 1))


def scaled_columns(weight: Array, factors: Wide, groups: int) -> Wide:
  """Weights [rows, columns, ...] in groups of rows, times a factor for each column of each group, or one for all."""
  blocks = weight.astype(np.float64).reshape(groups, -1, weight.shape[1], int(np.prod(weight.shape[2:])))
  product: Wide = blocks * factors.reshape(-1, 1, factors.size // groups if factors.size > 1 else 1, 1)
  return product.reshape(weight.shape)


def stored(values: Wide, dtype: npt.DTypeLike, what: str, channel_peaks: Wide | None = None) -> Array:
  """The values in `dtype`. Raises NotFoldableError if one does not fit.

  `channel_peaks`: the largest magnitude of each channel. If one lies below the dtype's smallest normal number, the
  channel's weights would lose bits or become zero.
  """
  with np.errstate(all="ignore"):
    result = values.astype(dtype)
  info = _FINFO(dtype)
  if not np.isfinite(result.astype(np.float64)).all():
    largest = np.abs(values).max()
    raise NotFoldableError(f"{what} would reach {largest:.4g}, {info.dtype} holds up to {float(info.max):.4g}")
  peaks = np.zeros(0) if channel_peaks is None else channel_peaks[channel_peaks > 0]
  if peaks.size and peaks.min() < float(info.smallest_normal):
    raise NotFoldableError(
      f"{what} of a channel would be at most {peaks.min():.4g}, {info.dtype} is precise "
      f"down to {float(info.smallest_normal):.4g}"
    )
  return result
