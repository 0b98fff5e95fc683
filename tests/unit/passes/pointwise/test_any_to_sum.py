import numpy as np
from pass_helpers import (
  assert_same_values,
  model,
  operators,
  parametrize,
  programs,
  restore,
  run,
  run_pass,
  run_same,
  stays,
)

from ortplugin.optimizer.pipeline import ANY_TO_SUM, FUSE_SUM_TO

DTYPES = {"int64": 7, "int32": 6, "uint8": 2, "float": 1}


def graph(reduction, to=7, end="y = Cast<to=9>(r)", x="3,4,5", y="", outputs=""):
  """Whether x [3,4,5] is infinite, as numbers of the dtype `to`, reduced."""
  original = model(f"""(float[{x}] x) => (bool[{y or "Y"}] y{outputs}) {{ i = IsInf(x)  c = Cast<to={to}>(i)
    r = {reduction}  {end} }}""")
  for each in original.graph.output if not y else ():
    each.type.tensor_type.shape.ClearField("dim")
  return original


def feeds(*infinite, rows=3):
  x = np.ones((rows, 4, 5), np.float32)
  x.reshape(-1)[list(infinite)] = np.inf
  return {"x": x}


FEEDS = [feeds(), feeds(7), feeds(0, 59), feeds(*range(20)), feeds(*range(60))]


@parametrize("dtype", DTYPES)
@parametrize("op", ["ReduceMax", "ReduceMin"])
@parametrize("keepdims", [0, 1])
@parametrize("axes", ["", ", axes = [1, -1]", ", axes = [0, 1, 2]"])
def test_any_and_all(op, dtype, keepdims, axes):
  y = {"": ["", "1,1,1"], ", axes = [1, -1]": ["3", "3,1,1"]}.get(axes, ["", "1,1,1"])[keepdims]
  original = graph(f"{op}<keepdims={keepdims}{axes}>(c)", DTYPES[dtype], y=y)
  optimized, _ = run_pass(original, ANY_TO_SUM, changes=1)
  assert op not in operators(optimized)
  assert operators(optimized).count("ReduceSum") == 1
  for each in FEEDS:
    assert_same_values(original, optimized, each)


@parametrize("opset", [12, 18, 20])
def test_opsets(opset):
  axes = "ReduceMax<keepdims=0, axes=[1,2]>(c)" if opset < 18 else "ReduceMax<keepdims=0>(c, axes)"
  text = f"""(float[3,4,5] x) => (bool[3] y) {{ axes = {{1,2}}  i = IsInf(x)
    c = Cast<to=7>(i)  r = {axes}  y = Cast<to=9>(r) }}"""
  original = model(text, opset)
  optimized, _ = run_pass(original, ANY_TO_SUM, into="IsInf Cast ReduceSum Cast")
  for each in FEEDS:
    assert_same_values(original, optimized, each)


def test_of_bools():
  optimized, _ = run_pass(model("""(bool[3,4] x) => (bool[3,1] y, bool z) { a = {1}
    y = ReduceMax(x, a)  z = ReduceMin<keepdims=0>(x) }""", 20), ANY_TO_SUM)  # fmt: skip
  assert operators(optimized).count("ReduceSum") == 2
  for x in (np.zeros((3, 4), bool), np.eye(3, 4, dtype=bool), np.ones((3, 4), bool)):
    for found, expected in zip(run(optimized, {"x": x}), [x.any(1, keepdims=True), x.all()], strict=True):
      np.testing.assert_array_equal(found, expected)


def test_larger_than_zero():
  original = graph("ReduceMax<keepdims=0>(c)", end="zero = int64 {0}  y = Greater(r, zero)")
  optimized, _ = run_pass(original, ANY_TO_SUM)
  assert "ReduceSum" in operators(optimized)
  for each in FEEDS:
    assert_same_values(original, optimized, each)


@parametrize("op, to, changed", [("ReduceMin", 7, 1), ("ReduceMax", 2, 1), ("ReduceMax", 7, 0)])
def test_of_no_elements(op, to, changed):
  """The maximum of no signed integers is the lowest one, which is true: the sum would be false."""
  original = graph(f"{op}<keepdims=0>(c)", to, x="N,4,5")
  optimized, result = run_pass(original, ANY_TO_SUM, changes=changed)
  assert len(result.near_misses) == 1 - changed
  for each in (feeds(rows=0), *FEEDS):
    assert_same_values(original, optimized, each)


STAY = {
  "a number that is read": graph("ReduceMax<keepdims=0>(c)", outputs=", int64[Z] r"),
  "compared with 1": graph("ReduceMax<keepdims=0>(c)", end="one = int64 {1}  y = Greater(r, one)"),
  "smaller than zero": graph("ReduceMax<keepdims=0>(c)", end="zero = int64 {0}  y = Greater(zero, r)"),
  "numbers": model("""(int64[3,4] c) => (bool y) { r = ReduceMax<keepdims=0>(c)  y = Cast<to=9>(r) }"""),
  "a sum": graph("ReduceProd<keepdims=0>(c)"),
}


@parametrize("what", STAY)
def test_stays(what):
  stays(STAY[what], ANY_TO_SUM)


def test_no_axis_is_reduced():
  original = model("""(float[3] x) => (bool[3] y) { a = int64[0] {}  i = IsInf(x)
    c = Cast<to=7>(i)  r = ReduceMax<noop_with_empty_axes=1>(c, a)  y = Cast<to=9>(r) }""", 18)  # fmt: skip
  stays(original, ANY_TO_SUM, "its axes")


def test_what_is_infinite_is_counted_where_it_is_found():
  """T5's clamp: the test for infinity goes into the kernel that sums."""
  original = model(
    """(float16[2,3,8] x) => (y) <float a = {64504}, float b = {65504}> {
      f = Cast<to=1>(x)  i = IsInf(f)  c = Cast<to=7>(i)  r = ReduceMax<keepdims=0>(c)
      any = Cast<to=9>(r)  w = Where(any, a, b)  n = Neg(w)  low = Max(f, n)  high = Min(low, w)
      y = Cast<to=10>(high) }""",
    18,
  )
  optimized, _ = run_same(original, ANY_TO_SUM, FUSE_SUM_TO, into="FusedSumTo Cast Where Neg Max Min Cast")
  assert "isinf = IsInf(y)" in programs(optimized)[0]
  infinite = np.full((2, 3, 8), np.inf, np.float16)
  np.testing.assert_array_equal(run(restore(optimized), {"x": infinite})[0], np.full_like(infinite, 64504))
