"""Graphs out: a graph that graph/convert.py imported becomes a copy of its model with the differences worked in."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, helper

from .convert import (
  all_graphs,
  attached,
  attribute_proto,
  constants_of,
  domain_name,
  is_retyped,
  plain_value,
  tensor_proto,
  type_of,
  value_info,
)
from .disputed import disputed
from .domains import DOMAIN
from .messages import copied

IN_PLACE = ("ScatterND", "ScatterElements", "UpdateSlice")  # ours that may work in the memory of their first input


def export_model(graph: gs.Graph, original: onnx.ModelProto) -> onnx.ModelProto:
  """The graph as a model: a copy of `original`, which it was imported from, with the differences worked in.

  What no pass touched comes back as it was. The domain `ortplugin` is imported if and only if a node uses it.
  """
  model = copied(original)
  _export_graph(graph, model.graph, frozenset(), _used_tensors(graph))
  used = {domain_name(node.domain or "") for each in all_graphs(graph) for node in each.nodes}
  imported = {domain_name(each.domain) for each in model.opset_import}
  if DOMAIN in used and DOMAIN not in imported:
    model.opset_import.add(domain=DOMAIN, version=1)
  if DOMAIN not in used and not any(n.domain == DOMAIN for f in model.functions for n in f.node):
    kept = [each for each in model.opset_import if each.domain != DOMAIN]
    if len(kept) != len(model.opset_import):
      del model.opset_import[:]
      model.opset_import.extend(kept)
  return model


def _used_tensors(graph: gs.Graph) -> frozenset[int]:
  """The ids of the tensors that a node reads or that a graph gives out, bodies included."""
  used: set[int] = set()
  for each in all_graphs(graph):
    used.update(id(tensor) for tensor in each.outputs)
    used.update(id(tensor) for node in each.nodes for tensor in node.inputs)
  return frozenset(used)


def _names_read(graph: onnx.GraphProto) -> Iterator[str]:
  yield from (each.name for each in graph.output)
  for node in graph.node:
    yield from node.input
    for attribute in node.attribute:
      if attribute.type == AttributeProto.GRAPH:
        yield from _names_read(attribute.g)


def _export_graph(graph: gs.Graph, target: onnx.GraphProto, owned: frozenset[int], used: frozenset[int]) -> None:
  """Works the differences into `target`, a copy of graph.proto. `owned`: constants of the graphs around this one."""
  source: onnx.GraphProto | None = attached(graph, "proto")
  read_before = frozenset(_names_read(source)) if source is not None else frozenset()

  here = _export_initializers(graph, target, owned, used, read_before)
  del target.node[:]
  for node in graph.nodes:
    _export_node(node, target.node.add(), here, used)
  if source is None:
    target.name = graph.name
    target.input.extend(value_info(tensor) for tensor in graph.inputs)
    target.output.extend(value_info(tensor) for tensor in graph.outputs)

  for infos, tensors in ((target.input, graph.inputs), (target.output, graph.outputs)):
    changed = {tensor.name: tensor for tensor in tensors if is_retyped(tensor)}
    for info in infos:
      if info.name in changed:
        info.CopyFrom(_with_dtype(info, changed[info.name]))

  made = {tensor.name: node for node in graph.nodes for tensor in node.outputs if tensor.name}
  outputs = {tensor.name for tensor in graph.outputs}
  ours = {name for name, node in made.items() if node.domain == DOMAIN}
  # An operator gets its input's memory for its output only if ONNX Runtime knows both to be of one shape.
  ours |= {node.inputs[0].name for node in graph.nodes if node.domain == DOMAIN and node.op in IN_PLACE} & set(made)
  ours -= outputs
  by_name = {tensor.name: tensor for node in graph.nodes for tensor in node.outputs}
  held = {each.name for each in target.initializer}
  left = {name: each for name, each in constants_of(graph).items() if name in held}
  valid = _still_described(graph, {**left, **by_name})
  kept = [info for info in target.value_info if info.name not in ours and valid(info.name)]
  unsure = disputed(graph)
  kept = [info for info in kept if info.name not in unsure and not _contradicts(info, by_name.get(info.name))]
  retyped = {name: each for name, each in {**constants_of(graph), **by_name}.items() if is_retyped(each)}
  kept = [_with_dtype(each, retyped.get(each.name)) for each in kept]
  ours = {name for name in ours if by_name[name].dtype is not None}
  infos = [
    *kept,
    *(
      _only_dtype(info) if info.name in unsure else info
      for info in (value_info(by_name[name]) for name in made if name in ours)
    ),
  ]
  if infos != list(target.value_info):
    infos = [copied(info) for info in infos]
    del target.value_info[:]
    target.value_info.extend(infos)
  annotations = [copied(each) for each in target.quantization_annotation if valid(each.tensor_name)]
  del target.quantization_annotation[:]
  target.quantization_annotation.extend(annotations)


def _declare_scalars(body: gs.Graph, target: onnx.GraphProto) -> None:
  """Gives the outputs of a Scan's body that operators of ours make the shape of a scalar, where they have it.

  ONNX Runtime runs no Scan that gives out what it knows no shape of. It infers the others, but shows our operators a
  scalar as it shows a tensor of unknown shape.
  """
  made = {tensor.name: tensor for node in body.nodes if node.domain == DOMAIN for tensor in node.outputs}
  for info in target.output:
    tensor = made.get(info.name)
    if tensor is not None and tensor.shape is not None and not len(tensor.shape):
      info.CopyFrom(value_info(tensor))


def _only_dtype(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
  """The description without the shape. ONNX Runtime asks for a dtype of what an operator of ours makes where it does
  not know the shapes of the operator's inputs: it takes a scalar's shape for none."""
  info.type.tensor_type.ClearField("shape")
  return info


def _contradicts(info: onnx.ValueInfoProto, value: gs.Tensor | None) -> bool:
  """Whether the description is of another shape than the value is known to have.

  Exporters write what onnx infers. Kept beside a node of which ONNX Runtime infers the right shape, it would make
  another operator behind it fail.
  """
  if value is None or value.shape is None or info.type.WhichOneof("value") != "tensor_type":
    return False
  _, shape = type_of(info.type)
  if shape is None:
    return False
  pairs = zip(shape, value.shape, strict=False)
  return len(shape) != len(value.shape) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _still_described(graph: gs.Graph, values: Mapping[str, gs.Tensor]) -> Callable[[str], bool]:
  """Whether what the model says of a name is still right, where these values have names now.

  A pass may give a name that another one freed to a value of another shape. So a description goes with the value that
  it was imported for, not with its name, and goes when that value does.
  """
  imported: Mapping[str, gs.Tensor] = attached(graph, "imported") or {}
  stays = {id(tensor) for tensor in graph.inputs}
  stays.update(id(tensor) for tensor in imported.values() if attached(tensor, "initial") is not None)

  def valid(name: str) -> bool:
    value = imported.get(name)
    return (name not in values) if value is None else values.get(name) is value or id(value) in stays

  return valid


def _with_dtype(info: onnx.ValueInfoProto, tensor: gs.Tensor | None) -> onnx.ValueInfoProto:
  """The description with the dtype of the tensor, if one is given."""
  if tensor is None:
    return info
  result = copied(info)
  result.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
  return result


def _export_initializers(
  graph: gs.Graph, target: onnx.GraphProto, owned: frozenset[int], used: frozenset[int], read_before: frozenset[str]
) -> frozenset[int]:
  """Drops initializers that nothing reads any more, adds new ones. Returns the ids of those that bodies may read."""
  constants = constants_of(graph)
  annotated = {pair.value for each in target.quantization_annotation for pair in each.quant_parameter_tensor_names}
  for index in range(len(target.initializer) - 1, -1, -1):
    name = target.initializer[index].name
    if (constant := constants.get(name)) is None:
      continue  # overridable: part of the model's interface
    if id(constant) not in used and name in read_before and name not in annotated:
      del target.initializer[index]
      if graph.ir_version is not None and graph.ir_version < 4:
        _drop_input(target, name)
    elif constant._values is not attached(constant, "imported"):
      target.initializer[index].CopyFrom(tensor_proto(constant))
  known = set(owned)
  existing = {each.name for each in target.initializer}
  read = [tensor for node in graph.nodes for tensor in node.inputs if isinstance(tensor, gs.Constant)]
  for constant in [*constants.values(), *read]:
    if id(constant) not in known and constant.name not in existing and id(constant) in used:
      target.initializer.add().CopyFrom(tensor_proto(constant))
      if graph.ir_version is not None and graph.ir_version < 4:
        target.input.append(value_info(constant))  # before IR version 4 every initializer is an input
    known.add(id(constant))
  return frozenset(known)


def _drop_input(target: onnx.GraphProto, name: str) -> None:
  kept = [copied(each) for each in target.input if each.name != name]
  del target.input[:]
  target.input.extend(kept)


def _export_node(node: gs.Node, target: onnx.NodeProto, owned: frozenset[int], used: frozenset[int]) -> None:
  source: onnx.NodeProto | None = attached(node, "proto")
  if source is not None:
    target.CopyFrom(source)
  target.op_type = node.op
  if target.name != node.name:
    target.name = node.name
  if node.domain is not None:
    target.domain = node.domain
  inputs, outputs = [tensor.name for tensor in node.inputs], [tensor.name for tensor in node.outputs]
  if list(target.input) != inputs:
    del target.input[:]
    target.input.extend(inputs)
  if list(target.output) != outputs:
    del target.output[:]
    target.output.extend(outputs)
  existing = {each.name: each for each in target.attribute}
  for name, value in node.attrs.items():
    if (attribute := existing.pop(name, None)) is None:
      attribute = target.attribute.add(name=name)
    if isinstance(value, gs.Graph):
      attribute.type = AttributeProto.GRAPH
      _export_graph(value, attribute.g, owned, used)
      if node.op == "Scan":
        _declare_scalars(value, attribute.g)
    elif isinstance(value, gs.Constant):
      if attribute.type != AttributeProto.TENSOR or value._values is not attached(value, "imported"):
        attribute.CopyFrom(helper.make_attribute(name, tensor_proto(value)))
    elif attribute.type == AttributeProto.UNDEFINED or plain_value(attribute) != value:
      attribute.CopyFrom(attribute_proto(name, value))
  # What graphsurgeon has no place for stays; what a pass removed goes.
  for attribute in existing.values():
    if attribute.type == AttributeProto.TENSOR or plain_value(attribute) is not None:
      target.attribute.remove(attribute)
