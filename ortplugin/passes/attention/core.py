"""From what an attention computes to the node: which tensors it reads and writes, how they lie there, and its masks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from ...graph import ONE, Length, Scope, label, labelled
from ..conditions import unsupported
from ..driver import Applied, Missed
from .axes import Atom, length
from .layouts import Layout, Names, layout_of, restored_shape, size_of
from .masks import plan_masks
from .node import DTYPES, FLOAT32, LARGEST_HEAD, Attention, attention_node, replaced
from .scores import Chain
from .views import FAR, Read, forward, reads


@dataclass(frozen=True)
class Cache:
  """Rows before those of K and V, [b, h, s, d], and all of them as results."""

  past: tuple[gs.Tensor, gs.Tensor]
  present: tuple[gs.Tensor, gs.Tensor]
  added: Atom
  """Of K and V alone, where `columns` counts all."""
  position: gs.Tensor | None = None
  """Where the past has rows for those of K and V: from which on they are written."""


@dataclass(frozen=True)
class Core:
  """An attention: how its operands are indexed where it reads them, and what it does to the scores."""

  q: Read
  k: Read
  v: Read
  y: Read
  chain: Chain
  batch: list[Atom]
  """Of batch and heads, outermost first; the last ones are the heads."""
  rows: Atom
  columns: Atom
  head: Atom
  value: Atom
  cache: Cache | None = None


@dataclass(frozen=True)
class _Reads:
  """The tensors that are views of each other, nearest first, and those of them that have the node's dtype."""

  found: list[list[Read]]
  """Of Q, K, V and Y, in every dtype."""
  q: list[Read]
  k: list[Read]
  v: list[Read]
  y: list[Read]
  float32: int
  """In that dtype, the largest head, whose elements lie side by side: of others no kernel has tensor cores. Else 0."""


@dataclass(frozen=True)
class _Choice:
  """How the tensors are read for one division of the leading axes into batch and heads."""

  q: tuple[Read, Layout]
  k: tuple[Read, Layout]
  v: tuple[Read, Layout]
  y: tuple[Read, Layout]
  heads: int
  kv_heads: int
  names: Names

  @property
  def gain(self) -> int:
    """The views that are no nodes any more."""
    return sum(read.depth - (layout.shape is not None) for read, layout in (self.q, self.k, self.v, self.y))


def fuse_core(scope: Scope, node: gs.Node, core: Core, float32: int = 0) -> Applied | Missed:
  """Replaces the nodes of the chain, of which `node` makes Y, by one; `float32`: that of _Reads."""
  found = _reads(scope, core, float32)
  reason = found if isinstance(found, str) else unsupported(scope) or _used_beside(scope, core)
  if isinstance(found, str) or reason:
    return Missed(node, reason or "")
  choice = _choose(core, found)
  if isinstance(choice, str):
    return Missed(node, choice)
  chain = core.chain
  masking = plan_masks(scope, chain.masks, {**choice.names, "t": core.columns.leaves()})
  if isinstance(masking, str):
    return Missed(node, masking)
  if chain.causal and masking.causal != "none" and (masking.causal != chain.causal or chain.window):
    return Missed(node, "it is causal, and so is its mask in another way")
  if chain.causal:
    masking = replace(masking, causal=chain.causal, window=chain.window)
  read, layout = choice.y
  given = Attention(
    (choice.q[0].tensor, choice.k[0].tensor, choice.v[0].tensor),
    (choice.q[1], choice.k[1], choice.v[1]),
    layout.text,
    choice.heads,
    choice.kv_heads,
    scale=chain.factor * choice.q[0].factor * choice.k[0].factor * (chain.softcap or 1.0),
    softcap=chain.softcap,
    masking=masking,
    zeroed=chain.zeroed,
    past=() if core.cache is None else core.cache.past,
    position=None if core.cache is None else core.cache.position,
  )
  inner = list({id(each): each for each in chain.nodes}.values())
  after = [scope.producer(each.tensor) for each in found.found[3][1:] if each.depth <= read.depth]
  old = [*reversed(inner), *(each for each in after if each is not None)]
  labels = labelled(*old)
  shape = restored_shape(_lengths(read)) if layout.shape is not None else None
  new = attention_node(scope, node, given, scope.dtype(read.tensor) or "")
  replaced(scope, old, new, read.tensor, shape, read.tensor.dtype)
  if core.cache is not None:
    new.outputs.extend(core.cache.present)
  return Applied((*labels, *_removed(scope, found.found[:3])), new)


def _reads(scope: Scope, core: Core, float32: int) -> _Reads | str:
  """The tensors of one of DTYPES, or of FLOAT32, that may be read and written; or why there are none."""
  dtypes = FLOAT32 if float32 else DTYPES
  found = [
    _from(scope, core.q, True),
    _from(scope, core.k, core.cache is None),
    _from(scope, core.v, False),
    _results(scope, core.y),
  ]
  dtype = next((scope.dtype(read.tensor) for read in found[-1] if scope.dtype(read.tensor) in dtypes), None)
  q, k, v, y = ([read for read in each if scope.dtype(read.tensor) == dtype] for each in found)
  if dtype is None or not (q and k and v):
    said = ", ".join(f"'{each[0].tensor.name}' is {scope.dtype(each[0].tensor)}" for each in found)
    return f"{said}; attention is fused in {' and '.join(dtypes)}"
  return _Reads(found, q, k, v, y, float32)


def _removed(scope: Scope, found: Sequence[Sequence[Read]]) -> list[str]:
  """Takes away the views that nothing reads any more; their labels."""
  labels: list[str] = []
  for each in found:
    for read in each:
      node = scope.producer(read.tensor)
      if node is None or read is each[-1] or any(t.outputs or scope.is_output(t) for t in node.outputs):
        break
      labels.append(label(node))
      scope.remove(node)
  return labels


def _from(scope: Scope, read: Read, scaled: bool) -> list[Read]:
  """The reads from this one on."""
  found = reads(scope, read.tensor, read.axes, scaled)
  return [Read(each.tensor, each.axes, each.repeated | read.repeated, each.factor, each.depth) for each in found]


def _results(scope: Scope, result: Read) -> list[Read]:
  found = [result]
  while len(found) < FAR:
    if (after := forward(scope, found[-1])) is None:
      break
    found.append(after)
  return found


def _used_beside(scope: Scope, core: Core) -> str | None:
  """Who needs a value that would disappear: another node, or the attention itself, as its V or as a mask."""
  nodes = core.chain.nodes
  for read in (core.v.tensor, *(mask.tensor for mask in core.chain.masks)):
    if any(made is read for node in nodes for made in node.outputs):
      return f"the attention that '{read.name}' is a part of also reads it"
  for node in nodes[1:]:
    for tensor in node.outputs:
      if used := scope.used_beyond(tensor, nodes):
        return f"{used}, so {label(node)} has to stay"
  return None


def _choose(core: Core, found: _Reads) -> _Choice | str:
  """The division into batch and heads that leaves the fewest views; or why there is none."""
  largest = found.float32 or LARGEST_HEAD
  for name, atom in (("queries and keys", core.head), ("values", core.value)):
    if (size := size_of(atom.leaves())) is None or not 1 <= size <= largest:
      return f"the head size of {name} is {'unknown' if size is None else size}, not one of 1 to {largest}"
  leaves = [leaf for atom in core.batch for leaf in atom.leaves()]
  last = len(leaves) - len(core.batch[-1].leaves()) if len(core.batch) > 1 else len(leaves)
  order = [last, *(each for each in range(len(leaves), 0, -1) if each != last)]
  best: _Choice | None = None
  for division in order:
    choice = _divided(core, found, leaves[:division], leaves[division:])
    if choice is not None and (best is None or choice.gain > best.gain):
      best = choice
  return best or "batch, heads, rows and columns don't lie in its operands as one layout can say"


def _divided(core: Core, found: _Reads, batch: Sequence[Atom], heads: Sequence[Atom]) -> _Choice | None:
  count = size_of(heads)
  rows, columns = core.rows.leaves(), (core.columns if core.cache is None else core.cache.added).leaves()
  head, value = core.head.leaves(), core.value.leaves()
  if count is None:
    return None
  by_rows = found.float32 > 0
  q = next(_laid_out(found.q, {"b": batch, "h": heads, "s": rows, "d": head}, by_rows), None)
  y = next(_laid_out(found.y, {"b": batch, "h": heads, "s": rows, "d": value}, True, output=True), None)
  if q is None or y is None:
    return None
  best: _Choice | None = None
  for k in _laid_out(found.k, {"b": batch, "h": heads, "s": columns, "d": head}, by_rows, repeatable="h"):
    for v in _laid_out(found.v, {"b": batch, "h": heads, "s": columns, "d": value}, by_rows, repeatable="h"):
      groups = [_kv_heads(read, batch, heads) for read in (k[0], v[0])]
      if groups[0] is None or groups[0] != groups[1]:
        continue
      if (kv_heads := size_of(groups[0])) is None:
        continue
      names = {"b": batch, "h": heads, "s": rows}
      choice = _Choice(q, k, v, y, count, kv_heads, names)
      if best is None or choice.gain > best.gain:
        best = choice
  return best


def _kv_heads(read: Read, batch: Sequence[Atom], heads: Sequence[Atom]) -> list[Atom] | None:
  """The heads that K or V has: all but the last ones that are repeated; None if others are."""
  repeated = {leaf for atom in read.repeated for leaf in atom.leaves()}
  if any(leaf in repeated and leaf.size != ONE for leaf in batch):
    return None
  kept = [leaf for leaf in heads if leaf not in repeated]
  return kept if list(heads[: len(kept)]) == kept else None


def _laid_out(
  found: Sequence[Read], names: Names, by_rows: bool, output: bool = False, repeatable: str = ""
) -> Iterator[tuple[Read, Layout]]:
  """The reads that a layout says, farthest first.

  `repeatable`: the names along which the operator repeats what it reads. An Expand along another one stays: the
  operator takes the number of rows from Q, of columns from K and V, and the head size from all of them.
  """
  for read in reversed(found):
    repeated = {leaf for atom in read.repeated for leaf in atom.leaves() if leaf.size != ONE}
    if any(leaf in repeated for name, atoms in names.items() if name not in repeatable for leaf in atoms):
      continue
    own = {name: [leaf for leaf in atoms if leaf not in repeated] for name, atoms in names.items()}
    layout = layout_of(read.axes, _lengths(read), own, output)
    if (
      layout is None
      or (by_rows and layout.text.rstrip(")")[-1] != "d")
      or (output and layout.shape is not None and restored_shape(_lengths(read)) is None)
    ):
      continue
    yield read, layout


def _lengths(read: Read) -> list[Length]:
  """The lengths of the tensor's axes."""
  return [length(axis) for axis in read.axes]
