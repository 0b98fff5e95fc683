"""A pointwise operator without pointwise neighbours becomes a FusedPointwise of its own.

    y = Add(MatMul(x, w), bias)                       becomes      y = FusedPointwise(MatMul(x, w), bias)

ONNX Runtime's kernels for one operator read broadcast operands slowly and start only once the kernel before them has
ended: after a MatMul, a bias over [8, 197, 768] float16 takes 3.8 microseconds less this way on an H200, a Sigmoid 2.5,
a Relu 0.4. What ONNX Runtime draws into a neighbour stays: a scale into a MatMul, a mask into a Softmax, a bias into a
product of matrices. So do Casts and whatever has no floating-point result.
"""

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, element_count, scopes
from ...graph.constant_values import constant_values
from ...graph.shape_values import shape_values
from ...program import FLOATING
from ..base import Change, PassResult
from .fuse_pointwise import find_members, fuse

PRODUCTS = ("MatMul", "Gemm", "com.microsoft::FusedMatMul")


class LonePointwise:
  """The pass; see the module."""

  name = "lone-pointwise"
  summary = "a pointwise operator with no neighbour to fuse with takes the faster kernel all the same"

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Replaces the operators of the graph and its bodies, at most `limit` of them."""
    changes: list[Change] = []
    left_alone = shape_values(graph) | constant_values(graph)
    for scope in scopes(graph):
      members, _ = find_members(scope, left_alone)
      for member in members.values():
        node = member.node
        if len(changes) == limit:
          break
        if node.domain == DOMAIN or not _pays(scope, node) or _is_drawn_in(scope, node):
          continue
        changes.append(fuse(self.name, scope, [member], list(member.outputs)))
    return PassResult(tuple(changes), ())


def _pays(scope: Scope, node: gs.Node) -> bool:
  result = node.outputs[0]
  return scope.op(node) != "Cast" and scope.dtype(result) in FLOATING and element_count(scope.shape(result)) != 1


def _is_drawn_in(scope: Scope, node: gs.Node) -> bool:
  """Whether ONNX Runtime makes the node part of what is before or behind it."""
  op, result = scope.op(node), node.outputs[0]
  makers = [maker for each in node.inputs if (maker := scope.producer(each)) is not None]
  readers = scope.consumers(result)
  if op in ("Mul", "Div") and any(scope.scalar(each) is not None for each in node.inputs):
    return any(scope.op(each) in PRODUCTS for each in (*makers, *readers))
  if op == "Add":
    is_bias = scope.rank(result) == 2 and any(scope.op(maker) in PRODUCTS for maker in makers)
    return is_bias or any(scope.op(reader) == "Softmax" for reader in readers)
  return False


LONE_POINTWISE = LonePointwise()
