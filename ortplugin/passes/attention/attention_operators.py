"""Attention that is one operator already: ONNX's Attention, ONNX Runtime's MultiHeadAttention, Attention and
GroupQueryAttention.

What they have beyond FusedAttention, such as a length for each row, is a reason to stay.
"""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import ELEMENTS, ONE, Length, Scope, attached, optional_input, show
from ..conditions import unsupported
from ..driver import Missed, Outcome
from ..emit import cast, emit, unsqueeze
from .axes import Term, whole
from .core import Cache, Core, fuse_core
from .grouped_query import grouped_query
from .node import DTYPES, FLOAT32
from .operator_axes import (
  CONTRIB,
  PAST,
  Atoms,
  NotFusableError,
  cache_of,
  check_absent,
  core_of,
  default_scale,
  lengths_of,
  make_atoms,
  read_heads,
  read_mask,
  read_packed,
)
from .scores import Chain, Mask
from .views import Read


def fuse_operator(scope: Scope, node: gs.Node, float32: int = 0) -> Outcome:
  """Replaces one operator; `float32`: in that dtype alone, heads up to this size."""
  if (reader := _READERS.get(scope.op(node))) is None:
    return None
  before = {id(each) for each in scope.slots}
  try:
    dtype = scope.dtype(node.inputs[0])
    dtypes = FLOAT32 if float32 else DTYPES
    if dtype not in dtypes:
      raise NotFusableError(f"'{node.inputs[0].name}' is {dtype}; attention is fused in {' and '.join(dtypes)}")
    if old := unsupported(scope):
      raise NotFusableError(old)
    first = PAST.get(scope.op(node), len(node.inputs))
    writes_cache = reader is grouped_query or optional_input(node, first) is not None
    own = 3 if writes_cache else 1  # with what is present
    used = [scope.used_beyond(each, []) for each in node.outputs[own:] if not each.is_empty()]
    if any(used):
      raise NotFusableError(f"it gives out more than the attention: {next(each for each in used if each)}")
    outcome = fuse_core(scope, node, reader(scope, node), float32)
  except NotFusableError as reason:
    outcome = Missed(node, str(reason))
  if isinstance(outcome, Missed):
    for made in [each for each in scope.slots if each is not None and id(each) not in before]:
      scope.remove(made)
  return outcome


def _onnx_attention(scope: Scope, node: gs.Node) -> Core:
  """Q, K, V [B, H, S, D] or [B, S, H D], attn_mask; a row that is masked whole is 0 in ONNX Runtime."""
  windows = [name for name in ("left_window_size", "right_window_size") if node.attrs.get(name, -1) != -1]
  if windows:
    raise NotFusableError(f"{windows[0]} is {node.attrs[windows[0]]}")
  q, k, v = (lengths_of(scope, tensor) for tensor in node.inputs[:3])
  if len({len(q), len(k), len(v)}) != 1 or len(q) not in (3, 4):
    raise NotFusableError(f"Q, K and V have the ranks {len(q)}, {len(k)} and {len(v)}")
  flat = len(q) == 3
  heads, kv_heads = (
    node.attrs.get(name) if flat else lengths[1].known for name, lengths in (("q_num_heads", q), ("kv_num_heads", k))
  )
  found = cache_of(scope, node, k[-2])
  cache, total = found or (None, k[-2])
  atoms = make_atoms(q[0], heads, kv_heads, q[-2], total, q[-1], v[-1], flat)
  rows = atoms.t if cache is None else cache.added
  reads = [
    read_heads(t, h, n, d, atoms, flat)
    for t, h, n, d in zip(
      node.inputs, (atoms.h, atoms.kv, atoms.kv), (atoms.s, rows, rows), (atoms.d, atoms.d, atoms.e), strict=False
    )
  ]
  masks = []
  if (mask := optional_input(node, 3)) is not None:
    filling = -np.inf if scope.dtype(mask) == "bool" else None
    masks.append(read_mask(scope, mask, atoms, filling))
    if lengths_of(scope, mask)[-1:] != [atoms.t.size]:
      raise NotFusableError(f"the mask, of shape {show(scope.shape(mask))}, may be shorter than the keys")
  causal = _corner(atoms, cache) if node.attrs.get("is_causal", 0) else ""
  if (lengths := optional_input(node, 6)) is not None:
    masks.append(Mask(_within(scope, node, lengths, atoms, bool(causal)), atoms.scores, -np.inf))
    causal = ""
  softcap = float(node.attrs.get("softcap", 0.0))
  scale = float(node.attrs.get("scale", 0.0)) or default_scale(atoms)
  chain = Chain((node,), tuple(masks), scale / (softcap or 1.0), softcap, zeroed=True, causal=causal)
  y = read_heads(node.outputs[0], atoms.h, atoms.s, atoms.e, atoms, flat)
  return core_of(node, reads, y, chain, atoms, cache)


def _within(scope: Scope, node: gs.Node, lengths: gs.Tensor, atoms: Atoms, causal: bool) -> gs.Tensor:
  """Bools [B, 1, S, T]: which of the first `lengths` keys a query sees; `causal`: the last one all, each before it one
  less."""
  keys, queries = atoms.t.size.known, atoms.s.size.known
  if keys is None or (causal and queries is None):
    raise NotFusableError(f"it reads lengths, '{lengths.name}', and the number of queries or keys is not known")
  last = unsqueeze(scope, node, lengths, [1, 2, 3])
  if causal and queries != 1:
    behind = scope.add_constant(np.arange(1 - (queries or 0), 1)[:, None], f"{node.name}/behind")
    last = emit(scope, node, "Add", [last, behind], (*(scope.shape(lengths) or ()), 1, queries, 1))
  numbers = scope.add_constant(np.arange(keys), f"{node.name}/keys")
  seen = emit(scope, node, "Less", [numbers, last], (*(scope.shape(last) or ())[:-1], keys))
  seen.dtype = np.dtype(np.bool_)
  return seen


def _corner(atoms: Atoms, cache: Cache | None) -> str:
  """Where the triangle of a causal operator lies: a cache comes before its first row."""
  if cache is not None and cache.added.size != atoms.s.size:
    raise NotFusableError("it is causal, and not known to have as many new keys as queries")
  return "upper_left" if cache is None else "lower_right"


def _multi_head(scope: Scope, node: gs.Node) -> Core:
  """query [B, S, H D], key and value [B, T, H D]; or query [B, S, H, 3, D]; or key [B, T, H, 2, D]."""
  check_absent(node, 8, "lengths of a cache")
  q, heads = lengths_of(scope, node.inputs[0]), int(node.attrs.get("num_heads", 0))
  key, value, bias = (optional_input(node, index) for index in (1, 2, 3))
  k = None if key is None else lengths_of(scope, key)
  v = None if value is None else lengths_of(scope, value)
  packed = len(q) == 5 and k is None
  if not packed and (len(q) != 3 or k is None or len(k) not in (3, 5) or (v is None) != (len(k) == 5)):
    raise NotFusableError(f"query, of shape {show(scope.shape(node.inputs[0]))}, and key have no known form")
  if bias is not None and (packed or v is None):
    raise NotFusableError(f"it adds the bias '{bias.name}' to a packed tensor")
  rows = q[1] if k is None else k[1]
  found = cache_of(scope, node, rows)
  cache, total = found or (None, rows)
  if cache is not None and (packed or v is None):
    raise NotFusableError("it reads past keys and a packed tensor")
  wide = v[-1] if v is not None else q[-1] if k is None else k[-1]
  atoms = make_atoms(q[0], heads, heads, q[1], total, q[-1], wide, not packed, value_flat=v is not None)
  causal, masks = _causal(node, atoms, cache), _contrib_masks(scope, node, 4, 5, atoms)
  tensors = list(node.inputs[:3])
  parts = None if bias is None else _parts(scope, bias, tensors)
  # Nothing is in the way any more, so that nodes may be made.
  if parts is not None:
    tensors = [
      emit(scope, node, "Add", [each, scope.add_constant(part, f"{node.name}/bias")], scope.shape(each))
      for each, part in zip(tensors, parts, strict=True)
    ]
  padding = _padding(scope, node, 4, atoms)
  reads = []
  own = atoms.t if cache is None else cache.added
  for index, (length, size) in enumerate(((atoms.s, atoms.d), (own, atoms.d), (own, atoms.e))):
    if packed:
      reads.append(read_packed(node.inputs[0], index, 3, length, size, atoms))
    elif index and v is None:
      reads.append(read_packed(node.inputs[1], index - 1, 2, length, size, atoms))
    else:
      reads.append(read_heads(tensors[index], atoms.h, length, size, atoms, flat=True))
  scale = float(node.attrs.get("scale", 0.0)) or default_scale(atoms)
  chain = Chain((node,), (*masks, *padding), scale, causal=causal)
  y = read_heads(node.outputs[0], atoms.h, atoms.s, atoms.e, atoms, flat=True)
  return core_of(node, reads, y, chain, atoms, cache)


def _with_weights(scope: Scope, node: gs.Node) -> Core:
  """input [B, S, E], weights [E, 3 H D], bias [3 H D]: the product is made a node of its own."""
  check_absent(node, 4, "past keys", besides=5)
  if node.attrs.get("do_rotary", 0):
    raise NotFusableError("it rotates Q and K")
  x, weights = lengths_of(scope, node.inputs[0]), lengths_of(scope, node.inputs[1])
  width = weights[-1].known if len(weights) == 2 else None
  sizes = set(node.attrs.get("qkv_hidden_sizes") or ())
  if len(x) != 3 or width is None or width % 3 or sizes - {width // 3}:
    raise NotFusableError(f"weights, of shape {show(scope.shape(node.inputs[1]))}, are not those of equal Q, K, V")
  heads = int(node.attrs.get("num_heads", 0))
  atoms = make_atoms(x[0], heads, heads, x[1], x[1], Length(width // 3), Length(width // 3), True)
  causal, masks = _causal(node, atoms), _contrib_masks(scope, node, 3, 5, atoms)
  # Nothing is in the way any more, so that nodes may be made.
  padding = _padding(scope, node, 3, atoms)
  shape = (*(scope.shape(node.inputs[0]) or ())[:-1], width)
  product = emit(scope, node, "MatMul", node.inputs[:2], shape)
  if (bias := optional_input(node, 2)) is not None:
    product = emit(scope, node, "Add", [product, bias], shape)
  reads = [
    Read(product, ((whole(atoms.b),), (whole(length),), (Term(None, index, Length(3)), whole(atoms.h), whole(size))))
    for index, (length, size) in enumerate(((atoms.s, atoms.d), (atoms.t, atoms.d), (atoms.t, atoms.e)))
  ]
  scale = float(node.attrs.get("scale", 0.0)) or default_scale(atoms)
  chain = Chain((node,), (*masks, *padding), scale, causal=causal)
  return core_of(node, reads, read_heads(node.outputs[0], atoms.h, atoms.s, atoms.e, atoms, flat=True), chain, atoms)


def _contrib_masks(scope: Scope, node: gs.Node, padding: int, bias: int, atoms: Atoms) -> list[Mask]:
  """What ONNX Runtime's operators add to the scores; raises for masks of keys that `_padding` can't read."""
  added, keys = optional_input(node, bias), optional_input(node, padding)
  if keys is not None:
    lengths, shape = lengths_of(scope, keys), show(scope.shape(keys))
    if len(lengths) not in (2, 3) or lengths[-1] != atoms.t.size:
      raise NotFusableError(f"the mask '{keys.name}', of shape {shape}, has not one number a key")
    if lengths[0] not in (ONE, atoms.b.size) or lengths[1:-1] not in ([], [atoms.s.size]):
      raise NotFusableError(f"the mask '{keys.name}', of shape {shape}, is not known to be one for each query")
  return [] if added is None else [read_mask(scope, added, atoms, None)]


def _padding(scope: Scope, node: gs.Node, index: int, atoms: Atoms) -> list[Mask]:
  """A mask [B, T] or [B, S, T] of integers: where it is 0, mask_filter_value is added."""
  if (keys := optional_input(node, index)) is None:
    return []
  shaped = unsqueeze(scope, node, cast(scope, node, keys, "bool"), [1, 2] if scope.rank(keys) == 2 else [1])
  numbers = (0.0, float(node.attrs.get("mask_filter_value", -10000.0)))
  operands = [scope.add_constant(np.array(each, np.float32), f"{node.name}/mask") for each in numbers]
  result = emit(scope, node, "Where", [shaped, *operands], scope.shape(shaped))
  result.dtype = np.dtype(np.float32)
  return [Mask(result, atoms.scores)]


def _causal(node: gs.Node, atoms: Atoms, cache: Cache | None = None) -> str:
  if not node.attrs.get("unidirectional", 0):
    return ""
  if cache is None and atoms.s.size != atoms.t.size:
    raise NotFusableError("it is causal, and not known to have as many keys as queries")
  return _corner(atoms, cache)


def _parts(scope: Scope, bias: gs.Tensor, tensors: Sequence[gs.Tensor]) -> list[Array]:
  """The parts for Q, K and V of one bias."""
  values = None if attached(bias, "initial") is not None else scope.constant(bias, ELEMENTS)
  widths = [lengths_of(scope, each)[-1].known or 0 for each in tensors]
  if values is None or values.size != sum(widths) or not all(widths):
    raise NotFusableError(f"the bias '{bias.name}' is no constant of the widths of Q, K and V")
  return np.split(values.reshape(-1), np.cumsum(widths)[:-1])


_READERS = {
  "Attention": _onnx_attention,
  f"{CONTRIB}::MultiHeadAttention": _multi_head,
  f"{CONTRIB}::Attention": _with_weights,
  f"{CONTRIB}::GroupQueryAttention": grouped_query,
}
