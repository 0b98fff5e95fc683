"""FusedLayerNorm in NumPy, in float64: what the kernels, the decomposition and the rewrites are compared with."""

import math
from collections.abc import Sequence

import numpy as np

from ...arrays import Array
from ...program import Program, Statement, sum_axes
from ..pointwise_reference import rounded as rounded_to, values


def layer_norm(program: Program, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs of a FusedLayerNorm with this program: one array of the shape S for each result.

  The arithmetic is float64 throughout; a Cast to float16, bfloat16 or float rounds. `rounded`: each output has its
  result's dtype. Otherwise floating outputs are float64 before that last rounding, which is what a tolerance is
  measured from. Raises ValueError if the inputs are not as many as the parameters or if a
  parameter of the epilogue does not broadcast to S.
  """
  shape: tuple[int, ...] | None = None

  def core(statement: Statement, s: Array) -> Array:
    nonlocal shape
    shape = np.shape(s)
    return normalise(statement, s)

  found = values(program, inputs, core)
  if shape is None:
    raise ValueError("the program of a FusedLayerNorm needs a LayerNormalization or RMSNormalization")
  outputs = []
  for result in program.results:
    value = np.broadcast_to(found[result.name], shape)
    outputs.append(rounded_to(value, result.dtype) if rounded else np.array(value))
  return outputs


def in_order(x: Array, order: Array) -> Array:
  """[N, rows, c] as [N, *image, k * c]: rows of each image in an order, [*image, k], k of them side by side."""
  *image, k = order.shape
  return x.take(order, 1).reshape(len(x), *image, k * x.shape[2])


def axes_of(core: Statement, rank: int) -> tuple[int, ...]:
  """The axes over which elements have a mean in common, from 0 on; of one in groups some of them.

  Raises ValueError if a value of this rank lacks one.
  """
  axis, groups = int(core.number("axis")), int(core.number("groups"))
  first = axis + rank if axis < 0 else axis
  axes = [*(sum_axes(str(core.attribute("axes"))) or range(first, rank)), *[first] * bool(groups)]
  if not axes or not 0 <= min(axes) <= max(axes) < rank or len(set(axes)) != len(axes):
    raise ValueError(f"an axis is out of range for the rank {rank}, or given twice: {core}")
  return tuple(sorted(axes))


def with_groups(core: Statement, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """The shape of S with an axis of groups in front of the one that they divide, and the axes to normalise over."""
  axes, groups, rank = axes_of(core, len(shape)), int(core.number("groups")), len(shape)
  if not groups:
    return tuple(shape), axes
  axis = int(core.number("axis")) % rank
  if shape[axis] % groups:
    raise ValueError(f"{groups} groups do not divide the axis {axis} of the shape {tuple(shape)}")
  return (
    (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]),
    tuple(each if each < axis else each + 1 for each in axes),
  )


def normalise(core: Statement, s: Array) -> Array:
  """LayerNormalization: (s - mean(s)) / sqrt(var(s) + epsilon); RMSNormalization: s / sqrt(mean(s^2) + epsilon).

  `s` is float64; so is what comes back, in the same shape.
  """
  shape, axes = with_groups(core, s.shape)
  if math.prod(s.shape) == 0:
    return s
  grouped = s.reshape(shape)
  centred = grouped - grouped.mean(axis=axes, keepdims=True) if core.op == "LayerNormalization" else grouped
  deviation = np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + core.number("epsilon"))
  normalised: Array = (centred / deviation).reshape(s.shape)
  return normalised
