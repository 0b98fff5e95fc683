"""Rows of Q or K in front of those that are rotated, such as a class token, are rotated by 0, which changes nothing.

    y = Concat(Slice(x, 0 : p), rotated(Slice(x, p : S), cos, sin))     x [.., S, D]     becomes
    y = rotated(x, Concat(ones, cos), Concat(zeros, sin))

so that attention-rotary knows it, and nothing is taken apart and put together. cos and sin are constants. (Beside an
infinity a row in front has a NaN then; scores are NaN or infinite either way.)
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import ELEMENTS, Scope, element_count, labelled
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import emit, integers, unsqueeze
from .node import is_attention
from .operands import remove_unused
from .rotations import Rotation, rotation_of


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the Concat of one Q or K."""
  y, shape = node.outputs[0], scope.shape(node.outputs[0])
  if scope.op(node) != "Concat" or len(node.inputs) != 2 or not shape or scope.is_output(y):
    return None
  readers = scope.consumers(y)
  if not readers or any(not is_attention(scope, each) or y in each.inputs[2:] for each in readers):
    return None
  found, axis = rotation_of(scope, node.inputs[1]), int(node.attrs["axis"]) % len(shape)
  if found is None or found.operator is not None:
    return None
  front, rest = (_rows(scope, each, axis) for each in (node.inputs[0], found.x))
  x = None if rest is None else rest[0].inputs[0]
  if front is None or rest is None or x is None or front[0].inputs[0] is not x:
    return Missed(node, f"'{found.x.name}' is not the rest of a tensor whose first rows are in front of it")
  if (front[1], front[2], rest[2]) != (0, rest[1], shape[axis]) or element_count(shape) is None:
    return Missed(node, f"'{y.name}' is not all rows of '{x.name}', in order, or its shape is not known")
  if 2 * found.pairs != shape[-1] or scope.dtype(found.cos) != scope.dtype(x) or axis == len(shape) - 1:
    return Missed(node, "a part of each head is rotated, or in another dtype")
  made = [_table(scope, each, found, axis - len(shape), rest[2] - rest[1]) for each in (found.cos, found.sin)]
  held = [each for each in made if each is not None]
  if len(held) != 2:
    return Missed(node, f"'{found.cos.name}' or '{found.sin.name}' is no constant, or not of one row for each")
  tables = []
  for values, number in zip(held, (1, 0), strict=True):
    ahead = np.full_like(values.take([0] * rest[1], axis - len(shape)), number)
    tables.append(scope.add_constant(np.concatenate([ahead, values], axis - len(shape)), f"{y.name}_table"))
  old = [node, *found.nodes, rest[0], front[0]]
  labels = labelled(*{id(each): each for each in old}.values())
  parts = [
    emit(scope, node, "Mul", [value, table], shape)
    for value, table in zip((x, _turned(scope, node, x, found)), tables, strict=True)
  ]
  last = gs.Node("Add", node.name, {}, parts)
  scope.replace([node], last, [y])
  remove_unused(scope, {id(each): each for each in old[1:]}.values())
  return Applied(labels, last)


def _rows(scope: Scope, tensor: gs.Tensor, axis: int) -> tuple[gs.Node, int, int] | None:
  """The Slice that takes the tensor's rows along the axis, forwards and one by one, and which: from, to."""
  if (node := scope.producer(tensor, "Slice")) is None or len(node.inputs) < 4:
    return None
  held = [scope.constant(each, 1) for each in node.inputs[1:]]
  numbers = [int(each.reshape(())) for each in held if each is not None and each.size == 1]
  shape = scope.shape(node.inputs[0]) or ()
  if len(numbers) != len(held) or numbers[3:] not in ([], [1]) or numbers[2] not in (axis, axis - len(shape)):
    return None
  length = shape[axis]
  return (node, *slice(*numbers[:2]).indices(length)[:2]) if isinstance(length, int) else None


def _table(scope: Scope, table: gs.Tensor, found: Rotation, axis: int, rows: int) -> Array | None:
  """The values, with a column for each element; None if they are not constant, with a row for each rotated one."""
  values = scope.constant(table, ELEMENTS)
  if values is None or values.ndim < -axis or values.shape[axis] != rows:
    return None
  if found.is_doubled:
    return values
  return np.repeat(values, 2, -1) if found.interleaved else np.concatenate([values, values], -1)


def _turned(scope: Scope, before: gs.Node, x: gs.Tensor, found: Rotation) -> gs.Tensor:
  """Of each pair a, b of x's elements -b, a."""
  shape, pairs = scope.shape(x) or (), found.pairs
  numbers = ((0, 2 * pairs, 2), (1, 2 * pairs, 2)) if found.interleaved else ((0, pairs, 1), (pairs, 2 * pairs, 1))
  half = (*shape[:-1], pairs)
  parts = [
    emit(scope, before, "Slice", [x, *(integers(scope, [n], "slice") for n in (start, end, -1, step))], half)
    for start, end, step in numbers
  ]
  parts = [emit(scope, before, "Neg", [parts[1]], half), parts[0]]
  if not found.interleaved:
    return emit(scope, before, "Concat", parts, shape, axis=len(shape) - 1)
  parts = [unsqueeze(scope, before, each, [len(shape)]) for each in parts]
  stack = emit(scope, before, "Concat", parts, (*half, 2), axis=len(shape))
  return emit(scope, before, "Reshape", [stack, integers(scope, [int(d or 0) for d in shape], "shape")], shape)


ROTATED_ROWS = RulePass("rotated-rows", "rows in front of those that are rotated are rotated by 0", rewrite)
