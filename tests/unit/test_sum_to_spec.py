import numpy as np
from node_cases import invalid_nodes, typed
from onnx.helper import make_node
from onnx_models import parametrize, raises, zeros
from sum_to_cases import BOTH, CASES, LERP_GRAD, Case, by_name, check, expect, node_of, summed

from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN
from ortplugin.ops import TensorType
from ortplugin.ops.sum_to import OPERATOR
from ortplugin.ops.sum_to.reference import sum_to
from ortplugin.program import parse

HALF = np.dtype(np.float16)


@parametrize("dtype", ["float", "float16"])
@parametrize("opset", [11, 12, 13, 17, 18, 22, 24])
@parametrize(
  "name", ["bias of NCHW", "lerp, gradients over other axes", "what broadcasts is summed over", "Relu and bias"]
)
def test_the_decomposition_is_the_reference(name, opset, dtype):
  case = by_name[f"{name}, {dtype}"]
  found = Case.decomposed(case.text, case.inputs(), opset)
  check(case, found, expect(case, unit={"float": 2.0**-22, "float16": 2.0**-11}[dtype]))


def test_a_value_that_is_smaller_is_repeated_before_it_is_summed():
  text = '(float x, float r) => (float y, float r, float x) { y = SumTo<axes="0 1", keepdims=0>(r) }'
  x, r = zeros(5, 1), np.arange(3, dtype=np.float32)
  for found in (Case.decomposed(text, [x, r], 17), OPERATOR.reference(node_of(text), [x, r])):
    assert [each.shape for each in found] == [(), (5, 3), (5, 3)]
    assert found[0] == 15


def test_the_decomposition_is_one_reduction():
  nodes = OPERATOR.decompose(node_of(typed(summed("0 2"), "float")), 18)
  assert [node.op_type for node in nodes] == ["Constant", "ReduceSum"]
  assert nodes[-1].output == ["y"]
  nodes = OPERATOR.decompose(node_of(typed(summed("0 2"), "float16")), 18)
  assert [node.op_type for node in nodes] == ["Cast", "Constant", "ReduceSum", "Cast"]


def test_the_reference_is_the_formula():
  dout, w = np.arange(24.0).reshape(2, 3, 4), np.array([[0.25], [0.5], [1.0]])
  dx, dy = sum_to(parse(typed(LERP_GRAD.replace("AXES", "1 2"), "double")), [dout, w])
  np.testing.assert_array_equal(dx, ((1 - w) * dout).sum((1, 2), keepdims=True))
  np.testing.assert_array_equal(dy, w * dout)


def test_integers_wrap():
  x = np.int32([2**31 - 1, 2, 5])
  (y,) = sum_to(parse(typed(summed("0", 0), "int32")), [x])
  assert (y.dtype, y.tolist()) == (np.dtype(np.int32), -(2**31) + 6)
  (z,) = sum_to(parse(typed(summed("0", 0), "uint64")), [np.array([2**64 - 1, 3], np.uint64)])
  assert z.tolist() == 2


def test_a_sum_beyond_float16_is_infinite_unless_it_is_cast():
  text = '(float16 x) => (float16 y, float z) { y = SumTo<axes="0">(x) z = Cast<to=float>(y) }'
  y, z = sum_to(parse(text), [np.full(100, 1000, np.float16)])
  assert np.isposinf(y).all()
  assert z.tolist() == [100000.0]


def test_wrong_inputs_of_the_reference():
  program = parse(typed(BOTH, "float"))
  with raises(ValueError, "2 parameters, 1 inputs"):
    sum_to(program, [np.zeros((1, 1, 1, 1))])
  with raises(ValueError, "broadcast"):
    sum_to(program, [np.zeros((1, 1, 1, 3)), np.zeros(4)])


def test_shape_inference():
  node = node_of(typed(BOTH, "float16"))
  full = ("N", 3, 6, "W")
  types = OPERATOR.infer_shapes(node, [TensorType(HALF, full), TensorType(HALF, (3, 1, "W"))])
  assert types == [TensorType(HALF, ("N", 1, 1, 1)), TensorType(HALF, (3, 6, "W"))]
  assert [each.shape for each in OPERATOR.infer_shapes(node, [TensorType(HALF, None)] * 2)] == [None, None]
  both = node_of(
    '(float x) => (double d, float y, bool b) { b = IsNaN(x) y = SumTo<axes="0">(x) d = Cast<to=double>(y) }'
  )
  types = OPERATOR.infer_shapes(both, [TensorType(np.dtype(np.float32), (4, "M"))])
  assert [each.shape for each in types] == [(1, "M"), (1, "M"), (4, "M")]
  assert [each.dtype for each in types] == [np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.bool_)]


def wrong(program, outputs=1):
  return make_node("FusedSumTo", ["x"], [f"o{n}" for n in range(outputs)], "gradient", domain=DOMAIN, program=program)


SUM = typed(summed("1"), "float")
WRONG = {  # what every operator with a program refuses, test_layer_norm_spec.py has
  "the program holds no SumTo": wrong("(float x) => (float y) { y = Relu(x) }"),
  "holds a LayerNormalization": wrong("(float x) => (float y) { y = LayerNormalization(x) }"),
  "'y' computes with the sum 's'": wrong('(float x) => (float y) { s = SumTo<axes="0">(x) y = Mul(s, 2) }'),
  "'y' computes with the sum 'y2'": wrong(
    '(float x) => (float y2, float y) { y2 = SumTo<axes="0">(x) y = SumTo<axes="1">(y2) }', outputs=2
  ),
  "'c' computes with the sum 's'": wrong(
    '(float x) => (float y) { s = SumTo<axes="0">(x) c = Cast<to=double>(s) y = Cast<to=float>(c) }'
  ),
}


test_an_invalid_node_is_named = invalid_nodes(WRONG)


def test_an_axis_beyond_the_rank_is_named():
  with raises(ModelError, r"node 'gradient' .*'y' sums over axis 1, but"):
    OPERATOR.infer_shapes(wrong(SUM), [TensorType(np.dtype(np.float32), (3,))])


# ---- the comparison: it must see what a wrong kernel would do


def outputs(case):
  return [np.array(output) for output in expect(case).outputs]


@parametrize("case", CASES[::5])
def test_the_reference_passes(case):
  check(case, outputs(case))


@parametrize("name", ["rows, float", "columns, float", "bias of NHWC, float"])
@parametrize("kept", [slice(1, None), slice(0, -1)])
def test_one_element_less_fails(name, kept):
  case = by_name[name]
  (x,) = case.inputs()
  axis = {"rows, float": 1}.get(name, 0)
  less = np.moveaxis(np.moveaxis(x, axis, 0)[kept], 0, axis)
  with raises(AssertionError, "differ too much"):
    check(case, sum_to(case.program, [less]))


def test_a_sum_in_float16_fails():
  case = by_name["three columns, float16"]
  (x,) = case.inputs()
  total = np.zeros((1, 3), np.float16)
  for row in x:
    total = total + row
  with raises(AssertionError, "differ too much"):
    check(case, [total])
