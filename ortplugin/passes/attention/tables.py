"""The tables of a rotary embedding as FusedAttention reads them: cos and sin [S, R / 2] or [B, S, R / 2].

Of tables of width R the halves (or neighbours) must be equal, which constants show, and otherwise what makes them:
Concat(f, f), then Cos, Sin and other operators that know no position along the last axis.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import ELEMENTS, ONE, Dim, Length, Scope, dims, optional_input, show
from ..emit import emit, integers
from .node import is_attention, tables_of
from .rotations import CONTRIB, Rotation

FAR = 32  # operators that are followed, at most
UNARY = ("Cast", "Cos", "Identity", "Neg", "Sin")
BINARY = ("Add", "Div", "Mul", "Sub")


@dataclass(frozen=True)
class Place:
  """The axes of the rotated tensor: their number, which are those of batch and sequence (None: of none alone)."""

  rank: int
  batch: int | None
  rows: int | None
  b: Length
  s: Length


def make_tables(scope: Scope, node: gs.Node, found: Rotation, place: Place) -> tuple[gs.Tensor, gs.Tensor] | str:
  """cos and sin of a node that stands behind the rotation; or why they are none."""
  made = []
  for table in (found.cos, found.sin):
    reason = _why_not(scope, table, found, place) if found.operator is None else _why_no_cache(scope, found, place)
    if reason:
      return reason
  for table in (found.cos, found.sin):
    if found.operator is None:
      made.append(_table(scope, node, table, found, place))
    else:
      made.append(_from_cache(scope, node, table, found.operator, place))
  return made[0], made[1]


def _why_not(scope: Scope, table: gs.Tensor, found: Rotation, place: Place) -> str | None:
  """Why a tensor that broadcasts with the rotated one is no table; None if it is one."""
  given, shape = dims(scope, table), show(scope.shape(table))
  columns = found.pairs * (2 if found.is_doubled else 1)
  if given is None or len(given) > place.rank or len(given) < 2 or given[-1] != Length(columns):
    return f"'{table.name}', of shape {shape}, has not {columns} columns"
  for axis, length in enumerate(given[:-1], place.rank - len(given)):
    if length != ONE and length != {place.batch: place.b, place.rows: place.s}.get(axis):
      return f"'{table.name}', of shape {shape}, is not known to be one row for each position"
  if place.rows is None or place.rows < place.rank - len(given) or given[place.rows - place.rank] != place.s:
    return f"'{table.name}', of shape {shape}, has not one row for each position"
  if _batch(given, place) and (place.batch or 0) > place.rows:
    return f"'{table.name}', of shape {shape}, has the batch behind the positions"
  if found.is_doubled and not _is_doubled(scope, table, found.interleaved):
    kind = "neighbours" if found.interleaved else "halves"
    return f"'{table.name}' is not known to have equal {kind}"
  return None


def _batch(given: list[Length], place: Place) -> bool:
  """Whether the table has rows of its own for each batch."""
  axis = -1 if place.batch is None else place.batch - place.rank + len(given)
  return axis >= 0 and given[axis] != ONE


def _is_doubled(scope: Scope, table: gs.Tensor, interleaved: bool, depth: int = 0) -> bool:
  """Whether both columns of each pair are equal."""
  if (values := scope.constant(table, ELEMENTS)) is not None:
    first, second = _columns(values, interleaved)
    return first.shape == second.shape and first.tobytes() == second.tobytes()
  node, rank = scope.producer(table), scope.rank(table)
  if node is None or not rank or depth > FAR:
    return False
  op, x = scope.op(node), node.inputs[0]
  width, own = ((scope.shape(each) or (None,))[-1] for each in (table, x))
  if op in UNARY:
    return _is_doubled(scope, x, interleaved, depth + 1)
  if op in BINARY:
    others = [each for each in node.inputs if scope.shape(each) != () and (scope.shape(each) or (0,))[-1] != 1]
    return bool(others) and all(_is_doubled(scope, each, interleaved, depth + 1) for each in others)
  if op == "Concat" and not interleaved:
    last = int(node.attrs.get("axis", 0)) % rank == rank - 1
    return last and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
  if op == "Reshape" and interleaved and _repeats(scope, node, width):
    return True
  if op == "Transpose":
    keeps = (node.attrs.get("perm") or [0])[-1] == rank - 1
  elif op == "Gather":
    keeps = int(node.attrs.get("axis", 0)) % (scope.rank(x) or 1) != (scope.rank(x) or 1) - 1
  else:  # of the last axis all or nothing, in its order
    keeps = op in ("Expand", "Reshape", "Slice", "Squeeze", "Unsqueeze") and width == own and width is not None
  return keeps and _is_doubled(scope, x, interleaved, depth + 1)


def _repeats(scope: Scope, node: gs.Node, width: Dim) -> bool:
  """Whether a Reshape makes [.., R] of [.., R / 2, 2], whose last axis repeats one element."""
  before = scope.shape(node.inputs[0])
  if before is None or len(before) < 2 or before[-1] != 2 or not isinstance(before[-2], int):
    return False
  if (made := scope.producer(node.inputs[0])) is None or width != 2 * before[-2]:
    return False
  if scope.op(made) == "Expand":
    given = scope.shape(made.inputs[0])
    return bool(given) and given[-1] == 1  # type: ignore[index]
  if scope.op(made) != "Concat" or len(made.inputs) != 2:
    return False
  return made.inputs[0] is made.inputs[1] and int(made.attrs.get("axis", 0)) in (-1, len(before) - 1)


def _columns(values: Array, interleaved: bool) -> tuple[Array, ...]:
  """Both columns of each pair."""
  half = values.shape[-1] // 2
  if interleaved:
    return values[..., ::2], values[..., 1::2]
  return values[..., :half], values[..., half:]


def _table(scope: Scope, node: gs.Node, table: gs.Tensor, found: Rotation, place: Place) -> gs.Tensor:
  given = dims(scope, table) or []
  kept = [False] * len(given)
  kept[place.rows - place.rank] = kept[-1] = True  # type: ignore[operator]
  if _batch(given, place):
    kept[(place.batch or 0) - place.rank + len(given)] = True
  ones = [axis for axis, stays in enumerate(kept) if not stays]
  if (values := scope.constant(table, ELEMENTS)) is not None:
    half = _columns(values, found.interleaved)[0] if found.is_doubled else values
    return _shared(scope, np.squeeze(half, tuple(ones)), table.name)
  made = _first_half(scope, node, table, found.pairs) if found.is_doubled and not found.interleaved else None
  if made is not None:
    table = made
  elif found.is_doubled:
    numbers = [(0,), (2 * found.pairs if found.interleaved else found.pairs,), (-1,)]
    numbers += [(2,)] if found.interleaved else []
    operands = [integers(scope, each, "slice") for each in numbers]
    shape = (*(scope.shape(table) or ())[:-1], found.pairs)
    table = emit(scope, node, "Slice", [table, *operands], shape)
  if not ones:
    return table
  shape = tuple(dim for dim, stays in zip(scope.shape(table) or (), kept, strict=True) if stays)
  if scope.opset < 13:
    return emit(scope, node, "Squeeze", [table], shape, axes=ones)
  return emit(scope, node, "Squeeze", [table, integers(scope, ones, "axes")], shape)


def _first_half(scope: Scope, before: gs.Node, table: gs.Tensor, pairs: int) -> gs.Tensor | None:
  """What `_is_doubled` has found to be of equal halves, made of one of them; None where that takes more operators."""
  node = scope.producer(table, "Concat", *UNARY, "Unsqueeze")
  if node is None or scope.op(node) == "Concat":
    return None if node is None else node.inputs[0]
  if (half := _first_half(scope, before, node.inputs[0], pairs)) is None:
    return None
  shape = (*(scope.shape(table) or ())[:-1], pairs)
  made = emit(scope, before, node.op, [half, *node.inputs[1:]], shape, **node.attrs)
  made.dtype = table.dtype
  return made


def _shared(scope: Scope, values: Array, name: str) -> gs.Tensor:
  """The constant that another attention has already, or a new one."""
  for each in scope.slots:
    if each is None or not is_attention(scope, each):
      continue
    for tensor in tables_of(each):
      held = scope.constant(tensor, ELEMENTS)
      same = held is not None and (held.dtype, held.shape) == (values.dtype, values.shape)
      if same and held is not None and held.tobytes() == values.tobytes():
        return tensor
  return scope.add_constant(values, name)


def _why_no_cache(scope: Scope, found: Rotation, place: Place) -> str | None:
  """Why an operator's caches and positions are no tables; None if they are."""
  node = found.operator
  assert node is not None
  given, positions = [dims(scope, each) for each in (found.cos, found.sin)], _positions(node)
  if given[0] is None or given[0] != given[1] or float(node.attrs.get("scale", 1.0)) != 1:
    return "its caches have no known shape, or it scales"
  if node.attrs.get("is_packed_batching", 0):
    return "is_packed_batching is 1"
  if positions is None:
    fits = len(given[0]) == 3 and given[0][0] in (ONE, place.b) and given[0][1] == place.s
    return None if fits else f"'{found.cos.name}' has not one row for each position"
  where = dims(scope, positions)
  if len(given[0]) != 2 or where is None:
    return f"'{found.cos.name}' or '{positions.name}' has an unknown rank"
  if where == [ONE] and [place.b, place.s] != [ONE]:
    first, rows = scope.scalar(positions), given[0][0].known
    if first is None or place.s.known is None or rows is None or not 0 <= first <= rows - place.s.known:
      return f"the first position, '{positions.name}', is no constant, or the length is unknown"
    return None
  fits = len(where) == 2 and where[0] in (ONE, place.b) and where[1] == place.s
  return None if fits else f"'{positions.name}', of shape {show(scope.shape(positions))}, is not one for each row"


def _positions(node: gs.Node) -> gs.Tensor | None:
  return optional_input(node, 1 if f"{node.domain}::{node.op}" == CONTRIB else 3)


def _from_cache(scope: Scope, node: gs.Node, cache: gs.Tensor, operator: gs.Node, place: Place) -> gs.Tensor:
  if (positions := _positions(operator)) is None:
    return cache
  values, columns = scope.constant(cache, ELEMENTS), (scope.shape(cache) or ())[1]
  if scope.rank(positions) == 1:
    first = int(scope.scalar(positions) or 0)
    last = first + (place.s.known or 0)
    if values is not None:
      return _shared(scope, values[first:last], cache.name)
    ends = [integers(scope, [each], "slice") for each in (first, last, 0)]
    return emit(scope, node, "Slice", [cache, *ends], (last - first, columns))
  rows = scope.constant(positions, ELEMENTS)
  if values is not None and rows is not None and ((rows >= 0) & (rows < len(values))).all():
    return _shared(scope, values[rows], cache.name)
  shape = (*(scope.shape(positions) or ()), columns)
  return emit(scope, node, "Gather", [cache, positions], shape, axis=0)
