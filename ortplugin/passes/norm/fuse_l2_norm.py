"""L2 normalisation in float16, as PyTorch's `normalize` has it, becomes a FusedLayerNorm.

    y = x / Clip(ReduceL2(x), 0)     over the last n elements     becomes
    y = RMSNormalization<epsilon = 0>(x) / sqrt(n)

PyTorch's limit of 1e-12 is 0 in float16, where a row of zeros is NaN, as it stays. A larger limit may be above the norm
of a row of small numbers, as may any in a dtype with more exponents: slow_sums.py
has these.
"""

import math
from itertools import pairwise

import onnx_graphsurgeon as gs

from ...graph import Scope, element_count, label
from ...program import Parameter, Program, Statement
from ..conditions import unknown_rank, unsupported
from ..driver import Missed, Outcome, RulePass, replaced
from .decomposed import mean_axes
from .fused import node_of


def _first_axis(scope: Scope, norm: gs.Node, x: gs.Tensor) -> int | str:
  """The first axis, negative, that the norm is taken over up to the last one; or why that is not so."""
  axes, rank = unknown_rank(scope, x) or mean_axes(scope, norm, x), scope.rank(x) or 0
  if isinstance(axes, str) or axes == tuple(range(rank - len(axes), rank)):
    return axes if isinstance(axes, str) else -len(axes)
  return f"the axes {list(axes)} of {label(norm)} are not the trailing ones"


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces a Div and what makes its divisor."""
  if scope.op(node) != "Div" or scope.dtype(node.outputs[0]) != "float16" or unsupported(scope):
    return None
  x, limit = node.inputs[0], scope.producer(node.inputs[1])
  norm, low = limit, 0.0
  if limit is not None and scope.op(limit) in ("Clip", "Max"):
    known = scope.scalar(limit.inputs[1]) if len(limit.inputs) == 2 else None
    norm, low = scope.producer(limit.inputs[0]), math.inf if known is None else known
  if norm is None or limit is None or scope.op(norm) != "ReduceL2" or norm.inputs[0] is not x:
    return None
  axis = _first_axis(scope, norm, x)
  width = None if isinstance(axis, str) else element_count((scope.shape(x) or ())[axis:])
  reason = axis if isinstance(axis, str) else None
  if not width:
    reason = reason or f"how many elements of '{x.name}' are normalised is unknown"
  if low > 0:
    reason = reason or f"the divisor is at least {low}, which may be more than a row's norm"
  old = [norm, *([limit] if limit is not norm else []), node]
  for each, reader in pairwise(old):
    reason = reason or scope.used_beyond(each.outputs[0], [reader]) or None
  if reason or not width or isinstance(axis, str):
    return Missed(node, str(reason))
  statements = (
    Statement("n", "RMSNormalization", ("x",), (("axis", axis), ("epsilon", 0.0))),
    Statement("y", "Mul", ("n", 1 / math.sqrt(width))),
  )
  program = Program((Parameter("float16", "x"),), (Parameter("float16", "y"),), statements)
  return replaced(scope, old, node_of(program, [x], node.name), [node.outputs[0]])


FUSE_L2_NORM = RulePass("fuse-l2-norm", "L2 normalisation in float16 becomes FusedLayerNorm", rewrite)
