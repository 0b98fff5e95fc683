"""A FusedLayerNorm reads its operands' rows in the order in which steps beside it put them.

    r = Gather<axis = 1>(x, order); y = FusedLayerNorm(r)     becomes     y = FusedLayerNorm<ordered, order>(x)

So do the steps that read all that a norm makes: it is of each row, so that they may as well move its operands' rows.
The steps move whole rows, as in row_order.py: Swin's windows, shifted or not, and its merged patches.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, Shape, label, show
from ...ops.layer_norm import NAME
from ...program import ProgramError, parse
from ..driver import Applied, Missed, Outcome, RulePass, replaced
from ..emit import emit, integers
from .row_order import MOVERS, ORDER, VIEWS, NotRowsError, Steps, lengths, order_of, repeats, steps_to

ACCESS = 8  # elements that are read at once
Order = dict[str, list[int]]
"""The attributes that say it."""


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Draws in the steps before a norm, or those behind one that end in this node."""
  if scope.op(node) in MOVERS:
    return next((found for steps in _steps(scope, node) if (found := _behind(scope, steps)) is not None), None)
  if not _is_norm(scope, node):
    return None
  missed: Missed | None = None
  for index, tensor in enumerate(node.inputs):
    if index in node.attrs.get("ordered", ()) or scope.used_beyond(tensor, [node]):
      continue
    for steps in _steps(scope, scope.producer(tensor)):
      found = _before(scope, node, index, steps)
      if isinstance(found, Applied):
        return found
      missed = missed or found
  return missed


def _steps(scope: Scope, last: gs.Node | None) -> Iterator[Steps]:
  """Steps up to this node of which one moves something, the most first."""
  if last is None or scope.op(last) not in (*VIEWS, *MOVERS):
    return
  for steps in reversed(list(steps_to(scope, last, (*VIEWS, *MOVERS)))):
    first = (scope.shape(steps.x) or (None,))[0]
    if any(scope.op(each) in MOVERS for each in steps.nodes):
      yield replace(steps, images=first if isinstance(first, str) else None)


def _is_norm(scope: Scope, node: gs.Node | None) -> bool:
  """Whether it is a norm of ours over the last axis alone."""
  if node is None or scope.op(node) != f"{DOMAIN}::{NAME}":
    return False
  try:
    core = parse(str(node.attrs.get("program", ""))).core
  except ProgramError:
    return False
  return core is not None and core.number("axis") == -1 and not core.attribute("axes")


def _order(scope: Scope, steps: Steps) -> tuple[int, Order] | None:
  """How many rows of x an image has, images being the result's first axis, and their order, if all have the same."""
  try:
    order, rows = order_of(scope, steps), math.prod(lengths(scope, steps.x, steps.images)[:-1])
    images, *image = lengths(scope, steps.nodes[-1].outputs[0], steps.images)[:-1] or [1]
  except NotRowsError:
    return None
  one = order[: len(order) // images]
  if not image or len(one) > ORDER or np.array_equal(order, np.arange(rows)) or not repeats(order, images, rows):
    return None
  return rows // images, {"order": [int(each) for each in one], "image": image}


def _before(scope: Scope, norm: gs.Node, index: int, steps: Steps) -> Applied | Missed | None:
  found, made = _order(scope, steps), scope.shape(norm.inputs[index]) or (None,)
  piece = (scope.shape(steps.x) or (0,))[-1]
  if found is None or not isinstance(piece, int) or (piece != made[-1] and piece % ACCESS):
    return None
  rows, order = found
  if "ordered" in norm.attrs and any(norm.attrs.get(name) != values for name, values in order.items()):
    return Missed(steps.nodes[-1], f"{label(norm)} reads other rows in another order")
  order["ordered"] = [*norm.attrs.get("ordered", ()), index]
  inputs = list(norm.inputs)
  inputs[index] = _view(scope, norm, steps.x, (made[0], rows, piece))
  new = gs.Node(norm.op, norm.name, {**norm.attrs, **order}, inputs, [], DOMAIN)
  return replaced(scope, [*steps.nodes, norm], new, list(norm.outputs))


def _behind(scope: Scope, steps: Steps) -> Applied | Missed | None:
  norm, y, end = scope.producer(steps.x), steps.x, steps.nodes[-1].outputs[0]
  shape, made = scope.shape(y) or (None,), scope.shape(end) or ()
  found = _order(scope, steps) if _is_norm(scope, norm) and shape[-1] in made[-1:] else None
  if norm is None or found is None:
    return None
  used = scope.used_beyond(y, steps.nodes)
  if used or "ordered" in norm.attrs or len(norm.outputs) > 1:
    return Missed(steps.nodes[-1], used or f"{label(norm)} has another result, or an order already")
  rows, order = found
  inputs, order["ordered"] = list(norm.inputs), []
  for index, tensor in enumerate(inputs):
    if (own := scope.shape(tensor)) is not None and own[:-1] == shape[:-1]:
      order["ordered"].append(index)
    elif own is None or any(dim != 1 for dim in own[:-1]) or len(own) > len(made):
      return Missed(norm, f"'{tensor.name}' of shape {show(own)} is neither of each row nor of all")
  for index in order["ordered"]:
    inputs[index] = _view(scope, norm, inputs[index], (made[0], rows, (scope.shape(inputs[index]) or (1,))[-1]))
  new = gs.Node(norm.op, norm.name, {**norm.attrs, **order}, inputs, [], DOMAIN)
  return replaced(scope, [norm, *steps.nodes], new, [end])


def _view(scope: Scope, norm: gs.Node, tensor: gs.Tensor, shape: Shape) -> gs.Tensor:
  """The tensor as [images, rows, width]; a number of images that has a name is that of its first axis."""
  if scope.shape(tensor) == shape:
    return tensor
  dims = integers(scope, [dim if isinstance(dim, int) else 0 for dim in shape], f"{tensor.name}_rows")
  return emit(scope, norm, "Reshape", [tensor, dims], shape)


NORM_ORDER = RulePass("norm-order", "a norm reads rows in the order in which steps beside it put them", rewrite)
