"""`ortplugin.session`: a session with the model in the operators that are fastest there.

In a session without a GPU convolutions in float, and what surrounds them, are put back into standard ONNX, which keeps
images in blocks of channels from one convolution to the next. So are matrix products in float, whose weights its own
put in order once. Scatters and gradients, in which ours are the faster ones, stay.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import OrtPluginError, RuntimeMissingError, UsageError
from .session import core, streams

if TYPE_CHECKING:
  from onnx import GraphProto, ModelProto, NodeProto

CONVOLUTIONS = ("FusedConv", "FusedConvTranspose")
PRODUCTS = ("FusedMatMul",)
GRADIENT = "FusedConvGrad"  # a model that learns is left as it is
AROUND = ("FusedAttention", "FusedLayerNorm", "FusedMatMul", "FusedPointwise", "FusedPool", "FusedResize", "FusedSumTo")


def session(
  path_or_bytes: str | os.PathLike[str] | bytes,
  providers: Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
  cuda_graph: bool = False,
  session_options: Any = None,
  provider_options: Sequence[Mapping[str, object]] | None = None,
  device_id: int | None = None,
  restore_on_cpu: bool = True,
) -> Any:
  """A plain `onnxruntime.InferenceSession` in which the plugin's operators run.

  Where ONNX Runtime would fall back to the CPU without a word, this raises RuntimeMissingError.

  Args:
      path_or_bytes: the model.
      providers: 'cuda', 'cpu' or any provider's full name, each alone or with its options; the CPU is added as the
          last one. None takes CUDA where it is present, and the CPU.
      cuda_graph: capture what `run` runs into a CUDA graph, one for each set of input shapes and of values that ONNX
          Runtime reads on the host (a target shape, say), and replay it. UsageError where a node can't be right in one
          (Compress and NonZero, which count on the host). The session works on a stream of ours, whose capture can be
          ended where it fails, unless the provider's options have a `user_compute_stream`.
      session_options: `onnxruntime.SessionOptions` of yours; the library is registered with them.
      provider_options: options of each provider, in the order of `providers`.
      device_id: the GPU's number in this process; None takes the one in the provider's options, else the first.
      restore_on_cpu: where the CPU is the only provider, run convolutions in float, and what surrounds them, and
          matrix products in float as standard operators, in which ONNX Runtime is faster there. `register` alone
          leaves a model as it is.
  """
  ort = core.onnxruntime()
  wanted = core.wanted_providers(providers, provider_options)
  if device_id is not None:
    core.check_device(device_id, wanted)
    if core.CUDA in wanted and wanted[core.CUDA].setdefault("device_id", str(device_id)) != str(device_id):
      raise UsageError(f"device_id is {device_id}, the provider's options say {wanted[core.CUDA]['device_id']}")
  if cuda_graph:
    if core.CUDA not in wanted:
      raise UsageError("a CUDA graph needs the CUDA provider; add 'cuda' to the providers")
    wanted[core.CUDA]["enable_cuda_graph"] = "1"
  options = session_options if session_options is not None else ort.SessionOptions()
  core.register(options)
  cuda = wanted.get(core.CUDA, {})
  stream = None
  if core.is_captured(cuda):
    core.record_nodes(options)
    if "user_compute_stream" not in cuda:
      stream = streams.Stream(int(cuda.get("device_id", "0")))
      cuda["user_compute_stream"] = str(stream.address)
  standard = standard_on_cpu(path_or_bytes) if restore_on_cpu and list(wanted) == [core.CPU] else None
  result = ort.InferenceSession(
    standard or (path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)),
    options,
    providers=list(wanted),
    provider_options=list(wanted.values()),
    enable_fallback=0,
  )
  if stream is not None:
    result.stream_of_ortplugin = stream
  missing = [name for name in wanted if name not in result.get_providers()]
  if missing:
    raise RuntimeMissingError(
      f"ONNX Runtime could not start {', '.join(missing)}; its log above says which library is missing "
      "(`pip install ortplugin[gpu]` brings CUDA and cuDNN)"
    )
  if core.is_captured(cuda):
    core.check_captured(result)
  return result


def standard_on_cpu(path_or_bytes: str | os.PathLike[str] | bytes) -> bytes | None:
  """The model for a session without a GPU, where that is another one; None where it stays as it is: without a
  convolution or product of ours in float, with weights in other files, or where an operator has no standard form at its
  opset.
  """
  import onnx
  from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

  model = onnx.ModelProto()
  try:
    if isinstance(path_or_bytes, bytes):
      model.ParseFromString(path_or_bytes)
    else:
      model = onnx.load(path_or_bytes, load_external_data=False)
    is_apart = _take_norms_apart(model)
    if not (slow := _slow(model)):
      return bytes(model.SerializeToString()) if is_apart else None
    from .model.restore import restore_operators

    if slow != PRODUCTS:
      _give_windows(model.graph)
      _make_products(model.graph)
      _name_norms(model)
    restored = restore_operators(model, slow)
    _give_biases(restored.graph)
    return bytes(restored.SerializeToString())
  except (OSError, OrtPluginError, DecodeError):  # of what is no model ONNX Runtime says so itself
    return None


def _take_norms_apart(model: ModelProto) -> bool:
  """Makes two nodes of each product with a norm, which only a GPU computes as one; False where there is none, or
  weights are in other files.
  """
  from onnx import TensorProto

  from .graph.domains import DOMAIN
  from .graph.messages import walk_graphs
  from .ops.matmul import norm

  graphs = list(walk_graphs(model.graph))
  if any(each.data_location == TensorProto.EXTERNAL for graph in graphs for each in graph.initializer):
    return False
  found = False
  for graph in graphs:
    apart = [(each.domain, each.op_type) == (DOMAIN, norm.NAME) for each in graph.node]
    if any(apart):
      found = True
      pairs = zip(graph.node, apart, strict=True)
      _put(graph, [made for each, is_apart in pairs for made in (norm.in_order(each) if is_apart else [each])])
  return found


def _put(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
  """Makes these the graph's nodes."""
  copies = type(graph)(node=nodes)  # the next line frees those that are the graph's own
  del graph.node[:]
  graph.node.extend(copies.node)


def _slow(model: ModelProto) -> tuple[str, ...]:
  """The operators of ours that are put back."""
  from onnx import TensorProto

  from .graph.domains import DOMAIN
  from .graph.messages import walk_graphs, walk_nodes

  ours = [node for node in walk_nodes(model) if node.domain == DOMAIN]
  of_float = {node.op_type for node in ours if _is_of_float(node)}
  initializers = (each for graph in walk_graphs(model.graph) for each in graph.initializer)
  is_apart = any(each.data_location == TensorProto.EXTERNAL for each in initializers)
  if is_apart or any(node.op_type == GRADIENT for node in ours):
    return ()
  if of_float & set(CONVOLUTIONS):
    return CONVOLUTIONS + AROUND
  return PRODUCTS if of_float and all(_is_of_float(node) for node in ours if node.op_type in PRODUCTS) else ()


def _is_of_float(node: NodeProto) -> bool:
  if node.op_type not in CONVOLUTIONS + PRODUCTS:
    return False
  text = next((each.s for each in node.attribute if each.name == "program"), b"")
  return re.match(rb"\s*\(\s*float\s", text) is not None


def _give_windows(graph: GraphProto) -> None:
  """Makes global pools of images of known size ones with a window of that size, whose standard form is one node."""
  from onnx import helper

  from .graph.domains import DOMAIN

  sizes = {info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in graph.value_info}
  for node in graph.node:
    size = sizes.get(node.input[0] if node.input else "", [])[1:-1]
    if (node.domain, node.op_type) != (DOMAIN, "FusedPool") or len(size) != 2 or not all(size):
      continue
    texts = {each.name: each for each in node.attribute}
    kind = texts["kind"].s
    if kind.startswith(b"global_") and "layout" in texts and texts["layout"].s == b"NHWC":
      texts["kind"].s = kind.removeprefix(b"global_")
      window = {"kernel_shape": size, "strides": [1, 1]}
      node.attribute.extend(helper.make_attribute(name, values) for name, values in window.items())


def _make_products(graph: GraphProto) -> None:
  """Makes products of the pointwise convolutions with channels last that follow a norm or each other.

  No neighbour keeps its image in blocks there: each convolution would make them, and take its result out of them.
  """
  from onnx import helper

  from .graph.domains import DOMAIN

  weights, uses = {each.name: each for each in graph.initializer}, _uses(graph)
  by_rows: set[str] = set()
  for node in graph.node:
    if node.domain != DOMAIN:
      continue
    follows = node.op_type == "FusedConv" and node.input[0] in by_rows
    w = weights.get(node.input[1]) if follows and len(node.input) > 1 else None
    if w is not None and uses[w.name] == 1 and _is_pointwise(node, w.dims):
      program = next(each.s for each in node.attribute if each.name == "program")
      del w.dims[1:-1]
      del node.attribute[:]
      node.op_type = "FusedMatMul"
      node.attribute.extend([helper.make_attribute("program", program), helper.make_attribute("trans_b", 1)])
    if node.op_type in ("FusedLayerNorm", "FusedMatMul"):
      by_rows.update(node.output)


def _is_pointwise(node: NodeProto, w: Sequence[int]) -> bool:
  """Whether a FusedConv with a filter of this shape multiplies each pixel, its channels last, by one matrix."""
  from .graph.conv_geometry import read_attributes

  given = read_attributes(node)
  alone = given.group == 1 and set(given.strides or (1,)) == {1} and set(given.pads or (0,)) == {0}
  return given.layout == given.input_layout == "NHWC" and alone and set(w[1:-1]) == {1}


def _uses(graph: GraphProto) -> Counter[str]:
  """How often each value is read or an output, also in bodies."""
  from .graph.messages import walk_graphs

  graphs = list(walk_graphs(graph))
  read = Counter(name for each in graphs for node in each.node for name in node.input)
  return read + Counter(output.name for each in graphs for output in each.output)


def _name_norms(model: ModelProto) -> None:
  """Makes ONNX's LayerNormalization of norms over the last axis: ONNX Runtime moves no Transpose over that one.

  What a norm consists of would end with channels first, where its kernel does not know it.
  """
  from .graph.domains import DOMAIN
  from .graph.messages import standard_opset
  from .ops.layer_norm import NAME
  from .ops.layer_norm.whole import with_layer_normalization

  vectors = {each.name for each in model.graph.initializer if len(each.dims) == 1 and each.dims[0] > 1}
  nodes: list[NodeProto] = []
  for node in model.graph.node:
    made = None
    if (node.domain, node.op_type) == (DOMAIN, NAME):
      made = with_layer_normalization(node, standard_opset(model), vectors)
    nodes += [node] if made is None else made
  _put(model.graph, nodes)


def _give_biases(graph: GraphProto) -> None:
  """Makes what is added to a convolution's filters, behind the Transpose that puts them last, its own bias.

  ONNX Runtime does so where it moves the Transpose away, which it can't over a norm.
  """
  constants, uses = {each.name: each.dims for each in graph.initializer}, _uses(graph)
  made = {name: node for node in graph.node for name in node.output}
  for node in [each for each in graph.node if each.op_type == "Add" and constants.keys() & set(each.input)]:
    bias, value = sorted(node.input, key=lambda each: each not in constants)
    moved = made.get(value)
    conv = made.get(moved.input[0]) if moved is not None and moved.op_type == "Transpose" else None
    if moved is None or conv is None or (conv.op_type, len(conv.input)) != ("Conv", 2):
      continue
    order, w = list(moved.attribute[0].ints), made.get(conv.input[1])
    if w is not None and (w.op_type != "Transpose" or w.attribute[0].ints[0] != 0):
      continue
    filters = constants.get(conv.input[1] if w is None else w.input[0], [0])[0]
    alone = uses[value] == uses[conv.output[0]] == 1
    if alone and order == [0, *range(2, len(order)), 1] and list(constants[bias]) == [filters]:
      conv.input.append(bias)
      moved.output[0] = node.output[0]
      graph.node.remove(node)
