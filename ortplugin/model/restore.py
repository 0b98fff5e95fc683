"""Back to standard ONNX: every operator of domain `ortplugin` becomes its decomposition; the model runs anywhere."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from onnx import FunctionProto, GraphProto, ModelProto, NodeProto


def restore(model_or_path: ModelProto | str | os.PathLike[str]) -> ModelProto:
  """The model with each `ortplugin` operator replaced by its decomposition into standard ONNX.

  Its import of the domain is dropped. The values between are computed in the model's own dtypes, so a float16 model
  rounds more often than its fused form; attention alone is float32 there too. Raises ModelError on an operator that
  this version does not know.

  Args:
      model_or_path: a model (not changed) or the path of one.
  """
  from ..graph.domains import DOMAIN

  result = restore_operators(model_or_path)
  for function in result.functions:
    _drop_import(function, DOMAIN)
  _drop_import(result, DOMAIN)
  return result


def restore_operators(
  model_or_path: ModelProto | str | os.PathLike[str], names: Collection[str] | None = None
) -> ModelProto:
  """`restore` of the operators of these names, all by default, whose domain stays imported."""
  from onnx import ModelProto

  from ..graph.messages import standard_opset, walk_graphs, walk_nodes
  from ..graph.ort_shapes import may_differ
  from .checks import check_structure, check_tensors
  from .normalise import normalised
  from .storage import load_model

  result = ModelProto()
  if isinstance(model_or_path, ModelProto):
    check_tensors(model_or_path)
    result.CopyFrom(normalised(model_or_path))
    check_structure(result)
  else:
    result = load_model(model_or_path)
  _restore_nodes(result.graph, standard_opset(result), names)
  for function in result.functions:
    _restore_nodes(function, standard_opset(function), names)
  if any(may_differ(node) for node in walk_nodes(result)):
    # The shapes that the model says are right: beside one that ONNX Runtime infers wrongly they would not fit.
    for info in (each for graph in walk_graphs(result.graph) for each in graph.value_info):
      if info.type.HasField("tensor_type"):
        info.type.tensor_type.ClearField("shape")
  check_structure(result)
  return result


def _drop_import(holder: ModelProto | FunctionProto, domain: str) -> None:
  for index in reversed(range(len(holder.opset_import))):
    if holder.opset_import[index].domain == domain:
      del holder.opset_import[index]


def _restore_nodes(holder: GraphProto | FunctionProto, opset: int, names: Collection[str] | None) -> None:
  """Replaces the fused nodes of a graph or function, and those of the bodies in it, in place."""
  from ..errors import ModelError
  from ..graph.domains import DOMAIN
  from ..ops import OPERATORS, find

  result: list[NodeProto] = []
  for node in holder.node:
    for attribute in node.attribute:
      if attribute.HasField("g"):
        _restore_nodes(attribute.g, opset, names)
      for body in attribute.graphs:
        _restore_nodes(body, opset, names)
    if node.domain != DOMAIN or (names is not None and node.op_type not in names):
      result.append(node)
      continue
    if (operator := find(node.domain, node.op_type)) is None:
      raise ModelError(
        f"node '{node.name}' is of type {DOMAIN}::{node.op_type}, which this version does not know "
        f"(it knows {', '.join(each.name for each in OPERATORS)}); upgrade ortplugin"
      )
    result += operator.decompose(node, opset)
  if any(node.domain == DOMAIN for node in holder.node):
    restored = type(holder)()
    restored.node.extend(result)  # copies, since the next line frees the old ones
    del holder.node[:]
    holder.node.extend(restored.node)
