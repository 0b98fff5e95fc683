"""What is computed twice is computed once: same operator, attributes and inputs; constants of equal bits are equal."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...graph import Scope, labelled
from ...graph.convert import node_proto
from ..driver import Applied, Outcome, RulePass
from .determinism import is_random

ELEMENTS = 1 << 20  # constants of up to so many elements are compared: biases and masks, which folding copied


def merge_with_earlier(scope: Scope, node: gs.Node) -> Outcome:
  """Lets what reads this node read an earlier one that computes the same."""
  op = scope.op(node)
  if not op or "::" in op or is_random(node) or any(isinstance(each, gs.Graph) for each in node.attrs.values()):
    return None
  if any(scope.is_output(tensor) for tensor in node.outputs):
    return None  # it keeps its name
  earlier = next((each for each in _candidates(scope, node) if _same(scope, each, node)), None)
  if earlier is None:
    return None
  labels = labelled(earlier, node)
  outputs = list(node.outputs)
  scope.remove(node)
  for old, new in zip(outputs, earlier.outputs, strict=True):
    if not old.is_empty():
      scope.substitute(old, new)
  return Applied(labels, earlier)


def _candidates(scope: Scope, node: gs.Node) -> Sequence[gs.Node]:
  """Earlier nodes that read one of the same values."""
  value = next((t for t in node.inputs if not t.is_empty() and not scope.is_constant(t)), None)
  if value is None:
    return []  # of constants alone: folding takes care of it
  return [each for each in scope.consumers(value) if scope.position[id(each)] < scope.position[id(node)]]


def _same(scope: Scope, a: gs.Node, b: gs.Node) -> bool:
  if scope.op(a) != scope.op(b) or len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
    return False
  if any(x.is_empty() != y.is_empty() for x, y in zip(a.outputs, b.outputs, strict=True)):
    return False
  if not all(scope.same_value(x, y, ELEMENTS) for x, y in zip(a.inputs, b.inputs, strict=True)):
    return False
  return _attributes(a) == _attributes(b)


def _attributes(node: gs.Node) -> list[bytes]:
  return sorted(each.SerializeToString(deterministic=True) for each in node_proto(node).attribute)


COMMON_SUBEXPRESSIONS = RulePass("common-subexpressions", "what is computed twice is computed once", merge_with_earlier)
