"""Rotary position embeddings of Q and K become part of the attention that reads them:

    FusedAttention(rotated(Q), rotated(K), V)     becomes     FusedAttention(Q, K, V, cos, sin), rotary = "half"

rotations.py knows how they are written, tables.py what cos and sin must be. Q and K are then read from the tensors of
which they are views, as in fuse_attention.py, so that the products before them may become one. The node rounds what is
rotated once, the operators that it replaces after each of them. With a cache
that the node has drawn in, K are its new rows; a cache that it has not is rotated already, and then Q stays.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import Length, Scope, dims, label, labelled, show
from ...ops.attention import layout as layouts
from ..driver import Applied, Missed, Outcome, RulePass
from .node import is_attention, number_of_past
from .operands import OPERANDS, Sizes, layout_at, read_farther, remove_unused, sizes_of
from .rotations import Rotation, rotation_of
from .tables import Place, make_tables


@dataclass(frozen=True)
class _Operand:
  """Q or K of a node: its layout, the sizes of its b, h, s and d, and its rotation."""

  index: int
  layout: layouts.Layout
  sizes: Sizes
  rotation: Rotation

  @property
  def place(self) -> Place:
    """Where batch and sequence lie."""
    axes = {axis[0].name: number for number, axis in enumerate(self.layout.axes) if len(axis) == 1}
    return Place(len(self.layout.axes), axes.get("b"), axes.get("s"), self.sizes["b"], self.sizes["s"])


def draw_in(scope: Scope, node: gs.Node) -> Outcome:
  """Lets one attention rotate Q and K."""
  if not is_attention(scope, node) or "rotary" in node.attrs:
    return None
  rotations = [rotation_of(scope, tensor) for tensor in node.inputs[:2]]
  found = [_operand(scope, node, index, each) for index, each in enumerate(rotations) if each is not None]
  if not found:
    return None
  if len(found) == 1:
    other = node.inputs[0 if rotations[0] is None else 1]
    made = scope.producer(other)
    by = f", made by {label(made)}, is" if made is not None else " is"
    return Missed(node, f"only one of Q and K is rotated: '{other.name}'{by} not, as a cache of keys is not")
  operands = [each for each in found if isinstance(each, _Operand)]
  reason = next((each for each in found if isinstance(each, str)), None) or _unlike(scope, *operands)
  for each in operands:
    reason = reason or scope.used_beyond(node.inputs[each.index], [node]) or None
  if reason:
    return Missed(node, reason)
  tables = make_tables(scope, node, operands[0].rotation, operands[0].place)
  if isinstance(tables, str):
    return Missed(node, tables)
  old = {id(each): each for operand in operands for each in operand.rotation.nodes}
  for operand in operands:
    old |= {id(each): each for each in read_farther(scope, node, operand.index, operand.rotation.x, operand.sizes)}
  at = len(node.inputs) - number_of_past(node)
  for number, table in enumerate(tables):
    node.inputs.insert(at + number, table)
  node.attrs["rotary"] = "interleaved" if operands[0].rotation.interleaved else "half"
  dtype = scope.dtype(tables[0])
  if dtype != node.attrs["qkv_dtype"]:
    node.attrs["rotary_dtype"] = dtype
  labels = labelled(*old.values())
  remove_unused(scope, old.values())
  return Applied(labels, node)


def _operand(scope: Scope, node: gs.Node, index: int, rotation: Rotation) -> _Operand | str:
  """Q or K; or why its rotation is not one along the heads."""
  heads = OPERANDS[index][1]
  tensor = node.inputs[index]
  layout, given = layout_at(node, index), dims(scope, tensor)
  sizes = None if given is None else sizes_of(layout, given, int(node.attrs[heads]))
  if sizes is None:
    return f"'{tensor.name}' has sizes that are not known"
  if dims(scope, rotation.x) != given:
    return f"'{rotation.x.name}', which is rotated, is not known to have the shape of the result"
  last, operator = layout.axes[-1], rotation.operator
  alone = [atom.name for atom in last] == ["d"]
  if operator is not None and not alone and len(layout.axes) == 3:
    count = int(operator.attrs.get("num_heads", 0))
    width = (given or [])[-1]
    alone = last[-1].name == "d" and bool(count) and width == sizes["d"].times(Length(count))
  if not alone or (operator is not None and layout.order not in ("bhsd", "bshd")):
    return f"'{tensor.name}', which lies as '{layout}', is not rotated along each head"
  if operator is not None and (len(layout.axes) == 4) != (layout.order == "bhsd"):
    return f"'{tensor.name}', which lies as '{layout}', is not as {label(operator)} takes it"
  if sizes["d"].known is None or 2 * rotation.pairs > sizes["d"].number:
    return f"{2 * rotation.pairs} elements of a head of {sizes['d'].known} are rotated"
  rotated = 0 if operator is None else int(operator.attrs.get("rotary_embedding_dim", 0))
  if operator is not None and (rotated or sizes["d"].number) != 2 * rotation.pairs:
    return f"{label(operator)} rotates {rotated or sizes['d'].number} elements by {rotation.pairs} columns"
  if scope.dtype(rotation.x) != node.attrs["qkv_dtype"]:
    return f"'{rotation.x.name}', which is rotated, is {scope.dtype(rotation.x)}, not {node.attrs['dtype']}"
  return _Operand(index, layout, sizes, rotation)


def _unlike(scope: Scope, q: _Operand, k: _Operand) -> str | None:
  """Why Q and K are not rotated alike."""
  a, b = q.rotation, k.rotation
  if q.sizes["s"] != k.sizes["s"]:
    return "there are not known to be as many keys as queries"
  if (a.interleaved, a.pairs, a.is_doubled) != (b.interleaved, b.pairs, b.is_doubled):
    return "Q and K are rotated in different ways"
  tensors = [(a.cos, b.cos), (a.sin, b.sin)]
  if a.operator is not None and b.operator is not None:
    tensors += [*zip(a.operator.inputs[1:], b.operator.inputs[1:], strict=False)]
  for one, other in tensors:
    if not scope.same_value(one, other, 1 << 26):
      return f"Q and K are rotated by different tables, '{one.name}' and '{other.name}'"
  table = scope.dtype(a.cos)
  if table != scope.dtype(a.sin) or table not in (scope.dtype(a.x), "float"):
    return f"the tables are {table} and {scope.dtype(a.sin)}, what is rotated is {scope.dtype(a.x)}"
  shapes = [scope.shape(each) for each in (a.cos, a.sin)]
  return None if shapes[0] == shapes[1] else f"the tables have the shapes {show(shapes[0])} and {show(shapes[1])}"


ATTENTION_ROTARY = RulePass("attention-rotary", "rotary embeddings of Q and K become part of FusedAttention", draw_in)
