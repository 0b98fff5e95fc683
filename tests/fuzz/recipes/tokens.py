"""Norms, activations and attention, as exporters of transformers write them."""

import numpy as np

from ..evaluate import to_onnx
from ..graph import UnfitError
from .images import activate
from .networks import image, reduce
from .pointwise import two
from .table import motif


def normalised(g, x):
  if 0 in x.shape or not x.rank:
    raise UnfitError("nothing to normalise")
  count = g.choice([1, 1, 1, min(2, x.rank)])
  axes = list(range(-count, 0)) if g.chance(0.6) else list(range(x.rank - count, x.rank))
  shape = x.shape[x.rank - count :]
  epsilon = g.choice([1e-5, 1e-6, 1e-2])
  if g.opset >= 17 and g.chance(0.3):
    return g.op("LayerNormalization", x, g.weights(*shape), g.weights(*shape), axis=-count, epsilon=epsilon)
  if g.style.dtype != "fp32":
    epsilon = max(epsilon, 1e-3)
  y, rms = x, g.chance(0.4)
  widened = x.dtype == np.float32 and g.style.dtype != "fp64" and g.chance(0.15)
  if widened:
    y = g.op("Cast", x, to=to_onnx(g.style.other))
  negative = axes if g.opset >= 11 else [axis % x.rank for axis in axes]
  centred = y if rms else g.op("Sub", y, reduce(g, "ReduceMean", y, negative, g.choice([None, 1])))
  square = g.op("Pow", centred, g.constant(2, y.dtype)) if g.chance(0.6) else g.op("Mul", centred, centred)
  variance = reduce(g, "ReduceMean", square, negative, g.choice([None, 1]))
  total = [variance, g.constant(epsilon, y.dtype)]
  root = g.op("Sqrt", g.op("Add", *(total if g.chance(0.7) else total[::-1])))
  made = g.op("Mul", centred, g.op("Reciprocal", root)) if g.chance(0.2) else g.op("Div", centred, root)
  if widened:
    made = g.op("Cast", made, to=to_onnx(x.dtype))
  if g.chance(0.8):
    made = g.op("Mul", *([made, g.weights(*shape)] if g.chance(0.7) else [g.weights(*shape), made]))
  return g.op("Add", made, g.weights(*shape)) if not rms and g.chance(0.8) else made


def sequence(g):
  """A value of rank 2 or 3 whose rows are worth normalising."""
  try:
    if g.chance(0.85):
      return g.pick(ranks=[2, 3, 3, 4], where=lambda value: 0 not in value.shape and value.shape[-1] > 1)
  except UnfitError:
    pass
  return g.input(g.numbers([g.choice([1, 2]), g.rng.randint(1, 5), g.choice([2, 4, 8, 7, 16])]))


@motif(3)
def norm_block(g):
  x = sequence(g)
  for _ in range(g.choice([0, 1, 1, 2])):
    x = g.op("Add", *two(g, x))
  y = normalised(g, x)
  for _ in range(g.choice([0, 0, 1, 2])):
    y = g.op(g.choice(["Add", "Mul", "Sub"]), *two(g, y)) if g.chance(0.6) else activate(g, y)
  return g.op("Add", x, y) if x.shape == y.shape and g.chance(0.3) else y


def gelu(g, x):
  """Gelu written out, by erf or tanh."""
  half, one = g.constant(0.5, x.dtype), g.constant(1.0, x.dtype)
  if g.chance(0.6):
    scaled = (
      g.op("Div", x, g.constant(np.sqrt(2.0), x.dtype))
      if g.chance(0.6)
      else g.op("Mul", x, g.constant(np.sqrt(0.5), x.dtype))
    )
    inner = g.op("Add", g.op("Erf", scaled), one)
  else:
    cube = g.op("Mul", g.op("Mul", x, x), x) if g.chance(0.5) else g.op("Pow", x, g.constant(3.0, x.dtype))
    total = g.op("Add", x, g.op("Mul", cube, g.constant(0.044715, x.dtype)))
    inner = g.op("Add", g.op("Tanh", g.op("Mul", total, g.constant(0.7978846, x.dtype))), one)
  if g.chance(0.5):
    return g.op("Mul", g.op("Mul", x, inner), half)
  return g.op("Mul", g.op("Mul", half, x), inner)


@motif(1.5)
def gelu_block(g):
  x = g.pick()
  return gelu(g, g.op("Add", *two(g, x)) if g.chance(0.5) else x)


def projections(g, x, heads):
  """Q, K and V [n, heads, length, size] of x: of three products or of parts of one, K and V perhaps of one head."""
  n, length, width = x.shape
  size = width // heads
  if g.chance(0.5):
    y = g.op("Add", g.op("MatMul", x, g.weights(width, 3 * width)), g.weights(3 * width))
    if g.chance(0.4):
      at = g.choice([2, 3])
      y = g.op("Reshape", y, g.ints([n, length, *([3, heads] if at == 2 else [heads, 3]), size]))
      parts = [g.op("Gather", y, g.constant(np.int64(index)), axis=at) for index in range(3)]
      return [g.op("Transpose", each, perm=[0, 2, 1, 3]) for each in parts]
    ends = [[index * width, (index + 1) * width] for index in range(3)]
    parts = [g.op("Slice", y, g.ints(each[:1]), g.ints(each[1:]), g.ints([2])) for each in ends]
  else:
    parts = [g.op("Add", g.op("MatMul", x, g.weights(width, width)), g.weights(width)) for _ in range(3)]
  found = []
  for y in parts:
    y = g.op("Reshape", y, g.ints([g.choice([0, n]), g.choice([length, -1]), heads, size]))
    found.append(g.op("Transpose", y, perm=[0, 2, 1, 3]))
  if heads > 1 and g.chance(0.3):
    for index in (1, 2):
      one = g.op("Slice", found[index], g.ints([0]), g.ints([1]), g.ints([1]))
      found[index] = g.op("Expand", one, g.ints([n, heads, length, size])) if g.chance(0.7) else one
  return found


def cached(g, k, v):
  """K and V behind the rows of a cache, or in the place of some of them; and at which position, where there is one."""
  length = k.shape[2]
  if g.opset < 12 or g.chance(0.6):
    return k, v, None
  rows = length + g.rng.randint(0, 4)
  pasts = [g.input(g.numbers([*each.shape[:2], rows, each.shape[3]])) for each in (k, v)]
  if g.chance(0.4):
    return *(g.op("Concat", past, each, axis=2) for past, each in zip(pasts, (k, v), strict=True)), None
  place = np.asarray([g.rng.randint(0, rows - length)])
  position = g.input(place) if length == 1 else g.constant(place)
  index = g.op("Reshape", g.op("Add", position, g.ints(range(length))), g.ints([-1, 1]))
  made = []
  for past, each in zip(pasts, (k, v), strict=True):
    first, back = (2, 0, 1, 3), (1, 2, 0, 3)
    written = g.op("ScatterND", g.op("Transpose", past, perm=first), index, g.op("Transpose", each, perm=first))
    made.append(g.op("Transpose", written, perm=back))
  return *made, position


def masked(g, scores, position=None):
  """The scores with up to two masks: of keys, of pairs, a triangle, a bias; or of the keys behind a position."""
  n, heads, rows, columns = scores.shape
  low, zero = g.constant(-1e4, scores.dtype), g.constant(0.0, scores.dtype)
  if position is not None and g.chance(0.6):
    seen = g.op("LessOrEqual", g.ints(range(columns)), g.op("Reshape", position, g.ints([1, 1])))
    return g.op("Add", scores, g.op("Where", seen, zero, low))
  for _ in range(g.choice([0, 1, 1, 2])):
    kind = g.choice(["keys", "pairs", "triangle", "bias"])
    if kind == "bias":
      scores = g.op("Add", scores, g.weights(g.choice([1, n]), heads, rows, columns))
      continue
    if kind == "triangle":
      mask = g.constant(np.tril(np.ones((rows, columns), bool)))
    else:
      mask = g.input(g.numbers([n, 1, 1 if kind == "keys" else rows, columns], dtype=np.dtype(np.bool_)))
    if g.chance(0.5):
      scores = g.op("Where", mask, scores, low)
    else:
      scores = g.op("Add", *g.rng.sample([scores, g.op("Where", mask, zero, low)], 2))
  return scores


@motif(1.5)
def attention(g):
  x = sequence(g)
  if x.rank != 3:
    raise UnfitError("no sequence")
  n, length, width = x.shape
  heads = 2 if width % 2 == 0 and g.chance(0.6) else 1
  q, k, v = projections(g, x, heads)
  k, v, position = cached(g, k, v) if k.shape[1] == v.shape[1] else (k, v, None)
  keys = g.op("Transpose", k, perm=[0, 1, 3, 2])
  scale = float(width // heads) ** -0.5
  if g.chance(0.4):
    root = g.constant(scale**0.5, x.dtype)
    scores = g.op("MatMul", g.op("Mul", q, root), g.op("Mul", keys, root))
  else:
    of_heads = np.arange(1, 1 + heads).reshape(heads, 1, 1) if g.chance(0.3) else 1
    scores = g.op("Div", g.op("MatMul", q, keys), g.constant(of_heads / scale, x.dtype))
  if g.chance(0.2):
    cap = g.constant(g.choice([1.0, 4.0]), x.dtype)
    scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, cap)), cap)
  scores = masked(g, scores, position)
  weights = g.op("Softmax", scores, axis=-1 if g.opset >= 11 else 3)
  if g.opset >= 9 and g.chance(0.2):
    weights = g.op("Where", g.op("IsNaN", weights), g.constant(0.0, x.dtype), weights)
  y = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
  y = g.op("Reshape", y, g.ints([n, length, width]))
  return g.op("Add", x, y) if g.chance(0.7) else y


@motif(1)
def tokens(g):
  """An image as tokens, a linear layer, a norm, and back."""
  x = image(g, (4,))
  n, c, h, w = x.shape
  y = g.op("Transpose", g.op("Reshape", x, g.ints([n, c, h * w])), perm=[0, 2, 1])
  y = normalised(g, y) if g.chance(0.6) else y
  y = activate(g, g.op("Add", g.op("MatMul", y, g.weights(c, c)), g.weights(c)))
  return g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1]), g.ints([n, c, h, w]))


@motif(1)
def channels_last_norm(g):
  """A norm over channels, between two Transposes, as in ConvNeXt."""
  x = image(g, (4,))
  y = normalised(g, g.op("Transpose", x, perm=[0, 2, 3, 1]))
  if g.chance(0.5):
    y = gelu(g, g.op("Add", g.op("MatMul", y, g.weights(x.shape[1], 4)), g.weights(4)))
  return g.op("Transpose", y, perm=[0, 3, 1, 2])
