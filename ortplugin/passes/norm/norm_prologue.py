"""Pointwise operators that make what a FusedLayerNorm normalises are drawn into it: residual and bias adds, Casts, ...

    s = Add(x, residual); y = FusedLayerNorm(s)      becomes      y, s = FusedLayerNorm(x, residual)

where s is an output only if something else needs it. That is sound if s surely has the shape of y, and if nothing else
that the norm reads depends on s.
"""

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ...graph import NotPointwiseError, Scope, Shape, is_pointwise, show
from ..driver import RulePass
from ..members import Member, check_ranks, write_member
from .fused import DTYPES, NormCore


class _Prologue(NormCore):
  cycle = "{kept}, and '{tensor}', which the norm also reads, depends on it"

  def neighbours(self, scope: Scope, first: Member) -> Iterator[gs.Node]:
    """Who makes what is normalised, and of what else the norm reads Casts and what has one element.

    What is smaller than the normalised value is cheaper computed once, but a kernel for one element costs more than
    every thread computing it, as the limits between which T5 clamps a value.
    """
    prologue, whole = first.program.prologue, scope.shape(first.outputs[0])
    for parameter, tensor in zip(first.program.parameters, first.inputs, strict=True):
      if (maker := scope.producer(tensor)) is None or not is_pointwise(scope, maker):
        continue
      normalised = parameter.name in prologue and not _surely_smaller(scope.shape(tensor), whole)
      cheap = scope.op(maker) == "Cast" or _is_one(scope.shape(tensor))
      if normalised or (cheap and not scope.used_beyond(tensor, [first.node])):
        yield maker

  def member(self, scope: Scope, first: Member, node: gs.Node) -> Member:
    """What makes one of the norm's inputs, as a program. Raises NotPointwiseError or ProgramError."""
    y, tensor = first.outputs[0], node.outputs[0]
    check_ranks(scope, node.inputs)
    names = {id(t): parameter.name for t, parameter in zip(first.inputs, first.program.parameters, strict=True)}
    kept = scope.used_beyond(tensor, [first.node])
    normalised = first.program.core.names if first.program.core else ()
    if kept and names.get(id(tensor)) not in normalised and not scope.same_shape(tensor, y):
      shapes = f"{show(scope.shape(tensor))} is not surely that of the norm, {show(scope.shape(y))}"
      raise NotPointwiseError(f"{kept}, and its shape {shapes}")
    # Names for what it reads: its first large input inherits that of what it makes.
    large = [not _surely_smaller(scope.shape(each), scope.shape(y)) for each in node.inputs]
    inherits = large.index(True) if True in large else 0
    small = {"Add": "bias", "Sub": "bias", "Mul": "scale", "Div": "scale"}.get(scope.op(node), "operand")
    hints = ["residual" if is_large else small for is_large in large]
    hints[inherits] = names.get(id(tensor), small)
    hints = [names.get(id(each), hint) for each, hint in zip(node.inputs, hints, strict=True)]
    return write_member(scope, node, hints, DTYPES)


def _is_one(shape: Shape | None) -> bool:
  return shape is not None and all(dim == 1 for dim in shape)


def _surely_smaller(shape: Shape | None, whole: Shape | None) -> bool:
  """Whether a tensor of `shape` has surely fewer elements than one of the shape `whole` that it broadcasts to."""
  if shape is None or whole is None:
    return False
  # A model's own value_info may contradict itself: a rank that is larger is no error here, and no smaller tensor.
  if len(shape) != len(whole):
    return len(shape) < len(whole)
  return any(a == 1 and b != 1 for a, b in zip(shape, whole, strict=True))


NORM_PROLOGUE = RulePass(
  "norm-prologue",
  "residual and bias adds, Casts and other pointwise operators before a norm become part of it",
  _Prologue(),
)
