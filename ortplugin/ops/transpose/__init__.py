"""FusedTranspose: a part of a tensor with its axes in another order, in one copy.

    y = Transpose(x[starts[0] : ends[0], starts[1] : ends[1], ..])

docs/operators.md has the meaning in full.
Errors: a `perm` that is no permutation of x's axes, another number of starts or ends, another dtype.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto

from ...arrays import Array
from ...errors import ModelError
from ...graph import Dim, TensorType
from .. import node_attributes as nodes
from ..base import Operator
from ..decompose import Builder
from ..scatter import DTYPES
from . import reference as formulas

NAME = "FusedTranspose"
MOST_AXES = 16
TO_THE_END = 2**63 - 1


@dataclass(frozen=True)
class Transposition:
  """A node's attributes, checked and complete."""

  where: str  # for errors
  perm: tuple[int, ...]
  starts: tuple[int, ...]
  ends: tuple[int, ...]

  def length(self, axis: int, size: Dim) -> Dim:
    """The window's length along an axis of x, as far as the axis's own tells it."""
    start, end = self.starts[axis], self.ends[axis]
    if isinstance(size, int):
      return len(range(*slice(start, end).indices(size)))
    return size if (start, end) == (0, TO_THE_END) else None


def attributes_of(node: onnx.NodeProto) -> Transposition:
  """The attributes of a FusedTranspose. Raises ModelError that names the node where they are wrong."""
  where = nodes.where_is(node)
  nodes.check_one_input(node)
  given = nodes.read(node, dict.fromkeys(("perm", "starts", "ends"), AttributeProto.INTS))
  perm = given.get("perm", ())
  if not 1 <= len(perm) <= MOST_AXES:
    raise ModelError(f"{where}: perm has {len(perm)} numbers; there must be 1 to {MOST_AXES}")
  if sorted(perm) != list(range(len(perm))):
    raise ModelError(f"{where}: perm is {list(perm)}, which is no order of the axes 0 to {len(perm) - 1}")
  for name, other in (("starts", "ends"), ("ends", "starts")):
    if name in given and len(given.get(other, ())) != len(perm):
      raise ModelError(f"{where}: {other} has {len(given.get(other, ()))} numbers, but perm has {len(perm)}")
  starts = given.get("starts", (0,) * len(perm))
  return Transposition(where, perm, starts, given.get("ends", (TO_THE_END,) * len(perm)))


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """y's dtype, which is x's, and its shape, None where x's does not tell."""
  transposition = attributes_of(node)
  (x,) = inputs
  if x.dtype is not None and x.dtype not in DTYPES:
    raise ModelError(
      f"{transposition.where}: x is {x.dtype}, which the operator lacks; leave it to ai.onnx's Transpose"
    )
  if x.shape is None:
    return [TensorType(x.dtype, None)]
  perm = transposition.perm
  if len(x.shape) != len(perm):
    raise ModelError(f"{transposition.where}: x has {len(x.shape)} dimensions, but perm is {list(perm)}")
  return [TensorType(x.dtype, tuple(transposition.length(axis, x.shape[axis]) for axis in perm))]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX: a Slice where it cuts, a Transpose."""
  transposition = attributes_of(node)
  b = Builder(opset, f"{node.output[0]}/unfused")
  x = node.input[0]
  window = list(enumerate(zip(transposition.starts, transposition.ends, strict=True)))
  cut = [(axis, *bounds) for axis, bounds in window if bounds != (0, TO_THE_END)]
  if cut:
    axes, starts, ends = zip(*cut, strict=True)
    x = b.op("Slice", x, *(b.int64(numbers) for numbers in (starts, ends, axes)))
  b.op("Transpose", x, output=node.output[0], perm=list(transposition.perm))
  return b.nodes


def reference(node: onnx.NodeProto, inputs: Sequence[Array]) -> list[Array]:
  """The output in NumPy; see reference.py."""
  transposition = attributes_of(node)
  return [formulas.transpose(inputs[0], transposition.perm, transposition.starts, transposition.ends)]


OPERATOR = Operator(
  NAME, "a part of a tensor with its axes in another order, in one copy", infer_shapes, decompose, reference
)
