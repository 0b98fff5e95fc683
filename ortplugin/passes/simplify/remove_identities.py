"""Nodes that give back their input are removed: Identity, Dropout in inference, a Cast to the same dtype, a Reshape,
Expand or Transpose that changes nothing, a Pad by 0, a Slice of all, an AveragePool of one pixel, a Concat, Sum, Mean,
Max or Min of one input. Of an UpdateSlice of all the updates are left, and of a Cast to a dtype that holds every value,
and back, the Cast back. An integer to which the constant 0 is added, as the positions of a step of one token are, is at
most a Reshape of it.

ONNX Runtime (1.32) takes such a Cast back out as well, whatever its level of optimization, but only where nodes of the
same graph read it: a body that does finds no value, and the run fails. So it may not stay, and what a pass or a
conversion of precision puts between two Casts must not be nothing.

Other arithmetic such as x + 0 or x * 1 stays: it may broadcast, and x + 0 turns -0 into 0.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, equal, label, optional_input
from ...graph.disputed import disputed_now
from ...program.dtypes import holds
from ..driver import Applied, Outcome, RulePass
from ..emit import integers

UPDATE_SLICE = f"{DOMAIN}::UpdateSlice"
END = 2**31 - 1  # from here on the end of a Slice is that of the tensor, as exporters write it


def remove_identity(scope: Scope, node: gs.Node) -> Outcome:
  """Lets what reads the node's output read its input; a graph output keeps its name."""
  if scope.op(node) == "Add" and (reshaped := _one_integer(scope, node)) is not None:
    return reshaped
  if (x := _given_back(scope, node)) is None:
    return None
  y = node.outputs[0]
  producer = scope.producer(x)
  name = label(node)
  if not scope.is_output(y):
    scope.remove(node)
    scope.substitute(y, x)
    return Applied((name,), None)
  # The output keeps its name: x's producer makes it instead, unless x has to keep its own.
  if producer is None or scope.is_output(x):
    return None
  scope.remove(node)
  scope.substitute(x, y)
  producer.outputs[[tensor is x for tensor in producer.outputs].index(True)] = y
  return Applied((name,), None)


def _given_back(scope: Scope, node: gs.Node) -> gs.Tensor | None:
  """The value that is the first output, where no other output is used: an input, or what that is a Cast of."""
  op = scope.op(node)
  if op == UPDATE_SLICE:
    return node.inputs[1] if _is_whole(scope, node) else None
  if op == "Add":
    x = _without_zero(scope, node)
    return x if x is not None and equal(scope.shape(x), scope.shape(node.outputs[0])) else None
  if op not in _TESTS or not node.inputs or node.inputs[0].is_empty():
    return None
  if any(scope.used_beyond(tensor, []) for tensor in node.outputs[1:] if not tensor.is_empty()):
    return None
  if _TESTS[op](scope, node):
    return node.inputs[0]
  return _widened(scope, node) if op == "Cast" else None


def _without_zero(scope: Scope, add: gs.Node) -> gs.Tensor | None:
  """What the constant 0 is added to, of integers."""
  for zero, other in (add.inputs, reversed(add.inputs)):
    value = scope.constant(zero, 1)
    if value is not None and value.dtype.kind in "iu" and value.size == 1 and not value.any():
      return other if other.name not in disputed_now(scope) else None
  return None


def _one_integer(scope: Scope, add: gs.Node) -> Outcome:
  """0 + x of one element as a Reshape of x, where the sum has more axes."""
  x, shape = _without_zero(scope, add), scope.shape(add.outputs[0])
  if x is None or shape is None or scope.shape(x) in (None, shape) or any(dim != 1 for dim in shape):
    return None
  new = gs.Node("Reshape", add.name, {}, [x, integers(scope, [1] * len(shape), "shape")])
  scope.replace([add], new, [add.outputs[0]])
  return Applied((label(add),), new)


def _widened(scope: Scope, cast: gs.Node) -> gs.Tensor | None:
  """The value that a Cast to a wider dtype and this one leave as it was."""
  if (maker := scope.producer(cast.inputs[0], "Cast")) is None:
    return None
  given, wide, back = (scope.dtype(each) for each in (maker.inputs[0], cast.inputs[0], cast.outputs[0]))
  exact = given is not None and given == back and wide is not None and holds(wide, given)
  return maker.inputs[0] if exact else None


def _is_whole(scope: Scope, update: gs.Node) -> bool:
  """Whether the updates are as large as the data, as are those that are an update of the same data.

  Constant ones stay: ONNX Runtime captures no model in a CUDA graph that has a constant output.
  """
  data, updates = update.inputs[:2]
  if scope.is_constant(updates) and not scope.is_constant(data):
    return False
  inner = scope.producer(updates, UPDATE_SLICE)
  same = inner is not None and inner.inputs[0] is data
  forward = all(step > 0 for step in update.attrs.get("steps", ()))
  return forward and (same or equal(scope.shape(data), scope.shape(updates)))


def _always(scope: Scope, node: gs.Node) -> bool:
  return True


def _one_input(scope: Scope, node: gs.Node) -> bool:
  return len(node.inputs) == 1


def _dropout(scope: Scope, node: gs.Node) -> bool:
  mode = optional_input(node, 2)  # training_mode: before opset 12 and by default false
  training = None if mode is None else scope.constant(mode, 1)
  return mode is None or (training is not None and not training.any())


def _cast(scope: Scope, node: gs.Node) -> bool:
  return node.inputs[0].dtype is not None and node.inputs[0].dtype == node.outputs[0].dtype


def _same_shape(scope: Scope, node: gs.Node) -> bool:
  """Where ONNX Runtime believes another shape of the input, the node tells it the right one, and stays."""
  x, y = node.inputs[0], node.outputs[0]
  return equal(scope.shape(x), scope.shape(y)) and x.name not in disputed_now(scope)


def _transpose(scope: Scope, node: gs.Node) -> bool:
  perm = node.attrs.get("perm")
  if perm is None:  # reversed by default
    rank = scope.rank(node.inputs[0])
    return rank is not None and rank <= 1
  return list(perm) == list(range(len(perm)))


def _pad(scope: Scope, node: gs.Node) -> bool:
  given = node.attrs.get("pads")
  pads = scope.constant(node.inputs[1]) if given is None and len(node.inputs) > 1 else given
  return pads is not None and not np.any(pads) and node.inputs[0].name not in disputed_now(scope)


def _slice(scope: Scope, node: gs.Node) -> bool:
  """A slice that is as long as its input is all of it, unless it is reversed; so is one from 0 to any end."""
  if len(node.inputs) < 3:  # attributes, before opset 10
    return _same_shape(scope, node)
  starts, ends = (scope.constant(each) for each in node.inputs[1:3])
  stepped = optional_input(node, 4)
  steps = np.ones(1) if stepped is None else scope.constant(stepped)
  if steps is None or (steps <= 0).any():
    return False
  whole = starts is not None and ends is not None and not starts.any() and (ends >= END).all() and (steps == 1).all()
  return _same_shape(scope, node) or (bool(whole) and node.inputs[0].name not in disputed_now(scope))


def _one_pixel(scope: Scope, node: gs.Node) -> bool:
  """As exporters write an adaptive pool to the size that is there."""
  unit = all(dim == 1 for name in ("kernel_shape", "strides") for dim in node.attrs.get(name, ()))
  return unit and not any(node.attrs.get("pads", ())) and node.inputs[0].name not in disputed_now(scope)


_TESTS = {
  "AveragePool": _one_pixel,
  "Identity": _always,
  "Dropout": _dropout,
  "Cast": _cast,
  "Reshape": _same_shape,
  "Expand": _same_shape,
  "Transpose": _transpose,
  "Pad": _pad,
  "Slice": _slice,
  **dict.fromkeys(("Concat", "Sum", "Mean", "Max", "Min"), _one_input),
}

REMOVE_IDENTITIES = RulePass("remove-identities", "nodes that give back their input are removed", remove_identity)
