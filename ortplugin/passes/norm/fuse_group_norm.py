"""Norms of the pixels of an image become a FusedLayerNorm: InstanceNormalization, GroupNormalization, GroupNorm as
exporters write it.

    a = Reshape(x, [N, G, -1]); b = InstanceNormalization(a, scale, bias); y = Reshape(b, Shape(x))

becomes, with x [N, C, spatial..] as it lies, y = FusedLayerNorm(x) over the spatial axes and each of G groups of
channels. A scale of 1 and a bias of 0, for which the Mul and Add that follow stand, are left out.
"""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, Shape, element_count, show
from ..conditions import unknown_rank, unsupported
from ..driver import Applied, Missed, Outcome, RulePass, first_of, replaced
from ..emit import MOVED_ELEMENTS, unsqueeze
from .decomposed import floating
from .fused import Norm, Over, fused_node

CORE = "LayerNormalization"
OPERATORS = ("InstanceNormalization", "GroupNormalization")
SLOW = "in float32 it is slower than ONNX Runtime's on a CPU; optimize it for a GPU (--provider cuda) to have it fused"


def between_reshapes(scope: Scope, node: gs.Node) -> Outcome:
  """InstanceNormalization of [N, G, -1] between two Reshapes."""
  if scope.op(node) != "InstanceNormalization":
    return None
  split, readers = scope.producer(node.inputs[0], "Reshape"), scope.consumers(node.outputs[0])
  if split is None or len(readers) != 1 or scope.op(readers[0]) != "Reshape":
    return None
  x, y = split.inputs[0], readers[0].outputs[0]
  given, made = scope.shape(x), scope.shape(split.outputs[0])
  if given is None or made is None or len(given) < 3 or len(made) != 3:
    return None
  channels, groups = given[1], made[1]
  if not isinstance(channels, int) or not isinstance(groups, int) or groups < 1 or channels % groups:
    return Missed(node, f"'{x.name}' of shape {show(given)} has no known channels in {groups} groups")
  pixels = element_count(given[1:])
  if (given[0] is None or made[0] != given[0]) and (not pixels or pixels != element_count(made[1:])):
    return Missed(node, f"the batch of '{split.outputs[0].name}', {made[0]}, is not surely that of '{x.name}'")
  if not scope.same_shape(x, y) and not _have_one_shape(given, scope.shape(y)):
    return Missed(node, f"'{y.name}' of shape {show(scope.shape(y))} has not surely the shape of '{x.name}'")
  if used := scope.used_beyond(split.outputs[0], [node]) or scope.used_beyond(node.outputs[0], [readers[0]]):
    return Missed(node, used)
  return _fuse(scope, node, [split, node, readers[0]], x, y, groups, channels // groups)


def _have_one_shape(a: Shape, b: Shape | None) -> bool:
  """Whether shapes of as many elements are the same: all lengths but one are, and none of these is 0."""
  if b is None or len(a) != len(b):
    return False
  others = [(i, j) for i, j in zip(a, b, strict=True) if not isinstance(i, int) or not isinstance(j, int)]
  return len(others) <= 1 and all(i == j != 0 for i, j in zip(a, b, strict=True) if (i, j) not in others)


def instance_normalization(scope: Scope, node: gs.Node) -> Outcome:
  """InstanceNormalization(X, scale, B): each channel is a group."""
  if scope.op(node) != "InstanceNormalization":
    return None
  return _fuse(scope, node, [node], node.inputs[0], node.outputs[0], None, 1)


def group_normalization(scope: Scope, node: gs.Node) -> Outcome:
  """GroupNormalization(X, scale, bias): these are of each group before opset 21, of each channel from then on."""
  if scope.op(node) != "GroupNormalization":
    return None
  x, groups = node.inputs[0], int(node.attrs.get("num_groups", 0))
  shape = scope.shape(x)
  channels = shape[1] if shape is not None and len(shape) > 2 else None
  if not isinstance(channels, int) or groups < 1 or channels % groups:
    return Missed(node, f"'{x.name}' of shape {show(shape)} has no known channels in {groups} groups")
  if node.attrs.get("stash_type", 1) != 1:
    return Missed(node, f"stash_type is {node.attrs['stash_type']}; only 1, float32, is known")
  return _fuse(scope, node, [node], x, node.outputs[0], groups, channels // groups if scope.opset < 21 else 1)


def _fuse(
  scope: Scope, node: gs.Node, nodes: Sequence[gs.Node], x: gs.Tensor, y: gs.Tensor, groups: int | None, repeats: int
) -> Applied | Missed:
  """Replaces `nodes`, a norm of `x`. `groups`: None where each channel is one. `repeats`: channels of each scale."""
  reason = unsupported(scope) or floating(scope, x) or unknown_rank(scope, x)
  rank, dtype = scope.rank(x) or 0, scope.dtype(x) or ""
  if reason is None and rank < 3:
    reason = f"'{x.name}' of shape {show(scope.shape(x))} has no pixels"
  if reason:
    return Missed(node, reason)
  scales: list[gs.Tensor | None] = []
  for what, tensor, neutral in (("scale", node.inputs[1], 1), ("bias", node.inputs[2], 0)):
    if scope.dtype(tensor) != dtype:
      return Missed(node, f"{what}, '{tensor.name}', is {scope.dtype(tensor)}, the result is {dtype}")
    known = scope.constant(tensor, MOVED_ELEMENTS)
    if known is not None and known.ndim == 1 and (known == neutral).all():
      scales.append(None)
    elif known is not None and known.ndim == 1:
      values = np.repeat(known, repeats).reshape(-1, *[1] * (rank - 2))
      scales.append(scope.add_constant(values, tensor.name))
    elif repeats == 1 and scope.rank(tensor) == 1:
      scales.append(unsqueeze(scope, node, tensor, range(1, rank - 1)))
    else:
      return Missed(node, f"{what}, '{tensor.name}', is no constant vector, one number for {repeats} channels")
  shape = scope.shape(x)
  over: Over = {"axis": 2 - rank}
  if groups == 1:
    over = {"axis": 1 - rank}
  elif groups is not None and groups != (shape or (None, None))[1]:
    over = {"axis": 1, "axes": " ".join(map(str, range(2, rank))), "groups": groups}
  norm = Norm(CORE, over, float(node.attrs.get("epsilon", 1e-5)), [x], ["x"], dtype, dtype, scales[0], scales[1])
  new = fused_node(norm, node.name)
  return replaced(scope, nodes, new, [y])


_fuse_any = first_of(between_reshapes, instance_normalization, group_normalization)


def _fuse_narrow(scope: Scope, node: gs.Node) -> Outcome:
  """Of 16 bits alone: on a CPU ONNX Runtime's InstanceNormalization is faster, which has float32 and no others."""
  if scope.op(node) in OPERATORS and scope.dtype(node.inputs[0]) not in ("float16", "bfloat16"):
    return Missed(node, SLOW)
  return _fuse_any(scope, node)


FUSE_GROUP_NORM, FUSE_GROUP_NORM_ON_GPU = (
  RulePass(
    "fuse-group-norm",
    "InstanceNormalization and GroupNormalization, also between Reshapes, become FusedLayerNorm",
    rule,
  )
  for rule in (_fuse_narrow, _fuse_any)
)
