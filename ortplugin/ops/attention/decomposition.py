"""FusedAttention as standard ONNX: views of the tensors, two MatMuls and a Softmax, in float32 or double.

Shapes are worked out by the model itself, so that tensors of any shape fit, those without elements among them.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from ..decompose import Builder
from .attributes import Attention
from .layout import Atom, Layout

_INTEGER = np.dtype(np.int64)


class _Attention(Builder):
  """The operators that an attention needs besides."""

  def integers(self, *numbers: int) -> str:
    return self.constant(numbers, _INTEGER)

  def dim(self, value: str, axis: int) -> str:
    """A dimension of the value, as a tensor of one element."""
    return self.op("Gather", self.op("Shape", value), self.integers(axis), axis=0)

  def transpose(self, value: str, perm: Sequence[int]) -> str:
    return value if list(perm) == sorted(perm) else self.op("Transpose", value, perm=list(perm))

  def reshape(self, value: str, shape: str, output: str = "") -> str:
    # Before opset 14 a 0 stands for the value's own size there: of no elements, the shape may then be another one.
    allowed = {"allowzero": 1} if self.opset >= 14 else {}
    return self.op("Reshape", value, shape, output=output, **allowed)

  def view(self, x: str, layout: Layout, heads: int) -> str:
    """x as [b, h, s, d]: each atom an axis, what is not the tensor's own left out, transposed."""
    if any(len(axis) > 1 for axis in layout.axes):
      x = self.reshape(x, self.op("Concat", *self._atoms(x, layout, heads), axis=0))
    kept = list(layout.atoms)
    for atom in layout.atoms:
      at = kept.index(atom)
      if atom.name == "/":
        x = self.op("Gather", x, self.constant(atom.first, _INTEGER), axis=at)
        kept.pop(at)
      elif atom.total > heads:
        ends = self.integers(atom.first), self.integers(atom.first + heads)
        x = self.op("Slice", x, *ends, self.integers(at))
    names = [atom.name for atom in kept]
    return self.transpose(x, [names.index(name) for name in "bhsd"])

  def _atoms(self, x: str, layout: Layout, heads: int) -> list[str]:
    """The length of each atom; at most one of an axis is not known."""
    lengths = []
    for number, axis in enumerate(layout.axes):
      known = [atom.length(heads) for atom in axis]
      for length in known:
        if length is not None:
          lengths.append(self.integers(length))
          continue
        others = int(np.prod([each for each in known if each is not None], dtype=np.int64))
        dim = self.dim(x, number)
        lengths.append(dim if others == 1 else self.op("Div", dim, self.integers(others)))
    return lengths

  def rotate(self, x: str, cos: str, sin: str, rotary: str) -> str:
    """x [b, h, s, d] with its first 2 * pairs elements rotated by cos, sin [s, pairs] or [b, s, pairs]."""
    pairs, zero, one, axis = self.dim(cos, -1), self.integers(0), self.integers(1), self.integers(3)
    both = self.op("Add", pairs, pairs)
    if rotary == "half":
      first, second = self.op("Slice", x, zero, pairs, axis), self.op("Slice", x, pairs, both, axis)
    else:
      first, second = (self.op("Slice", x, start, both, axis, self.integers(2)) for start in (zero, one))
    c, s = (self.unsqueeze(each, -3) for each in (cos, sin))
    made = [
      self.op("Sub", self.op("Mul", first, c), self.op("Mul", second, s)),
      self.op("Add", self.op("Mul", second, c), self.op("Mul", first, s)),
    ]
    if rotary == "interleaved":
      stacked = self.op("Concat", *(self.unsqueeze(each, 4) for each in made), axis=4)
      leading = self.op("Slice", self.op("Shape", x), zero, axis)
      made = [self.reshape(stacked, self.op("Concat", leading, both, axis=0))]
    rest = self.op("Slice", x, both, self.integers(np.iinfo(np.int64).max), axis)
    return self.op("Concat", *made, rest, axis=3)

  def unsqueeze(self, x: str, axis: int) -> str:
    if self.opset >= 13:
      return self.op("Unsqueeze", x, self.integers(axis))
    return self.op("Unsqueeze", x, axes=[axis])

  def laid_out(self, y: str, layout: Layout, output: str) -> None:
    """y [b, h, s, d] as the layout says, under the name of the output."""
    perm = ["bhsd".index(name) for name in layout.order]
    merges = any(len(axis) > 1 for axis in layout.axes)
    if merges or perm == sorted(perm):
      y = self.transpose(y, perm)
    else:
      self.op("Transpose", y, output=output, perm=perm)
      return
    if not merges:
      self.op("Identity", y, output=output)
      return

    def product(axis: Sequence[Atom]) -> str:
      dims = [self.dim(y, layout.order.index(atom.name)) for atom in axis]
      whole = dims[0]
      for dim in dims[1:]:
        whole = self.op("Mul", whole, dim)
      return whole

    shape = self.op("Concat", *map(product, layout.axes), axis=0)
    self.reshape(y, shape, output)

  def seen(self, scores: str, causal: str, window: int, position: str) -> str:
    """Whether query i sees key j, of scores [B, H, S, T]. `position`: of a cache that is written, or ""."""
    queries, keys = self.dim(scores, 2), self.dim(scores, 3)
    zero, one = self.constant(0, _INTEGER), self.constant(1, _INTEGER)
    scalar = self.integers()
    last = self.op("Range", zero, self.op("Reshape", queries, scalar), one)
    key = self.op("Range", zero, self.op("Reshape", keys, scalar), one)
    if causal == "lower_right" and not position:
      last = self.op("Add", last, self.op("Sub", keys, queries))
    last = self.op("Reshape", last, self.op("Concat", queries, self.integers(1), axis=0))
    if causal == "lower_right" and position:
      first = self.op("Where", self.op("Less", position, self.integers(0)), self.op("Add", position, keys), position)
      last = self.op("Add", last, self.reshape(first, self.integers(-1, 1, 1, 1)))
    seen = self.op("Not", self.op("Greater", key, last))
    if not window:
      return seen
    return self.op("And", seen, self.op("Greater", key, self.op("Sub", last, self.integers(window))))


def decomposed(attention: Attention, inputs: Sequence[str], outputs: Sequence[str], opset: int) -> list[onnx.NodeProto]:
  """The nodes that read `inputs`, as attention.input_names has them, and write Y and what is present."""
  b = _Attention(opset, f"{outputs[0]}/unfused")
  wide = "double" if attention.qkv_dtype == "double" else "float"
  is_narrow = attention.qkv_dtype != wide

  def widened(value: str, dtype: str) -> str:
    return value if dtype == wide else b.cast(value, wide)

  if attention.rotary_dtype:
    cos, sin = (widened(inputs[attention.input(name)], attention.rotary_dtype) for name in ("cos", "sin"))

  def rotated(x: str) -> str:
    """Q or K, rotated in the wide dtype where there are tables, and rounded."""
    if not attention.rotary_dtype:
      return x
    x = b.rotate(widened(x, attention.qkv_dtype), cos, sin, attention.rotary)
    return b.cast(x, attention.qkv_dtype) if is_narrow else x

  def with_past(number: int, x: str) -> str:
    """K or V behind the rows of the past, or in their place, which is an output, too."""
    if attention.past is None:
      return x
    past = b.view(inputs[attention.input(("past_key", "past_value")[number - 1])], attention.past, attention.kv_heads)
    if attention.has_position:
      start, scalar = inputs[attention.input("position")], b.integers()
      added = b.op("Range", b.constant(0, _INTEGER), b.op("Reshape", b.dim(x, 2), scalar), b.constant(1, _INTEGER))
      rows = b.op("Add", b.reshape(start, b.integers(-1, 1, 1, 1)), b.reshape(added, b.integers(-1, 1)))
      x = b.op("ScatterElements", past, b.op("Expand", rows, b.op("Shape", x)), x, axis=2)
    else:
      x = b.op("Concat", past, x, axis=2)
    b.laid_out(x, attention.past, outputs[number])
    return x

  def shared(viewed: str) -> str:
    """K or V with as many heads as Q."""
    if attention.heads == attention.kv_heads:
      return viewed
    group = attention.heads // attention.kv_heads
    return b.op("Gather", viewed, b.constant(np.arange(attention.heads) // group, _INTEGER), axis=1)

  q = widened(rotated(b.view(inputs[0], attention.q, attention.heads)), attention.qkv_dtype)
  k = with_past(1, rotated(b.view(inputs[1], attention.k, attention.kv_heads)))
  s = b.op("MatMul", q, b.op("Transpose", shared(widened(k, attention.qkv_dtype)), perm=[0, 1, 3, 2]))
  if attention.scale != 1:
    s = b.op("Mul", s, b.constant(attention.scale, wide))
  if attention.softcap:
    cap = b.constant(attention.softcap, wide)
    s = b.op("Mul", b.op("Tanh", b.op("Div", s, cap)), cap)
  nothing = b.constant(-np.inf, wide)
  if attention.mask_dtype == "bool":
    s = b.op("Where", inputs[3], s, nothing)
  elif attention.mask_dtype:
    s = b.op("Add", s, widened(inputs[3], attention.mask_dtype))
  if attention.causal != "none":
    position = inputs[attention.input("position")] if attention.has_position else ""
    s = b.op("Where", b.seen(s, attention.causal, attention.window, position), s, nothing)
  p = b.op("Softmax", s, axis=3)
  if attention.masked_rows == "zero":
    alive = b.sum(b.cast(b.op("Not", b.op("Equal", s, nothing)), wide), [3], keepdims=True)
    p = b.op("Where", b.cast(alive, "bool"), p, b.constant(0, wide))
  if is_narrow:
    p = widened(b.cast(p, attention.qkv_dtype), attention.qkv_dtype)
  v = shared(with_past(2, b.view(inputs[2], attention.v, attention.kv_heads)))
  y = b.op("MatMul", p, widened(v, attention.qkv_dtype))
  b.laid_out(b.cast(y, attention.qkv_dtype) if is_narrow else y, attention.y, outputs[0])
  return b.nodes
