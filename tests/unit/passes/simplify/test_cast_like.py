import onnx
import onnx.parser
from onnx import helper
from onnx_models import all_attributes, parsed
from pass_helpers import model, operators, parametrize, run_pass, run_same, same_outputs, stays

from ortplugin import optimize
from ortplugin.optimizer.pipeline import CAST_LIKE


@parametrize("kind", ["float16", "bfloat16", "double", "int8", "int64", "bool"])
def test_renamed(kind):
  target = onnx.TensorProto.DataType.Value(kind.upper())
  optimized, result = run_same(
    f"""(float[4,3] x, float[2] w) => (float[4,3] y) {{
    z = Cast<to={target}>(w)  c = CastLike(x, z)  y = Cast<to=1>(c) }}""",
    CAST_LIKE,
    into=["Cast"] * 3,
  )
  assert [each.i for each in optimized.graph.node[1].attribute] == [target]
  assert result.changes[0].nodes == ("'c' (CastLike)",)


def test_the_saturation_of_float8_stays():
  optimized, _ = run_pass(model("""(float[3] x, float8e4m3fn[2] z) => (float8e4m3fn[3] y) {
    y = CastLike<saturate=0>(x, z) }""", 19), CAST_LIKE)  # fmt: skip
  assert all_attributes(optimized.graph.node[0]) == {"saturate": 0, "to": onnx.TensorProto.FLOAT8E4M3FN}


def test_unknown_dtypes_stay():
  original = model("(float[3] x, float[2] z) => (float[3] y) { u = com.microsoft.Odd(z)  y = CastLike(x, u) }")
  original.opset_import.append(helper.make_opsetid("com.microsoft", 1))
  stays(original, CAST_LIKE, "the dtype of 'u' is not known")


def test_a_function_of_that_name_stays():
  stays(parsed("""(float[3] x, float16[3] z) => (float[3] y) { y = local.CastLike(x, z) }
    <domain: "local", opset_import: ["" : 17]> CastLike (a, b) => (c) { c = Neg(a) }""",
        domains=["local"]), [CAST_LIKE])  # fmt: skip


@parametrize("precision", [None, "fp16", "bf16"])
def test_constants_that_patterns_ask_for(precision):
  """The epsilon of a norm, as PyTorch's exporter writes it: cast like the value that it is added to."""
  original = model(
    """(float[4,64] x) => (y) <float[64] w = {WEIGHTS}> {
      m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)  s = Mul(d, d)  v = ReduceMean<axes=[-1]>(s)
      e = Constant<value_float=0.001>()  f = CastLike(e, v)  t = Add(v, f)  r = Sqrt(t)
      n = Div(d, r)  y = Mul(n, w) }""".replace("WEIGHTS", ", ".join(["0.5"] * 64))
  )
  optimized, report = optimize(original, precision=precision, verify=True)
  assert report.rewrites["cast-like"] == 1
  assert "FusedLayerNorm" in operators(optimized)
  assert "CastLike" not in operators(optimized)
  if precision is None:
    same_outputs(original, optimized)
