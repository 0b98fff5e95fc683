"""Depthwise convolutions of parts of the channels, of different sizes, become one with the largest filter (MixConv).

    a, b = Split<axis = 1>(x); y = Concat<axis = 1>(Conv<3x3>(a, V), Conv<5x5>(b, W))

becomes y = Conv<5x5>(x, [V with zeros around it, W]): one kernel instead of four, and nothing is copied. On a GPU such
convolutions wait for memory, so that up to WORK times the multiply-adds cost less than the copies. Where x is infinite,
zeros of the filter make NaN of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope, label, optional_input
from ...graph.channels import NotFoldableError, constant
from ..driver import Missed, Outcome, Rule, RulePass, replaced

WORK = 2
SLOW = "in float32 one large filter may be slower on a CPU; optimize it for a GPU (--provider cuda) to have it so"


@dataclass(frozen=True)
class _Part:
  """A depthwise convolution: its filters [C, 1, spatial..], biases [C], and how far it pads before and after."""

  filters: Array
  bias: Array | None
  pads_begin: tuple[int, ...]
  pads_end: tuple[int, ...]
  strides: tuple[int, ...]


def _merge(even_slow: bool) -> Rule:
  def rule(scope: Scope, node: gs.Node) -> Outcome:
    if scope.op(node) != "Concat" or len(node.inputs) < 2 or not _of_channels(scope, node):
      return None
    makers = [scope.producer(each) for each in node.inputs]
    convolutions = [each for each in makers if each is not None and scope.op(each) == "Conv"]
    split = scope.producer(convolutions[0].inputs[0], "Split") if len(convolutions) == len(makers) else None
    if split is None or not _of_channels(scope, split):
      return None
    if len(split.outputs) != len(makers) or any(
      each.inputs[0] is not part for each, part in zip(convolutions, split.outputs, strict=True)
    ):
      return None
    try:
      parts = [_part(scope, each) for each in convolutions]
      merged = _merged(parts)
      for each, part in zip(convolutions, split.outputs, strict=True):
        if used := scope.used_beyond(part, [each]) or scope.used_beyond(each.outputs[0], [node]):
          raise NotFoldableError(used)
      if not even_slow and merged.filters.dtype == np.float32:
        raise NotFoldableError(SLOW)
    except NotFoldableError as reason:
      return Missed(node, str(reason))
    weights = [scope.add_constant(merged.filters, f"{node.outputs[0].name}_filters")]
    if merged.bias is not None:
      weights.append(scope.add_constant(merged.bias, f"{node.outputs[0].name}_bias"))
    attributes = {
      "group": len(merged.filters),
      "kernel_shape": list(merged.filters.shape[2:]),
      "pads": [*merged.pads_begin, *merged.pads_end],
      "strides": list(merged.strides),
    }
    new = gs.Node("Conv", convolutions[0].name, attributes, [split.inputs[0], *weights])
    return replaced(scope, [split, *convolutions, node], new, [node.outputs[0]])

  return rule


def _of_channels(scope: Scope, node: gs.Node) -> bool:
  return int(node.attrs.get("axis", 0)) in (1, 1 - (scope.rank(node.outputs[0]) or 0))


def _part(scope: Scope, node: gs.Node) -> _Part:
  """A convolution. Raises NotFoldableError for what is not depthwise, or not known."""
  filters = constant(scope, node.inputs[1], "the filters")
  given = optional_input(node, 2)
  bias = None if given is None else constant(scope, given, "the bias")
  axes = filters.ndim - 2
  if filters.shape[1] != 1 or int(node.attrs.get("group", 1)) != len(filters):
    raise NotFoldableError(f"{label(node)} is not depthwise")
  if node.attrs.get("auto_pad", "NOTSET") != "NOTSET" or set(node.attrs.get("dilations") or [1]) != {1}:
    raise NotFoldableError(f"{label(node)} is dilated, or pads by auto_pad")
  pads = [int(each) for each in node.attrs.get("pads") or [0] * (2 * axes)]
  strides = tuple(int(each) for each in node.attrs.get("strides") or [1] * axes)
  return _Part(filters, bias, tuple(pads[:axes]), tuple(pads[axes:]), strides)


def _merged(parts: Sequence[_Part]) -> _Part:
  """One convolution of all channels. Raises NotFoldableError where there is none, or it costs too much."""
  first = parts[0]
  if any(each.strides != first.strides or each.filters.dtype != first.filters.dtype for each in parts):
    raise NotFoldableError("the convolutions have different strides or dtypes")
  if any((each.bias is None) != (first.bias is None) for each in parts):
    raise NotFoldableError("some of the convolutions have a bias")
  begin = tuple(max(pads) for pads in zip(*(each.pads_begin for each in parts), strict=True))
  around: list[list[int]] = []  # of each: how many zeros come before its filter
  for each in parts:
    around.append([pad - own for pad, own in zip(begin, each.pads_begin, strict=True)])
  sizes = [
    max(offsets[axis] + each.filters.shape[2 + axis] for each, offsets in zip(parts, around, strict=True))
    for axis in range(len(begin))
  ]
  ends = {
    tuple(np.add(each.pads_end, sizes) - np.add(offsets, each.filters.shape[2:]))
    for each, offsets in zip(parts, around, strict=True)
  }
  if len(ends) != 1:
    raise NotFoldableError("the convolutions pad differently behind the image")
  channels = sum(len(each.filters) for each in parts)
  filters = np.zeros((channels, 1, *sizes), first.filters.dtype)
  if filters.size > WORK * sum(each.filters.size for each in parts):
    raise NotFoldableError(f"one filter for all would be over {WORK} times the work")
  at = 0
  for each, offsets in zip(parts, around, strict=True):
    part = filters[at : at + len(each.filters), 0]
    place = tuple(slice(start, start + size) for start, size in zip(offsets, each.filters.shape[2:], strict=True))
    whole = (slice(None), *place)
    part[whole] = each.filters[:, 0]
    at += len(each.filters)
  bias = None if first.bias is None else np.concatenate([each.bias for each in parts if each.bias is not None])
  return _Part(filters, bias, begin, tuple(int(pad) for pad in ends.pop()), first.strides)


MERGE_DEPTHWISE, MERGE_DEPTHWISE_ON_GPU = (
  RulePass("merge-depthwise", "depthwise convolutions of parts of the channels become one", _merge(even_slow))
  for even_slow in (False, True)
)
