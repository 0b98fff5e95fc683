"""Col2Im, PyTorch's `fold`, becomes Gathers of its columns and their sum: CUDA has no kernel for it.

    y = Col2Im(x)     x [N, C K, L], blocks of K pixels     becomes, with c = Transpose(Reshape(x, [N, C, K L]))
    y = Reshape(Transpose(Gather(c, first) + Gather(c, second) + ..), [N, C, H, W])

The first Gather takes for each pixel the first row that adds to it, and so on, or a row of 0. In VOLO [8, 1728, 196]
goes to the CPU and back, which takes 3 ms and keeps the model from a CUDA graph. On the CPU Col2Im is faster, 1.4 ms
against 15: in float32 it stays unless a GPU runs the model.
"""

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...graph import Scope
from ...graph.disputed import disputed_now
from ..driver import Missed, Outcome, RulePass, replaced
from ..emit import emit, integers

MOST = 8  # columns that add to a pixel
PIXELS = 1 << 18


def rewrite(dtypes: Sequence[str], scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one Col2Im of these dtypes."""
  if scope.op(node) != "Col2Im" or scope.dtype(node.inputs[0]) not in dtypes:
    return None
  x, y = node.inputs[0], node.outputs[0]
  image, block, shape = scope.constant(node.inputs[1]), scope.constant(node.inputs[2]), scope.shape(x)
  if image is None or block is None or shape is None or len(shape) != 3 or x.name in disputed_now(scope):
    return Missed(node, "the sizes of its image, its block or its input are not known")
  columns = _columns(node, [int(n) for n in image], [int(n) for n in block])
  taps, (channels, blocks) = prod(map(int, block)), shape[1:]
  if columns is None or not isinstance(channels, int) or not channels or blocks is None:
    return Missed(node, f"more than {MOST} columns add to a pixel, or its input's shape is not known")
  count, total = channels // taps, taps * int(blocks)
  c = emit(scope, node, "Reshape", [x, integers(scope, [0, count, total], f"{y.name}_c")], (shape[0], count, total))
  c = emit(scope, node, "Transpose", [c], (shape[0], total, count), perm=[0, 2, 1])
  if (columns == total).any():
    c = emit(scope, node, "Pad", [c, integers(scope, [0, 0, 0, 0, 1, 0], "pads")], (shape[0], total + 1, count))
  whole = (shape[0], columns.shape[1], count)
  parts = [
    emit(scope, node, "Gather", [c, scope.add_constant(each, f"{y.name}_column")], whole, axis=1) for each in columns
  ]
  while len(parts) > 1:
    parts[:2] = [emit(scope, node, "Add", parts[:2], whole)]
  c = emit(scope, node, "Transpose", parts, (shape[0], count, whole[1]), perm=[0, 2, 1])
  new = gs.Node("Reshape", node.name, {}, [c, integers(scope, [0, count, *image], f"{y.name}_shape")])
  return replaced(scope, [node], new, [y])


def _columns(node: gs.Node, image: list[int], block: list[int]) -> npt.NDArray[np.int64] | None:
  """For each pixel the columns that add to it: [at most MOST, pixels], filled up with one beyond the last."""
  rank = len(image)
  strides, dilations = (list(node.attrs.get(name) or [1] * rank) for name in ("strides", "dilations"))
  pads = list(node.attrs.get("pads") or [0] * 2 * rank)
  if not 0 < prod(image) <= PIXELS:
    return None
  extents = [d * (k - 1) + 1 for d, k in zip(dilations, block, strict=True)]
  counts = [
    (size + pads[i] + pads[i + rank] - extents[i]) // strides[i] + 1 for i, size in enumerate(image)
  ]  # of blocks along each axis
  taps, places = np.indices(block).reshape(rank, -1, 1), np.indices(counts).reshape(rank, 1, -1)
  by_axis = [np.array(each).reshape(rank, 1, 1) for each in (strides, dilations, pads[:rank], image)]
  at = places * by_axis[0] + taps * by_axis[1] - by_axis[2]
  inside = ((at >= 0) & (at < by_axis[3])).all(0).reshape(-1)
  pixels = np.ravel_multi_index(tuple(at), image, mode="clip").reshape(-1)
  found: list[list[int]] = [[] for _ in range(prod(image))]
  for column in np.flatnonzero(inside):
    found[pixels[column]].append(int(column))
  most = max(map(len, found))
  if not 0 < most <= MOST:
    return None
  table = np.full((most, len(found)), len(pixels), np.int64)
  for pixel, each in enumerate(found):
    table[: len(each), pixel] = each
  return table


COL2IM_TO_GATHER, COL2IM_TO_GATHER_ON_GPU = (
  RulePass("col2im-to-gather", "Col2Im becomes Gathers of its columns and their sum", partial(rewrite, dtypes))
  for dtypes in (("float16", "bfloat16"), ("float16", "bfloat16", "float"))
)
