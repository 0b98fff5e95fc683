from dataclasses import replace

import numpy as np
import pytest
from conv_grad_cases import BARE, CASES, GEOMETRIES, RELU, Case, by_name, check
from node_cases import changed, invalid_nodes, run_at_opset, typed
from onnx_models import computed, parametrize, raises

from ortplugin.errors import ModelError
from ortplugin.ops import TensorType
from ortplugin.ops.conv_grad import OPERATOR
from ortplugin.ops.conv_grad.reference import Window, data_gradient, forward

FLOAT = np.dtype(np.float32)


def convolved(case, x, w):
  """The convolution of which the case has the gradients, channels first, in float64."""
  gradient = case.gradient
  window = Window(gradient.strides, gradient.dilations, gradient.pad_begin, gradient.group)
  sizes = case.geometry.shapes(case.transposed)[2][2:]
  return data_gradient(x, w, sizes, window) if case.transposed else forward(x, w, sizes, window)


@parametrize("transposed", [False, True])
@parametrize("name", GEOMETRIES)
def test_the_reference_is_the_derivative(name, transposed):
  """Of sum(dy * Relu(conv(x, w) + b)) by central differences, which for a piecewise quadratic function are exact."""
  case = Case("derivative", GEOMETRIES[name], typed(RELU, "double"), transposed=transposed)
  rng = np.random.default_rng(len(name))
  x, w = (rng.standard_normal(shape) for shape in case.shapes[:2])
  dy, b = rng.standard_normal(case.shapes[2]), rng.standard_normal(case.geometry.filters)
  shift = b.reshape(-1, *(1,) * (dy.ndim - 2))
  y = np.maximum(convolved(case, x, w) + shift, 0)
  gradients = OPERATOR.reference(case.node(), [x, w, dy, y])
  step = 1e-7
  for which, gradient in enumerate(gradients):
    for at in rng.choice(gradient.size, min(gradient.size, 12), replace=False):
      values = []
      for sign in (1, -1):
        moved = [x.copy(), w.copy(), b.copy()]
        moved[which].reshape(-1)[at] += sign * step
        out = convolved(case, moved[0], moved[1]) + moved[2].reshape(shift.shape)
        values.append(float((dy * np.maximum(out, 0)).sum()))
      numerical = (values[0] - values[1]) / (2 * step)
      assert abs(numerical - gradient.reshape(-1)[at]) < 1e-5 * max(1.0, np.abs(gradient).max())


# ONNX Runtime has no convolution in double, float16 or bfloat16 on the CPU.
FLOATS = [
  case
  for case in CASES
  if case.name.endswith(", float") and 0 not in case.shapes[-1] and case.attributes.get("weight_dtype") != "double"
]


@parametrize("case", FLOATS)
def test_the_decomposition_runs_without_the_library(case):
  check(case, computed(case.model(nodes=OPERATOR.decompose(case.node(), 18)), case.feeds()), unit=2.0**-22)


@parametrize("opset", [11, 13, 22])
def test_the_decomposition_of_other_opsets(opset):
  case = by_name["groups, transposed, NHWC, float"]
  model = case.model(nodes=OPERATOR.decompose(case.node(), opset))
  check(case, run_at_opset(model, case.feeds().values(), opset), unit=2.0**-22)


def shapes_of(case, *shapes):
  return [each.shape for each in OPERATOR.infer_shapes(case.node(), [TensorType(FLOAT, each) for each in shapes])]


def test_shapes_that_are_partly_known():
  case = by_name["3x3, NCHW, float"]
  full = ("N", 4, "H", "W")
  assert shapes_of(case, ("N", 3, "H", "W"), (4, 3, 3, 3), full) == [("N", 3, "H", "W"), (4, 3, 3, 3), (4,)]
  assert shapes_of(case, None, None, None) == [None, (None, None, 3, 3), None]
  assert shapes_of(case, ("N", 3, "H", "W"), None, ("N", None, 7, 9)) == [("N", 3, "H", "W"), (None, 3, 3, 3), (None,)]
  assert shapes_of(by_name["without X, float"], (2, 4, 3, 2), ("N", 2, 4, None)) == [("N", 4, 7, None)]


def node(**changes):
  """A valid node but for the changes; None removes an attribute."""
  return changed(by_name["3x3, NCHW, float"].node(), changes)


WRONG = {
  "the attribute 'program' is missing": {"program": None},
  "expected '('": {"program": "nonsense"},
  "the program holds a SumTo": {"program": '(float z) => (float y) { y = SumTo<axes="0">(z) }'},
  "first result must be a floating value": {"program": "(float z) => (bool p) { p = Greater(z, 0) }"},
  "gradients='dW dX' must be some of": {"gradients": "dW dX"},
  "gradients='' must name": {"gradients": "", "outputs": []},
  "operands='Z' must be some of X, W": {"operands": "Z"},
  "dX needs W": {"operands": "X", "inputs": ["X", "dz"]},
  "dW needs X": {"operands": "W", "inputs": ["W", "dz"]},
  "transposed=2 must be 0 to 1": {"transposed": 2},
  "layout='NWHC' must be": {"layout": "NWHC"},
  "group=0 must be 1 or more": {"group": 0},
  "strides=[1, 0] must be integers, each 1 or more": {"strides": [1, 0]},
  "pads=[1, 1] must have 4 numbers": {"pads": [1, 1]},
  "'kernel_shape' must have 1 to 3 numbers": {"kernel_shape": None},
  "weight_dtype='int8' must be one of": {"weight_dtype": "int8"},
  "2 inputs, but": {"inputs": ["X", "W"]},
  "1 outputs, but": {"outputs": ["dX"]},
}


test_an_invalid_node_is_named = invalid_nodes(WRONG, lambda changes: node(**changes))


WRONG_SHAPES = {
  "has another rank": ((2, 3, 7), (4, 3, 3, 3), (2, 4, 7, 9)),
  "X and S have different batches": ((2, 3, 7, 9), (4, 3, 3, 3), (1, 4, 7, 9)),
  "W does not have the channels": ((2, 3, 7, 9), (4, 2, 3, 3), (2, 4, 7, 9)),
  "is not W's": ((2, 3, 7, 9), (4, 3, 3, 1), (2, 4, 7, 9)),
  "along spatial axis 1 the sizes 8 and 9 do not belong together": ((2, 3, 7, 9), (4, 3, 3, 3), (2, 4, 7, 8)),
}


@parametrize("reason", WRONG_SHAPES)
def test_shapes_that_contradict_each_other(reason):
  case = by_name["3x3, NCHW, float"]
  with pytest.raises(ModelError) as caught:
    OPERATOR.infer_shapes(case.node(), [TensorType(FLOAT, shape) for shape in WRONG_SHAPES[reason]])
  assert reason in str(caught.value)


def test_the_check_finds_one_term():
  case = Case("check", replace(GEOMETRIES["many channels"], batch=1), typed(BARE, "float"))
  outputs = [np.array(each) for each in OPERATOR.reference(case.node(), case.inputs())]
  check(case, outputs)
  x, _, dz = case.inputs()
  outputs[1][3, 5, 1, 1] -= dz[0, 3, 2, 2] * x[0, 5, 2, 2]
  with raises(AssertionError, "dW: 1 of"):
    check(case, outputs)
