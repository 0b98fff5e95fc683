"""A matrix product and the norm of its rows behind it become one node, of which a GPU makes one kernel.

    v = FusedMatMul(a, b); y = FusedLayerNorm(v, gamma, beta)     becomes     y = FusedMatMulNorm(a, b, gamma, beta)

A norm's own kernel takes 2 to 3 us of an H100 however few rows there are.
"""

import onnx_graphsurgeon as gs

from ...graph.domains import DOMAIN
from ...graph.facts import Scope
from ...graph.shapes import show
from ...ops.layer_norm import NAME as NORM
from ...ops.matmul.norm import NAME
from ...program import ProgramError, parse
from ..driver import Missed, Outcome, RulePass, replaced
from .fused import is_product

DTYPES = ("float16", "bfloat16", "float")
GRAIN, WIDEST = 32, 2048  # columns: of a block a multiple of the one, of a cluster up to the other


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Draws the product before a norm into its node."""
  if scope.op(node) != f"{DOMAIN}::{NORM}" or not node.inputs:
    return None
  value = node.inputs[0]
  product = scope.producer(value)
  if product is None or not is_product(scope, product):
    return None
  try:
    norm = parse(str(node.attrs["program"]))
  except (KeyError, ProgramError):
    return None
  core, shape = norm.core, scope.shape(value)
  width = (shape or (None,))[-1]
  reason = ""
  if core is None or core.number("axis") != -1 or core.attribute("axes") or core.number("groups"):
    reason = "the norm is not over the last axis"
  elif norm.prologue & {each.name for each in norm.parameters[1:]} or norm.parameters[0].dtype not in DTYPES:
    reason = f"the norm is not of '{value.name}' alone, in 16 bits or float32"
  elif "ordered" in node.attrs:
    reason = "the norm reads rows in an order"
  elif not isinstance(width, int) or width % GRAIN or width > WIDEST:
    reason = f"the rows of {show(shape)} are no multiple of {GRAIN} up to {WIDEST}"
  elif len(product.outputs) > 1 or product.attrs.get("algorithm", "auto") != "auto":
    reason = "the product has several results, or an algorithm of its own"
  if reason:
    return Missed(product, reason)
  keeps = int(bool(scope.used_beyond(value, [node])))
  outputs = [value, *node.outputs] if keeps else list(node.outputs)
  attributes = {**product.attrs, "norm": str(norm), "keeps_product": keeps}
  attributes.pop("algorithm", None)
  inputs = [*product.inputs, *node.inputs[1:]]
  new = gs.Node(NAME, product.name, attributes, inputs, [], DOMAIN)
  return replaced(scope, [product, node], new, outputs)


MATMUL_NORM = RulePass("matmul-norm", "a matrix product and the norm behind it become one node", rewrite)
