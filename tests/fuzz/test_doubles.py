import math

import numpy as np
import onnx
from numpy.testing import assert_allclose, assert_array_equal
from onnx_models import parametrize, parsed, zeros

from fuzz.doubles import in_double, through_double
from fuzz.evaluate import make_session, run
from fuzz.handmade import case_of, judged_as
from fuzz.judge import Judge


def gelu(x):
  return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def model_of(nodes, dtype="double"):
  opset = 18 if "HardSwish" in nodes else 20  # later ones lack its kernel of double
  graph = f"model ({dtype}[n] x) => (y) <{dtype}[1] b = {{0.333333333333333333}}> {{ {nodes} }}"
  return parsed(graph, opset, 9, domains=["ortplugin", "com.microsoft"])


@parametrize(("opset", "count"), [(18, 2), (21, 4)])
def test_a_group_norm_in_double(opset, count):
  rng = np.random.default_rng(0)
  feeds = {"x": 5 + rng.standard_normal((2, 4, 3)), "s": rng.standard_normal(count), "b": rng.standard_normal(count)}
  nodes = "y = GroupNormalization <num_groups=2, epsilon=0.5>(x, s, b)"
  model = parsed(f"model (double[n,4,3] x, double[{count}] s, double[{count}] b) => (y) {{ {nodes} }}", opset, 9)
  rows = feeds["x"].reshape(2, 2, 6)
  normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 0.5)
  wanted = normal.reshape(2, count, -1) * feeds["s"][:, None] + feeds["b"][:, None]
  got = run(make_session(in_double(model)), feeds)["y"]
  assert_allclose(got, wanted.reshape(2, 4, 3), rtol=1e-14, atol=1e-14)
  as_it_is = run(make_session(model), feeds)["y"]
  assert np.allclose(as_it_is, got, rtol=1e-12, atol=1e-12) == (opset < 21)


X = np.append(np.linspace(-3, 3, 91) / 1.1, [-np.inf, np.inf, np.nan])


def test_what_stays():
  for model in (model_of("y = Shrink(x)", "float"), model_of("y = Tanh(x)"), model_of("y = Gelu(x)")):
    assert in_double(model) == model
  body = model_of(
    "t = bool {1} y = If(t) <then () => (double[n] z) { z = Shrink(x) }, else () => (double[n] z) { z = Neg(x) }>"
  )
  x = X[:-3]
  assert_array_equal(run(make_session(in_double(body)), {"x": x})["y"], np.where(np.abs(x) > 0.5, x, 0))


def judge(original, optimized, monkeypatch, x=X[:-3]):
  names = {"double": "fp64", "float": "fp32"}
  dtype = "float" if x.dtype == np.float32 else "double"
  case = case_of(model_of(original, dtype), {"x": x}, dtype=names[dtype])
  return judged_as(monkeypatch, case, model_of(optimized, dtype))


def erf_gelu(x):
  return np.array([each / 2 * math.erfc(-each / math.sqrt(2)) for each in x])


SMALL = {
  "Sigmoid": ("Sigmoid (x)", "Sigmoid(a)", lambda x: 1 / (1 + np.exp(-x))),
  "QuickGelu": ("com.microsoft.QuickGelu (x)", "QuickGelu<alpha=1.702>(a)", lambda x: x / (1 + np.exp(-1.702 * x))),
  "Elu": ("Elu <alpha=0.5>(x)", "Elu<alpha=0.5>(a)", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
  "Celu": ("Celu <alpha=0.5>(x)", "Celu<alpha=0.5>(a)", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x / 0.5))),
  "Selu": (
    "Selu <alpha=0.5, gamma=2.0>(x)",
    "Selu<alpha=0.5, gamma=2>(a)",
    lambda x: np.where(x > 0, 2 * x, np.expm1(x)),
  ),
  "FastGelu": ("com.microsoft.FastGelu (x)", 'Gelu<approximate="tanh">(a)', gelu),
  "Gelu": ("Gelu (x)", "Gelu(a)", erf_gelu),
  "com.microsoft.Gelu": ("com.microsoft.Gelu (x)", "Gelu(a)", erf_gelu),
}


RANGES = {
  "Sigmoid": (-60, -10),
  "QuickGelu": (-9, -7),
  **dict.fromkeys(("Elu", "Celu", "Selu"), (-1e-6, 1e-6)),
  "FastGelu": (-4.6, -4.3),
  "Gelu": (-5.2, -4.6),
  "com.microsoft.Gelu": (-5.2, -4.6),
}


@parametrize("name", SMALL)
def test_small_values_of_float32(library, name, monkeypatch):
  """Ours have them to a few roundings. That ONNX Runtime has not is no finding, and what is wrong by more is one."""
  node, ours, wanted = SMALL[name]
  x = np.linspace(*RANGES[name], 30).astype(np.float32)
  model, form = model_of(f"y = {node}", "float"), through_double(model_of(f"y = {node}", "float"))
  right = wanted(x.astype(np.float64))
  got = [run(make_session(each), {"x": x})["y"] for each in (model, form)]
  assert_allclose(got[1], right, rtol=1e-6)
  assert np.max(np.abs(got[0] / right - 1)) > 1e-3
  for factor, what in ((1, "same"), (1.5, "finding")):
    program = f"(float a) => (float b) {{ s = {ours} b = Mul(s, {factor}) }}".replace('"', '\\"')
    verdict = judge(f"y = {node}", f'y = ortplugin.FusedPointwise <program="{program}">(x)', monkeypatch, x)
    assert verdict.what == what, verdict


def test_a_comparison_with_what_it_was_made_of(library):
  """No Celu is less than its input but by rounding, of which ONNX Runtime has more than ours."""
  model = parsed(
    """(float[N] x) => (bool[N] y) {
        a = Celu <alpha=0.91>(x)  y = GreaterOrEqual(a, x) }""",
    22,
    10,
  )
  x = np.linspace(-1e-4, 0, 100).astype(np.float32)
  assert not run(make_session(model), {"x": x})["y"].all()
  verdict = Judge().judge(case_of(model, {"x": x}, only=["lone-pointwise"]))
  assert verdict.what == "same", verdict
  assert verdict.rewrites


def test_small_values_in_a_body_s_own_names():
  """Whose dtypes only the body's outputs say."""
  model = parsed("""(float[2] s, float[1,2] x) => (float[2] t, float[1,2] y) {
        t, y = Scan <num_scan_inputs=1, body = b (float[2] a, c) => (d, e) {
            d = Add(a, c)  e = Sigmoid(d) }> (s, x) }""", 12, 7)  # fmt: skip
  form = through_double(model)
  feeds = {"s": zeros(2), "x": np.float32([[-64, -20]])}
  assert_allclose(run(make_session(form), feeds)["y"][0], np.exp([-64, -20]), 1e-6)


def test_small_values_in_a_local_function():
  text = """<ir_version: 9, opset_import: ["": 18, "local": 1]> g (float[2] x) => (float[2] y) { y = local.F(x) }
        <domain: "local", opset_import: ["": 18]> F (a) => (c) { b = Neg(a)  c = Sigmoid(b) }"""
  form = through_double(onnx.parser.parse_model(text))
  feeds = {"x": np.float32([64, 20])}
  assert_allclose(run(make_session(form), feeds)["y"], np.exp([-64, -20]), 1e-6)
