"""Two GPUs of one host: sessions on both at once, plain and under CUDA graphs; verification, --tune and the list of
algorithms on the second one.

One command runs all of it: pytest tests/gpu/test_two_gpus.py --require-gpu -q
"""

import threading

import numpy as np
import onnx
import pytest
from exported import DATA
from onnx import helper, numpy_helper
from onnx_models import parsed
from threads import in_threads

import ortplugin
from gpu.device import cupy, python, same_bits
from ortplugin import optimize, run
from ortplugin.check import judge, tune
from ortplugin.check.inputs import shifted, without_weights
from ortplugin.check.judge import Judge, Question, Side
from ortplugin.check.replays import GraphSession, compare_replays
from ortplugin.cli import main
from ortplugin.errors import ModelError, UsageError
from ortplugin.graph import TensorType
from ortplugin.ops import find
from ortplugin.report import GRAPH, PLAIN
from ortplugin.session import CUDA, gpu_count
from ortplugin.session.cuda_driver import Gpu

pytestmark = pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")

BERT = DATA / "bert_torchscript_opset14_fp16.onnx"
GPUS = (0, 1)


def network():
  """Two convolutions, a norm over channels and what is pointwise between: several of our kernels in a row, fp16."""
  rng = np.random.default_rng(0)
  tensors = {
    "w": rng.standard_normal((64, 16, 3, 3)) / 12,
    "b": rng.standard_normal(64),
    "v": rng.standard_normal((32, 64, 1, 1)) / 8,
    "g": rng.standard_normal(28),
    "h": rng.standard_normal(28),
  }
  return parsed(
    """g (float16[2,16,28,28] x) => (float16[2,32,28,28] y) {
        [conv] c = Conv <pads=[1,1,1,1]>(x, w, b)  [relu] r = Relu(c)  [pointwise] d = Conv(r, v)
        [sigmoid] s = Sigmoid(d)  [mul] m = Mul(d, s)  [norm] y = LayerNormalization <axis=-1>(m, g, h) }""",
    18,
    10,
    weights={name: value.astype(np.float16) for name, value in tensors.items()},
  )


@pytest.fixture(scope="module")
def optimized():
  model, report = optimize(network())
  assert report.fused
  return model


def image(seed):
  return np.random.default_rng(seed).standard_normal((2, 16, 28, 28)).astype(np.float16)


def saved(model, path):
  onnx.save(model, path)
  return Side(path, any(node.domain == "ortplugin" for node in model.graph.node))


def free(device):
  with cupy.cuda.Device(device):
    return int(cupy.cuda.runtime.memGetInfo()[0])


# ---- sessions


def test_the_device_is_the_sessions(optimized):
  serialized = optimized.SerializeToString()
  for device in GPUS:
    session = ortplugin.session(serialized, ["cuda"], device_id=device)
    assert session.get_provider_options()[CUDA]["device_id"] == str(device)
    with cupy.cuda.Device(device):
      result = run(session, {"x": cupy.asarray(image(0))})["y"]
    assert result.device.id == device
  with pytest.raises(UsageError, match=f"there is no GPU {gpu_count()}"):
    ortplugin.session(serialized, ["cuda"], device_id=gpu_count())
  with pytest.raises(UsageError, match="device_id is 1, the provider's options say 0"):
    ortplugin.session(serialized, [("cuda", {"device_id": 0})], device_id=1)
  with cupy.cuda.Device(0):  # before the session is made, which leaves its own GPU current
    array = cupy.asarray(image(0))
  with pytest.raises(UsageError, match="is on GPU 0, the session runs on GPU 1"):
    run(ortplugin.session(serialized, ["cuda"], device_id=1), {"x": array})


def test_both_at_once(optimized):
  """Four threads, two on each GPU, each with a plain session and one with a CUDA graph, on images of their own.

  Graphs are captured one after the other: while one is, CUDA refuses allocations in every thread of the process.
  """
  serialized = optimized.SerializeToString()
  images = [image(seed) for seed in range(8)]
  with cupy.cuda.Device(0):
    alone = ortplugin.session(serialized, ["cuda"], device_id=0)
    wanted = [cupy.asnumpy(run(alone, {"x": cupy.asarray(x)})["y"]) for x in images]
  same_kind = len({cupy.cuda.runtime.getDeviceProperties(device)["name"] for device in GPUS}) == 1
  one_by_one, ready = threading.Lock(), threading.Barrier(4)

  def work(number):
    device = GPUS[number % 2]
    with cupy.cuda.Device(device):
      with one_by_one:
        plain = ortplugin.session(serialized, ["cuda"], device_id=device)
        graph = ortplugin.session(serialized, ["cuda"], cuda_graph=True, device_id=device)
        arrays = [cupy.asarray(x) for x in images]
        first = [cupy.asnumpy(run(plain, {"x": x})["y"]) for x in arrays]
        for x in arrays:
          run(graph, {"x": x}, copy=True)  # CuPy's and ONNX Runtime's memory grows here
        cupy.cuda.Device(device).synchronize()
      ready.wait()
      for turn in range(100):
        index = (turn * 3 + number) % len(images)
        found = run(plain, {"x": arrays[index]})["y"]
        again = run(graph, {"x": arrays[index]})["y"]
        assert found.device.id == again.device.id == device
        assert same_bits([cupy.asnumpy(found), cupy.asnumpy(again)], [first[index]] * 2), (number, turn)
      for index, values in enumerate(first):
        if device == 0 or same_kind:
          assert same_bits([values], [wanted[index]])
        else:
          np.testing.assert_allclose(values.astype(float), wanted[index].astype(float), rtol=1e-2, atol=1e-2)

  in_threads(4, work)


def test_streams_of_both_gpus(optimized, tmp_path):
  """Queued replays on the second GPU while the first one is busy, from one thread."""
  side = saved(optimized, tmp_path / "m.onnx")
  feeds = {"x": image(3)}
  with Gpu(0) as other:
    stream = other.stream()
    other.disturb(stream, 132, 100_000)
    with GraphSession(
      lambda options: judge.make_session(side, CUDA, options=options), 1
    ) as graphs:  # its context is current now
      found = graphs.replay([feeds, shifted(feeds)])
    other.synchronize(stream)
    other.check()
  assert found.queued
  assert found.differing("y") == 0
  assert all(each.passed for case, plain in enumerate(found.plain) for each in compare_replays(found, case, plain))


# ---- verification


def test_verification_on_the_second(optimized, tmp_path, monkeypatch):
  model = network()
  devices = []

  def make(side, provider, tf32=False, options=None, real=judge.make_session):
    session = real(side, provider, tf32, options)
    devices.append(session.get_provider_options()[CUDA]["device_id"])
    return session

  monkeypatch.setattr(judge, "make_session", make)
  question = Question(saved(model, tmp_path / "m.onnx"), without_weights(model).SerializeToString(), device_id=1)
  result = Judge(question).verify(CUDA, saved(optimized, tmp_path / "fast.onnx"), timed=True)
  assert result.passed
  assert set(devices) == {"1"}
  assert {each.mode for each in result.inputs} == {PLAIN, GRAPH}
  assert result.original_ms is not None


def test_both_verify_at_once(tmp_path):
  """Each in a process of its own, as `optimize` does it: captures of one are no business of the other."""
  reports = {}

  def work(number):
    _, reports[number] = optimize(network(), verify=True, providers=["cuda"], device_id=GPUS[number])

  in_threads(2, work)
  for report in reports.values():
    assert report.passed
    assert report.verification[0].replays > 0


def test_the_command(tmp_path, capsys):
  before = free(0)
  out = tmp_path / "fast.onnx"
  assert main([str(BERT), "-o", str(out), "--provider", "cuda", "--device", "1"]) == 0
  assert "on CUDA" in capsys.readouterr().out
  assert free(0) > before - 2**28, "GPU 0 was used"
  assert main([str(out), "-o", str(tmp_path / "back.onnx"), "--restore", "--provider", "cuda", "--device", "1"]) == 0


# ---- tuning


def test_tuning_on_the_second(optimized, monkeypatch):
  devices, real = [], tune.make_session

  def make(*given, **rest):
    session = real(*given, **rest)
    devices.append(session.get_provider_options()[CUDA]["device_id"])
    return session

  monkeypatch.setattr(tune, "make_session", make)
  feeds = {"x": image(0)}
  tuned, report = tune.tune(optimized, feeds, CUDA, device_id=1)
  assert set(devices) == {"1"}
  assert report
  assert all(entry.microseconds[""] is not None for entry in report)
  with cupy.cuda.Device(1):
    results = [
      cupy.asnumpy(run(ortplugin.session(each.SerializeToString(), ["cuda"], device_id=1), feeds)["y"]).astype(float)
      for each in (optimized, tuned)
    ]
  np.testing.assert_allclose(*results, rtol=1e-2, atol=3e-2)


def test_the_whole_of_tuning_and_verifying():
  """In a process of its own, in which nothing has touched GPU 0 before."""
  done = python("""
from gpu.test_two_gpus import network
import ortplugin
_, report = ortplugin.optimize(network(), tune=True, verify=True, providers=["cuda"], device_id=1)
assert report.passed
assert report.tuning
print(report.verification[0].replays, "replays")
""")
  assert done.returncode == 0, done.stderr
  assert done.stdout.endswith("replays\n")
  assert not done.stdout.startswith("0 ")


# ---- algorithms


def test_the_list_of_algorithms(optimized):
  """Of every node that has any, on both GPUs from threads at once; equal GPUs offer the same."""
  initializers = {tensor.name: numpy_helper.to_array(tensor) for tensor in optimized.graph.initializer}
  inferred = onnx.shape_inference.infer_shapes(optimized).graph
  shapes = {value.name: value for value in [*inferred.input, *inferred.value_info]}
  asked = []
  for node in optimized.graph.node:
    operator = find(node.domain, node.op_type)
    if operator is None or not node.op_type.startswith("FusedConv"):
      continue
    types = []
    for name in node.input:
      if name in initializers:
        types.append(TensorType(initializers[name].dtype, initializers[name].shape))
      else:
        tensor = shapes[name].type.tensor_type
        dims = tuple(dim.dim_value for dim in tensor.shape.dim)
        types.append(TensorType(helper.tensor_dtype_to_np_dtype(tensor.elem_type), dims))
    asked.append((operator, node, types, [name in initializers for name in node.input]))
  assert asked
  found = {}

  def work(number):
    found[number] = [
      operator.device_variants(node, types, constant, GPUS[number]) for operator, node, types, constant in asked
    ]

  in_threads(2, work)
  assert all(found[0])
  assert all(found[1])
  names = {cupy.cuda.runtime.getDeviceProperties(device)["name"] for device in GPUS}
  if len(names) == 1:
    assert found[0] == found[1]
  operator, node, types, constant = asked[0]
  with pytest.raises(ModelError, match="algorithms can't be listed"):
    operator.device_variants(node, types, constant, gpu_count())
