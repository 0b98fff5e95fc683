"""Models in another precision: the plan carried out, with one Cast for each value at each border."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from onnx import helper

from ..graph import DOMAIN, Scope, label, scopes
from ..passes.base import Change, NearMiss, PassResult
from ..report import CONVERSION
from . import Dtype, Precision, programs, roles
from .plan import ANY_SIZE, Plan, Request, bodies, floating, is_edge, make_plan, overridable
from .ranges import converted


@dataclass(frozen=True)
class ConvertPrecision:
  """A pass that gives operators the request's dtype, one change for each.

  `io`: inputs and outputs of the graph change too, but for overridable initializers.
  """

  request: Request
  io: bool = False
  name: str = CONVERSION
  summary: str = "floating operators compute in another dtype"

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Converts the first `limit` operators of the outermost graph that may be."""
    scope = next(scopes(graph))
    plan = make_plan(graph, scope, self.request)
    chosen = [node for node in graph.nodes if id(node) in plan.narrow][:limit]
    misses = [NearMiss(CONVERSION, label(n), plan.kept[id(n)]) for n in graph.nodes if plan.kept.get(id(n))]
    short = self.request.target.dtype.name
    changes = [Change(CONVERSION, (label(node),), f"{label(node)} in {short}") for node in chosen]
    kept = {id(node): plan.narrow[id(node)] for node in chosen}
    io = self.io and (limit is None or limit > len(chosen))
    editor = _Editor(graph, scope, Plan(kept, plan.kept), self.request.target, io)
    changes += [Change(CONVERSION, (f"'{name}'",), f"'{name}' in {short}") for name in editor.edit()]
    return PassResult(tuple(changes), tuple(misses))


@dataclass
class _Editor:
  """Writes the graph's nodes anew, in order.

  A value has one dtype when it is made; `forms` holds it and its Casts, by the value's id and dtype.
  """

  graph: gs.Graph
  scope: Scope
  plan: Plan
  target: Precision
  io: bool  # whether inputs and outputs change too
  forms: dict[tuple[int, Dtype], gs.Tensor] = field(default_factory=dict)
  native: dict[int, Dtype] = field(default_factory=dict)  # dtypes before, by the value's id
  made: dict[int, gs.Tensor] = field(default_factory=dict)  # the form that an operator makes, by the value's id
  nodes: list[gs.Node] = field(default_factory=list)

  def edit(self) -> list[str]:
    """Carries the plan out; returns the names of inputs and outputs that changed."""
    changed: list[str] = []
    for node in self.graph.nodes:
      for tensor in floating([*node.inputs, *node.outputs], self.target):
        self.native[id(tensor)] = np.dtype(tensor.dtype)
    outputs = {id(tensor): tensor for tensor in self.graph.outputs}
    for tensor in floating(self.graph.inputs, self.target):
      self.native[id(tensor)] = np.dtype(tensor.dtype)
      if self.io and not overridable(tensor) and id(tensor) not in outputs:
        self._retype(tensor)
        changed.append(tensor.name)
      self._is_made(tensor, np.dtype(tensor.dtype), tensor)
    whole = self._narrow_constants()
    if not self.plan.narrow and not changed and not (self.io and any(floating(self.graph.outputs, self.target))):
      return changed
    for node in list(self.graph.nodes):
      self._append(node, outputs, whole)
    changed += self._finish(outputs)
    self.graph.nodes = self.nodes
    self.scope.slots = list(self.nodes)
    self.scope.position = {id(node): index for index, node in enumerate(self.nodes)}
    return changed

  # One node

  def _append(self, node: gs.Node, outputs: dict[int, gs.Tensor], whole: set[int]) -> None:
    narrow_in, narrow_out = self.plan.narrow.get(id(node), ((), ()))
    if id(node) in self.plan.narrow:
      self._set_attributes(node)
    for index, tensor in enumerate(node.inputs):
      if id(tensor) not in self.native or id(tensor) in whole:
        continue
      if is_edge(node, self.target):
        made = self.made.get(id(tensor), tensor)
      else:
        made = self._form(tensor, self.target.dtype if index in narrow_in else self.native[id(tensor)])
      if made is not tensor:
        node.inputs[index] = made
    for body in bodies(node):
      self._restore_captured(body)
    self.nodes.append(node)
    for index, tensor in enumerate(list(node.outputs)):
      if id(tensor) not in self.native:
        continue
      dtype = self.target.dtype if index in narrow_out else self.native[id(tensor)]
      wanted = self.target.dtype if self.io else self.native[id(tensor)]
      if id(tensor) in outputs and dtype != wanted:  # the name belongs to the Cast that makes the output
        inner = gs.Variable(self.scope.unique(f"{tensor.name}_{dtype.name}"), dtype, tensor.shape)
        node.outputs[index] = inner
        self._is_made(tensor, dtype, inner)
      else:
        if dtype != self.native[id(tensor)]:
          self._retype(tensor)
        self._is_made(tensor, dtype, tensor)
    if is_edge(node, self.target) and node.inputs[0].dtype == self.target.dtype:
      made = node.outputs[0]  # from the target's dtype to one that becomes it: both forms are there
      if id(made) in self.native:
        self.forms.setdefault((id(made), self.target.dtype), node.inputs[0])

  def _set_attributes(self, node: gs.Node) -> None:
    if (node.domain or "") == DOMAIN and "program" in node.attrs:
      slots = self.plan.narrow[id(node)]
      weights = programs.weight_dtype(node, slots, self.target)
      node.attrs["program"] = str(programs.converted_program(node, slots, self.target))
      if weights is not None:
        node.attrs["weight_dtype"] = weights
    elif node.op == "Cast":
      node.attrs["to"] = helper.np_dtype_to_tensor_dtype(self.target.dtype)
    elif node.op == "ConstantOfShape" and isinstance(node.attrs.get("value"), gs.Constant):
      node.attrs["value"] = gs.Constant("value", converted(np.asarray(node.attrs["value"].values), self.target))
    elif node.op == "ConstantOfShape":
      node.attrs["value"] = gs.Constant("value", np.zeros(1, self.target.dtype))

  def _retype(self, tensor: gs.Tensor) -> None:
    tensor.dtype = self.target.dtype
    tensor.retyped = True  # its description in the model is no longer right

  # Values

  def _is_made(self, tensor: gs.Tensor, dtype: Dtype, made: gs.Tensor) -> None:
    self.forms[id(tensor), dtype] = self.made[id(tensor)] = made

  def _form(self, tensor: gs.Tensor, dtype: Dtype) -> gs.Tensor:
    """The value in this dtype, by a Cast if need be."""
    key = (id(tensor), dtype)
    if key not in self.forms:
      if (values := self.scope.constant(tensor, ANY_SIZE)) is not None:
        same = values.dtype == dtype
        self.forms[key] = tensor if same else self.scope.add_constant(converted(values, self.target), tensor.name)
      else:
        self.forms[key] = self._cast(self.made.get(id(tensor), tensor), self._named(tensor, dtype))
    return self.forms[key]

  def _named(self, tensor: gs.Tensor, dtype: Dtype) -> gs.Variable:
    """The value's own name is free again where it is an output that something else makes."""
    if not tensor.inputs and any(tensor is each for each in self.graph.outputs) and dtype == np.dtype(tensor.dtype):
      assert isinstance(tensor, gs.Variable)
      return tensor
    return gs.Variable(self.scope.unique(f"{tensor.name}_{dtype.name}"), dtype, tensor.shape)

  def _cast(self, source: gs.Tensor, result: gs.Variable) -> gs.Variable:
    to = helper.np_dtype_to_tensor_dtype(np.dtype(result.dtype))
    name = self.scope.unique(f"{result.name}/Cast")
    self.nodes.append(gs.Node("Cast", name, {"to": to}, [source], [result]))
    return result

  def _narrow_constants(self) -> set[int]:
    """Converts the constants of which only the narrow form is read, in place; returns their ids."""
    uses: dict[int, tuple[gs.Constant, bool]] = {}
    if (self.graph.ir_version or 0) < 4:  # these are inputs as well, of a dtype of their own
      return set()

    def note(tensor: gs.Tensor, narrow: bool) -> None:
      if isinstance(tensor, gs.Constant) and roles.is_floating(tensor.dtype, self.target):
        uses[id(tensor)] = (tensor, narrow and uses.get(id(tensor), (tensor, True))[1])

    for node in self.graph.nodes:
      narrow_in = self.plan.narrow.get(id(node), ((), ()))[0]
      for index, tensor in enumerate(node.inputs):
        note(tensor, index in narrow_in)
      for tensor in _captured(node):
        note(tensor, False)
    for tensor in self.graph.outputs:
      note(tensor, False)
    found = {key: tensor for key, (tensor, narrow) in uses.items() if narrow}
    for tensor in found.values():
      if (values := self.scope.constant(tensor, ANY_SIZE)) is None:
        continue
      tensor.retyped = True
      tensor._values = np.ascontiguousarray(converted(values, self.target)).reshape(values.shape)
    return set(found)

  def _restore_captured(self, body: gs.Graph) -> None:
    """Lets a body read the values around it in the dtypes that they had."""
    for node in body.nodes:
      for index, tensor in enumerate(node.inputs):
        if id(tensor) in self.native:
          made = self._form(tensor, self.native[id(tensor)])
          if made is not tensor:
            node.inputs[index] = made
      for inner in bodies(node):
        self._restore_captured(inner)
    for index, tensor in enumerate(body.outputs):
      if id(tensor) in self.native:
        body.outputs[index] = self._form(tensor, self.native[id(tensor)])

  def _finish(self, outputs: dict[int, gs.Tensor]) -> list[str]:
    """Makes the outputs that nothing has made yet; returns the names of those that changed."""
    changed = []
    for key, tensor in outputs.items():
      if key not in self.native or isinstance(tensor, gs.Constant) or any(tensor is t for t in self.graph.inputs):
        continue
      wanted = self.target.dtype if self.io else self.native[key]
      if wanted != self.native[key]:
        changed.append(tensor.name)
      if self.forms.get((key, wanted)) is tensor:
        continue
      if wanted != np.dtype(tensor.dtype):
        self._retype(tensor)
      if (existing := self.forms.get((key, wanted))) is None:
        self._cast(self.made[key], tensor)
      else:  # a Cast read it in this dtype; the next passes let that one's input make the output
        self.nodes.append(gs.Node("Identity", self.scope.unique(f"{tensor.name}/Identity"), {}, [existing], [tensor]))
    return changed


def _captured(node: gs.Node) -> Iterator[gs.Tensor]:
  """What the bodies of a node read, their own values included."""
  for body in bodies(node):
    yield from body.outputs
    for inner in body.nodes:
      yield from inner.inputs
      yield from _captured(inner)
