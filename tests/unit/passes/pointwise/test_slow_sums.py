import numpy as np
from pass_helpers import model, operators, parametrize, programs, restore, run, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import FUSE_POINTWISE, FUSE_SUM_TO, SLOW_SUMS

DTYPES = ["float", "float16", "bfloat16"]


def graph(op, axes, dtype="float", x="2,3,4,5", y="", opset=18, **attributes):
  known = "".join(f"{name} = {value}, " for name, value in {"keepdims": 0, **attributes}.items())
  body = (
    f"y = {op}<{known}axes = {axes}>(x)"
    if opset < 18 and (op != "ReduceSum" or opset < 13)
    else (f"a = Constant<value_ints={axes}>()  y = {op}<{known.rstrip(', ')}>(x, a)")
  )
  result = f"[{y}]" if y else ""
  return model(f"({dtype}[{x}] x) => ({dtype}{result} y) {{ {body} }}", opset)


@parametrize("dtype", DTYPES)
@parametrize("op, axes, y", [
  ("ReduceSum", "[1]", "2,4,5"), ("ReduceSum", "[-2, 1]", "2,5"), ("ReduceMean", "[2]", "2,3,5"),
  ("ReduceL2", "[1]", "2,4,5"), ("ReduceL2", "[-1]", "2,3,4"), ("ReduceL2", "[0]", "3,4,5"),
  ("ReduceL2", "[3, 2, 1, 0]", ""),
])  # fmt: skip
def test_becomes_one_sum(op, axes, y, dtype):
  optimized, _ = run_pass(graph(op, axes, dtype, y=y), SLOW_SUMS, FUSE_SUM_TO, FUSE_POINTWISE)
  tail = {"ReduceL2": ["Sqrt"] if dtype == "float" else ["FusedPointwise"]}.get(op, [])
  assert [name for name in operators(optimized) if name != "Constant"] == ["FusedSumTo", *tail]
  if dtype != "bfloat16":  # which ONNX Runtime reduces on no CPU
    run_same(graph(op, axes, dtype, y=y), SLOW_SUMS, FUSE_SUM_TO)


@parametrize("opset", [11, 13, 17, 18])
@parametrize("op", ["ReduceSum", "ReduceMean", "ReduceL2"])
@parametrize("keepdims", [0, 1])
def test_opsets(op, opset, keepdims):
  y = "2,1,4,5" if keepdims else "2,4,5"
  run_same(graph(op, "[1]", y=y, opset=opset, keepdims=keepdims), SLOW_SUMS, FUSE_SUM_TO, changes=1)


def test_a_normalisation_as_pytorch_exports_it():
  """A row of zeros, and one whose norm is below the limit, stay what they are."""
  original = model("""(float[2,4,5] x) => (y) <float low = {1e-12}> {
    a = {-1}  n = ReduceL2(x, a)  c = Clip(n, low)  y = Div(x, c) }""", 18)  # fmt: skip
  optimized, _ = run_pass(original, SLOW_SUMS, FUSE_SUM_TO, FUSE_POINTWISE, into="FusedSumTo FusedPointwise")
  assert "Sqrt" in programs(optimized)[1]
  x = np.random.default_rng(3).standard_normal((2, 4, 5)).astype(np.float32)
  x[0, 1] = 0
  x[1, 2] *= np.float32(1e-14)
  np.testing.assert_allclose(run(restore(optimized), {"x": x})[0], run(original, {"x": x})[0], rtol=1e-6)


STAY = {
  "the last axes": graph("ReduceSum", "[2, 3]", y="2,3"),
  "the first axes": graph("ReduceMean", "[0, 1]", y="4,5"),
  "the last but for one of length 1": graph("ReduceSum", "[2]", x="2,3,4,1", y="2,3,1"),
  "all": graph("ReduceMean", "[0, 1, 2, 3]"),
  "of length 1": graph("ReduceSum", "[1]", x="2,1,4", y="2,4"),
  "another": graph("ReduceMax", "[1]", y="2,4,5"),
  "integers": graph("ReduceSum", "[1]", "int64", y="2,4,5"),
  "double": graph("ReduceL2", "[1]", "double", y="2,4,5"),
  "weights": model("""(float[2] x) => (y) { w = float[2,3] {1, 2, 3, 4, 5, 6}
    a = {1}  n = ReduceL2<keepdims=0>(w, a)  y = Mul(x, n) }""", 18),
}  # fmt: skip


@parametrize("what", STAY)
def test_stays(what):
  stays(STAY[what], SLOW_SUMS)


@parametrize("original, reason", [
  (graph("ReduceMean", "[1]", x="2,N,4", y="2,4"), "is unknown"),
  (model("(float[2,3,4] x, int64[1] a) => (float[2,3,4] y) { y = ReduceL2(x, a) }", 18), "are no constant"),
])  # fmt: skip
def test_near_misses(original, reason):
  stays(original, SLOW_SUMS, reason)
