from pass_helpers import lines, parametrize, programs, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import FUSE_POINTWISE, FUSE_SUM_TO, LONE_POINTWISE

X = "float[N,4,8] x"
W = "float[8,8] w"
Y = "float[N,4,8] y"


@parametrize(
  "nodes, inputs, operators_after, statement",
  [
    ("m = MatMul(x, w)  y = Add(m, b)", f"{X}, {W}, float[8] b", "MatMul FusedPointwise", "y = Add(x, bias)"),
    ("m = MatMul(x, w)  y = Mul(m, b)", f"{X}, {W}, float[8] b", "MatMul FusedPointwise", "y = Mul(x, scale)"),
    ("m = MatMul(x, w)  y = Sigmoid(m)", f"{X}, {W}", "MatMul FusedPointwise", "y = Sigmoid(x)"),
    ("s = Softmax(x)  y = Mul(s, b)", f"{X}, float[1] b", "Softmax FusedPointwise", "y = Mul(x, scale)"),
    ("a = Relu(x)  y = Softmax(a)", X, "FusedPointwise Softmax", "y = Relu(x)"),
    ("y = Where(c, x, b)", f"{X}, bool[4,8] c, float b", "FusedPointwise", "y = Where(condition, x, condition2)"),
  ],
)
def test_becomes_a_kernel_of_its_own(nodes, inputs, operators_after, statement):
  optimized, _ = run_same(f"({inputs}) => ({Y}) {{ {nodes} }}", LONE_POINTWISE, into=operators_after)
  assert [lines(each) for each in programs(optimized)] == [[statement]]
  stays(optimized, LONE_POINTWISE)


ONE = "k = float {0.125}"


@parametrize(
  "text, why",
  [
    (f"({X}, {W}) => ({Y}) {{ {ONE} m = MatMul(x, w) y = Mul(m, k) }}", "a scale after a MatMul"),
    (f"({X}, {W}) => ({Y}) {{ {ONE} s = Div(x, k) y = MatMul(s, w) }}", "a scale before a MatMul"),
    (f"({X}, float[4,8] b) => ({Y}) {{ a = Add(x, b) y = Softmax(a) }}", "a mask before a Softmax"),
    (
      "(float[N,8] x, float[8,8] w, float[8] b) => (float[N,8] y) { m = MatMul(x, w) y = Add(m, b) }",
      "a bias of a product of matrices",
    ),
    (f"({X}) => (float16[N,4,8] y) {{ y = Cast<to=10>(x) }}", "a Cast"),
    ("(int64[N] x) => (y) { y = Neg(x) }", "no floating-point result"),
    ("(float x) => (y) { y = Exp(x) }", "one number"),
    (f"({X}) => ({Y}) {{ y = Softmax(x) }}", "not pointwise"),
  ],
  ids=lambda value: value if " => " not in value else "",
)
def test_stays(text, why):
  stays(text, LONE_POINTWISE)


def test_the_limit_counts_replacements():
  original = f"({X}) => ({Y}) {{ a = Relu(x) s = Softmax(a) y = Exp(s) }}"
  run_pass(original, LONE_POINTWISE, limit=1, into="FusedPointwise Softmax Exp")


@parametrize("dtype, left", [("float", 1), ("float16", 3)])
def test_what_onnx_runtime_folds_stays_but_in_half_precision(dtype, left):
  ones = ", ".join(["1"] * 72)
  original = f"""({dtype}[2,4,9,9] x) => ({dtype}[2,2,7,7] y) <{dtype}[2,4,3,3] w = {{{ones}}}> {{
    m = ReduceMean(w)  d = Sub(w, m)  n = Exp(d)  c = Conv(x, n)  y = Relu(c) }}"""
  for each in (FUSE_SUM_TO, FUSE_POINTWISE):
    assert bool(run_pass(original, each)[1].changes) is (each is FUSE_POINTWISE and dtype == "float16")
  run_pass(original, LONE_POINTWISE, changes=left)
