"""Projections whose heads are normalised in front of attention, as of Qwen 3, become one product and one norm:

    Q = norm(x Wq, gq)      by heads              P = x [Wq Wk Wv]
    K = norm(x Wk, gk)                becomes     T = norm(P, [gq gk 1])     with V's heads as they are
    V = x Wv                                      FusedAttention(T, T, T)
    FusedAttention(Q, K, V)

with "b s h:0/32 d", "b s h:16/32 d", "b s h:24/32 d" for 16 heads and 8 of K and V: two kernels in place of five. The
norm passes V on by a Where in its program. A V that is no product of x, or of another head size, stays. Norms may stand
behind the Transpose of the heads, as Gemma 3 has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import ELEMENTS, Scope, labelled
from ...ops.attention.layout import STANDARD
from ...program import Parameter, Statement
from ..attention.merge_products import Projection, merged_product, nodes_of, projection
from ..attention.node import is_attention
from ..attention.operands import OPERANDS
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import emit, integers
from ..members import Member
from .fused import NormCore, node_of

BEFORE_TRANSPOSE = "b s h d"  # of a norm's result
PRODUCT = "b s (h d)"


@dataclass(frozen=True)
class _Normed:
  """Q or K: the norm, which of its operands is normalised, the views that make heads, and the product before them."""

  norm: Member
  at: int
  views: tuple[gs.Node, ...]
  product: Projection

  @property
  def size(self) -> int:
    """Elements of a head."""
    return int(self.product.weight.shape[1]) // self.product.heads


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Merges Q, K and, where it may be, V of one attention."""
  if not is_attention(scope, node) or len({id(each) for each in node.inputs[:3]}) < 3:
    return None
  q, k = (_normed(scope, node, index) for index in (0, 1))
  if not isinstance(q, _Normed) or not isinstance(k, _Normed):
    return [each for each in (q, k) if isinstance(each, Missed)] or None
  if q.product.x is not k.product.x or (q.size, q.at) != (k.size, k.at) or str(q.norm.program) != str(k.norm.program):
    return None
  constants = _constants(scope, (q, k))
  if isinstance(constants, str):
    return Missed(k.norm.node, constants)
  group, v = [q.product, k.product], None
  if str(node.attrs.get("v_layout")) == PRODUCT:
    v = projection(scope, node, node.inputs[2], k.product.heads, 2, PRODUCT)
  if isinstance(v, Projection) and v.x is q.product.x and v.weight.shape[1] == k.product.weight.shape[1]:
    group.append(v)
  old = [q.norm.node, k.norm.node, *q.views, *k.views, *nodes_of(group)]
  labels = labelled(*old)
  product, first = _merged(scope, node, q, group, constants), 0
  for each in group:
    node.inputs[each.index] = product
    node.attrs[OPERANDS[each.index][0]] = f"b s h:{first}/{_heads(group)} d"
    first += each.heads
  for gone in old:
    scope.remove(gone)
  return Applied(labels, node)


def _heads(group: Sequence[Projection]) -> int:
  return sum(each.heads for each in group)


def _merged(
  scope: Scope, node: gs.Node, q: _Normed, group: Sequence[Projection], constants: Sequence[Array]
) -> gs.Tensor:
  """The heads of all projections, of which those of Q and K are normalised."""
  total, size = _heads(group), q.size
  product = merged_product(scope, node, group)
  shape = (*(scope.shape(product) or ())[:-1], total, size)
  inputs = [emit(scope, node, "Reshape", [product, integers(scope, [0, 0, total, size], "heads")], shape)]
  for values, given in zip(constants, (each for i, each in enumerate(q.norm.inputs) if i != q.at), strict=True):
    whole = np.ones((total, size), values.dtype)
    whole[: len(values)] = values
    inputs.append(scope.add_constant(whole, given.name))
  inputs.insert(q.at, inputs.pop(0))
  program = q.norm.program
  if len(group) == 3:
    is_normed = np.arange(total)[:, None] < total - group[2].heads
    inputs.append(scope.add_constant(is_normed, f"{node.name}/normed"))
    chosen, result = Parameter("bool", program.fresh("normed")), program.results[0]
    where = Statement(program.fresh("y"), "Where", (chosen.name, result.name, program.parameters[q.at].name))
    program = program.with_statements([where], [Parameter(result.dtype, where.name)], [chosen])
  norm = node_of(program, inputs, q.norm.node.name)
  norm.outputs = [gs.Variable(scope.unique(f"{node.name}/heads"), q.norm.outputs[0].dtype, shape)]
  scope.insert(norm, node)
  return norm.outputs[0]


def _normed(scope: Scope, node: gs.Node, index: int) -> _Normed | Missed | None:
  """Q or K as a norm of a product's heads."""
  name, heads_of = OPERANDS[index]
  made, layout = scope.producer(node.inputs[index]), str(node.attrs.get(name, STANDARD))
  norm = None if made is None else NormCore().read(scope, made)
  if made is None or norm is None or norm.program.core is None or layout not in (STANDARD, BEFORE_TRANSPOSE):
    return None
  core, parameters, results = norm.program.core, norm.program.parameters, norm.program.results
  given = [i for i, each in enumerate(parameters) if each.name in norm.program.prologue]
  if len(given) != 1 or len(results) != 1 or parameters[given[0]].dtype != results[0].dtype:
    return None
  if core.number("axis") != -1 or core.attribute("axes") or core.number("groups"):
    return None
  if used := scope.used_beyond(norm.outputs[0], [node]):
    return Missed(made, used)
  heads = int(node.attrs[heads_of])
  views = _views(scope, made, norm.inputs[given[0]], heads, layout)
  product = projection(scope, views[-1], views[-1].inputs[0], heads, index, PRODUCT) if views else None
  return _Normed(norm, given[0], views, product) if isinstance(product, Projection) else product


def _views(scope: Scope, norm: gs.Node, x: gs.Tensor, heads: int, layout: str) -> tuple[gs.Node, ...]:
  """From what is normalised back to the product: the Transpose, if heads are in front, and the Reshape; or nothing."""
  views: list[gs.Node] = []
  for op in ("Transpose", "Reshape") if layout == STANDARD else ("Reshape",):
    view = scope.producer(x, op)
    if view is None or scope.used_beyond(x, [views[-1] if views else norm]):
      return ()
    if op == "Transpose" and view.attrs.get("perm") != [0, 2, 1, 3]:
      return ()
    views.append(view)
    x = view.inputs[0]
  whole, split = scope.shape(x), scope.shape(views[-1].outputs[0])
  if whole is None or split is None or len(whole) != 3 or len(split) != 4 or None in whole[:2]:
    return ()
  return tuple(views) if whole[:2] == split[:2] and split[2] == heads else ()


def _constants(scope: Scope, found: Sequence[_Normed]) -> list[Array] | str:
  """What the norms read besides, [heads of Q and of K, size], of each operand; or which is no constant of a head."""
  values = []
  for i in range(len(found[0].norm.inputs)):
    rows = []
    for each in found if i != found[0].at else ():
      tensor = each.norm.inputs[i]
      array = scope.constant(tensor, ELEMENTS)
      if array is None or array.shape[-1:] not in ((), (array.size,)) or array.size not in (1, each.size):
        return f"'{tensor.name}' is no constant of one head"
      rows.append(np.broadcast_to(array.reshape(-1), (each.product.heads, each.size)))
    values += [np.concatenate(rows)] if rows else []
  return values


NORMED_PRODUCTS = RulePass(
  "normed-products", "products whose heads are normalised for one attention become one product and one norm", rewrite
)
