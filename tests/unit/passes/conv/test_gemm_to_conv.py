from layout_helpers import constant, graph
from pass_helpers import lines, model, operators, parametrize, programs, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, FUSE_CONV, GEMM_TO_CONV

POOLED = "a = GlobalAveragePool(c)  f = Flatten(a)  "


def classifier(nodes, *constants, inputs="", out="[N,6]"):
  return model(graph(POOLED + nodes, ", ".join(constants), inputs, f"float{out} y"))


def before(original):
  return run_pass(original, FUSE_CONV, CHANNELS_LAST_ALWAYS)[0]


@parametrize(
  "nodes, constants",
  [
    ("y = Gemm(f, m)", [constant("m", 4, 6)]),
    ("y = Gemm<transB = 1>(f, m, b)", [constant("m", 6, 4), constant("b", 6)]),
    ("y = Gemm(f, m, b)", [constant("m", 4, 6), constant("b", 1, 6)]),
    ("y = Gemm(f, m, b)", [constant("m", 4, 6), "float b = {0.5}"]),
    ("y = MatMul(f, m)", [constant("m", 4, 6)]),
  ],
)
def test_forms(nodes, constants):
  original = classifier(nodes, *constants)
  optimized, _ = run_same(original, GEMM_TO_CONV, start=before(original), changes=1)
  assert [each for each in operators(optimized) if each != "Flatten"] == [
      "Transpose", "FusedConv", "FusedPool", "FusedConv", "Reshape"]  # fmt: skip


@parametrize(
  "activation, count",
  [
    ("h = HardSwish(g)", 2),
    ("k = Add(g, three)  l = Clip(k, zero, six)  o = Mul(g, l)  h = Div(o, six)", 5),
    ("k = Mul(g, b)  h = Relu(k)", 3),
  ],
)
def test_two_layers(activation, count):
  scalars = "float three = {3}, float zero = {0}, float six = {6}"
  original = classifier(
    f"g = Gemm(f, m, b)  {activation}  y = Gemm<transB = 1>(h, k2)",
    constant("m", 4, 6),
    constant("b", 6),
    constant("k2", 6, 6),
    scalars,
  )
  optimized = before(original)
  for _ in range(2):
    optimized, _ = run_pass(optimized, GEMM_TO_CONV, CONV_EPILOGUE)
  fused = [each for each in operators(optimized) if each not in ("Flatten", "Reshape")]
  assert fused == ["Transpose", "FusedConv", "FusedPool", "FusedConv", "FusedConv"]
  assert [len(lines(each)) for each in programs(optimized)] == [0, count, 0]
  same_outputs(original, optimized)


def test_an_operand_with_a_batch_ends_the_chain():
  """[N, 6] does not broadcast to [N, 1, 1, 6] as it does to [N, 6]."""
  original = classifier("g = Gemm(f, m)  y = Add(g, r)", constant("m", 4, 6), inputs=", float[N,6] r")
  optimized, _ = run_same(original, GEMM_TO_CONV, CONV_EPILOGUE, start=before(original))
  assert operators(optimized)[-1] == "Add"


@parametrize(
  "nodes, constants, inputs, fragment",
  [
    ("y = Gemm(f, m, r)", [constant("m", 4, 6)], ", float[N,6] r", "its bias 'r' is no constant"),
    ("y = Gemm(f, m, b)", [constant("m", 4, 6), constant("b", 6, 1)], "", "its bias 'b' is no constant"),
    ("y = Gemm<alpha=0.5>(f, m)", [constant("m", 4, 6)], "", "it has transA = 0, alpha = 0.5 and beta = 1"),
    ("y = MatMul(f, v)", [], ", float[4,6] v", "'v' is no constant of two dimensions"),
  ],
)
def test_near_misses(nodes, constants, inputs, fragment):
  stays(before(classifier(nodes, *constants, inputs=inputs)), GEMM_TO_CONV, fragment)


@parametrize(
  "text",
  [
    f"(float[N,4] x) => (float[N,6] y) <{constant('m', 4, 6)}> {{ y = MatMul(x, m) }}",
    f"(float[N,4,1,1] x) => (float[N,6] y) <{constant('m', 4, 6)}> {{ f = Flatten(x)  y = MatMul(f, m) }}",
    graph("f = Flatten(c)  y = MatMul(f, m)", "float[120,1] m = {" + ", ".join(["1"] * 120) + "}", out="float[N,1] y"),
  ],
)
def test_what_no_convolution_leads_to(text):
  stays(before(model(text)), GEMM_TO_CONV)


def test_a_product_of_no_columns_stays():
  stays(before(classifier("y = Gemm<transB = 1>(f, m)", "float[0,4] m = {}", out="[N,0]")), GEMM_TO_CONV)


def test_with_channels_first_nothing_changes():
  first, _ = run_pass(classifier("y = MatMul(f, m)", constant("m", 4, 6)), FUSE_CONV)
  stays(first, GEMM_TO_CONV)
