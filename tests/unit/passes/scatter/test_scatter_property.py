"""Random scatters, by tuples and along an axis, in chains, between Transposes and in parts of a tensor: whatever the
passes make of them computes the same."""

import numpy as np
from hypothesis import given, strategies as st
from pass_helpers import add_weights, model, run_same, tries

from ortplugin.optimizer import PIPELINE

RANGES = st.tuples(st.integers(-5, 4), st.integers(1, 3), st.sampled_from([-2, -1, 1, 1, 1, 2]))


@st.composite
def vector(draw, size):
  start, count, step = draw(RANGES)
  values = [start + step * i for i in range(count)]
  if draw(st.integers(0, 4)) == 0:
    values = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=3))
  kept = {}
  for value in values:
    if -size <= value < size:
      kept.setdefault(value % size, value)
  return list(kept.values()) or [0]


@st.composite
def graphs(draw):
  sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
  rank = len(sizes)
  names = [f"D{axis}" if draw(st.booleans()) else str(size) for axis, size in enumerate(sizes)]
  constants = {}
  nodes = []
  value = "x"

  def constant(array):
    name = f"c{len(constants)}"
    constants[name] = np.asarray(array)
    return name

  def updates(shape):
    return constant(draw(st.integers(0, 99)) + np.arange(np.prod(shape), dtype=np.float32).reshape(shape))

  def node(text):
    name = f"v{len(nodes)}"
    nodes.append(f"{name} = {text}")
    return name

  def scatter(data, shape):
    if draw(st.booleans()):
      depth = draw(st.integers(1, len(shape)))
      parts = [draw(vector(size)) for size in shape[:depth]]
      grid = np.stack(np.meshgrid(*parts, indexing="ij"), -1)
      if draw(st.integers(0, 3)) == 0:
        grid = grid.reshape(-1, depth)
      indices, rest = constant(grid.astype(np.int64)), shape[depth:]
      return node(f"ScatterND({data}, {indices}, {updates([*grid.shape[:-1], *rest])})")
    axis = draw(st.integers(0, len(shape) - 1))
    part = draw(vector(shape[axis]))
    extent = [draw(st.integers(1, size)) if draw(st.integers(0, 3)) == 0 else size for size in shape]
    extent[axis] = len(part)
    column = np.reshape(part, [-1 if i == axis else 1 for i in range(len(shape))]).astype(np.int64)
    if len(part) == 1 and draw(st.booleans()):  # one update in each place of another axis, as arange goes on
      other = draw(st.integers(0, len(shape) - 1))
      places = (part[0] + np.arange(extent[other] if other != axis else 1)) % shape[axis]
      column = np.reshape(places, [-1 if i == other else 1 for i in range(len(shape))]).astype(np.int64)
    if draw(st.booleans()):
      indices = constant(np.broadcast_to(column, extent))
    else:
      indices = node(f"Expand({constant(column)}, {constant(np.array(extent, np.int64))})")
    return node(f"ScatterElements<axis={axis}>({data}, {indices}, {updates(extent)})")

  for _ in range(draw(st.integers(1, 4))):
    kind = draw(st.sampled_from(["plain", "plain", "transposed", "part"]))
    if kind == "plain":
      value = scatter(value, sizes)
    elif kind == "transposed":
      perm = draw(st.permutations(range(rank)))
      inner = scatter(node(f"Transpose<perm={list(perm)}>({value})"), [sizes[axis] for axis in perm])
      value = node(f"Transpose<perm={[perm.index(axis) for axis in range(rank)]}>({inner})")
    else:
      axis = draw(st.integers(0, rank - 1))
      start = draw(st.integers(0, sizes[axis] - 1))
      count = draw(st.integers(1, sizes[axis] - start))
      bounds = [constant(np.array([number])) for number in (start, start + count, axis)]
      part = scatter(node(f"Slice({value}, {', '.join(bounds)})"), [*sizes[:axis], count, *sizes[axis + 1 :]])
      first = draw(st.integers(0, sizes[axis] - count)) if draw(st.integers(0, 3)) == 0 else start
      rows = np.reshape(np.arange(first, first + count), [-1 if i == axis else 1 for i in range(rank)])
      whole = np.broadcast_to(rows, [count if i == axis else size for i, size in enumerate(sizes)])
      value = node(f"ScatterElements<axis={axis}>({value}, {constant(whole.astype(np.int64))}, {part})")
  shape = ", ".join(names)
  made = model(f"(float[{shape}] x) => (y) {{ {'  '.join(nodes)}  y = Identity({value}) }}", 18)
  add_weights(made, **constants)
  made.doc_string = " ".join(map(str, sizes))  # the lengths to run it with
  return made


@tries(150)
@given(graphs(), st.integers(0, 2**32 - 1))
def test_the_same_outputs(original, seed):
  lengths = {f"D{axis}": int(size) for axis, size in enumerate(original.doc_string.split())}
  _, result = run_same(original, *PIPELINE, rng=np.random.default_rng(seed), **lengths)
  assert result.changes
  run_same(original, *PIPELINE, limit=seed % len(result.changes), rng=np.random.default_rng(seed), **lengths)
