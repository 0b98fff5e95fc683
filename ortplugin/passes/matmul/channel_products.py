"""Products between Transposes that put the channels last for them become convolutions of one pixel, channels first.

    t = Transpose<perm = [0, 2, 1]>(x); c = FusedMatMul(t, w, b); y = Transpose<perm = [0, 2, 1]>(c)

with x [N, K, P] becomes y = FusedConv(x, v, d), v [M, K, 1], d [M, 1]. So tokens are mixed in MLP-Mixer, ResMLP and
gMLP, and attention's heads in CaiT. What is pointwise behind it is drawn in then.
"""

import onnx_graphsurgeon as gs

from ...graph import ELEMENTS, Scope, Shape, labelled, show
from ...program import parse
from ..conv.fused import conv_dtype, conv_node
from ..conv.planes import has_engine
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import reshape
from .fused import OWN_INPUTS, is_product
from .matmul_views import is_row


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the products before one Transpose, if another one is before them."""
  products: list[gs.Node] = []
  if not _moves(scope, node, last_to=1):
    return None
  reader, tensor = node, node.inputs[0]
  while (maker := scope.producer(tensor)) is not None and is_product(scope, maker):
    reason = scope.used_beyond(tensor, [reader]) or ("" if len(maker.outputs) == 1 else "it has several results")
    if reason:
      return Missed(maker, reason)
    products.insert(0, maker)
    reader, tensor = maker, maker.inputs[0]
  if not products or maker is None or not _moves(scope, maker, last_to=0):
    return None
  x = maker.inputs[0]
  shape = scope.shape(x)
  for product in products:
    made = _shape(scope, product, shape)
    if made is None or not has_engine(conv_dtype(scope, product), shape, made[1]):
      filters = "unknown filters" if made is None else f"{made[1]} filters"
      return Missed(product, f"no engine with channels first takes '{x.name}', {show(shape)}, and {filters}")
    wide = next((each for each in product.inputs[OWN_INPUTS:] if not is_row(scope, each)), None)
    if wide is not None:
      return Missed(product, f"'{wide.name}' is not one number for each of its columns")
    shape = made
  labels = labelled(maker, *products, node)
  gone = [*products, node] if scope.used_beyond(tensor, products) else [maker, *products, node]
  new: list[gs.Node] = []
  for product in products:
    new.append(_convolution(scope, product, x, len(shape or ()) - 2))
    if product is not products[-1]:
      x = gs.Variable(scope.unique(f"{product.outputs[0].name}_first"), x.dtype, _shape(scope, product, scope.shape(x)))
      new[-1].outputs.append(x)
  scope.replace(gone, new, [node.outputs[0]])
  return Applied(labels, new[-1])


def _moves(scope: Scope, node: gs.Node, last_to: int) -> bool:
  """Whether it is a Transpose of three axes or more that puts the second one last (0), or the last one second (1)."""
  perm = [int(axis) for axis in node.attrs.get("perm") or ()] if scope.op(node) == "Transpose" else []
  rank = len(perm)
  return rank > 2 and perm == ([0, rank - 1, *range(1, rank - 1)] if last_to else [0, *range(2, rank), 1])


def _shape(scope: Scope, product: gs.Node, x: Shape | None) -> Shape | None:
  """The convolution's result; None where the weights are no constant."""
  weights = scope.constant(product.inputs[1], ELEMENTS)
  if weights is None or weights.ndim != 2 or x is None:
    return None
  return (x[0], weights.shape[0 if product.attrs.get("trans_b", 0) else 1], *x[2:])


def _convolution(scope: Scope, product: gs.Node, x: gs.Tensor, spatial: int) -> gs.Node:
  """The convolution in the product's place, without outputs."""
  weights = scope.constant(product.inputs[1], ELEMENTS)
  assert weights is not None
  rows = weights if product.attrs.get("trans_b", 0) else weights.T
  ones = [1] * spatial
  inputs = [x, scope.add_constant(rows.reshape(*rows.shape, *ones), f"{product.inputs[1].name}_filters")]
  for each in product.inputs[OWN_INPUTS:]:
    columns = (scope.shape(each) or (1,))[-1]
    inputs.append(each if columns == 1 else reshape(scope, product, each, [rows.shape[0], *ones]))
  attributes = {name: value for name, value in product.attrs.items() if name == "allow_tf32"}
  program = parse(str(product.attrs["program"]))
  return conv_node("FusedConv", product.name, {"kernel_shape": ones, **attributes}, program, inputs)


CHANNEL_PRODUCTS = RulePass(
  "channel-products", "products between Transposes become pointwise convolutions with channels first", rewrite
)
