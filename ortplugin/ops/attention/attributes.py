"""A FusedAttention's attributes, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import AttributeProto

from ortplugin.errors import ModelError
from ortplugin.ops import node_attributes as nodes
from ortplugin.ops.attention.layout import LARGEST, STANDARD, Layout, parse
from ortplugin.program import FLOATING

CAUSAL = ("none", "upper_left", "lower_right")
MASKED_ROWS = ("nan", "zero")
MOST_HEADS = 65536

_LAYOUTS = ("q_layout", "k_layout", "v_layout", "y_layout")
_TYPES = {
    "dtype": AttributeProto.STRING,
    "mask_dtype": AttributeProto.STRING,
    "heads": AttributeProto.INT,
    "kv_heads": AttributeProto.INT,
    "scale": AttributeProto.FLOAT,
    "softcap": AttributeProto.FLOAT,
    "causal": AttributeProto.STRING,
    "window": AttributeProto.INT,
    "masked_rows": AttributeProto.STRING,
    **dict.fromkeys(_LAYOUTS, AttributeProto.STRING),
}


@dataclass(frozen=True)
class Attention:
    """A node's attributes, checked, with the defaults filled in."""

    where: str  # for errors
    dtype: str  # of Q, K, V and Y, as programs name it
    mask_dtype: str  # "" where there is no mask
    heads: int
    kv_heads: int
    scale: float
    softcap: float
    causal: str
    window: int
    masked_rows: str
    q: Layout
    k: Layout
    v: Layout
    y: Layout


def attributes_of(node: onnx.NodeProto) -> Attention:
    """The attributes of a FusedAttention. Raises ModelError that names the node where they are wrong."""
    where = nodes.where_is(node)
    if not 3 <= len(node.input) <= 4 or not all(node.input[:3]) or len(node.output) != 1:
        raise ModelError(
            f"{where}: its inputs are Q, K, V and perhaps a mask, its output is Y, but it has "
            f"{[*node.input[:5]]} and {len(node.output)} outputs"
        )
    given = nodes.read(node, _TYPES)
    dtype, mask_dtype = given.get("dtype", ""), given.get("mask_dtype", "")
    if dtype not in FLOATING:
        raise ModelError(f"{where}: dtype, that of Q, K, V and Y, is {dtype[:40]!r}, but must be one of {FLOATING}")
    masks = tuple(dict.fromkeys(("bool", "float", dtype))) if len(node.input) == 4 and node.input[3] else ("",)
    if mask_dtype not in masks:
        said = f"must be one of {masks}" if masks != ("",) else "there is no mask; remove it"
        raise ModelError(f"{where}: mask_dtype is {mask_dtype[:40]!r}, but {said}")
    for name in ("heads", "kv_heads"):
        if not 1 <= given.get(name, 0) <= MOST_HEADS:
            raise ModelError(f"{where}: {name} is {given.get(name)}, but must be from 1 to {MOST_HEADS}")
    heads, kv_heads = given["heads"], given["kv_heads"]
    if heads % kv_heads:
        raise ModelError(f"{where}: heads is {heads}, but must be a multiple of kv_heads, {kv_heads}")
    nodes.check_word(where, given, "causal", CAUSAL)
    nodes.check_word(where, given, "masked_rows", MASKED_ROWS)
    causal, window = given.get("causal", CAUSAL[0]), given.get("window", 0)
    if not 0 <= window <= LARGEST:
        raise ModelError(f"{where}: window is {window}, but must be from 0, for none, to {LARGEST}")
    if window and causal == "none":
        raise ModelError(f"{where}: window is {window} beside causal 'none', of which it takes the last keys; set one")
    scale, softcap = given.get("scale", 1.0), given.get("softcap", 0.0)
    if not math.isfinite(scale) or not 0 <= softcap < math.inf:
        raise ModelError(
            f"{where}: scale is {scale} and softcap {softcap}; both are finite, and softcap is not below 0"
        )
    layouts = [
        _layout(where, name, given.get(name, STANDARD), heads if name[0] in "qy" else kv_heads) for name in _LAYOUTS
    ]
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
        *layouts,
    )


def _layout(where: str, name: str, text: str, heads: int) -> Layout:
    """The layout of a tensor of so many heads."""
    try:
        layout = parse(text, is_output=name == "y_layout")
    except ValueError as error:
        raise ModelError(f"{where}: {name} is {text[:80]!r}: {error}") from error
    h = next(atom for atom in layout.atoms if atom.name == "h")
    if h.total and h.first + heads > h.total:
        raise ModelError(f"{where}: {name} is {text!r}, but from head {h.first} on there are no {heads} of {h.total}")
    return layout
