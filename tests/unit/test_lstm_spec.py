import numpy as np
import pytest
from lstm_cases import Case
from node_cases import assert_invalid, changed

from ortplugin.errors import ModelError
from ortplugin.graph import TensorType
from ortplugin.ops.lstm import OPERATOR

CASE = Case("spec", "float16", 5, 3, 16, states=True)
HALF = np.dtype(np.float16)


@pytest.mark.parametrize(
  "g, batch_first, wanted",
  [
    ((5, "b", 128), 0, [(5, "b", 32), (2, "b", 16), (2, "b", 16)]),
    ((5, "b", None), 1, [(5, "b", 32), (2, 5, 16), (2, 5, 16)]),
    ((4, 5, 3, 128), 1, [(4, 5, 3, 32), (2, 12, 16), (2, 12, 16)]),
    ((5, "b", 3, 128), 0, [(5, "b", 3, 32), (2, None, 16), (2, None, 16)]),
    (None, 0, [None, (2, None, 16), (2, None, 16)]),
  ],
)
def test_shapes(g, batch_first, wanted):
  node = changed(CASE.node(), {"inputs": ["G", "R"], "batch_first": batch_first})
  types = [TensorType(HALF, g), TensorType(HALF, (2, 64, 16))]
  assert OPERATOR.infer_shapes(node, types) == [TensorType(HALF, shape) for shape in wanted]


def test_the_decomposition():
  ops = [each.op_type for each in OPERATOR.decompose(CASE.node(), 18) if each.op_type != "Constant"]
  assert ops.count("LSTM") == 1
  assert ops[:5] == ["Cast"] * 4 + ["Reshape"]


@pytest.mark.parametrize(
  "changes, reason",
  [
    ({"inputs": ["G"]}, "1 inputs, but it takes 2, G and R, or 4"),
    ({"inputs": ["G", "R", "", "c0"]}, "4 inputs, but it takes 2"),
    ({"outputs": ["Y", "", "Y_c"]}, "3 outputs, but it has 1 to 3"),
    ({"hidden_size": None}, "hidden_size is 0, but must be from 1"),
    ({"dtype": "double"}, "dtype is 'double', but must be one of float16, bfloat16, float"),
    ({"direction": "both"}, "direction is 'both', but must be one of forward, reverse, bidirectional"),
    ({"batch_first": 2}, "batch_first is 2, but must be 0 or 1"),
    ({"allow_tf32": 2}, "allow_tf32 is 2, but must be 0 or 1"),
    ({"clip": 1.0}, "it has no attribute 'clip'"),
  ],
)
def test_errors(changes, reason):
  assert_invalid(changed(CASE.node(), changes), reason)


@pytest.mark.parametrize(
  "place, given, reason",
  [
    (0, (5, 3, 64), r"G has the shape \[5, 3, 64\], but must have \[\?, \?, 128\]"),
    (1, (1, 64, 16), r"R has the shape \[1, 64, 16\], but must have \[2, 64, 16\]"),
    (3, (2, 4, 16), r"c0 has the shape \[2, 4, 16\], but must have \[2, 3, 16\]"),
  ],
)
def test_inputs_that_do_not_fit(place, given, reason):
  types = [TensorType(HALF, shape) for shape in CASE.shapes]
  types[place] = TensorType(HALF, given)
  with pytest.raises(ModelError, match=f"node 'recurrence' .*{reason}"):
    OPERATOR.infer_shapes(CASE.node(), types)
  types[place] = TensorType(np.dtype(np.float32), CASE.shapes[place])
  with pytest.raises(ModelError, match="is float32, but dtype is 'float16'; cast it"):
    OPERATOR.infer_shapes(CASE.node(), types)
