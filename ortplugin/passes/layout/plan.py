"""What an operator needs so that it works with channels last; and the tensors in that order, each made once.

A tensor [N, C, spatial..] with channels last is [N, spatial.., C]. A rule says for one node of the graph, if it can do
that: which of its inputs and outputs then have channels last, and what changes of it besides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import ELEMENTS, Dim, Scope, Shape
from ..emit import integers, unsqueeze

Edit = Callable[["Layouts", gs.Node], None]
"""Changes a node, whose inputs in Plan.reads have channels last already, but for its outputs."""


@dataclass(frozen=True)
class Plan:
  """How a node works with channels last."""

  reads: tuple[int, ...]  # the inputs, variables of rank 3 and more, that it then reads with channels last
  makes: tuple[int, ...]  # the outputs that then have channels last; the others are as they were
  edit: Edit


Rule = Callable[[Scope, gs.Node], Plan | None]


def to_last(rank: int) -> list[int]:
  """The permutation from channels first to last."""
  return [0, *range(2, rank), 1]


def to_first(rank: int) -> list[int]:
  """The permutation from channels last to first."""
  return [0, rank - 1, *range(1, rank - 1)]


def axis_last(axis: int, rank: int) -> int:
  """Where an axis of a tensor is once channels are last."""
  return to_last(rank).index(axis % rank)


def shape_last(shape: Shape | None) -> Shape | None:
  """A shape with channels last."""
  return None if shape is None else tuple(shape[axis] for axis in to_last(len(shape)))


def is_vector(shape: Shape | None) -> bool:
  """Whether all spatial dimensions are surely 1: then both orders are the same in memory."""
  return shape is not None and len(shape) > 2 and all(dim == 1 for dim in shape[2:])


def is_perm(scope: Scope, node: gs.Node, perm_of: Callable[[int], list[int]]) -> bool:
  """Whether the node is the Transpose of this permutation of three or more axes."""
  if scope.op(node) != "Transpose":
    return False
  perm = list(node.attrs.get("perm") or range((scope.rank(node.inputs[0]) or 0) - 1, -1, -1))
  return len(perm) > 2 and perm == perm_of(len(perm))


class Layouts:
  """The tensors of a scope in channels-last order while its nodes are changed, in topological order."""

  def __init__(self, scope: Scope) -> None:
    self.scope = scope
    self._last: dict[int, gs.Tensor] = {}
    self._old: list[tuple[gs.Tensor, gs.Tensor]] = []  # outputs that are made with channels last now, and these
    self._constants: dict[tuple[int, int], gs.Tensor] = {}

  def made(self, tensor: gs.Tensor) -> gs.Tensor:
    """What a node makes instead of its output `tensor`."""
    scope = self.scope
    last = scope.like(tensor, "nhwc", shape_last(scope.shape(tensor)))
    self._last[id(tensor)] = last
    self._old.append((tensor, last))
    return last

  def last(self, tensor: gs.Tensor, before: gs.Node) -> gs.Tensor:
    """A variable of rank 3 or more with channels last, for the node `before`."""
    scope = self.scope
    maker = scope.producer(tensor)
    if maker is not None and id(tensor) not in self._last and is_perm(scope, maker, to_first):
      self._last[id(tensor)] = maker.inputs[0]
    if id(tensor) not in self._last:
      rank = scope.rank(tensor) or 0
      output = scope.like(tensor, "nhwc", shape_last(scope.shape(tensor)))
      scope.insert(self._reordered(tensor, output, to_last(rank)), before)
      self._last[id(tensor)] = output
    return self._last[id(tensor)]

  def operand(self, tensor: gs.Tensor, rank: int, before: gs.Node) -> gs.Tensor:
    """What broadcasts to a tensor of this rank, as it broadcasts to that with channels last.

    For constants, and for variables of a lower rank.
    """
    scope, shape = self.scope, self.scope.shape(tensor)
    assert shape is not None
    if all(dim == 1 for dim in shape):
      return tensor
    axes = list(range(rank - len(shape)))
    if (array := scope.constant(tensor, ELEMENTS)) is not None:
      return self._constant(tensor, rank, lambda: stripped(np.expand_dims(array, tuple(axes))))
    whole = unsqueeze(scope, before, tensor, axes)
    output = scope.like(tensor, "nhwc", shape_last(scope.shape(whole)))
    scope.insert(self._reordered(whole, output, to_last(rank)), before)
    return output

  def weights(self, tensor: gs.Tensor, before: gs.Node) -> gs.Tensor:
    """[rows, columns, spatial..] as [rows, spatial.., columns]: a constant here, anything else by a Transpose."""
    rank = self.scope.rank(tensor) or 0
    if (array := self.scope.constant(tensor, ELEMENTS)) is None:
      return self.last(tensor, before)
    return self._constant(tensor, -rank, lambda: array.transpose(to_last(rank)))

  def _constant(self, tensor: gs.Tensor, key: int, value: Callable[[], Array]) -> gs.Tensor:
    if (id(tensor), key) not in self._constants:
      self._constants[id(tensor), key] = self.scope.add_constant(value(), f"{tensor.name}_nhwc")
    return self._constants[id(tensor), key]

  def _reordered(self, given: gs.Tensor, output: gs.Tensor, perm: Sequence[int]) -> gs.Node:
    """A node that permutes the axes of `given`, of that rank: a view where that moves nothing.

    The target shape is the permuted shape of `given`. Never derive it from what `perm` is called: in rank 3 the
    permutations to channels last and to channels first are one and the same.
    """
    shape = self.scope.shape(given)
    target = None if shape is None else _as_view([shape[axis] for axis in perm])
    if target is not None:
      inputs = [given, integers(self.scope, target, f"{output.name}_shape")]
      return gs.Node("Reshape", self.scope.unique(f"{output.name}/Reshape"), {}, inputs, [output])
    return gs.Node("Transpose", self.scope.unique(f"{output.name}/Transpose"), {"perm": list(perm)}, [given], [output])

  def finish(self) -> None:
    """Gives what still reads the old outputs, or gives them out, those outputs."""
    scope = self.scope
    for old, last in self._old:
      if not old.outputs and not scope.is_output(old):
        continue
      maker = scope.producer(last)
      assert maker is not None
      back = self._reordered(last, old, to_first(scope.rank(last) or 0))
      scope.insert_after(back, maker)


def _as_view(dims: Sequence[Dim]) -> list[int] | None:
  """What a Reshape makes these dimensions from, of which a permutation moved all but the first; else None.

  It moves no data where one of these axes, at most, is longer than 1.
  """
  rest = [dim for dim in dims[1:] if isinstance(dim, int) and dim > 0]
  return [0, *rest] if len(rest) == len(dims) - 1 and len(rest) - rest.count(1) <= 1 else None


def stripped(array: Array) -> Array:
  """The constant of full rank with channels last, without leading axes of length 1."""
  array = array.transpose(to_last(array.ndim))
  while array.ndim > 1 and array.shape[0] == 1:
    array = array[0]
  return array
