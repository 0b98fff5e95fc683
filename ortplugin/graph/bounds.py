"""How many elements and dimensions a node's result has at most, told from the node and the bounds of its inputs.

Elements are bounded for what arithmetic on shapes consists of, dimensions for every operator.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import onnx
from onnx import NodeProto, TypeProto

ELEMENTS = 1024  # of constants whose values are looked at
MOST_ELEMENTS = 1 << 21  # more than this counts as unbounded
RANK = 64  # no kernel of ONNX Runtime takes as many dimensions; where no bound is known the result says more

_SAME_ELEMENTS = """
    Abs Acos Asin Atan BitwiseNot Cast CastLike Ceil Clip Cos CumSum Erf Exp Floor Identity IsInf IsNaN Log Neg
    Not Reciprocal Relu Reshape Round Sigmoid Sign Sin Split Sqrt Squeeze Tan Tanh TopK Transpose Trilu Unsqueeze
    ReduceMax ReduceMin ReduceMean ReduceProd ReduceSum ArgMax ArgMin ScatterElements ScatterND Dropout Compress Unique
"""
_BROADCAST = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod
    Mul Or Pow Sub Sum Where Xor
"""
SAME_ELEMENTS = frozenset(_SAME_ELEMENTS.split())
SAME_RANK = (
  SAME_ELEMENTS
  - {"Squeeze", "Unsqueeze", "Reshape", "Compress", "Unique", "ArgMax", "ArgMin"}
  - {name for name in SAME_ELEMENTS if name.startswith("Reduce")}
)
BROADCAST = frozenset(_BROADCAST.split())

_ADDS_DIMENSION = """
    ConcatFromSequence DFT Flatten GRU ImageDecoder LSTM MelWeightMatrix Multinomial NonZero OneHot RNN STFT StringSplit
"""
ADDS_DIMENSION = frozenset(_ADDS_DIMENSION.split())

# The operand that gives the result's rank by its length.
RANK_OPERAND = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
_FIXED_RANK = 4  # at most, of operators whose result's rank does not depend on their inputs'


class Bound(NamedTuple):
  """At most so many elements (None: no bound is known) and dimensions (0: onnx knows none either)."""

  elements: int | None = None
  rank: int = 0
  exact: bool = False
  """Whether it has as many dimensions, no fewer."""
  integers: tuple[int, ...] | None = None
  """The values of a constant of integers."""
  described: int | None = None
  """Of a Shape: the bound of the elements that the tensor of that shape has."""


UNKNOWN = Bound()


def result_bound(node: NodeProto, inputs: Sequence[Bound], bodies: int) -> Bound:
  """The bounds of what a standard operator makes; `bodies`: the largest rank that those in it give out."""
  op = node.op_type
  if op in BROADCAST:
    return _broadcast(inputs)
  ranks = [each.rank for each in inputs]
  first = inputs[0] if inputs else UNKNOWN
  if op == "Constant":
    return _constant_node(node)
  if op == "Shape":
    is_known = first.rank > 0 or first.elements is not None
    return Bound(first.rank if is_known and first.rank <= RANK else None, 1, described=first.elements)
  if op == "Size":
    return Bound(1, 0)
  if op == "Range":
    limits = [each.integers for each in inputs]
    return Bound(_range_length(limits), 1)
  if op == "Concat":
    sizes = [each.elements for each in inputs]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return Bound(_clamped(total), max(ranks, default=0), first.exact)
  if op in ("Gather", "GatherND") and len(inputs) > 1:
    # Of a table of one dimension there are as many elements as indices.
    count = inputs[1].elements if first.rank == 1 else _product(first.elements, inputs[1].elements)
    rank = first.rank + inputs[1].rank - 1 if first.rank and op == "Gather" else sum(ranks)
    return Bound(count, max(rank, 0))
  if op in RANK_OPERAND:
    return _of_shape(op, inputs)
  rank = max(ranks, default=0)
  if op == "Unsqueeze":
    axes = next((len(each.ints) for each in node.attribute if each.name == "axes"), None)
    if len(inputs) > 1:
      axes = inputs[1].elements
    return Bound(first.elements, first.rank + (RANK if axes is None else axes))
  if op == "Slice":
    return Bound(_slice_length(inputs), first.rank, first.exact)
  if op in SAME_ELEMENTS:
    return Bound(first.elements, first.rank, first.exact and op in SAME_RANK)
  if op in ADDS_DIMENSION:
    return Bound(None, max(rank + 1, _FIXED_RANK))
  if op == "Einsum":
    return Bound(None, max([rank, *(len(each.s.rpartition(b">")[2]) for each in node.attribute)]))
  if op.startswith("Random"):
    return Bound(None, max([rank, *(len(each.ints) for each in node.attribute if each.name == "shape")]))
  return Bound(None, max(rank or _FIXED_RANK, bodies + 1 if bodies else 0))


def _of_shape(op: str, inputs: Sequence[Bound]) -> Bound:
  """The bounds of Reshape, Expand and ConstantOfShape."""
  at = RANK_OPERAND[op]
  shape = inputs[at] if at < len(inputs) else UNKNOWN
  if shape.elements is None:
    # onnx makes a rank of the operand's length, which may be anything: it must not look.
    return Bound(None, RANK + 1) if shape.rank else Bound(None, 0)
  rank = max(shape.elements, inputs[0].rank if op == "Expand" else 0)
  if op == "Reshape":
    return Bound(inputs[0].elements, rank)
  if op == "ConstantOfShape" and shape.integers is not None:
    return Bound(_clamped(math.prod(max(each, 0) for each in shape.integers)), rank)
  if op == "ConstantOfShape":
    return Bound(shape.described, rank)
  return Bound(None, rank)


def _broadcast(inputs: Sequence[Bound]) -> Bound:
  rank = max([each.rank for each in inputs], default=0)
  exact = all([each.exact for each in inputs])
  sizes = [each.elements for each in inputs]
  if None in sizes or not sizes:
    return Bound(None, rank, exact)
  known = [size for size in sizes if size is not None]
  beyond = [size for size in known if size > 1]
  if rank <= 1 or len(beyond) <= 1:
    return Bound(max(known), rank, exact)
  return Bound(_clamped(math.prod(beyond)), rank, exact)


def tightest(bound: Bound, declared: Bound | None) -> Bound:
  """The bound of a value that the model says something of, too."""
  if declared is None or declared.rank == 0:
    return bound
  sizes = [size for size in (bound.elements, declared.elements) if size is not None]
  # onnx drops what contradicts a declaration.
  return Bound(min(sizes, default=None), declared.rank, True, bound.integers, bound.described)


def declared_bound(kind: TypeProto) -> Bound:
  """The bound that a type gives."""
  dims = kind.tensor_type.shape.dim
  if not kind.tensor_type.HasField("shape"):
    return UNKNOWN
  sizes = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in dims[: RANK + 1]]
  if not all(size is not None for size in sizes):
    return Bound(None, len(dims), True)
  return Bound(_clamped(math.prod(size or 0 for size in sizes)), len(dims), True)


def constant_bound(tensor: onnx.TensorProto) -> Bound:
  """The bound of a constant, with its values where they are few integers."""
  count = _clamped(math.prod(tensor.dims[: RANK + 1]))
  integers = None
  if count is not None and count <= ELEMENTS and tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
    values = onnx.numpy_helper.to_array(tensor)
    integers = tuple(int(each) for each in values.reshape(-1))
  return Bound(count, len(tensor.dims), True, integers)


def _constant_node(node: NodeProto) -> Bound:
  for each in node.attribute:
    if each.name == "value":
      return constant_bound(each.t)
    if each.name == "value_int":
      return Bound(1, 0, True, (each.i,))
    if each.name == "value_ints":
      return Bound(len(each.ints), 1, True, tuple(each.ints[:ELEMENTS]))
    if each.name in ("value_float", "value_string"):
      return Bound(1, 0)
    if each.name in ("value_floats", "value_strings"):
      return Bound(len(each.floats) + len(each.strings), 1)
  return UNKNOWN


def _range_length(limits: Sequence[tuple[int, ...] | None]) -> int | None:
  if len(limits) != 3 or any(each is None or len(each) != 1 for each in limits):
    return None
  start, limit, delta = (each[0] for each in limits if each)
  return None if delta == 0 else _clamped(max(-((start - limit) // delta), 0))


def _slice_length(inputs: Sequence[Bound]) -> int | None:
  """How many elements a Slice leaves at most: of a vector as many as lie between bounds that are known.

  A network that takes its shapes apart and puts them together again, layer after layer, does so with Slices: were
  each as long as what it cuts, the bounds of its shapes would grow with every layer.
  """
  size = inputs[0].elements if inputs else None
  if size is None or len(inputs) < 3 or inputs[0].rank != 1:
    return size
  starts, ends = inputs[1].integers, inputs[2].integers
  steps = inputs[4].integers if len(inputs) > 4 and inputs[4] != UNKNOWN else (1,)
  if starts is None or ends is None or steps is None or len(starts) != 1 or len(ends) != 1 or min(steps) < 1:
    return size
  start, end = starts[0], ends[0]
  if start >= 0 > end:
    return size
  return min(size, max(end - start, 0) if (start < 0) == (end < 0) else min(-start, end))


def _product(a: int | None, b: int | None) -> int | None:
  return None if a is None or b is None else _clamped(a * b)


def _clamped(count: int | None) -> int | None:
  """The count where it is small enough to matter, so that no chain of nodes makes a number of a million digits."""
  return count if count is not None and 0 <= count <= MOST_ELEMENTS else None
