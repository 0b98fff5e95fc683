"""Normalisations that are written out as several operators: what the two recognisers check of a match."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, label, show
from ...graph.pattern import Match
from ...program import FLOATING
from ..conditions import unknown_rank, unsupported
from .fused import WIDTH, Norm, core_dtype, fused_node, over_axes


def read_decomposed(match: Match, scope: Scope, core: str) -> Norm | str:
  """The normalisation that a match (values 'x' and 'epsilon', tags 'mean' and 'cast') is, or why it is none."""
  x, y = match.values["x"], match.root.outputs[0]
  if reason := unsupported(scope) or floating(scope, x) or floating(scope, y) or unknown_rank(scope, x):
    return reason
  axes = [mean_axes(scope, mean, x) for mean in match.tag("mean")]
  for each in axes:
    if isinstance(each, str):
      return each
  first = axes[0]
  if isinstance(first, str) or len(set(axes)) != 1:
    return f"the means are over different axes, {' and '.join(str(list(each)) for each in axes)}"
  if (over := over_axes(first, scope.rank(x) or 0)) is None:
    return f"the axes {list(first)} of the means are more than two runs, or not the last ones after the first run"
  added = match.values.get("epsilon")
  epsilon = 0.0 if added is None else epsilon_of(scope, added, x)
  if isinstance(epsilon, str):
    return epsilon
  given, result = scope.dtype(x) or "", scope.dtype(y) or ""
  # A program's attributes are float32, as ONNX's are: a constant of the graph that becomes one must be.
  if core_dtype(given, result) == "double" and float(np.float32(epsilon)) != epsilon:
    return f"epsilon, {epsilon}, is no float32 number, which it has to be in a program, and '{x.name}' is double"
  return why_casts_matter(match, scope, [given, result]) or Norm(core, over, epsilon, [x], ["x"], given, result)


def check_decomposed(match: Match, scope: Scope) -> str | None:
  """Why the match is no normalisation to replace; None if it is one."""
  norm = read_decomposed(match, scope, "")
  return norm if isinstance(norm, str) else None


def decomposed_norm(match: Match, scope: Scope, core: str) -> gs.Node:
  """The fused node of a match that check_decomposed found no fault with."""
  norm = read_decomposed(match, scope, core)
  if isinstance(norm, str):
    raise ValueError(norm)
  return fused_node(norm, match.root.name or match.root.outputs[0].name)


def floating(scope: Scope, tensor: gs.Tensor) -> str | None:
  """Why the tensor's dtype is none to normalise in; None if it is one."""
  if scope.dtype(tensor) in FLOATING:
    return None
  if tensor.dtype is None:
    return f"the dtype of '{tensor.name}' is unknown"
  return f"the dtype of '{tensor.name}' is {np.dtype(tensor.dtype).name}, none of {', '.join(FLOATING)}"


def mean_axes(scope: Scope, mean: gs.Node, x: gs.Tensor) -> tuple[int, ...] | str:
  """The axes, from 0 on, that a ReduceMean takes the mean over, or why it is none to normalise with.

  `x`: of known rank, which is also that of the ReduceMean's input.
  """
  if mean.attrs.get("keepdims", 1) != 1:
    return f"{label(mean)} has keepdims={mean.attrs['keepdims']}; it must be 1"
  rank = scope.rank(x) or 0
  if (axes := scope.axes(mean)) is None:
    return f"the axes '{mean.inputs[1].name}' of {label(mean)} are no constant"
  if not axes:
    if mean.attrs.get("noop_with_empty_axes", 0):
      return f"{label(mean)} has no axes, and noop_with_empty_axes=1"
    return tuple(range(rank)) or f"{label(mean)} is over all axes, and '{x.name}' is a scalar"
  counted = sorted(axis + rank if axis < 0 else axis for axis in axes)
  if len(set(counted)) != len(counted) or not 0 <= counted[0] <= counted[-1] < rank:
    return f"the axes {list(axes)} of {label(mean)} are none of '{x.name}' of shape {show(scope.shape(x))}"
  return tuple(counted)


def epsilon_of(scope: Scope, tensor: gs.Tensor, x: gs.Tensor) -> float | str:
  """The number that is added to the variance of `x`, or why it is none."""
  if (value := scope.scalar(tensor)) is None:
    return f"epsilon, '{tensor.name}', is no constant scalar"
  rank, most = scope.rank(tensor) or 0, scope.rank(x) or 0
  if rank > most:
    return f"epsilon, '{tensor.name}', has {rank} dimensions, more than the {most} of '{x.name}'"
  if not math.isfinite(value) or value < 0:
    return f"epsilon is {value}"
  return value


def why_casts_matter(match: Match, scope: Scope, dtypes: Sequence[str]) -> str | None:
  """Why the Casts that a pattern passed over matter; None if each is to a floating dtype of enough precision."""
  least = min(WIDTH[dtype] for dtype in dtypes)
  for cast in match.tag("cast"):
    dtype = scope.dtype(cast.outputs[0])
    if dtype not in FLOATING:
      return f"{label(cast)} goes through the dtype {cast.outputs[0].dtype}"
    if WIDTH[dtype] < least:
      return f"{label(cast)} loses precision, going through {dtype}"
  return None
