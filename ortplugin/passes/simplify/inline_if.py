"""An If whose condition is known gives way to the nodes of the branch that it takes.

TorchScript's exporter asks at run time for ranks that it knows, around scatter_reduce and squeeze for instance. What
both branches could give has no known shape, so that nothing behind such an If could be rewritten.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, Shape, attached, label
from ...graph.convert import all_graphs, type_of
from ..driver import Applied, Outcome, RulePass


def inline(scope: Scope, node: gs.Node) -> Outcome:
  """Puts the nodes of the branch that is taken in the place of an If."""
  if scope.op(node) != "If" or not node.inputs:  # it has none in a branch that was dropped
    return None
  if (condition := scope.constant(node.inputs[0], 1)) is None or condition.size != 1:
    return None
  name = "then_branch" if condition.reshape(-1)[0] else "else_branch"
  branch: gs.Graph = node.attrs[name]
  if not _can_move(scope, node, branch):
    return None
  replaced, results = label(node), list(zip(node.outputs, branch.outputs, strict=True))
  made = {id(tensor): each for each in branch.nodes for tensor in each.outputs}
  for constant in (attached(branch, "constants") or {}).values():
    constant.name = scope.unique(constant.name)
    if "constants" not in vars(scope.graph):
      scope.graph.constants = {}
    scope.graph.constants[constant.name] = constant
  for each in branch.nodes:
    each.name = scope.unique(each.name) if each.name else each.name
    for tensor in each.outputs:
      if not tensor.is_empty():
        tensor.name = scope.unique(tensor.name)
    scope.insert(each, node)
  del node.attrs[name]  # the other branch goes with the node
  scope.remove(node)
  branch.nodes.clear()
  for y, inner in results:
    if y.is_empty():
      continue
    if (producer := made.get(id(inner))) is None:
      scope.substitute(y, inner)
      continue
    if not scope.is_output(y):  # an output's type is the model's to say
      y.dtype, y.shape = inner.dtype or y.dtype, y.shape if inner.shape is None else inner.shape
    scope.substitute(inner, y)
    producer.outputs[[tensor is inner for tensor in producer.outputs].index(True)] = y
  return Applied((replaced,), None)


def _can_move(scope: Scope, node: gs.Node, branch: gs.Graph) -> bool:
  """Whether nothing of the branch would have to keep a name or a place that it can't."""
  if (proto := attached(branch, "proto")) is not None and proto.sparse_initializer:
    return False
  deeper = {id(tensor) for each in list(all_graphs(branch))[1:] for tensor in each.outputs}
  given = [id(tensor) for tensor in branch.outputs]
  if len(set(given)) != len(given) or deeper.intersection(given):
    return False
  made = {id(tensor): each for each in branch.nodes for tensor in each.outputs}
  for y, inner in zip(node.outputs, branch.outputs, strict=True):
    if scope.is_output(y):
      producer = made.get(id(inner))
      # Before its inputs are known, the producer's output is only what the exporter said of it.
      if producer is None or any(scope.rank(each) is None for each in producer.inputs if not each.is_empty()):
        return False
      given_by = producer.inputs[0] if scope.op(producer) == "Identity" else inner
      if not _agree(_declared(y), scope.shape(given_by)):
        return False
  return True


def _declared(output: gs.Tensor) -> Shape | None:
  """The shape that the model gives an output; what is known of it by now may be another."""
  info = attached(output, "proto")
  return None if info is None else type_of(info.type)[1]


def _agree(declared: Shape | None, inner: Shape | None) -> bool:
  """Whether an output may be of the shape that the branch gives it: TorchScript declares some by the other branch."""
  if declared is None:
    return True
  if inner is None or len(inner) != len(declared):
    return False
  return not any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(declared, inner, strict=True))


INLINE_IF = RulePass("inline-if", "an If whose condition is known gives way to the branch that it takes", inline)
