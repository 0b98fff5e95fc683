"""A Gemm of pooled vectors becomes a FusedConv of one pixel, to have its epilogue and the kernel for few vectors.

    p [N, 1, 1, K]; x = Flatten(p); y = Gemm(x, w, b)      becomes      c = FusedConv(p, v, b); y = Reshape(c, [0, M])

That is a classifier after convolutions with channels last, and its second layer after an activation: conv-epilogue
draws that in through the view. So does a MatMul.
"""

import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import ELEMENTS, Scope, attached, labelled, optional_input
from ..conditions import unsupported
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import integers
from .fused import biased, conv_dtype, conv_node
from .matmul_to_conv import from_convolutions

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one Gemm or MatMul."""
  if scope.op(node) not in ("Gemm", "MatMul") or scope.rank(node.inputs[0]) != 2 or unsupported(scope):
    return None
  if (pixels := pixels_of(scope, node.inputs[0])) is None:
    return None
  dtype, w = conv_dtype(scope, node), node.inputs[1]
  weights = None if attached(w, "initial") is not None else scope.constant(w, ELEMENTS)
  if dtype is None or weights is None or weights.ndim != 2:
    return Missed(node, f"'{w.name}' is no constant of two dimensions of the dtype of '{pixels.name}'")
  rows = weights if node.attrs.get("transB", 0) else weights.T
  if not len(rows):
    return None  # to a Reshape 0 is no length: it copies the 1 that stands there before
  bias = _bias(scope, node, len(rows))
  if isinstance(bias, str):
    return Missed(node, bias)
  spatial = (scope.rank(pixels) or 0) - 2
  v = scope.add_constant(rows.reshape(len(rows), *[1] * spatial, rows.shape[1]), f"{w.name}_rows")
  inputs = [pixels, v]
  if bias is not None:
    inputs.append(scope.add_constant(bias, f"{node.inputs[2].name}_row"))
  attributes = {"layout": "NHWC", "kernel_shape": [1] * spatial}
  conv = conv_node("FusedConv", node.name, attributes, biased(dtype, bias is not None), inputs)
  y = node.outputs[0]
  batch = (scope.shape(pixels) or (None,))[0]
  made = scope.like(y, "nhwc", (batch, *[1] * spatial, len(rows)))
  labels = labelled(node)
  scope.replace([node], conv, [made])
  view = [made, integers(scope, [0, len(rows)], f"{y.name}_shape")]
  scope.insert_after(gs.Node("Reshape", scope.unique(f"{y.name}/Reshape"), {}, view, [y]), conv)
  return Applied(labels, conv)


def pixels_of(scope: Scope, x: gs.Tensor) -> gs.Tensor | None:
  """[N, 1, .., K], of which x [N, K] is a view, and to which convolutions with channels last lead, or None."""
  channels = (scope.shape(x) or (None, None))[1]
  if not isinstance(channels, int) or channels < 1:
    return None
  while (view := scope.producer(x, *VIEWS)) is not None:
    x = view.inputs[0]
    shape = scope.shape(x)
    if shape is not None and 3 <= len(shape) <= 5 and shape[-1] == channels and all(d == 1 for d in shape[1:-1]):
      return x if from_convolutions(scope, x) else None
  return None


def _bias(scope: Scope, node: gs.Node, count: int) -> Array | str | None:
  """The bias of a Gemm, one number for each column or one for all; None if it has none; else why it is no bias."""
  if scope.op(node) == "MatMul":
    return None
  scale = [float(node.attrs.get(name, 1)) for name in ("alpha", "beta")]
  if node.attrs.get("transA", 0) or scale != [1, 1]:
    return f"it has transA = {node.attrs.get('transA', 0)}, alpha = {scale[0]:g} and beta = {scale[1]:g}"
  if (given := optional_input(node, 2)) is None:
    return None
  bias = None if attached(given, "initial") is not None else scope.constant(given, ELEMENTS)
  # [N, 1] is one number for each row, even where there are as many rows as columns.
  if bias is None or (bias.size != 1 and bias.shape not in ((count,), (1, count))):
    return f"its bias '{given.name}' is no constant with one number for each of {count} columns"
  return bias.reshape(-1)


GEMM_TO_CONV = RulePass(
  "gemm-to-conv", "a Gemm or MatMul of what convolutions with channels last pooled becomes one of one pixel", rewrite
)
