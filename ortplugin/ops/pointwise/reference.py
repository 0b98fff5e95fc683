"""FusedPointwise in NumPy, in float64."""

from collections.abc import Sequence

import numpy as np

from ...arrays import Array
from ...program import Program
from .. import pointwise_reference


def pointwise(program: Program, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs of a FusedPointwise with this program: one array of the shape S for each result.

  Floating values are float64 throughout; a Cast to float16, bfloat16 or float rounds. Integers and bools have their
  own dtype. Raises ValueError if the inputs are not as many as the parameters or do not broadcast.
  """
  values = pointwise_reference.values(program, inputs)
  shape = np.broadcast_shapes(*(np.shape(array) for array in inputs))
  outputs = [(np.broadcast_to(values[result.name], shape), result.dtype) for result in program.results]
  return [pointwise_reference.rounded(value, dtype) if rounded else np.array(value) for value, dtype in outputs]
