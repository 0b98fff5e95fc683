"""What is known of one graph's values, and the order of its nodes: all that passes ask and the one way they edit."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import numpy_helper
from onnx_graphsurgeon.ir.tensor import LazyValues

from ..arrays import Array
from ..program import DTYPE_NAMES
from .convert import all_graphs, is_external, local_functions
from .domains import DEFAULT_DOMAINS
from .labels import label
from .malformed import is_malformed
from .order import tensors_read
from .shapes import Shape, broadcasts_to, equal

CONSTANT_ELEMENTS = 1024  # constants up to this size are looked at
KEEPS_SHAPE = ("Cast", "Identity", "Relu", "Sigmoid", "Tanh", "Erf", "Gelu", "Softmax", "LayerNormalization")


def optional_input(node: gs.Node, index: int) -> gs.Tensor | None:
  """An input that may be left out."""
  return node.inputs[index] if index < len(node.inputs) and not node.inputs[index].is_empty() else None


class Scope:
  """One graph, outermost or a body, while a pass works on it.

  Nodes stay in topological order throughout. `flush` writes them back to the graph.
  """

  def __init__(
    self, graph: gs.Graph, within: Sequence[gs.Graph], functions: frozenset[tuple[str, str]], names: "_Names"
  ) -> None:
    """`within`: the graph and the bodies in it."""
    self.graph = graph
    self.opset: int = graph.opset or 0
    self._functions = functions
    self._names = names
    self.slots: list[gs.Node | None] = list(graph.nodes)
    self.position = {id(node): index for index, node in enumerate(graph.nodes)}
    self._outputs = {id(tensor) for each in within for tensor in each.outputs}
    # What graph/lengths.py found since the last edit. It keeps tensors: another could have the id of one.
    self.lengths: dict[tuple[int, int], tuple[gs.Tensor, Any]] = {}
    self.disputed: frozenset[str] | None = None  # since then, by graph/disputed.py

  # Nodes

  def op(self, node: gs.Node) -> str:
    """The operator: 'Add' for ai.onnx, 'com.microsoft::Gelu' for another domain.

    '' for a local function's call, and for a node that is not as its operator is defined (graph/malformed.py).
    """
    op: str = node.op
    domain = node.domain or ""
    if domain in DEFAULT_DOMAINS:
      domain = ""
    if self._functions and (domain, op) in self._functions:
      return ""
    if domain:
      return f"{domain}::{op}"
    return "" if is_malformed(node, self.opset) else op

  def producer(self, tensor: gs.Tensor, *operators: str) -> gs.Node | None:
    """The node of this graph that makes the tensor; None for an input, a constant or an outer graph's value.

    `operators`: None, too, where it is none of these.
    """
    node = next((node for node in tensor.inputs if id(node) in self.position), None)
    return node if node is None or not operators or self.op(node) in operators else None

  def consumers(self, tensor: gs.Tensor) -> list[gs.Node]:
    """The nodes of this graph that read the tensor, each once, in order."""
    found = {id(node): node for node in tensor.outputs if id(node) in self.position}
    return sorted(found.values(), key=lambda node: self.position[id(node)])

  def used_beyond(self, tensor: gs.Tensor, nodes: Iterable[gs.Node]) -> str:
    """Who else needs the tensor, besides these nodes of this graph: a phrase for a report; '' if nobody."""
    within = {id(node) for node in nodes}
    if id(tensor) in self._outputs:
      return f"'{tensor.name}' is a graph output"
    for node in tensor.outputs:
      if id(node) not in self.position:
        return f"'{tensor.name}' is also used inside a body, by {label(node)}"
      if id(node) not in within:
        return f"'{tensor.name}' is also used by {label(node)}"
    return ""

  def depends_on(self, tensor: gs.Tensor, node: gs.Node) -> bool:
    """Whether the tensor can only be computed after `node`, a node of this graph."""
    first = self.position[id(node)]
    stack, seen = [tensor], set()
    while stack:
      for producer in stack.pop().inputs:
        at = self.position.get(id(producer), -1)
        if producer is node:
          return True
        if at > first and at not in seen:
          seen.add(at)
          stack.extend(tensors_read(producer))
    return False

  # Values

  def constant(self, tensor: gs.Tensor, elements: int = CONSTANT_ELEMENTS) -> Array | None:
    """The value, if it is a constant of at most so many elements that no caller may override; else None."""
    if not isinstance(tensor, gs.Constant):
      producer = self.producer(tensor, "Constant")
      return None if producer is None else held_by(producer, elements)
    return value_of(tensor, elements)

  def is_constant(self, tensor: gs.Tensor) -> bool:
    """Whether the value is a constant of any size."""
    return isinstance(tensor, gs.Constant) or self.producer(tensor, "Constant") is not None

  def scalar(self, tensor: gs.Tensor) -> float | None:
    """The number that a constant with one element holds, whatever its rank and numeric dtype; else None."""
    array = self.constant(tensor, 1)
    if array is None or array.size != 1 or array.dtype == object or array.dtype.kind in "SUbc":
      return None
    return float(array.reshape(()).astype(np.float64))

  def axes(self, node: gs.Node) -> list[int] | None:
    """The axes of a reduction, Squeeze or Unsqueeze, an attribute or its second input: as they are given, [] where none
    are; None where they are no constant.
    """
    given, tensor = node.attrs.get("axes"), optional_input(node, 1)
    if given is None and tensor is not None and (given := self.constant(tensor)) is None:
      return None
    return [] if given is None else [int(axis) for axis in np.reshape(given, -1)]  # ONNX Runtime takes a scalar, too

  def dtype(self, tensor: gs.Tensor) -> str | None:
    """The dtype in the language of programs; None if unknown or not in it."""
    return None if tensor.dtype is None else DTYPE_NAMES.get(np.dtype(tensor.dtype))

  def shape(self, tensor: gs.Tensor) -> Shape | None:
    """The shape as far as it is known."""
    return None if tensor.shape is None else tuple(tensor.shape)

  def rank(self, tensor: gs.Tensor) -> int | None:
    """The number of dimensions; None if unknown."""
    return None if tensor.shape is None else len(tensor.shape)

  def same_shape(self, a: gs.Tensor, b: gs.Tensor) -> bool:
    """Whether both have the same shape in every run."""
    return equal(self.shape(a), self.shape(b)) or self._shape_root(a) is self._shape_root(b)

  def same_value(self, a: gs.Tensor, b: gs.Tensor, elements: int = CONSTANT_ELEMENTS) -> bool:
    """Whether both are one tensor, are left out, or are constants of the same bits, of at most so many elements."""
    if a is b or (a.is_empty() and b.is_empty()):
      return True
    if not self.is_constant(a) or not self.is_constant(b) or self.shape(a) != self.shape(b):
      return False
    left = self.constant(a, elements)
    right = self.constant(b, elements) if left is not None else None
    if left is None or right is None or left.dtype != right.dtype or left.shape != right.shape:
      return False
    if left.dtype == object:
      return bool((left == right).all())
    return left.tobytes() == right.tobytes()  # so that -0 differs from 0 and NaN does not from NaN

  def broadcasts_to(self, a: gs.Tensor, b: gs.Tensor) -> bool:
    """Whether `a`, combined with `b`, surely gives b's shape."""
    return broadcasts_to(self.shape(a), self.shape(b)) or self.same_shape(a, b)

  def _shape_root(self, tensor: gs.Tensor) -> gs.Tensor:
    """The value from which operators that keep the shape lead to this one."""
    while (producer := self.producer(tensor, *KEEPS_SHAPE)) is not None and tensor is producer.outputs[0]:
      tensor = producer.inputs[0]
    return tensor

  # Edits

  def forget(self) -> None:
    """Drops what was found: nodes or shapes are about to change, or have changed."""
    self.lengths.clear()
    self.disputed = None

  def _before_edit(self) -> None:
    self.forget()
    self._names.read()

  def unique(self, name: str) -> str:
    """`name`, with a number if another value or node of the model has it.

    ONNX Runtime loads no model in which two nodes have one name. So what an edit adds is named here or after a node
    that it removes, never after a value alone: converters name nodes like their outputs.
    """
    return self._names.take(name)

  def like(self, tensor: gs.Tensor, suffix: str, shape: Shape | None) -> gs.Variable:
    """A new tensor of this one's dtype and of `shape`, named after it."""
    return gs.Variable(self.unique(f"{tensor.name}_{suffix}"), tensor.dtype, shape)

  def replace(self, old: Sequence[gs.Node], new: gs.Node | Sequence[gs.Node], outputs: Sequence[gs.Tensor]) -> None:
    """Puts `new`, one node or as many as `old` at most, in the place of `old`; the last takes over their `outputs`.

    Between the first and the last of `old`, what `new` needs moves before it and the rest after it, so nothing
    that it needs may depend on it.
    """
    made = [new] if isinstance(new, gs.Node) else list(new)
    at = [self.position[id(node)] for node in old]
    low, high = min(at), max(at)
    for node in old:
      self.remove(node)
    made[-1].outputs.extend(outputs)
    between = [node for node in self.slots[low : high + 1] if node is not None]
    needed = set().union(*(self._ancestors(node, low) for node in made))
    before = [node for node in between if id(node) in needed]
    after = [node for node in between if id(node) not in needed]
    ordered = [*before, *made, *after]
    self.slots[low : high + 1] = ordered + [None] * (high + 1 - low - len(ordered))
    self.position.update({id(node): low + index for index, node in enumerate(ordered)})

  def _ancestors(self, node: gs.Node, low: int) -> set[int]:
    """The ids of the nodes from position `low` on that `node` needs."""
    found: set[int] = set()
    stack = [node]
    while stack:
      for tensor in tensors_read(stack.pop()):
        for producer in tensor.inputs:
          if self.position.get(id(producer), -1) >= low and id(producer) not in found:
            found.add(id(producer))
            stack.append(producer)
    return found

  def insert(self, new: gs.Node, before: gs.Node) -> None:
    """Puts a new node before another. What it reads must be there by then."""
    self._insert(new, self.position[id(before)])

  def insert_after(self, new: gs.Node, after: gs.Node) -> None:
    """Puts a new node right after another."""
    self._insert(new, self.position[id(after)] + 1)

  def _insert(self, new: gs.Node, at: int) -> None:
    self._before_edit()
    self.slots.insert(at, new)
    self.position.update({id(node): at + i for i, node in enumerate(self.slots[at:]) if node is not None})

  def remove(self, node: gs.Node) -> None:
    """Takes a node out of the graph. Its outputs remain, without a producer."""
    self._before_edit()
    self.slots[self.position.pop(id(node))] = None
    _detach(node)

  def add_constant(self, array: Array, hint: str) -> gs.Constant:
    """A new initializer of this graph."""
    constant = gs.Constant(self.unique(hint), np.ascontiguousarray(array).reshape(array.shape))
    if "constants" not in vars(self.graph):
      self.graph.constants = {}
    self.graph.constants[constant.name] = constant
    return constant

  def substitute(self, old: gs.Tensor, new: gs.Tensor) -> None:
    """Makes every node that reads `old`, in bodies too, read `new`."""
    self._before_edit()
    for node in list(old.outputs):
      for index, tensor in enumerate(list(node.inputs)):
        if tensor is old:
          node.inputs[index] = new

  def is_output(self, tensor: gs.Tensor) -> bool:
    """Whether the tensor is an output of this graph or of a body in it."""
    return id(tensor) in self._outputs

  def flush(self) -> None:
    """Writes the nodes back to the graph."""
    self.graph.nodes = [node for node in self.slots if node is not None]


class _Names:
  """Of all values and nodes of the model, shared by its scopes, read before the first edit: most passes make none."""

  def __init__(self, graph: gs.Graph) -> None:
    self._graph = graph
    self._taken: set[str] = set()
    self._next: dict[str, int] = {}

  def take(self, name: str) -> str:
    self.read()
    found, number = name, self._next.get(name, 2)
    while found in self._taken:
      found, number = f"{name}_{number}", number + 1
    self._taken.add(found)
    self._next[name] = number
    return found

  def read(self) -> None:
    """Takes them from the graph as it is, if that was not done."""
    if self._taken:
      return
    for each in all_graphs(self._graph):
      self._taken.update(node.name for node in each.nodes)
      self._taken.update(tensor.name for node in each.nodes for tensor in (*node.inputs, *node.outputs))
      self._taken.update(tensor.name for tensor in (*each.inputs, *each.outputs))
      self._taken.update((vars(each).get("constants") or {}).keys())


def scopes(graph: gs.Graph) -> Iterator[Scope]:
  """A Scope for the graph and for every body in it, outer before inner; each is flushed when left."""
  functions, names = local_functions(graph), _Names(graph)
  graphs = list(all_graphs(graph))
  for each in graphs:
    scope = Scope(each, graphs if each is graph else list(all_graphs(each)), functions, names)
    yield scope
    scope.flush()


def _detach(node: gs.Node) -> None:
  for value in node.attrs.values():
    if isinstance(value, gs.Graph):
      for inner in value.nodes:
        _detach(inner)
  # graphsurgeon's own clear() compares nodes by value, which takes long where a tensor has many consumers.
  for tensors, other_end in ((node.inputs, "outputs"), (node.outputs, "inputs")):
    for tensor in tensors:
      neighbours = getattr(tensor, other_end)
      list.pop(neighbours, next(index for index, neighbour in enumerate(neighbours) if neighbour is node))
    list.clear(tensors)


def value_of(constant: gs.Constant, elements: int) -> Array | None:
  """What a Constant of at most so many elements holds; None for a larger one. gs.Constant.values would decode it."""
  values = constant._values
  if values.dtype is None or math.prod(values.shape) > elements:
    return None
  if not isinstance(values, LazyValues):
    return np.asarray(values)
  return None if is_external(values.tensor) else numpy_helper.to_array(values.tensor)


def held_by(node: gs.Node, elements: int) -> Array | None:
  """What the operator Constant gives, as `value_of`."""
  attributes = node.attrs
  if isinstance(attributes.get("value"), gs.Constant):
    return value_of(attributes["value"], elements)
  for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
    if name in attributes:
      return np.array(attributes[name], dtype)
    if f"{name}s" in attributes and len(attributes[f"{name}s"]) <= elements:
      return np.array(attributes[f"{name}s"], dtype)
  return None


def known_values(tensor: gs.Tensor, elements: int) -> Array | None:
  """What a Constant or the output of an operator Constant holds, as `value_of`; None of anything else."""
  if isinstance(tensor, gs.Constant):
    return value_of(tensor, elements)
  maker = tensor.inputs[0] if tensor.inputs else None
  return held_by(maker, elements) if maker is not None and maker.op == "Constant" else None
