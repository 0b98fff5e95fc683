import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from node_cases import identity_model
from onnx import TensorProto, helper
from onnx_models import built, ones, parametrize, raises, value_infos

import ortplugin
from ortplugin import run
from ortplugin.errors import RuntimeMissingError, UsageError
from ortplugin.ops import OPERATORS
from ortplugin.session import gpu_count

PROGRAM = "(float x, float g) => (float y) { n = LayerNormalization<axis=-1, epsilon=1e-05>(x) y = Mul(n, g) }"


def norm_model():
  node = helper.make_node(OPERATORS[0].name, ["x", "g"], ["y"], "ln", domain="ortplugin", program=PROGRAM)
  return built([node], "float[n,8] x, float[8] g", "float[n,8] y", domains=["ortplugin"]).SerializeToString()


def plain_session(model):
  return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def expected_norm(x):
  mean = x.mean(-1, keepdims=True)
  return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def test_a_session_runs_the_plugins_operators(tmp_path, rng):
  (tmp_path / "m.onnx").write_bytes(norm_model())
  x = rng.standard_normal((3, 8)).astype(np.float32)
  for source in (norm_model(), tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
    session = ortplugin.session(source, providers=["cpu"])
    assert isinstance(session, onnxruntime.InferenceSession)
    result = run(session, {"x": x, "g": np.full(8, 2, np.float32)})
    np.testing.assert_allclose(result["y"], 2 * expected_norm(x), rtol=1e-5, atol=1e-6)


def test_cuda_is_refused_where_there_is_none():
  if gpu_count() and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
    assert "CUDAExecutionProvider" in ortplugin.session(norm_model(), ["cuda"]).get_providers()
    return
  with pytest.raises(RuntimeMissingError):
    ortplugin.session(norm_model(), ["cuda"])


@parametrize("name", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "BOOL", "UINT8", "FLOAT8E4M3FN"])
def test_every_dtype_goes_through(name):
  number = TensorProto.DataType.Value(name)
  x = np.arange(6).reshape(2, 3).astype(helper.tensor_dtype_to_np_dtype(number))
  session = plain_session(identity_model(number, 21))
  result = run(session, {"x": x})["y"]
  assert result.dtype == x.dtype
  assert (result == x).all()
  assert (run(session, {"x": x.T})["y"] == x.T).all()  # not contiguous
  assert run(session, {"x": x[:0]})["y"].shape == (0, 3)


def test_strings_go_through():
  words = np.array([["a", "b"]], dtype=object)
  assert (run(plain_session(identity_model(TensorProto.STRING, 21)), {"x": words})["y"] == words).all()


def test_results_are_the_callers_own():
  session = plain_session(identity_model(TensorProto.BFLOAT16, 21))
  kept = run(session, {"x": np.ones((2, 2), ml_dtypes.bfloat16)})["y"]
  run(session, {"x": np.zeros((2, 2), ml_dtypes.bfloat16)})
  del session
  assert kept.astype(float).sum() == 4


@parametrize(
  "feeds, words",
  [
    ({"x": np.ones((1, 1))}, "input 'x' is float64, the model wants float32"),
    ({"y": ones(1, 1)}, "no input 'y'"),
    ({}, "inputs x are missing"),
  ],
)
def test_wrong_feeds(feeds, words):
  with raises(UsageError, words):
    run(plain_session(identity_model(TensorProto.FLOAT, 21)), feeds)


def test_arrays_of_other_libraries():
  torch = pytest.importorskip("torch")
  session = plain_session(identity_model(TensorProto.FLOAT, 21))
  assert (run(session, {"x": torch.ones(2, 3)})["y"] == 1).all()
  with raises(UsageError, "Tensor that NumPy can't read"):
    run(session, {"x": torch.ones(2, 3, requires_grad=True)})


def test_chosen_outputs():
  model = onnx.load_model_from_string(identity_model(TensorProto.FLOAT, 21))
  model.graph.node.append(helper.make_node("Neg", ["x"], ["z"]))
  model.graph.output.extend(value_infos("float[n,m] z"))
  session = plain_session(model.SerializeToString())
  assert list(run(session, {"x": ones(1, 1)}, ["z"])) == ["z"]
  with raises(UsageError, "no output 'w'"):
    run(session, {"x": ones(1, 1)}, ["w"])
