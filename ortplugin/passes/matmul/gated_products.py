"""Two products of one tensor, of which the second reads the first's value, become one: gated linear units.

    g = FusedMatMul(x, v); y = FusedMatMul(x, w, g)     becomes     y = FusedMatMul<gated=1>(x, w, v)

So x is read once and g not written, and one kernel of twice the size fills the GPU better: Llama's form of 256 tokens
takes 441 us of an H100 in place of 489.
"""

from dataclasses import replace

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope
from ..driver import Missed, Outcome, RulePass, replaced
from ..members import compose
from .fused import MATMUL, is_product


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Draws the product that makes an operand into the one that reads it, where both multiply the same tensor."""
  if not is_product(scope, node):
    return None
  for operand in node.inputs[2:]:
    gate = scope.producer(operand)
    if gate is not None and is_product(scope, gate) and gate.inputs[0] is node.inputs[0]:
      return _join(scope, gate, node)
  return None


def _join(scope: Scope, gate: gs.Node, node: gs.Node) -> Outcome:
  value = gate.outputs[0]
  first, second = MATMUL.read(scope, gate), MATMUL.read(scope, node)
  if first is None or second is None:
    return None
  own = [{name: each.attrs.get(name, default) for name, default in DEFAULTS.items()} for each in (gate, node)]
  shapes = [scope.shape(each.inputs[1]) for each in (gate, node)]
  reason = scope.used_beyond(value, [node])
  if len(gate.outputs) > 1:
    reason = reason or f"{gate.name} has several results"
  elif None in (shapes[0] or (None,)) or shapes[0] != shapes[1]:
    reason = reason or f"the weights '{gate.inputs[1].name}' and '{node.inputs[1].name}' may have different shapes"
  elif own[0] != own[1] or own[0]["algorithm"] != "auto":
    reason = reason or f"{gate.name} and {node.name} differ in {', '.join(DEFAULTS)}, or have an algorithm of their own"
  elif first.program.parameters[0].dtype != second.program.parameters[0].dtype:
    reason = reason or "their values have different dtypes"
  if reason:
    return Missed(node, reason)
  program, inputs = compose([first, second], list(node.outputs))
  stand_ins = [second.inputs[0], first.inputs[0]]  # the product's value, then the gate's
  operands = [each for each in inputs if not any(each is other for other in stand_ins)]
  names = {id(tensor): parameter for tensor, parameter in zip(inputs, program.parameters, strict=True)}
  ordered = replace(program, parameters=tuple(names[id(tensor)] for tensor in [*stand_ins, *operands]))
  attributes = {**node.attrs, "program": str(ordered), "gated": 1}
  new = gs.Node(node.op, node.name, attributes, [*node.inputs[:2], gate.inputs[1], *operands], [], DOMAIN)
  return replaced(scope, [gate, node], new, list(node.outputs))


DEFAULTS = {"trans_b": 0, "allow_tf32": None, "algorithm": "auto"}
GATED_PRODUCTS = RulePass("gated-products", "a product and the one that gates it become one node", rewrite)
