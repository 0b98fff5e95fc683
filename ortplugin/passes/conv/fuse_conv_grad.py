"""What is pointwise before a ConvGrad becomes part of its program: the gradients of activations, residual sums, scales.

    p = Greater(y, 0); dz = Where(p, dy, 0); dX, dW, dB = ConvGrad(X, W, dz)
                                             becomes      dX, dW, dB = ConvGrad(X, W, dy, y)

Where the bias's gradient is wanted, dz is read anyway to be summed: made in the same launch it is written once and not
read again. A value that something else needs too becomes one more output. Without a bias's gradient nothing is gained,
and the operators stay.
"""

from dataclasses import replace

import onnx_graphsurgeon as gs

from ...graph import NotPointwiseError, Scope, broadcast, equal, label, show
from ...ops.conv_grad.gradient import NAME
from ..absorb import Core
from ..driver import RulePass
from ..members import Member, member_of


def _words(node: gs.Node, name: str) -> list[str]:
  return str(node.attrs.get(name, "")).split()


class _ConvGrad(Core):
  operators = (NAME,)
  cycle = "'{tensor}', which {late} reads, depends on it"

  def own(self, node: gs.Node) -> tuple[int, int]:
    return len(_words(node, "operands")), len(_words(node, "gradients"))

  def read(self, scope: Scope, node: gs.Node) -> Member | None:
    """The ConvGrad as a program whose first output is dZ, be it one of the node or not; None without a bias."""
    gradients = _words(node, "gradients")
    grad = super().read(scope, node) if "dB" in gradients else None
    if grad is None:
      return None
    program, dz = grad.program, grad.outputs[0]
    if program.results[0] in program.parameters:
      dz = grad.inputs[program.parameters.index(program.results[0])]
    elif "dZ" in gradients:
      dz = node.outputs[gradients.index("dZ")]
    return replace(grad, outputs=(dz, *grad.outputs[1:]))

  def member(self, scope: Scope, first: Member, node: gs.Node) -> Member | None:
    """What makes one of the program's inputs, of the shape of dZ. Raises NotPointwiseError or ProgramError."""
    if (other := member_of(scope, node)) is None:
      return None
    if len(first.inputs) != len(first.node.inputs) - self.own(first.node)[0]:
      raise NotPointwiseError(f"{label(first.node)} reads a value twice")
    whole = broadcast([scope.shape(tensor) for tensor in first.inputs])
    for tensor in other.outputs:
      if not equal(scope.shape(tensor), whole):
        raise NotPointwiseError(f"'{tensor.name}' is not known to have the shape of dZ, {show(whole)}")
    return other

  def make(
    self, scope: Scope, first: Member, other: Member, results: list[gs.Tensor]
  ) -> tuple[gs.Node, list[gs.Tensor]]:
    """The node, and its outputs with one name for dZ, which it may have given out and `other` too."""
    node, (dz, *others) = first.node, results
    named = dict(zip(_words(node, "gradients"), node.outputs, strict=False))
    kept, twin = dz, None
    if any(dz is each for each in other.outputs) and scope.used_beyond(dz, [node, other.node]):
      # All that others read of what is replaced needs a place among the outputs; dZ has one alone.
      if (twin := named.get("dZ")) is not None and scope.is_output(twin):
        kept, twin = twin, dz
      if twin is not None and scope.is_output(twin):
        raise NotPointwiseError(f"'{kept.name}' and '{twin.name}', one value, are both graph outputs")
      named["dZ"] = kept
    new, _ = super().make(scope, first, other, results)
    new.attrs["gradients"] = " ".join(named)
    if twin is not None:
      scope.substitute(twin, kept)
    return new, [*named.values(), *others]


FUSE_CONV_GRAD = RulePass(
  "fuse-conv-grad", "pointwise operators before a convolution's gradients become part of them", _ConvGrad()
)
