"""What ONNX Runtime runs though ONNX does not allow it, put into the valid form of the same meaning.

The meaning of each is the one that it has in ONNX Runtime (its sessions were asked, version 1.32):

- nodes in any order: they are sorted;
- the domain `ai.onnx` spelled out on nodes and imports: it is the domain '';
- a domain imported twice: the last import counts;
- no import of one of ONNX Runtime's own domains: it knows one version of each;
- a local function that imports another opset than its model: its nodes are of the model's;
- IR version 3 with initializers that are no inputs: IR version 4, in which none has to be. None could be overridden;
- sparse constants whose indices are not int64 or not sorted.

What else ONNX Runtime takes, inputs and outputs without a shape among it, needs no change: see `modelcheck`.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from ..errors import ModelError
from ..graph import walk_graphs, walk_nodes
from ..graph.messages import bodies, copied, without_initializers

# Of ONNX Runtime's own, with the one version of each.
DOMAINS = {
  "com.microsoft": 1,
  "com.microsoft.nchwc": 1,
  "com.microsoft.experimental": 1,
  "org.pytorch.aten": 1,
  "ai.onnx.training": 1,
  "ai.onnx.preview.training": 1,
}

_INDICES = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)
_SHOWN = 6  # nodes of a cycle


def normalise(model: ModelProto) -> None:
  """Does all of it in place. Its tensors must have been checked. Raises ModelError where nodes form a cycle."""
  _spell_domains(model)
  _add_imports(model)
  versions = {each.domain: each.version for each in model.opset_import}
  for function in model.functions:
    for entry in function.opset_import:
      if not entry.domain and "" in versions:
        entry.version = versions[""]
  _free_initializers(model)
  for graph in walk_graphs(model.graph):
    for sparse in graph.sparse_initializer:
      _put_indices_right(sparse)
  for node in walk_nodes(model):
    for attribute in node.attribute:
      if attribute.type == AttributeProto.SPARSE_TENSOR:
        _put_indices_right(attribute.sparse_tensor)
  for graph in list(walk_graphs(model.graph)):
    _sort(graph)


def normalised(model: ModelProto) -> ModelProto:
  """The model in its valid form: itself if that is what it has, else a copy."""
  names = without_initializers(model)  # all that `normalise` looks at
  names.graph.initializer.extend(TensorProto(name=each.name) for each in model.graph.initializer)
  before = names.SerializeToString(deterministic=True)
  normalise(names)
  if names.SerializeToString(deterministic=True) == before:
    return model
  result = copied(model)
  normalise(result)
  return result


def _spell_domains(model: ModelProto) -> None:
  for holder in (model, *model.functions):
    entries = {"" if each.domain == "ai.onnx" else each.domain: each.version for each in holder.opset_import}
    if len(entries) == len(holder.opset_import) and all(each.domain in entries for each in holder.opset_import):
      continue
    del holder.opset_import[:]
    for domain, version in entries.items():
      holder.opset_import.add(domain=domain, version=version)
  for node in walk_nodes(model):
    if node.domain == "ai.onnx":
      node.domain = ""


def _add_imports(model: ModelProto) -> None:
  functions = {each.domain for each in model.functions}  # a model may define functions in any domain
  used = {node.domain for node in walk_nodes(model)} - functions
  for holder in (model, *model.functions):
    missing = used - {each.domain for each in holder.opset_import}
    for domain in sorted(missing & DOMAINS.keys()):
      holder.opset_import.add(domain=domain, version=DOMAINS[domain])


def _free_initializers(model: ModelProto) -> None:
  graph = model.graph
  named = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
  inputs = {each.name for each in graph.input}
  if model.ir_version != 3 or named <= inputs:
    return
  model.ir_version = 4
  for index in reversed(range(len(graph.input))):
    if graph.input[index].name in named:
      del graph.input[index]


def _put_indices_right(sparse: SparseTensorProto) -> None:
  kind = sparse.indices.data_type
  if kind not in _INDICES:
    return
  indices = numpy_helper.to_array(sparse.indices).astype(np.int64)
  keys = indices.T[::-1] if indices.ndim == 2 else indices[None]
  order = np.lexsort(keys) if indices.ndim in (1, 2) and indices.size else np.arange(len(indices))
  ordered = bool((order == np.arange(len(order))).all())
  if kind == TensorProto.INT64 and ordered:
    return
  sparse.indices.CopyFrom(numpy_helper.from_array(indices[order], sparse.indices.name))
  if not ordered:
    values = numpy_helper.to_array(sparse.values)
    if values.shape == order.shape:
      sparse.values.CopyFrom(numpy_helper.from_array(values[order], sparse.values.name))


# ---- order of nodes


def _sort(graph: GraphProto) -> None:
  """Puts the nodes in topological order, each as early as it stands in the file; nothing if they are."""
  makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
  needed = [sorted({makers[name] for name in _reads(node) if name in makers}) for node in graph.node]
  if all(not each or each[-1] < index for index, each in enumerate(needed)):
    return
  readers: list[list[int]] = [[] for _ in needed]
  for index, each in enumerate(needed):
    for maker in each:
      readers[maker].append(index)
  waiting = [len(each) for each in needed]
  ready = [index for index, count in enumerate(waiting) if not count]
  order = []
  while ready:
    index = heapq.heappop(ready)
    order.append(index)
    for reader in readers[index]:
      waiting[reader] -= 1
      if not waiting[reader]:
        heapq.heappush(ready, reader)
  if len(order) < len(needed):
    raise ModelError(f"its nodes form a cycle: {_cycle(graph.node, needed, waiting)}; export the model again")
  nodes = GraphProto()
  nodes.node.extend(graph.node[index] for index in order)
  del graph.node[:]
  graph.node.extend(nodes.node)


def _reads(node: NodeProto) -> Iterator[str]:
  """The names of what a node reads, in its bodies those of values that are not made there."""
  yield from node.input
  for body in bodies(node):
    yield from _free_names(body)


def _free_names(graph: GraphProto) -> Iterable[str]:
  made = {each.name for each in (*graph.input, *graph.initializer)}
  made.update(each.values.name for each in graph.sparse_initializer)
  made.update(name for node in graph.node for name in node.output)
  read = {each.name for each in graph.output}
  for node in graph.node:
    read.update(_reads(node))
  return read - made


def _cycle(nodes: Sequence[NodeProto], needed: Sequence[Sequence[int]], waiting: Sequence[int]) -> str:
  """The nodes of one cycle, each before the one that reads it; those in the way are the ones that still wait."""
  path = [next(index for index, count in enumerate(waiting) if count)]
  while path.count(path[-1]) == 1:
    path.append(next(index for index in needed[path[-1]] if waiting[index]))
  cycle = path[path.index(path[-1]) :][::-1]
  shown = [f"'{nodes[i].name or nodes[i].output[0]}' ({nodes[i].op_type})" for i in cycle]
  return " -> ".join(shown if len(shown) <= _SHOWN else [*shown[: _SHOWN - 1], "...", shown[-1]])
