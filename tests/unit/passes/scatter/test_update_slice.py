import numpy as np
from onnx_models import all_attributes, initializers, nodes_of, value_infos
from pass_helpers import (
  add_weights,
  assert_same_values,
  model,
  operators,
  parametrize,
  random_feeds,
  restore,
  run,
  run_pass,
  run_same,
  same_outputs,
  stays,
)

from ortplugin.graph import import_model
from ortplugin.optimizer.pipeline import DEAD_NODES, FUSE_SCATTER, UPDATE_SLICE


def text_of(inputs, nodes, x="float[3,4]"):
  return f"({x} x, {inputs}) => ({x} y) {{ {nodes} }}"


def scatter(
  indices, data="float[3,4,5]", updates="float[1,4,5]", op="ScatterND", opset=17, attributes="", dtype=np.int64
):
  made = model(f"({data} x, {updates} u) => ({data} y) {{ y = {op}{attributes}(x, i, u) }}", opset)
  add_weights(made, i=np.array(indices, dtype))
  return made


def elements(indices, axis=0, **given):
  return scatter(indices, op="ScatterElements", attributes=f"<axis={axis}>" if axis else "", **given)


def slices(model):
  """axes, constant starts and steps of each UpdateSlice."""
  given = initializers(model)
  found = []
  for node in nodes_of(model, "UpdateSlice"):
    attributes = all_attributes(node)
    axes = attributes["axes"]
    found.append((axes, list(given.get(node.input[2], [])), attributes.get("steps", [1] * len(axes))))
  return found


GRID = np.stack(np.meshgrid(np.arange(3), [1, 2], indexing="ij"), -1)
CONSTANT = {
  "one row": (scatter([[1]]), ([0], [1], [1])),
  "one row, an index without a grid": (scatter([1], updates="float[4,5]"), ([0], [1], [1])),
  "rows": (scatter([[1], [2]], updates="float[2,4,5]"), ([0], [1], [1])),
  "a negative row": (scatter([[-1]]), ([0], [2], [1])),
  "every second row": (scatter([[0], [2]], updates="float[2,4,5]"), ([0], [0], [2])),
  "backwards": (scatter([[2], [1], [0]], updates="float[3,4,5]"), ([0], [2], [-1])),
  "over the end, which wraps": (scatter([[-1], [0]], updates="float[2,4,5]"), ([0], [2], [-2])),
  "everything": (scatter([[0], [1], [2]], updates="float[3,4,5]"), ([0], [0], [1])),
  "one element": (scatter([[0, 2, 3]], updates="float[1]"), ([0, 1, 2], [0, 2, 3], [1, 1, 1])),
  "one element, no dimension": (scatter([0, 2, 3], updates="float"), ([0, 1, 2], [0, 2, 3], [1, 1, 1])),
  "one element of a grid": (scatter([[[[0, 2, 3]]]], updates="float[1,1,1]"), ([0, 1, 2], [0, 2, 3], [1, 1, 1])),
  "columns of all rows": (scatter(GRID, updates="float[3,2,5]"), ([1], [1], [1])),
  "columns of one row": (scatter([[[1, 1], [1, 2]]], updates="float[1,2,5]"), ([0, 1], [1, 1], [1, 1])),
  "columns of one row, flat": (scatter([[1, 1], [1, 2]], updates="float[2,5]"), ([0, 1], [1, 1], [1, 1])),
  "ScatterElements, a row": (elements(np.ones((1, 4, 5))), ([0], [1], [1])),
  "ScatterElements, a negative axis, int32": (
    elements(np.full((3, 4, 1), -1), -1, updates="float[3,4,1]", dtype=np.int32),
    ([2], [4], [1]),
  ),
  "ScatterElements, a part of each axis": (
    elements(np.broadcast_to([[[1]], [[2]]], (2, 3, 5)), updates="float[2,3,5]"),
    ([0, 1], [1, 0], [1, 1]),
  ),
  "reduction spelled out": (scatter([[1]], opset=18, attributes='<reduction="none">'), ([0], [1], [1])),
  "int8, opset 11": (scatter([[1]], data="int8[3,4,5]", updates="int8[1,4,5]", opset=11), ([0], [1], [1])),
  "opset 23": (scatter([[1]], opset=23), ([0], [1], [1])),
  "a size that is open": (scatter([[1]], data="float[rows,M]", updates="float[1,M]"), ([0], [1], [1])),
}


@parametrize("case", CONSTANT)
def test_constant_indices(case):
  original, expected = CONSTANT[case]
  optimized, result = run_same(original, UPDATE_SLICE, DEAD_NODES, changes=1)
  assert [each for each in operators(optimized) if each != "Unsqueeze"] == ["UpdateSlice"]
  assert slices(optimized) == [expected]
  assert result.near_misses == ()
  assert "i" not in initializers(optimized)


NO_SLICE = {
  "a row twice": scatter([[1], [1]], updates="float[2,4,5]"),
  "no progression": scatter([[0], [1], [3]], data="float[5,4]", updates="float[3,4]"),
  "a column of several rows, by pairs": scatter([[0, 1], [1, 2]], updates="float[2,5]"),
  "axes that change places": scatter(GRID[..., ::-1], data="float[4,4,5]", updates="float[3,2,5]"),
  "ScatterElements that differs between columns": elements([[0, 1], [1, 0]], data="float[2,2]", updates="float[2,2]"),
  "ScatterElements of one row, another place in each column": elements(
    [[0, 1]], data="float[2,3]", updates="float[1,2]"
  ),
  "ScatterElements of one column, another place in each row": elements(
    [[0], [1], [2]], 1, data="float[3,4]", updates="float[3,1]"
  ),
  "ScatterElements of one row twice": elements(np.ones((2, 4, 5)), updates="float[2,4,5]"),
  "no index at all": scatter(np.zeros((0, 1)), updates="float[0,4,5]"),
  "a reduction": scatter([[1]], opset=18, attributes='<reduction="add">'),
  "around an end of unknown size": scatter([[-1], [0]], data="float[rows,M]", updates="float[2,M]"),
}


@parametrize("case", NO_SLICE)
def test_no_slice(case):
  stays(NO_SLICE[case], UPDATE_SLICE)


@parametrize("indices", [[[3]], [[-4]], [[2], [3]]])
def test_out_of_range_stays_an_error(indices):
  original = scatter(indices, updates=f"float[{len(indices)},4,5]")
  stays(original, UPDATE_SLICE, "is out of range for axis 0 of size 3")


ARANGE = """(float[B,4] x, float[B,1] v) => (float[B,4] y) {
  zero = int64 {0}  one = int64 {1}  s = Shape(x)  b = Gather(s, zero)
  r = Range(zero, b, one)  a = {1}  i = Unsqueeze(r, a)
  y = ScatterElements<axis=1>(x, i, v) }"""


@parametrize("first", [[], [FUSE_SCATTER]])
def test_one_update_for_each_row_at_its_own_place_is_no_slice(first):
  """x.scatter(1, arange(B).unsqueeze(1), v): on the axis it has length 1, but the index varies along another."""
  optimized, _ = run_same(ARANGE, *first, UPDATE_SLICE, B=4)
  assert operators(optimized)[-1] == "ScatterElements"


def overridable(original, shape):
  original.graph.input.extend(value_infos(f"int64{shape} i"))
  return original


def test_a_constant_that_a_caller_may_override_stays():
  stays(overridable(scatter([[1], [2]], updates="float[2,4,5]"), [2, 1]), UPDATE_SLICE)


def test_one_index_that_a_caller_may_override(rng):
  original = overridable(scatter([[1]]), [1, 1])
  optimized, _ = run_pass(original, UPDATE_SLICE, into="Reshape UpdateSlice")
  feeds = random_feeds(original, rng)
  for given in ({}, {"i": np.array([[2]])}):
    expected = run(original, {**feeds, **given})[0]
    np.testing.assert_array_equal(run(restore(optimized), {**feeds, **given})[0], expected)


def test_indices_at_run_time_stay():
  stays(text_of("int64[k,1] i, float[k,4] u", "y = ScatterND(x, i, u)"), UPDATE_SLICE)


def test_one_index_at_run_time(rng):
  """a[i] = v: a single index is a slice wherever it points; negative ones mean the same in both."""
  original = model(text_of("int64 i, float[1,4] u", "s = {1,1}  j = Reshape(i, s)  y = ScatterND(x, j, u)"))
  optimized, _ = run_pass(original, UPDATE_SLICE, DEAD_NODES, into="Reshape UpdateSlice")
  feeds = random_feeds(original, rng)
  for index in (-3, -1, 0, 2):
    feeds["i"] = np.array(index)
    assert_same_values(original, optimized, feeds)


def test_a_loop_of_assignments():
  """for i in range(3): a[i] = v * i, whose index is the loop's counter."""
  original = """(float[3,4] x, float[1,4] u) => (float[3,4] y) {
    n = int64 {3}  t = bool {1}
    y = Loop(n, t, x) <body = b (int64 k, bool c, float[3,4] a) => (bool d, float[3,4] z) {
        d = Identity(c)  f = Cast<to=1>(k)  v = Mul(u, f)  s = {1,1}
        j = Reshape(k, s)  z = ScatterND(a, j, v) }> }"""
  optimized, result = run_same(original, UPDATE_SLICE, DEAD_NODES)
  assert operators(optimized.graph.node[-1].attribute[0].g)[-1] == "UpdateSlice"
  assert len([each for each in result.changes if each.rewrite == "update-slice"]) == 1


def test_starts_of_int32():
  original = text_of("int32 i, float[3,1] u", "s = {3,1}  e = Expand(i, s)  y = ScatterElements<axis=1>(x, e, u)")
  run_same(original, UPDATE_SLICE, DEAD_NODES, into="Cast Reshape UpdateSlice")


RANGE = """(float[2,any,4] x, float[2,past,4] p, float[2,k,4] u) => (float[2,any,4] y) {{
  zero = int64 {{0}}  one = int64 {{1}}
  sp = Shape(p)  start = Gather(sp, one)  su = Shape(u)  n = Gather(su, one)  {steps}
  sx = Shape(x)  b = Gather(sx, zero)
  rows = Range(zero, b, one)  column = {{-1,1}}  r = Reshape(rows, column)
  t = Shape(r)  first = Gather(t, zero)  f = Reshape(first, m1)  grid = Concat<axis=0>(f, m1n)
  er = Expand(r, grid)  ei = Expand(i, grid)  last = {{-1}}
  ur = Unsqueeze(er, last)  ui = Unsqueeze(ei, last)  j = Concat<axis=-1>(ur, ui)  y = ScatterND(x, j, u) }}"""
M1 = "m1 = {-1}"


@parametrize(
  "steps, axes",
  [
    ("end = Add(start, n)  i = Range(start, end, one)  m1n = Reshape(n, m1)", [1]),
    ("end = Add(start, n)  i = Range(start, end, one)  m1n = Shape(i)", [1]),
    ("w = int64 {2}  d = Mul(n, w)  end = Add(start, d)  i = Range(start, end, w)  m1n = Shape(i)", [1]),
    (
      "w = int64 {2}  d = Mul(n, w)  end = Add(start, d)  i = Range(start, end, w)  m1n = Reshape(n, m1)",
      [],
    ),  # could be stretched, for all that is known
    (
      "end = Add(start, n)  minus = int64 {-1}  o = Sub(end, one)  d = Sub(start, one)  "
      "i = Range(o, d, minus)  m1n = Shape(i)",
      [],
    ),
  ],
)
def test_a_grid_of_ranges(steps, axes):
  original = model(RANGE.format(steps=f"{M1}  {steps}"))
  optimized, result = run_pass(original, UPDATE_SLICE, DEAD_NODES)
  assert [found[0] for found in slices(optimized)] == [axes] * bool(axes)
  assert ("ScatterND" in operators(optimized)) == (not axes)
  if "minus" in steps:
    assert "start or limit of 'i' (Range) may be negative" in result.near_misses[0].reason
  for past in (0, 1, 3):
    same_outputs(original, optimized, k=2, past=past)


def test_a_start_that_may_be_negative_stays():
  original = """(float[8,4] x, int64 start, float[k,4] u) => (float[8,4] y) {
    z = {0}  one = int64 {1}  su = Shape<end=1>(u)
    n = Squeeze(su)  end = Add(start, n)  r = Range(start, end, one)
    a = {1}  i = Unsqueeze(r, a)  y = ScatterND(x, i, u) }"""
  stays(original, UPDATE_SLICE, "may be negative, and its indices would go on at the other end")


CACHE = """(float[1,2,8,4] k, float[1,2,n,4] u, int64[1] pos, end) => (float[1,2,8,4] y) {
  numbers = {0,1,2,3,4,5,6,7}  s = Slice(numbers, pos, end)
  a = {-1}  i = Unsqueeze(s, a)
  kt = Transpose<2,1,0,3>(k)  ut = Transpose<2,1,0,3>(u)
  yt = ScatterND(kt, i, ut)  y = Transpose<2,1,0,3>(yt) }"""


@parametrize("start, end, length", [(3, 5, 2), (0, 8, 8), (-3, -1, 2), (8, 9, 0), (6, 99, 2)])
def test_a_slice_of_numbers(start, end, length, rng):
  """kv[:, :, pos:end] = v: the slice of arange is clamped, and so are the starts."""
  original = model(CACHE)
  optimized, _ = run_pass(original, UPDATE_SLICE, DEAD_NODES)
  assert "UpdateSlice" in operators(optimized)
  feeds = {**random_feeds(original, rng, n=length), "pos": np.array([start]), "end": np.array([end])}
  assert_same_values(original, optimized, feeds)


def test_an_index_that_is_stretched_along_its_axis_stays():
  """A vector of one element repeated k times writes one row k times, not k rows."""
  stays(
    """(float[8,4] x, int64[1] pos, end, k, float[m,4] u) => (float[8,4] y) {
      numbers = {0,1,2,3,4,5,6,7}  s = Slice(numbers, pos, end)
      e = Expand(s, k)  a = {-1}  i = Unsqueeze(e, a)  y = ScatterND(x, i, u) }""",
    [UPDATE_SLICE],
  )


USES = {
  "used elsewhere": "(float[3,4] x, float[1,4] u) => (float[3,4] y, z) "
  "{ d = Neg(x)  y = ScatterND(d, i, u)  z = Abs(d) }",
  "an output": "(float[3,4] x, float[1,4] u) => (float[3,4] y, d) { d = Neg(x)  y = ScatterND(d, i, u) }",
  "an input": "(float[3,4] d, float[1,4] u) => (float[3,4] y) { y = ScatterND(d, i, u) }",
  "also the updates": "(float[1,4] d) => (y) { y = ScatterND(d, i, d) }",
  "captured by a body": """(bool c, float[3,4] x, float[1,4] u) => (float[3,4] y, z) { d = Neg(x)
      y = ScatterND(d, i, u)  z = If(c) <then () => (float[3,4] t) { t = Abs(d) },
                                         else () => (float[3,4] e) { e = Neg(d) }> }""",
  "in a body": """(bool c, float[3,4] x, float[1,4] u) => (float[3,4] y) { d = Neg(x)
      y = If(c) <then () => (float[3,4] t) { t = ScatterND(d, i, u) },
                  else () => (float[3,4] e) { e = Neg(d) }> }""",
}


@parametrize("case", USES)
def test_what_else_needs_the_data(case):
  """Whether the update is in place is for ONNX Runtime to decide; the values are the same in any case."""
  original = model(USES[case])
  add_weights(original, i=[[0]])
  run_same(original, UPDATE_SLICE, changes=1)


@parametrize("overridable", [False, True])
def test_data_that_is_an_initializer(overridable, rng):
  original = model("(float[1,4] u) => (float[3,4] y) { y = ScatterND(d, i, u) }")
  add_weights(original, i=[[1]], d=rng.standard_normal((3, 4)).astype(np.float32))
  if overridable:
    original.graph.input.extend(value_infos("float[3,4] d"))
  optimized, _ = run_same(original, UPDATE_SLICE, into="UpdateSlice")
  assert "d" in initializers(optimized)


def test_data_without_elements():
  original = scatter([[1]], data="float[3,0]", updates="float[1,0]")
  same_outputs(original, run_pass(original, UPDATE_SLICE)[0])


def test_the_result_has_a_known_shape():
  """Without it ONNX Runtime would not let the update work in place."""
  original = model(text_of("float[1,4] u", "a = Neg(x)  b = ScatterND(a, i, u)  y = Neg(b)", "float[N,4]"))
  add_weights(original, i=[[0]])
  optimized, _ = run_pass(original, UPDATE_SLICE)
  found = {each.name: each for node in import_model(optimized).nodes for each in node.outputs}["b"]
  assert tuple(found.shape) == ("N", 4)
  assert "b" in [each.name for each in optimized.graph.value_info]
