import numpy as np
import onnx
from pass_helpers import (
  lines,
  model,
  operators,
  parametrize,
  programs,
  run_pass,
  run_same,
  same_outputs,
  stays,
  value_infos,
)

from ortplugin.graph import import_model
from ortplugin.optimizer import optimize
from ortplugin.optimizer.pipeline import FUSE_LAYER_NORM, FUSE_RMS_NORM

EPSILON = "epsilon = float {1e-5}"
TWO = "two = float {2.0}"
ONE = "one = float {1.0}"
HALF = "half = float {0.5}"
MEAN = "mean = ReduceMean<axes=[-1]>(x)  d = Sub(x, mean)"
VARIANCE = "square = Mul(d, d)  variance = ReduceMean<axes=[-1]>(square)"
ROOT = "shifted = Add(variance, epsilon)  root = Sqrt(shifted)"


def graph(*nodes, dtype="float", result=""):
  return f"({dtype}[N,M,8] x) => ({result or dtype}[N,M,8] y) {{ {' '.join(nodes)} }}"


POW = VARIANCE.replace("Mul(d, d)", "Pow(d, two)")
DIV = "y = Div(d, root)"


def form(*more, opset=17, epsilon=EPSILON, mean=MEAN, variance=VARIANCE, root=ROOT, y=DIV):
  """The opset and the nodes of a normalisation of which some are written in another way, and `more` before them."""
  return opset, [epsilon, *more, mean, variance, root, y]


FORMS = {
  "Mul, Sqrt, Div": form(),
  "keepdims spelled out": form(mean=MEAN.replace("[-1]", "[-1], keepdims=1")),
  "Pow": form(TWO, variance=POW),
  "Pow with an integer": form("two = int64 {2}", variance=POW),
  "Pow with a tensor of one": form("two = float[1] {2.0}", variance=POW),
  "two Subs, as TorchScript writes": form(TWO, opset=14, variance=f"d2 = Sub(x, mean)  {POW.replace('d,', 'd2,')}"),
  "two means": form(
    TWO, opset=14, variance=f"mean2 = ReduceMean<axes=[-1]>(x)  d2 = Sub(x, mean2)  {POW.replace('d,', 'd2,')}"
  ),
  "Reciprocal": form(y="inverse = Reciprocal(root)  y = Mul(d, inverse)"),
  "Reciprocal, swapped": form(y="inverse = Reciprocal(root)  y = Mul(inverse, d)"),
  "1 / root": form(ONE, y="inverse = Div(one, root)  y = Mul(d, inverse)"),
  "Pow one half": form(HALF, root="shifted = Add(variance, epsilon)  root = Pow(shifted, half)"),
  "Pow minus one half": form(
    "power = float {-0.5}",
    root="shifted = Add(variance, epsilon)  inverse = Pow(shifted, power)",
    y="y = Mul(d, inverse)",
  ),
  "epsilon first": form(root="shifted = Add(epsilon, variance)  root = Sqrt(shifted)"),
  "epsilon of shape [1]": form(epsilon="epsilon = float[1] {1e-5}"),
  "epsilon as value_float": form(epsilon="epsilon = Constant<value_float=1e-5>()"),
  "axes as inputs": form(
    "axes = {-1}",
    opset=18,
    mean="mean = ReduceMean(x, axes)  d = Sub(x, mean)",
    variance="square = Mul(d, d)  variance = ReduceMean(square, axes)",
  ),
  "axis from the front": form(mean=MEAN.replace("-1", "2")),
}


@parametrize("form", FORMS)
def test_every_form_becomes_one_node(form):
  opset, nodes = FORMS[form]
  optimized, result = run_same(
    model(graph(*nodes), opset),
    FUSE_LAYER_NORM,
    into="FusedLayerNorm",
    program=["y = LayerNormalization(x)"],
    changes=1,
  )
  assert result.near_misses == ()
  assert [(each.domain, each.version) for each in optimized.opset_import] == [("", opset), ("ortplugin", 1)]


@parametrize(
  "axes, others, first", [("<axes=[1,2]>", "<axes=[-1,-2]>", -2), ("", "", -3)], ids=["several trailing", "all"]
)
def test_axes(axes, others, first):
  _, nodes = form(mean=MEAN.replace("<axes=[-1]>", axes), variance=VARIANCE.replace("<axes=[-1]>", others))
  run_same(graph(*nodes), FUSE_LAYER_NORM, program=[f"y = LayerNormalization<axis={first}>(x)"])


def test_a_cast_to_double_inside():
  """What TorchScript makes of an fp16 model: x - mean in fp16, the rest in double."""
  run_same(graph(
    "epsilon = double {1e-12}  two = double {2.0}", MEAN,
    "wide = Cast<to=11>(d)  square = Pow(wide, two)  variance = ReduceMean<axes=[-1]>(square)", ROOT,
      "y = Div(wide, root)", dtype="float16", result="double"), FUSE_LAYER_NORM, precision="float16",
    program=[
    "s = Cast<to=float>(x)",
    "n = LayerNormalization<epsilon=1e-12>(s)",
    "y = Cast<to=double>(n)",
  ])  # fmt: skip


def test_a_cast_of_the_variance_only():
  run_same(graph(
    EPSILON, MEAN, "wide = Cast<to=1>(d)  square = Mul(wide, wide)  variance = ReduceMean<axes=[-1]>(square)",
      ROOT, "narrow = Cast<to=10>(root)  y = Div(d, narrow)", dtype="float16"), FUSE_LAYER_NORM,
    program=["y = LayerNormalization(x)"])  # fmt: skip


OPERATOR = "(float[N,M,8] x, float[8] gamma, beta) => (float[N,M,8] y) "
WITHOUT_ATTRIBUTES = OPERATOR + "{ y = LayerNormalization(x, gamma, beta) }"


def test_the_operator():
  original = OPERATOR + "{ y = LayerNormalization<epsilon=1e-6>(x, gamma, beta) }"
  optimized, result = run_same(original, FUSE_LAYER_NORM, into="FusedLayerNorm")
  assert programs(optimized) == [
    "(float x, float gamma, float beta) => (float y) {\n"
    "  n = LayerNormalization<epsilon=1e-06>(x)\n"
    "  mul = Mul(n, gamma)\n"
    "  y = Add(mul, beta)\n"
    "}"
  ]
  assert [(each.nodes, each.result) for each in result.changes] == [
    (("'y' (LayerNormalization)",), "'y' (FusedLayerNorm)")
  ]


def test_the_operator_without_bias_and_with_empty_outputs():
  run_same(
    'g (float[N,M,8] x, float[4,8] gamma) => (float[N,M,8] y) { y, "", "" = '
    "LayerNormalization<axis=1>(x, gamma, ) }".replace("M", "4"),
    FUSE_LAYER_NORM,
    program=["n = LayerNormalization<axis=-2>(x)", "y = Mul(n, gamma)"],
  )


@parametrize("dtype", ["float16", "double", "bfloat16"])
def test_other_dtypes(dtype):
  run = run_pass if dtype == "bfloat16" else run_same
  optimized, _ = run(WITHOUT_ATTRIBUTES.replace("float", dtype), FUSE_LAYER_NORM)
  assert programs(optimized)[0].startswith(f"({dtype} x, {dtype} gamma, {dtype} beta) => ({dtype} y)")


SKIP = "(float[2,3,8] x, skip, float[8] gamma, beta, bias) => (float[2,3,8] y{}) "


def test_skip_layer_normalization():
  original = model(
    SKIP.format(", float[2,3,8] sum")
    + '{ y, "", "", sum = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(x, skip, gamma, beta, bias) }',
    contrib=True,
  )
  optimized, _ = run_same(original, FUSE_LAYER_NORM, into="FusedLayerNorm")
  assert programs(optimized) == [
    "(float x, float residual, float bias, float gamma, float beta) => (float y, float s) {\n"
    "  add = Add(x, residual)\n"
    "  s = Add(add, bias)\n"
    "  n = LayerNormalization(s)\n"
    "  mul = Mul(n, gamma)\n"
    "  y = Add(mul, beta)\n"
    "}"
  ]


def test_skip_layer_normalization_without_beta_has_its_own_epsilon():
  original = model(
    SKIP.format("").replace(", beta, bias", "") + "{ y = com.microsoft.SkipLayerNormalization(x, skip, gamma) }",
    contrib=True,
  )
  optimized, _ = run_same(original, FUSE_LAYER_NORM)
  assert lines(programs(optimized)[0])[1:] == ["n = LayerNormalization<epsilon=1e-12>(s)", "y = Mul(n, gamma)"]


def test_inside_a_branch():
  original = model(
    f"""(bool c, float[N,M,8] x) => (y) {{
            y = If(c) <then () => (float[N,M,8] z) {{ {INTERIOR.replace("y =", "z =")} }},
                        otherwise () => (float[N,M,8] w) {{ w = Neg(x) }}>
        }}"""
  )
  optimized, _ = run_pass(original, FUSE_LAYER_NORM, changes=1)
  assert operators(optimized.graph.node[0].attribute[0].g) == ["FusedLayerNorm"]
  for value in (True, False):
    generator = np.random.default_rng(value)
    same_outputs(original, optimized, rng=generator)


def test_the_limit_stops_after_so_many():
  original = (
    OPERATOR
    + """{
    a = LayerNormalization(x, gamma, beta)  b = Sin(a)  c = LayerNormalization(b, gamma, beta)
    d = Sin(c)  y = LayerNormalization(d, gamma, beta) }"""
  )
  for limit in range(4):
    optimized, _ = run_same(original, FUSE_LAYER_NORM, limit=limit, changes=limit)
    kinds = [op for op in operators(optimized) if op != "Sin"]
    assert kinds == ["FusedLayerNorm"] * limit + ["LayerNormalization"] * (3 - limit)


# What must not fuse.

NEAR_MISSES = {
  "the axes [3] of 'mean' (ReduceMean) are none of 'x' of shape": form(
    mean=MEAN.replace("-1", "3"), variance=VARIANCE.replace("-1", "3")
  ),
  "has keepdims=0; it must be 1": form(
    variance="""square = Mul(d, d)  variance = ReduceMean<axes=[-1], keepdims=0>(square)
      axis = {-1}  column = Unsqueeze(variance, axis)""",
    root=f"{ROOT}  squeezed = Unsqueeze(root, axis)",
  ),
  "the means are over different axes": form(variance=VARIANCE.replace("-1", "-2, -1")),
  "has no axes, and noop_with_empty_axes=1": form(
    opset=18,
    mean=MEAN.replace("axes=[-1]", "noop_with_empty_axes=1"),
    variance=VARIANCE.replace("axes=[-1]", "noop_with_empty_axes=1"),
  ),
  "epsilon, 'epsilon', is no constant scalar": form(epsilon="epsilon = ReduceMax<keepdims=0>(x)"),
  "epsilon, 'epsilon', has 4 dimensions, more than the 3 of 'x'": form(
    epsilon="epsilon = float[1,1,1,1] {1e-5}", y="z = Div(d, root)  axis = {0}  y = Squeeze(z, axis)"
  ),
  "epsilon is -": form(epsilon="epsilon = float {-1e-5}"),
  # Casts through an integer dtype or a narrower floating one are no part of a normalisation.
  "loses precision, going through float16": form(
    variance="""narrow = Cast<to=10>(d)  square = Mul(narrow, narrow)
      mean_square = ReduceMean<axes=[-1]>(square)  variance = Cast<to=1>(mean_square)"""
  ),
}


@parametrize("reason", NEAR_MISSES)
def test_near_misses_say_why(reason):
  opset, nodes = NEAR_MISSES[reason]
  stays(model(graph(*nodes), opset), FUSE_LAYER_NORM, reason)


@parametrize("nodes", {
  "a square that is none": form("two = float {3.0}", variance=POW), "another value divided": form(y="y = Div(x, root)"),
  "the root divided": form(y="y = Div(root, d)"),
  "a mean of something else": form("other = Neg(x)", mean=MEAN.replace("(x)", "(other)")),
}.values())  # fmt: skip
def test_what_does_not_match(nodes):
  stays(graph(*nodes[1]), FUSE_LAYER_NORM)


def test_integers_do_not_match():
  original = """(int32[N,M,8] x) => (y) {
    epsilon = int32 {1}
    mean = ReduceMean<axes=[-1]>(x)  d = Sub(x, mean)  square = Mul(d, d)
    variance = ReduceMean<axes=[-1]>(square)  shifted = Add(variance, epsilon)
    wide = Cast<to=1>(shifted)  root = Sqrt(wide)  narrow = Cast<to=6>(root)  y = Div(d, narrow) }"""
  stays(original, FUSE_LAYER_NORM)


INTERIOR = " ".join(form()[1])


@parametrize("name", ["mean", "d", "square", "variance", "shifted", "root"])
def test_an_intermediate_that_is_read_elsewhere_stays(name):
  width = 8 if name in ("d", "square") else 1
  text = f"(float[N,M,8] x) => (y, float[N,M,{width}] {name}) {{ {INTERIOR} }}"
  stays(text, FUSE_LAYER_NORM, f"'{name}' is a graph output")
  text = f"(float[N,M,8] x) => (y, float[N,M,any] z) {{ {INTERIOR} z = Neg({name}) }}"
  stays(text, FUSE_LAYER_NORM, f"'{name}' is also used by 'z' (Neg)")


def test_an_intermediate_that_a_body_captures_stays():
  text = f"""(bool c, float[N,M,8] x) => (y, z) {{ {INTERIOR}
      z = If(c) <then () => (float[N,M,8] t) {{ t = Neg(d) }},
                  otherwise () => (float[N,M,8] e) {{ e = Neg(x) }}> }}"""
  stays(text, FUSE_LAYER_NORM, "'d' is also used inside a body, by 't' (Neg)")


def test_an_overridable_epsilon_stays():
  fixed = model(f"(float[N,M,8] x) => (y) <float epsilon = {{1e-5}}> {{ {INTERIOR.removeprefix(EPSILON)} }}")
  assert len(run_pass(fixed, FUSE_LAYER_NORM)[1].changes) == 1
  overridable = onnx.ModelProto()
  overridable.CopyFrom(fixed)
  overridable.graph.input.extend(value_infos("float epsilon"))
  stays(overridable, FUSE_LAYER_NORM, "epsilon, 'epsilon', is no constant scalar")


def test_the_normalised_value_may_be_an_output_and_the_input_too():
  run_same(f"(float[N,M,8] x) => (y, x) {{ {INTERIOR} }}", FUSE_LAYER_NORM, into="FusedLayerNorm")


def test_nodes_named_unlike_their_outputs():
  original = model(graph(INTERIOR))
  for index, node in enumerate(original.graph.node):
    node.name = ["mean", "y", "x", "root", "d", "square", "variance"][index % 7]  # names of other values
  run_same(original, FUSE_LAYER_NORM, into="FusedLayerNorm")


def test_unknown_dtype_stays():
  original = model("(float[N,M,8] u) => (y) { x = com.microsoft.Unheard(u) " + INTERIOR + " }", contrib=True)
  stays(original, FUSE_LAYER_NORM, "the dtype of 'x' is unknown")


UNKNOWN_RANK = "the rank of 'x' is unknown; fix the shapes of the model's inputs with --input-shape"


@parametrize(
  "nodes",
  [
    "y = LayerNormalization(x, gamma)",
    "y = LayerNormalization<axis=2>(x, gamma)",
    "y = com.microsoft.SkipLayerNormalization(x, u, gamma)",
    "y = com.microsoft.SkipLayerNormalization(u, x, gamma)",
    INTERIOR,
  ],
)
def test_a_value_of_unknown_rank_stays(nodes):
  """ONNX Runtime would infer a wrong rank for the fused node's output."""
  original = model(f"""(float[2,3,8] u, float[8] gamma) => (float[2,3,8] y) {{
    unheard = com.microsoft.Unheard(u)  x = Cast<to=1>(unheard)  {nodes} }}""", contrib=True)  # fmt: skip
  stays(original, FUSE_LAYER_NORM, UNKNOWN_RANK)


def test_a_fixed_input_shape_tells_the_rank():
  original = model("""(float[2,3,8] u, float[N] v, float[8] gamma) => (float[2,3,8] y) {
    zero = {0}  end = Shape(v)  whole = Shape(u)
    shape = Slice(whole, zero, end)  x = Reshape(u, shape)  y = LayerNormalization(x, gamma) }""")
  optimized, report = optimize(original)
  assert "LayerNormalization" in operators(optimized)
  assert UNKNOWN_RANK in [miss.reason for miss in report.near_misses]
  optimized, _ = optimize(original, input_shapes={"v": (3,)})
  assert operators(optimized) == ["FusedLayerNorm"]
  same_outputs(original, optimized)


def test_an_axis_beyond_the_rank_stays():
  original = model("""(float[3,8] x, float[8] gamma) => (float[3,8] y)
    { y = LayerNormalization<axis=-3>(x, gamma) }""")
  (miss,) = FUSE_LAYER_NORM(import_model(original)).near_misses
  assert miss.reason == "the axis -3 is out of range for 'x' of shape [3, 8]"


def test_a_zero_size_dimension():
  run_same(WITHOUT_ATTRIBUTES, FUSE_LAYER_NORM, N=0)


@parametrize("op, fuse", [("", FUSE_LAYER_NORM), ("Simplified", FUSE_RMS_NORM)])
@parametrize(
  "x, residual, reason",
  [
    ("1,3,8", "2,3,8", "residual, 'skip', of shape [2, 3, 8] does not broadcast to [1, 3, 8]"),
    (
      "N,3,8",
      "2,3,8",
      "residual, 'skip', of shape [2, 3, 8] may be longer than 'x' of shape [N, 3, 8]; fix the "
      "shapes of the model's inputs with --input-shape",
    ),
    ("N,3,8", "M,3,8", ""),
    ("N,3,8", "N,3,8", ""),
    ("N,3,8", "1,3,8", ""),
    ("N,3,8", "3,8", ""),
  ],
)
def test_a_residual_that_may_be_longer_stays(op, fuse, x, residual, reason):
  """ONNX Runtime adds the beginning of it; a sum would broadcast x."""
  original = model(
    f"(float[{x}] x, float[{residual}] skip, float[8] gamma) => (float[a,b,c] y) "
    f"{{ y = com.microsoft.Skip{op}LayerNormalization(x, skip, gamma) }}",
    contrib=True,
  )
  if reason:
    stays(original, [fuse], reason)
    return
  run_same(original, fuse, N=2, M=2, into="FusedLayerNorm")


def test_the_statistics_wanted_too_stay():
  original = (
    "(float[N,M,8] x, float[8] gamma) => (float[N,M,8] y, float[N,M,1] mean) { y, mean = LayerNormalization(x, gamma) }"
  )
  stays(original, FUSE_LAYER_NORM, "the statistics are wanted too: 'mean' is a graph output")


def test_another_stash_type_stays():
  original = OPERATOR + "{ y = LayerNormalization<stash_type=16>(x, gamma, beta) }"
  stays(original, FUSE_LAYER_NORM, "stash_type is 16; only 1, float32, is known")


@parametrize("shape", ["[7]", "[2,1,1,8]", "[3,8]"])
def test_gamma_of_the_wrong_shape_stays(shape):  # ORT 25855
  text = f"(float[2,4,8] x, float{shape} gamma) => (float[2,4,8] y) {{ y = LayerNormalization(x, gamma) }}"
  stays(text, FUSE_LAYER_NORM, "gamma, 'gamma', of shape", "does not broadcast to [2, 4, 8]")


def test_a_local_function_of_that_name_stays():
  other_domain = model(OPERATOR + "{ y = custom.LayerNormalization(x, gamma, beta) }")
  other_domain.opset_import.add(domain="custom", version=1)
  stays(other_domain, FUSE_LAYER_NORM)
  shadowing = model(WITHOUT_ATTRIBUTES)
  function = onnx.parser.parse_function(
    '<domain: "", opset_import: ["" : 17]> LayerNormalization (x, g, b) => (y) { y = Identity(x) }'
  )
  shadowing.functions.append(function)
  assert not FUSE_LAYER_NORM(import_model(shadowing)).changes


def test_an_old_opset_stays():
  """What is fused must have a decomposition to go back to."""
  stays(model(graph(INTERIOR), 10, ir=5), FUSE_LAYER_NORM, "the model has opset 10, and the fused operator")


def test_the_operator_that_onnx_runtime_has_before_opset_17():
  """Its own optimizer writes it into older models, where onnx does not know it."""
  original = model(OPERATOR + "{ z = Sin(x)  n = LayerNormalization(z, gamma, beta)  y = Neg(n) }", 14)
  run_same(original, FUSE_LAYER_NORM, into="Sin FusedLayerNorm Neg")


def test_a_weight_tells_the_dtype_of_what_nothing_else_does():
  """So that only the rank is in the way."""
  original = model(
    SKIP.format("")
    + "{ u = com.microsoft.Unheard(x)  y = com.microsoft.SkipLayerNormalization(u, skip, gamma, beta, bias) }",
    contrib=True,
  )
  stays(original, FUSE_LAYER_NORM, "the rank of 'u' is unknown")
