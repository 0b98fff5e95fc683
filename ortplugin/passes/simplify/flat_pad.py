"""A Pad works on a view for which ONNX Runtime's CUDA provider has a fast kernel: only the last two axes are padded.

    y = Pad(x)     x [2, 32, 32, 768], 10 after axes 1 and 2     becomes
    y = Reshape(Pad(Reshape(x, [2, 32, 24576])), [2, 42, 42, 768])     with 10 and 7680 after the last two

Axes that nothing is added to join the one before them. A constant is added to two axes at a time; what reflects or
repeats an edge, to one, for joined axes are none that it could reflect. The fast kernel takes ranks 2 to 4; the one
for all others takes 333 us for [2, 32, 32, 768] float16 on an H100, where a copy takes 6. A Transpose before a Pad is
kept there by the view: ONNX Runtime would move it behind the Pad, to other axes.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ortplugin.graph.disputed import disputed
from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.graph.shapes import Dim, element_count
from ortplugin.passes.driver import Applied, Missed, Outcome, RulePass
from ortplugin.passes.emit import emit, integers

DTYPES = ("float16", "float", "double", "bool")  # of the CUDA provider's Pad
SMALL = 1 << 14  # elements, which take the slow kernel 2 us

Pads = list[tuple[int, int]]  # what is added before and after each axis


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Puts views around one Pad."""
  if scope.op(node) != "Pad" or scope.opset < 11 or scope.dtype(node.inputs[0]) not in DTYPES:
    return None
  x, y = node.inputs[0], node.outputs[0]
  shape, mode = scope.shape(x), node.attrs.get("mode", "constant")
  count = element_count(scope.shape(y))
  if shape is None or (count is not None and count < SMALL) or x.name in disputed(scope.graph):
    return None
  pads = _pads(scope, node, len(shape))
  if pads is None or mode not in ("constant", "reflect", "edge"):
    return Missed(label(node), f"its mode is {mode}" if pads else "its pads are not constant")
  maker = scope.producer(x)
  moves = maker is not None and scope.op(maker) == "Transpose"
  if 2 <= len(shape) <= 4 and not any(map(any, pads[:-2])) and not moves:
    return None
  if maker is None or scope.is_output(y):
    return Missed(label(node), "it reads an input or makes an output of the graph, which a Reshape would copy")
  if mode != "constant" and any(number < 0 for each in pads for number in each):
    return Missed(label(node), f"it cuts off what its mode, {mode}, is about")
  steps = list(_steps(shape, pads, mode == "constant"))
  made = [-1 if not isinstance(dim, int) else dim + sum(pair) for dim, pair in zip(shape, pads, strict=True)]
  if made.count(-1) > 1 or None in steps or 0 in (*shape, *made):
    return Missed(label(node), f"the shape of '{x.name}' is not known well enough: {list(shape)}")
  labels = (label(node),)
  for dims, added in filter(None, steps):
    view = [1, *dims] if tuple(dims) == tuple(shape) else list(dims)
    zeros = [(0, 0)] * (len(view) - len(added))
    numbers = [pair[side] for side in (0, 1) for pair in (*zeros, *added)]
    x = emit(scope, node, "Reshape", [x, integers(scope, view, f"{y.name}_view")], None)
    x = emit(scope, node, "Pad", [x, integers(scope, numbers, f"{y.name}_pads"), *node.inputs[2:3]], None, mode=mode)
  new = gs.Node("Reshape", node.name, {}, [x, integers(scope, made, f"{y.name}_shape")])
  scope.replace([node], new, [y])
  return Applied(labels, new)


def _pads(scope: Scope, node: gs.Node, rank: int) -> Pads | None:
  """The pads of each axis; None if they are not constant."""
  pads = scope.constant(node.inputs[1])
  axes: Sequence[int] | None = range(rank)
  if len(node.inputs) > 3 and not node.inputs[3].is_empty():
    given = scope.constant(node.inputs[3])
    axes = None if given is None else [int(axis) % rank for axis in given.reshape(-1)]
  if pads is None or axes is None or pads.size != 2 * len(axes):
    return None
  found = dict(zip(axes, np.reshape(pads, (2, -1)).T.tolist(), strict=True))
  return [tuple(found.get(axis, (0, 0))) for axis in range(rank)]


def _steps(shape: Sequence[Dim], pads: Pads, joins: bool) -> Iterator[tuple[list[int], Pads] | None]:
  """The dims of each view and what is added to its last axes; None of one that needs an unknown length.

  `joins`: whether axes may be padded together with those behind them.
  """
  dims, left = list(shape), [axis for axis, pair in enumerate(pads) if any(pair)]
  while left:
    pair = joins or left[-2:] == [len(dims) - 2, len(dims) - 1]
    taken = left[-2:] if pair else left[-1:]
    first, last = taken[0], taken[-1]
    ends = [*taken[1:], len(dims)] if joins else [axis + 1 for axis in taken]
    inner = [_length(dims[axis + 1 : end]) for axis, end in zip(taken, ends, strict=True)]
    rest = [] if joins or last + 1 == len(dims) else [_length(dims[last + 1 :])]
    whole = [_length(dims[axis:end]) for axis, end in zip(taken, ends, strict=True)]
    added = [(pads[axis][0] * size, pads[axis][1] * size) for axis, size in zip(taken, inner, strict=True)]
    yield None if -1 in inner else ([_length(dims[:first]), *whole, *rest], [*added, *[(0, 0)] * len(rest)])
    for axis in taken:
      length = dims[axis]
      dims[axis] = length + sum(pads[axis]) if isinstance(length, int) else length
    left = left[: -len(taken)]


def _length(dims: Sequence[Dim]) -> int:
  """The product, -1 where a length is unknown."""
  known = [dim for dim in dims if isinstance(dim, int)]
  return math.prod(known) if len(known) == len(dims) else -1


FLAT_PAD = RulePass("flat-pad", "a Pad works on a view of which the last two axes are padded", rewrite)
