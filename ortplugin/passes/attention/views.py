"""Views: operators that move the elements of a tensor and compute nothing, read backwards and forwards.

Followed are Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Identity, Slice, Split, Gather of one index and Expand; on
the way to Q and K the product with a number, too, which belongs to attention's scale. Where a product is made in
float32 of fp16 or bf16, for want of a kernel, the Casts around it are views as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import ONE, Length, Scope, dims
from .axes import Atom, Axes, Term, flat, part_of, regroup

FAR = 32  # operators that are followed, at most
HALVES = ("float16", "bfloat16")
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Read:
  """A tensor that holds the wanted elements times 1 / `factor`, and how they lie in it."""

  tensor: gs.Tensor
  axes: Axes
  repeated: frozenset[Atom] = frozenset()
  """Atoms that do not index it: an Expand repeats its elements along them."""
  factor: float = 1.0
  depth: int = 0
  """How many operators lie between it and where attention read before."""


def reads(scope: Scope, tensor: gs.Tensor, axes: Axes, scaled: bool) -> list[Read]:
  """The tensor and those that it is a view of, nearest first. `scaled`: products with numbers are views too."""
  found = [Read(tensor, axes)]
  while len(found) < FAR:
    if (before := backward(scope, found[-1], scaled)) is None:
      break
    found.append(before)
  return found


def backward(scope: Scope, read: Read, scaled: bool = False) -> Read | None:
  """What the operator that makes the tensor reads, if it is a view; None if it is none or can't be expressed."""
  if (node := scope.producer(read.tensor)) is None or not node.inputs:
    return None
  op, x = scope.op(node), node.inputs[0]
  repeated, factor = read.repeated, read.factor
  if op in ("Mul", "Div") and scaled:
    if (number := scalar_operand(scope, node)) is None:
      return None
    x, factor = number[0], factor * number[1]
    axes: Axes | None = read.axes if scope.rank(x) == len(read.axes) else None
  elif op == "Expand":
    axes, more = _unexpanded(scope, node, read)
    repeated |= more
  elif op == "Cast":
    widened = scope.dtype(x) in HALVES and scope.dtype(read.tensor) == "float"
    return replace(read, tensor=x, depth=read.depth + 1) if widened else None
  else:
    axes = _moved(scope, node, op, read)
  if axes is None or scope.dtype(x) != scope.dtype(read.tensor):
    return None
  return Read(x, axes, repeated, factor, read.depth + 1)


def scalar_operand(scope: Scope, node: gs.Node) -> tuple[gs.Tensor, float] | None:
  """Of a Mul or Div: what is scaled, and the factor. None unless that is a finite number other than 0."""
  for index in (1, 0) if scope.op(node) == "Mul" else (1,):
    number = scope.scalar(node.inputs[index])
    other = node.inputs[1 - index]
    if number is None or not math.isfinite(number) or number == 0:
      continue
    if (scope.rank(node.inputs[index]) or 0) > (scope.rank(other) or 0):
      continue
    factor = number if scope.op(node) == "Mul" else 1 / number
    return other, factor
  return None


def _moved(scope: Scope, node: gs.Node, op: str, read: Read) -> Axes | None:
  x, axes = node.inputs[0], read.axes
  if (given := dims(scope, x)) is None:
    return None
  if op == "Identity":
    return axes
  if op in RESHAPES:
    return regroup(axes, given)
  if op == "Transpose":
    perm = [int(axis) for axis in node.attrs.get("perm") or reversed(range(len(given)))]
    if len(perm) != len(axes):
      return None
    return tuple(axes[perm.index(axis)] for axis in range(len(perm)))
  if not given:
    return None  # an invalid node: those below have an axis
  if op == "Gather":
    return _gathered(scope, node, axes, given)
  if op == "Split":
    return _split(scope, node, read, given)
  if op == "Slice":
    return _sliced(scope, node, axes, given)
  return None


def _gathered(scope: Scope, node: gs.Node, axes: Axes, given: Sequence[Length]) -> Axes | None:
  indices, axis = scope.constant(node.inputs[1], 1), int(node.attrs.get("axis", 0)) % len(given)
  if indices is None or indices.size != 1 or indices.ndim > 1 or len(axes) != len(given) - 1 + indices.ndim:
    return None
  total = given[axis].known
  if total is None or not -total <= int(indices.reshape(-1)[0]) < total:
    return None
  taken = Term(None, int(indices.reshape(-1)[0]) % total, Length(total))
  beside = axes[axis] if indices.ndim else ()
  return (*axes[:axis], (taken, *beside), *axes[axis + indices.ndim :])


def _split(scope: Scope, node: gs.Node, read: Read, given: Sequence[Length]) -> Axes | None:
  axis = int(node.attrs.get("axis", 0)) % len(given)
  index = [tensor is read.tensor for tensor in node.outputs].index(True)
  counts: list[int] = []
  for tensor in node.outputs[: index + 1]:
    shape = scope.shape(tensor)
    count = None if shape is None or len(shape) != len(given) else shape[axis]
    if not isinstance(count, int):
      return None
    counts.append(count)
  return _with_part(read.axes, axis, sum(counts[:-1]), counts[-1], given[axis].known)


def _sliced(scope: Scope, node: gs.Node, axes: Axes, given: Sequence[Length]) -> Axes | None:
  if len(node.inputs) < 3:
    return None
  operands = [scope.constant(each) if not each.is_empty() else None for each in node.inputs[1:]]
  starts, ends = operands[:2]
  if starts is None or ends is None:
    return None
  if any(given is None and not each.is_empty() for given, each in zip(operands, node.inputs[1:], strict=True)):
    return None
  along = operands[2] if len(operands) > 2 and operands[2] is not None else np.arange(starts.size)
  steps = operands[3] if len(operands) > 3 and operands[3] is not None else np.ones(starts.size)
  if (steps != 1).any():
    return None
  result: Axes | None = axes
  for start, end, axis in zip(starts.reshape(-1), ends.reshape(-1), along.reshape(-1), strict=True):
    total = given[int(axis) % len(given)].known
    if result is None:
      return None
    if total is None:
      if start != 0 or end < 2**31 - 1:
        return None
      continue
    first, last, _ = slice(int(start), int(end)).indices(total)
    result = _with_part(result, int(axis) % len(given), first, max(last - first, 0), total)
  return result


def _with_part(axes: Axes, axis: int, start: int, count: int, total: int | None) -> Axes | None:
  part = None if total is None else part_of(axes[axis], start, count, total)
  return None if part is None else (*axes[:axis], part, *axes[axis + 1 :])


def _unexpanded(scope: Scope, node: gs.Node, read: Read) -> tuple[Axes | None, frozenset[Atom]]:
  given, made = dims(scope, node.inputs[0]), dims(scope, read.tensor)
  if given is None or made is None or len(made) != len(read.axes):
    return None, frozenset()
  return unbroadcast(read.axes, given, made)


def unbroadcast(axes: Axes, given: Sequence[Length], made: Sequence[Length]) -> tuple[Axes | None, frozenset[Atom]]:
  """The axes of a tensor of lengths `given` that broadcasts to `made`, and the atoms along which it is repeated."""
  missing = len(made) - len(given)
  kept: list[tuple[Term, ...]] = []
  repeated: set[Atom] = set()
  for index, axis in enumerate(axes):
    own = given[index - missing] if index >= missing else None
    if own == made[index]:
      kept.append(axis)
      continue
    terms = flat((axis,))
    if own not in (None, ONE) or terms is None or any(not term.whole for term in terms):
      return None, frozenset()
    repeated.update(term.atom for term in terms if term.atom is not None)
    if own == ONE:
      kept.append(())
  return tuple(kept), frozenset(repeated)


def forward(scope: Scope, read: Read) -> Read | None:
  """The result of the only operator that reads the tensor, if it is a view of all of it."""
  users = scope.consumers(read.tensor)
  if len(users) != 1 or scope.used_beyond(read.tensor, users) or users[0].inputs[0] is not read.tensor:
    return None
  node, op = users[0], scope.op(users[0])
  if op not in (*RESHAPES, "Transpose", "Identity", "Cast") or len(node.outputs) != 1:
    return None
  y = node.outputs[0]
  if op == "Cast" and not (scope.dtype(read.tensor) == "float" and scope.dtype(y) in HALVES):
    return None
  if (made := dims(scope, y)) is None:
    return None
  axes: Axes | None = read.axes
  if op == "Transpose":
    perm = [int(axis) for axis in node.attrs.get("perm") or reversed(range(len(made)))]
    axes = tuple(read.axes[axis] for axis in perm) if len(perm) == len(read.axes) else None
  elif op in RESHAPES:
    axes = regroup(read.axes, made)
  return None if axes is None else Read(y, axes, depth=read.depth + 1)
