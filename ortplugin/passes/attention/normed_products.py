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
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import emit, integers
from ..members import Member
from ..norm.fused import NormCore, node_of
from .merge_products import Projection, merged_product, nodes_of, projection
from .node import is_attention

LAYOUTS = ("b s h d", "b h s d")  # of a norm's result: as Reshape leaves it, and behind a Transpose
PRODUCT = "b s (h d)"
CORE = NormCore()


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
  normed = [_normed(scope, node, 0, "heads"), _normed(scope, node, 1, "kv_heads")]
  if missed := [each for each in normed if isinstance(each, Missed)]:
    return missed
  found = [each for each in normed if isinstance(each, _Normed)]
  if len(found) < 2 or not _are_alike(*found):
    return None
  q, k = found
  constants = _constants(scope, found)
  if isinstance(constants, str):
    return Missed(k.norm.node, constants)
  v = None
  if str(node.attrs.get("v_layout")) == PRODUCT:
    v = projection(scope, node, node.inputs[2], k.product.heads, 2, PRODUCT)
  is_merged = isinstance(v, Projection) and v.x is q.product.x and v.weight.shape[1] == k.product.weight.shape[1]
  group = [q.product, k.product, *([v] if is_merged and isinstance(v, Projection) else [])]
  return _merge(scope, node, found, group, constants)


def _merge(
  scope: Scope, node: gs.Node, found: Sequence[_Normed], group: Sequence[Projection], constants: Sequence[Array]
) -> Applied:
  q = found[0]
  old = [*(each.norm.node for each in found), *(view for each in found for view in each.views), *nodes_of(group)]
  labels = labelled(*old)
  total = sum(each.heads for each in group)
  product = merged_product(scope, node, group)
  shape = (*(scope.shape(product) or ())[:-1], total, q.size)
  x = emit(scope, node, "Reshape", [product, integers(scope, [0, 0, total, q.size], "heads")], shape)
  program, inputs = q.norm.program, [*q.norm.inputs]
  others = [i for i in range(len(inputs)) if i != q.at]
  for i, values in zip(others, constants, strict=True):
    whole = np.ones((total, q.size), values.dtype)
    whole[: len(values)] = values
    inputs[i] = scope.add_constant(whole, q.norm.inputs[i].name)
  inputs[q.at] = x
  if len(group) == 3:
    is_normed = np.arange(total)[:, None] < total - group[2].heads
    inputs.append(scope.add_constant(is_normed, f"{node.name}/normed"))
    chosen, y = Parameter("bool", program.fresh("normed")), program.fresh("y")
    where = Statement(y, "Where", (chosen.name, program.results[0].name, program.parameters[q.at].name))
    program = program.with_statements([where], [Parameter(program.results[0].dtype, y)], [chosen])
  norm = node_of(program, inputs, q.norm.node.name)
  norm.outputs = [gs.Variable(scope.unique(f"{node.name}/heads"), q.norm.outputs[0].dtype, shape)]
  scope.insert(norm, node)
  first = 0
  for each, name in zip(group, ("q_layout", "k_layout", "v_layout"), strict=False):
    node.inputs[each.index] = norm.outputs[0]
    node.attrs[name] = f"b s h:{first}/{total} d"
    first += each.heads
  for each in old:
    scope.remove(each)
  return Applied(labels, node)


def _normed(scope: Scope, node: gs.Node, index: int, heads_of: str) -> _Normed | Missed | None:
  """Q or K as a norm of a product's heads."""
  name = ("q_layout", "k_layout")[index]
  made, layout = scope.producer(node.inputs[index]), str(node.attrs.get(name, STANDARD))
  if made is None or layout not in LAYOUTS or (norm := CORE.read(scope, made)) is None:
    return None
  core = norm.program.core
  given = [i for i, each in enumerate(norm.program.parameters) if each.name in norm.program.prologue]
  if core is None or len(given) != 1 or len(norm.outputs) != 1 or core.number("axis") != -1:
    return None
  dtypes = {norm.program.parameters[given[0]].dtype, norm.program.results[0].dtype}
  if core.attribute("axes") or core.number("groups") or len(dtypes) > 1:
    return None
  if used := scope.used_beyond(norm.outputs[0], [node]):
    return Missed(made, used)
  views = _views(scope, made, norm.inputs[given[0]], int(node.attrs[heads_of]), layout)
  if not views:
    return None
  before = views[-1]
  product = projection(scope, before, before.inputs[0], int(node.attrs[heads_of]), index, PRODUCT)
  if not isinstance(product, Projection):
    return product
  return _Normed(norm, given[0], views, product)


def _views(scope: Scope, norm: gs.Node, x: gs.Tensor, heads: int, layout: str) -> tuple[gs.Node, ...]:
  """From what is normalised back to the product: the Transpose, if heads are in front, and the Reshape; or nothing."""
  views: list[gs.Node] = []
  for op in ("Reshape",) if layout == LAYOUTS[0] else ("Transpose", "Reshape"):
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


def _are_alike(q: _Normed, k: _Normed) -> bool:
  """Whether both norms are one but for their constants, of products of one tensor."""
  return q.product.x is k.product.x and q.size == k.size and q.at == k.at and str(q.norm.program) == str(k.norm.program)


def _constants(scope: Scope, found: Sequence[_Normed]) -> list[Array] | str:
  """What the norms read besides, [heads of Q and of K, size], of each operand; or which is no constant of a head."""
  values = []
  for i in range(len(found[0].norm.inputs)):
    if i == found[0].at:
      continue
    rows = []
    for each in found:
      tensor = each.norm.inputs[i]
      array = scope.constant(tensor, ELEMENTS)
      if array is None or array.shape[-1:] not in ((), (array.size,)) or array.size not in (1, each.size):
        return f"'{tensor.name}' is no constant of one head"
      rows.append(np.broadcast_to(array.reshape(-1), (each.product.heads, each.size)))
    values.append(np.concatenate(rows))
  return values


NORMED_PRODUCTS = RulePass(
  "normed-products", "products whose heads are normalised for one attention become one product and one norm", rewrite
)
