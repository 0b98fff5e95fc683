"""Pointwise operators that read a FusedLayerNorm's output are drawn into it: gamma, beta, Casts, activations, adds.

    n = FusedLayerNorm(x); y = Mul(n, gamma)         becomes      y = FusedLayerNorm(x, gamma)

n remains an output if something else needs it. That is sound if y surely has the shape of n, and if nothing that the
operator reads besides depends on the norm. The first product of a rotary embedding stays: attention takes in the whole.
"""

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ...graph import Scope, is_pointwise
from ..attention.rotations import rotation_of
from ..driver import RulePass
from ..members import Member, write_member
from .fused import DTYPES, NormCore

HINTS = {"Mul": "gamma", "Add": "beta", "Sub": "beta", "PRelu": "slope", "Where": "condition"}


def _values(norm: Member) -> list[gs.Tensor]:
  """The results that depend on the norm."""
  results = zip(norm.program.results, norm.outputs, strict=True)
  return [tensor for result, tensor in results if result.name in norm.program.epilogue]


def _begins_rotation(scope: Scope, node: gs.Node) -> bool:
  """Whether it is x cos of a rotary embedding of x, as of queries that a norm makes."""
  if scope.op(node) != "Mul":
    return False
  rotations = [rotation_of(scope, each.outputs[0]) for each in scope.consumers(node.outputs[0])]
  return any(each is not None and any(each.x is x for x in node.inputs) for each in rotations)


class _Epilogue(NormCore):
  def neighbours(self, scope: Scope, first: Member) -> Iterator[gs.Node]:
    """Who reads a value of the norm."""
    found = {id(node): node for tensor in _values(first) for node in scope.consumers(tensor)}
    yield from (each for each in found.values() if is_pointwise(scope, each) and not _begins_rotation(scope, each))

  def member(self, scope: Scope, first: Member, node: gs.Node) -> Member:
    """What reads the norm's value, as a program. Raises NotPointwiseError or ProgramError."""
    made = {id(tensor) for tensor in first.outputs}
    y = next(tensor for tensor in _values(first) if any(tensor is each for each in node.inputs))
    for each in node.inputs:
      if not each.is_empty() and id(each) not in made:
        fits = scope.shape(each) == () or scope.broadcasts_to(each, y)
        self.check_operand(scope, first.node, each, y, fits)
    hint = HINTS.get(scope.op(node), "operand")
    hints = ["residual" if hint == "beta" and scope.same_shape(each, y) else hint for each in node.inputs]
    return write_member(scope, node, hints, DTYPES)


NORM_EPILOGUE = RulePass(
  "norm-epilogue",
  "gamma, beta, Casts, activations and other pointwise operators after a norm become part of it",
  _Epilogue(),
)
