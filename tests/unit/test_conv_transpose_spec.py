import numpy as np
import onnx
from conv_transpose_cases import GEOMETRIES, OPERATOR, by_name, check
from node_cases import changed, invalid_nodes, run_at_opset
from onnx.reference import ReferenceEvaluator
from onnx_models import parametrize

from ortplugin.ops import TensorType
from ortplugin.ops.conv_transpose import attributes_of
from ortplugin.ops.conv_transpose.reference import transposed_convolution

HALF = np.dtype(np.float16)


def test_the_reference_is_the_formula():
  case = by_name["1-D, NCHW, double"]
  x, w, *_ = case.inputs()
  y = transposed_convolution(attributes_of(case.node()), x, w)
  wanted = np.zeros_like(y)
  for o in range(x.shape[2]):
    for k in range(w.shape[2]):
      i = o * 2 + k - 2
      if 0 <= i < y.shape[2]:
        wanted[:, :, i] += np.einsum("nj,jm->nm", x[:, :, o], w[:, :, k])
  np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)


@parametrize("opset", [11, 13, 22])
@parametrize("name", ["residual, NHWC", "groups, NHWC", "output_shape, NCHW", "residual, turned", "bare, turned"])
def test_the_decomposition_is_the_reference(name, opset):
  case = by_name[f"{name}, float"]
  model = case.model(nodes=OPERATOR.decompose(case.node(), opset))
  check(case, run_at_opset(model, case.feeds().values(), opset), unit=2.0**-22)


def test_the_decomposition_runs_in_onnxs_own_evaluator():
  case = by_name["strided, NHWC, double"]
  model = onnx.load_model_from_string(case.model(nodes=OPERATOR.decompose(case.node(), 18)))
  check(case, ReferenceEvaluator(model).run(None, case.feeds()))


@parametrize("name", GEOMETRIES)
def test_shapes_are_onnxs(name):
  """onnx.shape_inference has the same sizes for the decomposition, where it handles the attributes."""
  case = by_name[f"{name}, NCHW, float"]
  model = onnx.load_model_from_string(case.model(nodes=OPERATOR.decompose(case.node(), 18)))
  inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
  types = [TensorType(np.dtype(np.float32), shape) for shape in case.shapes]
  assert [dim.dim_value for dim in inferred.dim] == list(OPERATOR.infer_shapes(case.node(), types)[0].shape or ())


def test_shapes_that_are_partly_known():
  case = by_name["strided, NHWC, float16"]

  def shape(*shapes):
    return OPERATOR.infer_shapes(case.node(), [TensorType(HALF, each) for each in shapes])[0].shape

  assert shape(("N", "H", 4, 3), (3, 3, 3, 4)) == ("N", None, 7, 4)
  assert shape(None, (3, 3, 3, 4)) == (None, None, None, 4)


def node(**changes):
  return changed(by_name["strided, NCHW, float"].node(), changes)


WRONG = {
  "'program' is missing": {"program": None},
  "strides has 1 numbers": {"strides": [2]},
  "layout is 'NCWH'": {"layout": "NCWH"},
  "pads is [1, 1, 1, 1] beside auto_pad VALID": {"auto_pad": "VALID"},
  "allow_tf32 must be 0 or 1": {"allow_tf32": 2},
  "inputs, but": {"inputs": ["X", "W", "Z"]},
}


test_an_invalid_node_is_named = invalid_nodes(WRONG, lambda changes: node(**changes))
