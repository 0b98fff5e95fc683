"""FusedLayerNorm in NumPy, in float64: what the kernels, the decomposition and the rewrites are compared with."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortplugin.ops.pointwise_reference import rounded as rounded_to
from ortplugin.ops.pointwise_reference import values
from ortplugin.program import Program, Statement, sum_axes

Array = npt.NDArray[Any]


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
    return normalise(statement.op, s, axes_of(statement, s.ndim), statement.number("epsilon"))

  found = values(program, inputs, core)
  if shape is None:
    raise ValueError("the program of a FusedLayerNorm needs a LayerNormalization or RMSNormalization")
  outputs = []
  for result in program.results:
    value = np.broadcast_to(found[result.name], shape)
    outputs.append(rounded_to(value, result.dtype) if rounded else np.array(value))
  return outputs


def axes_of(core: Statement, rank: int) -> tuple[int, ...]:
  """The axes that the statement normalises over, from 0 on. Raises ValueError if a value of this rank lacks one."""
  axis = int(core.number("axis"))
  axes = sum_axes(str(core.attribute("axes"))) or range(axis + rank if axis < 0 else axis, rank)
  if not axes or not 0 <= axes[0] <= axes[-1] < rank:
    raise ValueError(f"an axis is out of range for the rank {rank}: {core}")
  return tuple(axes)


def normalise(op: str, s: Array, axes: tuple[int, ...], epsilon: float) -> Array:
  """LayerNormalization: (s - mean(s)) / sqrt(var(s) + epsilon); RMSNormalization: s / sqrt(mean(s^2) + epsilon).

  Over `axes`. `s` is float64; so is what comes back, in the same shape.
  """
  if math.prod(s.shape) == 0:
    return s
  centred = s - s.mean(axis=axes, keepdims=True) if op == "LayerNormalization" else s
  normalised: Array = centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + epsilon)
  return normalised
