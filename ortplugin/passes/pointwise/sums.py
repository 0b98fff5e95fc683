"""Sums in a graph: ReduceSum of any opset and FusedSumTo as programs, and what of their tensors is whole."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, NotPointwiseError, Scope, broadcast, equal, label
from ...ops.sum_to import NAME, sum_of, why_no_sum
from ...program import FLOATING, MAX_SUM_AXIS, Parameter, Program, Statement
from ..absorb import Core
from ..members import Member, check_ranks


class SumCore(Core):
  """What a sum is to what is pointwise around it (passes/absorb.py)."""

  operators = (NAME,)
  statements = ("SumTo",)

  def read(self, scope: Scope, node: gs.Node) -> Member | None:
    """The sum as a program; None for another operator, and for a ReduceSum over no axis or of no floating dtype.

    Raises NotPointwiseError with the reason where a ReduceSum can be none.
    """
    if scope.op(node) == "ReduceSum":
      return _reduce_sum(scope, node)
    sums = super().read(scope, node)
    return None if sums is None or why_no_sum(sums.program) else sums

  def node_of(self, first: Member, program: Program, inputs: Sequence[gs.Tensor]) -> gs.Node:
    """The node with another program. Raises NotPointwiseError if that is none of this operator."""
    if reason := why_no_sum(program):
      raise NotPointwiseError(reason)
    return gs.Node(NAME, first.node.name, {"program": str(program)}, list(inputs), [], DOMAIN)


def _reduce_sum(scope: Scope, node: gs.Node) -> Member | None:
  x, y = node.inputs[0], node.outputs[0]
  dtype = scope.dtype(x)
  if dtype not in FLOATING or scope.dtype(y) != dtype:
    return None
  if not (axes := axes_of_reduction(scope, node)):
    return None
  words = " ".join(map(str, axes))
  sum_to = Statement("y", "SumTo", ("x",), (("axes", words), ("keepdims", float(node.attrs.get("keepdims", 1)))))
  return Member(node, Program((Parameter(dtype, "x"),), (Parameter(dtype, "y"),), (sum_to,)), (x,), (y,))


def axes_of_reduction(scope: Scope, node: gs.Node) -> list[int]:
  """The axes, ascending from 0 on; none where the operator changes nothing or reduces a scalar.

  Raises NotPointwiseError where they or a rank are unknown, or a rank is beyond a FusedSumTo's.
  """
  check_ranks(scope, [node.inputs[0], node.outputs[0]])
  rank = scope.rank(node.inputs[0]) or 0
  if (axes := scope.axes(node)) is None:
    raise NotPointwiseError(f"the axes '{node.inputs[1].name}' of {label(node)} are no constant")
  if not axes:
    axes = [] if node.attrs.get("noop_with_empty_axes", 0) else list(range(rank))
  if rank > MAX_SUM_AXIS + 1:
    raise NotPointwiseError(f"{label(node)} has an operand of {rank} dimensions, more than {MAX_SUM_AXIS + 1}")
  return sorted({axis + rank if axis < 0 else axis for axis in axes})


def is_spared(scope: Scope, sums: Member, other: Member, tensor: gs.Tensor) -> bool:
  """Whether reading again what `tensor` is made of costs less than to write and read it, and nobody else needs it.

  `tensor`: what `other` sums over axes of its own.
  """
  if any(tensor is each for each in totals_of(sums)) or scope.used_beyond(tensor, [sums.node, other.node]):
    return False
  for result, made in zip(sums.program.results, sums.outputs, strict=True):
    if made is tensor:
      needed = sums.program.needed_for([result.name])
      given = zip(sums.program.parameters, sums.inputs, strict=True)
      return sum(each.name in needed and is_whole(scope, sums, t) for each, t in given) <= 2
  return False


def totals_of(sums: Member) -> list[gs.Tensor]:
  """The outputs that are sums."""
  results = zip(sums.program.results, sums.outputs, strict=True)
  return [tensor for result, tensor in results if sum_of(sums.program, result.name) is not None]


def is_whole(scope: Scope, sums: Member, tensor: gs.Tensor) -> bool:
  """Whether the tensor has surely the shape S of the sums' terms, in every run."""
  if equal(scope.shape(tensor), broadcast([scope.shape(each) for each in sums.inputs])):
    return True
  whole = (w for w in sums.inputs if all(scope.broadcasts_to(each, w) for each in sums.inputs))
  return any(scope.same_shape(tensor, each) for each in whole)
