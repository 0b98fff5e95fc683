from pass_helpers import (
  annotated,
  lines,
  model,
  operators,
  parametrize,
  programs,
  run_pass,
  run_same,
  same_outputs,
  stays,
)

from ortplugin.graph.export import export_model
from ortplugin.optimizer.pipeline import FUSE_LAYER_NORM, FUSE_RMS_NORM

EPSILON = "epsilon = float {1e-6}"
TWO = "two = float {2.0}"
SQUARE = "square = Pow(x, two)  mean = ReduceMean<axes=[-1]>(square)"
WIDE = "wide = Cast<to=1>(x)  square = Pow(wide, two)  mean = ReduceMean<axes=[-1]>(square)"
ROOT = "shifted = Add(mean, epsilon)  root = Sqrt(shifted)"
START = f"{EPSILON} {TWO} {SQUARE} {ROOT}"
IN_FLOAT = START.replace(SQUARE, WIDE)


def graph(*nodes, dtype="float", result=""):
  return f"({dtype}[N,M,8] x) => ({result or dtype}[N,M,8] y) {{ {' '.join(nodes)} }}"


FORMS = {
  "Div": (17, [START, "y = Div(x, root)"]),
  "Mul for the square": (17, [EPSILON, "square = Mul(x, x)  mean = ReduceMean<axes=[-1]>(square)", ROOT,
      "y = Div(x, root)"]),
  "Reciprocal": (17, [START, "inverse = Reciprocal(root)  y = Mul(x, inverse)"]),
  "Reciprocal, swapped": (17, [START, "inverse = Reciprocal(root)  y = Mul(inverse, x)"]),
  "1 / root, as TorchScript writes rsqrt": (14, [START,
      "one = float {1.0}  inverse = Div(one, root)  y = Mul(x, inverse)"]),
  "Pow minus one half": (17, [EPSILON, TWO, "power = float {-0.5}", SQUARE,
      "shifted = Add(epsilon, mean)  inverse = Pow(shifted, power)  y = Mul(x, inverse)"]),
  "axes as an input": (18, [EPSILON, TWO, "axes = {-1}",
      "square = Pow(x, two)  mean = ReduceMean<keepdims=1, noop_with_empty_axes=0>(square, axes)", ROOT,
      "y = Div(x, root)"]),
}  # fmt: skip


@parametrize("form", FORMS)
def test_every_form_becomes_one_node(form):
  opset, nodes = FORMS[form]
  _, result = run_same(
    model(graph(*nodes), opset),
    FUSE_LAYER_NORM,
    FUSE_RMS_NORM,
    into="FusedLayerNorm",
    program=["y = RMSNormalization<epsilon=1e-06>(x)"],
    changes=1,
  )
  assert result.near_misses == ()


def test_without_epsilon():
  nodes = "square = Mul(x, x)  mean = ReduceMean<axes=[-1]>(square)  root = Sqrt(mean)  y = Div(x, root)"
  run_same(graph(nodes), FUSE_RMS_NORM, into="FusedLayerNorm", program=["y = RMSNormalization<epsilon=0>(x)"])


def test_in_float_between_casts():
  """Llama in fp16: the outer Casts stay, to be drawn in later."""
  nodes = f"{IN_FLOAT} inverse = Reciprocal(root)  n = Mul(wide, inverse)  y = Cast<to=10>(n)"
  run_same(graph(nodes, dtype="float16"), FUSE_RMS_NORM, into="Cast FusedLayerNorm Cast")


def test_a_cast_in_each_branch():
  """The square is of one Cast, what is scaled of another, as before common subexpressions are merged."""
  nodes = f"{IN_FLOAT} inverse = Reciprocal(root)  again = Cast<to=1>(x)  y = Mul(again, inverse)"
  program = ["s = Cast<to=float>(x)", "y = RMSNormalization<epsilon=1e-06>(s)"]
  run_same(graph(nodes, dtype="float16", result="float"), FUSE_RMS_NORM, into="FusedLayerNorm", program=program)


def test_only_the_statistics_in_float():
  """T5 in fp16: x stays fp16, its mean square is computed in fp32 and cast back."""
  nodes = f"{IN_FLOAT} inverse = Reciprocal(root)  narrow = Cast<to=10>(inverse)  y = Mul(x, narrow)"
  program = ["y = RMSNormalization<epsilon=1e-06>(x)"]
  run_same(graph(nodes, dtype="float16"), FUSE_RMS_NORM, into="FusedLayerNorm", program=program)


def test_the_cast_value_used_elsewhere():
  """Where the Cast has to stay, the norm reads what it makes."""
  original = f"(float16[N,M,8] x) => (float[N,M,8] y, z) {{ {IN_FLOAT} y = Div(wide, root)  z = Sin(wide) }}"
  _, result = run_same(original, FUSE_RMS_NORM, into="Cast FusedLayerNorm Sin")
  assert result.near_misses == ()


@parametrize("epsilon, fused", [("1e-6", False), ("0.001953125", True)])  # a float32 number or not
def test_epsilon_in_double(epsilon, fused):
  original = model(graph(START.replace("1e-6", epsilon), "y = Div(x, root)").replace("float", "double"))
  _, result = run_same(original, FUSE_RMS_NORM, into=["FusedLayerNorm"] if fused else operators(original))
  assert fused or "epsilon, 1e-06, is no float32 number" in result.near_misses[0].reason


@parametrize("dtype", ["float", "float16", "double"])
def test_the_operator_of_opset_23(dtype):
  run_pass(model(f"({dtype}[N,M,8] x, {dtype}[8] scale) => ({dtype}[N,M,8] y) "
                   "{ y = RMSNormalization<epsilon=1e-6>(x, scale) }", opset=23, ir=10), FUSE_RMS_NORM,
    into="FusedLayerNorm", program=["n = RMSNormalization<epsilon=1e-06>(x)", "y = Mul(n, gamma)"])  # fmt: skip


def test_the_operator_of_opset_23_in_onnx_runtime():
  run_same(
    model("(float[N,M,8] x, float[8] scale) => (float[N,M,8] y) { y = RMSNormalization(x, scale) }", opset=23, ir=10),
    FUSE_RMS_NORM,
  )


def test_simplified_layer_normalization_of_onnx_runtime():
  """ONNX Runtime has it in the domain ai.onnx; onnx itself does not know it."""
  original = model(
    "(float[2,3,8] x, float[8] scale) => (float[2,3,8] y) { y = SimplifiedLayerNormalization(x, scale) }"
  )
  graph_ = annotated(original)
  assert len(FUSE_RMS_NORM(graph_).changes) == 1
  optimized = export_model(graph_, original)
  assert lines(programs(optimized)[0]) == ["n = RMSNormalization(x)", "y = Mul(n, gamma)"]
  same_outputs(original, optimized)


def test_skip_simplified_layer_normalization():
  original = model(
    """(float[2,3,8] x, skip, float[8] gamma, bias) => (float[2,3,8] y, sum)
      { y, "", "", sum = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=1e-6>(x, skip, gamma, bias) }""",
    contrib=True,
  )
  optimized, _ = run_same(original, FUSE_RMS_NORM)
  assert programs(optimized) == [
    "(float x, float residual, float bias, float gamma) => (float y, float s) {\n"
    "  add = Add(x, residual)\n"
    "  s = Add(add, bias)\n"
    "  n = RMSNormalization<epsilon=1e-06>(s)\n"
    "  y = Mul(n, gamma)\n"
    "}"
  ]


def test_a_value_added_to_itself():
  original = model(
    "(float[2,3,8] x, float[8] gamma) => (float[2,3,8] y) "
    "{ y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=1e-6>(x, x, gamma) }",
    contrib=True,
  )
  optimized, _ = run_same(original, FUSE_RMS_NORM)
  assert list(optimized.graph.node[0].input) == ["x", "gamma"]
  assert lines(programs(optimized)[0])[0] == "s = Add(x, x)"


# What must not fuse.


@parametrize(
  "nodes",
  [
    "y = com.microsoft.SkipSimplifiedLayerNormalization(u, x, gamma)",
    f"{START} y = Div(x, root)",
  ],
)
def test_a_value_of_unknown_rank_stays(nodes):
  original = model(f"""(float[2,3,8] u, float[8] gamma) => (float[2,3,8] y) {{
    unheard = com.microsoft.Unheard(u)  x = Cast<to=1>(unheard)  {nodes} }}""", contrib=True)  # fmt: skip
  reason = "the rank of 'x' is unknown; fix the shapes of the model's inputs with --input-shape"
  stays(original, FUSE_RMS_NORM, reason)


def test_the_mean_of_the_square_of_something_else_does_not_match():
  stays(graph("other = Neg(x)", START.replace("Pow(x", "Pow(other"), "y = Div(x, root)"), FUSE_RMS_NORM)


def test_a_sum_instead_of_a_mean_does_not_match():
  nodes = START.replace("ReduceMean<axes=[-1]>(square)", "ReduceSum(square, axes)")
  stays(graph("axes = {-1}", nodes, "y = Div(x, root)"), FUSE_RMS_NORM)


def test_other_axes():
  text = graph(START.replace("-1", "1"), "y = Div(x, root)")
  run_same(text, FUSE_RMS_NORM, into="FusedLayerNorm", program=['y = RMSNormalization<epsilon=1e-06, axes="1">(x)'])


def test_axes_that_are_no_constant_stay():
  text = f"""(float[N,M,8] x, int64[1] axes) => (float[N,M,8] y) {{ {EPSILON} {TWO}
    square = Pow(x, two)  mean = ReduceMean(square, axes)  {ROOT}  y = Div(x, root) }}"""
  stays(model(text, 18), FUSE_RMS_NORM, "the axes 'axes' of 'mean' (ReduceMean) are no constant")


def test_the_square_as_an_output_stays():
  text = f"(float[N,M,8] x) => (y, square) {{ {START} y = Div(x, root) }}"
  stays(text, FUSE_RMS_NORM, "'square' is a graph output, so 'square' (Pow) has to stay")


def test_skip_with_statistics_stays():
  original = model(
    """(float[2,3,8] x, float[8] gamma) => (float[2,3,8] y, float[2,3,1] inverse)
      { y, "", inverse = com.microsoft.SkipSimplifiedLayerNormalization(x, x, gamma) }""",
    contrib=True,
  )
  stays(original, FUSE_RMS_NORM, "the statistics are wanted too: 'inverse' is a graph output")
