"""onnx's shape inference in time and memory that a model's size bounds.

With data propagation onnx keeps the values of what may be a shape, one message per element, and it takes any tensor of
one dimension for a shape: Range(0, 5e7, 1) and an Add after it take gigabytes, Concat(c, c) doubles with every node.
Without it ranks may still grow without bound: Gather(x, x) of an x of rank r has rank 2r - 1. A bound on elements and
on ranks is therefore computed first, from the nodes alone; then

- a node that would propagate more than `ELEMENTS` becomes a call of a function of the same operator in a version, or
  of operators, that onnx infers the same shapes of but whose values it does not keep;
- a node whose result might have more than `RANK` dimensions gets a domain that onnx does not know;
- so does one of ai.onnx.ml and other domains than the standard one that onnx knows.

Whoever needs onnx.shape_inference calls this instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx.shape_inference
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, helper

from .bounds import ELEMENTS, RANK, RANK_OPERAND, UNKNOWN, Bound, constant_bound, declared_bound, result_bound, tightest
from .messages import bodies, standard_opset
from .shapes_only import DOMAIN as SHAPES_ONLY, OPAQUE, dtype_only, guarded_slice, shapes_only

ALL_ELEMENTS = 1 << 21  # of all values that are kept together, 100 MB
VISITS = 1 << 17  # of nodes in local functions, whose calls onnx goes into each time: they may stand for any number

# The opset from which onnx keeps what an operator computes.
KEPT_FROM = {
  **dict.fromkeys(("Add", "Sub", "Mul"), 14),
  **dict.fromkeys(("Cast", "Concat", "Slice", "Squeeze", "Unsqueeze"), 13),
  "Gather": 1,
}


def infer_shapes(model: ModelProto, strict: bool = False) -> ModelProto:
  """What onnx.shape_inference.infer_shapes(model, data_prop=True) returns, as far as it is bounded.

  Args:
      model: a skeleton of the caller's own; some of its nodes are replaced, which does not matter for value_info.
      strict: raise for nodes that contradict their operator's definition, in dtypes too.

  Raises what onnx raises.
  """
  work = _Bounds(model)
  work.graph(model.graph, {})
  for function in model.functions:
    work.keep_nothing(function)
  for holder in (model, *model.functions):
    for domain in (OPAQUE, SHAPES_ONLY):
      holder.opset_import.add(domain=domain, version=1)
  model.functions.extend(work.made.values())
  keep = work.kept <= ALL_ELEMENTS
  return onnx.shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=keep)


@dataclass
class _Bounds:
  """Goes over the nodes in order, bounds what they make, and replaces those that would make too much."""

  model: ModelProto
  made: dict[str, FunctionProto] = field(default_factory=dict)
  kept: int = 0
  visits: int = 0

  def __post_init__(self) -> None:
    self.opset = standard_opset(self.model)
    self.imported = {each.domain for each in self.model.opset_import}
    if self.imported & {"", "ai.onnx"}:
      self.imported |= {"", "ai.onnx"}
    self.functions = {(each.domain, each.name): each for each in self.model.functions}

  def graph(self, graph: GraphProto, outer: Mapping[str, Bound]) -> Bound:
    """Does it for a graph and the bodies in it. Returns a bound of all its outputs."""
    known = dict(outer)
    for info in (*graph.value_info, *graph.output, *graph.input):
      _drop_negative(info.type)
      known[info.name] = declared_bound(info.type)
    for tensor in graph.initializer:
      known[tensor.name] = constant_bound(tensor)
    declared = {name: bound for name, bound in known.items() if name not in outer}
    for node in graph.node:
      bound = self._node(node, known)
      for name in node.output:
        known[name] = tightest(bound, declared.get(name))
    outputs = [known.get(each.name, UNKNOWN) for each in graph.output]
    sizes = [each.elements for each in outputs]
    largest = None if None in sizes else max((size or 0 for size in sizes), default=0)
    return Bound(largest, max((each.rank for each in outputs), default=0))

  def _node(self, node: NodeProto, known: Mapping[str, Bound]) -> Bound:
    inputs = [known.get(name, UNKNOWN) for name in node.input]
    if (called := self.functions.get((node.domain, node.op_type))) is not None:
      rank = self._function(called, inputs)
      bound = Bound(None, rank)
    elif node.domain not in self.imported:  # onnx gives up on the whole model there
      node.domain = OPAQUE
      return UNKNOWN
    elif node.domain not in ("", "ai.onnx"):
      self._hide_other(node)
      return UNKNOWN
    else:
      bounds = [self.graph(body, known) for body in bodies(node)]
      bound = result_bound(node, inputs, max((each.rank for each in bounds), default=0))
      sizes = [each.elements for each in bounds]
      if node.op_type == "If" and sizes and None not in sizes:
        bound = Bound(max(size or 0 for size in sizes), bound.rank)
    if bound.rank > RANK or _asks_too_much(node):
      node.domain = OPAQUE
      return UNKNOWN
    since = 10 if node.op_type == "Slice" else KEPT_FROM.get(node.op_type, self.opset + 1)
    if node.domain in ("", "ai.onnx") and self.opset >= since:
      self._keep_or_not(node, inputs, bound)
    return bound

  def _function(self, function: FunctionProto, inputs: Sequence[Bound]) -> int:
    """The largest rank in the body of a local function that is called with these inputs; of too many calls, any."""
    known = dict(zip(function.input, inputs, strict=False))
    largest = 0
    for node in function.node:
      self.visits += 1
      if self.visits > VISITS:
        return RANK + 1
      arguments = [known.get(name, UNKNOWN) for name in node.input]
      if (called := self.functions.get((node.domain, node.op_type))) is not None:
        bound = Bound(None, self._function(called, arguments))
      elif _asks_too_much(node):
        bound = Bound(None, RANK + 1)
      elif node.domain not in ("", "ai.onnx"):
        bound = UNKNOWN
      elif any(True for _ in bodies(node)):
        # Their nodes are not replaced, so that they may be called with anything.
        bound = Bound(None, max(_rank_within(node), *(each.rank for each in arguments), 0))
      else:
        bound = result_bound(node, arguments, 0)
      largest = max(largest, bound.rank)
      if largest > RANK:
        break
      known.update(dict.fromkeys(node.output, bound))
    return largest

  def keep_nothing(self, function: FunctionProto) -> None:
    """Replaces the nodes of a local function, of whose calls nothing is known here, so that no value is kept."""
    opset = standard_opset(function) or self.opset
    known: dict[str, Bound] = {}
    for node in function.node:
      if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        known.update(dict.fromkeys(node.output, result_bound(node, (), 0)))
      self._keep_nothing(node, opset, known)

  def _keep_nothing(self, node: NodeProto, opset: int, known: Mapping[str, Bound]) -> None:
    for body in bodies(node):
      for inner in body.node:
        self._keep_nothing(inner, opset, known)
    self._hide_other(node)
    if node.domain not in ("", "ai.onnx") or opset < KEPT_FROM.get(node.op_type, opset + 1):
      return
    if any(each.ref_attr_name for each in node.attribute):
      node.domain = OPAQUE
    elif node.op_type == "Slice":
      self._call_guarded_slice(node)
    else:
      self._call_shapes_only(node, [known.get(name, UNKNOWN) for name in node.input])

  @staticmethod
  def _hide_other(node: NodeProto) -> None:
    """Keeps onnx from a node of another domain of its own, of which passes know nothing and need nothing.

    onnx's inference of them is less careful: that of TreeEnsemble dies where the type of its input is unknown.
    """
    if node.domain.startswith("ai.onnx."):
      node.domain = OPAQUE

  def _keep_or_not(self, node: NodeProto, inputs: Sequence[Bound], bound: Bound) -> None:
    given = [each for each, name in zip(inputs, node.input, strict=True) if name]
    unread = [each.exact and each.rank > 1 for each in given]  # onnx keeps nothing of two dimensions
    sizes = [each.elements for each, skipped in zip(given, unread, strict=True) if not skipped]
    if any(unread) and node.op_type != "Slice":
      sizes.append(0)  # nor what is made of them
    else:
      sizes.append(bound.elements)
    small = all([size is not None and size <= ELEMENTS for size in sizes])
    if node.op_type == "Slice":  # onnx takes bounds of it that it does not know for 0
      small = small and not any(unread) and all([each.integers is not None for each in given[1:]])
    if small:
      self.kept += sum([size or 0 for size in sizes])
    elif node.op_type == "Slice":
      self._call_guarded_slice(node)
    else:
      self._call_shapes_only(node, inputs)

  def _call_guarded_slice(self, node: NodeProto) -> None:
    count = len(node.input)
    inner, name = f"Slice_{count}_", f"GuardedSlice_{count}"
    if name not in self.made:
      self.made[inner] = shapes_only(inner, "Slice", count, [])
      self.made[name] = guarded_slice(name, count, inner)
    node.domain, node.op_type = SHAPES_ONLY, name

  def _call_shapes_only(self, node: NodeProto, inputs: Sequence[Bound]) -> None:
    """Makes the node a call of a function that has the same shapes."""
    op, attributes = node.op_type, {each.name: each for each in node.attribute}
    if op in ("Squeeze", "Unsqueeze"):
      axes = inputs[1].integers if len(inputs) > 1 and node.input[1] else None
      if axes is None and len(inputs) > 1 and node.input[1]:
        self.made.setdefault("DtypeOnly", dtype_only("DtypeOnly"))  # onnx infers no more of it either
        node.domain, node.op_type = SHAPES_ONLY, "DtypeOnly"
        del node.attribute[:]
        return
      del node.input[1:], node.attribute[:]
      if axes is not None:
        node.attribute.append(helper.make_attribute("axes", list(axes)))
    if op == "Gather":
      axis = attributes["axis"].i if "axis" in attributes else 0
      del node.attribute[:]
      node.attribute.append(helper.make_attribute("axis", axis if axis >= 0 else axis - 1))
    names = [each.name for each in node.attribute if each.name in ("axis", "axes", "to")]
    name = f"{op}_{len(node.input)}_{'_'.join(names)}"
    if name not in self.made:
      self.made[name] = shapes_only(name, op, len(node.input), names)
    node.domain, node.op_type = SHAPES_ONLY, name


def _drop_negative(kind: TypeProto) -> None:
  """Exporters write negative lengths for unknown ones, as which ONNX Runtime takes them; onnx computes with them."""
  for dim in kind.tensor_type.shape.dim:
    if dim.dim_value < 0:
      dim.ClearField("dim_value")


def _asks_too_much(node: NodeProto) -> bool:
  """Whether an attribute alone makes onnx allocate."""
  if node.op_type != "Split":
    return False
  return any(each.name == "num_outputs" and each.i != len(node.output) for each in node.attribute)


def _rank_within(node: NodeProto) -> int:
  """RANK + 1 where a body of the node has an operator whose result may have more dimensions than what it reads."""
  grow = {"Gather", "GatherND", "Unsqueeze", "OneHot", *RANK_OPERAND}
  for body in bodies(node):
    for inner in body.node:
      if inner.op_type in grow or _rank_within(inner):
        return RANK + 1
  return 0
