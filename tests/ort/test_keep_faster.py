"""optimize-model --keep-faster. The CPU provider stands for a GPU, and given times for the clock, but at the end."""

import json

import onnx
import onnx_graphsurgeon as gs
import pytest

import ortplugin
from ort.test_verify_graphs import MODEL, HereJudge, Machine, Rename, parsed, renamed, verified
from ortplugin.cli import main
from ortplugin.optimizer import api, pipeline
from ortplugin.passes.base import Change, PassResult
from ortplugin.report import GRAPH, PLAIN, Timing

KINDS = ("Abs", "Neg", "Exp", "Sqrt")


def fired(model):
  return {node.name.removesuffix("_new") for node in model.graph.node if node.name.endswith("_new")}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
  """Runs the command: (text, report, what fired in the model that it wrote).

  `time`: what a model takes, by the passes that fired and the mode, where the original takes 10.
  """

  def command(time, *options, without=False):
    def times_of(model, mode):
      taken = time(fired(model), mode)
      return Timing(mode, 10, taken, taken > 10)

    monkeypatch.setattr(HereJudge, "times_of", staticmethod(times_of))
    source, out, report = (tmp_path / name for name in ("in.onnx", "out.onnx", "r.json"))
    onnx.save(parsed(), source)
    assert main([str(source), "-o", str(out), "--report", str(report), "--provider", "cuda",
                 *(["--no-keep-faster"] if without else []), *options]) == 0  # fmt: skip
    return capsys.readouterr().out.replace("\n", " "), json.loads(report.read_text()), fired(onnx.load(out))

  Machine(monkeypatch)
  monkeypatch.setattr(pipeline, "TABLE", tuple(Rename(kind.lower(), kind) for kind in KINDS))
  return command


@pytest.mark.parametrize("mode", [GRAPH, PLAIN])
@pytest.mark.parametrize("guilty", ["abs", "sqrt"])
def test_what_loses_in_one_mode_is_taken_back(run, mode, guilty):
  time = lambda names, run_in: 20 if guilty in names and run_in == mode else 10 - len(names)  # noqa: E731
  text, report, names = run(time)
  assert names == {"abs", "neg", "exp", "sqrt"} - {guilty}
  (taken,) = report["taken_back"]
  assert (taken["rewrites"], taken["provider"]) == ([guilty], "CUDAExecutionProvider")
  assert [each["mode"] for each in taken["timings"] if each["loses"]] == [mode]
  times = [(each["mode"], each["optimized_ms"]) for each in report["verification"][0]["timings"]]
  assert times == [(GRAPH, 7), (PLAIN, 7)]
  assert f"Took back what made it slower, the passes '{guilty}': with them, CUDA" in text
  text, report, names = run(time, without=True)
  assert (len(names), report["taken_back"]) == (4, [])
  assert "slower than the original; --keep-faster --provider cuda takes back what makes it so" in text


@pytest.mark.parametrize("searches", [2, -1])
def test_where_all_loses_or_searches_end_the_original_is_written(run, tmp_path, patch, searches):
  patch(api, "_SEARCHES", searches)
  text, report, _ = run(lambda names, mode: 10 + len(names) if searches == 2 else 20 if "abs" in names else 9)
  assert onnx.load(tmp_path / "out.onnx") == onnx.load(tmp_path / "in.onnx")
  assert report["taken_back"]
  assert "The original stays" in text


def test_a_shape_that_was_asked_for_stays(run):
  text, report, names = run(lambda names, mode: 20, "--input-shape", "x:4,8")
  assert (len(names), report["taken_back"]) == (4, [])
  assert "slower than the original; what was asked for makes it so" in text


def test_what_loses_once_and_not_again_stays(run):
  times = [20, 9, 9, 9]
  _, report, names = run(lambda names, mode: times.pop(0))
  assert (len(names), times, report["taken_back"], report["verification"][0]["notes"]) == (4, [], [], [])
  assert report["verification"][0]["timings"][0]["optimized_ms"] == 9


def test_what_can_not_be_timed(monkeypatch):
  machine = Machine(monkeypatch)
  machine.refuse = lambda model: "it has control flow" if model.graph.name == "new" else ""
  assert [each.mode for each in verified(renamed()).timings] == [PLAIN]
  machine.refuse = lambda model: ""
  monkeypatch.setattr(HereJudge, "_time_graphs", lambda *rest: 1 // 0)
  result = verified(renamed())
  assert (result.passed, [each.mode for each in result.timings]) == (True, [PLAIN])
  assert "not timed on CUDA, in a CUDA graph: " in result.notes[0]


class Delay:
  name, summary = "delay", "for a test"

  def __call__(self, graph, limit=None):
    (first, *more) = [node for node in graph.nodes if node.op == "Abs"]
    if more or limit == 0:
      return PassResult((), ())
    for number in range(100):
      result = gs.Variable(f"d{number}", first.outputs[0].dtype, first.outputs[0].shape)
      graph.nodes.append(gs.Node("Abs", f"d{number}", inputs=first.inputs[:], outputs=[result]))
      first.inputs = [result]
    graph.toposort()
    return PassResult((Change(self.name, ("abs",), ""),), ())


def test_on_the_cpu_where_it_is_asked_for(patch):
  patch(pipeline, "TABLE", (Rename("neg", "Neg"), Delay()))
  model = parsed(MODEL.replace("4,8", "512,512"))
  _, report = ortplugin.optimize(model, verify=True, providers=["cpu"])
  assert set(report.rewrites) == {"neg", "delay"}
  assert "--keep-faster --provider cpu takes back what makes it so" in report.verification[0].notes[0]
  told = []
  _, report = ortplugin.optimize(model, verify=True, keep_faster=True, providers=["cpu"], progress=told.append)
  assert "delay" in report.taken_back[0].rewrites
  assert "delay" not in report.rewrites
  assert any("looking for the rewrites that lose" in each for each in told)
