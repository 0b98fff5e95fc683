"""`session` and `run` on a GPU: no copies, CuPy in and out, CUDA graphs, other libraries' arrays."""

import gc

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from exported import DATA
from fuzz.corpus import corpus, from_text
from fuzz.judge import optimize
from fuzz.providers import Cuda
from node_cases import identity_model
from onnx import TensorProto, helper
from onnx_models import built, parametrize, parsed

import ortplugin
from gpu.device import cupy
from ortplugin import run
from ortplugin.errors import UsageError
from ortplugin.ops import OPERATORS
from ortplugin.session import device, host_outputs

NAMES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32, "double": np.float64}
TOLERANCES = {"float16": 5e-3, "bfloat16": 4e-2, "float": 1e-5, "double": 1e-12}


def norm_model(dtype="float"):
  """y = LayerNorm(x + r) * g, s = x + r, over rows of 64."""
  program = f"""({dtype} x, {dtype} r, {dtype} g) => ({dtype} y, {dtype} s) {{
        s = Add(x, r)
        n = LayerNormalization<axis=-1, epsilon=1e-05>(s)
        y = Mul(n, g)
      }}"""
  node = helper.make_node(OPERATORS[0].name, ["x", "r", "g"], ["y", "s"], "ln", domain="ortplugin", program=program)
  inputs, outputs = f"{dtype}[n,64] x, {dtype}[n,64] r, {dtype}[64] g", f"{dtype}[n,64] y, {dtype}[n,64] s"
  return built([node], inputs, outputs, domains=["ortplugin"]).SerializeToString()


def made(**options):
  return ortplugin.session(norm_model(), ["cuda"], **options)


def feeds(rng, rows, dtype="float"):
  """Arrays on the device."""
  shapes = {"x": (rows, 64), "r": (rows, 64), "g": (64,)}
  return {name: cupy.asarray(rng.standard_normal(shape).astype(NAMES[dtype])) for name, shape in shapes.items()}


def expected(arrays):
  x, r, g = (cupy.asnumpy(arrays[name]).astype(np.float64) for name in ("x", "r", "g"))
  s = x + r
  centred = s - s.mean(-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g


def assert_close(got, wanted, dtype="float"):
  assert isinstance(got, cupy.ndarray)
  np.testing.assert_allclose(
    cupy.asnumpy(got).astype(np.float64), wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * np.abs(wanted).max()
  )


class Spy:
  """A session that remembers what is bound."""

  def __init__(self, session):
    self.session = session
    self.pointers = []

  def __getattr__(self, name):
    return getattr(self.session, name)

  def io_binding(self):
    binding = self.session.io_binding()
    bind = binding.bind_input

    def bind_input(name, *rest):
      self.pointers.append(rest[-1])
      bind(name, *rest)

    binding.bind_input = bind_input
    return binding


def test_cuda_comes_first_by_default():
  assert ortplugin.session(norm_model()).get_providers()[0] == "CUDAExecutionProvider"
  assert ortplugin.session(norm_model(), ["cpu"]).get_providers() == ["CPUExecutionProvider"]


@parametrize("dtype", NAMES)
def test_cupy_arrays_in_and_out(rng, dtype):
  arrays = feeds(rng, 5, dtype)
  result = run(ortplugin.session(norm_model(dtype), ["cuda"]), arrays)
  assert list(result) == ["y", "s"]
  assert result["y"].dtype == arrays["x"].dtype
  assert_close(result["y"], expected(arrays), dtype)


def test_contiguous_arrays_are_bound_where_they_are(rng):
  spy = Spy(ortplugin.session(norm_model(), ["cuda"]))
  arrays = feeds(rng, 4)
  assert_close(run(spy, arrays)["y"], expected(arrays))
  assert spy.pointers == [array.data.ptr for array in arrays.values()]


def test_strided_and_host_arrays(rng):
  session = made()
  arrays = feeds(rng, 6)
  arrays["x"] = cupy.asarray(rng.standard_normal((64, 6)).astype(np.float32)).T
  assert not arrays["x"].flags.c_contiguous
  assert_close(run(session, arrays)["y"], expected(arrays))
  assert_close(run(session, {n: cupy.asnumpy(a) for n, a in arrays.items()})["y"], expected(arrays))


def test_work_of_the_current_stream_is_waited_for(rng):
  session = made()
  arrays = feeds(rng, 4)
  large = cupy.ones((4096, 4096), np.float32)
  with cupy.cuda.Stream(non_blocking=True):
    for _ in range(20):
      large = large @ large * 0  # keeps the stream busy while the next line waits in it
    arrays["x"] += large[0, 0] + 1
    result = run(session, arrays)["y"]
  assert_close(result, expected(arrays))


def test_results_outlive_session_and_later_runs(rng):
  session = made()
  first, second = feeds(rng, 4), feeds(rng, 4)
  kept = run(session, first)["y"]
  for _ in range(10):
    run(session, second)
  assert_close(kept, expected(first))
  del session
  gc.collect()
  assert_close(kept + 0, expected(first))


def test_chosen_outputs_and_empty_rows(rng):
  session = made()
  assert list(run(session, feeds(rng, 3), ["s"])) == ["s"]
  assert run(session, feeds(rng, 0))["y"].shape == (0, 64)


@parametrize("kind", ["FLOAT", "FLOAT16", "DOUBLE", "INT64", "INT32", "BOOL"])
def test_dtypes_go_through(kind):
  number = TensorProto.DataType.Value(kind)
  x = cupy.arange(6).reshape(2, 3).astype(helper.tensor_dtype_to_np_dtype(number))
  result = run(ortplugin.session(identity_model(number, 17), ["cuda"]), {"x": x})["y"]
  assert result.dtype == x.dtype
  assert (result == x).all()


def test_wrong_dtypes_are_refused(rng):
  session = made()
  arrays = feeds(rng, 3)
  arrays["x"] = arrays["x"].astype(np.float16)
  with pytest.raises(UsageError, match="input 'x' is float16, the model wants float32"):
    run(session, arrays)


def test_torch_tensors_by_dlpack(rng):
  torch = pytest.importorskip("torch")
  if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA")
  spy = Spy(ortplugin.session(norm_model(), ["cuda"]))
  arrays = feeds(rng, 4)
  tensors = {name: torch.from_numpy(cupy.asnumpy(array)).cuda() for name, array in arrays.items()}
  result = run(spy, tensors)["y"]
  assert spy.pointers == [tensor.data_ptr() for tensor in tensors.values()]
  assert_close(result, expected(arrays))
  assert torch.from_dlpack(result).data_ptr() == result.data.ptr


# ---- CUDA graphs


@parametrize("dtype", NAMES)
def test_replay_equals_a_plain_run(rng, dtype):
  plain = ortplugin.session(norm_model(dtype), ["cuda"])
  graph = ortplugin.session(norm_model(dtype), ["cuda"], cuda_graph=True)
  for _ in range(4):  # captured once, replayed three times, on new values each time
    arrays = feeds(rng, 8, dtype)
    wanted, got = run(plain, arrays), run(graph, arrays)
    for name in wanted:
      assert (got[name].view(f"u{got[name].itemsize}") == wanted[name].view(f"u{got[name].itemsize}")).all()


def test_a_capture_that_failed_leaves_nothing_behind(rng):
  """Of a model with a constant output, which ONNX Runtime copies there during the capture."""
  text = """<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y, float[1,1] z)
        <float[1] c = {3}, int64[1] i = {0}> { y = Relu(x)  z = Unsqueeze(c, i) }"""
  model = onnx.parser.parse_model(text).SerializeToString()
  x = np.array([-1, 2, -3, 4], np.float32)
  graph, plain = ortplugin.session(model, ["cuda"], cuda_graph=True), ortplugin.session(model, ["cuda"])
  for _ in range(2):
    with pytest.raises(Exception, match="captur"):
      run(graph, {"x": x})
    assert cupy.asnumpy(run(plain, {"x": x})["y"]).tolist() == [0, 2, 0, 4]
    other = ortplugin.session(norm_model(), ["cuda"], cuda_graph=True)  # allocates, which an open capture refuses
    run(other, feeds(rng, 8))
  assert not device._states[graph].graphs


def test_two_shapes_have_two_graphs(rng):
  session = made(cuda_graph=True)
  addresses = {4: set(), 9: set()}
  for rows in (4, 9, 4, 9, 9, 4):
    arrays = feeds(rng, rows)
    result = run(session, arrays)["y"]
    assert_close(result, expected(arrays))
    addresses[rows].add(result.data.ptr)
  assert [len(found) for found in addresses.values()] == [1, 1]
  assert len(device._states[session].graphs) == 2


def test_results_of_a_graph_are_overwritten_unless_copied(rng):
  session = made(cuda_graph=True)
  first, second = feeds(rng, 4), feeds(rng, 4)
  view = run(session, first)["y"]
  kept = run(session, first, copy=True)["y"]
  run(session, second)
  assert_close(view, expected(second))
  assert_close(kept, expected(first))


def test_the_callers_arrays_are_not_written_to(rng):
  session = made(cuda_graph=True)
  first, second = feeds(rng, 4), feeds(rng, 4)
  before = {name: array.copy() for name, array in first.items()}
  run(session, first)
  run(session, second)
  assert all((before[name] == first[name]).all() for name in first)


def test_buffers_go_with_their_session(rng):
  gc.collect()  # of the sessions of other tests
  session = made(cuda_graph=True)
  run(session, feeds(rng, 4), copy=True)
  count = len(device._states)
  del session
  gc.collect()
  assert len(device._states) == count - 1


# ---- command line


def test_models_are_verified_on_cuda(tmp_path, capsys):
  from ortplugin.cli import main

  model = DATA / "bert_torchscript_opset14_fp16.onnx"
  assert main([str(model), "-o", str(tmp_path / "fast.onnx"), "--provider", "cuda"]) == 0
  text = capsys.readouterr().out
  assert "on CUDA" in text
  assert "times as fast" in text
  assert onnx.load(tmp_path / "fast.onnx").graph.node


# What LpPool reads is read on the host, as CUDA has no kernel for it; Reshape's shape always is.
ON_THE_HOST = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,1,1,1] x, float[1,1,1] a) => (float[1,1,1,1] c) { b = LpPool<kernel_shape=[1,1]>(x) c = Mul(b, a) }"""
SHAPED = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,6] x, int64[2] shape, float[1] a) => (float[n,m] y) { v = Reshape(x, shape) y = Add(v, a) }"""


def test_inputs_that_are_read_on_the_host_are_those_of_the_run():
  """Binding an input copies what the session reads on the host, so the array must be there by then."""
  session = ortplugin.session(onnx.parser.parse_model(ON_THE_HOST).SerializeToString(), ["cuda"])
  for number in range(4000):
    x, a = float(number % 7 + 1), float(number % 5 + 1)
    feeds = {"x": np.full((1, 1, 1, 1), x, np.float32), "a": np.full((1, 1, 1), a, np.float32)}
    assert float(run(session, feeds)["c"].ravel()[0]) == x * a


def test_a_graph_is_one_of_the_values_that_are_read_on_the_host():
  model = onnx.parser.parse_model(SHAPED).SerializeToString()
  session = ortplugin.session(model, ["cuda"], cuda_graph=True)
  for _ in range(2):
    for shape in ((2, 6), (3, 4), (12, 1), (3, 4)):
      x = np.random.default_rng(sum(shape)).standard_normal((2, 6)).astype(np.float32)
      feeds = {"x": x, "shape": np.array(shape, np.int64), "a": np.ones(1, np.float32)}
      found = run(session, feeds)["y"]
      np.testing.assert_array_equal(cupy.asnumpy(found), x.reshape(shape) + 1)


def test_what_counts_on_the_host_is_not_captured():
  """ONNX Runtime captures it with a count of 0, and each replay writes the count to where its variable was."""
  model = parsed("""g (float[4] x, bool[4] m) => (float[n] y) { y = Compress(x, m) }""").SerializeToString()
  with pytest.raises(UsageError, match="Compress"):
    ortplugin.session(model, ["cuda"], cuda_graph=True)
  with pytest.raises(UsageError, match="Compress"):
    ortplugin.session(model, [("cuda", {"enable_cuda_graph": "1"})])
  ortplugin.session(model, ["cuda"])


def test_what_the_host_makes_is_right_in_every_run():
  """Of Hardmax, which has no GPU kernel: ONNX Runtime copies it to a GPU into memory that the Scan uses still."""
  case = from_text(corpus()["host-output-beside-a-scan-on-a-gpu"])
  made, _ = optimize(case)
  feeds, cuda = case.feeds[0], Cuda()  # with one thread: with more, all runs may be right
  wanted = run(ortplugin.session(case.model.SerializeToString(), ["cpu"]), feeds)
  for _ in range(12):
    session = cuda.session(made, False)
    assert host_outputs(session.ort)  # bound to the host; whether runs go wrong without that hangs on timing
    for _ in range(25):
      found = cuda.run(session, feeds)
      for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-3, err_msg=name)
