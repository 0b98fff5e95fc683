from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
from matmul_cases import BIAS_RELU, NORMS, check, made
from onnx.helper import make_node
from onnx_models import op_types, parametrize, parsed, raises, serialized

import ortplugin
from ortplugin import optimize
from ortplugin.check import judge
from ortplugin.check.inputs import without_weights
from ortplugin.graph import DOMAIN
from ortplugin.ops.layer_norm.whole import with_layer_normalization
from ortplugin.session import core
from ortplugin.standard import standard_on_cpu


def network(dtype="float32", op="Conv"):
  rng = np.random.default_rng(0)
  tensors = {
    "w": rng.standard_normal((8, 8, 3, 3)) / 8,
    "g": rng.standard_normal(9),
    "h": rng.standard_normal(9),
    "u": rng.standard_normal((1, 8, 9, 9)),
  }
  kind = {"float32": "float"}.get(dtype, dtype)
  return parsed(
    f"""({kind}[N,8,9,9] x) => ({kind}[N,8,8,8] y) <int64[1,1] i = {{1}}> {{
        a = ScatterND(x, i, u)  c = {op} <pads=[1,1,1,1]>(a, w)  r = Relu(c)
        n = LayerNormalization(r, g, h)  m = Mul(n, n)  y = MaxPool <kernel_shape=[2,2]>(m) }}""",
    18,
    10,
    weights={name: value.astype(dtype) for name, value in tensors.items()},
  )


def ours(model):
  proto = onnx.load_from_string(model) if isinstance(model, bytes) else model
  return {node.op_type for node in proto.graph.node if node.domain == DOMAIN}


def standard(model):
  """Its standard form, which there is."""
  made = standard_on_cpu(model.SerializeToString())
  assert made is not None
  return onnx.load_from_string(made)


def assert_same(original, *sources, x=(3, 8, 9, 9)):
  feeds = {"x": np.random.default_rng(1).standard_normal(x).astype(np.float32)}
  wanted, *found = (
    ortplugin.session(serialized(each) if isinstance(each, onnx.ModelProto) else each, ["cpu"]).run(None, feeds)[0]
    for each in (original, *sources)
  )
  for each in found:
    np.testing.assert_allclose(each, wanted, rtol=1e-4, atol=1e-5)


@parametrize("op", ["Conv", "ConvTranspose"])
def test_what_surrounds_a_convolution_in_float_is_standard(op, tmp_path):
  original = network(op=op)
  optimized, _ = optimize(original)
  assert {f"Fused{op}", "FusedLayerNorm", "UpdateSlice"} <= ours(optimized)
  assert ours(standard(optimized)) == {"UpdateSlice"}
  onnx.save(optimized, tmp_path / "m.onnx")
  assert standard_on_cpu(tmp_path / "m.onnx") is not None
  assert_same(original, optimized, tmp_path / "m.onnx")


@parametrize("kind", ["Average", "Max"])
def test_a_global_pool_of_known_size_has_a_window(kind):
  """In NHWC its standard form is a reduction, before which ONNX Runtime gives up its layout in blocks."""
  original = network()
  del original.graph.node[3:]
  original.graph.node.append(make_node(f"Global{kind}Pool", ["r"], ["y"]))
  original.graph.output[0].type.tensor_type.shape.ClearField("dim")
  optimized, _ = optimize(original)
  assert "FusedPool" in ours(optimized)
  types = op_types(standard(optimized))
  assert f"{kind}Pool" in types
  assert f"Reduce{kind.replace('Average', 'Mean')}" not in types
  assert_same(original, optimized)


BLOCK = """c = Conv <group=16, pads=[1,1,1,1]>(x, w, b)  t = Transpose <perm=[0,2,3,1]>(c)  {norm}
  p = MatMul(n, up)  q = Add(p, wide)  r = Relu(q)  z = MatMul(r, down)  v = Add(b, z)
  back = Transpose <perm=[0,3,1,2]>(v)  y = Add(x, back)"""
OLD_NORM = """m = ReduceMean <axes=[-1]>(t)  d = Sub(t, m)  two = float {2}  e = Pow(d, two)
  f = ReduceMean <axes=[-1]>(e)  g = float {1e-5}  h = Add(f, g)  i = Sqrt(h)  k = Div(d, i)  l = Mul(k, gamma)
  n = Add(l, beta)"""


@parametrize(
  "opset, norm", [(17, "n = LayerNormalization(t, gamma, beta)"), (14, OLD_NORM)], ids=["one", "written out"]
)
def test_between_norms_and_products_channels_stay_last(opset, norm):
  """A block as ConvNeXt's: as convolutions its products, and as sums its norm, were slower than the original."""
  rng = np.random.default_rng(0)
  shapes = {"w": (16, 1, 3, 3), "up": (16, 64), "wide": (64,), "down": (64, 16)}
  shapes |= dict.fromkeys(("b", "gamma", "beta"), (16,))
  weights = {name: (rng.standard_normal(shape) / 3).astype(np.float32) for name, shape in shapes.items()}
  text = f"(float[2,16,6,5] x) => (float[2,16,6,5] y) {{ {BLOCK.format(norm=norm)} }}"
  original = parsed(text, opset, weights=weights)
  optimized, _ = optimize(original, layout="nhwc")
  assert op_types(optimized).count("FusedConv") == 3
  types = op_types(standard(optimized))
  assert [types.count(each) for each in ("Conv", "MatMul", "LayerNormalization")] == [1, 2, 1]
  assert types.count("Add") == 3  # the convolution's bias is its own
  assert_same(original, optimized, x=(2, 16, 6, 5))


NORM = "(float x, float gamma, float beta) => (float y{result}) {{ n = LayerNormalization{how}(x) {rest} }}"
SCALED = "m = Mul(n, gamma) y = Add(m, beta)"


@parametrize(
  "form, is_one",
  [
    ({"rest": SCALED}, True),
    ({"rest": "m = Mul(gamma, n) y = Add(beta, m)", "how": "<epsilon=0.1>"}, True),
    ({"rest": SCALED, "how": "<axis=-2>"}, False),
    ({"rest": SCALED, "result": ", float m"}, False),
    ({"rest": "m = Mul(n, gamma) a = Add(m, beta) y = Mul(a, gamma)"}, False),
    ({"rest": "m = Mul(n, gamma) a = Add(m, beta) y = Mul(a, m)"}, False),
    ({"rest": "m = Mul(n, x) a = Add(m, beta) y = Add(a, gamma)"}, False),
  ],
)
def test_which_norms_are_one_operator(form, is_one):
  program = NORM.format(**{"how": "", "result": ""} | form)
  names = ["y", "m"][: 1 + ("result" in form)]
  node = make_node("FusedLayerNorm", ["x", "g", "b"], names, "norm", domain=DOMAIN, program=program)
  assert (with_layer_normalization(node, 17, {"g", "b"}) is not None) == is_one
  assert with_layer_normalization(node, 17, {"g"}) is None


def test_other_models_stay(tmp_path):
  optimized, _ = optimize(network())
  half, _ = optimize(network("float16"))
  assert "FusedConv" in ours(half)
  without = onnx.ModelProto()
  without.CopyFrom(optimized)
  for node in without.graph.node:
    if node.op_type == "FusedConv":
      node.op_type, node.domain = "Conv", ""
  learning = onnx.ModelProto()
  learning.CopyFrom(optimized)
  learning.graph.node.add(op_type="FusedConvGrad", domain=DOMAIN)
  for model in (network(), half, without, learning):
    assert standard_on_cpu(model.SerializeToString()) is None
  onnx.save(optimized, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
  assert standard_on_cpu(tmp_path / "m.onnx") is None
  assert ortplugin.session(tmp_path / "m.onnx", ["cpu"])
  for source in (b"no model", tmp_path / "missing.onnx"):
    assert standard_on_cpu(source) is None
    with raises(Exception, r"(?i)protobuf|doesn't exist"):
      ortplugin.session(source, ["cpu"])


def test_products_in_float_are_standard_alone_without_convolutions():
  case, half = (made(dtype, BIAS_RELU, dtype, (3, 8), 6, constant=True) for dtype in ("float", "float16"))
  model = onnx.load_from_string(case.model())
  program = "(float x) => (float z) { z = Neg(x) }"
  model.graph.node.append(make_node("FusedPointwise", ["y"], ["z"], domain=DOMAIN, program=program))
  assert ours(standard(model)) == {"FusedPointwise"}
  check(case, ortplugin.session(case.model(), ["cpu"]).run(None, case.feeds()))
  model.graph.node.append(half.node())
  for each in (half.model(), model.SerializeToString()):
    assert standard_on_cpu(each) is None


@parametrize("case", NORMS[::5])
def test_a_product_with_a_norm_is_two_operators(case):
  found = ortplugin.run(ortplugin.session(case.model(), providers=["cpu"]), case.feeds())
  case.check(found.values())


def test_no_standard_form_at_its_opset():
  """An average with dilations is none before opset 19."""
  optimized, _ = optimize(network())
  attributes = {"kind": "average", "kernel_shape": [2, 2], "dilations": [2, 2]}
  optimized.graph.node.append(make_node("FusedPool", ["x"], ["z"], domain=DOMAIN, **attributes))
  assert standard_on_cpu(optimized.SerializeToString()) is None


@parametrize("providers", [["cuda"], ["cpu"]])
def test_with_a_gpu_or_unasked_the_model_stays(providers, patch):
  optimized, _ = optimize(network())
  given = []

  def made(source, *rest, providers, **more):
    given.append(source)
    return SimpleNamespace(get_providers=lambda: providers)

  patch(core, "resolve_provider", {"cuda": core.CUDA, "cpu": core.CPU}.get)
  patch(onnxruntime, "InferenceSession", made)
  ortplugin.session(optimized.SerializeToString(), providers, restore_on_cpu=providers == ["cuda"])
  assert ours(given[0]) == ours(optimized)


def test_verification_times_what_a_session_runs(tmp_path, patch):
  model = network()
  optimized, _ = optimize(model)
  sides = []
  for name, each in (("m", model), ("fast", optimized)):
    onnx.save(each, tmp_path / f"{name}.onnx")
    sides.append(judge.Side(tmp_path / f"{name}.onnx", each is optimized))
  timed = []

  def runner(session, *rest):
    timed.append(session)
    return real(session, *rest)

  real = judge._runner
  patch(judge, "_runner", runner)
  judged = judge.Judge(judge.Question(sides[0], without_weights(model).SerializeToString()))
  result = judged.verify(core.CPU, sides[1], timed=True)
  assert result.passed
  assert result.optimized_ms is not None
  made = []
  patch(judge, "standard_on_cpu", lambda path: made.append(path))
  judged.verify(core.CPU, sides[1], timed=True)
  assert made == [sides[1].path]  # and the fused model is timed where there is no other
  assert len(timed) == 4
