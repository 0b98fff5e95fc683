"""A transposed convolution of stride 1 becomes a convolution, with its filters rotated by 180 degrees.

    y = FusedConvTranspose(x, w)     becomes     y = FusedConv(x, v)

    v[m, c, k] = w[c, m, K - 1 - k] in each group, K the filter's size; pads (K - 1) * dilation - pads

Both compute the same sums. Which is faster was measured on an H200 (`ortplugin.target`); a convolution is

- depthwise: our engine for it has no transposed form;
- 1x1 in fp16 or bf16, with a program, or memory-bound: nothing has to rotate the weights in every run;
- in fp16 or bf16 with long sums: split-K for little work, up to twice as fast, and for very long sums cuDNN's, as fast,
  or 4% faster with --tune;
- in fp16 or bf16 for 64 or 96 channels and much work: cuDNN's data gradients take 5 to 20% longer, or three times as
  long;
- in fp16 or bf16 with a program and much work: cuDNN has a ready-made kernel with bias and Relu, and compiles one for a
  transposed convolution that takes 1 to 25% longer.

Others stay: without a program, or with little work, cuDNN's transposed convolutions are as fast, or faster.
"""

from math import prod
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import DOMAIN, ELEMENTS, Scope, show
from ...program import parse
from ...target import DEFAULT, ENGINES
from ..driver import Missed, Outcome, RulePass, replaced
from .fused import conv_dtype, conv_node, is_channels_last, why_invalid

# What one GPU's measurements decided; h200.def says of each why.
MUCH_WORK = DEFAULT["turn_many_multiply_adds"]
MEMORY_BOUND = DEFAULT["conv_1x1_most_intensity"]
VERY_LONG_SUM = DEFAULT["turn_very_long_sum"]
LONG_SUM = DEFAULT["turn_long_sum"]
LITTLE_WORK = DEFAULT["turn_little_work"]
NARROW = range(DEFAULT["turn_narrow_least"], DEFAULT["turn_narrow_most"] + 1)
HUGE_WORK = DEFAULT["cudnn_identity_most_multiply_adds"]  # beyond, cuDNN has no faster gradients
FEW_CHANNELS = DEFAULT["turn_least_channels"]
# What our engines take on every GPU.
DEPTHWISE_FILTER, DEPTHWISE_TAPS = ENGINES["depthwise_most_filter"], ENGINES["depthwise_most_taps"]
VECTOR = ENGINES["wgmma_vector"]
UNKNOWN = "only with channels last, and depthwise or in fp16 or bf16, a convolution is known to be faster"


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one FusedConvTranspose with channels last."""
  if scope.op(node) != f"{DOMAIN}::FusedConvTranspose" or node.attrs.get("algorithm", "auto") != "auto":
    return None
  if "output_layout" in node.attrs or any(each != 1 for each in node.attrs.get("strides") or ()):
    return None
  if (reason := why_invalid(node)) is not None:
    return Missed(node, reason)
  if not is_channels_last(node):
    return Missed(node, UNKNOWN)
  w = node.inputs[1]
  if (weights := scope.constant(w, ELEMENTS)) is None:
    return Missed(node, f"'{w.name}' is no constant")
  if 0 in weights.shape:
    return None
  group, kernel = int(node.attrs.get("group", 1)), weights.shape[1:-1]
  pads = _pads(node, kernel)
  reason = pads if isinstance(pads, str) else _loss(scope, node, weights, group)
  if reason is not None:
    return Missed(node, reason)
  attributes: dict[str, Any] = {"kernel_shape": list(kernel), "pads": pads}
  attributes |= {name: node.attrs[name] for name in ("dilations", "group", "layout") if name in node.attrs}
  if "allow_tf32" in node.attrs:
    attributes["allow_tf32"] = node.attrs["allow_tf32"]
  inputs = [node.inputs[0], scope.add_constant(turned(weights, group), f"{w.name}_turned"), *node.inputs[2:]]
  new = conv_node("FusedConv", node.name, attributes, parse(str(node.attrs["program"])), inputs)
  return replaced(scope, [node], new, list(node.outputs))


def turned(weights: Array, group: int) -> Array:
  """The convolution's weights [M, kernel.., C/group] from [C, kernel.., M/group], those of the transposed one."""
  rows, *kernel, columns = weights.shape
  apart = np.flip(weights, tuple(range(1, weights.ndim - 1))).reshape(group, rows // group, *kernel, columns)
  return np.ascontiguousarray(np.swapaxes(apart, 1, -1)).reshape(group * columns, *kernel, rows // group)


def _pads(node: gs.Node, kernel: tuple[int, ...]) -> list[int] | str:
  """The pads of the convolution, or why there are none."""
  attributes, count = node.attrs, len(kernel)
  if attributes.get("output_shape") or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
    return "its pads depend on the shape"
  if any(attributes.get("output_padding") or ()):
    return f"it has output_padding of {list(attributes['output_padding'])}"
  dilations = attributes.get("dilations") or [1] * count
  given = list(attributes.get("pads") or [0] * (2 * count))
  reach = [(size - 1) * int(dilation) for size, dilation in zip(kernel, dilations, strict=True)] * 2
  pads = [a - int(b) for a, b in zip(reach, given, strict=True)]
  return f"its pads {given} cut off more than its kernel adds" if min(pads) < 0 else pads


def _loss(scope: Scope, node: gs.Node, weights: Array, group: int) -> str | None:
  """Why a convolution is not known to be faster; None if it is."""
  columns, kernel = weights.shape[-1], weights.shape[1:-1]
  small = len(kernel) == 2 and max(kernel) <= DEPTHWISE_FILTER and prod(kernel) <= DEPTHWISE_TAPS
  if small and columns == 1 and group == weights.shape[0]:
    return None
  if conv_dtype(scope, node) not in ("float16", "bfloat16"):
    return UNKNOWN
  if columns < FEW_CHANNELS:
    return f"its result has {columns} channels in a group"
  rows = weights.shape[0] // group
  is_bare = not parse(str(node.attrs["program"])).statements
  if prod(kernel) == 1 and (not is_bare or (group == 1 and rows * columns <= MEMORY_BOUND * (rows + columns))):
    return None
  sum_length = rows * prod(kernel)
  # What cuDNN, and our engine, were measured for.
  is_measured = group == 1 and len(kernel) == 2 and rows % VECTOR == 0 and columns % VECTOR == 0
  is_long, is_narrow = is_measured and sum_length >= LONG_SUM, is_measured and columns in NARROW and prod(kernel) > 1
  if is_long and sum_length >= VERY_LONG_SUM:
    return None
  if is_bare and not is_long and not is_narrow:
    return f"nothing follows it, and its sums, for {columns} channels, have {sum_length} elements in {group} groups"
  shape = scope.shape(node.outputs[0])
  sizes = [] if shape is None else [each for each in shape if isinstance(each, int)]
  if shape is None or len(sizes) < len(shape):
    return f"its result's shape {show(shape)} is not known"
  multiply_adds = prod(sizes) * sum_length
  if is_long and multiply_adds <= LITTLE_WORK:
    return None
  if is_bare and not (is_narrow and multiply_adds >= HUGE_WORK):
    limit = f"more than {LITTLE_WORK}" if is_long else f"fewer than {HUGE_WORK}"
    return f"nothing follows it, and it has {multiply_adds} multiply-adds, {limit}"
  return None if multiply_adds >= MUCH_WORK else f"it has {multiply_adds} multiply-adds, few enough to be as fast"


TURN_CONV_TRANSPOSE = RulePass(
  "turn-conv-transpose", "a transposed convolution of stride 1 becomes a convolution where that is faster", rewrite
)
