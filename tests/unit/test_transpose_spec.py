import numpy as np
import onnx
import pytest
from node_cases import assert_invalid
from onnx import helper

from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN, TensorType
from ortplugin.ops.transpose import OPERATOR, TO_THE_END

HALF = np.dtype(np.float16)


def node(**given):
  return helper.make_node("FusedTranspose", given.pop("inputs", ["x"]), ["y"], "moved", domain=DOMAIN, **given)


@pytest.mark.parametrize(
  "x, window, wanted",
  [
    (("n", 5, 6), {}, (6, "n", 5)),
    (("n", None, 6), {}, (6, "n", None)),
    (("n", 5, 6), {"starts": [0, 1, -2], "ends": [TO_THE_END, 9, -1]}, (1, "n", 4)),
    (("n", "m", 6), {"starts": [1, 0, 4], "ends": [TO_THE_END, 3, 2]}, (0, None, None)),
    (None, {}, None),
  ],
)
def test_shapes(x, window, wanted):
  assert OPERATOR.infer_shapes(node(perm=[2, 0, 1], **window), [TensorType(HALF, x)]) == [TensorType(HALF, wanted)]


def test_the_decomposition_cuts_only_what_is_cut():
  whole = OPERATOR.decompose(node(perm=[1, 0]), 18)
  assert [each.op_type for each in whole] == ["Transpose"]
  cut = OPERATOR.decompose(node(perm=[1, 0], starts=[0, 2], ends=[TO_THE_END, 4]), 18)
  assert [each.op_type for each in cut] == ["Constant"] * 3 + ["Slice", "Transpose"]
  assert [onnx.numpy_helper.to_array(each.attribute[0].t).tolist() for each in cut[:3]] == [[2], [4], [1]]


@pytest.mark.parametrize(
  "given, reason",
  [
    ({}, "perm has 0 numbers; there must be 1 to 16"),
    ({"perm": [1, 1]}, "perm is [1, 1], which is no order of the axes 0 to 1"),
    ({"perm": [1, 0], "starts": [0, 0]}, "ends has 0 numbers, but perm has 2"),
    ({"perm": [1, 0], "ends": [1, 1, 1]}, "starts has 0 numbers, but perm has 2"),
    ({"perm": 1}, "the attribute 'perm' is INT instead of INTS"),
    ({"perm": [1, 0], "axes": [0]}, "it has no attribute 'axes'"),
    ({"perm": [1, 0], "inputs": ["x", "x"]}, "2 inputs and 1 outputs, but it has one of each"),
  ],
)
def test_errors(given, reason):
  assert_invalid(node(**given), reason)


def test_inputs_that_do_not_fit():
  with pytest.raises(ModelError, match=r"node 'moved' .*x has 3 dimensions, but perm is \[1, 0\]"):
    OPERATOR.infer_shapes(node(perm=[1, 0]), [TensorType(HALF, (2, 3, 4))])
  with pytest.raises(ModelError, match="x is object, which the operator lacks"):
    OPERATOR.infer_shapes(node(perm=[1, 0]), [TensorType(np.dtype(object), (2, 3))])
