from pass_helpers import (
  lines,
  model,
  operators,
  parametrize,
  programs,
  reasons,
  run_pass,
  run_same,
  same_outputs,
  stays,
)

from ortplugin.optimizer.pipeline import FUSE_LAYER_NORM, FUSE_RMS_NORM, NORM_PROLOGUE

PASSES = (FUSE_LAYER_NORM, FUSE_RMS_NORM, NORM_PROLOGUE)
NORM = "y = LayerNormalization(s, gamma)"
TAIL = ["n = LayerNormalization(s)", "y = Mul(n, gamma)"]


def graph(nodes, inputs="", outputs=""):
  declared = f"float[N,M,8] x, r, float[8] b, float[8] gamma{inputs}"
  return f"({declared}) => (float[N,M,8] y{outputs}) {{ {nodes} }}"


def check(text, ops, statements, **options):
  run_same(model(text, **options), *PASSES, into=ops, program=statements)


def test_bias_and_residual_in_any_order():
  check(
    graph(f"t = Add(x, b)  s = Add(t, r)  {NORM}"),
    "FusedLayerNorm",
    ["add = Add(x, bias)", "s = Add(add, residual)", *TAIL],
  )
  check(
    graph(f"t = Add(b, x)  s = Add(r, t)  {NORM}"),
    "FusedLayerNorm",
    ["add = Add(bias, residual)", "s = Add(x, add)", *TAIL],
  )


def test_nvfuser_issue_383():
  """LayerNorm(x + b0 + b1) * gamma + beta in fp16."""
  original = """(float16[N,M,8] x, float16[8] b0, b1, gamma, beta)
    => (float16[N,M,8] y) { t = Add(x, b0)  s = Add(t, b1)  y = LayerNormalization(s, gamma, beta) }"""
  optimized, _ = run_same(original, *PASSES)
  assert programs(optimized) == [
    "(float16 x, float16 bias, float16 bias2, float16 gamma, float16 beta) => (float16 y) {\n"
    "  add = Add(x, bias)\n"
    "  s = Add(add, bias2)\n"
    "  n = LayerNormalization(s)\n"
    "  mul = Mul(n, gamma)\n"
    "  y = Add(mul, beta)\n"
    "}"
  ]


def test_the_residual_stream_is_kept_as_an_output():
  text = graph(f"s = Add(x, r)  {NORM}  z = Add(s, y)", outputs=", float[N,M,8] z")
  optimized, result = run_same(text, *PASSES, into="FusedLayerNorm Add")
  assert list(optimized.graph.node[0].output) == ["y", "s"]
  assert programs(optimized)[0].splitlines()[0] == "(float x, float residual, float gamma) => (float y, float s) {"
  assert result.near_misses == ()


def test_a_sum_that_is_a_graph_output_is_kept():
  run_same(graph(f"s = Add(x, r)  {NORM}", outputs=", float[N,M,8] s"), *PASSES, into="FusedLayerNorm")


def test_a_sum_that_a_body_captures_is_kept():
  branches = """z = If(c) <then () => (float[N,M,8] t) { t = Neg(s) },
      otherwise () => (float[N,M,8] e) { e = Neg(x) }>"""
  run_same(
    graph(f"s = Add(x, r)  {NORM}  {branches}", ", bool c", ", float[N,M,8] z"), *PASSES, into="FusedLayerNorm If"
  )


def test_nodes_between_move_to_the_right_side():
  """s is read before the norm by a node that it does not need, and the norm needs one that comes after s."""
  run_same(graph(
    "s = Add(x, r)  early = Sin(s)  g = Sin(gamma)  y = LayerNormalization(s, g)  z = Add(early, y)",
      outputs=", float[N,M,8] z"), *PASSES, into="Sin FusedLayerNorm Sin Add")  # fmt: skip


def test_casts_and_activations():
  original = """(float16[N,M,8] x, float16[8] gamma) => (float[N,M,8] y) {
    wide = Cast<to=1>(x)  s = Tanh(wide)  g = Cast<to=1>(gamma)  y = LayerNormalization(s, g) }"""
  run_same(
    original,
    *PASSES,
    program=[
      "cast = Cast<to=float>(gamma)",
      "cast2 = Cast<to=float>(x)",
      "s = Tanh(cast2)",
      "n = LayerNormalization(s)",
      "y = Mul(n, cast)",
    ],
  )


def test_a_wider_cast_around_a_norm_disappears():
  original = """(float16[N,M,8] x, float[8] gamma) => (float[N,M,8] y) {
    wide = Cast<to=11>(x)  s = Cast<to=1>(wide)  y = LayerNormalization(s, gamma) }"""
  run_pass(original, *PASSES, program=["s = Cast<to=float>(x)", *TAIL])


def test_a_rounding_cast_stays():
  run_same(
    graph(f"narrow = Cast<to=10>(x)  s = Cast<to=1>(narrow)  {NORM}"),
    *PASSES,
    program=["cast = Cast<to=float16>(x)", "s = Cast<to=float>(cast)", *TAIL],
  )


@parametrize("shape", ["8", "1,8", "M,8", "1,M,8", "N,1,1", "1,1,1", "1", ""])
def test_whatever_broadcasts(shape):
  dims = f"[{shape}]" if shape else ""
  original = model(f"(float[N,M,8] x, float{dims} b, float[8] gamma) => (float[N,M,8] y) {{ s = Add(b, x)  {NORM} }}")
  optimized, _ = run_same(original, *PASSES, into="FusedLayerNorm")
  same_outputs(original, optimized, N=1, M=1)
  same_outputs(original, optimized, N=0)


def test_two_small_values_that_span_the_whole():
  original = f"(float[N,1,8] x, float[1,M,1] b, float[8] gamma) => (float[N,M,8] y) {{ s = Add(x, b)  {NORM} }}"
  run_same(original, *PASSES, into="FusedLayerNorm")


def test_a_constant_scalar_becomes_a_number():
  check(graph(f"half = float {{0.5}}  s = Mul(half, x)  {NORM}"), "FusedLayerNorm", ["s = Mul(0.5, x)", *TAIL])


def test_a_constant_that_adds_a_dimension_stays_an_input():
  original = f"""(float[M,8] x, float[8] gamma) => (float[1,M,8] y)
    <float[1,1,1] half = {{0.5}}> {{ s = Mul(half, x)  {NORM} }}"""
  optimized, _ = run_same(original, *PASSES, into="FusedLayerNorm")
  assert list(optimized.graph.node[0].input) == ["half", "x", "gamma"]


def test_an_overridable_scalar_stays_an_input():
  original = f"""(float[N,M,8] x, float[8] gamma, float half) => (float[N,M,8] y)
    <float half = {{0.5}}> {{ s = Mul(half, x)  {NORM} }}"""
  optimized, _ = run_same(original, *PASSES)
  assert list(optimized.graph.node[0].input) == ["half", "x", "gamma"]
  assert [each.name for each in optimized.graph.initializer] == ["half"]


def test_an_operand_used_twice():
  check(
    graph(f"g = Sigmoid(x)  s = Mul(x, g)  {NORM}"),
    "FusedLayerNorm",
    ["sigmoid = Sigmoid(x)", "s = Mul(x, sigmoid)", *TAIL],
  )
  check(graph(f"s = Add(x, x)  {NORM}"), "FusedLayerNorm", ["s = Add(x, x)", *TAIL])


def test_conditions():
  original = f"""(float[N,M,8] x, bool[N,M,1] mask, float[8] gamma) => (float[N,M,8] y) {{
    zero = float {{0.0}}  not = Not(mask)  s = Where(not, zero, x)  {NORM} }}"""
  optimized, _ = run_same(original, *PASSES)
  assert operators(optimized) == ["Not", "FusedLayerNorm"]  # the small mask is inverted once
  assert lines(programs(optimized)[0]) == ["s = Where(operand, 0, x)", *TAIL]


LIMITS = "limit = Where(any, low, high)  lowest = Neg(limit)  t = Max(x, lowest)  s = Min(t, limit)"


@parametrize("shape", ["", "[1]", "[1,1,1]"])
def test_limits_of_one_element(shape):
  """As T5 clamps a value, by whether any of its elements is infinite."""
  original = graph(f"{LIMITS}  {NORM}", f", bool{shape} any, float{shape} low, float high")
  _, result = run_same(original, *PASSES, into="FusedLayerNorm", program=[
    "where = Where(operand, operand2, operand3)", "neg = Neg(where)", "max = Max(x, neg)", "s = Min(max, where)",
      *TAIL])  # fmt: skip
  assert result.near_misses == ()


@parametrize("reader", ["Neg", "Identity"])
def test_an_element_that_something_else_reads_is_computed_once(reader):
  text = graph(f"{LIMITS}  {NORM}  z = {reader}(limit)", ", bool any, float low, float high", ", float z")
  run_same(text, *PASSES, into=f"Where FusedLayerNorm {reader}")


@parametrize("shape", ["[M,1]", "[8]", "[K]"])
def test_more_than_one_element_is_computed_once(shape):
  limits = f", bool{shape} any, float{shape} low, float high"
  run_same(graph(f"{LIMITS}  {NORM}", limits), *PASSES, K=8, into="Where Neg FusedLayerNorm")


def test_two_norms_of_one_sum():
  """Parallel attention: the first norm makes the sum, the second reads it."""
  original = graph(f"s = Add(x, r)  {NORM}  z = LayerNormalization(s, b)", outputs=", float[N,M,8] z")
  optimized, _ = run_same(original, *PASSES, into="FusedLayerNorm FusedLayerNorm")
  assert list(optimized.graph.node[0].output) == ["y", "s"]
  assert list(optimized.graph.node[1].input) == ["s", "b"]


# What must not fuse.


def unchanged_prologue(text, *fragments, **options):
  fused, _ = run_pass(model(text, **options), FUSE_LAYER_NORM)
  stays(fused, NORM_PROLOGUE, *fragments)


def test_a_cycle_stays():
  """gamma is computed from the sum: as one node it would read its own output."""
  unchanged_prologue(
    graph("s = Add(x, r)  total = ReduceSum<keepdims=0>(s)  g = Mul(gamma, total)  y = LayerNormalization(s, g)"),
    "'s' is also used by 'total' (ReduceSum), and 'g', which the norm also reads, depends on it",
  )


def test_a_cycle_through_a_body_stays():
  branches = """g = If(c) <then () => (float[8] t) { i = int64 {0}
           row = Gather(s, i)  t = Gather(row, i) },
      otherwise () => (float[8] e) { e = Neg(gamma) }>"""
  unchanged_prologue(
    graph(f"s = Add(x, r)  {branches}  y = LayerNormalization(s, g)", ", bool c"),
    "'g', which the norm also reads, depends on it",
  )


def test_a_smaller_value_is_computed_once():
  check(graph(f"c = Tanh(b)  s = Add(x, c)  {NORM}"), "Tanh FusedLayerNorm", ["s = Add(x, bias)", *TAIL])


def test_integers_stay():
  unchanged_prologue(
    f"(int64[N,M,8] i, float[8] gamma) => (float[N,M,8] y) {{ s = Cast<to=1>(i)  {NORM} }}",
    "'i' is int64; programs know float16, bfloat16, float, double, bool",
  )


@parametrize("nodes", ["axis = int64 {1}  s = CumSum(x, axis)", "s = Softmax(x)", "s = RandomNormalLike(x)"])
def test_operators_outside_the_language_stay(nodes):
  unchanged_prologue(graph(f"{nodes}  {NORM}"))


def test_a_kept_value_of_unknown_shape_stays():
  """Its length could be 1 where the norm's is not, so it may not be an output of the norm."""
  text = """(float[N,M,8] x, float[A,B,8] r, float[8] gamma) => (float[any,rows,8] y, float[A,B,8] t) {
    t = Neg(r)  s = Add(x, t)  y = LayerNormalization(s, gamma) }"""
  fused, _ = run_pass(text, FUSE_LAYER_NORM)
  _, result = run_pass(fused, NORM_PROLOGUE, into="Neg FusedLayerNorm")
  assert any(
    "'t' is a graph output, and its shape [A, B, 8] is not surely that of the norm" in r for r in reasons(result)
  )


def test_an_operand_of_unknown_rank_stays():
  """The norm's value_info tells its rank, but ONNX Runtime infers that of a fused node from what it adds up."""
  _, result = run_pass(model("""(float[2,3,8] x, float[8] gamma) => (float[2,3,8] y) <float[2,3,8] s> {
    unheard = com.microsoft.Unheard(x)  r = Cast<to=1>(unheard)
    s = Add(x, r)  y = LayerNormalization(s, gamma) }""", contrib=True), *PASSES,
    into="Unheard Cast Add FusedLayerNorm")  # fmt: skip
  assert any("s' (Add): the rank of 'r' is unknown" in reason for reason in reasons(result))


def test_too_many_parameters_stay():
  names = [f"r{i}" for i in range(40)]
  inputs = ", ".join(f"float[N,M,8] {name}" for name in names)
  sums = "  ".join(f"s{i + 1} = Add(s{i}, r{i + 1})" for i in range(39))
  optimized, result = run_same(
    f"({inputs}, float[8] gamma) => (float[N,M,8] y) {{ s0 = Neg(r0)  {sums} y = LayerNormalization(s39, gamma) }}",
    *PASSES,
  )
  assert operators(optimized).count("Add") == 9
  assert len(optimized.graph.node[-1].input) == 32
  assert any("33 parameters; the limit is 32" in reason for reason in reasons(result))
