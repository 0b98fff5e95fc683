"""A Concat of more than 32 inputs becomes Concats of at most 32:

    Concat(a, b, .., z)    becomes    Concat(Concat(a, b, ..), .., z)

ONNX Runtime's CUDA kernel takes up to 32 addresses as arguments; more it copies from the host, which it refuses while
a CUDA graph is captured (DenseNet-169 and up). Where another Concat has the first inputs already, as in a dense block,
its value is the first input: as many bytes are moved as before. Else the parts are copied once more.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, labelled
from ..driver import Applied, Outcome, RulePass
from ..emit import emit

MOST_INPUTS = 32  # of onnxruntime/core/providers/cuda/tensor/concat.cc


def narrow(scope: Scope, node: gs.Node) -> Outcome:
  """Gives a Concat fewer inputs."""
  if scope.op(node) != "Concat" or len(node.inputs) <= MOST_INPUTS:
    return None
  inputs = list(node.inputs)
  if (whole := max(_beginnings(scope, node), key=lambda other: len(other.inputs), default=None)) is not None:
    parts = [whole.outputs[0], *inputs[len(whole.inputs) :]]
  else:
    groups = [inputs[at : at + MOST_INPUTS] for at in range(0, len(inputs), MOST_INPUTS)]
    axis = int(node.attrs["axis"])
    parts = [emit(scope, node, "Concat", group, None, axis=axis) if len(group) > 1 else group[0] for group in groups]
  new = gs.Node("Concat", node.name, dict(node.attrs), parts)
  scope.replace([node], new, [node.outputs[0]])
  return Applied(labelled(node), new)


def _beginnings(scope: Scope, node: gs.Node) -> list[gs.Node]:
  """Concats before `node`, along the same axis, of its first inputs: at least two of them and not all."""
  at = scope.position[id(node)]
  return [
    other
    for other in scope.consumers(node.inputs[0])
    if scope.position.get(id(other), at) < at
    and scope.op(other) == "Concat"
    and other.attrs["axis"] == node.attrs["axis"]
    and 1 < len(other.inputs) < len(node.inputs)
    and all(a is b for a, b in zip(other.inputs, node.inputs, strict=False))
  ]


NARROW_CONCAT = RulePass(
  "narrow-concat", f"a Concat of more than {MOST_INPUTS} inputs becomes several, which a CUDA graph can capture", narrow
)
