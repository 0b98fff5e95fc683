"""Rotary position embeddings as they are written, of x whose last axis is a head, cos and sin being c and s:

    x c + Concat(-x[R / 2 :], x[: R / 2]) s                         tables of width R, whose halves are equal
    Concat(x1 c - x2 s, x2 c + x1 s)                                tables of width R / 2; x1, x2 the halves of x
    Reshape(Concat(Unsqueeze(..), Unsqueeze(..)))                   in place of Concat: of neighbours (interleaved)

also of the first R elements alone, with a Concat of the others, in float32 between two Casts, and as the operators
RotaryEmbedding of ONNX and ONNX Runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from ...graph import Scope

CONTRIB = "com.microsoft::RotaryEmbedding"
DEEP = 4  # Slices after each other, at most


@dataclass(frozen=True)
class Rotation:
  """A tensor is x rotated by cos and sin, which broadcast with x, but for their last axis."""

  x: gs.Tensor
  cos: gs.Tensor
  sin: gs.Tensor
  interleaved: bool
  pairs: int
  is_doubled: bool = False
  """The tables have two columns for each pair, in the order of its elements."""
  nodes: tuple[gs.Node, ...] = ()
  """What computes it, the last one first."""
  operator: gs.Node | None = None
  """Where it is one: cos and sin are its caches then."""


@dataclass(frozen=True)
class _Taken:
  """Elements start, start + step, ... (count of them) of the last axis of x."""

  x: gs.Tensor
  start: int
  count: int
  step: int
  nodes: tuple[gs.Node, ...] = ()


def rotation_of(scope: Scope, tensor: gs.Tensor) -> Rotation | None:
  """The rotation that makes the tensor; None if none does."""
  node = scope.producer(tensor)
  width = _width(scope, tensor)
  if node is None or width is None:
    return None
  op = scope.op(node)
  if op in ("RotaryEmbedding", CONTRIB):
    return _operator(scope, node, op == CONTRIB)
  if op == "Cast" and scope.dtype(node.inputs[0]) == "float":
    found = rotation_of(scope, node.inputs[0])
    cast = None if found is None else scope.producer(found.x)
    if found is None or cast is None or scope.op(cast) != "Cast" or found.operator is not None:
      return None
    if scope.dtype(cast.inputs[0]) != scope.dtype(tensor):
      return None
    return replace(found, x=cast.inputs[0], nodes=(node, *found.nodes, cast))
  found = _partial(scope, node, width) or _whole(scope, node, width)
  return None if found is None or _width(scope, found.x) != width else found


def _operator(scope: Scope, node: gs.Node, is_contrib: bool) -> Rotation | None:
  caches = node.inputs[2:4] if is_contrib else node.inputs[1:3]
  pairs = _width(scope, caches[0]) if len(caches) == 2 else None
  if pairs is None:
    return None
  interleaved = bool(node.attrs.get("interleaved", 0))
  return Rotation(node.inputs[0], caches[0], caches[1], interleaved, pairs, nodes=(node,), operator=node)


def _partial(scope: Scope, node: gs.Node, width: int) -> Rotation | None:
  """Concat of what is rotated and what is not."""
  parts = _joined(scope, node)
  if len(parts) < 2:
    return None
  rest = taken(scope, parts[-1], width)
  if rest is None or rest.step != 1 or rest.start + rest.count != width:
    return None
  if len(parts) == 3:  # of one Concat with both halves
    made = _split(scope, parts[:2], width, False)
  else:
    inner = scope.producer(parts[0])
    made = None if inner is None else _whole(scope, inner, width)
  if made is None or made.x is not rest.x or 2 * made.pairs != rest.start:
    return None
  return replace(made, nodes=(node, *made.nodes, *rest.nodes))


def _whole(scope: Scope, node: gs.Node, width: int) -> Rotation | None:
  """Of the first elements of a tensor of this width; the node makes what is rotated alone."""
  if scope.op(node) == "Add":
    return _full(scope, node, width)
  if (halves := _halves(scope, node)) is None:
    return None
  values, interleaved, nodes = halves
  found = _split(scope, values, width, interleaved)
  return None if found is None else replace(found, nodes=(*nodes, *found.nodes))


def _full(scope: Scope, node: gs.Node, width: int) -> Rotation | None:
  """x cos + turned(x) sin"""
  one, other = (scope.producer(each, "Mul") for each in node.inputs)
  if one is None or other is None:
    return None
  for left, right in ((one, other), (other, one)):
    for swapped, sin in _either(right):
      made = scope.producer(swapped)
      halves = None if made is None else _halves(scope, made)
      if halves is None:
        continue
      (second, first), interleaved, nodes = halves
      if (negated := scope.producer(second, "Neg")) is None:
        continue
      for x, cos in _either(left):
        own = taken(scope, x, width)
        found = None if own is None else _pair(scope, first, negated.inputs[0], width, interleaved)
        if own is None or found is None or found[0].x is not own.x:
          continue
        pairs = found[0].count
        if (own.start, own.step, own.count) == (0, 1, 2 * pairs):
          between = (node, left, right, *nodes, negated, *found[0].nodes, *found[1].nodes, *own.nodes)
          return Rotation(own.x, cos, sin, interleaved, pairs, True, between)
  return None


def _split(scope: Scope, values: Sequence[gs.Tensor], width: int, interleaved: bool) -> Rotation | None:
  """x1 cos - x2 sin and x2 cos + x1 sin"""
  minus, plus = (scope.producer(each) for each in values)
  if minus is None or plus is None or (scope.op(minus), scope.op(plus)) != ("Sub", "Add"):
    return None
  a, b, c, d = (scope.producer(each, "Mul") for each in (*minus.inputs, *plus.inputs))
  if a is None or b is None or c is None or d is None:
    return None
  for x1, cos in _either(a):
    for x2, sin in _either(b):
      for third, fourth in ((c, d), (d, c)):
        if {*map(id, third.inputs)} != {id(x2), id(cos)} or {*map(id, fourth.inputs)} != {id(x1), id(sin)}:
          continue
        if (found := _pair(scope, x1, x2, width, interleaved)) is not None:
          nodes = (minus, plus, a, b, c, d, *found[0].nodes, *found[1].nodes)
          return Rotation(found[0].x, cos, sin, interleaved, found[0].count, False, nodes)
  return None


def _pair(
  scope: Scope, first: gs.Tensor, second: gs.Tensor, width: int, interleaved: bool
) -> tuple[_Taken, _Taken] | None:
  """Both elements of each pair, as they are taken from one tensor."""
  one, two = taken(scope, first, width), taken(scope, second, width)
  if one is None or two is None or one.x is not two.x or one.count != two.count:
    return None
  wanted = ((0, 2), (1, 2)) if interleaved else ((0, 1), (one.count, 1))
  return (one, two) if ((one.start, one.step), (two.start, two.step)) == wanted else None


def _halves(scope: Scope, node: gs.Node) -> tuple[list[gs.Tensor], bool, tuple[gs.Node, ...]] | None:
  """The values of both elements of each pair, whether these are neighbours, and what brings them together."""
  parts = _joined(scope, node)
  if len(parts) == 2:
    return parts, False, (node,)
  stack = scope.producer(node.inputs[0]) if scope.op(node) == "Reshape" else None
  width, parts = _width(scope, node.outputs[0]), [] if stack is None else _joined(scope, stack)
  if stack is None or width is None or len(parts) != 2:
    return None
  apart = [each for each in map(scope.producer, parts) if each is not None and scope.op(each) == "Unsqueeze"]
  values = [each.inputs[0] for each in apart]
  if len(apart) != 2:
    return None
  shape = scope.shape(stack.outputs[0])
  if shape is None or shape[-2:] != (width // 2, 2) or any(_width(scope, each) != width // 2 for each in values):
    return None
  return (values, True, (node, stack, *apart)) if _keeps(scope, values[0], node.outputs[0]) else None


def _keeps(scope: Scope, a: gs.Tensor, b: gs.Tensor) -> bool:
  """Whether all axes but the last one have the same length in both, which have as many elements along these."""
  one, two = scope.shape(a), scope.shape(b)
  if one is None or two is None or len(one) != len(two):
    return False
  return sum(x != y or x is None for x, y in zip(one[:-1], two[:-1], strict=True)) <= 1


def _joined(scope: Scope, node: gs.Node) -> list[gs.Tensor]:
  """What a Concat along the last axis joins; nothing of another node."""
  rank = scope.rank(node.outputs[0])
  if scope.op(node) != "Concat" or not rank:
    return []
  return list(node.inputs) if int(node.attrs.get("axis", 0)) % rank == rank - 1 else []


def _either(product: gs.Node) -> list[tuple[gs.Tensor, gs.Tensor]]:
  a, b = product.inputs
  return [(a, b), (b, a)]


def taken(scope: Scope, tensor: gs.Tensor, width: int) -> _Taken | None:
  """The tensor as a part of one with this width, from which Slices and Splits of the last axis lead to it."""
  if (own := _width(scope, tensor)) is None:
    return None
  start, step = 0, 1
  nodes: list[gs.Node] = []
  for _ in range(DEEP):
    if _width(scope, tensor) == width:
      return _Taken(tensor, start, own, step, tuple(nodes))
    node = scope.producer(tensor)
    part = None if node is None else _part(scope, node, tensor)
    if node is None or part is None:
      return None
    start, step = part[0] + start * part[1], step * part[1]
    nodes.append(node)
    tensor = node.inputs[0]
  return None


def _part(scope: Scope, node: gs.Node, tensor: gs.Tensor) -> tuple[int, int] | None:
  """First element and step of what a Slice or Split takes of the last axis alone."""
  rank, width = scope.rank(tensor), _width(scope, node.inputs[0]) if node.inputs else None
  if not rank or width is None:
    return None
  if scope.op(node) == "Split" and int(node.attrs.get("axis", 0)) % rank == rank - 1:
    index = [each is tensor for each in node.outputs].index(True)
    before = [_width(scope, each) for each in node.outputs[:index]]
    return None if None in before else (sum(each or 0 for each in before), 1)
  if scope.op(node) != "Slice" or len(node.inputs) < 4:
    return None
  held = [None if each.is_empty() else scope.constant(each) for each in node.inputs[1:]]
  numbers = [int(each.reshape(())) for each in held if each is not None and each.size == 1]
  if len(numbers) != len(held):
    return None
  start, end, axis, step = (*numbers, 1)[:4]
  if axis % rank != rank - 1 or step < 1:
    return None
  return slice(start, end).indices(width)[0], step


def _width(scope: Scope, tensor: gs.Tensor) -> int | None:
  """The length of the last axis."""
  shape = scope.shape(tensor)
  return shape[-1] if shape and isinstance(shape[-1], int) else None
