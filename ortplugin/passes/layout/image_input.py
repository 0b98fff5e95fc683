"""The first convolution of a network reads its image as it comes, with channels first.

    t = Transpose(x); y = FusedConv<layout = "NHWC">(t, w)     becomes     y = FusedConv<layout = "NHWC",
                                                                                         input_layout = "NCHW">(x, w)

Transposing an image of three channels takes ONNX Runtime longer than the convolution that follows (21 microseconds for
eight of 224 x 224 in float16 on an H200, 14 for 64 filters of 7 x 7), and our engine `stem` reads either.
"""

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, labelled
from ...ops.conv import NAME
from ..conv.fused import is_channels_last
from ..driver import Applied, Missed, Outcome, RulePass
from .plan import is_perm, to_last

MOST_CHANNELS = 4  # with more, channels last are worth a Transpose


def read_as_it_comes(scope: Scope, node: gs.Node) -> Outcome:
  """Lets a convolution of few channels read what the Transpose before it reads."""
  if scope.op(node) != f"{DOMAIN}::{NAME}" or not is_channels_last(node) or "input_layout" in node.attrs:
    return None
  transpose = scope.producer(node.inputs[0])
  if transpose is None or not is_perm(scope, transpose, to_last):
    return None
  if (shape := scope.shape(transpose.inputs[0])) is None or len(shape) != 4:
    return None
  if not isinstance(shape[1], int) or shape[1] > MOST_CHANNELS:
    return Missed(node, f"its image has {shape[1]} channels; up to {MOST_CHANNELS} are read as they come")
  labels = labelled(transpose, node)
  node.inputs[0] = transpose.inputs[0]
  node.attrs["input_layout"] = "NCHW"
  if not scope.is_output(transpose.outputs[0]) and not transpose.outputs[0].outputs:
    scope.remove(transpose)
  return Applied(labels, node)


IMAGE_INPUT = RulePass(
  "image-input", "a convolution of few channels reads its image with channels first", read_as_it_comes
)
