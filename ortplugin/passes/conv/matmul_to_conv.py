"""A MatMul of an image with channels last by constant weights becomes a FusedConv of one pixel, to have its epilogue.

    y = MatMul(x, w)     becomes     y = FusedConv<layout = "NHWC">(x, v)     x [N, H, W, K], w [K, M], v [M, 1, 1, K]

That is how ConvNeXt's blocks are written: the linear layers then take in their bias, Gelu, scale and residual. It
happens where the image comes from a convolution with channels last, through normalisations and pointwise operators.
What attention reads stays a product, even if convolutions made the sequence, as those of Whisper's encoder.
"""

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, ELEMENTS, Scope, attached, is_pointwise
from ..conditions import unsupported
from ..driver import Missed, Outcome, RulePass, replaced
from .fused import biased, conv_dtype, conv_node, is_channels_last, is_fused_conv

FAR = 64  # operators between a MatMul and the convolutions before it, at most


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one MatMul."""
  if scope.op(node) != "MatMul" or scope.rank(node.inputs[0]) not in (3, 4, 5):
    return None
  x, w = node.inputs
  if unsupported(scope) or not from_convolutions(scope, x) or _feeds_attention(scope, node.outputs[0]):
    return None
  if (dtype := conv_dtype(scope, node)) is None:
    return Missed(node, f"'{x.name}' and '{w.name}' are not known to have one floating dtype")
  if attached(w, "initial") is not None:
    return Missed(node, f"a caller may override '{w.name}', which is a graph input")
  if (weights := scope.constant(w, ELEMENTS)) is None or weights.ndim != 2:
    return Missed(node, f"'{w.name}' is no constant of two dimensions")
  spatial = (scope.rank(x) or 0) - 2
  rows = scope.add_constant(weights.T.reshape(weights.shape[1], *[1] * spatial, weights.shape[0]), f"{w.name}_rows")
  attributes = {"layout": "NHWC", "kernel_shape": [1] * spatial}
  new = conv_node("FusedConv", node.name, attributes, biased(dtype, False), [x, rows])
  return replaced(scope, [node], new, [node.outputs[0]])


def from_convolutions(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether the tensor comes from convolutions with channels last alone, through operators that keep its shape."""
  rank, found = scope.rank(tensor), False
  stack, seen = [tensor], {id(tensor)}
  while stack:
    if (node := scope.producer(stack.pop())) is None or len(seen) > FAR:
      return False
    if is_fused_conv(scope, node) or scope.op(node) == f"{DOMAIN}::FusedPool":
      if not is_channels_last(node) or "output_layout" in node.attrs:
        return False
      found = True
      continue
    fused = scope.op(node) in (f"{DOMAIN}::FusedLayerNorm", f"{DOMAIN}::FusedPointwise")
    given = [t for t in node.inputs if not t.is_empty() and not scope.is_constant(t)]
    if not (fused or is_pointwise(scope, node)) or any(scope.rank(each) != rank for each in given):
      return False
    stack += [each for each in given if id(each) not in seen]
    seen.update(id(each) for each in given)
  return found  # none where all is made of constants


def _feeds_attention(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether attention reads the tensor, or what one pointwise operator, such as the bias, makes of it."""
  readers = scope.consumers(tensor)
  made = [each.outputs[0] for each in readers if is_pointwise(scope, each)]
  readers += [each for value in made for each in scope.consumers(value)]
  return any(scope.op(each) == f"{DOMAIN}::FusedAttention" for each in readers)


MATMUL_TO_CONV = RulePass(
  "matmul-to-conv", "a MatMul between convolutions with channels last becomes one of one pixel", rewrite
)
