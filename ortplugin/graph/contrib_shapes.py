"""Shapes of ONNX Runtime's own attention operators, which onnx's inference does not know."""

import onnx_graphsurgeon as gs

from .facts import optional_input
from .shapes import Dim, Shape

ATTENTION = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention"})


def attention_shape(node: gs.Node) -> Shape | None:
  """[B, S, H D] of a com.microsoft Attention, MultiHeadAttention or GroupQueryAttention; None where it is unknown."""
  query = node.inputs[0].shape
  if query is None or len(query) < 3:
    return None
  width = query[2]
  if node.op == "Attention":
    sizes = node.attrs.get("qkv_hidden_sizes")
    width = _part(_last(node, 1), 1, 3) if not sizes else int(sizes[-1])
  elif node.op == "GroupQueryAttention" and optional_input(node, 1) is None:
    heads, kv_heads = (int(node.attrs.get(name, 0)) for name in ("num_heads", "kv_num_heads"))
    width = _part(width, heads, heads + 2 * kv_heads)
  elif node.op == "MultiHeadAttention" and len(query) == 5:  # [B, S, H, 3, D]
    width = query[2] * query[4] if isinstance(query[2], int) and isinstance(query[4], int) else None
  elif node.op == "MultiHeadAttention" and optional_input(node, 2) is not None:
    width = _last(node, 2)
  return (query[0], query[1], width)


def _last(node: gs.Node, index: int) -> Dim:
  """The last length of an input; None of a value [B, H, S, D], whose heads stand apart."""
  tensor = optional_input(node, index)
  given = None if tensor is None else tensor.shape
  return given[-1] if given is not None and 0 < len(given) < 4 else None


def _part(width: Dim, parts: int, total: int) -> Dim:
  return width * parts // total if isinstance(width, int) and total and width % total == 0 else None
