"""Smaller cases than a case: what a minimiser tries."""

from dataclasses import replace

import numpy as np
import onnx
from onnx import AttributeProto, helper
from onnx.numpy_helper import from_array, to_array

from .evaluate import make_session, run, to_onnx
from .generate import drop_imports, reads
from .graph import HALVES
from .narrow import narrow_model


def rebuilt(case, model, feeds):
  """A case of another oracle's model: what nothing reads goes."""
  graph = model.graph
  wanted = {each.name for each in graph.output}
  nodes = []
  for node in reversed(graph.node):
    if case.dead or wanted & set(node.output):
      wanted |= set(reads(node))
      nodes.append(node)
  nodes.reverse()
  copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
  del graph.node[:]
  graph.node.extend(copies)
  for field in (graph.input, graph.initializer, graph.value_info):
    kept = [each for each in field if each.name in wanted]
    kept = [type(each).FromString(each.SerializeToString()) for each in kept]
    del field[:]
    field.extend(kept)
  called = {node.op_type for node in graph.node}
  functions = [each for each in model.functions if each.name in called]
  functions = [onnx.FunctionProto.FromString(each.SerializeToString()) for each in functions]
  del model.functions[:]
  model.functions.extend(functions)
  drop_imports(model)
  given = {each.name for each in graph.input}
  feeds = [{name: array for name, array in each.items() if name in given} for each in feeds]
  options = dict(case.options)
  if "input_shapes" in options:
    options["input_shapes"] = {n: s for n, s in options["input_shapes"].items() if n in given}
  half = case.dtype in HALVES
  narrow = narrow_model(model, case.dtype, case.kept) if half else model
  return replace(case, model=narrow, wide=model if half else None, feeds=feeds, options=options)


def copy(case):
  result = onnx.ModelProto()
  result.CopyFrom(case.oracle)
  return result


def values_of(case, feeds=None):
  """Each value of the outermost graph, for one of the feeds; None where they can't be had."""
  model = copy(case)
  known = {each.name for each in model.graph.output}
  for node in model.graph.node:
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name and name not in known)
    known.update(node.output)
  try:
    found = run(make_session(model), case.feeds[0] if feeds is None else feeds)
  except Exception:
    return None
  return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}


def with_outputs(case, names, values):
  model = copy(case)
  known = {each.name: each for each in case.oracle.graph.output}
  del model.graph.output[:]
  for name in names:
    array = values[name]
    model.graph.output.append(
      known[name] if name in known else helper.make_tensor_value_info(name, to_onnx(array.dtype), [None] * array.ndim)
    )
  return rebuilt(case, model, case.feeds)


def without(case, span):
  """The case with the values of some nodes given from outside."""
  nodes = list(case.oracle.graph.node)
  gone = [nodes[index] for index in span if index < len(nodes)]
  outputs = {each.name for each in case.oracle.graph.output}
  if not gone or any(outputs & set(node.output) for node in gone):
    return None
  if all(node.op_type == "Constant" for node in gone):
    return None
  values = [values_of(case, feeds) for feeds in case.feeds]
  model = copy(case)
  kept = [node for node in model.graph.node if not any(set(node.output) & set(each.output) for each in gone)]
  kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
  read = {name for node in kept for name in reads(node)}
  del model.graph.node[:]
  model.graph.node.extend(kept)
  feeds = [dict(each) for each in case.feeds]
  for name in (name for node in gone for name in node.output if name in read):
    arrays = [each.get(name) if each else None for each in values]
    if any(array is None for array in arrays):
      return None
    shape = [
      sizes[0] if len(set(sizes)) == 1 else None
      for sizes in zip(*(array.shape for array in arrays if array is not None), strict=True)
    ]
    model.graph.input.append(helper.make_tensor_value_info(name, to_onnx(arrays[0].dtype), shape))
    for each, array in zip(feeds, arrays, strict=True):
      each[name] = array
  return rebuilt(case, model, feeds)


def bypassed(case, at):
  values = values_of(case)
  node = case.oracle.graph.node[at]
  if values is None or len([name for name in node.output if name]) != 1:
    return
  values = {**{t.name: to_array(t) for t in case.oracle.graph.initializer}, **case.feeds[0], **values}
  made = values.get(node.output[0])
  if made is None or node.output[0] in {each.name for each in case.oracle.graph.output}:
    return
  for name in node.input:
    array = values.get(name)
    if array is None or array.shape != made.shape or array.dtype != made.dtype:
      continue
    model = copy(case)
    del model.graph.node[at]
    for other in model.graph.node:
      replace_reads(other, node.output[0], name)
    yield rebuilt(case, model, case.feeds)


def replace_reads(node, old, new):
  for index, name in enumerate(node.input):
    if name == old:
      node.input[index] = new
  for attribute in node.attribute:
    if attribute.type == AttributeProto.GRAPH:
      for inner in attribute.g.node:
        replace_reads(inner, old, new)
      for each in attribute.g.output:
        each.name = new if each.name == old else each.name


def sizes_of(case):
  found = {size for feeds in case.feeds for array in feeds.values() for size in array.shape}
  return {size for size in found | {s for t in case.oracle.graph.initializer for s in t.dims} if size > 1}


def resized(case, size, smaller, how):
  """Each axis of this size gets a smaller one. `how`: 0 numbers too, 1 attributes as well, 2 shapes alone."""

  def array(values):
    for axis, length in enumerate(values.shape):
      if length == size:
        values = np.take(values, range(smaller), axis)
    if how < 2 and values.dtype == np.int64 and values.size <= 8:
      values = np.where(values == size, smaller, values)
    return np.ascontiguousarray(values)

  model = copy(case)
  for tensor in tensors(model.graph):
    tensor.CopyFrom(from_array(array(to_array(tensor)), tensor.name))
  for value in [*model.graph.input, *model.graph.output]:
    for dim in value.type.tensor_type.shape.dim:
      if dim.dim_value == size:
        dim.dim_value = smaller
  del model.graph.value_info[:]
  if how == 1:
    for node in model.graph.node:
      for attribute in node.attribute:
        for index, number in enumerate(attribute.ints):
          attribute.ints[index] = smaller if number == size else number
        if attribute.type == AttributeProto.INT and attribute.name in ("group", "num_groups"):
          attribute.i = smaller if attribute.i == size else attribute.i
  feeds = [{name: array(each) for name, each in given.items()} for given in case.feeds]
  result = rebuilt(case, model, feeds)
  if "input_shapes" in result.options:
    shapes = {n: list(feeds[0][n].shape) for n in result.options["input_shapes"]}
    result = replace(result, options={**result.options, "input_shapes": shapes})
  return result


def tensors(graph):
  yield from graph.initializer
  for node in graph.node:
    for attribute in node.attribute:
      if attribute.type == AttributeProto.TENSOR:
        yield attribute.t


def ones(case, name):
  model = copy(case)
  for tensor in model.graph.initializer:
    array = to_array(tensor)
    if tensor.name == name and array.dtype.kind == "f" and not (array == 1).all():
      tensor.CopyFrom(from_array(np.ones_like(array), name))
      return rebuilt(case, model, case.feeds)
  return None


def rounded(case, digits):
  def array(values):
    return np.round(values, digits) + 0.0 if values.dtype.kind == "f" else values

  model = copy(case)
  for tensor in tensors(model.graph):
    tensor.CopyFrom(from_array(array(to_array(tensor)), tensor.name))
  return rebuilt(case, model, [{name: array(each) for name, each in given.items()} for given in case.feeds])


def renamed(case):
  """The case with short names; none where bodies or functions have names of their own."""
  model = copy(case)
  if any(each.type == AttributeProto.GRAPH for node in model.graph.node for each in node.attribute):
    return None
  order = [each.name for each in [*model.graph.input, *model.graph.initializer]]
  order += [name for node in model.graph.node for name in node.output if name]
  letters = "xabcdefghijklmnopqrstuvwyz"
  names = {name: letters[i] if i < 26 else f"v{i}" for i, name in enumerate(dict.fromkeys(order))}
  for each in [*model.graph.input, *model.graph.initializer, *model.graph.output, *model.graph.value_info]:
    each.name = names.get(each.name, each.name)
  for node in model.graph.node:
    node.name = ""
    for field in (node.input, node.output):
      for index, name in enumerate(field):
        field[index] = names.get(name, name)
  kept = frozenset(names.get(name, name) for name in case.kept)
  options = dict(case.options)
  if "input_shapes" in options:
    options["input_shapes"] = {names.get(n, n): shape for n, shape in options["input_shapes"].items()}
  feeds = [{names.get(n, n): array for n, array in each.items()} for each in case.feeds]
  return rebuilt(replace(case, kept=kept, options=options), model, feeds)
