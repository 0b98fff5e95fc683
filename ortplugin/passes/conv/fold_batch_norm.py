"""What scales and shifts the channels of a convolution becomes part of its weights and bias.

    y = BatchNormalization(Conv(x, W, b))      becomes      y = Conv(x, W * s, b * s + t)
        s = scale / sqrt(var + epsilon)
        t = B - mean * s

So do Mul, Div, Add and Sub with a constant number or one per channel, after Conv, ConvTranspose and a
BatchNormalization that had to stay. A BatchNormalization before a Conv goes into it where the Conv pads nothing: the
zeros of the padding are not normalised. All is computed in float64 and stored in the weights' dtype.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, attached, label, labelled
from ...graph.channels import NotFoldableError, batch_norm, channel_operand, constant, scaled_columns, scaled_rows
from ..driver import Applied, Missed, Outcome, RulePass
from .weights import bias_of, only_for, store, weight_of

CONVOLUTIONS = ("Conv", "ConvTranspose")
ARITHMETIC = ("Mul", "Div", "Add", "Sub")


def fold(scope: Scope, node: gs.Node) -> Outcome:
  """Merges the node into the convolution before it, or the BatchNormalization before a Conv into that."""
  op = scope.op(node)
  try:
    if op == "Conv":
      return _before(scope, node)
    if op == "BatchNormalization" or (op in ARITHMETIC and len(node.inputs) == 2):
      return _after(scope, node)
  except NotFoldableError as reason:
    return Missed(node, str(reason))
  return None


def _producer(scope: Scope, tensor: gs.Tensor, *operators: str) -> gs.Node | None:
  """The node of one of these operators whose first output the tensor is."""
  node = scope.producer(tensor)
  return node if node is not None and scope.op(node) in operators and node.outputs[0] is tensor else None


def _after(scope: Scope, node: gs.Node) -> Applied | None:
  """Merges the node into the one that makes what it reads."""
  norm = scope.op(node) == "BatchNormalization"
  targets = CONVOLUTIONS if norm else (*CONVOLUTIONS, "BatchNormalization")
  x = next((t for t in node.inputs[: 1 if norm else 2] if _producer(scope, t, *targets) is not None), None)
  if x is None:
    return None
  others = [] if norm else [t for t in node.inputs if t is not x]
  if not norm and not any(scope.is_constant(t) or attached(t, "initial") is not None for t in others):
    return None  # a residual, say
  target = _producer(scope, x, *targets)
  assert target is not None
  only_for(scope, x, node)

  if scope.op(target) == "BatchNormalization":
    batch_norm(scope, target)  # raises where it is not in inference
    weight = constant(scope, target.inputs[1], "the scale")
    channels, rank = weight.size, scope.rank(x) or 0
    if not rank:
      raise NotFoldableError(f"the rank of '{x.name}' is unknown")
  else:
    weight, groups = weight_of(scope, target)
    transposed = scope.op(target) == "ConvTranspose"
    channels, rank = weight.shape[1] * groups if transposed else weight.shape[0], weight.ndim
  affine = batch_norm(scope, node) if norm else channel_operand(scope, node, x, channels, rank)
  if not affine.fits(channels):
    raise NotFoldableError(f"it has {affine.scale.size} channels, {label(target)} has {channels}")

  bias = bias_of(scope, target, channels)
  with np.errstate(all="ignore"):  # what is not finite is found when it is stored
    if scope.op(target) == "ConvTranspose":
      scaled = scaled_columns(weight, affine.scale, groups)
      peaks = np.abs(scaled).reshape(groups, -1, weight.shape[1], int(np.prod(weight.shape[2:]))).max((1, 3))
    else:
      scaled = scaled_rows(weight, affine.scale)
      peaks = np.abs(scaled).reshape(channels, -1).max(1)
    shifted = bias * affine.scale + affine.shift
  labels = labelled(target, node)
  store(scope, target, weight, scaled, peaks, np.broadcast_to(shifted, (channels,)))
  y = node.outputs[0]
  scope.remove(node)
  target.outputs[0] = y
  return Applied(labels, target)


def _before(scope: Scope, conv: gs.Node) -> Applied | None:
  """Merges the BatchNormalization that makes the Conv's input into the Conv."""
  x = conv.inputs[0]
  if (norm := _producer(scope, x, "BatchNormalization")) is None:
    return None
  only_for(scope, x, conv)
  weight, groups = weight_of(scope, conv)
  affine = batch_norm(scope, norm)
  if affine.scale.size != weight.shape[1] * groups:
    raise NotFoldableError(f"it has {weight.shape[1] * groups} channels, {label(norm)} has {affine.scale.size}")
  padded = any(conv.attrs.get("pads", ())) or conv.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
  if padded and affine.shift.any():
    raise NotFoldableError(f"it pads with zeros, which {label(norm)} before it does not shift")
  if weight.dtype.itemsize < 4:
    raise NotFoldableError(f"in {weight.dtype.name} the rounding of its weights would be multiplied by the mean")
  bias = bias_of(scope, conv, weight.shape[0])
  with np.errstate(all="ignore"):
    scaled = scaled_columns(weight, affine.scale, groups)
    shifts = scaled_columns(weight, affine.shift, groups).reshape(weight.shape[0], -1).sum(1)
  labels = labelled(norm, conv)
  store(scope, conv, weight, scaled, np.abs(scaled).reshape(weight.shape[0], -1).max(1), bias + shifts)
  conv.inputs[0] = norm.inputs[0]
  scope.remove(norm)
  return Applied(labels, conv)


FOLD_BATCH_NORM = RulePass(
  "fold-batch-norm",
  "BatchNormalization and constants per channel become part of a convolution's weights and bias",
  fold,
)
