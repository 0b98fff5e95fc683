"""A first convolution without strides makes two neighbouring columns at once, so that the engine `stem` takes it.

    y = FusedConv(x, w, bias)       x [N, C, H, W]   w [M, h, k, C]   bias [M]   y [N, H, W, M], channels last

becomes

    z = FusedConv<strides = [1, 2]>(x, v, biases)         v [2 M, h, k + 1, C]   z [N, H, W / 2, 2 M]
    y = Reshape(z, [N, H, W, M])

v has every filter twice, with a column of zeros behind it and before it: `stem` loads pixels in pairs, so that each
step must be even. So begin VGG and U-Net. With a Transpose before it cuDNN takes 61 microseconds for eight images of
224 x 224 in float16 on an H100.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, ELEMENTS, Scope, labelled
from ...ops.conv import NAME
from ...program import parse
from ...target import ENGINES
from ..conv.fused import OWN_INPUTS, conv_node
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import integers

MOST_FILTERS = ENGINES["stem_most_filters"] // 2


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one FusedConv."""
  if scope.op(node) != f"{DOMAIN}::{NAME}" or "input_layout" not in node.attrs or len(node.outputs) != 1:
    return None
  y, attributes = node.outputs[0], dict(node.attrs)
  made, kernel = scope.shape(y), [int(length) for length in attributes["kernel_shape"]]
  if made is None or len(made) != 4 or scope.dtype(y) not in ("float16", "bfloat16"):
    return None
  rows, columns = attributes.get("strides") or (1, 1)
  if columns != 1 or any(step != 1 for step in attributes.get("dilations") or ()):
    return None
  width, filters = made[2:]
  if not isinstance(filters, int) or filters > MOST_FILTERS or filters % 8 or attributes.get("group", 1) != 1:
    return None
  weights = scope.constant(node.inputs[1], ELEMENTS)
  operands = [scope.constant(tensor, ELEMENTS) for tensor in node.inputs[OWN_INPUTS:]]
  if not isinstance(width, int) or width % 2:
    return Missed(node, f"its result's {width} columns are not known to be pairs")
  if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
    return Missed(node, f"auto_pad is {attributes['auto_pad']}")
  if weights is None or any(each is None or each.size not in (1, each.ndim and each.shape[-1]) for each in operands):
    return Missed(node, "its weights and operands are not constants of one number or one for each channel")
  padded = [np.pad(weights, ((0, 0), (0, 0), side, (0, 0))) for side in ((0, 1), (1, 0))]
  inputs = [node.inputs[0], scope.add_constant(np.concatenate(padded), f"{node.inputs[1].name}_pairs")]
  for tensor, known in zip(node.inputs[OWN_INPUTS:], operands, strict=True):
    if known is not None and known.size > 1:
      tensor = scope.add_constant(np.tile(known.reshape(-1), 2), f"{tensor.name}_pairs")
    inputs.append(tensor)
  attributes |= {"kernel_shape": [kernel[0], kernel[1] + 1], "strides": [rows, 2]}
  conv = conv_node(NAME, scope.unique(f"{y.name}_pairs"), attributes, parse(str(attributes["program"])), inputs)
  pairs = gs.Variable(conv.name, y.dtype, (*made[:2], width // 2, 2 * filters))
  conv.outputs.append(pairs)
  scope.insert(conv, node)
  view = gs.Node("Reshape", node.name, {}, [pairs, integers(scope, [0, 0, width, filters], f"{y.name}_shape")])
  labels = labelled(node)
  scope.replace([node], view, [y])
  return Applied(labels, conv)


PAIRED_COLUMNS = RulePass(
  "paired-columns", "a first convolution without strides makes two neighbouring columns at once", rewrite
)
