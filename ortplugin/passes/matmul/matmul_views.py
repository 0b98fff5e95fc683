"""A FusedMatMul between views that only regroup its rows works on what the later one makes of them.

    a = Reshape(x, [-1, K]); c = FusedMatMul(a, w); y = Reshape(c, [B, S, N])      becomes      y = FusedMatMul(x, w)

x [B, S, K]: so are linear layers exported that work on matrices, such as GPT-2's. What is pointwise behind the view
then stands beside the product, and matmul-epilogue draws it in. Where x is not known to have y's leading lengths, and
there is something to draw in, x is reshaped to them.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, is_pointwise
from ...graph.extents import extents
from ...graph.lengths import same_length
from ..driver import Missed, Outcome, RulePass, replaced
from ..emit import emit, integers
from .fused import OWN_INPUTS, is_product

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Joins one product with the Reshape behind it."""
  if not is_product(scope, node) or len(node.outputs) != 1:
    return None
  c, readers = node.outputs[0], scope.consumers(node.outputs[0])
  if len(readers) != 1 or scope.op(readers[0]) != "Reshape" or scope.used_beyond(c, readers):
    return None
  view, y = readers[0], readers[0].outputs[0]
  if not _keeps_rows(scope, c, y) or readers[0].inputs[0] is not c:
    return None
  wide = next((t for t in node.inputs[OWN_INPUTS:] if not is_row(scope, t)), None)
  high = next((t for t in node.inputs[OWN_INPUTS:] if (scope.rank(t) or 0) > (scope.rank(y) or 0)), None)
  if high is not None:  # as [1, N] is of a vector: an operand must not add dimensions to what the view made
    return Missed(node, f"'{high.name}' has more dimensions than '{y.name}'")
  if wide is not None:
    return Missed(node, f"'{wide.name}' is no row, so that the view behind the product changes its place")
  a = node.inputs[0]
  maker = scope.producer(a, *VIEWS)
  x = a if maker is None else maker.inputs[0]
  x = x if _keeps_rows(scope, x, a) else a
  if not _same_rows(scope, x, y):
    if not any(is_pointwise(scope, each) for each in scope.consumers(y)):
      return None
    made = _reshaped(scope, node, view, x)
    if made is None:
      return Missed(node, f"the shape of '{y.name}' is not known beforehand")
    x = made
  new = gs.Node(node.op, node.name, dict(node.attrs), [x, *node.inputs[1:]], [], node.domain)
  return replaced(scope, [node, view], new, [y])


def _keeps_rows(scope: Scope, before: gs.Tensor, after: gs.Tensor) -> bool:
  """Whether a view of the one as the other surely keeps the last axis, so that it regroups those before it."""
  last = [(scope.shape(each) or (None,))[-1] for each in (before, after)]
  return isinstance(last[0], int) and last[0] > 0 and last[0] == last[1]


def _same_rows(scope: Scope, x: gs.Tensor, y: gs.Tensor) -> bool:
  """Whether both surely have the same lengths before the last."""
  rank = scope.rank(x) or 0
  return rank == scope.rank(y) and all(same_length(scope, x, y, axis) for axis in range(rank - 1))


def is_row(scope: Scope, operand: gs.Tensor) -> bool:
  """Whether an operand of a product is the same for each row, however these are grouped."""
  shape = scope.shape(operand)
  return shape is not None and len(shape) <= 2 and all(dim == 1 for dim in shape[:-1])


def _reshaped(scope: Scope, node: gs.Node, view: gs.Node, x: gs.Tensor) -> gs.Tensor | None:
  """What the product reads, with the leading lengths that the view gives its result; None if they are not known."""
  a, shape, y = node.inputs[0], view.inputs[1], view.outputs[0]
  k, known = (scope.shape(a) or (None,))[-1], scope.constant(shape)
  if not isinstance(k, int):
    return None
  goal = (*(scope.shape(y) or ())[:-1], k)
  if known is not None:
    dims = [*(int(each) for each in known.reshape(-1)[:-1]), k]
    # A 0 is the length of the axis in that place: c and a have the first in common.
    if 0 in dims[1:] or (dims[0] == 0 and view.attrs.get("allowzero", 0)) or len(dims) != len(goal):
      return None
    source = a if dims[0] == 0 else x
    return emit(scope, view, "Reshape", [source, integers(scope, dims, "shape")], goal)
  if extents(scope, shape) is None or scope.depends_on(shape, node):
    return None
  lead = emit(
    scope, view, "Slice", [shape, *(integers(scope, [n], "to") for n in (0, len(goal) - 1))], (len(goal) - 1,)
  )
  dims = emit(scope, view, "Concat", [lead, integers(scope, [k], "width")], (len(goal),), axis=0)
  return emit(scope, view, "Reshape", [a, dims], goal)


MATMUL_VIEWS = RulePass(
  "matmul-views", "a FusedMatMul between views that only regroup its rows works on the tensors behind them", rewrite
)
