"""A convolution of patches, with which vision transformers begin, becomes a matrix product of them.

    y = FusedConv<kernel_shape = strides = [p, q]>(x, w)         x [N, C, h p, w q], NCHW; w [M, p, q, C]; y NHWC

becomes

    a = Transpose<perm = [0, 2, 4, 1, 3, 5]>(Reshape(x, [N, C, h, p, w, q]))
    y = FusedMatMul<trans_b = 1>(Reshape(a, [N, h, w, C p q]), v)                                 v [M, C p q]

with the same program. The filters do not overlap, so that the patches are no larger than the image, and the sums are
long. Of short sums, as Swin's 4 x 4 x 3, our convolution `stem` is as fast.
"""

import onnx_graphsurgeon as gs

from ...graph import ELEMENTS, Scope, attached, show
from ...program import parse
from ..conv.fused import is_fused_conv
from ..driver import Missed, Outcome, RulePass, replaced
from ..emit import emit, integers
from .fused import product_node
from .matmul_to_fused import DTYPES, FLOAT32

LONG = 256  # C p q, from which a product is worth the Transpose


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one convolution."""
  if not is_fused_conv(scope, node) or node.op != "FusedConv" or node.attrs.get("input_layout") != "NCHW":
    return None
  x, w = node.inputs[:2]
  kernel, shape = list(node.attrs.get("kernel_shape", [])), scope.shape(x)
  if node.attrs.get("layout") != "NHWC" or len(kernel) != 2 or scope.dtype(x) not in DTYPES + FLOAT32:
    return None
  if not _is_of_patches(node, kernel) or shape is None or len(shape) != 4:
    return None
  batch, channels, height, width = shape
  p, q = kernel
  if not isinstance(channels, int) or channels * p * q < LONG:
    return None
  if not isinstance(height, int) or not isinstance(width, int) or height % p or width % q:
    return Missed(node, f"'{x.name}' of {show(shape)} is not known to be whole patches of {p} x {q}")
  weights = None if attached(w, "initial") is not None else scope.constant(w, ELEMENTS)
  if weights is None or weights.shape[1:] != (p, q, channels):
    return Missed(node, f"'{w.name}' is no constant that can be rearranged")
  h, v, long = height // p, width // q, channels * p * q
  rows = scope.add_constant(weights.transpose(0, 3, 1, 2).reshape(-1, long), f"{w.name}_rows")
  kept = batch if isinstance(batch, int) else 0  # as it is
  split, whole = [channels, h, p, v, q], [h, v, long]
  a = emit(scope, node, "Reshape", [x, integers(scope, [kept, *split], "split")], (batch, *split))
  a = emit(scope, node, "Transpose", [a], (batch, h, v, channels, p, q), perm=[0, 2, 4, 1, 3, 5])
  a = emit(scope, node, "Reshape", [a, integers(scope, [kept, *whole], "patches")], (batch, *whole))
  new = product_node(node.name, parse(str(node.attrs["program"])), [a, rows, *node.inputs[2:]], True)
  new.attrs |= {name: value for name, value in node.attrs.items() if name == "allow_tf32"}
  return replaced(scope, [node], new, list(node.outputs))


def _is_of_patches(node: gs.Node, kernel: list[int]) -> bool:
  """Whether filters lie side by side on the image, without pads."""
  attributes = node.attrs
  plain = attributes.get("group", 1) == 1 and set(attributes.get("dilations") or [1]) == {1}
  padded = any(attributes.get("pads") or []) or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
  return plain and not padded and list(attributes.get("strides") or [1, 1]) == kernel


PATCHES_TO_MATMUL = RulePass(
  "patches-to-matmul", "a convolution of an image's patches with long sums becomes a matrix product", rewrite
)
