"""ReduceSum and the pointwise operators that make what it sums, or work on the same tensors, become one FusedSumTo.

    a = Sub(1, w); g = Mul(a, dout); dx = ReduceSum(g)
    dy = Mul(w, dout)                                            become      dx, dy = FusedSumTo(w, dout)

So are the gradients of what broadcasts, and those of biases. Each join removes a tensor that would be written and read,
or a second reading of one, and a launch. What is joined:
- a pointwise operator on tensors of the summed shape S that makes what the sum reads, or reads what it reads or makes;
- one on smaller tensors that only the sum needs, where computing it again for every element costs less
  (passes/pointwise/cost.py);
- another sum, over the same axes, or over any of a tensor that then need not be written;
- a Cast of the sum.
A lone ReduceSum stays (slow_sums.py takes some), and so do sums of integers, which wrap here and do not in ONNX
Runtime.
"""

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, NotPointwiseError, Scope, broadcast, element_count, is_pointwise
from ...graph.constant_values import constant_values
from ...graph.shape_values import shape_values
from ...ops.pointwise import NAME as POINTWISE
from ...ops.sum_to import axes_of
from ...program import FLOATING
from ..absorb import in_order, needed
from ..base import PassResult
from ..conditions import unsupported
from ..driver import Missed, Outcome, RulePass
from ..members import Member, member_of
from .cost import too_dear, work
from .sets import tensor_bytes
from .sums import SumCore, is_spared, is_whole, totals_of


class FuseSumTo:
  """The pass; see the module."""

  name = "fuse-sum-to"
  summary = "ReduceSum and the pointwise operators around it become one"

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Joins what can be joined in the graph and its bodies, at most `limit` times."""
    left_alone = shape_values(graph) | constant_values(graph)
    return RulePass(self.name, self.summary, _Sums(left_alone))(graph, limit)


class _Sums(SumCore):
  def __init__(self, left_alone: frozenset[int]) -> None:
    self.left_alone = left_alone

  def __call__(self, scope: Scope, node: gs.Node) -> Outcome:
    if unsupported(scope):
      return None
    try:
      return super().__call__(scope, node)
    except NotPointwiseError as reason:  # of the sum itself
      maker = scope.producer(node.inputs[0])
      return Missed(node, str(reason)) if maker is not None and is_pointwise(scope, maker) else None

  def neighbours(self, scope: Scope, first: Member) -> Iterator[gs.Node]:
    """Who makes what the sums read, who reads what they give out, and who reads what they read."""
    yield from super().neighbours(scope, first)
    totals = totals_of(first)
    for tensor in (*first.outputs, *first.inputs):
      if any(tensor is each for each in totals) or is_whole(scope, first, tensor):
        yield from (each for each in scope.consumers(tensor) if each is not first.node)

  def member(self, scope: Scope, first: Member, node: gs.Node) -> Member | None:
    """A neighbour as a program, None if nothing is gained. Raises NotPointwiseError or ProgramError.

    The shape S of the sums' terms must be the same, surely, before and after: a SumTo adds up over all of S
    whatever its operand's own shape is. So `_gains` proves it for every kind of neighbour, on both sides.
    """
    other = self.read(scope, node) or member_of(scope, node, self.left_alone)
    return other if other is not None and _gains(scope, first, other) else None

  def results(self, scope: Scope, first: Member, other: Member) -> list[gs.Tensor]:
    return needed(scope, in_order(scope, [first, other]))


def _gains(scope: Scope, sums: Member, other: Member) -> bool:
  """Whether fewer bytes are moved if the two are one. Raises NotPointwiseError where it is a near miss, and why."""
  if other.program.core is not None:
    shared = any(each is tensor for each in other.inputs for tensor in sums.inputs)
    axes = {axes_of(each)[0] for each in (*sums.program.cores, *other.program.cores)}
    # Whole in both: an input of shape S that the other one broadcasts to its own, larger S is summed once for each.
    whole = any(is_whole(scope, sums, each) and is_whole(scope, other, each) for each in other.inputs)
    return whole and ((shared and len(axes) == 1) or any(is_spared(scope, sums, other, t) for t in other.inputs))
  if any(tensor is each for tensor in other.inputs for each in totals_of(sums)):
    return scope.op(other.node) == "Cast" and scope.dtype(other.outputs[0]) in FLOATING
  made = [tensor for tensor in other.outputs if any(tensor is each for each in sums.inputs)]
  if not is_whole(scope, sums, other.outputs[0]):
    # On smaller tensors: worth it only for what nobody else needs.
    if not made or any(scope.used_beyond(tensor, [sums.node]) for tensor in other.outputs):
      return False
    size = tensor_bytes(other.outputs[0])
    again = work(each.op for each in other.program.statements) + max(0, len(other.inputs) - 1)
    reason = too_dear(again, size, element_count(broadcast([scope.shape(each) for each in sums.inputs])))
    if reason:
      raise NotPointwiseError(f"'{other.outputs[0].name}' is computed apart: {reason}")
    return True
  reads_result = any(tensor is each for tensor in other.inputs for each in sums.outputs)
  # What only shares an input and is followed by pointwise operators belongs to them: fused, they come back here.
  followed = any(is_pointwise(scope, each) for tensor in other.outputs for each in scope.consumers(tensor))
  return bool(made) or reads_result or scope.op(other.node) == f"{DOMAIN}::{POINTWISE}" or not followed


FUSE_SUM_TO = FuseSumTo()
