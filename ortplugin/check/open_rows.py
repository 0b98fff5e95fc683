"""Inputs for which GroupQueryAttention leaves no row of a cache open: behind those in use it writes 0 or nothing."""

from typing import Any

import numpy as np
from onnx import ModelProto

from ..graph import walk_graphs

PAST = slice(3, 5)  # of its inputs


def settle_open_rows(model: ModelProto, feeds: dict[str, Any]) -> None:
  """Makes texts as long as their mask, and the rows of a cache behind that zeros."""
  nodes = [node for graph in walk_graphs(model.graph) for node in graph.node if node.op_type == "GroupQueryAttention"]
  arrays = {name: x for name, x in feeds.items() if isinstance(x, np.ndarray) and x.ndim}
  masks = [name for name, x in arrays.items() if "mask" in name.lower() and x.dtype.kind in "iub"]
  if not nodes or not masks:
    return
  for name in masks:
    feeds[name] = np.ones_like(feeds[name])
  used = max(feeds[name].shape[-1] for name in masks)
  for name in {name for node in nodes for name in node.input[PAST]} & arrays.keys():
    feeds[name][:, :, used:] = 0
