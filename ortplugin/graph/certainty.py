"""How surely the shapes of a graph's values are known: each length only ever becomes known better.

What a model says of its own values, what is inferred with that, and what is inferred from the graph's inputs alone may
contradict each other. A length gives way to a surer one only, so that whoever goes over a graph until nothing changes
comes to an end: every length changes as often as there are levels, at most.
"""

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from .shapes import Dim, Shape

OPEN, DECLARED, INFERRED, PROVED = range(4)
"""Not known; said by the model of the value; by inference beside what the model says; from the graph's inputs alone."""

GENERATED = "unk__"  # how onnx.shape_inference begins the names of dimensions that it makes up


def is_generated(dim: Dim) -> bool:
  """Whether the dimension's name was made up by shape inference."""
  return isinstance(dim, str) and dim.startswith(GENERATED)


class Certainty:
  """The levels of the ranks and lengths of tensors. One that it has not seen is as its graph declares it."""

  def __init__(self, inputs: Iterable[gs.Tensor], withheld: Iterable[str] = ()) -> None:
    """`inputs`: those of the outermost graph, whose shapes hold.

    `withheld`: names of dimensions in what the model says of values that have no shape for now. They are taken.
    """
    self.withheld = frozenset(withheld)
    self._ranks: dict[int, int] = {}
    self._dims: dict[int, list[int]] = {}
    for tensor in inputs:
      if tensor.shape is not None:
        self._set(tensor, tuple(tensor.shape), PROVED)

  def level_of(self, tensors: Iterable[gs.Tensor]) -> int:
    """The level of what follows from the tensors: that of the least sure length in them."""
    levels = (level for each in tensors for level in self._levels(each) if level != OPEN)
    return min(levels, default=PROVED)

  def shape(self, tensor: gs.Tensor, level: int) -> Shape | None:
    """What is known of the tensor's shape at that level or more surely."""
    if tensor.shape is None or self._ranks.get(id(tensor), DECLARED) < level:
      return None
    if level <= DECLARED:
      return tuple(tensor.shape)
    return tuple(dim if known >= level else None for dim, known in zip(tensor.shape, self._levels(tensor), strict=True))

  def _levels(self, tensor: gs.Tensor) -> list[int]:
    if isinstance(tensor, gs.Constant) or tensor.shape is None:
      return []
    return self._dims.get(id(tensor), [DECLARED])

  def learn(self, tensor: gs.Tensor, shape: Shape | None, level: int, known: bool = False) -> bool:
    """Takes over what of `shape` is surer than what is known of the tensor's; whether that changed anything.

    `known`: what is known was handed to the inference that `shape` comes from, so that it may be that itself, and
    is no surer for it.
    """
    if shape is None:
      return False
    shape = tuple(None if isinstance(dim, int) and dim >= 1 << 63 else dim for dim in shape)  # none that ONNX has
    key = id(tensor)
    before = None if tensor.shape is None else tuple(tensor.shape)
    if key not in self._ranks and before is not None:
      self._set(tensor, before, DECLARED)
    if before is None or (len(before) != len(shape) and level > self._ranks[key]):
      tensor.shape = shape
      self._set(tensor, shape, level)
      return True
    if len(before) != len(shape):
      return False
    self._ranks[key] = max(self._ranks[key], level)
    levels, dims = self._dims[key], list(before)
    for axis, dim in enumerate(shape):
      if _is_told(dim) and level > levels[axis] and not (known and dim == dims[axis]):
        dims[axis], levels[axis] = dim, level
      elif dims[axis] is None:
        dims[axis] = dim
    after = tuple(dims)
    tensor.shape = after
    return after != before

  def _set(self, tensor: gs.Tensor, shape: Shape, level: int) -> None:
    self._ranks[id(tensor)] = level
    self._dims[id(tensor)] = [level if _is_told(dim) else OPEN for dim in shape]


def _is_told(dim: Dim) -> bool:
  return dim is not None and not is_generated(dim)
