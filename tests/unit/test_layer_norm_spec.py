import numpy as np
import onnx
from ml_dtypes import bfloat16
from node_cases import invalid_nodes
from numpy.testing import assert_allclose, assert_array_equal
from onnx.helper import make_node
from onnx_models import built, computed, parametrize, parsed, raises

from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN
from ortplugin.ops import OPERATORS, TensorType, find
from ortplugin.ops.layer_norm import OPERATOR
from ortplugin.ops.layer_norm.reference import layer_norm
from ortplugin.ops.pointwise_reference import POINTWISE, evaluate
from ortplugin.program import NUMPY_DTYPES, OPERATORS as POINTWISE_OPERATORS, parse

TOLERANCES = {"float16": (2e-3, 2e-3), "float": (1e-5, 1e-5), "double": (1e-12, 1e-12)}


def node_of(text, name="norm"):
  program = parse(text)
  return make_node(
    "FusedLayerNorm",
    [each.name for each in program.parameters],
    [each.name for each in program.results],
    name,
    domain=DOMAIN,
    program=str(program),
  )


def run_decomposed(text, inputs, opset):
  program = parse(text)
  given = {each.name: (each.dtype, inputs[each.name].shape) for each in program.parameters}
  rank = max(x.ndim for x in inputs.values())
  results = {each.name: (each.dtype, [None] * rank) for each in program.results}
  model = built(OPERATOR.decompose(node_of(text), opset), given, results, opset, 10 if opset >= 21 else 8)
  onnx.checker.check_model(model)
  return computed(model, inputs)


def test_the_table():
  assert OPERATOR in OPERATORS
  assert find("ortplugin", "FusedLayerNorm") is OPERATOR
  assert find("", "FusedLayerNorm") is None
  others = {"Cast", "Gelu", "BitShift", "LayerNormalization", "RMSNormalization", "SumTo"}
  assert set(POINTWISE) | others == set(POINTWISE_OPERATORS)


LAYER = """({0} x, {0} residual, {0} gamma, {0} beta) => ({0} y, {0} s) {{
  s = Add(x, residual)
  n = LayerNormalization<epsilon=0.001>(s)
  g = Mul(n, gamma)
  y = Add(g, beta)
}}"""
RMS = "({0} x, {0} gamma) => ({0} y) {{ n = RMSNormalization<axis=-2>(x) y = Mul(n, gamma) }}"


def some_inputs(text, dtype, rng):
  shapes = {"x": (3, 4, 5), "residual": (1, 5), "gamma": (5,), "beta": (4, 1)}
  return {
    each.name: (rng.standard_normal(shapes[each.name]) + 0.5).astype(NUMPY_DTYPES[dtype])
    for each in parse(text).parameters
  }


@parametrize("dtype", ["float", "double", "float16"])
@parametrize("opset", [11, 13, 17, 18, 20, 23])
@parametrize("template", [LAYER, RMS, LAYER.replace("<", '<axes="0 2", '), RMS.replace("axis=-2", 'axes="1"')])
def test_the_decomposition_is_the_reference(template, opset, dtype, rng):
  text = template.format(dtype)
  inputs = some_inputs(text, dtype, rng)
  found = run_decomposed(text, inputs, opset)
  expected = OPERATOR.reference(node_of(text), list(inputs.values()))
  for a, b in zip(found, expected, strict=True):
    assert a.dtype == b.dtype
    assert a.shape == (3, 4, 5)
    assert_allclose(a, b, *TOLERANCES[dtype])


def test_the_reference_is_the_formula():
  x = np.float64([[1, 2, 3, 4]])
  (y,) = layer_norm(parse("(double x) => (double y) { y = LayerNormalization<epsilon=0>(x) }"), [x])
  assert_allclose(y, (x - 2.5) / np.sqrt(1.25), rtol=1e-15)
  (y,) = layer_norm(parse("(double x) => (double y) { y = RMSNormalization<epsilon=0>(x) }"), [x])
  assert_allclose(y, x / np.sqrt(7.5), rtol=1e-15)
  (y,) = layer_norm(parse("(double x) => (double y) { y = LayerNormalization(x) }"), [np.full((2, 3), 7.0)])
  assert (y == 0).all()


def test_the_reference_agrees_with_onnx_runtime(rng):
  x = rng.standard_normal((4, 7)).astype(np.float32)
  gamma = rng.standard_normal(7).astype(np.float32)
  model = parsed(
    "(float[4,7] x, float[7] gamma) => (float[4,7] y) { y = LayerNormalization <epsilon=0.001>(x, gamma) }"
  )
  program = parse("(float x, float gamma) => (float y) { n = LayerNormalization<epsilon=1e-3>(x) y = Mul(n, gamma) }")
  assert_allclose(
    layer_norm(program, [x, gamma])[0], computed(model, {"x": x, "gamma": gamma})[0], rtol=1e-5, atol=1e-6
  )


def test_float16_does_not_overflow():
  """Squares of 300 overflow float16, as do sums of a long row: reductions run in float32 (ORT 29034)."""
  x = np.where(np.arange(4096) % 2, 300, -300).astype(np.float16)[None]
  text = "(float16 x) => (float16 y) { y = RMSNormalization(x) }"
  assert_array_equal(run_decomposed(text, {"x": x}, 17)[0], np.sign(x))


def test_the_reference_rounds_where_the_language_says():
  x = np.array([[1.0, 2.0, 4.0]])
  third = "(double x) => (double y) { n = RMSNormalization<epsilon=0>(x) h = Cast<to=%s>(n) y = Cast<to=double>(h) }"
  exact = x / np.sqrt(7)
  for dtype in ("float16", "bfloat16", "float"):
    (y,) = layer_norm(parse(third % dtype), [x])
    assert_array_equal(y, exact.astype(NUMPY_DTYPES[dtype]).astype(np.float64))
  half = parse("(float16 x) => (float16 y) { n = RMSNormalization<epsilon=0>(x) y = Mul(n, 3) }")
  (unrounded,) = layer_norm(half, [x.astype(np.float16)], rounded=False)
  assert_array_equal(unrounded, exact * 3)
  (y,) = layer_norm(half, [x.astype(np.float16)])
  assert_array_equal(y, (exact * 3).astype(np.float16))
  (y,) = layer_norm(parse("(bfloat16 x) => (bfloat16 y) { y = RMSNormalization(x) }"), [x.astype(bfloat16)])
  assert y.dtype == bfloat16


def test_results_are_broadcast_to_s(rng):
  text = "(float x, float b) => (float y, float z) { y = RMSNormalization(x) z = Neg(b) }"
  x, b = rng.standard_normal((2, 3, 4)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
  assert_array_equal(layer_norm(parse(text), [x, b])[1], np.broadcast_to(-b, (2, 3, 4)))


def test_nan_is_neither_above_nor_below_a_threshold():
  """ONNX defines both by comparisons that NaN fails, and ONNX Runtime computes them so: 0."""
  nan = np.array([np.nan])
  for op in ("ThresholdedRelu", "Shrink<bias=1>"):
    assert_array_equal(evaluate(parse(f"(double x) => (double y) {{ y = {op}(x) }}").statements[0], [nan]), [0.0])


def test_shape_inference():
  node = node_of(LAYER.format("float16"))
  half = np.dtype(np.float16)

  def infer(*shapes):
    return OPERATOR.infer_shapes(node, [TensorType(half, shape) for shape in shapes])

  assert infer(("N", 4, 8), (8,), (8,), (8,)) == [TensorType(half, ("N", 4, 8))] * 2
  assert infer(("N", 1, 8), (4, 1), (8,), (8,))[0].shape == ("N", 4, 8)
  assert infer((1, 8), ("N", 8), None, None)[0].shape == ("N", 8)
  assert infer(("N", 8), ("M", 8), None, None)[0].shape == (None, 8)
  assert infer(None, (8,), (8,), (8,))[0].shape is None


def test_shapes_in_an_order():
  node = wrong(["x"], ["y"], program=BARE, ordered=[0], order=[1, 0, 0, 2], image=[2])
  for shape, made in (("N", 3, 8), ("N", 2, 16)), (("N", "R", "C"), ("N", 2, None)), (None, None):
    assert OPERATOR.infer_shapes(node, [TensorType(np.dtype(np.float32), shape)])[0].shape == made
  for shape in ((3, 8), (1, 2, 8)):
    with raises(ModelError, r"node 'norm' \(FusedLayerNorm\): input 'x' of shape"):
      OPERATOR.infer_shapes(node, [TensorType(np.dtype(np.float32), shape)])


def wrong(inputs, outputs, **attributes):
  return make_node("FusedLayerNorm", inputs, outputs, "norm", domain=DOMAIN, **attributes)


BARE = "(float x) => (float y) { y = RMSNormalization(x) }"
WRONG = {
  "the attribute 'program' is missing": wrong(["x"], ["y"]),
  "expected '('": wrong(["x"], ["y"], program="nonsense"),
  "a character beyond ASCII": wrong(["x"], ["y"], program="é"),
  "no LayerNormalization or RMSNormalization": wrong(["x"], ["y"], program=BARE.replace("RMSNormalization", "Relu")),
  "2 inputs, but its program has 1": wrong(["x", "z"], ["y"], program=BARE),
  "2 outputs, but its program has 1": wrong(["x"], ["y", "z"], program=BARE),
  "'ordered', [], must": wrong(["x"], ["y"], program=BARE, order=[0]),
  "'image', [2], a": wrong(["x"], ["y"], program=BARE, ordered=[0], order=[0, 1, 2], image=[2]),
  "'order' rows from 0": wrong(["x"], ["y"], program=BARE, ordered=[0], order=[-1]),
  "and axis -1": wrong(["x"], ["y"], program=BARE.replace("(x) }", "<axis=1>(x) }"), ordered=[0], order=[0]),
}


test_an_invalid_node_is_named = invalid_nodes(WRONG)


def test_axes_that_s_lacks_are_refused():
  for attribute in ('axes="0 3"', "axis=3", "axis=-4"):
    with raises(ValueError, "out of range for the rank 3"):
      layer_norm(parse(f"(float x) => (float y) {{ y = RMSNormalization<{attribute}>(x) }}"), [np.ones((2, 3, 4))])


def test_groups_of_an_axis_from_the_end_are_refused():
  text = '(float x) => (float y) { y = RMSNormalization<axis=-2, axes="2", groups=2>(x) }'
  with raises(ModelError, "axis -2 in groups counts from the end"):
    OPERATOR.decompose(node_of(text), 17)
  with raises(ValueError, "2 groups do not divide the axis 1"):
    layer_norm(parse(text.replace("-2", "1")), [np.ones((2, 3, 4))])


def test_an_axis_from_the_front_is_refused():
  text = "(float x) => (float y) { y = RMSNormalization<axis=1>(x) }"
  with raises(ModelError, "axis 1 counts from the front"):
    OPERATOR.decompose(node_of(text), 17)
