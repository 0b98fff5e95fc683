"""Elements that a mask chooses, all set to one value, become a Where; PyTorch's dynamo exporter writes x[mask] = v as

    ScatterND(x, Transpose(NonZero(mask)), Reshape(Expand(v, count), [-1]))    becomes    Where(mask, v, x)

A mask over the first axes of x gets the others as axes of length 1.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, element_count, show
from ...graph.extents import extent
from ..driver import Missed, Outcome, RulePass, replaced
from ..emit import reshape, unsqueeze

REPEATS = ("Expand", "Reshape", "Tile", "Unsqueeze", "Squeeze", "Identity")
SCATTERS = ("ScatterND", "ortplugin::ScatterND")
# What ONNX Runtime's Where knows on the CPU; float16 it takes through float and back, which is exact.
DTYPES = tuple(map(np.dtype, (np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8)))


def fill(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces a scatter of one value to where a mask is true."""
  if scope.op(node) not in SCATTERS or node.attrs.get("reduction", "none") != "none" or scope.opset < 9:
    return None
  x, indices, updates = node.inputs
  mask, value = _mask(scope, indices), _single(scope, updates)
  if mask is None or value is None:
    return None
  if x.dtype is None or np.dtype(x.dtype) not in DTYPES:
    return Missed(node, f"the dtype of '{x.name}' is {x.dtype}, for which ONNX Runtime has no Where")
  rank, covered = scope.rank(x), scope.rank(mask)
  if mask.dtype != np.bool_ or rank is None or covered is None or not 0 < covered <= rank:
    return Missed(node, f"'{mask.name}' is no mask of '{x.name}'")
  if any(extent(scope, mask, axis) != extent(scope, x, axis) for axis in range(covered)):
    shapes = f"{show(scope.shape(mask))} is not surely that of '{x.name}', {show(scope.shape(x))}"
    return Missed(node, f"the shape of '{mask.name}', {shapes}")
  mask = _smaller(scope, mask)
  mask = unsqueeze(scope, node, mask, range(scope.rank(mask) or 0, (scope.rank(mask) or 0) + rank - covered))
  if (scope.rank(value) or 0) > rank:
    value = reshape(scope, node, value, [])
  new = gs.Node("Where", node.name, {}, [mask, value, x], [])
  return replaced(scope, [node], new, [node.outputs[0]])


def _mask(scope: Scope, indices: gs.Tensor) -> gs.Tensor | None:
  """The tensor whose true places the indices are; None if they are something else."""
  rows = scope.producer(indices, "Transpose")
  if rows is None or list(rows.attrs.get("perm", [1, 0])) != [1, 0]:
    return None
  places = scope.producer(rows.inputs[0], "NonZero")
  return None if places is None else places.inputs[0]


def _single(scope: Scope, updates: gs.Tensor) -> gs.Tensor | None:
  """The tensor of one element that is repeated in the updates."""
  node, value = scope.producer(updates), updates
  while element_count(scope.shape(value)) != 1:
    if node is None or not node.inputs:
      return None
    if scope.op(node) == "ConstantOfShape":
      given = node.attrs.get("value")
      array = np.zeros(1, np.float32) if given is None else np.asarray(given.values)
      return scope.add_constant(array.reshape(()), f"{updates.name}_value")
    if scope.op(node) not in REPEATS:
      return None
    value = node.inputs[0]
    node = scope.producer(value)
  return value


def _smaller(scope: Scope, mask: gs.Tensor) -> gs.Tensor:
  """The mask before it was repeated to its shape, which Where does itself."""
  node = scope.producer(mask, "Expand")
  if node is None or scope.rank(node.inputs[0]) != scope.rank(mask):
    return mask
  return node.inputs[0]


MASKED_FILL = RulePass("masked-fill", "one value scattered to where a mask is true becomes a Where", fill)
