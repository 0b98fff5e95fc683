"""An Expand before a pointwise operator or a Transpose goes behind it, or away where the operator broadcasts.

    y = Add(scores, Expand(m, [B, 1, S, T]))     scores [B, H, S, T]     becomes     y = Add(scores, m)
    y = Where(Expand(m, [B, 1, S, T]), 0, -inf)  becomes     y = Expand(Where(m, 0, -inf), [B, 1, S, T])

    y = Transpose(Expand(x, shape))              becomes     y = Expand(Transpose(x), transposed shape)

A view between an Expand and a pointwise operator goes behind the operator first, if all operands have the same view:

    y = Add(Reshape(Expand(a, S), T), Reshape(Expand(b, S), T))     becomes     y = Reshape(Add(a, b), T)

where a and b broadcast to S: positions relative in height and in width, as MViT and SAM add them to scores.

Less is computed and written so; masks arrive at attention as small as they were made. ONNX Runtime's CPU provider
expands no bfloat16: behind a Cast to it an Expand goes only on its way to the next pointwise operator.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, broadcast, element_count, equal, is_disputed, label, labelled
from ...graph.pointwise import is_symmetric
from ..driver import Applied, Outcome, RulePass, first_of, replaced
from ..emit import integers, transpose, unsqueeze

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Takes one Expand from a pointwise operator."""
  if not node.inputs or not is_symmetric(scope, node):
    return None
  for index, tensor in enumerate(node.inputs):
    if (expand := scope.producer(tensor, "Expand")) is None or is_disputed(scope, expand.inputs[0]):
      continue
    x, y = expand.inputs[0], node.outputs[0]
    operands = [scope.shape(x if at == index else each) for at, each in enumerate(node.inputs)]
    given, made = broadcast(operands), scope.shape(y)
    if given is None or made is None:
      continue
    labels = labelled(expand, node)
    if equal(given, made):
      node.inputs[index] = x
    elif (
      all(isinstance(dim, int) for dim in (*given, *made))
      and not scope.used_beyond(tensor, [node])
      and (scope.op(node) != "Cast" or _may_be_expanded(scope, y))
    ):
      node.inputs[index] = x
      small = scope.like(y, "small", given)
      node.outputs[0] = small
      dims = integers(scope, [int(dim) for dim in made if isinstance(dim, int)], f"{y.name}_shape")
      scope.insert_after(gs.Node("Expand", scope.unique(f"{y.name}/Expand"), {}, [small, dims], [y]), node)
    else:
      continue
    if not scope.used_beyond(tensor, []):
      scope.remove(expand)
    return Applied(labels, node)
  return None


def before_views(scope: Scope, node: gs.Node) -> Outcome:
  """Lets a pointwise operator of several tensors with the same view, one an Expand's, read what they are views of."""
  made = scope.shape(node.outputs[0]) if node.inputs and is_symmetric(scope, node) else None
  if made is None:
    return None
  views: list[gs.Node] = []
  operands: list[gs.Tensor] = []
  for tensor in node.inputs:
    if (view := scope.producer(tensor, *VIEWS)) is not None and equal(scope.shape(tensor), made):
      views.append(view)
      operands.append(view.inputs[0])
    elif element_count(scope.shape(tensor)) == 1:
      operands.append(tensor)
    else:
      return None
  whole = scope.shape(views[0].inputs[0]) if len(views) > 1 else None
  if whole is None or not all(isinstance(dim, int) for dim in whole):
    return None
  if not all(equal(scope.shape(view.inputs[0]), whole) for view in views):
    return None
  if any((scope.rank(each) or 0) > len(whole) for each in operands):
    return None
  if all(scope.producer(view.inputs[0], "Expand") is None for view in views):
    return None
  labels = tuple(dict.fromkeys(label(each) for each in (*views, node)))
  y, view = node.outputs[0], views[0]
  for index, operand in enumerate(operands):
    node.inputs[index] = operand
  x = scope.like(y, "whole", whole)
  node.outputs[0] = x
  name = scope.unique(f"{y.name}/{view.op}")
  scope.insert_after(gs.Node(view.op, name, dict(view.attrs), [x, *view.inputs[1:]], [y], view.domain), node)
  for each in {id(view): view for view in views}.values():
    if not scope.used_beyond(each.outputs[0], []):
      scope.remove(each)
  return Applied(labels, node)


def before_transpose(scope: Scope, node: gs.Node) -> Outcome:
  """Lets a Transpose read what an Expand does, which goes behind it."""
  expand = scope.producer(node.inputs[0], "Expand") if scope.op(node) == "Transpose" else None
  if expand is None or scope.used_beyond(node.inputs[0], [node]):
    return None
  x, y = expand.inputs[0], node.outputs[0]
  given, made = scope.shape(x), scope.shape(y)
  if given is None or made is None or any(not isinstance(dim, int) for dim in (*given, *made)) or is_disputed(scope, x):
    return None
  perm = [int(axis) for axis in node.attrs.get("perm") or range(len(made))[::-1]]
  small = unsqueeze(scope, node, x, range(len(made) - len(given)))
  moved = transpose(scope, node, small, perm)
  dims = integers(scope, [int(dim) for dim in made if isinstance(dim, int)], f"{y.name}_shape")
  new = gs.Node("Expand", node.name, {}, [moved, dims])
  return replaced(scope, [expand, node], new, [y])


def _may_be_expanded(scope: Scope, y: gs.Tensor) -> bool:
  if y.dtype is not None and np.dtype(y.dtype).type.__module__ == "numpy":
    return True
  readers = scope.consumers(y)
  return len(readers) == 1 and not scope.used_beyond(y, readers) and is_symmetric(scope, readers[0])


LATE_EXPAND = RulePass(
  "late-expand",
  "an Expand before pointwise operators and Transposes goes behind them, or away",
  first_of(rewrite, before_views, before_transpose),
)
