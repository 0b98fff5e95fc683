"""Whether any, or every, element of a tensor is true becomes a sum, which fuse-sum-to joins with what makes the tensor.

    any:  y = Cast<bool>(ReduceMax(Cast<int64>(b)))    becomes    y = Cast<bool>(ReduceSum(Cast<float>(b)))
    all:  y = Cast<bool>(ReduceMin(Cast<int64>(b)))    becomes    y = Not(Cast<bool>(ReduceSum(Cast<float>(Not(b)))))

So T5 asks after each branch whether it overflowed. The sum is that of zeros and ones in float32, which may round where
it is large, but is 0 only if all terms are. ONNX Runtime's CUDA provider has no ReduceMax of integers: it casts to
double and back. Of no elements the maximum of a signed dtype is its lowest number, which is true: such axes stay.
"""

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ...graph import NotPointwiseError, Scope, labelled
from ..conditions import unsupported
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import cast, emit, integers
from .sums import axes_of_reduction

REDUCTIONS = ("ReduceMax", "ReduceMin")
BOOL = onnx.TensorProto.BOOL


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one reduction and what makes bools of its result."""
  if scope.op(node) not in REDUCTIONS or unsupported(scope) or not node.inputs:
    return None
  numbers, extreme = node.inputs[0], node.outputs[0]
  bools = numbers if numbers.dtype == np.bool_ else _cast_of(scope, numbers)
  rank = scope.rank(numbers)
  if bools is None or rank is None:
    return None
  readers = [node] if numbers is bools else scope.consumers(extreme)
  if numbers is not bools and (
    scope.used_beyond(extreme, readers) or not readers or not all(_asks(scope, each, extreme) for each in readers)
  ):
    return None
  try:
    axes = axes_of_reduction(scope, node)
  except NotPointwiseError as reason:
    return Missed(node, str(reason))
  if rank and not axes:
    return Missed(node, "its axes are none: it reduces nothing")
  signed = np.dtype(numbers.dtype).kind not in "ub"
  lengths = [(scope.shape(numbers) or ())[axis] for axis in axes]
  if scope.op(node) == "ReduceMax" and signed and not all(isinstance(n, int) and n > 0 for n in lengths):
    return Missed(node, f"'{numbers.name}' is not known to have elements on the axes {axes}")
  labels = labelled(node, *(each for each in readers if each is not node))
  total = _count(scope, node, bools, axes)
  for reader in readers:
    y = reader.outputs[0]
    if scope.op(node) == "ReduceMin":
      new = gs.Node("Not", reader.name, {}, [cast(scope, reader, total, "bool")])
    else:
      new = gs.Node("Cast", reader.name, {"to": BOOL}, [total])
    scope.replace([reader], new, [y])
  if numbers is not bools:
    scope.remove(node)
    if (maker := scope.producer(numbers)) is not None and not scope.used_beyond(numbers, []):
      scope.remove(maker)
  return Applied(labels, None)


def _cast_of(scope: Scope, numbers: gs.Tensor) -> gs.Tensor | None:
  """The bools of which the tensor is a Cast."""
  if (maker := scope.producer(numbers, "Cast")) is None or maker.inputs[0].dtype != np.bool_:
    return None
  return maker.inputs[0]


def _asks(scope: Scope, reader: gs.Node, number: gs.Tensor) -> bool:
  """Whether a node asks only if the number is another than 0: a Cast to bool, or whether it is larger."""
  if scope.op(reader) == "Greater":
    return reader.inputs[0] is number and scope.scalar(reader.inputs[1]) == 0 and scope.rank(reader.inputs[1]) == 0
  return scope.op(reader) == "Cast" and reader.outputs[0].dtype == np.bool_


def _count(scope: Scope, node: gs.Node, bools: gs.Tensor, axes: list[int]) -> gs.Tensor:
  """How many are true, of ReduceMin how many are not, in float32."""
  shape = scope.shape(bools)
  if scope.op(node) == "ReduceMin":
    bools = emit(scope, node, "Not", [bools], shape)
  ones = cast(scope, node, bools, "float")
  keepdims = {"keepdims": int(node.attrs.get("keepdims", 1))}
  made = scope.shape(node.outputs[0])
  if not axes:  # of a scalar
    return ones
  if scope.opset < 13:
    return emit(scope, node, "ReduceSum", [ones], made, axes=axes, **keepdims)
  return emit(scope, node, "ReduceSum", [ones, integers(scope, axes, "axes")], made, **keepdims)


ANY_TO_SUM = RulePass("any-to-sum", "whether any or all elements of a tensor are true becomes a sum", rewrite)
