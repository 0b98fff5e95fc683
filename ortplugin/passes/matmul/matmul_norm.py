"""A matrix product and the norm of its rows behind it become one node, of which a GPU makes one kernel; of few rows
the product and the norm of A.

    v = FusedMatMul(a, b); y = FusedLayerNorm(v, gamma, beta)     becomes     y = FusedMatMulNorm(a, b, gamma, beta)

    a = FusedLayerNorm(x, gamma); y = FusedMatMul(a, b)    becomes    y = FusedMatMulNorm<norm_first = 1>(x, b, gamma)

A norm's own kernel takes 2 to 3 us of an H100 however few rows there are.
"""

import math
from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...graph.domains import DOMAIN
from ...graph.facts import Scope
from ...graph.shapes import Shape, show
from ...ops.layer_norm import NAME as NORM
from ...ops.matmul import NAME as PRODUCT
from ...ops.matmul.norm import NAME
from ...program import Program, ProgramError, parse
from ..driver import Missed, Outcome, RulePass, replaced
from .fused import is_product

DTYPES = ("float16", "bfloat16", "float")
GRAIN, WIDEST = 32, 2048  # columns: of a block a multiple of the one, of a cluster up to the other
FEW = 4  # rows, for which products are matrix-vector kernels, each of which can normalise what it reads


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
  shape = scope.shape(value)
  width = (shape or (None,))[-1]
  reason = _is_of_more(norm, node)
  if reason:
    pass
  elif not isinstance(width, int) or width % GRAIN or width > WIDEST:
    reason = f"the rows of {show(shape)} are no multiple of {GRAIN} up to {WIDEST}"
  elif any(each is value for each in node.inputs[1:]):
    reason = f"the norm has '{value.name}' as an operand, too"
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


def _is_of_more(norm: Program, node: gs.Node) -> str:
  """Why the norm is not one of rows of its first input alone; ''."""
  core = norm.core
  if core is None or core.number("axis") != -1 or core.attribute("axes") or core.number("groups"):
    return "the norm is not over the last axis"
  if norm.prologue & {each.name for each in norm.parameters[1:]} or norm.parameters[0].dtype not in DTYPES:
    return f"the norm is not of '{node.inputs[0].name}' alone, in 16 bits or float32"
  return "the norm reads rows in an order" if "ordered" in node.attrs else ""


def rewrite_first(scope: Scope, node: gs.Node) -> Outcome:
  """Draws the norm of a product's few rows into its node."""
  if scope.op(node) != f"{DOMAIN}::{PRODUCT}" or not node.inputs:
    return None
  a = node.inputs[0]
  shape = _known(scope.shape(a))
  if not shape or math.prod(shape[:-1]) > FEW:
    return None
  view = scope.producer(a, "Reshape")
  if view is not None and (scope.shape(view.inputs[0]) or (0,))[-1] != shape[-1]:
    return None
  normalized = a if view is None else view.inputs[0]
  origin = scope.producer(normalized, f"{DOMAIN}::{NORM}")
  if origin is None or not origin.inputs:
    return None
  try:
    norm = parse(str(origin.attrs["program"]))
  except (KeyError, ProgramError):
    return None
  x = origin.inputs[0]
  if view is not None and not scope.same_shape(x, normalized):  # lengths of the view may be the norm's
    return None
  readers = [node if view is None else view]
  reason = _is_of_more(norm, origin)
  if reason:
    pass
  elif norm.parameters[0].dtype != norm.results[0].dtype:
    reason = "the norm reads another dtype than the product"
  elif any(each is a for each in node.inputs[1:]):
    reason = f"the product has '{a.name}' as an operand, too"
  elif len(origin.outputs) > 1 or node.attrs.get("algorithm", "auto") != "auto":
    reason = "the norm has several results, or the product an algorithm of its own"
  elif used := scope.used_beyond(normalized, readers) or scope.used_beyond(a, [node]):
    reason = f"{used}, so the norm has to stay"
  elif any(not _is_vector(scope, each, shape) for each in origin.inputs[1:]):
    reason = f"an operand of the norm is no vector of {shape[-1]}"
  if reason:
    return Missed(origin, reason)
  if view is not None:
    view.inputs[0], a.dtype, x = x, x.dtype, a
  attributes = {**node.attrs, "norm": str(norm), "norm_first": 1}
  attributes.pop("algorithm", None)
  new = gs.Node(NAME, node.name, attributes, [x, *node.inputs[1:], *origin.inputs[1:]], [], DOMAIN)
  return replaced(scope, [origin, node], new, list(node.outputs))


def _known(shape: Shape | None) -> tuple[int, ...] | None:
  """The shape where each of its lengths is known."""
  lengths = tuple(each for each in shape or () if isinstance(each, int))
  return lengths if shape is not None and len(lengths) == len(shape) else None


def _is_vector(scope: Scope, operand: gs.Tensor, rows: Sequence[int]) -> bool:
  """Whether each of the rows has the same elements of the operand, one for each of its own."""
  shape = _known(scope.shape(operand))
  return shape is not None and len(shape) <= len(rows) and math.prod(shape) == rows[-1]


NORM_MATMUL = RulePass("norm-matmul", "a matrix product of few rows and their norm become one node", rewrite_first)
MATMUL_NORM = RulePass("matmul-norm", "a matrix product and the norm behind it become one node", rewrite)
