"""Sums, means and L2 norms that ONNX Runtime leaves to cuDNN become FusedSumTo.

    y = ReduceSum(x)       over axes in the middle    becomes    y = SumTo(x)
    y = ReduceMean(x)      likewise                   becomes    y = SumTo(x / n), of n elements each
    y = ReduceL2(x)        over any axes              becomes    y = Sqrt(SumTo(x * x))

Over the first or the last axes ONNX Runtime has kernels of its own. cuDNN's took 35 microseconds for the halves of
[8, 28, 28, 2, 128] in float32, ours 4, and 44 for the norms of 1,536 rows of 784, on an H200.
"""

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, NotPointwiseError, Scope, Shape, element_count, labelled
from ...graph.constant_values import constant_values
from ...graph.shape_values import shape_values
from ...ops.sum_to import NAME
from ...program import Parameter, Program, Statement
from ..base import PassResult
from ..conditions import unsupported
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import emit
from .sums import axes_of_reduction

REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceL2")
DTYPES = ("float16", "bfloat16", "float")


class SlowSums:
  """The pass; see the module."""

  name = "slow-sums"
  summary = "sums, means and L2 norms that ONNX Runtime leaves to cuDNN become FusedSumTo"

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Replaces the reductions of the graph and its bodies, at most `limit` of them."""
    left_alone = shape_values(graph) | constant_values(graph)

    def rule(scope: Scope, node: gs.Node) -> Outcome:
      return None if id(node.outputs[0]) in left_alone else rewrite(scope, node)

    return RulePass(self.name, self.summary, rule)(graph, limit)


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one reduction."""
  op = scope.op(node)
  if op not in REDUCTIONS or unsupported(scope) or scope.dtype(node.outputs[0]) not in DTYPES:
    return None
  x, y = node.inputs[0], node.outputs[0]
  try:
    axes = axes_of_reduction(scope, node)
  except NotPointwiseError as reason:
    return Missed(node, str(reason))
  if not axes or (op != "ReduceL2" and not _are_inside(axes, scope.shape(x) or ())):
    return None
  count = element_count(tuple((scope.shape(x) or ())[axis] for axis in axes))
  if op == "ReduceMean" and not count:
    return Missed(node, f"how many elements of '{x.name}' one mean is of is unknown, or 0")
  program = _program(op, str(scope.dtype(x)), axes, count or 1, float(node.attrs.get("keepdims", 1)))
  new = gs.Node(NAME, node.name, {"program": str(program)}, [x], [], DOMAIN)
  if op == "ReduceL2":
    new = _root(scope, node, new)
  scope.replace([node], new, [y])
  return Applied(labelled(node), new)


def _are_inside(axes: list[int], shape: Shape) -> bool:
  """Whether what is kept stands before and behind what is not, but for axes of length 1."""
  reduced = [axis in axes for axis, length in enumerate(shape) if length != 1]
  return any(reduced) and not reduced[0] and not reduced[-1]


def _program(op: str, dtype: str, axes: list[int], count: int, keepdims: float) -> Program:
  """A sum, a mean of so many elements, or the sum of a norm's squares, which is float32 whatever the norm is."""
  is_half, is_norm = dtype != "float" and op != "ReduceSum", op == "ReduceL2"
  term, statements = "x", []
  if is_half:
    statements.append(Statement("w", "Cast", ("x",), (("to", "float"),)))
    term = "w"
  if op != "ReduceSum":
    statements.append(Statement("m", "Mul", (term, term if is_norm else 1 / count)))
    term = "m"
  attributes = (("axes", " ".join(map(str, axes))), ("keepdims", keepdims))
  statements.append(Statement("y", "SumTo", (term,), attributes))
  if is_half and not is_norm:
    statements.append(Statement("h", "Cast", ("y",), (("to", dtype),)))
  made = Parameter("float" if is_norm else dtype, statements[-1].name)
  return Program((Parameter(dtype, "x"),), (made,), tuple(statements))


def _root(scope: Scope, node: gs.Node, total: gs.Node) -> gs.Node:
  """The last of what makes a norm of the sum of its squares, without outputs; the rest stands before the node."""
  y = node.outputs[0]
  sums = gs.Variable(scope.unique(f"{node.name or y.name}/squares"), np.dtype(np.float32), scope.shape(y))
  total.name, total.outputs = sums.name, [sums]
  scope.insert(total, node)
  if y.dtype == np.float32:
    return gs.Node("Sqrt", node.name, {}, [sums])
  root = emit(scope, node, "Sqrt", [sums], scope.shape(y))
  return gs.Node("Cast", node.name, {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(y.dtype))}, [root])


SLOW_SUMS = SlowSums()
