"""The lengths of a tensor's axes as products of numbers and names, also where shape inference has no name for them.

[batch, rows, 64] reshaped to (batch, rows, -1, 16), as exporters write it with Shape, Gather and Concat, has the
lengths batch, rows, 4 and 16: the way back from an axis leads over operators that keep it, and through such arithmetic,
to where its length comes from. Equal lengths here are equal in every run in which nothing is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_graphsurgeon as gs

from .bounds import BROADCAST
from .certainty import is_generated
from .domains import DOMAIN
from .extents import unsqueezed_axes
from .facts import KEEPS_SHAPE, Scope
from .pointwise import is_pointwise

Name = str | tuple[int, int]
VISITS = 256  # lengths that are looked at anew to tell those of one tensor, at most
DEEP = 64  # of which each is asked for by the one before; up to five of Python's frames for one
KEEPS = frozenset((*KEEPS_SHAPE, "RMSNormalization", "CastLike", "Dropout"))
PRODUCTS = ("MatMul", f"{DOMAIN}::FusedMatMul")
# All results have the shape to which the inputs broadcast, but of norms that read rows in an order.
CHAINS = (f"{DOMAIN}::FusedPointwise", f"{DOMAIN}::FusedLayerNorm")


class Length(NamedTuple):
  """A product of numbers, and of names in order."""

  number: int
  names: tuple[Name, ...] = ()

  def times(self, other: Length) -> Length:
    """The product of both."""
    return Length(self.number * other.number, tuple(sorted((*self.names, *other.names), key=str)))

  def over(self, other: Length) -> Length | None:
    """The quotient; None where it is not known to be whole."""
    names = list(self.names)
    for name in other.names:
      if name not in names:
        return None
      names.remove(name)
    if not other.number or self.number % other.number:
      return None
    return Length(self.number // other.number, tuple(names))

  @property
  def known(self) -> int | None:
    """The number, where there are no names."""
    return None if self.names else self.number


ONE = Length(1)
_Found = dict[tuple[int, int], tuple[gs.Tensor, Length]]


def product(lengths: Sequence[Length]) -> Length:
  """All of them multiplied."""
  result = ONE
  for each in lengths:
    result = result.times(each)
  return result


def agreed(lengths: Sequence[Length]) -> Length | None:
  """The length to which these broadcast, where they tell."""
  others = {each for each in lengths if each != ONE}
  if not others:
    return ONE
  number = next((each for each in others if each.known is not None), None)
  return number or (others.pop() if len(others) == 1 else None)


def dims(scope: Scope, tensor: gs.Tensor, told: Mapping[int, Sequence[Length]] | None = None) -> list[Length] | None:
  """The lengths of the tensor's axes; None if its rank is unknown. `told`: those of others, by their id."""
  question = _Lengths(scope, told or {})
  rank = scope.rank(tensor)
  found = question.dims(tensor) if id(tensor) in question.told or rank is None else question.all(tensor, range(rank))
  question.keep()
  return found


def same_lengths(scope: Scope, a: gs.Tensor, b: gs.Tensor) -> bool:
  """Whether both have surely the same shape."""
  rank = scope.rank(a)
  return rank is not None and rank == scope.rank(b) and all(same_length(scope, a, b, axis) for axis in range(rank))


def same_length(scope: Scope, a: gs.Tensor, b: gs.Tensor, axis: int) -> bool:
  """Whether two tensors of known rank have surely one length along an axis."""
  given = [(scope.shape(each) or ())[axis] for each in (a, b)]
  if given[0] is not None and given[0] == given[1]:
    return True
  question = _Lengths(scope, {})
  is_same = question.all(a, [axis]) == question.all(b, [axis])
  question.keep()
  return is_same


class _TooDeepError(Exception):
  """There are too many questions open to ask for this axis of this tensor, too."""

  def __init__(self, tensor: gs.Tensor, axis: int) -> None:
    super().__init__()
    self.place = tensor, axis


class _Lengths:
  """One question: goes back over operators, each length once."""

  def __init__(self, scope: Scope, told: Mapping[int, Sequence[Length]]) -> None:
    self.scope = scope
    self.told = told
    self.known: _Found = {} if told else scope.lengths
    self.seen: _Found = {}
    self.is_cut = False
    self.depth = 0

  def all(self, tensor: gs.Tensor, axes: Iterable[int]) -> list[Length]:
    """The lengths of these axes. What is too deep in a question is one of its own, before that is asked again."""
    found: list[Length] = []
    for axis in axes:
      open_ones = [(tensor, axis)]
      while open_ones:
        try:
          length = self.length(*open_ones[-1])
          open_ones.pop()
        except _TooDeepError as error:
          open_ones.append(error.place)
      found.append(length)
    return found

  def keep(self) -> None:
    """Lets later questions begin with what this one found, unless it was cut short."""
    if not self.is_cut:
      self.known.update(self.seen)

  def _is_full(self) -> bool:
    self.is_cut = self.is_cut or len(self.seen) >= VISITS
    return self.is_cut

  def dims(self, tensor: gs.Tensor) -> list[Length] | None:
    if id(tensor) in self.told:
      return list(self.told[id(tensor)])
    rank = self.scope.rank(tensor)
    return None if rank is None else [self.length(tensor, axis) for axis in range(rank)]

  def length(self, tensor: gs.Tensor, axis: int) -> Length:
    """Of one axis, counted from the front, of a tensor of known rank."""
    if id(tensor) in self.told:
      return self.told[id(tensor)][axis]
    dim = (self.scope.shape(tensor) or ())[axis]
    if isinstance(dim, int):
      return Length(dim)
    itself = Length(1, (dim if isinstance(dim, str) else (id(tensor), axis),))
    if isinstance(dim, str) and not is_generated(dim):
      return itself
    key = id(tensor), axis
    if key in self.known:
      return self.known[key][1]
    if key not in self.seen:
      if self._is_full():
        return itself
      if self.depth == DEEP:
        raise _TooDeepError(tensor, axis)
      self.seen[key] = tensor, itself
      self.depth += 1
      node = self.scope.producer(tensor)
      try:
        found = self._derived(node, tensor, axis) if node is not None and node.inputs else None
      except _TooDeepError:
        del self.seen[key]
        raise
      finally:
        self.depth -= 1
      self.seen[key] = tensor, found or self._of_a_cast(tensor, axis) or itself
    return self.seen[key][1]

  def _of_a_cast(self, tensor: gs.Tensor, axis: int) -> Length | None:
    """What a Cast of the tensor knows of it: behind a conversion to another precision, what the model says."""
    for node in self.scope.consumers(tensor):
      dim = (self.scope.shape(node.outputs[0]) or {axis: None})[axis] if self.scope.op(node) == "Cast" else None
      if isinstance(dim, int):
        return Length(dim)
      if isinstance(dim, str) and not is_generated(dim):
        return Length(1, (dim,))
    return None

  def _derived(self, node: gs.Node, tensor: gs.Tensor, axis: int) -> Length | None:
    """The length by the operator that makes the tensor; None where that does not tell."""
    scope, x = self.scope, node.inputs[0]
    op, rank, own = scope.op(node), scope.rank(tensor) or 0, scope.rank(x)
    if own is None or (tensor is not node.outputs[0] and node.domain != DOMAIN):
      return None
    if op in KEEPS and own == rank:
      return self.length(x, axis)
    if op == "Reshape":
      return self._reshaped(node, axis)
    if op == "Range":
      counted = scope.scalar(x) == 0 and scope.scalar(node.inputs[2]) == 1
      values = self.shape_of(node.inputs[1]) if counted else None
      return values[0] if values else None
    if op == "Transpose":
      return self.length(x, [int(each) for each in node.attrs.get("perm") or reversed(range(rank))][axis])
    if op == "Unsqueeze":
      if (new := unsqueezed_axes(scope, node)) is None or axis in new:
        return None if new is None else ONE
      return self.length(x, [each for each in range(rank) if each not in new].index(axis))
    if op == "Expand":
      if (values := self.shape_of(node.inputs[1])) is None or Length(-1) in values:
        return None
      return self._broadcast([x], rank, axis, values[axis - rank] if len(values) >= rank - axis else ONE)
    if op in PRODUCTS and rank >= 2:
      right = node.inputs[1]
      if axis == rank - 1 and (scope.rank(right) or 0) >= 2:
        return self.length(right, (scope.rank(right) or 0) - (2 if node.attrs.get("trans_b", 0) else 1))
      if axis == rank - 2 and own >= 2:
        return self.length(x, own - 2)
      batch = [each for each in node.inputs[:2] if (scope.rank(each) or 0) > rank - axis - 1]
      return self._broadcast(batch, rank, axis, ONE) if axis < rank - 2 else None
    if op in BROADCAST or (op in CHAINS and "ordered" not in node.attrs) or is_pointwise(scope, node):
      return self._broadcast([each for each in node.inputs if not each.is_empty()], rank, axis, ONE)
    return None

  def _broadcast(self, tensors: Sequence[gs.Tensor], rank: int, axis: int, more: Length | None) -> Length | None:
    ranks = [self.scope.rank(each) for each in tensors]
    if more is None or None in ranks:
      return None
    places = [axis - rank + (own or 0) for own in ranks]
    return agreed([more, *(self.length(t, at) for t, at in zip(tensors, places, strict=True) if at >= 0)])

  def _reshaped(self, node: gs.Node, axis: int) -> Length | None:
    """0 copies a length, -1 is what is left of the elements."""
    values, x = self.shape_of(node.inputs[1]), node.inputs[0]
    if values is None or axis >= len(values):
      return None
    lengths: list[Length | None] = []
    for index, value in enumerate(values):
      if value == Length(0) and not node.attrs.get("allowzero", 0):
        lengths.append(self.length(x, index) if index < (self.scope.rank(x) or 0) else None)
      else:
        lengths.append(None if value == Length(-1) else value)
    if lengths[axis] is not None or values[axis] != Length(-1):
      return lengths[axis]
    rest = [each for index, each in enumerate(lengths) if index != axis]
    if (given := self.dims(x)) is None or any(each is None for each in rest):
      return None
    return product(given).over(product([each for each in rest if each is not None]))

  def shape_of(self, tensor: gs.Tensor) -> list[Length | None] | None:
    """What a tensor that is used as a shape holds, None where an element may be anything; a scalar is one."""
    scope = self.scope
    if (values := scope.constant(tensor)) is not None:
      return [Length(int(each)) for each in values.ravel()] if values.ndim < 2 and values.dtype.kind in "iu" else None
    node = scope.producer(tensor)
    if node is None or not node.inputs or scope.rank(tensor) not in (0, 1) or self._is_full():
      return None
    self.seen[id(tensor), -1] = tensor, ONE  # counts the visit
    op, x = scope.op(node), node.inputs[0]
    if op == "Shape":
      given = self.dims(x)
      return None if given is None else list(given[slice(node.attrs.get("start", 0), node.attrs.get("end"))])
    if op == "Concat":
      parts = [self.shape_of(each) or _unknown(scope, each) for each in node.inputs]
      return None if None in parts else [each for part in parts if part is not None for each in part]
    if op in ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape"):
      return self.shape_of(x)
    if op in ("Gather", "Slice"):
      return _picked(scope, node, self.shape_of(x))
    if op == "Mul":
      return _multiplied([self.shape_of(each) for each in node.inputs])
    if op == "Where":  # TorchScript: a length of -1 means 1, and a Shape has none
      test, ones = scope.producer(node.inputs[0]), scope.constant(node.inputs[1])
      minus = None if test is None or scope.op(test) != "Equal" else scope.constant(test.inputs[1])
      if test is None or ones is None or minus is None or test.inputs[0] is not node.inputs[2]:
        return None
      held = self.shape_of(node.inputs[2]) if (minus == -1).all() and (ones == 1).all() else None
      return None if held is None else [ONE if each == Length(-1) else each for each in held]
    return None


def _unknown(scope: Scope, tensor: gs.Tensor) -> list[Length | None] | None:
  shape = scope.shape(tensor)
  return [None] * shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def _picked(scope: Scope, node: gs.Node, held: list[Length | None] | None) -> list[Length | None] | None:
  operands = [None if each.is_empty() else scope.constant(each) for each in node.inputs[1:]]
  if held is None or any(each is None or each.dtype.kind not in "iu" for each in operands):
    return None
  numbers = [np.reshape(each, -1) for each in operands if each is not None]
  if scope.op(node) == "Gather":
    indices = numbers[0]
    return [held[int(i)] for i in indices] if all(-len(held) <= i < len(held) for i in indices) else None
  if any(each.size != 1 for each in numbers) or len(numbers) < 2 or (len(numbers) > 2 and numbers[2][0] not in (0, -1)):
    return None
  step = int(numbers[3][0]) if len(numbers) > 3 else 1
  return held[int(numbers[0][0]) : int(numbers[1][0]) : step] if step > 0 else None


def _multiplied(held: Sequence[list[Length | None] | None]) -> list[Length | None] | None:
  a, b = held
  if a is None or b is None or len(a) != 1 or len(b) != 1 or a[0] is None or b[0] is None:
    return None
  return [a[0].times(b[0])] if a[0].number > 0 and b[0].number > 0 else None
