"""FusedSumTo in NumPy, in float64."""

import math
from collections.abc import Sequence

import numpy as np

from ...arrays import Array
from ...program import Program, Statement, sum_axes
from .. import pointwise_reference


def sum_to(program: Program, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs of a FusedSumTo with this program.

  Floating values are float64 throughout; a Cast to float16, bfloat16 or float rounds. Integers have their own dtype
  and wrap. Raises ValueError if the inputs are not as many as the parameters or do not broadcast.
  """
  shape = np.broadcast_shapes(*(np.shape(array) for array in inputs))
  sums: set[str] = set()

  def core(statement: Statement, operand: Array) -> Array:
    sums.add(statement.name)
    axes = sum_axes(str(statement.attribute("axes"))) or ()
    keep = statement.number("keepdims") == 1
    return _sum(np.broadcast_to(operand, shape), axes, keep)

  values = pointwise_reference.values(program, inputs, core)
  for statement in program.statements:
    if statement.op == "Cast" and sums.intersection(statement.names):
      sums.add(statement.name)
  outputs = []
  for result in program.results:
    value = values[result.name] if result.name in sums else np.broadcast_to(values[result.name], shape)
    outputs.append(pointwise_reference.rounded(value, result.dtype) if rounded else np.array(value))
  return outputs


def _sum(x: Array, axes: Sequence[int], keepdims: bool) -> Array:
  """NumPy adds pairwise along the last axis only, else one after the other: so what is summed over goes last."""
  kept = [axis for axis in range(x.ndim) if axis not in axes]
  rows = np.ascontiguousarray(np.transpose(x, (*kept, *axes))).reshape(
    [x.shape[axis] for axis in kept] + [math.prod(x.shape[axis] for axis in axes)]
  )
  total: Array = np.asarray(np.sum(rows, axis=-1, dtype=x.dtype))
  return np.expand_dims(total, tuple(axes)) if keepdims else total
