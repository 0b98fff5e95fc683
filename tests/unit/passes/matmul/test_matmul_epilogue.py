import numpy as np
from matmul_helpers import inputs_of, weighted
from pass_helpers import add_weights, lines, operators, parametrize, programs, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer.pipeline import FUSE_LAYER_NORM, MATMUL_EPILOGUE, MATMUL_TO_FUSED, NORM_PROLOGUE

WEIGHTS = {"w": (8, 8), "w2": (8, 8), "b": (8,), "s": (), "t": (1, 1, 8)}
NUMBERS = "one = float {1.0}  root = float {1.4142135}  "
HALVES = "half = Cast<to=10>(one)  halfroot = Cast<to=10>(root)  "


def graph(nodes, outputs="f[N,M,8] y", inputs=""):
  text = f"(f[N,M,8] x, f[N,M,8] r{inputs}) => ({outputs}) {{ c = MatMul(x, w)  {nodes} }}"
  return weighted(text, WEIGHTS, opset=20)


def fuse(original, into=None, precision="", **lengths):
  """Of which the outputs are the same."""
  before, _ = run_pass(original, FUSE_LAYER_NORM, MATMUL_TO_FUSED)
  return run_same(original, MATMUL_EPILOGUE, start=before, into=into, precision=precision, **lengths)


@parametrize(
  "nodes, expected",
  [
    ("y = Add(c, b)", ["y = Add(c, bias)"]),
    ("a = Add(b, c)  y = Gelu(a)", ["add = Add(bias, c)", "y = Gelu(add)"]),
    ('y = Gelu<approximate="tanh">(c)', ['y = Gelu<approximate="tanh">(c)']),
    ("g = Sigmoid(c)  y = Mul(c, g)", ["sigmoid = Sigmoid(c)", "y = Mul(c, sigmoid)"]),
    ("a = Add(c, b)  y = Add(a, r)", ["add = Add(c, bias)", "y = Add(add, residual)"]),
    ("a = Mul(c, s)  y = Add(r, a)", ["mul = Mul(c, 0.51025390625)", "y = Add(residual, mul)"]),
    ("y = Add(c, x)", ["y = Add(c, residual)"]),
    ("y = Add(c, t)", ["y = Add(c, bias)"]),
    (
      NUMBERS + HALVES + "a = Div(c, halfroot)  e = Erf(a)  d = Add(e, half)  f = Mul(c, d)  y = Mul(f, s)",
      ["div = Div(c, operand)", "erf = Erf(div)", "add = Add(erf, bias)", "mul = Mul(c, add)", "y = Mul(mul, scale2)"],
    ),
  ],
)
def test_chains(nodes, expected):
  optimized, _ = fuse(graph(nodes))
  assert [each for each in operators(optimized) if each != "Cast"] == ["FusedMatMul"]
  found = lines(programs(optimized)[0])
  assert [each.split("(")[0] for each in found] == [each.split("(")[0] for each in expected]
  if "Erf" not in nodes:
    assert found == expected


def test_a_cast_to_float_is_the_result():
  fuse(graph("a = Add(c, b)  y = Cast<to=1>(a)", "float[N,M,8] y"), "FusedMatMul", "float16")


def test_a_gate():
  """SwiGLU: the activation is the first product's, the product of the two the second's."""
  original = graph("g = Sigmoid(c)  a = Mul(c, g)  u = MatMul(x, w2)  y = Mul(a, u)")
  optimized, _ = fuse(original, "FusedMatMul FusedMatMul")
  assert [lines(each)[-1] for each in programs(optimized)] == ["y = Mul(c, sigmoid)", "y = Mul(residual, c)"]


def test_the_later_of_two_products_takes_their_sum():
  optimized, _ = fuse(graph("a = Relu(c)  d = MatMul(a, w2)  y = Add(a, d)"))
  assert inputs_of(optimized)[1][2:] == ["a"]
  assert [lines(each) for each in programs(optimized)] == [["y = Relu(c)"], ["y = Add(residual, c)"]]


def test_what_others_need_is_a_result_too():
  """The sum before and the value after an activation, each read by something that is not pointwise."""
  original = graph("a = Add(c, b)  d = Relu(a)  y = Softmax(a)  z = Softmax(d)", "f[N,M,8] y, f[N,M,8] z")
  optimized, _ = fuse(original, "FusedMatMul Softmax Softmax")
  assert list(optimized.graph.node[0].output) == ["a", "d"]


def test_what_only_a_pointwise_operator_outside_reads_is_computed_there():
  """d = Relu(c) would be written for Mul alone, which reads c as well and can't join: it reads a gate of c."""
  optimized, result = fuse(graph("p = Softmax(c)  d = Relu(c)  e = Mul(d, c)  y = Mul(e, p)"))
  assert list(optimized.graph.node[0].output) in (["c", "e"], ["c"])
  assert "d" not in optimized.graph.node[0].output
  assert any("depends on the product" in each.reason for each in result.near_misses)


def test_what_only_a_sum_outside_reads_is_computed_there():
  """The sum reads half of what the product would write beside its result."""
  original = graph(
    "a = Add(c, b)  f = Cast<to=1>(a)  i = IsInf(f)  n = Cast<to=1>(i)  z = ReduceSum<keepdims=0>(n)  y = Softmax(a)",
    "f[N,M,8] y, float z",
  )
  optimized, _ = fuse(original)
  assert lines(programs(optimized)[0]) == ["y = Add(c, bias)"]


def test_a_residual_sum_is_written_once_for_the_norm_and_the_next_sum():
  original = graph("a = Add(c, b)  h = Add(a, r)  n = LayerNormalization(h, b, b)  d = MatMul(n, w2)  y = Add(d, h)")
  optimized, _ = fuse(original)
  optimized, result = run_pass(optimized, NORM_PROLOGUE, into="FusedMatMul FusedLayerNorm FusedMatMul")
  assert not result.changes
  assert [list(node.output) for node in optimized.graph.node] == [["h"], ["n"], ["y"]]
  same_outputs(original, optimized)


def test_a_cast_that_only_a_norm_reads_is_the_norms():
  """RMS norms of Llama: two bytes are read in place of four, and four are not written."""
  original = graph("""h = Add(c, r)  f = Cast<to=1>(h)  n = LayerNormalization(f, gamma)  k = Cast<to=10>(n)
    d = MatMul(k, w2)  y = Add(d, h)""")
  add_weights(original, gamma=np.ones(8, np.float32))
  optimized, _ = fuse(original)
  assert list(optimized.graph.node[0].output) == ["h"]
  optimized, _ = run_pass(optimized, NORM_PROLOGUE, into="FusedMatMul FusedLayerNorm Cast FusedMatMul")
  same_outputs(original, optimized)


@parametrize(
  "nodes, outputs, inputs, reason",
  [
    ("y = Add(c, z)", "f[K,N,M,8] y", ", f[K,N,M,8] z", "does not surely broadcast"),
    ("y = Add(c, z)", "f[N,M,8] y", ", f[A,B,8] z", "does not surely broadcast"),
    ("p = Softmax(c)  y = Mul(c, p)", "f[N,M,8] y", "", "depends on the product"),
    ("y = Cast<to=7>(c)", "int64[N,M,8] y", "", "has to be rounded to float16 before it"),
  ],
)
def test_what_stays(nodes, outputs, inputs, reason):
  before, _ = run_pass(graph(nodes, outputs, inputs), MATMUL_TO_FUSED)
  stays(before, MATMUL_EPILOGUE, reason)


def test_lengths_that_come_from_one_shape():
  """A residual whose shape has no name: both come from x's, one through a Reshape."""
  text = """(f[a,M,8] x) => (f[b,M,8] y) { shape = Shape(x)  zero = {0}
    n = Gather(shape, zero)  rest = {4,2,4}  split = Concat<axis=0>(n, rest)
    q = Reshape(x, split)  k = Relu(q)  h = Transpose<0,2,1,3>(k)  v = Softmax(h)
    u = Transpose<0,2,1,3>(v)
    joined = {4,8}  whole = Concat<axis=0>(n, joined)  o = Reshape(u, whole)
    c = MatMul(o, w)  y = Add(c, x) }"""
  original = weighted(text, {"w": (8, 8)})
  optimized, _ = fuse(original, a=3)
  assert operators(optimized)[-1] == "FusedMatMul"
