"""A Pad works on a view of which the last two axes are padded: ONNX Runtime's CUDA provider has a fast kernel for that.

    y = Pad(x)     x [2, 32, 32, 768], 10 after axes 1 and 2     becomes
    y = Reshape(Pad(Reshape(x, [2, 32, 24576])), [2, 42, 42, 768])     with 10 and 7680 after the last two

Axes that nothing is added to join the one before them. A constant is added to two axes at a time, what reflects or
repeats an edge to one. The kernel for all else takes 333 us here in float16 on an H100, where a copy takes 6. A
Transpose before a Pad is kept there by the view: ONNX Runtime would move it behind the Pad, to other axes.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Dim, Scope, element_count, is_disputed
from ..driver import Missed, Outcome, RulePass, replaced
from ..emit import emit, integers

DTYPES = ("float16", "float", "double", "bool")  # of the CUDA provider's Pad
SMALL = 1 << 14  # elements, which take the slow kernel 2 us

Pads = Sequence[Sequence[int]]  # what is added before and after each axis


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Puts views around one Pad."""
  if scope.op(node) != "Pad" or scope.opset < 11 or scope.dtype(node.inputs[0]) not in DTYPES:
    return None
  x, y, mode = node.inputs[0], node.outputs[0], node.attrs.get("mode", "constant")
  shape, count, maker = scope.shape(x), element_count(scope.shape(y)), scope.producer(x)
  if shape is None or (count is not None and count < SMALL) or is_disputed(scope, x):
    return None
  pads = _pads(scope, node, len(shape))
  moves = maker is not None and scope.op(maker) == "Transpose"
  if pads is not None and 2 <= len(shape) <= 4 and not any(map(any, pads[:-2])) and not moves:
    return None
  if maker is None or scope.is_output(y):
    return Missed(node, "it reads an input or makes an output of the graph, which a Reshape would copy")
  if pads is None or mode == "wrap" or (mode != "constant" and min(map(min, pads)) < 0):
    return Missed(node, f"its pads are not constant, or it cuts off, and its mode is {mode}")
  steps = list(_steps(shape, pads, mode == "constant"))
  made = [dim + sum(pair) if isinstance(dim, int) else -1 for dim, pair in zip(shape, pads, strict=True)]
  cut = any(isinstance(dim, int) and number < 1 for dim, number in zip(shape, made, strict=True))
  if made.count(-1) > 1 or None in steps or 0 in shape or cut:
    return Missed(node, f"the shape of '{x.name}' is not known well enough: {list(shape)}")
  for dims, added in filter(None, steps):
    view = [1, *dims] if tuple(dims) == shape else dims
    numbers = [number for side in (0, 1) for number in (*[0] * (len(view) - len(added)), *(p[side] for p in added))]
    x = emit(scope, node, "Reshape", [x, integers(scope, view, f"{y.name}_view")], None)
    x = emit(scope, node, "Pad", [x, integers(scope, numbers, f"{y.name}_pads"), *node.inputs[2:3]], None, mode=mode)
  new = gs.Node("Reshape", node.name, {}, [x, integers(scope, made, f"{y.name}_shape")])
  return replaced(scope, [node], new, [y])


def _pads(scope: Scope, node: gs.Node, rank: int) -> Pads | None:
  """The pads of each axis; None if they are not constant."""
  given = [None if each.is_empty() else scope.constant(each) for each in node.inputs[1:]]
  axes = range(rank) if len(node.inputs) < 4 or node.inputs[3].is_empty() else given[2]
  if (
    given[0] is None or axes is None or given[0].size != 2 * len(axes) or not all(-rank <= axis < rank for axis in axes)
  ):
    return None
  by_axis = dict(zip((int(axis) % rank for axis in axes), np.reshape(given[0], (2, -1)).T.tolist(), strict=True))
  return [by_axis.get(axis, [0, 0]) for axis in range(rank)]


def _steps(shape: Sequence[Dim], pads: Pads, joins: bool) -> Iterator[tuple[list[int], Pads] | None]:
  """The dims of each view and what is added to its last axes; None of one that needs an unknown length.

  `joins`: whether axes may be padded together with those behind them.
  """
  dims, left = list(shape), [axis for axis, pair in enumerate(pads) if any(pair)]
  while left:
    taken = left[-2:] if joins or left[-2:] == [len(dims) - 2, len(dims) - 1] else left[-1:]
    ends = [*taken[1:], len(dims)] if joins else [axis + 1 for axis in taken]
    inner = [_length(dims[axis + 1 : end]) for axis, end in zip(taken, ends, strict=True)]
    added = [[number * size for number in pads[axis]] for axis, size in zip(taken, inner, strict=True)]
    view = [_length(dims[a:b]) for a, b in zip([0, *taken], [taken[0], *ends], strict=True)]
    if ends[-1] < len(dims):
      view, added = [*view, _length(dims[ends[-1] :])], [*added, [0, 0]]
    yield None if -1 in inner else (view, added)
    for axis in taken:
      dim = dims[axis]
      dims[axis] = dim + sum(pads[axis]) if isinstance(dim, int) else dim
    left = left[: -len(taken)]


def _length(dims: Sequence[Dim]) -> int:
  """The product, -1 where a length is unknown."""
  known = [dim for dim in dims if isinstance(dim, int)]
  return math.prod(known) if len(known) == len(dims) else -1


FLAT_PAD = RulePass("flat-pad", "a Pad works on a view of which the last two axes are padded", rewrite)
