"""Pointwise operators after a FusedMatMul become its epilogue: bias, Gelu, scale, residual sums, gates, Casts.

    c = FusedMatMul(x, w); a = Add(c, bias); g = Gelu(a); y = Mul(g, up)     becomes    y = FusedMatMul(x, w, bias, up)

What is drawn in is a chain (passes/absorb.py): each operator in it saves reading a value of the product from memory.
It may leave several values, as long as each has to be written anyway, because something that is not pointwise reads it.
A value that only pointwise operators or sums outside would read is computed there instead, and a Cast that only a norm
reads in the norm. Where two products meet in an Add, the later one takes it, which can read the earlier one's result.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, is_pointwise
from ...graph.lengths import same_lengths
from ...ops.layer_norm import NAME as FUSED_LAYER_NORM
from ...ops.pointwise import NAME as FUSED_POINTWISE
from ...ops.sum_to import NAME as FUSED_SUM_TO
from ...program import MAX_RESULTS
from ..absorb import Chain, chain_of, drawn
from ..chain_pass import ChainPass
from ..members import Member, compose
from .fused import MATMUL, is_product


def _draw(scope: Scope, members: list[Member], outputs: list[gs.Tensor]) -> gs.Node:
  nodes = [member.node for member in members]
  program, inputs = compose(members, outputs)
  assert inputs[0] is members[0].inputs[0]  # the product's value
  new = MATMUL.node_of(members[0], program, inputs)
  scope.replace(nodes, new, outputs)
  return new


def _chain(scope: Scope, node: gs.Node) -> Chain:
  """The product and what it draws in, in order; what they make for others; why there is no more."""
  first = MATMUL.read(scope, node)
  if first is None:
    return [], [], []

  def fit(tensor: gs.Tensor, inside: list[gs.Tensor]) -> tuple[bool, bool]:
    same = scope.same_shape(tensor, node.outputs[0]) or same_lengths(scope, tensor, node.outputs[0])
    return same or scope.broadcasts_to(tensor, node.outputs[0]), same

  return chain_of(
    scope,
    first,
    lambda each, members: drawn(scope, MATMUL, each, members, fit),
    lambda left, before: len(left) <= MAX_RESULTS and _spared(scope, left) <= _spared(scope, before),
  )


def _spared(scope: Scope, values: list[gs.Tensor]) -> int:
  """The bytes of an element of those values that only pointwise operators and sums read."""
  return sum(np.dtype(each.dtype).itemsize for each in values if not _is_wanted(scope, each))


def _is_wanted(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether something needs the tensor in memory, whatever pointwise operators and sums are fused."""
  readers = list(tensor.outputs)
  if scope.is_output(tensor) or any(id(each) not in scope.position for each in readers):
    return True
  spared = [FUSED_POINTWISE, FUSED_SUM_TO]
  if scope.producer(tensor, "Cast") is not None:
    spared.append(FUSED_LAYER_NORM)  # which reads the narrow value and casts it itself
  names = {"ReduceSum", *(f"{DOMAIN}::{each}" for each in spared)}
  return any(scope.op(each) not in names and not is_pointwise(scope, each) for each in readers)


MATMUL_EPILOGUE = ChainPass(
  "matmul-epilogue",
  "bias, activations, residual sums and other pointwise operators after a FusedMatMul become part of it",
  is_product,
  _chain,
  _draw,
)
