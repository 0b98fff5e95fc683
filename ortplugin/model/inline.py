"""Calls of a model's local functions replaced by the functions' bodies, in which the passes find their patterns.

ONNX Runtime does the same when it loads a model. The replacing is onnx.inliner's, on a skeleton without the large
weights; before it, what that loses or leaves is put right:

- it drops the defaults of a function's attributes: calls get them;
- it imports no domain that only a function imports: the model does;
- it leaves functions that import another version of the standard domain, though a valid model has only operators in
  them that are the same in both: they import the model's.

All calls are replaced or, where one can't be, none: `_problem` says when. The nodes of a body have no name of the call.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto

from ..errors import ModelError, one_line
from ..graph import DOMAIN, walk_nodes
from ..graph.messages import copied
from ..passes.base import NearMiss
from .checks import check_structure, skeleton

NAME = "inline-functions"  # as --skip and a report name it
MOST_DEPTH = 64  # of functions that call functions
MOST_NODES = 1 << 20  # afterwards
REMEDY = "export the model again without functions"

Key = tuple[str, str, str]  # domain, name, overload


def inline_functions(model: ModelProto) -> tuple[ModelProto, dict[str, int], list[NearMiss]]:
  """(the model without calls of local functions, how many of each 'domain::name' it had, what stays and why).

  The model is not changed; it is the result itself where calls stay. Bodies of If, Loop and Scan are looked into.
  Raises ModelError where functions call themselves, or each other too deep or too often.
  """
  if not (calls := _calls(model)):
    return model, {}, []
  check_size(model)  # outside of the next block: such a model would keep everything busy for ever
  try:
    reason = _problem(model)
    result = _with_bodies(model) if not reason else model
  except Exception as error:  # onnx raises its own and C++'s errors
    reason = f"onnx can't replace calls of local functions: {one_line(error)}"
  if reason:
    return model, {}, [NearMiss(NAME, name, reason) for name in calls]
  return result, dict(calls), []


def inlined(model: ModelProto) -> ModelProto:
  """A copy of the model with calls of local functions replaced by their bodies.

  Raises ModelError as check_size does, and onnx's and C++'s errors.
  """
  check_size(model)
  complete = copied(model)
  functions = {_key(each): each for each in complete.functions}
  for node in walk_nodes(complete):
    if (called := functions.get(_called(node))) is not None:
      given = {each.name for each in node.attribute}
      node.attribute.extend(each for each in called.attribute_proto if each.name not in given)
  versions = {each.domain: each.version for each in complete.opset_import}
  for function in complete.functions:
    for each in function.opset_import:
      if each.domain not in versions:
        versions[each.domain] = each.version
        complete.opset_import.add(domain=each.domain, version=each.version)
      elif each.domain == "":
        each.version = versions[each.domain]
  result: ModelProto = onnx.inliner.inline_local_functions(complete)
  return result


def check_size(model: ModelProto) -> None:
  """Raises ModelError where functions call themselves, or each other too deep, or stand for too many nodes.

  A small file can stand for any number, if each function calls the one before twice.
  """
  functions = {_key(each): list(_nodes_of(each.node)) for each in model.functions}
  sizes: dict[Key, tuple[int, int]] = {}  # nodes, and depth of the calls in them

  def size(nodes: Iterable[NodeProto], path: tuple[Key, ...]) -> tuple[int, int]:
    total = depth = 0
    for node in nodes:
      total += 1
      key = _called(node)
      if key not in functions:
        continue
      if key in path:
        raise ModelError(f"its local function '{node.domain}::{node.op_type}' calls itself: {REMEDY}")
      if key not in sizes and len(path) < MOST_DEPTH:
        sizes[key] = size(functions[key], (*path, key))
      count, below = sizes.get(key, (0, MOST_DEPTH))
      total, depth = total + count, max(depth, below + 1)
      if depth > MOST_DEPTH:
        raise ModelError(f"its local functions call each other more than {MOST_DEPTH} deep: {REMEDY}")
    return total, depth

  nodes, _ = size(_nodes_of(model.graph.node), ())
  if nodes > MOST_NODES:
    raise ModelError(f"its local functions stand for {nodes} nodes, more than {MOST_NODES}: {REMEDY}")


def _with_bodies(model: ModelProto) -> ModelProto:
  light = inlined(skeleton(model))
  if left := _calls(light):
    raise ModelError(f"the call of '{next(iter(left))}' is left")
  made = {name for node in model.graph.node for name in node.output}
  made.update(each.name for each in (*model.graph.input, *model.graph.initializer))
  result = copied(model)
  del result.functions[:]
  for target, source in ((result.graph.node, light.graph.node), (result.opset_import, light.opset_import)):
    del target[:]
    target.extend(source)
  # What the graph says of values that it does not make could meet a name that the inliner invented.
  infos = [each for each in model.graph.value_info if each.name in made]
  annotations = [each for each in model.graph.quantization_annotation if each.tensor_name in made]
  del result.graph.value_info[:], result.graph.quantization_annotation[:]
  result.graph.value_info.extend(infos)
  result.graph.quantization_annotation.extend(annotations)
  check_structure(result)
  return result


def _problem(model: ModelProto) -> str:
  """Why calls stay; "" where nothing is known to be in the way."""
  if model.training_info:
    return "the model has training information, which may call them too"
  versions = {each.domain: each.version for each in model.opset_import}
  functions = {_key(each): each for each in model.functions}
  for function in model.functions:
    domain, name = function.domain, f"'{function.domain}::{function.name}'"
    if domain in ("", DOMAIN) or domain.split(".")[0] == "ai" or domain.startswith("com.microsoft"):
      return f"ONNX Runtime may have an operator of the name of the function {name}, which it would take instead"
    for each in function.opset_import:
      if each.domain and versions.get(each.domain, each.version) != each.version:
        return (
          f"the function {name} imports version {each.version} of the domain '{each.domain}', "
          f"the model version {versions[each.domain]}"
        )
    certain = {each.name for each in function.attribute_proto}
    for node in _nodes_of(function.node):
      called = functions.get(_called(node))
      defaults = {each.name for each in called.attribute_proto} if called is not None else set()
      for attribute in node.attribute:
        passed = attribute.ref_attr_name
        if passed and passed not in certain and attribute.name in defaults:
          return f"the function {name} passes on the attribute '{passed}', which calls may leave out"
  return ""


def _key(function: FunctionProto) -> Key:
  return function.domain, function.name, function.overload


def _called(node: NodeProto) -> Key:
  return node.domain, node.op_type, node.overload


def _calls(model: ModelProto) -> Counter[str]:
  """How often the graph and its bodies call each local function, by 'domain::name'."""
  functions = {_key(each) for each in model.functions}
  return Counter(
    f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in _nodes_of(model.graph.node) if _called(node) in functions
  )


def _nodes_of(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
  """The nodes, and those of the bodies in them."""
  for node in nodes:
    yield node
    for attribute in node.attribute:
      for graph in (attribute.g, *attribute.graphs):
        yield from _nodes_of(graph.node)
