"""Models of old opsets in the form that passes and decompositions know.

The conversion is onnx.version_converter's, on a skeleton without the large weights; around it, what that loses or gets
wrong is put right:

- it knows little of opsets before 7: models of those are of opset 7 if no operator in them changed until then;
- it drops documentation, metadata, annotations and the types of values: all but the nodes stays the original's;
- Upsample, and Resize before opset 11, place samples at x / scale, and ONNX Runtime rounds them down where it enlarges
  and up where it shrinks. The conversion leaves the new operator's defaults, half a pixel beside that;
- Scan before opset 9 had a batch dimension, in bodies too: refused;
- Softmax before opset 13 was along several axes, taken as one by a Flatten and put right by a Reshape to the old shape,
  where a length of 0 means another: so such a model is of opset 14 at least, which knows allowzero;
- an attribute that became an input is a float32 constant, whatever the dtype of the node: it gets the node's;
- operators that ONNX Runtime ran as experimental ones, before ONNX had them, are unknown to it: they stay as they are;
- before IR version 4 initializers had to be inputs, though ONNX Runtime lets no caller override them: no longer.

bfloat16 needs opset 13, before which no Cast makes it: `--precision bf16` asks for more than the passes need.

What remains wrong shows when original and result are compared, which `optimize` does with verify=True.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx.defs
import onnx.version_converter
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import ModelError, one_line
from ..graph import walk_graphs
from ..graph.messages import copied, standard_opset
from ..ops.decompose import MINIMUM_OPSET
from . import kept_names
from .checks import check_structure, skeleton

OLDEST = 7  # from which on onnx converts rightly, and operators broadcast as NumPy does
BFLOAT16_OPSET = 13  # from which on Cast and most other operators take it

# By operator the inputs that were attributes before opset 11 and have the dtype of the first input. An operator that
# gets such inputs in an opset that models are upgraded to belongs here.
TYPED_INPUTS = {"Pad": (2,), "Clip": (1, 2)}
# What ONNX Runtime ran before ONNX had it, and the opset of the standard operator, which is the same.
EXPERIMENTAL = {"ThresholdedRelu": 10}
ALLOWZERO_OPSET = 14  # from which on a Reshape's 0 may be a length
_APART = "ortplugin.upgrade"  # a domain that the conversion passes over


def upgrade(model: ModelProto, target: int = MINIMUM_OPSET, why: str = "") -> ModelProto:
  """The model with opset `target` if its own is older, else itself. It is not changed.

  Raises ModelError if it can't be; `why` it has to be, a clause, is part of the message.
  """
  found = standard_opset(model)
  if found == 0 or found >= target:
    return model
  if found < 13 <= target and any(node.op_type in ("Softmax", "LogSoftmax") for node in _nodes(model.graph)):
    target = max(target, ALLOWZERO_OPSET)
  try:
    _check_unchanged(model, found)
    _check_convertible(model, found, target)
    result = _converted(model, target)
    check_structure(result)
  except Exception as error:  # onnx raises its own and C++'s errors
    reason = one_line(error).rsplit(" failed: ", 1)[-1][:300]  # without the place in onnx's source
    raise ModelError(
      f"it can't be upgraded from opset {found} to {target}{why and f', {why}'}: {reason}; "
      f"export the model again with opset {target} or later"
    ) from error
  return result


def _check_unchanged(model: ModelProto, found: int) -> None:
  """A model of an opset before `OLDEST` is one of `OLDEST` if its operators are the same in both.

  These are the models of such opsets that ONNX Runtime runs: it has no kernels of what operators were before.
  """
  for node in _nodes(model.graph) if found < OLDEST else ():
    if node.domain not in ("", "ai.onnx"):
      continue
    versions = {_since(node.op_type, version) for version in (found, OLDEST)}
    if len(versions) > 1:
      raise ModelError(f"node '{node.name or node.output[0]}' ({node.op_type}) changed before opset {OLDEST}")


def _since(op: str, version: int) -> int | None:
  known = onnx.defs.has(op, max_inclusive_version=version, domain="")
  return onnx.defs.get_schema(op, max_inclusive_version=version, domain="").since_version if known else None


def _check_convertible(model: ModelProto, found: int, target: int) -> None:
  if model.functions or model.training_info:
    raise ModelError("it has local functions or training information, which the conversion does not know")
  read = {each.name for graph in walk_graphs(model.graph) for each in graph.output}
  read.update(name for node in _nodes(model.graph) for name in node.input)
  masks = [node for node in _nodes(model.graph) if node.op_type == "Dropout" and read & set(node.output[1:])]
  if masks and found < 10:
    raise ModelError(f"the mask of node '{masks[0].name}' (Dropout), which is no longer a number, is in use")
  if masks and found < 12 <= target:  # by ONNX Runtime, outside of training
    raise ModelError(f"the mask of node '{masks[0].name}' (Dropout), false before opset 12 and then true, is in use")
  scan = next((node for node in _nodes(model.graph) if node.op_type == "Scan" and found < 9), None)
  if scan is not None:
    raise ModelError(f"node '{scan.name}' (Scan) has the batch dimension that Scan lost in opset 9")
  hardmax = next((node for node in _nodes(model.graph) if node.op_type == "Hardmax" and target >= 13), None)
  if hardmax is not None:  # unlike Softmax
    raise ModelError(f"node '{hardmax.name}' (Hardmax) is along several axes, as Hardmax was before opset 13")


def _converted(model: ModelProto, target: int) -> ModelProto:
  light, found = skeleton(model), standard_opset(model)
  ir_version = helper.OP_SET_ID_VERSION_MAP["ai.onnx", target]
  light.ir_version = max(light.ir_version, ir_version)
  for each in light.opset_import:
    if each.domain in ("", "ai.onnx"):
      each.version = max(each.version, OLDEST)
  _prepare(light, found)
  converted = onnx.version_converter.convert_version(light, target)
  overridable = {each.name for each in model.graph.input} if model.ir_version >= 4 else set()
  dtypes = _Dtypes(model)
  own = {name for node in _nodes(light.graph) for name in node.output}
  for body in walk_graphs(converted.graph):
    shapes = {node.output[0] for node in body.node if node.op_type == "Shape"} - own
    for node in body.node:
      if node.op_type == "Reshape" and node.input[1] in shapes:
        node.attribute.append(helper.make_attribute("allowzero", 1))
      if node.domain == _APART:
        node.domain = ""
      if node.op_type == "Resize" and found < MINIMUM_OPSET:
        _put_resize_right(node, found, _constants(converted.graph, overridable))
      if node.op_type in TYPED_INPUTS and found < MINIMUM_OPSET:
        _give_dtype(node, body, dtypes)
  _describe(converted.graph, model.graph)

  result = copied(model)
  del result.graph.node[:]
  result.graph.node.extend(converted.graph.node)
  _keep_types(result.graph, converted.graph, found)
  if found == kept_names.OPSET:
    kept_names.forget(result.graph, _constants(result.graph, overridable))
  existing = {each.name for each in model.graph.initializer}
  given = {each.name for each in light.graph.input}
  added = [each for each in converted.graph.initializer if each.name not in existing and each.name not in given]
  result.graph.initializer.extend(added)
  if model.ir_version < 4:
    kept = [each for each in model.graph.input if each.name not in existing]
    del result.graph.input[:]
    result.graph.input.extend(kept)
  result.ir_version = max(result.ir_version, ir_version)
  for each in result.opset_import:
    if each.domain in ("", "ai.onnx"):
      each.version = target
  return result


def _prepare(model: ModelProto, found: int) -> None:
  """Puts what the conversion refuses, or makes something invalid of, in a form that it takes."""
  for node in _nodes(model.graph):
    if node.domain not in ("", "ai.onnx"):
      continue
    mode = next((each.s for each in node.attribute if each.name == "mode"), b"constant")
    if node.op_type == "Pad" and found < MINIMUM_OPSET and mode != b"constant":
      kept = [each for each in node.attribute if each.name != "value"]  # which nothing reads then
      del node.attribute[:]
      node.attribute.extend(kept)
    if found < EXPERIMENTAL.get(node.op_type, 0):
      node.domain = _APART
  model.opset_import.add(domain=_APART, version=1)


class _Dtypes:
  """The dtypes of a model's values, inferred when they are first asked for."""

  def __init__(self, model: ModelProto) -> None:
    self._model = model
    self._found: dict[str, set[np.dtype[Any]]] | None = None

  def dtype(self, name: str) -> np.dtype[Any] | None:
    """The dtype; None if unknown, or where two bodies have values of one name in two dtypes."""
    if self._found is None:
      # graph/ is heavy to import
      from ..graph.convert import all_graphs, import_model
      from .annotate import annotate

      graph = import_model(skeleton(self._model))
      annotate(graph)
      self._found = {}
      for each in all_graphs(graph):
        for tensor in (*each.inputs, *(t for node in each.nodes for t in (*node.inputs, *node.outputs))):
          if tensor.dtype is not None:
            self._found.setdefault(tensor.name, set()).add(np.dtype(tensor.dtype))
    found = self._found.get(name, set())
    return next(iter(found)) if len(found) == 1 else None


def _give_dtype(node: NodeProto, body: GraphProto, dtypes: _Dtypes) -> None:
  """Gives constants that the conversion made of attributes the dtype of the node's first input, where it is known.

  Where it is not, float32 is by far the likeliest, and ONNX Runtime refuses the model if it is another.
  """
  makers = {each.output[0]: each for each in body.node if each.output}
  name = node.input[0]
  while (dtype := dtypes.dtype(name)) is None:  # a name that the conversion gave, as to what became of Upsample
    if name not in makers:
      return
    name = _same_dtype(makers[name])
  for index in TYPED_INPUTS[node.op_type]:
    maker = makers.get(node.input[index]) if index < len(node.input) else None
    for attribute in maker.attribute if maker is not None and maker.op_type == "Constant" else ():
      with np.errstate(over="ignore"):  # a limit beyond the dtype is none
        attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(dtype)))


def _same_dtype(node: NodeProto) -> str:
  """An input of the dtype of the node's first output by its definition; '' if there is none."""
  if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, max_inclusive_version=MINIMUM_OPSET):
    return ""
  schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=MINIMUM_OPSET)
  wanted = schema.outputs[0].type_str
  pairs = zip(node.input, schema.inputs, strict=False)
  return next((name for name, each in pairs if name and each.type_str == wanted), "")


def _keep_types(graph: GraphProto, converted: GraphProto, found: int) -> None:
  """Drops the types of values that are no longer there, and of Dropout's mask, which became bool in opset 10."""
  made = {name for node in converted.node for name in node.output}
  if found < 10:
    made -= {name for node in converted.node if node.op_type == "Dropout" for name in node.output[1:]}
  kept = [each for each in graph.value_info if each.name in made]
  copies = [copied(each) for each in kept]
  del graph.value_info[:]
  graph.value_info.extend(copies)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
  for each in walk_graphs(graph):
    yield from each.node


def _constants(graph: GraphProto, overridable: set[str]) -> dict[str, TensorProto]:
  """The constants of a graph and its bodies by name, but for names that stand for different ones in two bodies."""
  found = [(each.name, each) for body in walk_graphs(graph) for each in body.initializer]
  for node in _nodes(graph):
    if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
      found.append((node.output[0], node.attribute[0].t))
  ambiguous = {name for name, count in Counter(name for name, _ in found).items() if count > 1}
  return {name: tensor for name, tensor in found if name not in ambiguous | overridable}


def _put_resize_right(resize: NodeProto, found: int, constants: Mapping[str, TensorProto]) -> None:
  """Makes a Resize of opset 11 do what the Upsample or Resize of opset `found` did."""
  resize.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
  if any(each.name == "mode" and each.s == b"linear" for each in resize.attribute):
    return
  nearest = "floor"  # Upsample, the only one up to opset 9, does not shrink
  if found > 9:
    name = resize.input[2]
    if name not in constants:
      raise ModelError(f"node '{resize.name}' (Resize) has scales, '{name}', that are no constant")
    scales = numpy_helper.to_array(constants[name])
    if (scales < 1).any() and (scales > 1).any():
      raise ModelError(f"node '{resize.name}' (Resize) both enlarges and shrinks, by {scales.tolist()}")
    nearest = "ceil" if (scales < 1).any() else "floor"
  resize.attribute.append(helper.make_attribute("nearest_mode", nearest))


def _describe(graph: GraphProto, original: GraphProto) -> None:
  """Gives the nodes of a converted graph, and of the bodies in it, back what only describes them.

  Of several nodes that one became, the one of its operator has its name, and the others none: ONNX Runtime loads no
  model in which two nodes have one name.
  """
  makers = {name: node for node in original.node for name in node.output if name}
  named = {node.name: node for node in original.node if node.name}
  taken: set[str] = set()
  for node in graph.node:
    source = next((makers[name] for name in node.output if name in makers), None)
    if source is None:
      if (source := named.get(node.name)) is None or source.op_type != node.op_type:
        node.name = ""
        continue
    elif source.name in taken:
      node.name = ""
      continue
    taken.update({source.name} - {""})
    bodies = {each.name: each.g for each in source.attribute if each.type == AttributeProto.GRAPH}
    for attribute in node.attribute:
      if attribute.type == AttributeProto.GRAPH:
        _describe(attribute.g, bodies[attribute.name])
    node.name, node.doc_string = source.name, source.doc_string
    if hasattr(node, "metadata_props"):  # since onnx 1.16
      del node.metadata_props[:]
      node.metadata_props.extend(source.metadata_props)
