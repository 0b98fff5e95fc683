import numpy as np
from pass_helpers import lines, model, parametrize, programs, restore, run, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import FUSE_LAYER_NORM, FUSE_RMS_NORM, NORM_EPILOGUE

PASSES = (FUSE_LAYER_NORM, FUSE_RMS_NORM, NORM_EPILOGUE)
EPSILON = "epsilon = float {1e-5}  "
NORM = (
  EPSILON
  + """mean = ReduceMean<axes=[-1]>(x)  d = Sub(x, mean)  square = Mul(d, d)
    variance = ReduceMean<axes=[-1]>(square)  shifted = Add(variance, epsilon)  root = Sqrt(shifted)
    n = Div(d, root)  """
)


AXES = "axes = {-1}  "  # an input from opset 18 on
NORM_18 = AXES + NORM.replace("<axes=[-1]>(x)", "(x, axes)").replace("<axes=[-1]>(square)", "(square, axes)")


def graph(nodes, inputs="", outputs="", y="float[N,M,8] y"):
  return f"(float[N,M,8] x, float[8] gamma, float[8] beta{inputs}) => ({y}{outputs}) {{ {NORM} {nodes} }}"


def outputs_of_norm(optimized):
  return next(list(node.output) for node in optimized.graph.node if node.op_type == "FusedLayerNorm")


def check(text, ops, statements):
  run_same(text, *PASSES, into=ops, program=statements)


@parametrize("one, other", [("n, gamma", "{}, beta"), ("gamma, n", "beta, {}")])
def test_gamma_and_beta(one, other):
  expected = ["n = LayerNormalization(x)", f"mul = Mul({one})", f"y = Add({other.format('mul')})"]
  check(graph(f"m = Mul({one})  y = Add({other.format('m')})"), "FusedLayerNorm", expected)


def test_a_cast_back_and_gamma_in_half():
  """Llama: the norm in fp32, rounded to fp16, then scaled in fp16."""
  original = f"""(float[N,M,8] x, float16[8] gamma) => (float16[N,M,8] y)
    {{ {NORM} h = Cast<to=10>(n)  y = Mul(gamma, h) }}"""
  run_same(
    original, *PASSES, program=["n = LayerNormalization(x)", "cast = Cast<to=float16>(n)", "y = Mul(gamma, cast)"]
  )


def test_gelu_written_out():
  """n is read twice, and neither it nor what is between remains an output."""
  check(
    graph("""root2 = float {1.4142135}  one = float {1.0}
      half = float {0.5}  scaled = Div(n, root2)  e = Erf(scaled)  gate = Add(e, one)
      wide = Mul(n, gate)  y = Mul(wide, half)"""),
    "FusedLayerNorm",
    [
      "n = LayerNormalization(x)",
      "div = Div(n, 1.4142135381698608)",
      "erf = Erf(div)",
      "add = Add(erf, 1)",
      "mul = Mul(n, add)",
      "y = Mul(mul, 0.5)",
    ],
  )


@parametrize(
  "opset, node, statement",
  [
    (17, "y = LeakyRelu<alpha=0.1>(n)", ""),
    (17, "y = Elu<alpha=2.0>(n)", "y = Elu<alpha=2>(n)"),
    (17, "y = Shrink<bias=0.25>(n)", ""),
    (18, "y = Mish(n)", ""),
    (20, 'y = Gelu<approximate="tanh">(n)', ""),
    (17, "y = PRelu(n, gamma)", "y = PRelu(n, slope)"),
    (17, "y = Clip(n)", "y = Clip(n, -3.4028234663852886e+38, 3.4028234663852886e+38)"),
    (17, "six = float {6.0}  y = Clip(n, , six)", "y = Clip(n, -3.4028234663852886e+38, 6)"),
    (17, "low = float {-1.0}  y = Clip(n, low)", "y = Clip(n, -1, 3.4028234663852886e+38)"),
    (17, "two = int64 {2}  y = Pow(n, two)", "y = Pow(n, 2)"),
    (17, "y = Max(n, gamma)", "y = Max(n, operand)"),
    (17, "y = Min(gamma, n, beta)", "y = Min(min, operand2)"),
  ],
)
def test_operators_and_their_attributes(opset, node, statement):
  """`statement`: what becomes of the node, if that is another text."""
  text = graph(node)
  original = model(text.replace(NORM, NORM_18) if opset >= 18 else text, opset, ir=8 if opset < 20 else 10)
  optimized, _ = run_same(original, *PASSES, into="FusedLayerNorm")
  assert lines(programs(optimized)[0])[-1] == (statement or node)


@parametrize(
  "node, statements",
  [
    ("y = com.microsoft.Gelu(n)", ["y = Gelu(n)"]),
    ("y = com.microsoft.FastGelu(n)", ['y = Gelu<approximate="tanh">(n)']),
    ("y = com.microsoft.FastGelu(n, gamma)", ["add = Add(n, bias)", 'y = Gelu<approximate="tanh">(add)']),
    ("y = com.microsoft.BiasGelu(n, gamma)", ["add = Add(n, bias)", "y = Gelu(add)"]),
    ("y = com.microsoft.QuickGelu<alpha=1.5>(n)", ["y = QuickGelu<alpha=1.5>(n)"]),
  ],
)
def test_activations_of_onnx_runtime(node, statements):
  run_same(model(graph(node), contrib=True), *PASSES, program=["n = LayerNormalization(x)", *statements])


def test_comparisons_and_where():
  optimized, _ = run_same(graph(
    "zero = float {0.0}  positive = Greater(n, zero)  both = And(positive, mask)"
      "  y = Where(both, n, zero)  z = Not(both)", ", bool[M,1] mask", ", bool[N,M,8] z"), *PASSES,
    into="FusedLayerNorm")  # fmt: skip
  assert programs(optimized)[0].splitlines()[0] == "(float x, bool operand) => (float y, bool y2) {"


def test_a_residual_after_the_norm():
  check(graph("y = Add(n, x)"), "FusedLayerNorm", ["n = LayerNormalization(x)", "y = Add(n, x)"])
  check(
    graph("y = Add(n, r)", ", float[N,M,8] r"), "FusedLayerNorm", ["n = LayerNormalization(x)", "y = Add(n, residual)"]
  )


def test_an_output_in_between_is_kept():
  original = graph("m = Mul(n, gamma)  y = Add(m, beta)", outputs=", float[N,M,8] m, n")
  optimized, _ = run_same(original, *PASSES, into="FusedLayerNorm")
  assert sorted(outputs_of_norm(optimized)) == ["m", "n", "y"]


def test_a_value_with_another_consumer_is_kept():
  original = graph("m = Mul(n, gamma)  y = Add(m, beta)  z = Softmax(m)", outputs=", float[N,M,8] z")
  optimized, _ = run_same(original, *PASSES, into="FusedLayerNorm Softmax")
  assert outputs_of_norm(optimized) == ["m", "y"]


def test_a_value_that_a_body_captures_is_kept():
  branches = """z = If(c) <then () => (float[N,M,8] t) { t = Neg(n) },
      otherwise () => (float[N,M,8] e) { e = Identity(n) }>"""
  optimized, _ = run_same(
    graph(f"y = Mul(n, gamma)  {branches}", ", bool c", ", float[N,M,8] z"), *PASSES, into="FusedLayerNorm If"
  )
  assert sorted(outputs_of_norm(optimized)) == ["n", "y"]


def test_a_consumer_in_a_body_stays_there():
  branches = """y = If(c) <then () => (float[N,M,8] t) { t = Mul(n, gamma) },
      otherwise () => (float[N,M,8] e) { e = Add(n, beta) }>"""
  run_same(graph(branches, ", bool c"), *PASSES, into="FusedLayerNorm If")


def test_what_an_operand_needs_moves_before_the_norm():
  run_same(graph("late = Softmax(r)  y = Add(n, late)", ", float[N,M,8] r"), *PASSES, into="Softmax FusedLayerNorm")


@parametrize("shape", ["8", "1", "", "M,1", "N,1,1", "1,M,8", "1,1,1"])
def test_operands_that_broadcast(shape):
  dims = f"[{shape}]" if shape else ""
  run_same(graph("y = Mul(c, n)", f", float{dims} c"), *PASSES, into="FusedLayerNorm")


def test_numbers_of_every_shape_that_fits():
  for dims in ("", "[1]", "[1,1,1]"):
    optimized, _ = run_same(f"(float[N,M,8] x) => (y) <float{dims} c = {{0.25}}> {{ {NORM} y = Mul(n, c) }}", *PASSES)
    assert lines(programs(optimized)[0])[-1] == "y = Mul(n, 0.25)"


# What must not fuse.


def unchanged_epilogue(text, *fragments, **options):
  fused, _ = run_pass(model(text, **options), FUSE_LAYER_NORM)
  stays(fused, NORM_EPILOGUE, *fragments)


@parametrize(
  "text, reason",
  {
    "a cycle": (graph("p = Softmax(n)  y = Add(n, p)"), "'p', which it also reads, depends on the norm"),
    "a norm of a single row that grows": (
      f"(float[1,1,8] x, float[5,8] c) => (float[1,5,8] y) {{ {NORM} y = Mul(n, c) }}",
      "'c' of shape [5, 8] does not surely broadcast to [1, 1, 8]",
    ),
    "a norm over a dimension of one that grows": (
      f"(float[N,M,1] x, float[8] c) => (float[N,M,8] y) {{ {NORM} y = Mul(n, c) }}",
      "'c' of shape [8] does not surely broadcast to [N, M, 1]",
    ),
    "a Cast to an integer": (graph("y = Cast<to=7>(n)", y="int64[N,M,8] y"), "'y' is int64; programs know"),
    "an integer exponent that varies": (
      graph("y = Pow(n, p)", ", int64[8] p"),
      "'p' is int64; programs know float16, bfloat16, float",
    ),
  }.values(),
)
def test_near_misses(text, reason):
  unchanged_epilogue(text, reason)


@parametrize("shape", ["2,N,M,8", "1,1,1,1", "4,1", "K,1,1", "1,1,K"])
def test_an_operand_that_may_enlarge_the_result_stays(shape):
  text = graph("y = Mul(n, c)", f", float[{shape}] c", y=f"float[A,B,C{',D' * (shape.count(',') == 3)}] y")
  fused, _ = run_pass(text, FUSE_LAYER_NORM)
  if shape == "1,1,K":  # against a last dimension of 8, in a valid model K is 1 or 8
    run_pass(fused, NORM_EPILOGUE, into="FusedLayerNorm")
  else:
    stays(fused, NORM_EPILOGUE, "does not surely broadcast to [N, M, 8]")


def test_other_operators_stay():
  unchanged_epilogue(graph("y = Softmax(n)"))
  unchanged_epilogue(graph("y = Transpose<0,1,2>(n)"))


def test_more_results_than_there_may_be_stay():
  outputs = "".join(f", float[N,M,8] z{i}" for i in range(20))
  nodes = "  ".join(f"z{i} = {op}(n)" for i, op in enumerate(["Sin", "Cos", "Tanh", "Exp", "Relu"] * 4))
  optimized, result = run_same(graph(f"y = Neg(n)  {nodes}", outputs=outputs), *PASSES)
  assert len(outputs_of_norm(optimized)) == 16
  assert any("17 results; the limit is 16" in each.reason for each in result.near_misses)


def test_special_values_pass_through(rng):
  original = model(graph("m = Mul(n, gamma)  y = Add(m, beta)"))
  optimized, _ = run_pass(original, *PASSES)
  special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 1.0, -1.0], np.float32)
  x = rng.standard_normal((3, 4, 8)).astype(np.float32)
  x[0, 0, 3], x[1, 1, 2], x[2, 2, :] = np.nan, np.inf, 0
  for gamma, beta in ((special, np.zeros(8, np.float32)), (np.ones(8, np.float32), special), (special, special[::-1])):
    feeds = {"x": x, "gamma": gamma, "beta": np.ascontiguousarray(beta)}
    expected, found = run(original, feeds)[0], run(restore(optimized), feeds)[0]
    for of in (np.isnan, np.isinf, np.signbit):
      np.testing.assert_array_equal(of(found), of(expected))


def test_what_a_jump_reads_is_rounded():
  """As in fuse-pointwise; tests/ort/test_roundings.py has values for which it matters."""
  original = "(float16[2,8] x, float16[8] gamma) => (float16[2,8] y) { n = LayerNormalization(x, gamma)  y = Floor(n) }"
  optimized, _ = run_same(original, *PASSES)
  steps = ["n = LayerNormalization(x)", "mul = Mul(n, gamma)", "cast = Cast<to=float16>(mul)", "y = Floor(cast)"]
  assert lines(programs(optimized)[0]) == steps
