"""What a constant decides everywhere is decided here: And with true, Or with false, a Where of one branch.

    y = And(true, x)            becomes    y = x
    y = Where(true, a, b)       becomes    y = a          where a has y's shape; Expand(a, shape of y) else

The constants are those that masks of exporters leave: a causal mask that forbids nothing, padding that is not there.
What is not constant never becomes it: ONNX Runtime captures no model in a CUDA graph that has a constant output.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, element_count, equal, labelled
from ...graph.disputed import disputed_now
from ..driver import Applied, Outcome, RulePass
from ..emit import integers

ELEMENTS = 1 << 22  # of a constant that are looked at


def decide(scope: Scope, node: gs.Node) -> Outcome:
  """Makes an Identity or an Expand of one node, in place."""
  if (x := _decided(scope, node)) is None or x.name in disputed_now(scope):
    return None
  if scope.is_constant(x) and not all(scope.is_constant(each) for each in node.inputs):
    return None
  y = node.outputs[0]
  given, made = scope.shape(x), scope.shape(y)
  labels = labelled(node)
  if equal(given, made):
    node.op, node.inputs = "Identity", [x]
    return Applied(labels, node)
  dims = [dim for dim in made or () if isinstance(dim, int)]
  if made is None or len(dims) != len(made):
    return None
  node.op, node.inputs = "Expand", [x, integers(scope, dims, f"{y.name}_shape")]
  return Applied(labels, node)


def _decided(scope: Scope, node: gs.Node) -> gs.Tensor | None:
  """The input that the node gives out everywhere."""
  op = scope.op(node)
  if op == "Where":
    condition = _uniform(scope, node.inputs[0])
    return None if condition is None else node.inputs[1 if condition else 2]
  if op in ("And", "Or"):
    for constant, other in (node.inputs, list(node.inputs)[::-1]):
      if _uniform(scope, constant) is (op == "And"):
        return other
  return None


def _uniform(scope: Scope, tensor: gs.Tensor) -> bool | None:
  """What all elements of a constant are; None if they differ, or there are none."""
  if (array := scope.constant(tensor, ELEMENTS)) is None or not element_count(array.shape):
    return None
  first = bool(array.reshape(-1)[0])
  return first if bool((array == first).all()) else None


UNIFORM_CONDITIONS = RulePass(
  "uniform-conditions", "And, Or and Where that a constant decides everywhere give the other input", decide
)
