"""Operators that move data: views, slices, indices, scatters."""

import numpy as np
from onnx import TensorProto, helper

from ..evaluate import CONTRIB, to_onnx
from ..graph import BOOL, INT, UnfitError
from .table import glue


def axis_of(g, x, beyond=0):
  rank = x.rank + beyond
  if not rank:
    raise UnfitError("it has no axis")
  axis = g.rng.randrange(rank)
  return axis - rank if g.chance(0.3) else axis


def factors(g, size, parts):
  """Sizes whose product is `size`."""
  result = []
  for _ in range(parts - 1):
    divisor = g.choice([d for d in range(1, size + 1) if size % d == 0]) if size else g.choice([0, 1])
    result.append(divisor)
    size = size // divisor if divisor else 0
  result.append(size)
  g.rng.shuffle(result)
  return result


@glue(4)
def reshape(g):
  x = g.pick("any")
  shape = factors(g, x.array.size, g.choice([1, 2, 3, 4, 4, 5]))
  if g.chance(0.3) and x.rank >= 2:  # the batch stays, the rest is cut anew
    rest = int(np.prod(x.shape[1:]))
    shape = [x.shape[0], *factors(g, rest, g.choice([1, 2, 3]))]
    if x.shape[0] and g.chance(0.5):
      shape[0] = 0
  if 0 not in x.shape and g.chance(0.4):
    shape[g.rng.randrange(len(shape))] = -1
  return g.op("Reshape", x, g.ints(shape), allowzero=1 if g.opset >= 14 and 0 in x.shape and 0 in shape else None)


@glue(1)
def flatten(g):
  x = g.pick(ranks=range(1, 7))
  return g.op("Flatten", x, axis=g.choice([None, g.rng.randrange(x.rank + 1)]))


@glue(2)
def squeeze(g):
  x = g.pick("any")
  ones = [axis for axis, size in enumerate(x.shape) if size == 1]
  if ones and g.chance(0.5):
    chosen = sorted(g.rng.sample(ones, g.rng.randint(1, len(ones))))
    if g.chance(0.2):
      chosen, g.has_loose_ranks = None, True
    elif g.opset >= 11 and g.chance(0.4):
      chosen = [axis - x.rank for axis in chosen or ()]
    return _axes(g, "Squeeze", x, chosen)
  count = g.choice([1, 1, 2])
  axes = sorted(g.rng.sample(range(x.rank + count), count))
  if g.opset >= 11 and g.chance(0.4):
    axes = [axis - x.rank - count for axis in axes]
  if g.opset >= 13 and g.chance(0.2):
    g.rng.shuffle(axes)
  return _axes(g, "Unsqueeze", x, axes)


def _axes(g, op, x, axes):
  if g.opset < 13:
    return g.op(op, x, axes=axes)
  return g.op(op, x, None if axes is None else g.ints(axes))


@glue(4)
def transpose(g):
  x = g.pick("any" if g.chance(0.2) else "main")
  perm = list(range(x.rank))
  g.rng.shuffle(perm)
  if x.rank >= 3 and g.chance(0.5):
    perm = g.choice([[0, *range(2, x.rank), 1], [0, x.rank - 1, *range(1, x.rank - 1)]])
  return g.op("Transpose", x, perm=None if g.chance(0.1) or not x.rank else perm)


@glue(2.5)
def concat(g):
  x = g.pick("any" if g.chance(0.2) else "main", ranks=range(1, 7))
  axis = axis_of(g, x)
  at = axis % x.rank
  rest = x.shape[:at] + x.shape[at + 1 :]
  fits = [v for v in g.values if v.dtype == x.dtype and v.rank == x.rank and v.shape[:at] + v.shape[at + 1 :] == rest]
  operands = [x, *(g.rng.choice(fits) for _ in range(g.choice([0, 1, 1, 2])))]
  if g.chance(0.3):
    shape = [*x.shape[:at], g.dim(), *x.shape[at + 1 :]]
    operands.append(g.constant(g.numbers(shape, dtype=x.dtype)))
  g.rng.shuffle(operands)
  return g.op("Concat", *operands, axis=axis)


@glue(2.5)
def split(g):
  x = g.pick(ranks=range(1, 7))
  axis = axis_of(g, x)
  size, count = x.shape[axis], g.choice([2, 2, 3])
  if g.opset >= 18 and g.chance(0.3):
    return g.op("Split", x, outputs=count, axis=axis, num_outputs=count)
  if size % count == 0 and g.opset < 18 and g.chance(0.4):
    return g.op("Split", x, outputs=count, axis=axis)
  cuts = sorted(g.rng.randint(0, size) for _ in range(count - 1))
  sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
  if g.opset < 13:
    return g.op("Split", x, outputs=count, axis=axis, split=sizes)
  return g.op("Split", x, g.ints(sizes), outputs=count, axis=axis)


@glue(3)
def slice_(g):
  x = g.pick("any" if g.chance(0.2) else "main", ranks=range(1, 7))
  axes = sorted(g.rng.sample(range(x.rank), g.rng.randint(1, min(2, x.rank))))
  starts, ends, steps = [], [], []
  for axis in axes:
    size = x.shape[axis]
    start = g.rng.randint(0, max(0, size - 1))
    end = g.rng.randint(start, size)
    step = g.choice([1, 1, 1, 2])
    if g.opset >= 10 and g.chance(0.15):
      start, end, step = size - 1, g.choice([-(2**31), -size - 1, 0]), g.choice([-1, -2])
    elif g.chance(0.3):
      end = g.choice([2**31 - 1, 2**63 - 1, size])
    elif g.chance(0.2):
      start, end = start - size, g.choice([end - size if end < size else size, end])
    starts.append(start)
    ends.append(end)
    steps.append(step)
  if g.opset < 10:
    return g.op("Slice", x, axes=axes, starts=starts, ends=ends)
  given = g.ints(axis - x.rank if g.chance(0.2) else axis for axis in axes)
  return g.op("Slice", x, g.ints(starts), g.ints(ends), given, g.ints(steps) if max(steps) > 1 or min(steps) < 0
              or g.chance(0.3) else None)  # fmt: skip


def indices(g, size, shape, negative=True):
  if not size:
    raise UnfitError("nothing to index")
  array = np.asarray(g.data.integers(0, size, shape), INT)
  if negative and g.chance(0.3):
    array = np.where(g.data.random(shape) < 0.5, array - size, array)
  array = np.asarray(array, g.choice([INT, INT, np.dtype(np.int32)]))
  return g.input(array) if g.chance(0.3) else g.constant(array)


@glue(2.5)
def gather(g):
  x = g.pick("any" if g.chance(0.2) else "main", ranks=range(1, 7))
  axis = axis_of(g, x)
  shape = g.choice([[], [1], [g.dim()], [g.dim(), g.dim()]])
  return g.op("Gather", x, indices(g, x.shape[axis], shape, g.opset >= 11), axis=axis)


@glue(1)
def gather_elements(g):
  x = g.pick(ranks=range(1, 5))
  axis = axis_of(g, x)
  shape = list(x.shape)
  shape[axis] = g.dim()
  return g.op("GatherElements", x, indices(g, x.shape[axis], shape), axis=axis)


@glue(1)
def gather_nd(g):
  x = g.pick(ranks=range(1, 5))
  depth = g.rng.randint(1, x.rank)
  columns = [g.data.integers(0, max(1, size), (3,)) for size in x.shape[:depth]]
  return g.op("GatherND", x, g.constant(np.stack(columns, -1), INT))


@glue(1.5)
def expand(g):
  x = g.pick("any")
  shape = [g.dim() if size == 1 else size for size in x.shape]
  if g.chance(0.3):
    shape = [g.choice([1, 2]), *shape]
  shape = [1 if g.chance(0.2) else size for size in shape]
  return g.op("Expand", x, g.ints(shape))


@glue(1)
def tile(g):
  x = g.pick("any", ranks=range(1, 6))
  return g.op("Tile", x, g.ints(g.choice([1, 1, 2, 3]) for _ in x.shape))


@glue(2)
def pad(g):
  x = g.pick(ranks=range(1, 6))
  mode = g.choice([None, "constant", "reflect", "edge", *(["wrap"] if g.opset >= 19 else [])])
  low = -1 if g.chance(0.15) else 0
  pads = [g.choice([0, 0, 1, 2, low]) for _ in range(2 * x.rank)]
  value = g.choice([0.0, 0.0, 1.5, -1.0])
  if g.opset < 11:
    return g.op("Pad", x, pads=pads, mode=mode, value=g.choice([None, value]))
  return g.op("Pad", x, g.ints(pads), g.constant(value, x.dtype) if g.chance(0.5) else None, mode=mode)


@glue(1)
def blocks(g):
  x = g.pick(ranks=[4])
  block = g.choice([1, 2, 2, 3])
  if g.chance(0.5):
    return g.op("SpaceToDepth", x, blocksize=block)
  return g.op("DepthToSpace", x, blocksize=block, mode=g.choice([None, "DCR", "CRD"]) if g.opset >= 11 else None)


@glue(1)
def sizes(g):
  """Arithmetic on shapes that ends in a Reshape, Expand or number."""
  x = g.pick(ranks=range(1, 6))
  shape = g.op("Shape", x)
  kind = g.choice(["reshape", "number", "fill", "slice"])
  if kind == "number":
    entry = g.op("Gather", shape, g.constant(g.rng.randrange(x.rank), INT), axis=0)
    return g.op("Mul", x, g.op("Cast", g.op("Add", entry, g.constant(1, INT)), to=to_onnx(x.dtype)))
  if kind == "fill" and g.opset >= 9:
    filled = g.op("ConstantOfShape", shape, value=helper.make_tensor("fill", TensorProto.INT64, [1], [1]))
    return g.op("Add", x, g.op("Cast", filled, to=to_onnx(x.dtype)))
  if kind == "slice" and g.opset >= 10 and x.rank > 1:
    some = g.op("Slice", shape, g.ints([0]), g.ints([1]), g.ints([0]))
    return g.op("Reshape", x, g.op("Concat", some, g.ints([-1]), axis=0))
  return g.op("Reshape", g.op("Transpose", x, perm=list(reversed(range(x.rank)))), shape)


@glue(1)
def ranges(g):
  kind = g.choice(["range", "eye", "nonzero", "onehot", "trilu", "size"])
  if kind == "range":
    count = g.rng.randint(0, 5)
    return g.op("Range", g.constant(0, INT), g.constant(count, INT), g.constant(g.choice([1, 2]), INT))
  if kind == "eye":
    return g.op("EyeLike", g.pick(ranks=[2]), k=g.choice([None, 1, -1]))
  if kind == "nonzero":
    return g.op("NonZero", g.pick("any", ranks=range(1, 5)))
  if kind == "onehot":
    given = indices(g, 4, [g.dim()])
    values = g.constant([0.0, 1.0], g.style.main)
    return g.op("OneHot", given, g.constant(4, INT), values, axis=g.choice([None, 0, -1]))
  if kind == "size":
    return g.op("Size", g.pick("any"))
  x = g.pick(ranks=range(2, 5))
  return g.op("Trilu", x, g.constant(g.choice([0, 1, -1]), INT) if g.chance(0.5) else None, upper=g.choice([0, 1]))


@glue(1)
def selections(g):
  kind = g.choice(["topk", "argmax", "compress", "cumsum", "unique", "reverse", "crop", "col2im", "cumprod"])
  x = g.pick(ranks=range(1, 5))
  axis = axis_of(g, x)
  size = x.shape[axis]
  if kind == "topk":
    largest = {"largest": g.choice([None, 0]), "sorted": None} if g.opset >= 11 else {}
    if g.opset < 10:
      return g.op("TopK", x, outputs=2, axis=axis, k=max(1, size // 2))
    return g.op("TopK", x, g.ints([g.rng.randint(0, size)]), outputs=2, axis=axis, **largest)
  if kind == "argmax":
    return g.op(g.choice(["ArgMax", "ArgMin"]), x, axis=axis, keepdims=g.choice([None, 0, 1]))
  if kind == "compress":
    return g.op("Compress", x, g.constant(g.numbers([size], dtype=BOOL)), axis=axis)
  if kind in ("cumsum", "cumprod"):
    flags = {"exclusive": g.choice([None, 1]), "reverse": g.choice([None, 1])}
    return g.op("CumSum" if kind == "cumsum" else "CumProd", x, g.constant(axis, INT), **flags)
  if kind == "unique":
    return g.op("Unique", x, sorted=1)
  if kind == "reverse" and x.rank >= 2:
    lengths = g.constant(g.data.integers(1, max(2, x.shape[0]), x.shape[1]), INT)
    return g.op("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)
  if kind == "crop":
    return g.op("CenterCropPad", x, g.ints([max(1, size + g.choice([-1, 1, 2]))]), axes=[axis])
  if x.rank == 3 and kind == "col2im":
    return g.op("Col2Im", x, g.ints([3, 3]), g.ints([2, 2]))
  raise UnfitError(kind)


@glue(0.5)
def biased(g):
  """Operators of ONNX Runtime's own that its optimizer writes."""
  x = g.pick(ranks=[3])
  if g.chance(0.5):
    return g.op("FusedMatMul", x, g.weights(x.shape[-1], g.dim()), domain=CONTRIB, alpha=g.choice([None, 0.5]))
  return g.op("BiasGelu", x, g.weights(x.shape[-1]), domain=CONTRIB)
