"""A FusedAttention's attributes, checked."""

import math
from dataclasses import dataclass

import onnx
from onnx import AttributeProto

from ...errors import ModelError
from ...program import FLOATING
from .. import node_attributes as nodes
from .layout import LARGEST, STANDARD, Layout, parse

CAUSAL = ("none", "upper_left", "lower_right")
MASKED_ROWS = ("nan", "zero")
ROTARY = ("none", "half", "interleaved")
CACHE = ("append", "write")
MOST_HEADS = 65536

_LAYOUTS = ("q_layout", "k_layout", "v_layout", "y_layout")
_TYPES = {
  "qkv_dtype": AttributeProto.STRING,
  "mask_dtype": AttributeProto.STRING,
  "allow_tf32": AttributeProto.INT,
  "heads": AttributeProto.INT,
  "kv_heads": AttributeProto.INT,
  "scale": AttributeProto.FLOAT,
  "softcap": AttributeProto.FLOAT,
  "causal": AttributeProto.STRING,
  "window": AttributeProto.INT,
  "masked_rows": AttributeProto.STRING,
  "rotary": AttributeProto.STRING,
  "rotary_dtype": AttributeProto.STRING,
  "cache": AttributeProto.STRING,
  **dict.fromkeys((*_LAYOUTS, "past_layout"), AttributeProto.STRING),
}


@dataclass(frozen=True)
class Attention:
  """A node's attributes, checked and complete."""

  where: str  # for errors
  qkv_dtype: str  # of Q, K, V and Y, as programs name it
  mask_dtype: str  # "" where there is no mask
  heads: int
  kv_heads: int
  scale: float
  softcap: float
  causal: str
  window: int
  masked_rows: str
  rotary: str
  rotary_dtype: str  # of cos and sin; "" where there are none
  q: Layout
  k: Layout
  v: Layout
  y: Layout
  past: Layout | None  # of past_key, past_value, present_key and present_value; None where there is no cache
  has_position: bool  # from which on the new rows replace those of the cache

  @property
  def input_names(self) -> tuple[str, ...]:
    """What the inputs are, in their order."""
    mask = ("the mask",) if self.mask_dtype else ()
    tables = ("cos", "sin") if self.rotary_dtype else ()
    cache = ("past_key", "past_value") if self.past else ()
    return ("Q", "K", "V", *mask, *tables, *cache, *(("position",) if self.has_position else ()))

  def input(self, name: str) -> int:
    """The number of an input among those that are given."""
    return self.input_names.index(name)


def given_inputs(node: onnx.NodeProto) -> list[int]:
  """The numbers of the node's inputs, without an empty name in the mask's place."""
  return [number for number, name in enumerate(node.input) if name or number != 3]


def attributes_of(node: onnx.NodeProto) -> Attention:
  """The attributes of a FusedAttention. Raises ModelError that names the node where they are wrong."""
  where = nodes.where_is(node)
  given = nodes.read(node, _TYPES)
  nodes.check_word(where, given, "rotary", ROTARY)
  nodes.check_word(where, given, "cache", CACHE)
  rotary, has_position = given.get("rotary", ROTARY[0]), given.get("cache") == "write"
  inputs = [node.input[number] for number in given_inputs(node)]
  tables, past = 0 if rotary == "none" else 2, 2 if len(node.output) > 1 or has_position else 0
  cache = past + has_position
  if len(inputs) - tables - cache not in (3, 4) or not all(inputs) or len(node.output) != past + 1:
    others = " and perhaps a mask" if not tables else f", perhaps a mask, and with rotary '{rotary}' cos and sin"
    raise ModelError(
      f"{where}: its inputs are Q, K, V{others}, its output is Y, and with a cache also past_key and past_value, "
      f"present_key and present_value, all four{', and position' if has_position else ''}; "
      f"but it has {[*node.input[:10]]} and {len(node.output)} outputs"
    )
  dtype, mask_dtype = given.get("qkv_dtype", ""), given.get("mask_dtype", "")
  if dtype not in FLOATING:
    raise ModelError(f"{where}: qkv_dtype, that of Q, K, V and Y, is {dtype[:40]!r}, but must be one of {FLOATING}")
  masks = tuple(dict.fromkeys(("bool", "float", dtype))) if len(inputs) - tables - cache == 4 else ("",)
  if mask_dtype not in masks:
    said = f"must be one of {masks}" if masks != ("",) else "there is no mask; remove it"
    raise ModelError(f"{where}: mask_dtype is {mask_dtype[:40]!r}, but {said}")
  rotary_dtype = given.get("rotary_dtype", dtype if tables else "")
  if rotary_dtype not in (("float", dtype) if tables else ("",)):
    said = f"must be 'float' or {dtype!r}" if tables else "rotary is 'none'; remove it"
    raise ModelError(f"{where}: rotary_dtype is {rotary_dtype[:40]!r}, but {said}")
  for name in ("heads", "kv_heads"):
    if not 1 <= given.get(name, 0) <= MOST_HEADS:
      raise ModelError(f"{where}: {name} is {given.get(name)}, but must be from 1 to {MOST_HEADS}")
  heads, kv_heads = given["heads"], given["kv_heads"]
  if heads % kv_heads:
    raise ModelError(f"{where}: heads is {heads}, but must be a multiple of kv_heads, {kv_heads}")
  if given.get("allow_tf32", 0) not in (0, 1):
    raise ModelError(f"{where}: allow_tf32 is {given['allow_tf32']}, but must be 0 or 1")
  nodes.check_word(where, given, "causal", CAUSAL)
  nodes.check_word(where, given, "masked_rows", MASKED_ROWS)
  causal, window = given.get("causal", CAUSAL[0]), given.get("window", 0)
  if not 0 <= window <= LARGEST:
    raise ModelError(f"{where}: window is {window}, but must be from 0, for none, to {LARGEST}")
  if window and causal == "none":
    raise ModelError(f"{where}: window is {window} beside causal 'none', of which it takes the last keys; set one")
  scale, softcap = given.get("scale", 1.0), given.get("softcap", 0.0)
  if not math.isfinite(scale) or not 0 <= softcap < math.inf:
    raise ModelError(f"{where}: scale is {scale} and softcap {softcap}; both are finite, and softcap is not below 0")
  q, k, v, y = (
    _layout(where, name, given.get(name, STANDARD), heads if name[0] in "qy" else kv_heads) for name in _LAYOUTS
  )
  if "past_layout" in given and not past:
    raise ModelError(f"{where}: past_layout is {given['past_layout'][:80]!r}, but there is no past_key; remove it")
  past_layout = _layout(where, "past_layout", given.get("past_layout", STANDARD), kv_heads) if past else None
  return Attention(
    where,
    dtype,
    mask_dtype,
    heads,
    kv_heads,
    scale,
    softcap,
    causal,
    window,
    given.get("masked_rows", MASKED_ROWS[0]),
    rotary,
    rotary_dtype,
    q,
    k,
    v,
    y,
    past_layout,
    has_position,
  )


def _layout(where: str, name: str, text: str, heads: int) -> Layout:
  """The layout of a tensor of so many heads."""
  try:
    layout = parse(text, is_output=name in ("y_layout", "past_layout"))
    if name == "past_layout":  # of inputs, too
      parse(text)
  except ValueError as error:
    raise ModelError(f"{where}: {name} is {text[:80]!r}: {error}") from error
  h = next(atom for atom in layout.atoms if atom.name == "h")
  if h.total and h.first + heads > h.total:
    raise ModelError(f"{where}: {name} is {text!r}, but from head {h.first} on there are no {heads} of {h.total}")
  return layout
