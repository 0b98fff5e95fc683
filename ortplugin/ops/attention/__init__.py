"""FusedAttention: softmax(scale Q K^T + mask) V for each head, of tensors as they lie.

    Y[b, h, i] = sum over j of softmax(scale Q[b, h, i] . K[b, g(h), j] + mask[b, h, i, j])[j] V[b, g(h), j]

docs/operators.md has the meaning in full, and the attributes; layout.py the layouts.
Inputs: Q, K, V, a mask, which may be left out (not by an empty name: ONNX Runtime gives a library's operators none),
    cos and sin with `rotary`, past_key and past_value, position with `cache` "write". Outputs: Y, and present_key and
    present_value where there is a past: all four or none.
Shapes: b is the same in Q, K and V; d in Q and K, and s in K and V. Those of the past have b, heads and d of K and V,
    and one s.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from ...arrays import Array
from ...errors import ModelError
from ...graph import Dim, Shape, TensorType, show
from ...program import NUMPY_DTYPES
from ..base import Operator
from . import reference as numpy_reference
from .attributes import Attention, attributes_of, given_inputs
from .decomposition import decomposed
from .layout import Sizes, shape_of, sizes

NAME = "FusedAttention"
MOST_HEAD_SIZE = 256


def _agreed(where: str, dims: Sequence[tuple[str, Dim]]) -> Dim:
  """The size that all have, as far as it is known. Raises ModelError where two differ."""
  lengths: dict[int, str] = {}
  for name, dim in dims:
    if isinstance(dim, int):
      lengths.setdefault(dim, name)
  if len(lengths) > 1:
    said = " and ".join(f"{name} is {dim}" for dim, name in lengths.items())
    raise ModelError(f"{where}: the shapes do not fit each other: {said}")
  return next(iter(lengths), None) or next((dim for _, dim in dims if dim is not None), None)


def _check_dtypes(attention: Attention, inputs: Sequence[TensorType]) -> None:
  """Raises ModelError where an input has another dtype than the node says."""
  kinds = {"the mask": "mask_dtype", "cos": "rotary_dtype", "sin": "rotary_dtype"}
  for name, x in zip(attention.input_names, inputs, strict=True):
    if name == "position":
      if x.dtype not in (None, np.int64):
        raise ModelError(f"{attention.where}: position is {x.dtype}, but must be int64; cast it")
      continue
    attribute = kinds.get(name, "qkv_dtype")
    dtype = getattr(attention, attribute)
    if x.dtype is not None and x.dtype != NUMPY_DTYPES[dtype]:
      raise ModelError(f"{attention.where}: {name} is {x.dtype}, but {attribute} is '{dtype}'; cast it")


def _check_mask(where: str, mask: Shape, target: Shape) -> None:
  fits = len(mask) <= 4 and all(
    dim == 1 or dim == goal or not (isinstance(dim, int) and isinstance(goal, int))
    for dim, goal in zip(reversed(mask), reversed(target), strict=False)
  )
  if not fits:
    raise ModelError(f"{where}: the mask's shape {show(mask)} does not broadcast to {show(target)}")


def _check_tables(where: str, cos: Shape, sin: Shape, batch: Dim, rows: Dim, head: Dim) -> None:
  """Raises ModelError where cos and sin are no tables of so many rows for each batch or all, and for this head."""

  def differ(a: Dim, b: Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b

  if len(cos) not in (2, 3) or len(cos) != len(sin) or any(map(differ, cos, sin)):
    raise ModelError(
      f"{where}: cos is {show(cos)} and sin {show(sin)}, but both are of one shape, [s, R / 2] or [b, s, R / 2]"
    )
  for table in (cos, sin):
    if differ(table[-2], rows) or (len(table) == 3 and table[0] != 1 and differ(table[0], batch)):
      raise ModelError(f"{where}: cos is {show(table)}, but b of Q is {batch} and s of Q and K is {rows}")
    pairs = table[-1]
    if isinstance(pairs, int) and (pairs < 1 or (isinstance(head, int) and 2 * pairs > head)):
      raise ModelError(f"{where}: cos has {pairs} columns, but must have 1 to {head} / 2, half the head size")


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Q's dtype, and the shapes of Y and of what is present, as far as those of the inputs tell."""
  return _infer_shapes(attributes_of(node), [inputs[number] for number in given_inputs(node)])


def _infer_shapes(attention: Attention, inputs: Sequence[TensorType]) -> list[TensorType]:
  """The same of the inputs alone, without what an empty name stands for."""
  _check_dtypes(attention, inputs)
  where, given = attention.where, dict(zip(attention.input_names, inputs, strict=True))
  layouts = {"Q": attention.q, "K": attention.k, "V": attention.v}
  if attention.past is not None:
    layouts |= {"past_key": attention.past, "past_value": attention.past}
  found = {}
  for name, layout in layouts.items():
    shape = given[name].shape
    heads = attention.heads if name == "Q" else attention.kv_heads
    try:
      found[name] = Sizes(None, None, None) if shape is None else sizes(layout, heads, shape)
    except ValueError as error:
      raise ModelError(f"{where}: {name}: {error}") from error
  q, k, v = found["Q"], found["K"], found["V"]
  batch = _agreed(where, [(f"b of {name}", each.b) for name, each in found.items()])
  added = keys = _agreed(where, [("s of K", k.s), ("s of V", v.s)])
  head = _agreed(where, [(f"d of {name}", found[name].d) for name in ("Q", "K", "past_key") if name in found])
  value = _agreed(where, [(f"d of {name}", found[name].d) for name in ("V", "past_value") if name in found])
  if attention.past is not None:
    past = _agreed(where, [(f"s of {name}", found[name].s) for name in ("past_key", "past_value")])
    keys = (
      past if attention.has_position else past + added if isinstance(past, int) and isinstance(added, int) else None
    )
  position = given["position"].shape if attention.has_position else None
  wrong = [dim for dim in position or () if isinstance(dim, int) and isinstance(batch, int) and dim not in (1, batch)]
  if position is not None and (len(position) > 1 or wrong):
    raise ModelError(f"{where}: position is {show(position)}, but must be [], [1] or [b], and b of Q is {batch}")
  if attention.has_position and isinstance(added, int) and isinstance(keys, int) and added > keys:
    raise ModelError(f"{where}: s of K is {added}, but must be at most {keys}, the rows of the cache")
  for name, size in (("K", head), ("V", value)):
    if isinstance(size, int) and not 1 <= size <= MOST_HEAD_SIZE:
      raise ModelError(f"{where}: the head size, d of {name}, is {size}, but must be from 1 to {MOST_HEAD_SIZE}")
  if attention.mask_dtype and inputs[3].shape is not None:
    _check_mask(where, inputs[3].shape, (batch, attention.heads, q.s, keys))
  if attention.rotary_dtype:
    rows = _agreed(where, [("s of Q", q.s), ("s of K, which is rotated as Q is,", added)])
    cos, sin = given["cos"].shape, given["sin"].shape
    if cos is not None and sin is not None:
      _check_tables(where, cos, sin, batch, rows, head)
  shapes: list[Shape | None] = [shape_of(attention.y, attention.heads, Sizes(batch, q.s, value))]
  if attention.past is not None:
    shapes += [shape_of(attention.past, attention.kv_heads, Sizes(batch, keys, d)) for d in (head, value)]
  if all(given[name].shape is None for name in found):
    shapes = [None] * len(shapes)
  return [TensorType(NUMPY_DTYPES[attention.qkv_dtype], shape) for shape in shapes]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX.

  Views (Reshape, Gather, Slice, Transpose), MatMul, Softmax, MatMul, all in float32, or double for double.
  """
  inputs = [node.input[number] for number in given_inputs(node)]
  return decomposed(attributes_of(node), inputs, node.output, opset)


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """`rounded`: Y in Q's dtype. See reference.py.

  What is rotated is rounded to Q's dtype in either case, so that present_key and present_value have that dtype.
  """
  attention = attributes_of(node)
  inputs = [inputs[number] for number in given_inputs(node)]
  _infer_shapes(attention, [TensorType(x.dtype, x.shape) for x in inputs])
  q, k, v = operands(attention, inputs)
  present = [] if attention.past is None else [numpy_reference.laid_out(x, attention.past) for x in (k, v)]
  y = numpy_reference.attention(q, k, v, inputs[3] if attention.mask_dtype else None, scores_of(attention, inputs))
  laid_out = numpy_reference.laid_out(y, attention.y)
  with np.errstate(over="ignore"):
    return [laid_out.astype(inputs[0].dtype) if rounded else laid_out, *present]


def operands(attention: Attention, inputs: Sequence[Array]) -> list[Array]:
  """Q, K and V [b, h, s, d] as the products read them: rotated, with the rows of the past in front."""
  heads = (attention.heads, attention.kv_heads, attention.kv_heads)
  found = [
    numpy_reference.view(x, layout, count)
    for x, layout, count in zip(inputs, (attention.q, attention.k, attention.v), heads, strict=False)
  ]
  if attention.rotary_dtype:
    cos, sin = (inputs[attention.input(name)] for name in ("cos", "sin"))
    found[:2] = [numpy_reference.rotated(x, cos, sin, attention.rotary) for x in found[:2]]
  if attention.past is not None:
    past = [
      numpy_reference.view(inputs[attention.input(name)], attention.past, attention.kv_heads)
      for name in ("past_key", "past_value")
    ]
    if attention.has_position:
      start = inputs[attention.input("position")]
      found[1:] = [numpy_reference.written(cache, start, x) for cache, x in zip(past, found[1:], strict=True)]
    else:
      found[1:] = [np.concatenate(pair, axis=2) for pair in zip(past, found[1:], strict=True)]
  return found


def scores_of(attention: Attention, inputs: Sequence[Array]) -> numpy_reference.Scores:
  """What reference.py needs to know of a node."""
  zero, position = attention.masked_rows == "zero", None
  if attention.has_position and attention.past is not None:
    rows = numpy_reference.view(inputs[attention.input("past_key")], attention.past, attention.kv_heads).shape[2]
    position = numpy_reference.first_of(inputs[attention.input("position")], rows)
  return numpy_reference.Scores(attention.scale, attention.softcap, attention.causal, attention.window, zero, position)


OPERATOR = Operator(
  name=NAME,
  summary="attention: softmax(scale Q K^T + mask) V for each head, of tensors as they lie",
  infer_shapes=infer_shapes,
  decompose=decompose,
  reference=reference,
)
