"""Scatter nodes as passes see them: the standard ones, ours, and what keeps one from being rewritten."""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, Shape, element_count, show
from ...graph.columns import Column, columns, trace
from ...ops.decompose import MINIMUM_OPSET
from ...ops.scatter import ARITHMETIC, DTYPES
from ..conditions import unknown_rank
from ..driver import Missed

# The operator, whether it indexes along one axis (else by tuples), whether it is ours.
KINDS = {
  "ScatterND": (False, False),
  "ScatterElements": (True, False),
  "Scatter": (True, False),  # what ScatterElements was before opset 11
  "ortplugin::ScatterND": (False, True),
  "ortplugin::ScatterElements": (True, True),
}
REDUCTIONS = {"add": 16, "mul": 16, "max": 18, "min": 18}  # and the opset that brought them
SCATTER_OPSET = 9  # of the first Scatter, which ScatterElements goes back to before opset 11


@dataclass(frozen=True)
class ScatterNode:
  """A scatter that nothing keeps from being rewritten; all ranks and data's dtype are known."""

  node: gs.Node
  by_axis: bool  # ScatterElements; else ScatterND
  ours: bool
  data: gs.Tensor
  indices: gs.Tensor
  updates: gs.Tensor
  rank: int  # of data
  axis: int  # ScatterElements: from the front
  reduction: str


def read_scatter(scope: Scope, node: gs.Node) -> ScatterNode | Missed | None:
  """The scatter that a node is, what is wrong with it, or None for another node."""
  kind = KINDS.get(scope.op(node))
  if kind is None or len(node.inputs) != 3 or any(each.is_empty() for each in node.inputs) or _is_shape(scope, node):
    return None
  by_axis, ours = kind
  data, indices, updates = node.inputs
  reduction = str(node.attrs.get("reduction", "none"))
  reason = _dtype_reason(data, reduction)
  if scope.opset < SCATTER_OPSET or (scope.opset < MINIMUM_OPSET and not by_axis):
    reason = f"the model has opset {scope.opset}, and the operator is for {MINIMUM_OPSET} or later"
  elif not ours and reduction != "none" and scope.opset < REDUCTIONS.get(reduction, 1 << 30):
    reason = f"the reduction '{reduction}' is none of opset {scope.opset}"
  for tensor in node.inputs:
    reason = reason or unknown_rank(scope, tensor)
  if reason:
    return Missed(node, reason)
  rank, axis = scope.rank(data) or 0, int(node.attrs.get("axis", 0))
  depth = (scope.shape(indices) or (None,))[-1]
  beyond = 0 if by_axis else rank - depth - 1 if isinstance(depth, int) else None
  if beyond is not None and scope.rank(updates) != (scope.rank(indices) or 0) + beyond:
    shapes = f"{show(scope.shape(indices))} and updates of {show(scope.shape(updates))}"
    return Missed(node, f"indices of {shapes} do not fit '{data.name}' of {show(scope.shape(data))}")
  if by_axis and not -rank <= axis < rank:
    return Missed(node, f"the axis {axis} is out of range for '{data.name}' of {show(scope.shape(data))}")
  return ScatterNode(node, by_axis, ours, data, indices, updates, rank, axis % rank if rank else 0, reduction)


def _is_shape(scope: Scope, node: gs.Node) -> bool:
  """Whether it is a shape that is changed: ONNX Runtime computes those on the host."""
  data = node.inputs[0]
  made = scope.is_constant(data) or scope.producer(data, "Shape") is not None
  return made and data.dtype == np.int64 and scope.rank(data) == 1 and (element_count(scope.shape(data)) or 9) <= 8


def grid(scope: Scope, scatter: ScatterNode) -> Shape:
  """The dimensions over which ScatterND's index tuples lie: those of indices but the last, which updates has too."""
  dims, also = (scope.shape(scatter.indices) or ())[:-1], scope.shape(scatter.updates) or ()
  return tuple(b if isinstance(b, int) and not isinstance(a, int) else a for a, b in zip(dims, also, strict=False))


def _dtype_reason(data: gs.Tensor, reduction: str) -> str | None:
  if data.dtype is None:
    return f"the dtype of '{data.name}' is unknown"
  dtype = np.dtype(data.dtype)
  if dtype not in DTYPES:
    name = "string" if dtype.kind in "OSU" else dtype.name
    return f"the dtype of '{data.name}' is {name}, which the operator lacks"
  if reduction != "none" and dtype not in ARITHMETIC:
    return f"the dtype of '{data.name}' is {dtype.name}, which has no reduction '{reduction}'"
  return None


def columns_of(scope: Scope, scatter: ScatterNode) -> list[Column] | None:
  """What the indices hold: of ScatterND every component, of ScatterElements the one on the axis; None: not told."""
  if not scatter.by_axis:
    return columns(scope, scatter.indices)
  column = trace(scope, scatter.indices)
  return None if column is None else [column]
