"""Conv becomes FusedConv and ConvTranspose FusedConvTranspose, with their bias in the program.

    y = Conv(x, w, b)             becomes      y = FusedConv(x, w, Reshape(b, [M, 1, 1]))

with the program `y = Add(c, bias)`. What is pointwise after it is drawn in by conv-epilogue.
"""

import onnx_graphsurgeon as gs

from ...graph import Dim, Scope, optional_input, show
from ...graph.ort_shapes import may_crop
from ..conditions import unknown_rank, unsupported
from ..driver import Missed, Outcome, RulePass, replaced
from ..emit import unsqueeze
from .fused import biased, conv_dtype, conv_node, why_invalid

FUSED = {"Conv": "FusedConv", "ConvTranspose": "FusedConvTranspose"}  # with one contract: see fused_conv.py
KEPT = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides")


def fuse(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one Conv or ConvTranspose."""
  if (op := FUSED.get(scope.op(node))) is None or len(node.inputs) < 2:
    return None
  x, w = node.inputs[:2]
  bias = optional_input(node, 2)
  dtype = conv_dtype(scope, node)
  reason = unsupported(scope) or unknown_rank(scope, x) or unknown_rank(scope, w)
  if reason is None and dtype is None:
    reason = f"'{x.name}' and '{w.name}' are not known to have one floating dtype"
  if reason is None and bias is not None:
    reason = _bias_problem(scope, bias, _channels(scope, node, w), dtype)
  if reason is not None:
    return Missed(node, reason)
  assert dtype is not None

  attributes = {name: node.attrs[name] for name in KEPT if node.attrs.get(name, []) != []}  # an empty list is none
  kernel = (scope.shape(w) or ())[2:]
  if "kernel_shape" not in attributes and all(isinstance(size, int) for size in kernel):
    attributes["kernel_shape"] = list(kernel)
  if op == "FusedConv" and may_crop(attributes, (scope.rank(x) or 2) - 2):
    return Missed(
      node,
      f"auto_pad {attributes['auto_pad']} beside strides {attributes['strides']}, larger "
      "than the kernel: ONNX Runtime's padding may be negative",
    )
  program = biased(dtype, bias is not None)
  # Asked before the bias gets its shape, which may take a node that would have to go again, and of tensors like x and
  # w, of which it would be a reader that is in no graph.
  like = [gs.Variable(each.name, each.dtype, each.shape) for each in (x, w)]
  if (reason := why_invalid(conv_node(op, node.name, attributes, biased(dtype, False), like))) is not None:
    return Missed(node, reason)
  inputs = [x, w]
  if bias is not None:
    inputs.append(unsqueeze(scope, node, bias, list(range(1, (scope.rank(x) or 0) - 1))))
  new = conv_node(op, node.name, attributes, program, inputs)
  return replaced(scope, [node], new, [node.outputs[0]])


def _channels(scope: Scope, node: gs.Node, w: gs.Tensor) -> Dim:
  """The channels of the result."""
  if (shape := scope.shape(w)) is None or len(shape) < 2:
    return None
  if scope.op(node) == "Conv":
    return shape[0]
  return shape[1] * int(node.attrs.get("group", 1)) if isinstance(shape[1], int) else None


def _bias_problem(scope: Scope, bias: gs.Tensor, channels: Dim, dtype: str | None) -> str | None:
  """Why the bias can't be an operand of the program; None if it can: one number of that dtype for each channel."""
  shape = scope.shape(bias)
  known = shape is not None and len(shape) == 1
  if shape is None or not known or (isinstance(shape[0], int) and isinstance(channels, int) and shape[0] != channels):
    return f"its bias '{bias.name}' has the shape {show(shape)}, not {show((channels,))}"
  if scope.dtype(bias) != dtype:
    return f"its bias '{bias.name}' is not known to be {dtype}, as the rest is"
  return None


FUSE_CONV = RulePass("fuse-conv", "Conv and ConvTranspose become fused ones, with their bias in the program", fuse)
