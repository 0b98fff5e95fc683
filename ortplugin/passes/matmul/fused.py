"""The FusedMatMul node in the optimizer: how it is made, and read as the first of a set of pointwise operators."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope
from ...ops.matmul import NAME
from ...program import Program
from ..absorb import Core

OWN_INPUTS = 2  # A and B; the others are the program's


def is_product(scope: Scope, node: gs.Node) -> bool:
  """Whether the node is a matrix product of ours, and one alone: with a gate its operands are no values."""
  return node.op == NAME and scope.op(node) == f"{DOMAIN}::{NAME}" and not node.attrs.get("gated", 0)


def product_node(name: str, program: Program, inputs: Sequence[gs.Tensor], trans_b: bool) -> gs.Node:
  """A product of ours without outputs; `inputs`: A, B and the operands."""
  return gs.Node(NAME, name, {"program": str(program), "trans_b": int(trans_b)}, list(inputs), [], DOMAIN)


class MatMulCore(Core):
  """What a product of ours is to what is pointwise after it (passes/absorb.py)."""

  operators = (NAME,)
  called = "the product"
  prologue = False

  def own(self, node: gs.Node) -> tuple[int, int]:
    """A and B; no output."""
    return OWN_INPUTS, 0


MATMUL = MatMulCore()
