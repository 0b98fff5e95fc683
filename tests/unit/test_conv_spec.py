import numpy as np
import onnx
from conv_cases import BARE, BIAS_RELU, CASES, GEOMETRIES, RESIDUAL_RELU, by_name, check, expect, made
from node_cases import invalid_nodes, typed
from onnx.helper import make_node
from onnx.reference import ReferenceEvaluator
from onnx_models import computed, parametrize, raises

from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN
from ortplugin.graph.conv_geometry import first, last, out_shape, read_attributes, windows
from ortplugin.ops import TensorType
from ortplugin.ops.conv import OPERATOR, attributes_of
from ortplugin.ops.conv.reference import convolution

HALF = np.dtype(np.float16)


def decomposed(case, opset):
  model = onnx.load_model_from_string(case.model(nodes=OPERATOR.decompose(case.node(), opset), opset=opset))
  del model.opset_import[1:]
  model.ir_version = 10 if opset >= 21 else 8
  return bytes(model.SerializeToString())


# ---- reference


def test_the_reference_is_the_formula():
  case = made(
    "formula", BARE, "double", (2, 4, 6, 7), (6, 2, 3, 2), group=2, strides=[2, 1], dilations=[1, 2], pads=[1, 0, 2, 1]
  )
  x, w = case.inputs()
  y = convolution(attributes_of(case.node()), x, w)
  wanted = np.zeros_like(y)
  for n, m, i, j in np.ndindex(*y.shape):
    for c, k, o in np.ndindex(2, 3, 2):
      row, column = i * 2 + k - 1, j + o * 2
      if 0 <= row < 6 and 0 <= column < 7:
        wanted[n, m, i, j] += x[n, m // 3 * 2 + c, row, column] * w[m, c, k, o]
  np.testing.assert_allclose(y, wanted, rtol=1e-13, atol=1e-13)


# ---- decomposition


@parametrize("opset", [11, 13, 17, 18, 22, 24])
@parametrize("name", ["residual, Relu", "SAME_UPPER with strides", "groups", "Gelu", "the value itself too"])
@parametrize("layout", ["", ", NHWC"])
def test_the_decomposition_is_the_reference(name, layout, opset):
  case = by_name[f"{name}, float{layout}"]
  check(case, computed(decomposed(case, opset), case.feeds()), expect(case, unit=2.0**-22))


@parametrize("name", ["strides and pads that differ", "1-D depthwise", "3-D", "SAME_LOWER, dilated"])
@parametrize("layout", ["", ", NHWC"])
def test_the_decomposition_runs_in_onnxs_own_evaluator(name, layout):
  """In double, which ONNX Runtime's Conv lacks."""
  case = by_name[f"{name}, double{layout}"]
  check(case, ReferenceEvaluator(onnx.load_model_from_string(decomposed(case, 18))).run(None, case.feeds()))


def operators(text, opset=18, **attributes):
  inputs = ["X", "W", "b", "r"][: 1 + text.partition("=>")[0].count(",") + 1]
  outputs = ["y", "z"][: 1 + text.partition("=>")[2].partition("{")[0].count(",")]
  node = make_node("FusedConv", inputs, outputs, "n", domain=DOMAIN, program=text, **attributes)
  nodes = OPERATOR.decompose(node, opset)
  assert set(outputs) <= {name for each in nodes for name in each.output}
  return [each.op_type for each in nodes]


def test_the_decomposition_is_as_short_as_it_can_be():
  last_axis = {"layout": "NHWC", "kernel_shape": [1, 1]}
  assert operators("(float c) => (float c) {}") == ["Conv"]
  assert operators("(float c) => (float y, float c) { y = Relu(c) }") == ["Conv", "Relu"]
  assert operators(typed(RESIDUAL_RELU, "float16")) == ["Conv", "Add", "Add", "Relu"]
  assert operators("(float c) => (float c) {}", **last_axis) == ["Transpose", "Transpose", "Conv", "Transpose"]
  assert operators("(bfloat16 c) => (bfloat16 c) {}", 22) == ["Conv"]
  assert operators("(bfloat16 c) => (bfloat16 c) {}", 21) == ["Cast", "Cast", "Conv", "Cast"]
  assert operators("(float c, float b) => (float y, float z) { y = Relu(c) z = Neg(b) }") == [
    "Conv", "Relu", "Neg", "Shape", "Expand",
  ]  # fmt: skip


# ---- geometry


@parametrize("case", CASES[::8])
def test_shapes_are_the_references(case):
  types = OPERATOR.infer_shapes(case.node(), [TensorType(each.dtype, each.shape) for each in case.inputs()])
  found = OPERATOR.reference(case.node(), case.inputs())
  assert types == [TensorType(each.dtype, each.shape) for each in found]


# What ONNX's shape inference gets wrong or refuses: sizes of zero.
EMPTY = ("no ", "nothing but padding")


@parametrize("name", [name for name in GEOMETRIES if not name.startswith(EMPTY)])
def test_shapes_are_onnxs(name):
  x, w, attributes = GEOMETRIES[name]
  case = made(name, BARE, "float", x, w, **attributes)
  inferred = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(decomposed(case, 18)), strict_mode=True)
  wanted = [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim]
  assert list(out_shape(attributes_of(case.node()), x, w) or ()) == wanted


def shape_of(x, w, op="FusedConv", **attributes):
  node = make_node(op, ["X", "W"], ["Y"], "n", domain=DOMAIN, **attributes)
  return out_shape(read_attributes(node, op != "FusedConv"), x, w)


def test_names_and_unknown_sizes_pass_where_they_stay():
  assert shape_of(("N", 3, "H", "W"), (8, 3, 3, 3), pads=[1, 1, 1, 1]) == ("N", 8, "H", "W")
  assert shape_of(("N", 3, "H", "W"), (8, 3, 3, 3)) == ("N", 8, None, None)
  assert shape_of(("N", 3, "H", None), (8, 3, 3, 3), pads=[1, 0, 1, 0], strides=[2, 1]) == ("N", 8, None, None)
  assert shape_of((None, "C", "H", 8), ("M", 3, 2, 2), auto_pad="SAME_LOWER") == (None, None, "H", 8)
  assert shape_of((None, "C", "H", 9), (4, 3, 2, 2), auto_pad="SAME_LOWER", strides=[2, 2]) == (None, 4, None, 5)
  assert shape_of(None, (4, 3, 2, 2)) == (None, 4, None, None)
  assert shape_of(None, None, strides=[1]) == (None, None, None)
  assert shape_of(None, None) is None
  assert shape_of(("N", "H", "W", 3), (8, 1, 1, 3), layout="NHWC", kernel_shape=[1, 1]) == ("N", "H", "W", 8)
  assert shape_of((2, 3, 7, 7), (8, 3, "k", None)) == (2, 8, None, None)


def test_transposed_sizes():
  def shape(x, w, **attributes):
    return shape_of(x, w, "FusedConvTranspose", **attributes)

  assert shape((2, 3, 7, 7), (3, 4, 3, 3)) == (2, 4, 9, 9)
  assert shape((2, 3, 7, 7), (3, 4, 3, 3), group=3) == (2, 12, 9, 9)
  assert shape((2, 3, 7), (3, 4, 4), strides=[2], pads=[1, 1]) == (2, 4, 14)
  assert shape((2, 3, 7), (3, 4, 3), strides=[2], pads=[1, 1], output_padding=[1]) == (2, 4, 14)
  assert shape((2, 3, 7), (3, 4, 3), strides=[2], output_shape=[15]) == (2, 4, 15)
  assert shape((2, 3, "L"), (3, 4, 3), strides=[2], output_shape=[15]) == (2, 4, 15)
  assert shape((2, 3, 7), (3, 4, 3), strides=[2], auto_pad="SAME_UPPER") == (2, 4, 14)
  assert shape((2, 3, "L"), (3, 4, 3), pads=[1, 1]) == (2, 4, "L")
  assert shape((2, 3, "L"), (3, 4, 3), pads=[1, 1], strides=[2]) == (2, 4, None)


def test_padding_is_split_as_onnx_says():
  def pads(size, kernel, stride, auto_pad, transposed=False):
    node = make_node("FusedConv", ["X", "W"], ["Y"], auto_pad=auto_pad, strides=[stride])
    (window,) = windows(read_attributes(node, transposed), (1, 1, size), (1, 1, kernel))
    return window.pad_begin, window.pad_end, window.out

  assert pads(8, 4, 1, "SAME_UPPER") == (1, 2, 8)
  assert pads(8, 4, 1, "SAME_LOWER") == (2, 1, 8)
  assert pads(7, 4, 2, "SAME_UPPER") == (1, 2, 4)
  assert pads(8, 2, 3, "SAME_UPPER") == (0, 0, 3)
  assert pads(7, 1, 2, "SAME_UPPER") == (0, 0, 4)
  assert pads(9, 4, 2, "VALID") == (0, 0, 3)
  assert pads(4, 3, 2, "SAME_UPPER", True) == (0, 1, 8)
  assert pads(4, 3, 2, "SAME_LOWER", True) == (1, 0, 8)
  assert pads(4, 1, 2, "SAME_LOWER", True) == (0, 0, 7)


def test_layouts_are_each_others_inverse():
  assert last((2, 3, 4, 5)) == (2, 4, 5, 3)
  assert first(last((2, 3, 4, 5, 6))) == (2, 3, 4, 5, 6)
  assert last((2, 3, 4)) == (2, 4, 3)


# ---- errors


RIGHT = typed(BIAS_RELU, "float")


def wrong(program=RIGHT, inputs=3, outputs=1, **attributes):
  names = [f"i{n}" for n in range(inputs)], [f"o{n}" for n in range(outputs)]
  given = attributes if program is None else {"program": program, **attributes}
  return make_node("FusedConv", *names, "stage2/conv", domain=DOMAIN, **given)


# Others, and shapes that contradict each other, tests/ort/test_conv.py has.
WRONG = {
  "expected '('": wrong("nonsense"),
  "2 inputs, but its program has 3": wrong(inputs=2),
  "2 outputs, but its program has 1": wrong(outputs=2),
  "the attribute 'auto_pad' has another type": wrong(auto_pad=3),
  "the attribute 'pads' has another type": wrong(pads=[0.5, 0.5]),
  "kernel_shape is [0, 3]": wrong(kernel_shape=[0, 3]),
  "allow_tf32 must be 0 or 1": wrong(allow_tf32=2),
  "algorithm must be a string": wrong(algorithm=1),
}


test_an_invalid_node_is_named = invalid_nodes(WRONG)


def test_a_dtype_that_contradicts_the_program_is_named():
  types = [TensorType(each, None) for each in (np.dtype(np.float32), HALF, None)]
  with raises(ModelError, r"stage2/conv.*input 1 is float16, the program declares float"):
    OPERATOR.infer_shapes(wrong(), types)


# ---- the comparison: it must see what a wrong kernel would do


def outputs(case):
  return [np.array(output) for output in expect(case).outputs]


@parametrize("case", CASES[::11])
def test_the_reference_passes(case):
  check(case, outputs(case))


def without_a_tap(case):
  x, w, *operands = case.inputs()
  w[:, 0, 0, 0] = 0
  return list(OPERATOR.reference(case.node(), [x, w, *operands]))


def rounded_value(case):
  """As if the convolution's value were rounded before the epilogue."""
  x, w, bias = case.inputs()
  value = convolution(attributes_of(case.node()), x, w).astype(x.dtype)
  return [np.maximum(value + bias, 0).astype(x.dtype)]


@parametrize(
  "name, change",
  [
    ("bias, Relu, float", without_a_tap),
    ("bias, Relu, float16", without_a_tap),
    ("bias, Relu, bfloat16", without_a_tap),
    ("bias, Relu, float16", rounded_value),
    ("bias, Relu, float", lambda case: [outputs(case)[0] * np.float32(1 + 1e-5)]),
  ],
)
def test_a_wrong_output_fails(name, change):
  case = by_name[name]
  with raises(AssertionError, "differ too much"):
    check(case, change(case))
