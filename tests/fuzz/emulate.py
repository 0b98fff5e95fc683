"""bfloat16 on the CPU, where ONNX Runtime has few kernels of it: standard nodes compute in float32 between Casts.

Each value is rounded to bfloat16 where the model says so; our own operators run as they are.
"""

import onnx
import onnx.parser
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx_models import in_full

from ortplugin.graph.dtypes import same_types
from ortplugin.model.annotate import LIKE_FIRST_INPUT
from ortplugin.model.inline import inlined
from ortplugin.ops import TensorType, find

from .evaluate import OURS, UnfitError

_BF16, _FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT
_RUN = ("Cast", "Constant", "Identity", "If", "Loop", "Scan")  # as they are


def emulated(model):
  """A model that computes the same on the CPU. UnfitError where a value's dtype is unknown."""
  result = onnx.ModelProto()
  result.CopyFrom(model)
  types = _own_types(model.graph)
  if _BF16 in types.values() or any(node.op_type == "Cast" for node in model.graph.node):
    types = value_types(result)
  if _BF16 in types.values():
    _graph(result.graph, types)
  return result


def value_types(model):
  """The element types by name, as far as they can be inferred; the model gets those inside of bodies."""
  types = _own_types(model.graph)
  told = {}
  opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
  while True:
    model.graph.value_info.extend(helper.make_tensor_value_info(*each, None) for each in told.items())
    try:
      inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # what it does not know is missing, which is seen below
      return types
    model.CopyFrom(inferred)  # with the types in bodies
    types = {**_own_types(inferred.graph), **types}
    told = _told(model.graph, types, opset)
    if not told:
      return types
    types |= told


def _told(graph, types, opset):
  """The element types, where they are missing, of what operators make of which onnx infers nothing."""
  found = {}
  for node in graph.node:
    if all(name in types for name in node.output if name):
      continue
    operator = find(node.domain, node.op_type)
    known = [types.get(name, 0) for name in node.input]
    made = {index: known[0] for index in LIKE_FIRST_INPUT.get((node.domain, node.op_type), ())}
    for index, same in enumerate(same_types(node.op_type, opset) if node.domain in ("", "ai.onnx") else ()):
      made.setdefault(index, next((known[at] for at in same if at < len(known) and known[at]), 0))
    if operator is not None:
      given = [TensorType(helper.tensor_dtype_to_np_dtype(each) if each else None, None) for each in known]
      dtypes = (each.dtype for each in operator.infer_shapes(node, given))
      made = {i: 0 if dtype is None else helper.np_dtype_to_tensor_dtype(dtype) for i, dtype in enumerate(dtypes)}
    for index, name in enumerate(node.output):
      if name and name not in types and made.get(index):
        found[name] = made[index]
  return found


def spelled(text, name, **given):
  """Nodes of text, as of `in_full`, whose values are called `name`/value, but for those that are given a name."""
  nodes = list(onnx.parser.parse_graph(f"g () => () {{ {in_full(text)} }}").node)
  for node in nodes:
    for names in (node.input, node.output):
      names[:] = [given.get(each, f"{name}/{each}") for each in names]
  return nodes


def respelled(model, spell):
  """The model with nodes spelled in another way, those in bodies and local functions too; None where `spell` leaves
  each.

  `spell`: (node, the element type of its first value, of Where the second, or 0, a unique name) -> nodes, or None.
  """
  result = inlined(model)
  types = value_types(result)  # which replaces the graph
  return result if _respell(result.graph, types, spell) else None


def _respell(graph, types, spell):
  changed, made = False, []
  for number, node in enumerate(graph.node):
    for attribute in node.attribute:
      if attribute.type == AttributeProto.GRAPH:
        changed = _respell(attribute.g, {**types, **_own_types(attribute.g)}, spell) or changed
    values = node.input[1:] if node.op_type == "Where" else node.input
    nodes = spell(node, types.get(values[0], 0) if values else 0, f"{node.output[0]}/{number}")
    changed = changed or nodes is not None
    made += [node] if nodes is None else nodes
  copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in made]
  del graph.node[:]
  graph.node.extend(copies)
  return changed


def _own_types(graph):
  types = {
    each.name: each.type.tensor_type.elem_type
    for each in [*graph.input, *graph.output, *graph.value_info]
    if each.type.HasField("tensor_type")
  }
  return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _graph(graph, types):
  made = []
  for number, node in enumerate(graph.node):
    if node.domain == OURS or node.op_type in _RUN:
      for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
          _graph(attribute.g, {**types, **_own_types(attribute.g)})
      made.append(node)
      continue
    unknown = [name for name in [*node.input, *node.output] if name and name not in types]
    if unknown:
      raise UnfitError(f"the dtype of '{unknown[0]}' is not known")
    copy, after = onnx.NodeProto(), []
    copy.CopyFrom(node)
    for index, name in enumerate(node.input):
      if types.get(name) == _BF16:
        copy.input[index] = f"{name}/wide{number}.{index}"
        made.append(helper.make_node("Cast", [name], [copy.input[index]], to=_FLOAT))
    for index, name in enumerate(node.output):
      if types.get(name) == _BF16:
        copy.output[index] = f"{name}/wide"
        after.append(helper.make_node("Cast", [copy.output[index]], [name], to=_BF16))
    for attribute in copy.attribute:
      if attribute.name == "dtype" and attribute.i == _BF16:
        attribute.i = _FLOAT
      if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == _BF16:
        attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype("float32")))
    made += [copy, *after]
  copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in made]
  del graph.node[:]
  graph.node.extend(copies)
