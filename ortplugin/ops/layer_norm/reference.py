"""FusedLayerNorm in NumPy, in float64: what the kernels, the decomposition and the rewrites are compared with."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortplugin.ops.pointwise_reference import rounded as rounded_to
from ortplugin.ops.pointwise_reference import values
from ortplugin.program import Program, Statement

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
    return normalise(statement.op, s, int(statement.number("axis")), statement.number("epsilon"))

  found = values(program, inputs, core)
  if shape is None:
    raise ValueError("the program of a FusedLayerNorm needs a LayerNormalization or RMSNormalization")
  outputs = []
  for result in program.results:
    value = np.broadcast_to(found[result.name], shape)
    outputs.append(rounded_to(value, result.dtype) if rounded else np.array(value))
  return outputs


def normalise(op: str, s: Array, axis: int, epsilon: float) -> Array:
  """LayerNormalization: (s - mean(s)) / sqrt(var(s) + epsilon); RMSNormalization: s / sqrt(mean(s^2) + epsilon).

  Over the axes from `axis` to the last. `s` is float64; so is what comes back, in the same shape.
  """
  first = axis + s.ndim if axis < 0 else axis
  if not 0 <= first < s.ndim:
    raise ValueError(f"axis {axis} is out of range for the shape {s.shape}")
  axes = tuple(range(first, s.ndim))
  if math.prod(s.shape) == 0:
    return s
  centred = s - s.mean(axis=axes, keepdims=True) if op == "LayerNormalization" else s
  normalised: Array = centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + epsilon)
  return normalised
