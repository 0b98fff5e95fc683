"""Dtypes and shapes of every value: onnx.shape_inference, ONNX Runtime's own operators, and ours.

Where onnx infers another shape than ONNX Runtime computes, graph/ort_shapes.py is asked instead of it.

Inference runs on a skeleton of the model, in which a large weight is a name with a dtype and a shape, so that its cost
does not depend on the size of the model.
"""

from collections.abc import Iterator, Sequence, Set

import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, helper

from ..errors import ModelError
from ..graph import Dim, Shape, TensorType, attached, walk_graphs
from ..graph.certainty import DECLARED, GENERATED, INFERRED, PROVED, Certainty, is_generated
from ..graph.contrib_shapes import ATTENTION, attention_shape
from ..graph.convert import all_graphs, node_proto, opset_of, type_of, value_info
from ..graph.domains import DEFAULT_DOMAINS
from ..graph.dtypes import infer_dtypes
from ..graph.inference import infer_shapes
from ..graph.ort_shapes import hide, is_hidden, mark_misfits, told
from ..ops import find

SMALL_BYTES = 4096  # up to this size a constant's values take part: shapes, axes, indices

# Operators of ONNX Runtime whose outputs (by index) have the dtype and shape of their first input. It has a
# LayerNormalization of its own before opset 17, and onnx infers nothing of what it deprecates.
LIKE_FIRST_INPUT: dict[tuple[str, str], tuple[int, ...]] = {
  ("com.microsoft", "SkipLayerNormalization"): (0, 3),
  ("com.microsoft", "SkipSimplifiedLayerNormalization"): (0, 3),
  ("com.microsoft", "SimplifiedLayerNormalization"): (0,),
  ("", "SimplifiedLayerNormalization"): (0,),
  ("", "LayerNormalization"): (0,),
  ("", "GroupNormalization"): (0,),
  ("com.microsoft", "BiasGelu"): (0,),
  ("com.microsoft", "FastGelu"): (0,),
  ("com.microsoft", "Gelu"): (0,),
  ("com.microsoft", "QuickGelu"): (0,),
  ("com.microsoft", "RotaryEmbedding"): (0,),
}

# Others of ONNX Runtime whose first output has the dtype of the first input.
_SAME_DTYPE = """
    Attention FusedConv FusedGemm FusedMatMul GroupQueryAttention MultiHeadAttention TransposeMatMul
"""
SAME_DTYPE = frozenset(_SAME_DTYPE.split())

# Operators whose inputs have all one dtype, so that a weight's tells the others'.
ONE_DTYPE = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})


def annotate(graph: gs.Graph) -> None:
  """Fills in the dtype and shape of every Variable that they can be told of; never fails, never forgets.

  `graph` is the outermost one. The inputs' dtypes and shapes are taken as they are. Where the model's own value_info
  and inference disagree, inference from the inputs is believed. It ends because no fact gives way to one that is no
  surer (graph/certainty.py): shapes are written by `Certainty.learn` alone, but for what is said of outputs.
  """
  nodes = [node for each in all_graphs(graph) for node in each.nodes]
  # A length of 0 is what onnx's inference says where it does not know one. A true one is found again.
  before = [(tensor, _without_zeros(tensor.shape)) for node in nodes for tensor in node.outputs]
  mark_misfits(nodes)
  while True:
    for tensor, shape in before:
      tensor.shape = shape
    _annotate(graph, nodes)
    if not mark_misfits(nodes):
      return


def _without_zeros(shape: Shape | None) -> Shape | None:
  return None if shape is None else tuple(None if dim == 0 else dim for dim in shape)


def _annotate(graph: gs.Graph, nodes: Sequence[gs.Node]) -> None:
  said = _withhold_outputs(graph)
  certainty = Certainty(graph.inputs, {dim for _, shape in said for dim in shape if isinstance(dim, str)})
  _infer(graph, certainty)
  learned = any([_infer_node(node, certainty, graph.opset or 0) for node in nodes])
  while learned:  # what we tell reaches other values before what the model says of them does
    _infer(graph, certainty, PROVED)
    learned = any([_infer_node(node, certainty, graph.opset or 0) for node in nodes])
  _infer_unknown(graph, certainty, nodes, learned)
  if _give_back(said):
    _infer_unknown(graph, certainty, nodes, learned)


def _infer_unknown(graph: gs.Graph, certainty: Certainty, nodes: Sequence[gs.Node], learned: bool) -> None:
  unknown = _unknown(nodes)
  while unknown or learned:
    _infer(graph, certainty, DECLARED)
    learned = any([_infer_node(node, certainty, graph.opset or 0) for node in nodes])
    still = _unknown(nodes)
    if not learned and len(still) == len(unknown):
      break
    unknown = still


def _withhold_outputs(graph: gs.Graph) -> list[tuple[gs.Variable, Shape]]:
  """Takes their shapes from outputs that nodes make: a model may describe them wrongly, and still does after a pass.

  An operator of ours, which onnx does not know, would stand between them and what proves them wrong.
  """
  made = (tensor for each in all_graphs(graph) for tensor in each.outputs if tensor.inputs)
  said = [(tensor, tuple(tensor.shape)) for tensor in made if tensor.shape is not None]
  for tensor, _ in said:
    tensor.shape = None
  return said


def _give_back(said: Sequence[tuple[gs.Variable, Shape]]) -> bool:
  """Believes of outputs what the model says and nothing else does; whether a shape was unknown."""
  missing = False
  for tensor, shape in said:
    if tensor.shape is None:
      tensor.shape, missing = shape, True
    elif len(tensor.shape) == len(shape):
      pairs = zip(tensor.shape, shape, strict=True)
      tensor.shape = tuple(b if b is not None and (a is None or is_generated(a)) else a for a, b in pairs)
  return missing


def _unknown(nodes: Sequence[gs.Node]) -> list[gs.Tensor]:
  """The values of which dtype or shape is unknown."""
  made = (tensor for node in nodes for tensor in node.outputs if not tensor.is_empty())
  return [tensor for tensor in made if tensor.dtype is None or tensor.shape is None]


def _infer(graph: gs.Graph, certainty: Certainty, given: int | None = None) -> None:
  """onnx's inference, which is told what is known at the level `given` or more surely; None: nothing."""
  original: onnx.ModelProto | None = attached(graph, "model")
  imports = list(original.opset_import) if original is not None else list(graph.import_domains or [])
  if not opset_of(imports):
    imports.append(helper.make_opsetid("", graph.opset))
  # From IR version 4 on an initializer need not be an input; the skeleton's are none.
  model = onnx.ModelProto(ir_version=max(graph.ir_version or onnx.IR_VERSION, 4), opset_import=imports)
  if original is not None:
    model.functions.extend(original.functions)
    for node in (each for function in model.functions for each in function.node):
      hide(node)
  _skeleton(graph, model.graph, certainty, given)
  # One node of a domain that is not imported, as what passes make is, and onnx infers nothing at all.
  parts = (*walk_graphs(model.graph), *model.functions)
  used = {node.domain for part in parts for node in part.node}
  missing = used - {each.domain for each in imports} - set(DEFAULT_DOMAINS)
  model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(missing))
  try:
    inferred = infer_shapes(model)
  except Exception:  # onnx raises its own and C++'s errors; without inference passes know less, that is all
    return
  names = _Names(graph, model.graph, certainty.withheld)
  _merge(graph, inferred.graph, names, certainty, given == DECLARED)


class _Names:
  """New names for the dimensions that one inference named: it counts from 0 each time, for other dimensions."""

  def __init__(self, graph: gs.Graph, skeleton: onnx.GraphProto, withheld: Set[str]) -> None:
    self._given = set(_names_in(skeleton))
    known = {dim for each in all_graphs(graph) for node in each.nodes for t in node.outputs for dim in t.shape or ()}
    self._taken = self._given | withheld | {dim for dim in known if isinstance(dim, str)}
    self._new: dict[str, str] = {}

  def shape(self, shape: Shape | None) -> Shape | None:
    """The shape under the new names."""
    return None if shape is None else tuple(self._dim(dim) for dim in shape)

  def _dim(self, dim: Dim) -> Dim:
    if not is_generated(dim) or dim in self._given:
      return dim
    assert isinstance(dim, str)
    if dim not in self._new:
      number = len(self._new)
      while f"{GENERATED}{number}" in self._taken:
        number += 1
      self._new[dim] = f"{GENERATED}{number}"
      self._taken.add(self._new[dim])
    return self._new[dim]


def _names_in(graph: onnx.GraphProto) -> Iterator[str]:
  for each in walk_graphs(graph):
    for info in (*each.input, *each.output, *each.value_info):
      yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim if dim.dim_param)


def _skeleton(graph: gs.Graph, target: onnx.GraphProto, certainty: Certainty, given: int | None) -> None:
  """The graph in `target` without large weights; dtypes and shapes of intermediate values as far as `given`."""
  target.name = graph.name
  target.input.extend(value_info(tensor) for tensor in graph.inputs)
  made = set()
  outputs = {id(tensor) for tensor in graph.outputs}
  infos: dict[int, onnx.ValueInfoProto] = {}
  for node in graph.nodes:
    proto = node_proto(node)
    hide(proto, node)
    for name, value in node.attrs.items():
      if isinstance(value, gs.Graph):
        attribute = proto.attribute.add(name=name, type=AttributeProto.GRAPH)
        _skeleton(value, attribute.g, certainty, given)
    target.node.append(proto)
    for tensor in node.inputs:
      if isinstance(tensor, gs.Constant) and tensor.name not in made and tensor.dtype is not None:
        made.add(tensor.name)
        _add_constant(tensor, target)
      elif attached(tensor, "initial") is not None and not tensor.inputs and tensor.name not in made:
        made.add(tensor.name)
        target.value_info.append(value_info(tensor))
    if given is not None:
      known = [tensor for tensor in node.outputs if tensor.name and tensor.dtype is not None]
      infos.update({id(tensor): _described(tensor, certainty.shape(tensor, given)) for tensor in known})
      target.value_info.extend(infos[id(tensor)] for tensor in known if id(tensor) not in outputs)
  # What is known of an output stands there alone: beside a value_info onnx leaves one of the two as it was.
  target.output.extend(infos.get(id(tensor), onnx.ValueInfoProto(name=tensor.name)) for tensor in graph.outputs)


def _described(tensor: gs.Tensor, shape: Shape | None) -> onnx.ValueInfoProto:
  return helper.make_tensor_value_info(tensor.name, helper.np_dtype_to_tensor_dtype(tensor.dtype), shape)


def _add_constant(tensor: gs.Constant, target: onnx.GraphProto) -> None:
  values = tensor._values
  if values.nbytes <= SMALL_BYTES and tensor.dtype != object:
    lazy = getattr(values, "tensor", None)
    proto = lazy if lazy is not None else onnx.numpy_helper.from_array(values, tensor.name)
    if proto.data_location != onnx.TensorProto.EXTERNAL:
      target.initializer.append(proto)
      target.initializer[-1].name = tensor.name
      return
  target.value_info.append(_described(tensor, tuple(tensor.shape)))


def _merge(graph: gs.Graph, inferred: onnx.GraphProto, names: _Names, certainty: Certainty, with_known: bool) -> None:
  infos = {info.name: info for info in (*inferred.value_info, *inferred.output)}
  fixed = {id(tensor) for tensor in graph.inputs}
  for node, proto in zip(graph.nodes, inferred.node, strict=True):
    level = min(INFERRED, certainty.level_of(node.inputs)) if with_known else PROVED
    for tensor in node.outputs:
      info = infos.get(tensor.name)
      if info is None or id(tensor) in fixed or info.type.WhichOneof("value") != "tensor_type":
        continue
      dtype, shape = type_of(info.type)
      tensor.dtype = tensor.dtype if dtype is None else dtype
      certainty.learn(tensor, names.shape(shape), level, with_known)
    graphs = {each.name: each.g for each in proto.attribute if each.type == AttributeProto.GRAPH}
    for name, value in node.attrs.items():
      if isinstance(value, gs.Graph):
        _merge(value, graphs[name], names, certainty, with_known)


def _infer_node(node: gs.Node, certainty: Certainty, opset: int) -> bool:
  """Fills in the outputs of one node of ONNX Runtime's operators or ours; whether that says anything new."""
  found: Iterator[tuple[gs.Tensor, TensorType]]
  read = list(node.inputs)
  if (operator := find(node.domain or "", node.op)) is not None:
    inputs = [TensorType(t.dtype, None if t.shape is None else tuple(t.shape)) for t in node.inputs]
    try:
      found = zip(node.outputs, operator.infer_shapes(node_proto(node), inputs), strict=True)
    except ModelError:  # an invalid node is reported where it is used, not here
      return False
  elif is_hidden(node):
    found = zip(node.outputs, told(node), strict=False)
  else:
    _infer_dtypes(node, opset)
    same = LIKE_FIRST_INPUT.get((node.domain or "", node.op), ())
    is_attention = node.domain == "com.microsoft" and node.op in ATTENTION
    if not (same or is_attention) or not node.inputs:
      return False
    read = read[: 3 if is_attention else 1]
    first = TensorType(node.inputs[0].dtype, attention_shape(node) if is_attention else node.inputs[0].shape)
    found = ((node.outputs[i], first) for i in same or (0,) if i < len(node.outputs))
  learned, level = False, certainty.level_of(read)
  for tensor, kind in found:
    if tensor.dtype is None and kind.dtype is not None:
      tensor.dtype, learned = kind.dtype, True
    learned = certainty.learn(tensor, kind.shape, level) or learned
  return learned


def _infer_dtypes(node: gs.Node, opset: int) -> None:
  if (node.domain or "") in DEFAULT_DOMAINS:
    infer_dtypes(node, opset)
  if node.domain != "com.microsoft" or not node.inputs:
    return
  if node.op in ONE_DTYPE:
    known = next((tensor.dtype for tensor in node.inputs if tensor.dtype is not None), None)
    for tensor in node.inputs:
      if isinstance(tensor, gs.Variable) and tensor.dtype is None and not tensor.is_empty():
        tensor.dtype = known
  elif node.op in SAME_DTYPE and node.outputs[0].dtype is None:
    node.outputs[0].dtype = node.inputs[0].dtype
