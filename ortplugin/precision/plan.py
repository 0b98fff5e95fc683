"""The plan of a conversion: which operators of a graph get the narrow dtype, and why the others do not."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from ..graph import DOMAIN, Scope, attached, element_count, is_pointwise, label
from ..graph.shape_values import SMALL, shape_values
from . import FLOAT16, Precision, programs, roles
from .kernels import REWRITES
from .ranges import MARGIN, exceeds, fault, is_filling
from .roles import Slots

ANY_SIZE = 2**62
LOOKED_AT = 2**16  # elements of constants that are looked at again and again


@dataclass(frozen=True)
class Request:
  """What the user asks for.

  Attributes:
      target: the precision.
      skip: names and types of operators that keep their dtype.
      peaks: value name to its largest magnitude, as far as it was measured.
      rewrites: the names of those that follow: they take what ONNX Runtime has no kernel for.
  """

  target: Precision
  skip: frozenset[str] = frozenset()
  peaks: Mapping[str, float] = field(default_factory=dict)
  rewrites: frozenset[str] = REWRITES


@dataclass
class Plan:
  """`narrow`: node id to its inputs and outputs that get the dtype. `kept`: why the other floating ones do not.

  Where there is nothing to say about it the reason is empty.
  """

  narrow: dict[int, Slots]
  kept: dict[int, str]


def make_plan(graph: gs.Graph, scope: Scope, request: Request) -> Plan:
  """The plan for the outermost graph. Bodies of If, Loop and Scan keep their dtypes."""
  target = request.target
  plan = Plan({}, {})
  nodes = [node for node in graph.nodes if _touches(node, target)]
  on_shapes = shape_values(graph)
  for node in nodes:
    found = _slots(scope, node, request, on_shapes)
    if isinstance(found, str):
      plan.kept[id(node)] = found
    else:
      plan.narrow[id(node)] = found
  if target.narrows:
    _keep_chains(scope, nodes, plan, request, on_shapes)
  _keep_islands(scope, nodes, plan)
  return plan


def floating(tensors: Iterable[gs.Tensor], target: Precision) -> Iterator[gs.Tensor]:
  """Those of the tensors that have a dtype which becomes the target's."""
  return (tensor for tensor in tensors if not tensor.is_empty() and roles.is_floating(tensor.dtype, target))


def bodies(node: gs.Node) -> list[gs.Graph]:
  """The graphs in a node's attributes."""
  return [value for value in node.attrs.values() if isinstance(value, gs.Graph)]


def is_edge(node: gs.Node, target: Precision) -> bool:
  """Whether the node is a Cast between the target's dtype and another: it is no computation."""
  if node.op != "Cast" or node.domain:
    return False
  return target.dtype in (node.inputs[0].dtype, node.outputs[0].dtype) or not (
    roles.is_floating(node.outputs[0].dtype, target)
  )


def _touches(node: gs.Node, target: Precision) -> bool:
  """Whether the node is a candidate: it makes or reads floating values, and is no border of a conversion."""
  if node.op == "Constant" or is_edge(node, target):
    return False
  return bool(bodies(node)) or any(True for _ in floating([*node.inputs, *node.outputs], target))


def _slots(scope: Scope, node: gs.Node, request: Request, on_shapes: frozenset[int]) -> Slots | str:
  target = request.target
  op = scope.op(node)
  if bodies(node):
    return "bodies of If, Loop and Scan keep their dtypes"
  if not op:
    return "it calls a local function, whose operators keep their dtypes"
  if request.skip & {node.name, str(node.op), op}:
    return "asked for with --precision-skip"
  if any(tensor.dtype is None for tensor in (*node.inputs, *node.outputs) if not tensor.is_empty()):
    unknown = next(t for t in (*node.inputs, *node.outputs) if not t.is_empty() and t.dtype is None)
    return f"the dtype of '{unknown.name}' is unknown"
  if any(id(tensor) in on_shapes and _is_small(scope, tensor) for tensor in node.outputs):
    return ""  # arithmetic on shapes is no computation that anybody would want in few bits
  if (node.domain or "") == DOMAIN:
    slots = programs.our_slots(node, target)
  elif "::" in op:
    return f"operators of the domain {node.domain} keep their dtypes"
  else:
    slots = roles.schema_slots(node, scope.opset, target)
  if isinstance(slots, str) or not target.narrows:
    return slots
  return (
    roles.lacks_kernel(scope, node, target, request.rewrites)
    or roles.cost(scope, node)
    or _constant_fault(scope, node, slots[0], target)
    or _measured_fault(node, request)
    or slots
  )


def _is_small(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether the value may be part of a shape, and not what a table holds at a place that a shape tells."""
  count = element_count(scope.shape(tensor))
  return (scope.rank(tensor) or 0) <= 1 if count is None else count <= SMALL


def _constant_fault(scope: Scope, node: gs.Node, inputs: Sequence[int], target: Precision) -> str:
  for index in inputs:
    values = scope.constant(node.inputs[index], ANY_SIZE)
    if values is not None and (found := fault(node.inputs[index].name, values, target)):
      return found
  return ""


def _measured_fault(node: gs.Node, request: Request) -> str:
  limit = request.target.largest / MARGIN
  for tensor in (*node.inputs, *node.outputs):
    peak = request.peaks.get(tensor.name, 0.0)
    if peak > limit:
      return (
        f"'{tensor.name}' reaches {peak:.6g} on the given inputs, beyond {request.target.dtype.name}'s "
        f"{request.target.largest:.6g} or too near it"
      )
  return ""


# What follows from one operator for others.


def _keep_chains(
  scope: Scope, nodes: Sequence[gs.Node], plan: Plan, request: Request, on_shapes: frozenset[int]
) -> None:
  """Keeps what reads values that may be too large, and what leads from integers to where each bit counts."""
  target = request.target
  if target.dtype == FLOAT16:
    sources = [
      node
      for node in nodes
      if (roles.grows(scope, node) or _reads_too_large(scope, node, target))
      and not any(tensor.name in request.peaks for tensor in node.outputs)
    ]
    for node, source in _reached(scope, sources, lambda each: _bounds(scope, each, target)):
      reason = f"it reads what {label(source)} makes, which may lie beyond {target.dtype.name}"
      _keep(plan, node, reason)
  integers = [node for node in scope.graph.nodes if _makes_integers(node, on_shapes, target)]
  exact = {id(node): source for node, source in _reached(scope, integers, lambda each: each.op in roles.BLURS)}
  for node in _leading_to(scope, [node for node in scope.graph.nodes if _is_sensitive(node)]):
    if id(node) in exact:
      _keep(plan, node, f"it computes with the integers that {label(exact[id(node)])} makes")


def _reads_too_large(scope: Scope, node: gs.Node, target: Precision) -> bool:
  constants = (scope.constant(tensor, LOOKED_AT) for tensor in floating(node.inputs, target))
  return any(values is not None and exceeds(values, target) for values in constants)


def _keep(plan: Plan, node: gs.Node, reason: str) -> None:
  if plan.narrow.pop(id(node), None) is not None:
    plan.kept[id(node)] = reason


def _bounds(scope: Scope, node: gs.Node, target: Precision) -> bool:
  """Whether the results lie within the dtype whatever the node reads."""
  if node.op in roles.BOUNDS:
    return True
  if node.op == "Clip":
    limits = [scope.constant(tensor, 1) for tensor in node.inputs[1:3] if not tensor.is_empty()]
    return len(limits) == 2 and all(v is not None and abs(float(v.item())) < target.largest for v in limits)
  constants = (scope.constant(tensor, LOOKED_AT) for tensor in floating(node.inputs, target))
  return any(values is not None and is_filling(values) for values in constants)


def _makes_integers(node: gs.Node, on_shapes: frozenset[int], target: Precision) -> bool:
  made = node.outputs[0].dtype if node.outputs else None
  if not roles.is_floating(made, target):
    return False
  if node.op == "Range":
    return True
  source = node.inputs[0].dtype if node.op == "Cast" else None
  return source is not None and source.kind in "iu" and source.itemsize > 1 and id(node.inputs[0]) not in on_shapes


def _is_sensitive(node: gs.Node) -> bool:
  to_integer = node.op == "Cast" and node.outputs[0].dtype is not None and node.outputs[0].dtype.kind in "iu"
  return node.op in roles.SENSITIVE or to_integer


def _reached(
  scope: Scope, sources: Sequence[gs.Node], stops: Callable[[gs.Node], bool]
) -> Iterator[tuple[gs.Node, gs.Node]]:
  """Each node that reads what a source makes, directly or through nodes that do not stop it, with that source."""
  seen: set[int] = set()
  for source in sources:
    queue = deque([source])
    while queue:
      node = queue.popleft()
      if id(node) in seen:
        continue
      seen.add(id(node))
      yield node, source
      if node is source or not stops(node):
        queue.extend(reader for tensor in node.outputs for reader in scope.consumers(tensor))


def _leading_to(scope: Scope, sinks: Sequence[gs.Node]) -> Iterator[gs.Node]:
  """The sinks and every node that they depend on through floating values."""
  seen: set[int] = set()
  stack = list(sinks)
  while stack:
    node = stack.pop()
    if id(node) in seen:
      continue
    seen.add(id(node))
    yield node
    stack.extend(
      maker
      for tensor in node.inputs
      if tensor.dtype is not None and tensor.dtype.kind not in "iub"
      if (maker := scope.producer(tensor)) is not None
    )


def _keep_islands(scope: Scope, nodes: Sequence[gs.Node], plan: Plan) -> None:
  """Keeps cheap operators that stand between kept ones alone: two Casts would cost more than they save."""
  seen: set[int] = set()
  for start in nodes:
    if id(start) in seen or not _is_cheap(scope, start, plan):
      continue
    island, narrow_border, kept_border = [], False, False
    stack = [start]
    seen.add(id(start))
    while stack:
      node = stack.pop()
      island.append(node)
      for other in _neighbours(scope, node):
        if _is_cheap(scope, other, plan):
          if id(other) not in seen:
            seen.add(id(other))
            stack.append(other)
        elif id(other) in plan.narrow:
          narrow_border = True
        elif id(other) in plan.kept:
          kept_border = True
    if kept_border and not narrow_border:
      for node in island:
        _keep(plan, node, "it stands between operators that keep their dtype")


def _is_cheap(scope: Scope, node: gs.Node, plan: Plan) -> bool:
  return id(node) in plan.narrow and (node.op in roles.MOVES or is_pointwise(scope, node))


def _neighbours(scope: Scope, node: gs.Node) -> Iterator[gs.Node]:
  for index in range(len(node.inputs)):
    if (maker := scope.producer(node.inputs[index])) is not None:
      yield maker
  for tensor in node.outputs:
    yield from scope.consumers(tensor)


def overridable(tensor: gs.Tensor) -> bool:
  """Whether the value is an initializer that a caller may override."""
  return attached(tensor, "initial") is not None
