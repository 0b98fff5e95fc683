"""Scatters: assignments to slices, elements and masks, as exporters write them."""

import numpy as np

from ..graph import BOOL, INT, UnfitError
from .table import glue, motif
from .views import axis_of


def updates_of(g, shape, x):
  """What is written: a value of that shape, an input, a constant, or one number expanded."""
  fits = [v for v in g.values if v.shape == shape and v.dtype == x.dtype]
  if fits and g.chance(0.5):
    return g.rng.choice(fits)
  if g.chance(0.2):
    return g.op("Expand", g.constant(np.asarray(1.5), x.dtype), g.ints(shape))
  array = g.numbers(shape, dtype=x.dtype)
  return g.input(array) if g.chance(0.5) else g.constant(array)


def target(g):
  return g.pick("any" if g.chance(0.15) else "main", ranks=range(1, 5), where=lambda value: 0 not in value.shape)


def reduction_of(g):
  return g.choice([None, None, None, "add", "mul", "max", "min"]) if g.opset >= 18 else None


@motif(2)
def assign_slice(g):
  """x[.., a:b:s] = v by ScatterND or ScatterElements with constant indices."""
  x = target(g)
  if x.dtype == BOOL:
    raise UnfitError("no mask")
  axis = g.rng.randrange(x.rank) if g.chance(0.5) else 0
  size = x.shape[axis]
  start, step = g.rng.randrange(size), g.choice([1, 1, 1, 2, -1])
  places = list(range(start, size, step)) if step > 0 else list(range(start, -1, -1))
  places = places[: g.rng.randint(1, len(places))]
  if g.chance(0.2):
    places = [place - size for place in places]
  shape = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
  if axis == 0 and g.opset >= 11 and g.chance(0.5):
    return g.op(
      "ScatterND", x, g.constant(np.asarray(places)[:, None], INT), updates_of(g, shape, x), reduction=reduction_of(g)
    )
  grid = np.broadcast_to(np.asarray(places).reshape([-1 if i == axis else 1 for i in range(x.rank)]), shape)
  indices = g.constant(np.ascontiguousarray(grid), INT)
  op = "Scatter" if g.opset < 11 else "ScatterElements"
  return g.op(op, x, indices, updates_of(g, shape, x), axis=axis, reduction=reduction_of(g))


@motif(1.5)
def assign_grid(g):
  """x[a:b, c:d] = v as dynamo writes it: a grid of indices, constant or of Range and Expand."""
  x = target(g)
  if g.opset < 11 or x.dtype == BOOL:
    raise UnfitError("it needs ScatterND")
  depth = g.rng.randint(1, x.rank)
  spans = []
  for size in x.shape[:depth]:
    start = g.rng.randrange(size)
    spans.append(np.arange(start, g.rng.randint(start + 1, size)))
  grid = np.stack(np.meshgrid(*spans, indexing="ij"), -1)
  shape = (*grid.shape[:-1], *x.shape[depth:])
  if g.chance(0.5):
    indices = g.constant(grid, INT)
  else:
    columns = []
    for axis, span in enumerate(spans):
      given = g.op("Range", g.constant(span[0], INT), g.constant(span[-1] + 1, INT), g.constant(1, INT))
      view = g.op("Reshape", given, g.ints([-1 if i == axis else 1 for i in range(depth)] + [1]))
      columns.append(g.op("Expand", view, g.ints([*grid.shape[:-1], 1])))
    indices = g.op("Concat", *columns, axis=-1) if len(columns) > 1 else columns[0]
  return g.op("ScatterND", x, indices, updates_of(g, shape, x), reduction=reduction_of(g))


@motif(1.5)
def scatter_rows(g):
  """Rows, or elements along an axis, at indices that are given, not always distinct."""
  x = target(g)
  axis = axis_of(g, x)
  size = x.shape[axis]
  along = list(x.shape)
  along[axis] = g.rng.randint(1, size)
  if g.chance(0.5):  # fewer updates on the other axes, too
    along = [g.rng.randint(1, each) for each in along]
  order = np.argsort(g.data.random([size if i == axis % x.rank else n for i, n in enumerate(along)]), axis=axis)
  indices = np.take(order, range(along[axis]), axis=axis)
  if g.chance(0.3):
    indices = np.ascontiguousarray(np.broadcast_to(np.arange(along[0]).reshape(-1, *[1] * (x.rank - 1)) % size, along))
    if along[axis] > 1:
      raise UnfitError("one element would be written twice")
  given = g.input(np.asarray(indices, INT)) if g.chance(0.3) else g.constant(indices, INT)
  if g.chance(0.15):
    given = g.op("Add", given, g.constant(np.asarray(-size), INT))
  op = "Scatter" if g.opset < 11 else "ScatterElements"
  return g.op(op, x, given, updates_of(g, tuple(along), x), axis=axis, reduction=reduction_of(g))


@motif(1)
def masked_fill(g):
  """x[mask] = v as dynamo writes it."""
  x = target(g)
  if g.opset < 11 or x.dtype == BOOL:
    raise UnfitError("it needs ScatterND")
  covered = g.rng.randint(1, x.rank)
  mask = g.input(g.numbers(x.shape[:covered], dtype=BOOL))
  places = g.op("Transpose", g.op("NonZero", mask), perm=[1, 0])
  count = int(mask.array.sum())
  if g.chance(0.6):
    number = g.op("Gather", g.op("Shape", places), g.ints([0]), axis=0)
    lengths = [number, *([g.ints(x.shape[covered:])] if covered < x.rank else [])]
    shape = g.op("Concat", *lengths, axis=0) if len(lengths) > 1 else number
    updates = g.op("Expand", g.constant(np.asarray(-2), x.dtype), shape)
  else:
    updates = updates_of(g, (count, *x.shape[covered:]), x)
  return g.op("ScatterND", x, places, updates)


@motif(1)
def nested(g):
  """x[i, j:k] = v as dynamo writes it: a slice is taken, written to, and put back."""
  x = target(g)
  if g.opset < 11 or x.rank < 2 or x.dtype == BOOL:
    raise UnfitError("it needs ScatterND and two axes")
  row, size = g.rng.randrange(x.shape[0]), x.shape[1]
  start = g.rng.randrange(size)
  part = g.op("Gather", x, g.constant(row, INT), axis=0)
  places = np.arange(start, g.rng.randint(start + 1, size))[:, None]
  written = g.op("ScatterND", part, g.constant(places, INT), updates_of(g, (len(places), *x.shape[2:]), x))
  whole = g.op("Unsqueeze", written, g.ints([0])) if g.opset >= 13 else g.op("Unsqueeze", written, axes=[0])
  return g.op("ScatterND", x, g.constant([[row]], INT), whole)


@motif(0.7)
def turned(g):
  """A scatter between two Transposes, to an axis that is not the first."""
  x = target(g)
  if g.opset < 11 or x.rank < 2 or x.dtype == BOOL:
    raise UnfitError("it needs ScatterND and two axes")
  perm = [1, 0, *range(2, x.rank)]
  first = g.op("Transpose", x, perm=perm)
  places = sorted(g.rng.sample(range(first.shape[0]), g.rng.randint(1, first.shape[0])))
  made = g.op(
    "ScatterND", first, g.constant(np.asarray(places)[:, None], INT), updates_of(g, (len(places), *first.shape[1:]), x)
  )
  return g.op("Transpose", made, perm=perm)


@glue(1)
def one_scatter(g):
  return scatter_rows(g)
