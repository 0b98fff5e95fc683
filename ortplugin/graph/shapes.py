"""Shapes that are partly known: a dimension is a length, a name (equal names are equal lengths) or None."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Dim = int | str | None
Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class TensorType:
  """A tensor's dtype and shape, each None where unknown."""

  dtype: np.dtype[np.generic] | None
  shape: Shape | None


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
  """The shape that tensors of these shapes broadcast to, as far as it can be told; None if its rank can't.

  The shapes come from a valid model: lengths that contradict each other give None for that dimension.
  """
  known = [shape for shape in shapes if shape is not None]
  if len(known) != len(shapes) or not known:
    return None
  rank = max(len(shape) for shape in known)
  return tuple(_broadcast_dims([shape[i] for shape in known if len(shape) >= -i]) for i in range(-rank, 0))


def _broadcast_dims(dims: Sequence[Dim]) -> Dim:
  lengths = {dim for dim in dims if isinstance(dim, int) and dim != 1}
  if len(lengths) == 1:
    return lengths.pop()  # a name or an unknown beside it is 1 or the same
  if lengths:
    return None
  others = {dim for dim in dims if not isinstance(dim, int)}
  if not others:
    return 1
  return others.pop() if len(others) == 1 else None


def broadcasts_to(shape: Shape | None, target: Shape | None) -> bool:
  """Whether a tensor of `shape`, combined with one of `target` in a valid model, surely gives the shape `target`.

  A length of `target` beyond 1 leaves the other only 1 or that length, or the model would be invalid.
  """
  if shape is None or target is None or len(shape) > len(target):
    return False
  return all(
    dim == 1 or (dim is not None and dim == goal) or (not isinstance(dim, int) and _beyond_one(goal))
    for dim, goal in zip(reversed(shape), reversed(target), strict=False)
  )


def _beyond_one(dim: Dim) -> bool:
  return isinstance(dim, int) and dim != 1


def element_count(shape: Shape | None) -> int | None:
  """The number of elements, without overflow; None if a length is unknown or negative."""
  if shape is None:
    return None
  count = 1
  for dim in shape:
    if not isinstance(dim, int) or dim < 0:
      return None
    count *= dim
  return count


def equal(a: Shape | None, b: Shape | None) -> bool:
  """Whether the shapes are surely equal."""
  return (
    a is not None
    and b is not None
    and len(a) == len(b)
    and all(x is not None and x == y for x, y in zip(a, b, strict=True))
  )


def show(shape: Shape | None) -> str:
  """A shape for a report."""
  return "unknown" if shape is None else "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
