from matmul_helpers import inputs_of, weighted
from pass_helpers import operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import DEAD_NODES, MATMUL_EPILOGUE, MATMUL_TO_FUSED, MATMUL_VIEWS

PASSES = (MATMUL_TO_FUSED, MATMUL_VIEWS, MATMUL_EPILOGUE, DEAD_NODES)
WEIGHTS = {"w": (8, 6), "b": (6,)}
TO_ROWS = "rows = {-1,8}  a = Reshape(x, rows)  "
BACK = "k = Constant<value_ints=[{}]>()  y = Reshape(c, k)"


def shaped(back, x="2,3,8", y="2,3,6", product="Gemm(a, w, b)", more=""):
  return f"(f[{x}] x{more}) => (f[{y}] y) {{ {TO_ROWS} c = {product}  {back} }}"


# As TorchScript writes x.view(-1, K) and y.view(*x.shape[:-1], N).
DYNAMIC = """shape = Shape(x)  zero = int64 {0}  one = int64 {1}
  n = Gather(shape, zero)  m = Gather(shape, one)  axes = {0}  nn = Unsqueeze(n, axes)
  mm = Unsqueeze(m, axes)  six = {6}  k = Concat<axis=0>(nn, mm, six)  """


@parametrize(
  "text, ops",
  [
    (shaped(BACK.format("2, 3, 6")), ["FusedMatMul"]),
    (shaped(BACK.format("2, -1, 6")), ["FusedMatMul"]),
    (shaped(BACK.format("2, 3, 6"), product="MatMul(a, w)"), ["FusedMatMul"]),
    (shaped(DYNAMIC + "y = Reshape(c, k)", "N,M,8", "N,M,6"), ["FusedMatMul"]),
    (shaped(BACK.format("2, 3, 6").replace("y =", "v =") + "  y = Relu(v)"), ["FusedMatMul"]),
    # Other rows than those that it reads: they are reshaped, where that lets something be drawn in.
    (
      shaped(BACK.format("3, 2, 6").replace("y =", "v =") + "  y = Add(v, r)", y="3,2,6", more=", f[3,2,6] r"),
      ["Reshape", "FusedMatMul"],
    ),
    (shaped(BACK.format("3, 2, 6"), y="3,2,6"), ["Reshape", "FusedMatMul", "Reshape"]),
  ],
)
def test_forms(text, ops):
  optimized, _ = run_same(weighted(text, WEIGHTS), *PASSES)
  assert [each for each in operators(optimized) if each not in ("Shape", "Gather", "Unsqueeze", "Concat")] == ops


def test_rows_whose_number_only_a_run_knows():
  """The view's shape comes from another tensor than x: what is read is reshaped by it."""
  text = f"""(f[R,8] x, f[N,M,6] r) => (f[N,M,6] y) {{ c = Gemm(x, w, b)
    {DYNAMIC.replace("Shape(x)", "Shape(r)")}  v = Reshape(c, k)  y = Add(v, r) }}"""
  optimized, _ = run_same(weighted(text, WEIGHTS), *PASSES, R=12)
  assert operators(optimized)[-2:] == ["Reshape", "FusedMatMul"]
  assert inputs_of(optimized)[0][-1] == "r"


@parametrize(
  "text",
  [
    shaped(BACK.format("2, 3, 2, 3"), y="2,3,2,3"),  # heads
    shaped(BACK.format("2, 3, 6").replace("y =", "v =") + "  y = Softmax(c)", y="6,6"),
    shaped("y = Transpose(c)", y="6,6"),
  ],
)
def test_what_stays(text):
  before, _ = run_pass(weighted(text, WEIGHTS), MATMUL_TO_FUSED)
  stays(before, MATMUL_VIEWS)


def test_an_operand_of_each_row_keeps_its_place():
  text = shaped(BACK.format("2, 3, 6"), product="Gemm(a, w, z)", more=", f[6,1] z")
  before, _ = run_pass(weighted(text, WEIGHTS), MATMUL_TO_FUSED, DEAD_NODES)
  stays(before, MATMUL_VIEWS, "'z' is no row")


def test_a_bias_with_more_dimensions_than_the_vector_behind_the_view():
  text = """(f[8] x) => (f[6] y) { first = {0}  a = Unsqueeze(x, first)
    c = Gemm(a, w, b)  k = {6}  y = Reshape(c, k) }"""
  (reason,) = run_pass(weighted(text, {"w": (8, 6), "b": (1, 6)}), *PASSES)[1].near_misses
  assert reason.reason == "'b' has more dimensions than 'y'"


def test_a_width_that_is_not_known():
  text = "(f[R,W] x, f[2,3,6] r) => (f[2,3,6] y) { c = Gemm(x, w, b)  %s  y = Add(v, r) }"
  fused, _ = run_pass(weighted(text % BACK.format("2, 3, 6").replace("y =", "v ="), WEIGHTS), MATMUL_TO_FUSED)
  assert "FusedMatMul" in operators(fused)
  stays(fused, MATMUL_VIEWS, "is not known beforehand")
