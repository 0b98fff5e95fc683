"""How reports and errors name a node."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs


def label(node: gs.Node) -> str:
  """'name (OpType)'; a node without a name goes by its first output."""
  if node.name:
    return f"{node.name} ({node.op})"
  outputs: Sequence[gs.Tensor] = node.outputs
  first = next((tensor.name for tensor in outputs if tensor.name), "")
  return f"'{first}' ({node.op})" if first else f"({node.op})"


def labelled(*nodes: gs.Node) -> tuple[str, ...]:
  """The label of each."""
  return tuple(label(node) for node in nodes)
