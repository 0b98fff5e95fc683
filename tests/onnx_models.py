"""Models for the tests, whose inputs, outputs and nodes are given in ONNX's textual syntax."""

from collections.abc import Iterable, Mapping
from typing import Any

import onnx.parser
import onnx_graphsurgeon as gs
from onnx import numpy_helper

from ortplugin.graph.convert import import_model
from ortplugin.model.annotate import annotate


def parsed(
  graph: str, opset: int = 17, ir: int = 8, *, domains: Iterable[str] = (), weights: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
  """A model: `graph` is 'name (inputs) => (outputs) <initializers> { nodes }'.

  `domains` are those in use besides ONNX's own, each in its version 1; `weights` are arrays for more initializers.
  """
  imports = ", ".join([f'"" : {opset}', *(f'"{domain}" : 1' for domain in domains)])
  model = onnx.parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]> {graph}")
  for name, array in (weights or {}).items():
    model.graph.initializer.append(numpy_helper.from_array(array, name))
  return model


def built(
  nodes: Iterable[onnx.NodeProto], inputs: str, outputs: str, *versions: int, **options: Any
) -> onnx.ModelProto:
  """A model of nodes: `inputs` and `outputs` are as in 'float[N,4] x, int64 i', the rest as of `parsed`."""
  model = parsed(f"g ({inputs}) => ({outputs}) {{}}", *versions, **options)
  model.graph.node.extend(nodes)
  return model


def annotated(model: onnx.ModelProto) -> gs.Graph:
  """The model's graph with the dtypes and shapes that inference finds."""
  graph = import_model(model)
  annotate(graph)
  return graph
