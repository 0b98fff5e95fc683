import onnx
from layout_helpers import constant
from pass_helpers import model, parametrize, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer.pipeline import EARLY_GATHER, FUSE_LAYER_NORM

NORM = "n = LayerNormalization(x, g)"
# The last layer of a transformer, Gelu written out, and its classifier's row.
LAYER = f"""{NORM}  u = MatMul(n, w1)  v = Add(u, b1)  d = Div(v, root)  e = Erf(d)  f = Add(e, one)  h = Mul(v, f)
  i = Mul(h, half)  j = MatMul(i, w2)  k = Add(j, b2)  z = Add(x, k)  l = LayerNormalization(z, g)"""
SCALARS = "float root = {1.4142135}, float one = {1}, float half = {0.5}, int64 first = {0}, int64 last = {-1}"
SHAPES = {"w1": (8, 16), "w2": (16, 8), "b1": (16,), "b2": (8,), "g": (8,), "rows": (1, 6, 8), "square": (6, 6)}
WEIGHTS = ", ".join(constant(name, *shape) for name, shape in {**SHAPES, "g6": (6, 8)}.items())


def graph(nodes, y="float[N,8] y", x="float[N,6,8] x", constants="", opset=18):
  more = f", {constants}" if constants else ""
  return model(f"({x}) => ({y}) <{WEIGHTS}, {SCALARS}{more}> {{ {nodes} }}", opset)


def moved(original, into, **dims):
  _, result = run_same(original, FUSE_LAYER_NORM, EARLY_GATHER, into=into, **dims)
  assert any(change.rewrite == EARLY_GATHER.name for change in result.changes)


BLOCK = ["FusedLayerNorm", "MatMul", "Add", "Div", "Erf", "Add", "Mul", "Mul", "MatMul", "Add", "Add", "FusedLayerNorm"]


@parametrize("opset", [12, 13, 18])
def test_the_row_of_a_classifier(opset):
  if opset < 17:
    nodes = LAYER.replace(NORM, "n = Mul(x, g)").replace("l = LayerNormalization(z, g)", "l = Mul(z, g)")
    wanted = ["Mul", *BLOCK[1:-1], "Mul"]
  else:
    nodes, wanted = LAYER, BLOCK
  moved(graph(f"{nodes}  y = Gather<axis=1>(l, first)", opset=opset), ["Gather", *wanted, "Squeeze"])


def test_the_logits_of_the_last_token():
  original = graph(
    f"{NORM}  s = Sigmoid(x)  l = MatMul(n, w1)  y = Gather<axis=1>(l, last)  z = Neg(s)",
    "float[N,16] y, float[N,S,8] z",
    "float[N,S,8] x",
  )
  moved(original, "Sigmoid Gather FusedLayerNorm MatMul Squeeze Neg", S=5)
  same_outputs(original, run_pass(original, FUSE_LAYER_NORM, EARLY_GATHER)[0], S=1)


def test_several_rows_in_any_order():
  original = graph(
    "l = MatMul(x, w1)  r = Relu(l)  y = Gather<axis=-2>(r, some)",
    "float[N,3,16] y",
    constants="int64[3] some = {5,-6,5}",
  )
  moved(original, "Gather MatMul Relu")


def test_a_row_elsewhere_in_what_is_transposed():
  original = graph("t = Transpose<1,0,2>(x)  l = MatMul(t, w1)  y = Gather(l, first)", "float[N,16] y")
  optimized, _ = run_same(original, EARLY_GATHER, into="Gather Transpose MatMul Squeeze")
  assert onnx.helper.get_attribute_value(optimized.graph.node[0].attribute[0]) == 1


def test_gemm():
  original = graph(
    "p = Gemm(x, w1, b1)  q = Gemm<alpha=0.5>(p, w2, b2)  y = Gather(q, some)",
    "float[2,8] y",
    "float[6,8] x",
    constants="int64[2] some = {3,1}",
  )
  moved(original, "Gather Gemm Gemm")


def test_constants_with_rows_have_theirs_taken():
  original = graph("p = Add(x, rows)  q = MatMul(p, w1)  y = Gather<axis=1>(q, first)", "float[N,16] y")
  moved(original, "Gather Gather Add MatMul Squeeze")


def test_a_value_that_is_read_elsewhere_is_where_it_ends():
  original = graph(
    f"{NORM}  q = MatMul(n, w1)  y = Gather<axis=1>(q, first)  z = Neg(n)", "float[N,16] y, float[N,6,8] z"
  )
  moved(original, "FusedLayerNorm Gather MatMul Squeeze Neg")


ROW = "y = Gather<axis=1>(q, first)"


@parametrize(
  "original",
  [
    graph(f"p = Relu(x)  q = Sigmoid(p)  {ROW}"),  # cheap
    graph(f"q = MatMul(x, w1)  {ROW}", "float[N,16] y, float[N,6,16] q"),  # an output
    graph(f"q = MatMul(x, w1)  {ROW}  z = Neg(q)", "float[N,16] y, float[N,6,16] z"),
    graph(f"p = MatMul(x, w1)  q = Add(p, r)  {ROW}", "float[N,16] y", "float[N,6,8] x, float[N,6,16] r"),  # of two
    graph("q = MatMul(x, w1)  y = Gather<axis=2>(q, first)", "float[N,6] y"),  # columns
    graph(f"q = MatMul(square, x)  {ROW}"),  # of all rows
    graph(f"q = MatMul(x, w)  {ROW}", "float[N,8] y", "float[N,6,8] x, float[N,8,8] w"),
    graph(f"q = MatMul(x, w1)  {ROW}", "float[N,16] y", "float[N,1,8] x"),
    graph(
      "q = MatMul(x, w1)  y = Gather<axis=1>(q, some)", "float[N,4,16] y", constants="int64[4] some = {0,1,2,3}"
    ),  # most
    graph("q = MatMul(x, w1)  y = Gather<axis=1>(q, some)", "float[N,16] y", "float[N,6,8] x, int64 some"),
    graph(f"q = LayerNormalization<axis=1>(x, g6)  {ROW}"),
    graph(
      f"q = MatMul(x, w1)  {ROW}  z = If(c)<then () => (float[N,6,16] s) {{ s = Neg(q) }},"
      "else () => (float[N,6,16] t) { t = Abs(q) }>",
      "float[N,16] y, float[N,6,16] z",
      "float[N,6,8] x, bool c",
    ),
    graph(
      f"p = MatMul(x, w1)  o = MatMul(r, w1)  q = Add(p, o)  {ROW}", "float[N,16] y", "float[N,6,8] x, float[N,S,8] r"
    ),  # which may have one row or six
  ],
)
def test_what_stays(original):
  stays(run_pass(original, FUSE_LAYER_NORM)[0], EARLY_GATHER)


TWICE = "m = MatMul(x, square)  a = Add(m, v)  b = Transpose<0,2,1>(a)  c = Add(b, v)"


@parametrize("nodes, moves", [
  ("m = MatMul(x, square)  c = Add(m, square)  y = Gather<axis=1>(c, first)", True),
  (f"{TWICE}  y = Gather<axis=2>(c, first)".replace("v)", "six)"), True),
  (f"v = Relu(six)  {TWICE}  y = Gather<axis=2>(c, first)", False),  # and what makes it stays
])  # fmt: skip
def test_a_tensor_read_by_rows_and_as_it_is(nodes, moves):
  _, result = run_same(graph(nodes, "float[N,6] y", "float[N,6,6] x", constants=constant("six", 6)), EARLY_GATHER)
  assert bool(result.changes) == moves
