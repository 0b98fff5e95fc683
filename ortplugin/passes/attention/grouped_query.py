"""ONNX Runtime's GroupQueryAttention, the operator of onnxruntime-genai's decoders:

    query [B, S, H D], key and value [B, S, KV D], or all in query [B, S, (H + 2 KV) D]; caches [B, KV, rows, D]

After a step seqlens_k[b] + 1 rows of text b's cache are in use, the new ones from max(seqlens_k[b] + 1 - S, 0) on: the
`position` of a cache that is written. So the past must have room for them, which the length of what is present or
total_sequence_length tells; or it has no rows, and K and V are all. A past that grows stays: the new rows come before
its padding.
"""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import ONE, Length, Scope, dims, optional_input, show
from ..emit import cast, emit, integers, reshape, unsqueeze
from .axes import Atom
from .core import Cache, Core
from .operator_axes import (
  CONTRIB,
  NotFusableError,
  check_absent,
  core_of,
  default_scale,
  lengths_of,
  make_atoms,
  read_heads,
  read_mask,
)
from .scores import Chain

PAST, SEQLENS, TOTAL, TABLES, POSITIONS, BIAS = 3, 5, 6, 7, 9, 10  # inputs
USUAL = {"causal": 1, "sliding_window_cache": 0, "smooth_softmax": 0, "k_quant_type": "NONE", "v_quant_type": "NONE"}


def grouped_query(scope: Scope, node: gs.Node) -> Core:
  """What it computes; raises NotFusableError where FusedAttention does not."""
  for name, usual in USUAL.items():
    if (given := node.attrs.get(name, usual)) != usual:
      raise NotFusableError(f"{name} is {given}")
  check_absent(node, BIAS + 1, "sinks, scales of a cache, norms or lengths of queries")
  needed = (0, SEQLENS, TOTAL, *((TABLES, TABLES + 1) if node.attrs.get("do_rotary", 0) else ()))
  if any(optional_input(node, index) is None for index in needed):
    raise NotFusableError("it lacks an input that it must have")
  counts = [int(node.attrs.get(name, 0)) for name in ("num_heads", "kv_num_heads", "kv_num_heads")]
  tensors = [each for each in map(optional_input, [node] * 3, range(3)) if each is not None]
  q, shapes = lengths_of(scope, tensors[0]), " and ".join(show(scope.shape(each)) for each in tensors)
  own = sum(counts) if len(tensors) == 1 else counts[0]
  size = q[2].over(Length(own)) if len(q) == 3 and own else None
  alike = size is not None and len(tensors) != 2
  for each in tensors[1:]:
    alike = alike and lengths_of(scope, each) == [*q[:2], (size or ONE).times(Length(counts[1]))]
  if size is None or not alike:
    raise NotFusableError(f"its inputs, of shapes {shapes}, are not Q, K and V of {counts[0]} and {counts[1]} heads")
  batch, added = q[:2]
  past = optional_input(node, PAST)
  rows, is_written = _rows(scope, node, past, added)
  atoms = make_atoms(batch, counts[0], counts[1], added, rows, size, size, flat=False)
  if (bias := optional_input(node, BIAS)) is not None and lengths_of(scope, bias)[-1:] != [rows]:
    raise NotFusableError(f"'{bias.name}', of shape {show(scope.shape(bias))}, has not a column for each row")
  masks = [] if bias is None else [read_mask(scope, bias, atoms, None)]
  caches = _caches(scope, node, past, (batch, Length(counts[1]), Length(0), size))
  _check_positions(scope, node, batch, added)
  # Nothing is in the way any more, so that nodes may be made.
  position = _position(scope, node, added) if is_written else None
  cache = None if caches is None else Cache(*caches, Atom(added), position)
  if len(tensors) == 1:
    tensors = _parts(scope, node, [count * atoms.d.size.number for count in counts])
  if node.attrs.get("do_rotary", 0):
    positions = optional_input(node, POSITIONS)
    if positions is None:
      positions = _positions(scope, node, added, position)
    tensors[:2] = [_rotated(scope, node, tensors[index], positions, counts[index]) for index in (0, 1)]
  keys = atoms.t if cache is None else cache.added
  places = ((atoms.h, atoms.s, atoms.d), (atoms.kv, keys, atoms.d), (atoms.kv, keys, atoms.e))
  reads = [read_heads(each, *place, atoms, flat=True) for each, place in zip(tensors, places, strict=True)]
  softcap = float(node.attrs.get("softcap", 0.0))
  scale = float(node.attrs.get("scale", 0.0)) or default_scale(atoms)
  causal = "upper_left" if cache is None else "lower_right"
  window = max(int(node.attrs.get("local_window_size", 0)), 0)
  chain = Chain((node,), tuple(masks), scale / (softcap or 1.0), softcap, causal=causal, window=window)
  y = read_heads(node.outputs[0], atoms.h, atoms.s, atoms.e, atoms, flat=True)
  return core_of(node, reads, y, chain, atoms, cache)


def _rows(scope: Scope, node: gs.Node, past: gs.Tensor | None, added: Length) -> tuple[Length, bool]:
  """How many rows the keys have, and whether those of the past are all of them."""
  given = [Length(0)] * 4 if past is None else lengths_of(scope, past)
  if len(given) != 4:
    raise NotFusableError(f"its past has {len(given)} axes")
  before = given[2]
  total = node.inputs[TOTAL]
  last = scope.scalar(total)
  if before == Length(0):
    if last is None or added != Length(int(last)):
      raise NotFusableError(f"'{total.name}' is not known to be the number of queries; fix the inputs' shapes")
    return added, False
  present = dims(scope, node.outputs[1]) if len(node.outputs) > 1 and not node.outputs[1].is_empty() else None
  has_room = last is not None and before.known is not None and last <= before.known
  if not has_room and (present is None or len(present) != 4 or present[2] != before):
    shape = "" if past is None else show(scope.shape(past))
    raise NotFusableError(
      f"its past, of shape {shape}, is not known to have room for all of '{total.name}'; "
      "fix the shapes of the past and of what tells this length with --input-shape"
    )
  return before, True


def _caches(
  scope: Scope, node: gs.Node, past: gs.Tensor | None, lengths: Sequence[Length]
) -> tuple[tuple[gs.Tensor, gs.Tensor], tuple[gs.Tensor, gs.Tensor]] | None:
  """What is past and what is present; None where there is neither. `lengths`: of a past without rows."""
  present = [each for each in node.outputs[1:3] if not each.is_empty()]
  if past is None and not any(scope.used_beyond(each, []) for each in present):
    return None
  values = optional_input(node, PAST + 1)
  if (past is None) != (values is None) or len(present) != 2:
    raise NotFusableError("it reads or writes K or V of a cache alone, or reads one and writes none")
  if past is None or values is None:
    shape = [each.known for each in lengths if each.known is not None]
    if len(shape) < len(lengths):
      raise NotFusableError(f"'{node.inputs[0].name}' has a batch that is not known; fix it with --input-shape")
    past = values = scope.add_constant(np.zeros(shape, node.inputs[0].dtype), f"{node.name}/past")
  elif lengths_of(scope, values) != lengths_of(scope, past):
    raise NotFusableError(f"'{past.name}' and '{values.name}' are not known to be of one shape")
  return (past, values), (present[0], present[1])


def _check_positions(scope: Scope, node: gs.Node, batch: Length, added: Length) -> None:
  """Raises NotFusableError where lengths or positions are not one for each text or row."""
  lengths = lengths_of(scope, node.inputs[SEQLENS])
  if lengths not in ([batch], [batch, ONE]):
    raise NotFusableError(f"seqlens_k, of shape {show(scope.shape(node.inputs[SEQLENS]))}, is not one for each text")
  if not node.attrs.get("do_rotary", 0):
    return
  for table in node.inputs[TABLES : TABLES + 2]:
    if len(columns := lengths_of(scope, table)) != 2 or columns[1].known is None:
      raise NotFusableError(f"'{table.name}', of shape {show(scope.shape(table))}, is no table of a rotation")
  positions, last = optional_input(node, POSITIONS), scope.scalar(node.inputs[TOTAL])
  if positions is None:
    return
  if lengths_of(scope, positions) != [batch, added]:
    raise NotFusableError(f"'{positions.name}', of shape {show(scope.shape(positions))}, is not one for each row")
  # Of what is taken for a prompt ONNX Runtime reads the first position alone.
  if last is None or added.known is None or added.known == last:
    raise NotFusableError(f"it reads '{positions.name}', and may be a prompt, of which not all positions count")


def _position(scope: Scope, node: gs.Node, added: Length) -> gs.Tensor:
  """Each text's first new row, [B]."""
  lengths = node.inputs[SEQLENS]
  if scope.rank(lengths) == 2:
    lengths = reshape(scope, node, lengths, [-1])
  last = cast(scope, node, lengths, "int64")
  if added == ONE:
    return last
  shape = scope.shape(last)
  following = emit(scope, node, "Add", [last, integers(scope, [1], "one")], shape)
  first = emit(scope, node, "Sub", [following, _count(scope, node, added)], shape)
  return emit(scope, node, "Max", [first, integers(scope, [0], "zero")], shape)


def _count(scope: Scope, node: gs.Node, added: Length) -> gs.Tensor:
  """The number of new rows, [1]."""
  if added.known is not None:
    return integers(scope, [added.known], "rows")
  shape = emit(scope, node, "Shape", [node.inputs[0]], (3,))
  shape.dtype = np.dtype(np.int64)
  return emit(scope, node, "Gather", [shape, integers(scope, [1], "rows")], (1,), axis=0)


def _positions(scope: Scope, node: gs.Node, added: Length, position: gs.Tensor | None) -> gs.Tensor:
  """That of each row for the rotation, [B, S], or of the first one, [1]."""
  if position is None:
    return integers(scope, [0], "position")
  column = unsqueeze(scope, node, position, [1])
  if added == ONE:
    return column
  shape = (*(scope.shape(position) or (None,)), added.known)
  if added.known is not None:
    return emit(scope, node, "Add", [column, integers(scope, range(added.known), "rows")], shape)
  ends = [scope.add_constant(np.array(each, np.int64), "range") for each in (0, 1)]
  count = emit(scope, node, "Squeeze", [_count(scope, node, added)], ())
  rows = emit(scope, node, "Range", [ends[0], count, ends[1]], (None,))
  return emit(scope, node, "Add", [column, rows], shape)


def _rotated(scope: Scope, node: gs.Node, x: gs.Tensor, positions: gs.Tensor, heads: int) -> gs.Tensor:
  """Q or K behind ONNX Runtime's operator, which attention_rotary.py knows."""
  tables = list(node.inputs[TABLES : TABLES + 2])
  attributes = {
    "interleaved": int(node.attrs.get("rotary_interleaved", 0)),
    "num_heads": heads,
    "rotary_embedding_dim": 2 * lengths_of(scope, tables[0])[1].number,
  }
  y = gs.Variable(scope.unique(f"{node.name}/rotated"), x.dtype, scope.shape(x))
  made = gs.Node("RotaryEmbedding", y.name, attributes, [x, positions, *tables], [y], CONTRIB)
  scope.insert(made, node)
  return y


def _parts(scope: Scope, node: gs.Node, widths: Sequence[int]) -> list[gs.Tensor]:
  """Q, K and V of one tensor [B, S, the sum of the widths]."""
  x = node.inputs[0]
  leading = (scope.shape(x) or (None, None, None))[:2]
  parts = [
    gs.Variable(scope.unique(f"{node.name}/{name}"), x.dtype, (*leading, width))
    for name, width in zip(("q", "k", "v"), widths, strict=True)
  ]
  inputs = [x, integers(scope, widths, "widths")] if scope.opset >= 13 else [x]
  attributes = {"axis": 2} if scope.opset >= 13 else {"axis": 2, "split": list(widths)}
  scope.insert(gs.Node("Split", parts[0].name, attributes, inputs, parts), node)
  return parts
