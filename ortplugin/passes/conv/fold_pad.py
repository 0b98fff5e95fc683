"""A Pad with zeros before a Conv becomes the Conv's own padding; before an AveragePool that counts it, likewise.

    y = Conv<pads = p>(Pad<pads = q>(x), W)      becomes      y = Conv<pads = p + q>(x, W)

A MaxPool stays: it pads with the lowest number, not with zero.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, attached, label, labelled, optional_input
from ...graph.ort_shapes import windows_fit
from ..driver import Applied, Missed, Outcome, RulePass


class _StaysError(Exception):
  """Why the Pad stays."""


def fold(scope: Scope, node: gs.Node) -> Outcome:
  """Merges the Pad that makes the input of a Conv or AveragePool into it."""
  if scope.op(node) not in ("Conv", "AveragePool") or not node.inputs:
    return None
  if (pad := scope.producer(node.inputs[0], "Pad")) is None:
    return None
  try:
    spatial = _spatial_pads(scope, pad)
    if used := scope.used_beyond(node.inputs[0], [node]):
      raise _StaysError(used)
    total = _total(node, spatial)
    if scope.op(node) == "AveragePool":
      _check_average(node, spatial, total)
      if scope.opset < 19 and not windows_fit(scope.shape(pad.inputs[0]), {**node.attrs, "pads": total}):
        raise _StaysError("a window larger than the image counts nothing beyond it, but beyond its own padding")
      node.attrs["count_include_pad"] = 1
  except _StaysError as reason:
    return Missed(node, str(reason))
  labels = labelled(pad, node)
  node.attrs["pads"] = total
  node.attrs.pop("auto_pad", None)  # VALID, without which there are pads
  node.inputs[0] = pad.inputs[0]
  scope.remove(pad)
  return Applied(labels, node)


def _spatial_pads(scope: Scope, pad: gs.Node) -> list[int]:
  """[begin of each spatial dimension, end of each] of a Pad with zeros. Raises _StaysError for any other."""
  if pad.attrs.get("mode", "constant") != "constant":
    raise _StaysError(f"{label(pad)} has the mode {pad.attrs['mode']!r}")
  attributes = scope.opset < 11
  if attributes:
    pads, value, axes = [int(each) for each in pad.attrs.get("pads", ())], float(pad.attrs.get("value", 0)), None
  else:
    pads = _integers(scope, pad, 1, "the pads") or []
    axes = _integers(scope, pad, 3, "the axes")
    filled = optional_input(pad, 2)
    number = scope.scalar(filled) if filled is not None and attached(filled, "initial") is None else None
    if filled is not None and number is None:
      raise _StaysError(f"the value of {label(pad)}, '{filled.name}', is no constant")
    value = number or 0.0
  if value != 0:
    raise _StaysError(f"{label(pad)} pads with {value:g}, not with 0")
  rank = scope.rank(pad.inputs[0])
  rank = len(pads) // 2 if axes is None else rank
  if rank is None or rank < 3 or any(not -rank <= axis < rank for axis in axes or ()):
    raise _StaysError(f"the rank of '{pad.inputs[0].name}' is {'unknown' if rank is None else rank}")
  axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
  if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
    raise _StaysError(f"{label(pad)} has {len(pads)} pads for {len(axes)} axes")
  pads_begin, pads_end = [0] * rank, [0] * rank
  for index, axis in enumerate(axes):
    pads_begin[axis], pads_end[axis] = pads[index], pads[index + len(axes)]
  if min(*pads_begin, *pads_end) < 0:
    raise _StaysError(f"{label(pad)} has the negative pads {pads}, which cut")
  if any((*pads_begin[:2], *pads_end[:2])):
    raise _StaysError(f"{label(pad)} pads the batch or the channels: {pads}")
  return [*pads_begin[2:], *pads_end[2:]]


def _integers(scope: Scope, pad: gs.Node, index: int, what: str) -> list[int] | None:
  """The values of a constant input; None if it is absent."""
  if (given := optional_input(pad, index)) is None:
    return None
  if (array := scope.constant(given)) is None:
    raise _StaysError(f"{what} of {label(pad)}, '{given.name}', are no constant")
  return [int(each) for each in array.reshape(-1)]


def _total(node: gs.Node, spatial: list[int]) -> list[int]:
  """The node's own pads and the Pad's."""
  if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
    raise _StaysError(f"it has auto_pad = {node.attrs['auto_pad']}, which depends on the padded size")
  own = list(node.attrs.get("pads", ())) or [0] * len(spatial)
  if node.attrs.get("auto_pad") == "VALID":
    own = [0] * len(spatial)
  if len(own) != len(spatial):
    raise _StaysError(f"it has {len(own)} pads, the Pad before it {len(spatial)}")
  return [a + b for a, b in zip(own, spatial, strict=True)]


def _check_average(node: gs.Node, spatial: list[int], total: list[int]) -> None:
  """The Pad's zeros count in the average; those of the AveragePool itself only where it says so."""
  counts = bool(node.attrs.get("count_include_pad", 0))
  if total != spatial and not counts:
    raise _StaysError("its own padding does not count in the average, the zeros of the Pad before it do")
  if node.attrs.get("ceil_mode", 0):
    raise _StaysError("with ceil_mode the last window may reach beyond the padding, where nothing counts")
  kernel = [int(each) for each in node.attrs.get("kernel_shape", ())]
  if len(kernel) * 2 != len(total) or any(pad >= size for pad, size in zip(total, kernel * 2, strict=True)):
    raise _StaysError(f"the pads {total} are not smaller than the window {kernel}, as ONNX Runtime demands")


FOLD_PAD = RulePass("fold-pad", "a Pad with zeros becomes the padding of the Conv or AveragePool after it", fold)
