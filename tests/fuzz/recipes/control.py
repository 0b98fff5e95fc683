"""If, Loop, Scan, sequences and local functions."""

import numpy as np
from onnx import TensorProto, helper
from onnx.helper import make_node, make_tensor_value_info

from ..evaluate import FUNCTIONS, to_onnx
from ..graph import BOOL, INT, UnfitError
from .table import glue


def chain(g, x, prefix, others, count):
  """Pointwise nodes from the value x on; the last one's output is the result. `others`: values of x's shape."""
  nodes = []
  for step in range(count):
    name = f"{prefix}_{step}"
    kind = g.choice(["Relu", "Tanh", "Neg", "Sigmoid", "Abs", "Add", "Mul", "Sub"])
    inputs = [x, g.choice([x, *others])] if kind in ("Add", "Mul", "Sub") else [x]
    nodes.append(make_node(kind, inputs, [name], f"{prefix}_node_{step}"))
    x = name
  return nodes


def body(name, nodes, inputs, outputs, constants=None):
  return helper.make_graph(nodes, name, inputs, outputs, constants or [])


def typed(g, name, x, shape=None):
  """A body's value; its shape stays open where none is given, or a rank may depend on sizes."""
  return make_tensor_value_info(name, to_onnx(x.dtype), None if g.has_loose_ranks else shape)


@glue(1)
def if_(g):
  """An If with a constant or given condition, whose branches read what is around them."""
  x = g.pick()
  same = [v for v in g.values if v.shape == x.shape and v.dtype == x.dtype]
  others = [g.rng.choice(same)]
  flag = g.constant(g.chance(0.5)) if g.chance(0.6) else g.input(np.asarray(g.chance(0.5)))
  made, branches = g.fresh(), []
  shared = g.fresh("b")
  for kind in ("then", "else"):
    prefix = shared if g.chance(0.5) else g.fresh("b")  # two bodies may use the same names
    nodes = chain(g, x.name, prefix, [each.name for each in others], g.rng.randint(1, 3))
    branches.append(body(kind, nodes, [], [typed(g, nodes[-1].output[0], x)]))
  if g.chance(0.2):
    branches[1] = branches[0]
  node = make_node("If", [flag.name], [made], then_branch=branches[0], else_branch=branches[1])
  captured = {each.name: each for each in [x, *others, flag]}
  return g.block([node], _readable(g, captured), [made])


def _readable(g, captured):
  if any(each.is_float and each.dtype != g.style.main for each in captured.values()):
    raise UnfitError("bodies are in the graph's dtype")
  return list(captured.values())


@glue(0.8)
def loop(g):
  """A Loop that carries one value, and now and then collects another."""
  x = g.pick(where=lambda value: value.dtype == g.style.main)
  count, prefix = g.rng.randint(0, 3), g.fresh("b")
  trips = g.constant(count, INT) if g.chance(0.6) else g.input(np.asarray(count, INT))
  carried = f"{prefix}_carried"
  nodes = chain(g, carried, prefix, [x.name, carried], g.rng.randint(1, 3))
  nodes.append(make_node("Identity", [f"{prefix}_on"], [f"{prefix}_goes_on"]))
  inputs = [
    make_tensor_value_info(f"{prefix}_i", TensorProto.INT64, []),
    make_tensor_value_info(f"{prefix}_on", TensorProto.BOOL, []),
    typed(g, carried, x, list(x.shape)),
  ]
  last = nodes[-2].output[0]
  outputs = [make_tensor_value_info(f"{prefix}_goes_on", TensorProto.BOOL, []), typed(g, last, x)]
  made = [g.fresh()]
  if g.chance(0.4) and count:
    nodes.append(make_node("Neg", [last], [f"{prefix}_kept"]))
    outputs.append(typed(g, f"{prefix}_kept", x))
    made.append(g.fresh())
  on = g.constant(np.asarray(True))
  node = make_node("Loop", [trips.name, on.name, x.name], made, body=body("body", nodes, inputs, outputs))
  return g.block([node], [trips, on, x], made)


@glue(0.6)
def scan(g):
  """A Scan over the first axis, with a running sum."""
  x = g.pick(ranks=range(1, 5), where=lambda value: 0 not in value.shape)
  if g.opset < 9:
    raise UnfitError("Scan of opset 8 has a batch")
  prefix = g.fresh("b")
  start = g.constant(g.numbers(x.shape[1:]))
  nodes = [make_node("Add", [f"{prefix}_sum", f"{prefix}_x"], [f"{prefix}_total"])]
  nodes += chain(g, f"{prefix}_total", prefix, [f"{prefix}_x"], g.rng.randint(1, 2))
  row = list(x.shape[1:])
  inputs = [typed(g, f"{prefix}_sum", x, row), typed(g, f"{prefix}_x", x, row)]
  outputs = [typed(g, f"{prefix}_total", x, row), typed(g, nodes[-1].output[0], x, row)]
  made = [g.fresh(), g.fresh()]
  inner = body("body", nodes, inputs, outputs)
  node = make_node("Scan", [start.name, x.name], made, body=inner, num_scan_inputs=1)
  return g.block([node], [start, x], made)


@glue(0.5)
def sequences(g):
  x = g.pick(ranks=range(1, 5))
  if g.opset < 11:
    raise UnfitError("there are no sequences")
  name, made = g.fresh(), g.fresh()
  if g.chance(0.5):
    other = g.op("Neg", x)
    nodes = [
      make_node("SequenceConstruct", [x.name, other.name], [name]),
      make_node("ConcatFromSequence", [name], [made], axis=0),
    ]
    return g.block(nodes, [x, other], [made])
  at = g.constant(0, INT)
  nodes = [make_node("SplitToSequence", [x.name], [name], axis=0), make_node("SequenceAt", [name, at.name], [made])]
  return g.block(nodes, [x, at], [made])


@glue(1)
def function(g):
  """A call of a local function; several calls may share one."""
  x = g.pick()
  known = [each for each in g.functions if len(each.input) == 1]
  if known and g.chance(0.5):
    called = g.rng.choice(known)
  else:
    name = f"Fn{g.rng.randrange(10**6)}"
    nodes = chain(g, "X", "inner", ["X"], g.rng.randint(1, 3))
    called = helper.make_function(
      FUNCTIONS, name, ["X"], [nodes[-1].output[0]], nodes, [helper.make_opsetid("", g.opset)]
    )
  made = g.fresh()
  if g.opset < 13:
    raise UnfitError("local functions came later")
  node = make_node(called.name, [x.name], [made], domain=FUNCTIONS)
  return g.block([node], [x], [made], [called])


@glue(0.3)
def optional(g):
  x = g.pick()
  flag = g.input(np.asarray(g.chance(0.5), BOOL))
  return g.op("Where", flag, x, g.op("Neg", x))
