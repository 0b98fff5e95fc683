"""The last transposed convolution of a network writes its image as it is wanted, with channels first.

    y = Transpose(FusedConvTranspose<layout = "NHWC">(x, w))     becomes     y = FusedConvTranspose<layout = "NHWC",
                                                                                 output_layout = "NCHW">(x, w)

Our engine for few output channels (few_output_channels) writes either; the Transpose takes 12 us for 64 images of
3 x 64 x 64 in fp16 on an H200.
"""

from math import prod

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, show
from ...ops.conv_transpose import NAME
from ...program import parse
from ...target import ENGINES
from ..conv.fused import conv_dtype, conv_node, is_channels_last, why_invalid
from ..driver import Missed, Outcome, RulePass, replaced
from .plan import is_perm, to_first

# What our engine takes on every GPU (FitsFewOutputChannels asks the same lines).
MOST_FILTERS = ENGINES["few_output_channels_most_filters"]
MOST_FILTER = ENGINES["few_output_channels_most_filter"]  # rows and columns of one
MOST_STRIDE = ENGINES["few_output_channels_most_stride"]
MOST_COLUMNS = ENGINES["few_output_channels_most_columns"]  # vectors that one pixel of X becomes
GROUPS = ENGINES["few_output_channels_groups"]
DILATION = ENGINES["few_output_channels_dilation"]
CHANNELS = {  # that it takes at once
  "float16": ENGINES["few_output_channels_vector"],
  "bfloat16": ENGINES["few_output_channels_vector"],
  "float": ENGINES["few_output_channels_vector_fp32"],
}


def write_as_wanted(scope: Scope, node: gs.Node) -> Outcome:
  """Lets a transposed convolution of few filters write what the Transpose after it does."""
  if scope.op(node) != f"{DOMAIN}::{NAME}" or not is_channels_last(node) or "output_layout" in node.attrs:
    return None
  readers = scope.consumers(node.outputs[0])
  transpose = next((each for each in readers if is_perm(scope, each, to_first)), None)
  if transpose is None:
    return None
  reason = why_invalid(node) or _reason(scope, node)
  if len(node.outputs) > 1 or scope.used_beyond(node.outputs[0], [transpose]):
    reason = "others read what it makes with channels last"
  if reason is not None:
    return Missed(node, reason)
  attributes = {**node.attrs, "output_layout": "NCHW"}
  new = conv_node(NAME, node.name, attributes, parse(str(node.attrs["program"])), node.inputs)
  return replaced(scope, [node, transpose], new, [transpose.outputs[0]])


def _reason(scope: Scope, node: gs.Node) -> str | None:
  """Why our engine would not take it, where the shapes tell; another would transpose for itself."""
  dtype, shape = conv_dtype(scope, node), scope.shape(node.inputs[1])
  if dtype not in CHANNELS:
    return f"its dtype is {dtype or 'not known'}; images are written in {', '.join(CHANNELS)}"
  if shape is None or len(shape) != 4:
    return f"its weights have the shape {show(shape)}; an image has two dimensions"
  if node.attrs.get("group", GROUPS) != GROUPS:
    return f"it has {node.attrs['group']} groups; an image is written by one group"
  channels, filters = shape[0], shape[-1]
  if not isinstance(filters, int) or filters > MOST_FILTERS:
    return f"it has {filters} filters; up to {MOST_FILTERS} are written with channels first"
  if not isinstance(channels, int) or channels % CHANNELS[dtype]:
    return f"its {channels} channels are no multiple of {CHANNELS[dtype]}"
  if any(each != DILATION for each in node.attrs.get("dilations") or ()):
    return f"its kernel is dilated by {list(node.attrs['dilations'])}"
  kernel, strides = shape[1:-1], list(node.attrs.get("strides") or (1, 1))
  if any(not isinstance(each, int) or each > MOST_FILTER for each in kernel):
    return f"its kernel is {show(kernel)}; up to {MOST_FILTER} rows and columns are written with channels first"
  columns = -(-prod(strides) * filters // CHANNELS[dtype])
  if max(strides) > MOST_STRIDE or columns > MOST_COLUMNS:
    return f"its strides are {strides}, for {filters} filters; a pixel of X may become {MOST_COLUMNS} vectors"
  return None


IMAGE_OUTPUT = RulePass(
  "image-output", "a transposed convolution of few filters writes its image with channels first", write_as_wanted
)
