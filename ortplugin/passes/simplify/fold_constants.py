"""Nodes of constants are computed once, here: cheap and deterministic operators only, within a budget of memory.

What a node will make is known before it is computed, from shape inference on its constant inputs, so that a small file
cannot ask for a huge tensor. Random and quantising operators, control flow and heavy arithmetic stay, but for products
and norms of 16 bits.

What computes them is onnx's evaluator, which differs from ONNX Runtime here and there. Before an operator joins
FOLDABLE, compare the two in every opset, with every attribute, negative and unordered axes, no elements, NaN and -0;
`_defined` leaves out where they differ, and a value whose shape contradicts shape inference is not taken.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ...arrays import Array
from ...graph import DOMAIN, Scope, Shape, attached, element_count, label, labelled
from ...graph.constant_values import is_half
from ...graph.convert import constants_of, node_proto, type_of
from ...graph.inference import infer_shapes
from ...ops.scatter.reference import update_slice
from ..driver import Applied, Outcome, RulePass

GROWTH_BYTES = 1 << 20  # one node may add so much to the model, beyond the constants that it replaces
TOTAL_BYTES = 1 << 26  # all constants of a graph together, beyond those that are read no more
INPUT_ELEMENTS = 1 << 26
SCATTERED = 1 << 14  # indices of a scatter, which the evaluator goes through one by one
SHAPE_BYTES = 1 << 16  # inputs up to this size may be what the output's shape depends on

_FOLDABLE = """
    Abs Add And Cast Ceil Concat ConstantOfShape Cos Div Equal Exp Expand Floor Gather GatherElements Greater
    GreaterOrEqual Less LessOrEqual Log Max Min Mod Mul Neg Not Or Pow Range Reciprocal ReduceL2 ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum Reshape Round ScatterElements ScatterND Shape Sigmoid Sign Sin Size Slice Split Sqrt
    Squeeze Sub Tile Transpose Trilu Unsqueeze Where Xor
"""
# Of 16 bits alone, as DeBERTa projects its positions and NFNet standardises weights: ONNX Runtime computes these for
# each run, others once, as it loads the model, whose file they would make larger.
HALF_ALONE = ("MatMul", "LayerNormalization", "BatchNormalization")
MULTIPLY_ADDS = 1 << 31  # of a product: some tenths of a second
UPDATE_SLICE = f"{DOMAIN}::UpdateSlice"  # what a scatter has become before its data was known
FOLDABLE = frozenset([*_FOLDABLE.split(), *HALF_ALONE, UPDATE_SLICE])


def fold(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces the outputs of a node of constants by constants."""
  if scope.op(node) not in FOLDABLE or any(scope.is_output(tensor) for tensor in node.outputs):
    return None
  if not all(scope.is_constant(tensor) or tensor.is_empty() for tensor in node.inputs):
    return None
  arrays = [None if t.is_empty() else scope.constant(t, INPUT_ELEMENTS) for t in node.inputs]
  if any(array is None and not t.is_empty() for array, t in zip(arrays, node.inputs, strict=True)):
    return None
  given = [(t.name, array) for t, array in zip(node.inputs, arrays, strict=True) if array is not None]
  if scope.op(node) == "Range" and len(given) == 3 and any(array.shape == (1,) for _, array in given):
    return _with_scalars(scope, node, given)
  if not _defined(scope.op(node), node, [array for _, array in given]) or not _within_budget(scope, node, given):
    return None
  values = _evaluate(scope, node, given)
  if values is None or not all(_agrees(scope.shape(t), v) for t, v in zip(node.outputs, values, strict=True)):
    return None
  name, inputs, outputs = label(node), list(node.inputs), list(node.outputs)
  scope.remove(node)
  constants = constants_of(scope.graph)
  for each in inputs:  # their memory is given back
    known = constants.get(each.name)
    if known is not None and known is each and _is_made(known) and not _is_read(scope, known):
      del constants[known.name]
  for tensor, value in zip(outputs, values, strict=True):
    if not tensor.is_empty():
      scope.substitute(tensor, scope.add_constant(value, f"{tensor.name}_value"))
  return Applied((name,), None)


def _with_scalars(scope: Scope, node: gs.Node, given: list[tuple[str, Array]]) -> Applied:
  """Gives a Range scalars for constants [1].

  ONNX Runtime takes these as it runs, but loads no Range of such constants, which only a rewrite has made them.
  """
  for index, (name, array) in enumerate(given):
    if array.shape == (1,):
      node.inputs[index] = scope.add_constant(array.reshape(()), f"{name}_scalar")
  return Applied(labelled(node), node)


def _defined(op: str, node: gs.Node, arrays: list[Array]) -> bool:
  """Whether ONNX says what the result is, and NumPy gives the same."""
  if any(array.dtype.kind in "OSU" for array in arrays) or _differs(op, node, arrays):
    return False
  if op in HALF_ALONE:
    half = all(is_half(array.dtype) for array in arrays)
    products = arrays[0].size * (arrays[1].shape[-1] if op == "MatMul" and arrays[1].ndim > 1 else 1)
    return half and len(node.outputs) == 1 and products <= MULTIPLY_ADDS
  if op in ("Div", "Mod") and arrays[0].dtype.kind in "iu":  # rounding and zero differ between languages
    return bool((arrays[0] >= 0).all() and (arrays[1] > 0).all())
  if op == "Pow" and arrays[0].dtype.kind in "iu":
    return bool((arrays[1] >= 0).all())
  if op in ("ScatterElements", "ScatterND") and arrays[1].size > SCATTERED:
    return False
  if op == "ScatterND":
    return node.attrs.get("reduction", "none") == "none" and _distinct(arrays[0], arrays[1])
  if op == "Cast":
    target = np.dtype(helper.tensor_dtype_to_np_dtype(node.attrs["to"]))
    if target.kind in "iu" and arrays[0].dtype.kind not in "iub":
      info = np.iinfo(target)
      wide = arrays[0].astype(np.float64)
      return bool(np.isfinite(wide).all() and (wide > info.min).all() and (wide < info.max).all())
    return target.kind in "iufb" or target.name == "bfloat16"
  return True


def _differs(op: str, node: gs.Node, arrays: list[Array]) -> bool:
  """Whether ONNX Runtime computes something else than onnx's evaluator, or refuses what that computes."""
  if op == "Squeeze":  # no axes: all of length 1, or none of them
    return len(arrays) > 1 and arrays[1].size == 0
  if op in ("ReduceSum", "ReduceProd"):  # in half precision each rounds elsewhere; of no axes, 0 + -0 is 0
    none = len(arrays) < 2 or arrays[1].size == 0
    return is_half(arrays[0].dtype) or (none and bool(node.attrs.get("noop_with_empty_axes", 0)))
  if op in ("ReduceL2", "ReduceMean"):  # integers are rounded in between, and there is no mean of nothing
    return arrays[0].dtype.kind in "iu" or arrays[0].size == 0 or bool(node.attrs.get("noop_with_empty_axes", 0))
  if op == "BatchNormalization":
    return bool(node.attrs.get("training_mode", 0))
  if op == "ScatterElements" and node.attrs.get("reduction", "none") in ("max", "min"):
    return any(_has_nan(each) for each in arrays)
  if op == "Sign":
    return _has_nan(arrays[0])
  return op == "Mod" and arrays[0].dtype.kind not in "iub" and not node.attrs.get("fmod", 0)


def _distinct(data: Array, indices: Array) -> bool:
  """Whether no two index tuples name one place, of which ONNX does not say which update stays."""
  depth = indices.shape[-1] if indices.ndim else 0
  if not 1 <= depth <= data.ndim:
    return False
  rows = indices.reshape(-1, depth)
  rows = np.where(rows < 0, rows + np.array(data.shape[:depth]), rows)
  return len(np.unique(rows, axis=0)) == len(rows)


def _has_nan(array: Array) -> bool:
  return array.dtype.kind not in "iub" and bool(np.isnan(array).any())


def _agrees(shape: Shape | None, value: Array) -> bool:
  """Whether the value has this shape, as far as it is known."""
  return shape is None or (
    len(shape) == value.ndim
    and all(not isinstance(dim, int) or dim == size for dim, size in zip(shape, value.shape, strict=True))
  )


def _model(scope: Scope, node: gs.Node, initializers: list[onnx.TensorProto]) -> onnx.ModelProto:
  outputs = [onnx.ValueInfoProto(name=tensor.name) for tensor in node.outputs if not tensor.is_empty()]
  graph = helper.make_graph([node_proto(node)], "node", [], outputs, initializers)
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", scope.opset)])


def _within_budget(scope: Scope, node: gs.Node, given: list[tuple[str, Array]]) -> bool:
  """Whether the outputs' sizes are known before they are computed, and small enough."""
  size = given[0][1].nbytes if scope.op(node) == UPDATE_SLICE else _size(scope, node, given)
  if size is None:
    return False
  tensors = [tensor for tensor in node.inputs if not tensor.is_empty()]
  replaced = sum(array.nbytes for (_, array), t in zip(given, tensors, strict=True) if len(t.outputs) == 1)
  total = _grown(scope) + size - replaced
  # Of 16 bits what is as large as a constant may be on the way to what takes its place.
  largest = max((array.nbytes for _, array in given if is_half(array.dtype)), default=0)
  return (size - replaced <= GROWTH_BYTES or size <= largest) and total <= TOTAL_BYTES


def _is_made(tensor: gs.Tensor) -> bool:
  return attached(tensor, "imported") is None


def _is_read(scope: Scope, tensor: gs.Tensor) -> bool:
  return bool(tensor.outputs) or scope.is_output(tensor)


def _grown(scope: Scope) -> int:
  """Bytes of the graph's constants that were made, less those of its own that nothing reads any more."""
  signs = ((each, _is_read(scope, each) - (not _is_made(each))) for each in constants_of(scope.graph).values())
  return sum(sign * math.prod(each.shape) * np.dtype(each.dtype).itemsize for each, sign in signs if sign)


def _size(scope: Scope, node: gs.Node, given: list[tuple[str, Array]]) -> int | None:
  """The bytes of the outputs, by shape inference; None where it does not know them."""
  small = [numpy_helper.from_array(array, name) for name, array in given if array.nbytes <= SHAPE_BYTES]
  model = _model(scope, node, small)
  model.graph.input.extend(
    helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    for name, array in given
    if array.nbytes > SHAPE_BYTES
  )
  try:
    inferred = infer_shapes(model)
  except Exception:
    return None
  size = 0
  for info in inferred.graph.output:
    dtype, shape = type_of(info.type)
    elements = element_count(shape)
    if dtype is None or elements is None:
      return None
    size += elements * dtype.itemsize
  return size


def _evaluate(scope: Scope, node: gs.Node, given: list[tuple[str, Array]]) -> list[Array] | None:
  model = _model(scope, node, [])
  model.graph.input.extend(
    helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    for name, array in dict(given).items()
  )
  try:
    if scope.op(node) in _OWN:
      return [_OWN[scope.op(node)](node, *(array for _, array in given))]
    with np.errstate(all="ignore"):
      values = ReferenceEvaluator(model).run(None, dict(given))
  except Exception:  # the node is invalid or the evaluator lacks it: it stays for the runtime to judge
    return None
  found = iter(values if isinstance(values, list) else list(values.values()))
  return [np.empty(0) if tensor.is_empty() else np.asarray(next(found)) for tensor in node.outputs]


def _unsqueeze(node: gs.Node, x: Array, *axes: Array) -> Array:
  """onnx's evaluator adds one axis after the other, also where the others count."""
  return np.expand_dims(x, tuple(int(axis) for axis in (axes[0] if axes else node.attrs["axes"])))


def _gather_elements(node: gs.Node, x: Array, indices: Array) -> Array:
  """onnx's evaluator takes at most 32 elements of an axis, and wraps what is out of range."""
  places: list[Array] = list(np.indices(indices.shape, sparse=True))
  places[int(node.attrs.get("axis", 0))] = indices
  return np.asarray(x[tuple(places)])


def _matmul(_: gs.Node, a: Array, b: Array) -> Array:
  """Sums in float32, as ONNX Runtime's, of which onnx's evaluator rounds each."""
  with np.errstate(all="ignore"):
    return np.asarray(a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)


def _layer_normalization(node: gs.Node, x: Array, scale: Array, *bias: Array) -> Array:
  """In float32 up to the last rounding."""
  wide, axis = x.astype(np.float32), int(node.attrs.get("axis", -1))
  axes = tuple(range(axis % x.ndim, x.ndim))
  with np.errstate(all="ignore"):
    centred = wide - wide.mean(axes, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axes, keepdims=True) + np.float32(node.attrs.get("epsilon", 1e-5)))
    y = centred / deviation * scale.astype(np.float32)
    return np.asarray(y + bias[0].astype(np.float32) if bias else y).astype(x.dtype)


def _batch_normalization(node: gs.Node, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
  """In float32 up to the last rounding."""
  columns = (each.astype(np.float32).reshape(-1, *[1] * (x.ndim - 2)) for each in (scale, bias, mean, variance))
  gamma, beta, centre, spread = columns
  with np.errstate(all="ignore"):
    factor = gamma / np.sqrt(spread + np.float32(node.attrs.get("epsilon", 1e-5)))
    return np.asarray((x.astype(np.float32) - centre) * factor + beta).astype(x.dtype)


def _reduction(node: gs.Node, x: Array, *axes: Array) -> Array:
  """Exact up to the last rounding."""
  given = axes[0] if axes else node.attrs.get("axes", ())
  over = tuple(int(axis) for axis in given) or None
  keep = bool(node.attrs.get("keepdims", 1))
  with np.errstate(all="ignore"):
    if node.op == "ReduceL2":
      return np.asarray(np.sqrt(np.square(x, dtype=np.float64).sum(over, keepdims=keep))).astype(x.dtype)
    return np.asarray(x.mean(over, dtype=np.float64, keepdims=keep)).astype(x.dtype)


def _update_slice(node: gs.Node, data: Array, updates: Array, starts: Array) -> Any:
  return update_slice(data, updates, starts, node.attrs["axes"], node.attrs.get("steps", ()))


_OWN: dict[str, Callable[..., Array]] = {
  "Unsqueeze": _unsqueeze,
  "GatherElements": _gather_elements,
  "LayerNormalization": _layer_normalization,
  "BatchNormalization": _batch_normalization,
  "MatMul": _matmul,
  "ReduceL2": _reduction,
  "ReduceMean": _reduction,
  UPDATE_SLICE: _update_slice,
}
"""What is not left to onnx's evaluator: from the node and its inputs the output."""

FOLD_CONSTANTS = RulePass("fold-constants", "nodes of constants are computed, within a budget", fold)
