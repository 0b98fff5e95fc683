"""The FusedAttention node: for which dtypes it is made, its attributes, and the views before and after it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope
from ..emit import emit, integers
from .layouts import Layout
from .mask_operand import emit_mask
from .masks import Masking

# The operator takes every floating dtype. Its kernels for these run on tensor cores; of double ONNX Runtime's two
# products and a Softmax are faster than one kernel without them.
DTYPES = ("float16", "bfloat16")
FLOAT32 = ("float",)
LARGEST_HEAD = 256
EXACT_HEAD = 128  # in float32 without TF32: beyond, `flash` spills registers


@dataclass(frozen=True)
class Attention:
  """What a FusedAttention node is made of."""

  inputs: tuple[gs.Tensor, gs.Tensor, gs.Tensor]
  """Q, K, V."""
  layouts: tuple[Layout, Layout, Layout]
  y_layout: str
  heads: int
  kv_heads: int
  scale: float = 1.0
  softcap: float = 0.0
  masking: Masking = field(default_factory=Masking)
  zeroed: bool = False
  past: tuple[gs.Tensor, ...] = ()
  """past_key and past_value, "b h s d"."""
  position: gs.Tensor | None = None
  """Where these are written."""


def attention_node(scope: Scope, before: gs.Node, given: Attention, dtype: str) -> gs.Node:
  """The node without outputs; what it reads is made before `before`."""
  operands = [
    reshaped(scope, before, tensor, layout) for tensor, layout in zip(given.inputs, given.layouts, strict=True)
  ]
  mask = emit_mask(scope, before, given.masking.parts, dtype)
  defaults: dict[str, Any] = {
    "scale": 1.0,
    "softcap": 0.0,
    "causal": "none",
    "window": 0,
    "masked_rows": "nan",
    **dict.fromkeys(("q_layout", "k_layout", "v_layout", "y_layout"), "b h s d"),
  }
  may_be_empty = mask is not None or given.masking.causal == "lower_right"
  values: dict[str, Any] = {
    "scale": given.scale,
    "softcap": given.softcap,
    "causal": given.masking.causal,
    "window": given.masking.window,
    "masked_rows": "zero" if given.zeroed and may_be_empty else "nan",
    **dict(zip(("q_layout", "k_layout", "v_layout"), (each.text for each in given.layouts), strict=True)),
    "y_layout": given.y_layout,
  }
  attributes = {
    "qkv_dtype": dtype,
    **({} if mask is None else {"mask_dtype": scope.dtype(mask)}),
    "heads": given.heads,
    "kv_heads": given.kv_heads,
    **{name: value for name, value in values.items() if value != defaults[name]},
    **({} if given.position is None else {"cache": "write"}),
  }
  inputs = [*operands, *([] if mask is None else [mask]), *given.past]
  inputs += [] if given.position is None else [given.position]
  return gs.Node("FusedAttention", before.name or before.outputs[0].name, attributes, inputs, [], DOMAIN)


def reshaped(scope: Scope, before: gs.Node, tensor: gs.Tensor, layout: Layout) -> gs.Tensor:
  """The tensor with the axes that the layout has, through a Reshape where it has others."""
  if layout.shape is None:
    return tensor
  dims = tuple(
    (scope.shape(tensor) or ())[axis] if dim == 0 else None if dim < 0 else dim for axis, dim in enumerate(layout.shape)
  )
  return emit(scope, before, "Reshape", [tensor, integers(scope, layout.shape, "shape")], dims)


def is_attention(scope: Scope, node: gs.Node) -> bool:
  """Whether the node is one of ours."""
  return scope.op(node) == f"{DOMAIN}::FusedAttention"


def number_of_past(node: gs.Node) -> int:
  """How many of its inputs, the last ones, are a cache's."""
  return (2 if len(node.outputs) > 1 else 0) + int(node.attrs.get("cache") == "write")


def tables_of(node: gs.Node) -> list[gs.Tensor]:
  """cos and sin, where it rotates."""
  last = len(node.inputs) - number_of_past(node)
  return list(node.inputs[last - 2 : last]) if "rotary" in node.attrs else []


def replaced(
  scope: Scope, old: Sequence[gs.Node], new: gs.Node, y: gs.Tensor, shape: tuple[int, ...] | None, dtype: Any
) -> None:
  """Puts the node in the place of others; `shape`: that of y where the node's own result has another one."""
  if shape is None:
    scope.replace(old, new, [y])
    return
  result = gs.Variable(scope.unique(f"{new.name}/result"), dtype)
  new.outputs.append(result)
  view = gs.Node("Reshape", scope.unique(f"{new.name}/Reshape"), {}, [result, integers(scope, shape, "shape")], [])
  scope.replace(old, [new, view], [y])
