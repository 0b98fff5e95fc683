"""A constant that repeats along an axis is kept once where what reads it broadcasts: BERT's token types, open masks.

    y = Add(x, c)                                     c [B, S, C], the same for each of B     becomes    c [1, S, C]
    y = Add(x, Gather(table, [[0, 0, ..], ..]))       becomes    y = Add(x, Gather(table, [[0]]))

BERT has one token type where it is not told them. The rows of the table are a constant then.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope, Shape, broadcast, equal, label, labelled
from ...graph.pointwise import is_symmetric
from ..driver import Applied, Missed, Outcome, RulePass, first_of

ELEMENTS = 1 << 22  # of constants that are looked at


def narrow_operand(scope: Scope, node: gs.Node) -> Outcome:
  """Gives a pointwise node less of a constant."""
  if len(node.inputs) < 2 or not is_symmetric(scope, node):
    return None
  for index, tensor in enumerate(node.inputs):
    array = None if tensor.is_empty() else scope.constant(tensor, ELEMENTS)
    once = None if array is None else _once(array)
    if array is None or once is None or once.shape == array.shape or not _fits(scope, node, tensor, once.shape):
      continue
    labels = labelled(node)
    node.inputs[index] = scope.add_constant(once, tensor.name)
    return Applied(labels, node)
  return None


def narrow_lookup(scope: Scope, node: gs.Node) -> Outcome:
  """Gives a Gather of a constant fewer indices."""
  if scope.op(node) != "Gather" or not scope.is_constant(node.inputs[0]):
    return None
  indices, table, y = scope.constant(node.inputs[1], ELEMENTS), scope.shape(node.inputs[0]), node.outputs[0]
  once = None if indices is None else _once(indices)
  if not table or indices is None or once is None or once.shape == indices.shape:
    return None
  axis = int(node.attrs.get("axis", 0)) % len(table)
  rows: Shape = (*table[:axis], *once.shape, *table[axis + 1 :])
  readers = scope.consumers(y)
  if not readers or scope.used_beyond(y, readers):
    return None
  for reader in readers:
    if not is_symmetric(scope, reader) or not _fits(scope, reader, y, rows):
      return Missed(node, f"{label(reader)} reads the rows that it looks up several times")
  node.inputs[1] = scope.add_constant(once, node.inputs[1].name)
  y.shape = rows
  return Applied(labelled(node), node)


def _fits(scope: Scope, reader: gs.Node, tensor: gs.Tensor, shape: Shape) -> bool:
  """Whether a pointwise node makes as much of the tensor with this shape, surely."""
  operands = [shape if each is tensor else scope.shape(each) for each in reader.inputs if not each.is_empty()]
  return equal(broadcast(operands), scope.shape(reader.outputs[0]))


def _once(array: Array) -> Array | None:
  """The array with length 1 on each axis along which it is the same, to the bit; None of one without elements."""
  if not array.size or array.dtype == object:
    return None
  bits = np.ascontiguousarray(array).reshape(array.shape).view(np.dtype(f"V{array.dtype.itemsize}"))
  for axis in range(array.ndim):
    first = bits.take([0], axis)
    if bool((bits == first).all()):
      bits = first
  return bits.view(array.dtype)


REPEATED_CONSTANTS = RulePass(
  "repeated-constants",
  "a constant that repeats along an axis, or a lookup of such indices, is kept once where it broadcasts",
  first_of(narrow_operand, narrow_lookup),
)
