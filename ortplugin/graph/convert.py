"""Models in: onnx.ModelProto to onnx_graphsurgeon.Graph, with nothing lost on the way; graph/export.py goes back.

graphsurgeon's own importer and exporter drop or refuse what its classes have no place for: documentation strings and
metadata of nodes, overloads, quantisation annotations, sparse and overridable initializers, attributes of rare kinds,
bytes that are not UTF-8, sequence and optional types, external data. So here each of its objects carries the message
that it came from (see the attributes below), and an export edits a copy of the original model instead of writing a new
one. Weights are never decoded, and copied once.

Beyond graphsurgeon's own attributes:
    Graph.proto       the GraphProto;  Graph.constants: its initializers as Constants, in order, by name
    Graph.imported    its own values as they were imported, by name
    Graph.model       the ModelProto, on the outermost graph; None on the others
    Node.proto        the NodeProto
    Variable.proto    its ValueInfoProto, if there is one
    Tensor.retyped    True where a pass changed its dtype, so that what the model says of it is no longer right
    Variable.initial  on a Variable: the TensorProto or SparseTensorProto that it starts with. An initializer that is
                      also a graph input is such a Variable, because a caller may override it; so is a sparse one.
                      Before IR version 4 all were inputs and none could be overridden: there they are Constants
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx_graphsurgeon.ir.tensor import LazyValues

from ..errors import ModelError
from .domains import DEFAULT_DOMAINS
from .messages import copied, copy_fields, without_initializers
from .order import topological_order
from .shapes import Dim, Shape

WEIGHT_ELEMENTS = 1 << 16  # of an initializer whose data are left out of what passes copy


def numpy_dtype(elem_type: int) -> np.dtype[Any] | None:
  """NumPy's (or ml_dtypes') dtype for a TensorProto.DataType; None for one that neither has."""
  try:
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
  except KeyError:
    return None


def attached(item: Any, name: str) -> Any:
  """What this module attached to a graphsurgeon object under `name`; None if nothing."""
  return vars(item).get(name)


def variable(name: str, dtype: np.dtype[Any] | None = None, shape: Shape | None = None) -> gs.Variable:
  """A new Variable."""
  return gs.Variable(name, dtype, shape)


def opset_of(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
  """The version of the domain ai.onnx; 0 if it is not imported."""
  return next((each.version for each in imports if each.domain in DEFAULT_DOMAINS), 0)


def local_functions(graph: gs.Graph) -> frozenset[tuple[str, str]]:
  """(domain, name) of the model's local functions: a node of that name is a call of it, not the operator."""
  if (model := attached(graph, "model")) is None:
    return frozenset((each.domain or "", each.name) for each in graph.functions)
  return frozenset((domain_name(each.domain), each.name) for each in model.functions)


def domain_name(domain: str) -> str:
  """The domain with one name for ONNX's own, ''."""
  return "" if domain in DEFAULT_DOMAINS else domain


# Import


def import_model(model: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto] | None = None) -> gs.Graph:
  """The model as a graph that reads its weights from `model`, which must stay unchanged while the graph is in use.

  Raises ModelError if a name is assigned twice or if the nodes form a cycle.

  Args:
      model: the model.
      weights: by name, the tensors of initializers that stand in `model` without their data; see `lighten`.
  """
  graph = _import_graph(model.graph, {}, opset_of(model.opset_import), model.ir_version, weights or {})
  graph.model = model
  graph.import_domains = list(model.opset_import)
  graph.producer_name, graph.producer_version = model.producer_name, model.producer_version
  return graph


def lighten(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, onnx.TensorProto]]:
  """(a copy of the model whose large weights have no data, the tensors of the model that have them, by name).

  Passes copy a model in every round; its weights are then copied once, by `put_back`.
  """
  light = without_initializers(model)
  overridable = {each.name for each in model.graph.input}
  weights = {}
  for tensor in model.graph.initializer:
    is_heavy = tensor.HasField("raw_data") and math.prod(tensor.dims) >= WEIGHT_ELEMENTS
    if is_heavy and tensor.name not in overridable:
      weights[tensor.name] = tensor
      copy_fields(tensor, light.graph.initializer.add(), leave_out="raw_data")
    else:
      light.graph.initializer.append(tensor)
  return light, weights


def put_back(model: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto]) -> None:
  """Gives initializers without data theirs, in place."""
  for tensor in model.graph.initializer:
    if tensor.name in weights and not tensor.HasField("raw_data"):
      tensor.raw_data = weights[tensor.name].raw_data


def _import_graph(
  proto: onnx.GraphProto,
  outer: Mapping[str, gs.Tensor],
  opset: int,
  ir_version: int,
  weights: Mapping[str, onnx.TensorProto],
) -> gs.Graph:
  tensors: dict[str, gs.Tensor] = {}  # of this graph, by name
  inputs = {each.name for each in proto.input}
  # Before IR version 4 every initializer had to be an input too, and ONNX Runtime lets no caller override one.
  overridable = inputs if ir_version >= 4 or outer else frozenset()
  constants: dict[str, gs.Constant] = {}

  def define(tensor: gs.Tensor) -> gs.Tensor:
    if tensor.name in tensors:
      raise ModelError(f"the name '{tensor.name}' is assigned twice in the graph '{proto.name}'")
    tensors[tensor.name] = tensor
    return tensor

  for initializer in proto.initializer:
    if initializer.name in overridable:
      continue
    lacks_data = initializer.name in weights and not initializer.HasField("raw_data")
    constants[initializer.name] = define(_constant(weights[initializer.name] if lacks_data else initializer))
  initial = {each.name: each for each in proto.initializer if each.name in overridable}
  for sparse in proto.sparse_initializer:
    if sparse.values.name in inputs:
      initial[sparse.values.name] = sparse
    else:
      dtype = numpy_dtype(sparse.values.data_type)
      define(variable(sparse.values.name, dtype, tuple(sparse.dims))).initial = sparse
  graph_inputs = [define(_described(each)) for each in proto.input if each.name not in constants]
  for tensor in graph_inputs:
    tensor.initial = initial.get(tensor.name)
  infos = {each.name: each for each in (*proto.output, *proto.value_info)}  # value_info may know more
  for node in proto.node:
    for name in node.output:
      if name:
        define(_described(infos[name]) if name in infos else variable(name))

  def find(name: str) -> gs.Tensor:
    if not name:
      return gs.Variable.empty()
    if name in tensors:
      return tensors[name]
    if name in outer:
      return outer[name]
    raise ModelError(f"'{name}' is used in the graph '{proto.name}' but nothing makes it")

  visible = {**outer, **tensors}
  nodes = []
  for node in proto.node:
    imported = gs.Node(
      node.op_type,
      node.name,
      {each.name: v for each in node.attribute if (v := _value(each, visible, opset, ir_version)) is not None},
      [find(name) for name in node.input],
      [find(name) for name in node.output],
      node.domain if node.HasField("domain") else None,
    )
    imported.proto = node
    nodes.append(imported)
  outputs = [find(each.name) for each in proto.output]
  for tensor, info in zip(outputs, proto.output, strict=True):
    if attached(tensor, "proto") is None and isinstance(tensor, gs.Variable):
      _describe(tensor, info)
  graph = gs.Graph(topological_order(nodes), graph_inputs, outputs, proto.name, proto.doc_string, opset)
  graph.ir_version = ir_version
  graph.proto, graph.model, graph.constants, graph.imported = proto, None, constants, tensors
  return graph


def _constant(tensor: onnx.TensorProto) -> gs.Constant:
  # Filled by hand: LazyValues' own constructor refuses dtypes that NumPy lacks.
  values = LazyValues.__new__(LazyValues)
  values.tensor, values.shape, values.dtype = tensor, tuple(tensor.dims), numpy_dtype(tensor.data_type)
  values.nbytes = 0 if values.dtype is None else math.prod(values.shape) * values.dtype.itemsize
  constant = gs.Constant(tensor.name, values)
  constant.imported = values
  return constant


def _described(info: onnx.ValueInfoProto) -> gs.Variable:
  tensor = variable(info.name)
  _describe(tensor, info)
  return tensor


def _describe(tensor: gs.Variable, info: onnx.ValueInfoProto) -> None:
  tensor.proto = info
  kind = info.type.WhichOneof("value")
  if kind == "tensor_type":
    tensor.dtype, tensor.shape = type_of(info.type)
  elif kind is not None:
    tensor.type = kind


def type_of(proto: onnx.TypeProto) -> tuple[np.dtype[Any] | None, Shape | None]:
  """The dtype and shape of a tensor type; a name or None stands for a dimension of no fixed length.

  A negative length, as exporters write for one that they do not know, is None too: ONNX Runtime takes it for open.
  So no shape has a negative length; let none in by another way.
  """
  tensor = proto.tensor_type
  dtype = numpy_dtype(tensor.elem_type) if tensor.elem_type else None
  if not tensor.HasField("shape"):
    return dtype, None
  dims = tensor.shape.dim
  return dtype, tuple(_dim(each) for each in dims)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
  if dim.HasField("dim_value"):
    return dim.dim_value if dim.dim_value >= 0 else None
  return dim.dim_param or None


def _value(attribute: onnx.AttributeProto, visible: Mapping[str, gs.Tensor], opset: int, ir_version: int) -> Any:
  """An attribute as graphsurgeon holds it; None for the kinds that it has no place for."""
  kind = attribute.type
  if kind == AttributeProto.TENSOR:
    return _constant(attribute.t)
  if kind == AttributeProto.GRAPH:
    return _import_graph(attribute.g, visible, opset, ir_version, {})
  return plain_value(attribute)


def plain_value(attribute: onnx.AttributeProto) -> Any:
  """The value of an attribute that holds no tensor or graph; None for kinds that graphsurgeon has no place for."""
  kind = attribute.type
  if kind == AttributeProto.FLOAT:
    return attribute.f
  if kind == AttributeProto.INT:
    return attribute.i
  if kind == AttributeProto.STRING:
    return _text(attribute.s)
  if kind == AttributeProto.FLOATS:
    return list(attribute.floats)
  if kind == AttributeProto.INTS:
    return list(attribute.ints)
  if kind == AttributeProto.STRINGS:
    return [_text(each) for each in attribute.strings]
  return None


def _text(value: bytes) -> str | bytes:
  try:
    return value.decode()
  except UnicodeDecodeError:
    return value


# Back to messages


def all_graphs(graph: gs.Graph) -> Iterator[gs.Graph]:
  """The graph, then every graph in its nodes' attributes, outer before inner, in order."""
  yield graph
  for node in graph.nodes:
    if node.attrs:
      for value in node.attrs.values():
        if isinstance(value, gs.Graph):
          yield from all_graphs(value)


def constants_of(graph: gs.Graph) -> dict[str, gs.Constant]:
  """The graph's own initializers by name."""
  return attached(graph, "constants") or {}


def is_retyped(tensor: gs.Tensor) -> bool:
  """Whether a pass changed the tensor's dtype."""
  return bool(attached(tensor, "retyped"))


def tensor_proto(constant: gs.Constant) -> onnx.TensorProto:
  """The constant as a message, under its own name; its values are not decoded."""
  values = constant._values
  if isinstance(values, LazyValues):
    if values.tensor.name == constant.name:
      return values.tensor  # type: ignore[no-any-return]
    renamed: onnx.TensorProto = copied(values.tensor)
    renamed.name = constant.name
    return renamed
  return numpy_helper.from_array(np.asarray(values), constant.name)


def value_info(tensor: gs.Tensor) -> onnx.ValueInfoProto:
  """The tensor's ValueInfoProto: what it was imported with, dtype and shape as they are now."""
  info = onnx.ValueInfoProto()
  if (source := attached(tensor, "proto")) is not None:
    info.CopyFrom(source)
    if info.type.WhichOneof("value") not in (None, "tensor_type"):
      return info
    for dim in info.type.tensor_type.shape.dim:
      if dim.dim_value < 0:
        dim.ClearField("dim_value")
  info.name = tensor.name
  if tensor.dtype is None:
    return info
  shape = None if tensor.shape is None else tuple(tensor.shape)
  if type_of(info.type) != (tensor.dtype, shape):
    info.type.CopyFrom(helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(tensor.dtype), shape))
  return info


def attribute_proto(name: str, value: Any) -> onnx.AttributeProto:
  """An attribute as a message, of a value as graphsurgeon holds it."""
  if value == []:  # nothing tells of which kind; those that passes write and read are of integers
    return onnx.AttributeProto(name=name, type=AttributeProto.INTS)
  return helper.make_attribute(name, value)


def node_proto(node: gs.Node) -> onnx.NodeProto:
  """The node alone as a message, without the graphs in its attributes."""
  proto = onnx.NodeProto(
    op_type=node.op,
    name=node.name,
    domain=node.domain or "",
    input=[tensor.name for tensor in node.inputs],
    output=[tensor.name for tensor in node.outputs],
  )
  source: onnx.NodeProto | None = attached(node, "proto")
  kept = {each.name: each for each in source.attribute} if source is not None else {}
  for name, value in node.attrs.items():
    if isinstance(value, gs.Graph):
      continue
    if isinstance(value, gs.Constant):
      proto.attribute.append(helper.make_attribute(name, tensor_proto(value)))
    elif name in kept and plain_value(kept[name]) == value:
      proto.attribute.append(kept[name])
    else:
      proto.attribute.append(attribute_proto(name, value))
  return proto


def is_external(tensor: onnx.TensorProto) -> bool:
  """Whether the values lie in another file and have not been loaded."""
  return tensor.data_location == TensorProto.EXTERNAL
