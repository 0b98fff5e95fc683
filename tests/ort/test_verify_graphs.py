"""Verification on CUDA: plain runs, then replays of CUDA graphs. The CPU provider stands for a GPU that captures."""

import json
from contextlib import closing
from functools import partial

import numpy as np
import onnx
import onnx.parser
import pytest
from fake_gpu import CapturingSession, FakeGpu

from ortplugin.check import judge, timing, tune, verify
from ortplugin.check.inputs import shifted
from ortplugin.check.judge import Judge
from ortplugin.check.replays import REPLAYS, GraphSession
from ortplugin.check.verify import Verifier
from ortplugin.cli import main
from ortplugin.optimizer import pipeline, tuning
from ortplugin.passes.base import Change, PassResult
from ortplugin.report import GRAPH, GRAPH_TF32, PLAIN, TF32, Timing
from ortplugin.session import CPU, CUDA

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[4,8] x) => (float[4,8] y, float[4,8] z) { a = Abs(x) y = Neg(a) e = Exp(x) z = Sqrt(e) }"""
WEIGHTS = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1,2,3,4}> { y = MatMul(x, w) }"""


def no_fault(model, options, replay, outputs):
  return outputs


class HereJudge(Judge):
  """In this process, where the machine can be replaced. `times_of`: what timing finds."""

  times_of = staticmethod(lambda model, mode: Timing(mode, 2.0, 1.0))

  def _time_graphs(self, side):
    super()._time_graphs(side)
    return self.times_of(onnx.load(side.path), GRAPH)

  def _time_plain(self, provider, side, session):
    super()._time_plain(provider, side, session)
    return self.times_of(onnx.load(side.path), PLAIN)

  def close(self):
    pass


class Rounding:
  """A session whose values TF32 has changed."""

  def __init__(self, session, change):
    self.session, self.change = session, change

  def __getattr__(self, name):
    return getattr(self.session, name)

  def run(self, *args):
    return [self.change(each) for each in self.session.run(*args)]


class Machine:
  def __init__(self, monkeypatch):
    self.spoil = no_fault
    self.refuse = lambda model: ""
    self.options = []
    self.plain_options = []
    self.busy = True
    self.tf32 = lambda side, value: value
    real = judge.make_session

    def make(side, provider, tf32=False, options=None):
      session = real(side, CPU)
      if tf32:
        session = Rounding(session, lambda value: self.tf32(side, value))
      if "enable_cuda_graph" not in (options or {}):
        self.plain_options.append(options or {})
        return session
      given = {**(options or {}), "use_tf32": str(int(tf32))}
      self.options.append(given)
      model = onnx.load(side.path)
      spoil = lambda replay, feeds, outputs: self.spoil(model, given, replay, outputs)  # noqa: E731
      return CapturingSession(session, given, spoil, self.refuse(model))

    monkeypatch.setattr(judge, "make_session", make)
    graphs = lambda make, device_id: GraphSession(make, device_id, FakeGpu(device_id, busy=self.busy))  # noqa: E731
    monkeypatch.setattr(judge, "GraphSession", graphs)
    monkeypatch.setattr(judge, "_runner", lambda session, provider, *rest: lambda: None)
    monkeypatch.setattr(verify, "JudgeProcess", HereJudge)
    for name in ("_WARM_UP_SECONDS", "_SECONDS"):
      monkeypatch.setattr(timing, name, 0.0)
    for module in (verify, tuning):
      monkeypatch.setattr(module, "resolve_provider", lambda name: CUDA)
      monkeypatch.setattr(module, "check_device", lambda *rest: None)


@pytest.fixture
def machine(monkeypatch):
  return Machine(monkeypatch)


def parsed(text=MODEL):
  model = onnx.parser.parse_model(text)
  for node in model.graph.node:
    node.name = node.op_type.lower()
  return model


def renamed(name="new", text=MODEL):
  model = parsed(text)
  model.graph.name = name
  return model


def verified(optimized, text=MODEL, **more):
  with closing(Verifier(parsed(text), providers=["cuda"], **more)) as verifier:
    (result,) = verifier.verify(optimized)
    assert verifier.agrees(optimized, CUDA) == result.passed
  return result


def test_plain_runs_and_replays_are_compared(machine):
  result = verified(renamed(), device_id=1)
  assert result.passed
  assert [(each.name, each.mode) for each in result.inputs] == [
    ("generated", PLAIN),
    ("generated, shifted", PLAIN),
    ("generated", GRAPH),
    ("generated, shifted", GRAPH),
  ]
  assert result.replays == REPLAYS
  assert (result.graph_skipped, result.notes) == ("", ())
  assert {options["device_id"] for options in (*machine.options, *machine.plain_options)} == {"1"}
  assert [options["use_tf32"] for options in machine.options] == list("00110"), "timed as a user's sessions run"
  assert [each.mode for each in result.timings] == [GRAPH, PLAIN]
  assert result.original_ms is not None


def test_values_that_are_wrong_in_replays_only(machine):
  def spoil(model, options, replay, outputs):
    return {**outputs, "z": outputs["z"] + 3} if model.graph.name == "new" and replay == 11 else outputs

  machine.spoil = spoil
  result = verified(renamed())
  assert not result.passed
  (wrong,) = [(each.mode, output) for each in result.inputs for output in each.outputs if not output.passed]
  assert wrong[0] == GRAPH
  assert wrong[1].name == "z"
  assert "1 of" in wrong[1].message
  assert wrong[1].max_abs_error == pytest.approx(3)
  assert result.original_ms is None
  assert verified(renamed("old")).passed


def test_what_the_original_does_itself_is_not_blamed_on_the_optimized_model(machine):
  """Its replays differ in their last bits, as sums by atomic additions do; then in values, which is no yardstick."""
  step = 1e-6

  def spoil(model, options, replay, outputs):
    return {**outputs, "y": outputs["y"] + np.float32(step * (replay % 2))}

  machine.spoil = spoil
  assert verified(renamed()).passed
  step = 1.0
  result = verified(renamed())
  assert result.passed
  assert any("other values in each run" in output.message for each in result.inputs for output in each.outputs)
  machine.spoil = lambda model, options, replay, outputs: (
    spoil(model, options, replay, outputs) if model.graph.name == "new" else outputs
  )
  assert not verified(renamed()).passed


def not_permitted(model):
  return "operation not permitted when stream is capturing"


def test_a_model_that_can_not_be_captured_says_why(machine):
  machine.refuse = not_permitted
  result = verified(renamed())
  assert result.passed
  assert result.replays == 0
  assert "can't be captured: 1 : FAIL : operation not permitted" in result.graph_skipped
  assert result.graph_skipped.endswith("nor can the original")
  assert result.notes == ()


def test_that_the_original_alone_can_be_captured_is_a_note(machine):
  machine.refuse = lambda model: "too many inputs" if model.graph.name == "new" else ""
  result = verified(renamed())
  assert result.passed
  (note,) = result.notes
  assert "the original can be captured in a CUDA graph, the optimized model can't" in note
  assert "too many inputs" in note


def test_an_optimized_model_that_alone_can_be_captured_is_compared(machine):
  machine.refuse = lambda model: "" if model.graph.name == "new" else "32 inputs"
  machine.spoil = lambda model, options, replay, outputs: {name: array * 2 for name, array in outputs.items()}
  result = verified(renamed())
  assert not result.passed
  assert result.replays == REPLAYS


def test_an_error_in_replays_is_a_failure(machine):
  def spoil(model, options, replay, outputs):
    if model.graph.name == "new" and replay == 3:
      raise RuntimeError("an illegal memory access was encountered")
    return outputs

  machine.spoil = spoil
  result = verified(renamed())
  assert not result.passed
  assert "illegal memory access" in result.inputs[-1].outputs[0].message
  assert result.inputs[-1].mode == GRAPH


def test_replays_that_are_waited_for_are_noted(machine):
  machine.busy = False
  (note,) = verified(renamed()).notes
  assert "waits for each replay" in note


def test_float_weights_are_replayed_with_tf32_too(machine):
  """Against runs of the same session without a graph: its values are not those without TF32."""
  result = verified(renamed(text=WEIGHTS), WEIGHTS)
  assert result.passed
  assert {each.mode for each in result.inputs} == {PLAIN, GRAPH, GRAPH_TF32}
  assert result.replays == 2 * REPLAYS

  def spoil(model, options, replay, outputs):
    return {"y": outputs["y"] * 1.01} if options["use_tf32"] == "1" and model.graph.name == "new" else outputs

  machine.spoil = spoil
  failed = [each.mode for each in verified(renamed(text=WEIGHTS), WEIGHTS).inputs if not each.passed]
  assert failed == [GRAPH_TF32, GRAPH_TF32]


@pytest.mark.parametrize(
  "original, optimized, passes",
  [(1, 1.005, True), (1, 1.1, False), (1.1, 1.1, True), (1.1, 1.15, True), (1.1, 1.5, False), (1, np.nan, False)],
)
def test_values_with_tf32_are_the_originals_but_for_rounding(machine, original, optimized, passes):
  """The original's own rounding with TF32 says how far they may be from its values without."""
  machine.tf32 = lambda side, value: value * np.float32(optimized if side.path.stem != "original" else original)
  result = verified(renamed(text=WEIGHTS), WEIGHTS)
  assert result.passed == passes
  failed = [each for each in result.inputs if not each.passed]
  assert {each.mode for each in failed} == (set() if passes else {GRAPH_TF32})
  assert all("with TF32, without a graph" in each.outputs[0].message for each in failed)


@pytest.mark.parametrize("optimized, passes", [(1.005, True), (1.1, False), (np.nan, False)])
def test_what_can_not_be_captured_runs_with_tf32_too(machine, optimized, passes):
  """Only floats are asked: an index may be another one where two scores are nearly equal."""
  text = WEIGHTS.replace("=> (float[1,2] y)", "=> (float[1,2] y, int64[1,1] i)")
  text = text.replace("y = MatMul(x, w)", "y = MatMul(x, w)  i = ArgMax<axis=1>(y)")
  machine.refuse = not_permitted
  machine.tf32 = lambda side, value: (
    value if side.path.stem == "original" else value * np.float32(optimized) if value.dtype == np.float32 else 1 - value
  )
  result = verified(renamed(text=text), text)
  assert "can't be captured" in result.graph_skipped
  assert result.passed == passes
  assert [(each.name, each.mode, each.passed) for each in result.inputs] == [
    ("generated", PLAIN, True),
    ("generated, shifted", PLAIN, True),
    ("generated", TF32, passes),
    ("generated, shifted", TF32, passes),
  ]
  assert [output.name for each in result.inputs[2:] for output in each.outputs] == ["y", "y"]


def test_an_error_with_tf32_alone_is_a_failure(machine):
  def refuse(side, value):
    raise RuntimeError("no plan")

  machine.refuse = not_permitted
  machine.tf32 = refuse
  result = verified(renamed(text=WEIGHTS), WEIGHTS)
  assert [each.mode for each in result.inputs if not each.passed] == [TF32]
  assert "no plan" in result.inputs[-1].outputs[0].message


def test_shifted_values_are_the_same_ones_elsewhere():
  found = shifted({"a": np.arange(6).reshape(1, 6), "s": np.float32(3), "l": [np.arange(3)], "n": 1})
  assert found["a"].tolist() == [[5, 0, 1, 2, 3, 4]]
  assert found["s"] == 3
  assert found["l"][0].tolist() == [2, 0, 1]
  assert found["n"] == 1


# ---- the guilty rewrite


class Rename:
  """A pass that gives the nodes of one type the name `new`, or a name that ends with "_new"."""

  summary = "for a test"

  def __init__(self, name, operator, new=""):
    self.name, self.operator, self.new = name, operator, new

  def __call__(self, graph, limit=None):
    def new(node):
      return self.new or f"{node.name.removesuffix('_new')}_new"

    found = [node for node in graph.nodes if node.op == self.operator and node.name != new(node)][:limit]
    for node in found:
      node.name = new(node)
    return PassResult(tuple(Change(self.name, (node.name,), node.name) for node in found), ())


@pytest.mark.parametrize("guilty", ["abs", "exp", "sqrt"])
def test_the_rewrite_that_makes_replays_differ_is_named(machine, patch, tmp_path, capsys, guilty):
  """In plain runs every one of them is right."""

  def spoil(model, options, replay, outputs):
    wrong = any(node.name == f"{guilty}_new" for node in model.graph.node) and replay % 7 == 3
    return {**outputs, "y": outputs["y"] * 2} if wrong else outputs

  machine.spoil = spoil
  passes = tuple(Rename(f"rename-{name.lower()}", name) for name in ("Abs", "Neg", "Exp", "Sqrt"))
  patch(pipeline, "TABLE", passes)
  onnx.save(parsed(), tmp_path / "in.onnx")
  report = tmp_path / "r.json"
  command = [str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--provider", "cuda", "--device", "2"]
  assert main([*command, "--report", str(report)]) == 1
  captured = capsys.readouterr()
  assert f"from the rewrite 'rename-{guilty}'" in captured.err
  assert "output 'y' differs (CUDA, generated" in captured.err
  assert ", replays of a CUDA graph) from" in captured.err
  assert not (tmp_path / "out.onnx").exists()
  (entry,) = json.loads(report.read_text())["verification"]
  assert entry["replays"] == REPLAYS
  assert [each["mode"] for each in entry["inputs"]] == ["plain", "plain", "graph", "graph"]
  assert {options["device_id"] for options in machine.options} == {"2"}
  assert main([*command, "--drop-guilty"]) == 0
  text = capsys.readouterr().out
  assert f"Left out the pass 'rename-{guilty}'" in text
  assert f"{REPLAYS} replays of CUDA graphs were compared" in text


# ---- tuning


def test_tuning_takes_nothing_whose_replays_differ(patch):
  """Four copies side by side, on the GPU that was asked for; the first two runs are plain and agree."""
  from ort.test_tune import job_of, two_scatters

  model, feeds = two_scatters()
  job = job_of(model.graph.node[0], feeds)
  real, asked, wrong = tune.make_session, [], False

  def make(model, providers, **rest):
    ((provider, options),) = providers
    asked.append((provider, options))
    session = real(model, ["cpu"])
    if "enable_cuda_graph" not in options:
      return session
    assert len(onnx.load_from_string(model).graph.node) == 4

    def spoil(replay, inputs, outputs):
      name = "first#2"
      return {**outputs, name: outputs[name] + 1} if wrong and replay == 30 else outputs

    return CapturingSession(session, options, spoil)

  patch(tune, "make_session", make)
  patch(tune, "GraphSession", lambda make, device_id: partial(GraphSession, gpu=FakeGpu())(make, device_id))
  place = tune.Place(CUDA, 1)
  assert tune._agrees(model, job, "", place)
  assert {(provider, options["device_id"]) for provider, options in asked} == {(CUDA, "1")}
  wrong = True
  assert not tune._agrees(model, job, "", place)
