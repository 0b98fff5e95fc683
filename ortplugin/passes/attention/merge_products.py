"""The projections of one attention that read the same tensor become one product, which it reads where they lie:

    Q = x Wq + bq,  K = x Wk + bk,  V = x Wv + bv      becomes      P = x [Wq Wk Wv] + [bq bk bv]
    FusedAttention(Q, K, V)                                         FusedAttention(P, P, P)

with "b s (h:0/24 d)", "b s (h:16/24 d)", "b s (h:20/24 d)" for 16 heads and 4 of K and V. x is read once, and few rows
are enough to occupy a GPU. So are K and V alone where they come from an encoder. A bias that is missing is zeros, and
one number, which is what repeated-constants makes of equal ones, is that number for each column.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import ELEMENTS, Scope, attached, labelled, show
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import emit
from .node import is_attention
from .operands import OPERANDS

COPY_BYTES = 1 << 24  # weights that something else reads too are copied, at the price of a larger file, up to this size
TAIL = " (h d)"


@dataclass(frozen=True)
class Projection:
  """One operand of an attention as a product with constants: x [.., K] weight [K, heads * d] + bias [heads * d]."""

  index: int
  heads: int
  layout: str
  x: gs.Tensor
  weight: Array
  bias: Array | None
  nodes: tuple[gs.Node, ...]

  @property
  def key(self) -> tuple[int, str, int]:
    """Equal of those that may be one product."""
    return id(self.x), self.layout, self.weight.shape[1] // self.heads


def merge(scope: Scope, node: gs.Node) -> Outcome:
  """Merges projections of one attention; with several tensors those of one after the other."""
  if not is_attention(scope, node):
    return None
  found = [_operand(scope, node, index) for index in range(3)]
  groups: dict[tuple[int, str, int], list[Projection]] = {}
  for each in found:
    if isinstance(each, Projection):
      groups.setdefault(each.key, []).append(each)
  group = next((each for each in groups.values() if len(each) > 1), None)
  if group is None:
    return [each for each in found if isinstance(each, Missed)] or None
  return _merge(scope, node, group)


def _merge(scope: Scope, node: gs.Node, group: Sequence[Projection]) -> Applied:
  labels = labelled(*nodes_of(group))
  product = merged_product(scope, node, group)
  total, first = sum(each.heads for each in group), 0
  for each in group:
    node.inputs[each.index] = product
    lead = each.layout.removesuffix(TAIL)
    node.attrs[OPERANDS[each.index][0]] = f"{lead} (h:{first}/{total} d)"
    first += each.heads
  for old in nodes_of(group):
    scope.remove(old)
  return Applied(labels, node)


def nodes_of(group: Sequence[Projection]) -> list[gs.Node]:
  """What makes the operands, each once."""
  return list({id(each): each for one in group for each in one.nodes}.values())


def merged_product(scope: Scope, node: gs.Node, group: Sequence[Projection]) -> gs.Tensor:
  """One product in front of `node` for all of them, side by side."""
  x, width = group[0].x, sum(each.weight.shape[1] for each in group)
  dtype = group[0].weight.dtype
  weight = scope.add_constant(np.concatenate([each.weight for each in group], axis=1), f"{node.name}/weights")
  shape = (*(scope.shape(x) or ())[:-1], width)
  product = emit(scope, node, "MatMul", [x, weight], shape)
  if any(each.bias is not None for each in group):
    biases = [np.zeros(each.weight.shape[1], dtype) if each.bias is None else each.bias for each in group]
    bias = scope.add_constant(np.concatenate(biases), f"{node.name}/bias")
    product = emit(scope, node, "Add", [product, bias], shape)
  return product


def _operand(scope: Scope, node: gs.Node, index: int) -> Projection | Missed | None:
  """An operand of the attention as a product, if it lies as one leaves it."""
  name, heads_of = OPERANDS[index]
  layout, heads = node.attrs.get(name, "b h s d"), int(node.attrs[heads_of])
  text = layout.decode() if isinstance(layout, bytes) else str(layout)
  tensor = node.inputs[index]
  if not text.endswith(TAIL) or sum(each is tensor for each in node.inputs) > 1:
    return None
  return projection(scope, node, tensor, heads, index, text)


def projection(
  scope: Scope, node: gs.Node, tensor: gs.Tensor, heads: int, index: int, layout: str
) -> Projection | Missed | None:
  """What `node` reads as a product; None if it is none, Missed if it is one that can't be merged."""
  made, bias, nodes = scope.producer(tensor), None, []
  if made is not None and scope.op(made) == "Add":
    pairs = zip(made.inputs, reversed(made.inputs), strict=True)
    vectors = [_vector(scope, each, scope.rank(other)) for each, other in pairs]
    at = next((i for i, each in enumerate(vectors) if each is not None), None)
    if at is None:
      return None
    nodes, bias, made = [made], vectors[at], scope.producer(made.inputs[1 - at])
  product = None if made is None else _product(scope, made)
  if made is None or product is None:
    return None
  x, weights, inner, transposed = product
  if inner is not None and bias is not None:
    return None
  nodes.append(made)
  if _may_be_overridden(weights):
    return Missed(made, f"a caller may override '{weights.name}', which is a graph input")
  if used := _used(scope, node, nodes):
    return Missed(made, used)
  if (weight := scope.constant(weights, ELEMENTS)) is None or weight.ndim != 2:
    return None
  weight = weight.T if transposed else weight
  if scope.used_beyond(weights, [made]) and weight.nbytes > COPY_BYTES:
    return Missed(made, f"its weights, {show(weight.shape)}, are used elsewhere too and would be copied")
  bias = inner if bias is None else bias
  if weight.shape[1] % heads or (bias is not None and bias.size not in (1, weight.shape[1])):
    return None
  bias = None if bias is None else np.broadcast_to(bias, weight.shape[1])
  return Projection(index, heads, layout, x, weight, bias, tuple(nodes))


def _product(scope: Scope, node: gs.Node) -> tuple[gs.Tensor, gs.Tensor, Array | None, bool] | None:
  """x, weights, bias and whether the weights are transposed, of a MatMul or a plain Gemm."""
  op = scope.op(node)
  if op not in ("MatMul", "Gemm") or not (scope.is_constant(node.inputs[1]) or _may_be_overridden(node.inputs[1])):
    return None
  if op == "MatMul":
    return node.inputs[0], node.inputs[1], None, False
  plain = all(node.attrs.get(name, 1.0) == 1.0 for name in ("alpha", "beta")) and not node.attrs.get("transA", 0)
  if not plain:
    return None
  has_bias = len(node.inputs) > 2 and not node.inputs[2].is_empty()
  bias = _vector(scope, node.inputs[2], 2) if has_bias else None
  if has_bias and bias is None:
    return None
  return node.inputs[0], node.inputs[1], bias, bool(node.attrs.get("transB", 0))


def _may_be_overridden(tensor: gs.Tensor) -> bool:
  """Whether it is an initializer that is a graph input, too."""
  return attached(tensor, "initial") is not None


def _vector(scope: Scope, tensor: gs.Tensor, rank: int | None) -> Array | None:
  """A constant with one number for each column, or one for all, without axes of length 1 before them.

  `rank`: of what it is added to, whose rank it must not raise.
  """
  values = None if _may_be_overridden(tensor) else scope.constant(tensor, ELEMENTS)
  if values is None or (rank is not None and values.ndim > rank) or values.shape[-1:] not in ((), (values.size,)):
    return None
  return values.reshape(-1)


def _used(scope: Scope, node: gs.Node, nodes: Sequence[gs.Node]) -> str:
  """Who else needs a value that would disappear: the attention may read the product before the bias, too, as its V.

  `nodes`: from the attention back, so that each is read by the one before it alone.
  """
  found = (scope.used_beyond(each.outputs[0], [by]) for by, each in zip((node, *nodes), nodes, strict=False))
  return next((used for used in found if used), "")


MERGE_PRODUCTS = RulePass("merge-products", "products of one tensor that one attention reads become one", merge)
