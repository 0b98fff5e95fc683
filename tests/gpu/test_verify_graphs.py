"""Verification on a GPU: queued replays of CUDA graphs, and faults that only they show.

One command runs all of it: pytest tests/gpu/test_verify_graphs.py --require-gpu -q
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from exported import DATA
from onnx import helper
from onnx_models import add_weights, built, parametrize
from ort.test_keep_faster import Delay, parsed

from gpu.device import cupy, python
from gpu.faulty import Faulty, planting
from ortplugin import optimize, optimizer
from ortplugin.check import judge, tune
from ortplugin.check.inputs import shifted, without_weights
from ortplugin.check.judge import Judge, Question, Side, make_session
from ortplugin.check.replays import REPLAYS, GraphSession, NotCaptured, compare_replays
from ortplugin.cli import main
from ortplugin.ops import OPERATORS
from ortplugin.optimizer import pipeline
from ortplugin.report import GRAPH, GRAPH_TF32, PLAIN
from ortplugin.session import CUDA
from ortplugin.session.cuda_driver import CudaError, Gpu

# A chain of kernels, ours and ONNX Runtime's.
CHAIN = """<ir_version: 8, opset_import: ["": 18]>
g (float[64,256] x) => (float[64,256] y) <float[256,256] w> {
  a = MatMul(x, w) b = Sigmoid(a) c = MatMul(b, w) y = Softmax(c) }"""
FORK = """<ir_version: 8, opset_import: ["": 18]>
g (float[4] x, bool c) => (float[4] y) {
  y = If(c) <then_branch = t () => (float[4] a) { a = Neg(x) }, else_branch = e () => (float[4] b) { b = Abs(x) }> }"""
HOST = """<ir_version: 8, opset_import: ["": 18]>
g (float[4] x) => (float[1,n] y) { i = NonZero(x) y = Cast<to=1>(i) }"""


def chain(opset=18):
  model = onnx.parser.parse_model(CHAIN)
  rng = np.random.default_rng(0)
  weights = (rng.standard_normal((256, 256)) / 16).astype(np.float32)
  add_weights(model, w=weights)
  return model


def many_inputs():
  """ONNX Runtime's Concat takes 32 inputs under capture."""
  names = [f"x{number}" for number in range(40)]
  nodes = [helper.make_node("Relu", ["x"], [name], name) for name in names]
  nodes.append(helper.make_node("Concat", names, ["y"], "concat", axis=0))
  return built(nodes, "float[2,8] x", "float[80,8] y", 18)


def saved(model, folder, name="m.onnx"):
  path = folder / name
  onnx.save(model, path)
  return Side(path, any(node.domain == "ortplugin" for node in model.graph.node))


def replayed(side, feeds, fault="", device_id=0):
  def make(options):
    session = make_session(side, CUDA, options=options)
    return Faulty(session, fault, options) if fault else session

  with GraphSession(make, device_id) as graphs:
    return graphs.replay([feeds, shifted(feeds)])


# ---- the driver


def test_memory_copies_and_fills():
  with Gpu(0) as gpu:
    stream = gpu.stream()
    values = np.arange(1000, dtype=np.int32)
    one, other = gpu.allocate(values.nbytes), gpu.allocate(values.nbytes)
    gpu.upload(one, values)
    gpu.fill(other, 0xFF, values.nbytes, stream)
    gpu.copy(other, one, 2000, stream)
    gpu.synchronize(stream)
    found = gpu.download(other, values.nbytes).view(np.int32)
    assert (found[:500] == values[:500]).all()
    assert (found[500:] == -1).all()
    assert gpu.download(gpu.allocate(0), 0).size == 0
    assert gpu.free_bytes() > 0
    gpu.check()
    with pytest.raises(CudaError, match=r"cuMemAlloc_v2 failed on GPU 0: CUDA_ERROR_OUT_OF_MEMORY"):
      gpu.allocate(2**50)


def test_a_disturbance_takes_its_time_and_streams_do_not_wait_for_each_other():
  with Gpu(0) as gpu:
    first, second = gpu.stream(), gpu.stream()
    for _ in range(2):  # the first one also compiles
      gpu.disturb(first, 4, 20_000)
      assert gpu.is_busy(first)
      gpu.disturb(second, 1, 1)
      gpu.synchronize(second)
      assert gpu.is_busy(first)
      gpu.synchronize(first)
      assert not gpu.is_busy(first)


def test_the_context_and_cupy_get_along():
  array = cupy.arange(10)
  with Gpu(0) as gpu:
    address, stream = gpu.allocate(array.nbytes), gpu.stream()
    cupy.cuda.get_current_stream().synchronize()  # `stream` waits for no other
    gpu.copy(address, array.data.ptr, array.nbytes, stream)
    gpu.synchronize(stream)
    gpu.check()
    assert (gpu.download(address, array.nbytes).view(np.int64) == np.arange(10)).all()
  assert int((array + 1).sum()) == 55


def test_there_is_no_gpu_of_a_large_number():
  with pytest.raises(CudaError, match="INVALID_DEVICE"), Gpu(1000):
    pass


# ---- replays


def feeds_of(model, rng):
  (value,) = model.graph.input
  shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
  return {value.name: rng.standard_normal(shape).astype(np.float32)}


def replays_agree(tmp_path, rng):
  model = chain()
  found = replayed(saved(model, tmp_path), feeds_of(model, rng))
  assert found.queued, "a run returns before the GPU is done"
  assert found.count == REPLAYS
  assert found.differing("y") == 0
  assert not found.unsteady
  for case, plain in enumerate(found.plain):
    (output,) = compare_replays(found, case, plain)
    assert output.passed
    assert output.max_abs_error is not None


def test_replays_are_queued_and_give_the_same_bits(tmp_path, rng):
  replays_agree(tmp_path, rng)


@parametrize("fault, words", [("late", "differ by"), ("bit", "other bits"), ("value", "differ by")])
def test_planted_faults_are_found(tmp_path, rng, fault, words):
  model = chain()
  found = replayed(saved(model, tmp_path), feeds_of(model, rng), fault)
  judged = [output for case, plain in enumerate(found.plain) for output in compare_replays(found, case, plain)]
  assert any(not output.passed for output in judged)
  assert any(words in output.message for output in judged)


def test_a_fused_operator(tmp_path, rng):
  optimized, report = optimize(DATA / "bert_torchscript_opset14_fp16.onnx")
  assert report.fused
  side = saved(optimized, tmp_path)
  dims = {
    value.name: [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim] for value in optimized.graph.input
  }
  found = replayed(side, {name: np.ones(shape, np.int64) for name, shape in dims.items()})
  for name in found.plain[0]:
    assert found.differing(name) == 0
  assert all(each.passed for case, plain in enumerate(found.plain) for each in compare_replays(found, case, plain))


@parametrize(
  "model, feeds",
  [(FORK, {"x": np.float32([1, 2, 3, 4]), "c": np.bool_(True)}), (many_inputs, {"x": np.ones((2, 8), np.float32)})],
  ids=["control flow", "many inputs"],
)
def test_what_can_not_be_captured_says_why_and_harms_nothing(tmp_path, rng, model, feeds):
  made = onnx.parser.parse_model(model) if isinstance(model, str) else model()
  with pytest.raises(NotCaptured) as caught:
    replayed(saved(made, tmp_path), {name: np.asarray(value) for name, value in feeds.items()})
  assert str(caught.value)
  assert "\n" not in str(caught.value)
  assert int(cupy.arange(10).sum()) == 45, "the GPU still works"
  replays_agree(tmp_path, rng)


def host_copies(folder):
  """Prints why a model can't be captured whose shapes come from the GPU."""
  side = saved(onnx.parser.parse_model(HOST), Path(folder))
  try:
    replayed(side, {"x": np.float32([1, 0, 3, 4])})
  except NotCaptured as error:
    print(f"not captured: {error}")


def test_what_copies_to_the_host_can_not_be_captured(tmp_path):
  """In a process of its own: NonZero goes on with a count that a capture has not computed, and loses the GPU."""
  done = python(f"from gpu.test_verify_graphs import host_copies\nhost_copies({str(tmp_path)!r})\n")
  assert done.stdout.startswith("not captured: "), done.stderr
  assert done.stdout.count("\n") == 1


@pytest.mark.skipif(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) > 1, reason="sees all processes' memory")
def test_memory_is_given_back(tmp_path, rng):
  model = chain()
  side, feeds = saved(model, tmp_path), feeds_of(model, rng)
  left = []
  for _ in range(6):
    replayed(side, feeds)
    left.append(cupy.cuda.runtime.memGetInfo()[0])
  assert left[-1] >= left[2] - 2**22


# ---- verification


def judge_of(original, model, **more):
  return Judge(Question(original, without_weights(model).SerializeToString(), **more))


def test_a_right_model_passes_in_every_mode(tmp_path):
  model = chain()
  optimized, _ = optimize(model)
  side = saved(optimized, tmp_path, "fast.onnx")
  side = Side(side.path, side.plugin, float_weights=True)
  result = judge_of(saved(model, tmp_path), model).verify(CUDA, side, timed=True)
  assert result.passed, [output for each in result.inputs for output in each.outputs if not output.passed]
  assert [each.mode for each in result.inputs] == [PLAIN, PLAIN, GRAPH, GRAPH, GRAPH_TF32, GRAPH_TF32]
  assert (result.graph_skipped, result.notes) == ("", ())
  assert result.replays == 2 * REPLAYS
  assert [timing.mode for timing in result.timings] == [GRAPH, PLAIN]


def test_what_makes_it_slower_is_taken_back(monkeypatch):
  monkeypatch.setattr(pipeline, "TABLE", (Delay(),))
  model = parsed()
  made, report = optimizer.optimize(model, verify=True, keep_faster=True, providers=["cuda"])
  assert made == model
  assert [(timing.mode, timing.loses) for timing in report.taken_back[0].timings] == [(GRAPH, True), (PLAIN, True)]


@parametrize("fault", ["late", "bit", "value"])
def test_a_fault_in_graphs_alone_is_a_difference(tmp_path, monkeypatch, fault):
  model = chain()
  original, optimized = saved(model, tmp_path), saved(model, tmp_path, "fast.onnx")
  monkeypatch.setattr(judge, "make_session", planting(make_session, fault, lambda side: side == optimized))
  examiner = judge_of(original, model)
  result = examiner.verify(CUDA, optimized, timed=True)
  assert not result.passed
  assert {each.mode for each in result.inputs if not each.passed} == {GRAPH}
  assert result.original_ms is None
  assert not examiner.agrees(CUDA, optimized)
  monkeypatch.setattr(judge, "make_session", make_session)
  assert examiner.agrees(CUDA, optimized)


def test_the_command_reports_graphs(tmp_path, capsys):
  report = tmp_path / "r.json"
  source = DATA / "bert_torchscript_opset14_fp16.onnx"
  out = str(tmp_path / "fast.onnx")
  options = ["--provider", "cuda", "--device", "0", "--report", str(report)]
  assert main([str(source), "-o", out, *options]) == 0
  text = capsys.readouterr().out
  (entry,) = json.loads(report.read_text())["verification"]
  assert entry["passed"]
  if not entry["graph_skipped"]:
    assert "replays of CUDA graphs were compared" in text
    assert entry["replays"] >= REPLAYS
    assert {each["mode"] for each in entry["inputs"]} >= {"plain", "graph"}
  else:
    assert entry["graph_skipped"] in text.replace("\n", " ")


def test_the_concat_of_many_inputs_is_reported(tmp_path):
  """Whether it can be captured is for other tests; the report must say which of the two can."""
  _, report = optimize(many_inputs(), verify=True, providers=["cuda"])
  (result,) = report.verification or [None]
  if result is None:
    assert not report.changes
    return
  assert result.passed
  assert result.replays or "can't be captured" in result.graph_skipped


def test_a_number_of_no_gpu_is_refused(tmp_path, capsys):
  source = str(DATA / "bert_dynamo.onnx")
  assert main([source, "-o", str(tmp_path / "o.onnx"), "--provider", "cuda", "--device", "1000"]) == 2
  assert "there is no GPU 1000; this process sees GPU" in capsys.readouterr().err


# ---- tuning


def test_tuning_judges_replays(monkeypatch, rng):
  program = """(float x, float g) => (float y) {
      n = LayerNormalization<axis=-1, epsilon=1e-05>(x)
      y = Mul(n, g)
    }"""
  node = helper.make_node(OPERATORS[0].name, ["x", "g"], ["y"], "ln", domain="ortplugin", program=program)
  model = built([node], "float[64,64] x, float[64] g", "float[64,64] y", domains=["ortplugin"])
  feeds = {"x": rng.standard_normal((64, 64)).astype(np.float32), "g": np.ones(64, np.float32)}
  job = tune._Job(node, (), {"": [node]}, feeds, (), dict.fromkeys(node.output))
  place = tune.Place(CUDA, 0)
  assert tune._agrees(model, job, "", place)
  real = tune.make_session
  for fault in ("late", "bit", "value"):

    def planted(model, providers, fault=fault, **rest):
      session = real(model, providers, **rest)
      ((_, options),) = providers
      return Faulty(session, fault, options) if "enable_cuda_graph" in options else session

    monkeypatch.setattr(tune, "make_session", planted)
    assert not tune._agrees(model, job, "", place), fault


def test_a_model_is_tuned_and_verified_in_graphs():
  tuned, report = optimizer.optimize(chain(), tune=True, verify=True, providers=["cuda"])
  assert report.passed
  if report.changes or report.tuned:
    (result,) = report.verification
    assert result.replays > 0
  assert tuned.graph.node


# ---- benchmarks


def test_benchmarks_judge_the_same_way(monkeypatch, rng):
  monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).resolve().parents[2] / "benchmarks")])
  timing = pytest.importorskip("timing")
  model = chain()
  feeds = feeds_of(model, rng)
  record = timing.replayed_outputs(model.SerializeToString(), feeds, {"y": np.zeros((64, 256))}, plugin=True)
  assert record["replays"] == 100
  assert record["differed"] == 0
  assert record["wrong"] == ""
  assert record["plain_error"] < 1e-5
  assert record["error"] > 1
  assert record["error_plain"] > 1
  refused = timing.replayed_outputs(many_inputs().SerializeToString(), {"x": np.ones((2, 8), np.float32)}, plugin=False)
  assert "refused" in refused

  real = GraphSession
  monkeypatch.setattr(
    "ortplugin.check.replays.GraphSession",
    lambda make, device_id: real(lambda options: Faulty(make(options), "bit", options), device_id),
  )
  record = timing.replayed_outputs(model.SerializeToString(), feeds, plugin=True)
  assert record["differed"] > 0
  assert "other bits" in record["wrong"]
