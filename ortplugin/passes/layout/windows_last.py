"""Windows that are put together with channels first before a convolution are put together with channels last.

    y = Reshape(Transpose<perm = [0, 5, 1, 3, 2, 4]>(x), [N, C, H, W])     x [N, H/7, W/7, 7, 7, C]

becomes

    y = Transpose<perm = [0, 3, 1, 2]>(Reshape(Transpose<perm = [0, 1, 3, 2, 4, 5]>(x), [N, H, W, C]))

whose last Transpose the layout pass takes away: MaxViT's blocks begin with convolutions.
"""

import math

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, is_pointwise
from ..conv.allow_tf32 import has_tensor_cores
from ..conv.fused import conv_dtype, is_channels_last, is_fused_conv
from ..driver import Outcome, RulePass, replaced
from ..emit import emit, integers
from .fuse_pool import KINDS
from .plan import shape_last, to_first

FAR = 16  # operators between the windows and a convolution, at most


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Changes one Reshape and the Transpose before it."""
  first = scope.producer(node.inputs[0], "Transpose") if scope.op(node) == "Reshape" else None
  if first is None or scope.used_beyond(node.inputs[0], [node]):
    return None
  x, y = first.inputs[0], node.outputs[0]
  given, made = scope.shape(x), scope.shape(y)
  perm = [int(axis) for axis in first.attrs.get("perm") or ()]
  if given is None or made is None or len(perm) != len(given) or not 3 <= len(made) < len(given):
    return None
  rest = [given[axis] for axis in perm[2:]]
  if perm[:2] != [0, len(given) - 1] or any(not isinstance(dim, int) for dim in (*rest, *made[1:])):
    return None
  known = made[0] == given[0] is not None and made[1] == given[-1]
  if not known or math.prod(rest) != math.prod(made[2:]) or not _meets_convolution(scope, y):  # type: ignore[arg-type]
    return None
  order = [0, *perm[2:], perm[1]]
  rows = emit(scope, node, "Transpose", [x], tuple(given[axis] for axis in order), perm=order)
  last = shape_last(made) or ()
  dims = integers(scope, [dim if isinstance(dim, int) else 0 for dim in last], f"{y.name}_last")
  images = emit(scope, node, "Reshape", [rows, dims], last)
  new = gs.Node("Transpose", node.name, {"perm": to_first(len(made))}, [images])
  return replaced(scope, [first, node], new, [y])


def _meets_convolution(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether a convolution that will have channels last reads it, through pools and what is pointwise."""
  stack, seen = [tensor], 0
  while stack and seen < FAR:
    for reader in scope.consumers(stack.pop()):
      seen += 1
      if is_fused_conv(scope, reader) and not is_channels_last(reader):
        return has_tensor_cores(reader, conv_dtype(scope, reader))
      if is_pointwise(scope, reader) or scope.op(reader) in (*KINDS, f"{DOMAIN}::FusedPool"):
        stack.append(reader.outputs[0])
  return False


WINDOWS_LAST = RulePass("windows-last", "windows before convolutions are put together with channels last", rewrite)
