import numpy as np
from node_cases import invalid_nodes, steps, typed
from onnx import helper
from onnx_models import parametrize, raises
from pointwise_cases import CASES, LERP, SILU, SUM_RELU, Case, by_name, check, expect, node_of

from ortplugin.graph import DOMAIN
from ortplugin.ops import TensorType
from ortplugin.ops.pointwise import OPERATOR
from ortplugin.ops.pointwise.reference import pointwise
from ortplugin.program import parse

HALF = np.dtype(np.float16)


@parametrize("dtype", ["float", "float16"])
@parametrize("opset", [11, 13, 17, 18, 22, 24])
@parametrize("name", ["lerp, middle broadcast", "results of fewer inputs", "a chain of eight", "masked"])
def test_the_decomposition_is_the_reference(name, opset, dtype):
  case = by_name[f"{name}, {dtype}"]
  found = Case.decomposed(case.text, case.inputs(), opset)
  tolerance = {"float": 1e-5, "float16": 2e-2}[dtype]
  for got, wanted in zip(found, OPERATOR.reference(case.node(), case.inputs()), strict=True):
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_the_reference_is_the_formula():
  x, y, w = np.array([1.0, 2.0]), np.array([[3.0], [5.0]]), np.array(0.25)
  (z,) = pointwise(parse(typed(LERP, "double")), [x, y, w])
  np.testing.assert_array_equal(z, 0.75 * x + 0.25 * y)
  (silu,) = pointwise(parse(typed(SILU, "float")), [np.float32([2.0])])
  assert silu.dtype == np.float32
  np.testing.assert_allclose(silu, 2 / (1 + np.exp(-2.0)), rtol=1e-7)


def test_the_reference_rounds_where_the_language_says():
  x = np.float16([60000])
  y, t = pointwise(parse("(float16 x) => (float16 y, float16 t) { t = Mul(x, 1000) y = Div(t, 1000) }"), [x])
  assert y == x
  assert np.isposinf(t)
  cast = "(float x) => (float y) { h = Cast<to=float16>(x) y = Cast<to=float>(h) }"
  third = np.float32([1 / 3])
  np.testing.assert_array_equal(pointwise(parse(cast), [third])[0], third.astype(np.float16).astype(np.float32))


def test_wrong_inputs_of_the_reference():
  program = parse(typed(SUM_RELU, "float"))
  with raises(ValueError, "2 parameters, 1 inputs"):
    pointwise(program, [np.zeros(3)])
  with raises(ValueError, "broadcast"):
    pointwise(program, [np.zeros(3), np.zeros(4)])


def test_shape_inference():
  node = node_of(typed(SUM_RELU, "float16"))

  def infer(*shapes):
    return OPERATOR.infer_shapes(node, [TensorType(HALF, shape) for shape in shapes])

  assert infer(("N", 4, 8), (8,)) == [TensorType(HALF, ("N", 4, 8))]
  assert infer(("N", 1), (4, 8)) == [TensorType(HALF, (None, 8))] or infer(("N", 1), (4, 8))[0].shape == (4, 8)
  assert infer((3, 1), (1, 8))[0].shape == (3, 8)
  assert infer(("N",), ("M",))[0].shape == (None,)
  assert infer((), ())[0].shape == ()
  assert infer(None, (8,))[0].shape is None
  both = node_of("(float x) => (bool b, float y) { b = IsNaN(x) y = Neg(x) }")
  types = OPERATOR.infer_shapes(both, [TensorType(np.dtype(np.float32), (2,))])
  assert [each.dtype for each in types] == [np.dtype(np.bool_), np.dtype(np.float32)]


def wrong(inputs, outputs, **attributes):
  return helper.make_node("FusedPointwise", inputs, outputs, "chain", domain=DOMAIN, **attributes)


RELU = "(float x) => (float y) { y = Relu(x) }"
WRONG = {  # what every operator with a program refuses, test_layer_norm_spec.py has
  "holds a LayerNormalization": wrong(["x"], ["y"], program=RELU.replace("Relu", "LayerNormalization")),
  "holds a SumTo": wrong(["x"], ["y"], program=RELU.replace("Relu", 'SumTo<axes="0">')),
  "numbers alone": wrong([], ["y"], program="() => (float y) { y = Add(1, 2) }"),
}


test_an_invalid_node_is_named = invalid_nodes(WRONG)


# ---- the comparison: it must see what a wrong kernel would do


def outputs(case):
  return [np.array(output) for output in expect(case).outputs]


@parametrize("case", CASES[::5])
def test_the_reference_passes(case):
  check(case, outputs(case))


def first(value):
  def change(y):
    y.reshape(-1)[0] = value
    return y

  return change


WRONG_OUTPUTS = [
  ("sum and Relu, float", lambda y: y[:, :, :1], "shape"),
  ("sum and Relu, float", lambda y: y.astype(np.float64), "is float64 instead of float32"),
  ("sum and Relu, float", first(np.nan), "NaN"),
  ("sum and Relu, float", first(np.inf), "infinities"),
  ("lerp, scalar weight, float", first(0.0), "1 of 1365 elements differ too much"),
  ("Silu, float16", steps(2), "1 of 1365 elements differ too much"),
  ("Silu, bfloat16", steps(-2), "1 of 1365 elements differ too much"),
  ("Silu, float", steps(300), "1 of 1365 elements differ too much"),
  ("Silu, double", steps(300), "1 of 1365 elements differ too much"),
  ("special, float", first(1.0), "result 'y'"),
  ("exact, normal, float", steps(1), "differs in bits"),
  ("exact, negative zero, float", lambda y: y + np.float32(0), "differs in bits"),
  ("whole numbers, int64, whole range", first(7), "result 'a'"),
  ("empty, float", lambda y: y.reshape(5, 0), "shape"),
  ("results overflow to infinity, float", lambda y: -y, "infinities"),
]


@parametrize("name, change, words", WRONG_OUTPUTS)
def test_a_wrong_output_fails(name, change, words):
  case = by_name[name]
  with raises(AssertionError, words):
    check(case, [change(outputs(case)[0]), *outputs(case)[1:]])


@parametrize("name, dtype", [("Silu", np.float16), ("a chain of eight", np.float16)])
def test_a_kernel_that_computes_in_half_fails(name, dtype):
  """float in, float out, but every value rounded to a narrower dtype on the way."""
  case = by_name[f"{name}, float"]
  rounded = [np.asarray(each).astype(dtype).astype(np.float32) for each in outputs(case)]
  with raises(AssertionError, "differ too much"):
    check(case, rounded)


def test_a_kernel_in_float_passes_and_one_of_a_wrong_formula_fails():
  case = by_name["lerp, middle broadcast, float"]
  x, y, w = case.inputs()
  check(case, [(np.float32(1) - w) * x + w * y])
  check(case, [x + w * (y - x)])
  with raises(AssertionError, "differ too much"):
    check(case, [w * x + (np.float32(1) - w) * y])
