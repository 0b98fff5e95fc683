from dataclasses import replace

import numpy as np
import onnx
import pytest
from conv_grad_cases import by_name
from exported import DATA
from onnx import ModelProto, NodeProto, helper
from onnx_models import built, parametrize, raises

import ortplugin
from ortplugin.check import tune
from ortplugin.cli import main
from ortplugin.errors import UsageError, VerificationError
from ortplugin.ops.conv_grad import OPERATOR as CONV_GRAD
from ortplugin.optimizer import loop, tuning
from ortplugin.passes.base import Change
from ortplugin.session import CPU, CUDA, run_on_host

SCATTER = "ScatterElements"


def two_scatters():
  nodes = [
    helper.make_node(SCATTER, ["data", "at", "a"], ["first"], "one", domain="ortplugin", axis=0),
    helper.make_node(SCATTER, ["first", "at", "a"], ["second"], "two", domain="ortplugin", axis=0),
    helper.make_node(SCATTER, ["second", "at3", "b"], ["y"], "three", domain="ortplugin", axis=0),
  ]
  inputs = "float[8] data, int64[2] at, float[2] a, int64[3] at3, float[3] b"
  feeds = {
    "data": np.arange(8, dtype=np.float32),
    "at": np.array([1, -1]),
    "a": np.float32([10, 11]),
    "at3": np.array([0, 1, 2]),
    "b": np.float32([20, 21, 22]),
  }
  return built(nodes, inputs, "float[8] y", 18, 10, domains=["ortplugin"]), feeds


def job_of(node, feeds, *made):
  """A job of the node, whose candidate '' is `made`, or the node itself."""
  given = {name: feeds[name] for name in node.input}
  return tune._Job(node, (), {"": list(made or [node])}, given, (), dict.fromkeys(node.output))


def timed(patch, seconds):
  """Replaces the clock; returns the list that collects the names of the measured nodes."""
  measured = []

  def time(model, job, names, place):
    measured.append(job.node.name)
    return {name: seconds(job.candidates[name]) for name in names}

  patch(tune, "_time", time)
  return measured


def algorithm(candidate):
  """'standard', or what the plugin's node says; 'auto' where it says nothing."""
  if candidate[-1].domain != "ortplugin":
    return "standard"
  return next((a.s.decode() for a in candidate[0].attribute if a.name == "algorithm"), "auto")


def outputs(model, feeds):
  return run_on_host(ortplugin.session(model.SerializeToString(), providers=["cpu"]), feeds, ["y"])["y"]


@parametrize("best", ["sequential", "parallel", "sorting", "standard", "auto"])
def test_the_fastest_stands_in_the_model(best, patch):
  model, feeds = two_scatters()
  measured = timed(patch, lambda candidate: 1.0 if algorithm(candidate) == best else 2.0)
  tuned, report = tune.tune(model, feeds, CPU)
  assert {algorithm([node]) for node in tuned.graph.node if node.op_type != "Constant"} == {best}
  assert [entry.node for entry in report] == [f"{name} ({SCATTER})" for name in ("one", "two", "three")]
  assert {entry.choice for entry in report} == {{"auto": "", "standard": tune.STANDARD}.get(best, f"algorithm={best}")}
  assert set(measured) == {"one", "three"}, "alike nodes are measured once"
  assert (outputs(tuned, feeds) == outputs(model, feeds)).all()
  assert any(entry.domain == "ortplugin" for entry in tuned.opset_import) == (best != "standard")
  onnx.checker.check_model(tuned)


@parametrize(
  "others",
  [
    pytest.param(0.99, id="too little is gained"),
    pytest.param(None, id="the others can't be measured"),
    pytest.param(1.0, id="equally fast"),
  ],
)
def test_a_node_stays(others, patch):
  model, feeds = two_scatters()
  timed(patch, lambda candidate: 1.0 if algorithm(candidate) == "auto" else others)
  tuned, report = tune.tune(model, feeds, CPU)
  assert tuned == model
  assert {entry.choice for entry in report} == {""}


def test_what_is_fastest_by_chance_is_not_taken(patch):
  """Timed in turn with the node as it stands, the candidate is as fast: what is reported then is that."""
  model, feeds = two_scatters()

  def time(model, job, names, place):
    def measured(name):
      return 1.0 if len(names) > 1 or algorithm(job.candidates[name]) != "sorting" else 0.5

    return {name: measured(name) for name in names}

  patch(tune, "_time", time)
  tuned, report = tune.tune(model, feeds, CPU)
  assert tuned == model
  assert {entry.choice for entry in report} == {""}
  assert all(set(entry.microseconds.values()) == {1.0} for entry in report)


def test_a_node_that_can_not_be_measured_stays(patch):
  model, feeds = two_scatters()
  timed(patch, lambda candidate: None if algorithm(candidate) == "auto" else 1.0)
  assert tune.tune(model, feeds, CPU)[0] == model


def test_what_gives_other_outputs_is_not_taken(patch):
  model, feeds = two_scatters()
  times = {"sorting": 1.0, "parallel": 2.0}
  timed(patch, lambda candidate: times.get(algorithm(candidate), 3.0))
  compared = []

  def compare(name, expected, actual, tolerance):
    compared.append(name)
    actual = actual + 1 if len(compared) == 1 else actual
    return ortplugin.check.compare.compare(name, expected, actual, tolerance)

  patch(tune, "compare", compare)
  tuned, report = tune.tune(model, feeds, CPU)
  assert [algorithm([node]) for node in tuned.graph.node] == ["parallel", "parallel", "sorting"]
  assert [entry.wrong for entry in report] == [("algorithm=sorting",)] * 2 + [()]
  assert report[0].microseconds["algorithm=sorting"] is None


def test_outputs_are_compared_without_a_cuda_graph(patch):
  """ONNX Runtime's replays of one give the host nothing: what it compared then would be equal whatever it is."""
  model, feeds = two_scatters()
  graphs = []

  def session(model, providers, *, cuda_graph, **rest):
    assert providers == [(CUDA, {"device_id": "3"})]
    graphs.append(cuda_graph)
    return ortplugin.session(model, providers=["cpu"])

  patch(tune, "make_session", session)
  patch(tune, "_agrees_in_graphs", lambda *rest: True)
  assert tune._agrees(model, job_of(model.graph.node[0], feeds), "", tune.Place(CUDA, 3))
  assert graphs == [False, False]


def test_float_that_may_be_rounded_has_the_tolerance_of_tf32(patch):
  model, feeds = two_scatters()
  node = model.graph.node[0]
  real, runs = tune.run_on_host, []

  def off(session, feeds, names):
    runs.append(names)
    return {name: array + 0.02 * (len(runs) % 2) for name, array in real(session, feeds, names).items()}

  patch(tune, "run_on_host", off)
  for allowed in (0, 1):
    allowing = NodeProto()
    allowing.CopyFrom(node)
    allowing.attribute.append(helper.make_attribute("allow_tf32", allowed))
    assert tune._agrees(model, job_of(allowing, feeds, node), "", tune.Place(CPU)) == bool(allowed)


def test_tuning_again_measures_the_way_back(patch):
  model, feeds = two_scatters()
  timed(patch, lambda candidate: 1.0 if algorithm(candidate) == "sorting" else 2.0)
  once, _ = tune.tune(model, feeds, CPU)
  assert tune.tune(once, feeds, CPU)[0] == once
  timed(patch, lambda candidate: 1.0 if algorithm(candidate) == "auto" else 2.0)
  again, _ = tune.tune(once, feeds, CPU)
  assert {algorithm([node]) for node in again.graph.node} == {"auto"}


# ---- two choices at one node

DATA_WAYS, WEIGHT_WAYS = ("own", "engine=1;k2=3", "engine=2"), ("engine=1", "own", "engine=7")


def gradient(patch):
  ways = [{"data_algorithm": each} for each in DATA_WAYS] + [{"weight_algorithm": each} for each in WEIGHT_WAYS]
  operator = replace(CONV_GRAD, variants=lambda node: ways)
  patch(tune, "find", lambda domain, name: operator)
  case = by_name["3x3, NCHW, float"]
  return onnx.load_from_string(case.model()), case.feeds()


def ways_of(candidate):
  if candidate[-1].domain != "ortplugin":
    return None
  given = {each.name: each.s.decode() for each in candidate[0].attribute if each.name.endswith("_algorithm")}
  return given.get("data_algorithm", "auto"), given.get("weight_algorithm", "auto")


@parametrize(
  "data, weight",
  [("engine=1;k2=3", "own"), ("own", "engine=7"), ("engine=2", "auto"), ("auto", "engine=1"), ("auto", "auto")],
)
def test_the_best_of_each_attribute_stands_in_the_node(data, weight, patch):
  model, feeds = gradient(patch)

  def seconds(candidate):
    ways = ways_of(candidate)
    return 30.0 if ways is None else 20.0 - 5 * (ways[0] == data) - 2 * (ways[1] == weight)

  timed(patch, seconds)
  tuned, (entry,) = tune.tune(model, feeds, CPU)
  assert ways_of(tuned.graph.node) == (data, weight)
  chosen = {"data_algorithm": data, "weight_algorithm": weight}
  assert entry.choice == ", ".join(f"{name}={text}" for name, text in chosen.items() if text != "auto")
  assert len(entry.microseconds) == 1 + len(DATA_WAYS) + len(WEIGHT_WAYS) + 1, "not every combination"
  assert entry.microseconds[entry.choice] == 13.0
  for name in ("dX", "dW", "dB"):
    expected, found = (
      run_on_host(ortplugin.session(each.SerializeToString(), providers=["cpu"]), feeds, [name])[name]
      for each in (model, tuned)
    )
    assert (expected == found).all()


def test_a_choice_must_pay_beside_the_ones_before_it(patch):
  """Each of the two halves the time, but together they are no faster than the first."""
  model, feeds = gradient(patch)
  timed(patch, lambda candidate: 1.0 if "own" in (ways_of(candidate) or ()) else 2.0)
  tuned, (entry,) = tune.tune(model, feeds, CPU)
  assert ways_of(tuned.graph.node) == ("own", "auto")
  assert entry.choice == "data_algorithm=own"


def test_a_wrong_choice_leaves_the_others(patch):
  """The fastest dX is wrong: the next one is taken, and dW is chosen beside that."""
  model, feeds = gradient(patch)
  of_data, of_weight = {"own": 3.0, "engine=2": 4.0}, {"own": 1.0}

  def seconds(candidate):
    data, weight = ways_of(candidate) or ("", "")
    return of_data.get(data, 9.0) + of_weight.get(weight, 9.0)

  timed(patch, seconds)
  patch(tune, "_agrees", lambda model, job, name, place: "data_algorithm=own" not in name)
  tuned, (entry,) = tune.tune(model, feeds, CPU)
  assert ways_of(tuned.graph.node) == ("engine=2", "own")
  assert entry.wrong == ("data_algorithm=own",)
  assert entry.microseconds["data_algorithm=own"] is None


@parametrize("standard, is_taken", [(4.95, False), (4.5, True)])
def test_standard_onnx_competes_with_the_chosen(standard, is_taken, patch):
  model, feeds = gradient(patch)

  def seconds(candidate):
    ways = ways_of(candidate)
    return standard if ways is None else 5.0 if ways[0] == "own" else 10.0

  timed(patch, seconds)
  tuned, (entry,) = tune.tune(model, feeds, CPU)
  assert entry.choice == (tune.STANDARD if is_taken else "data_algorithm=own")
  assert ways_of(tuned.graph.node) == (None if is_taken else ("own", "auto"))


def test_it_measures():
  """No clock replaced: every candidate runs here, and the tuned model agrees with the original."""
  path, skip = DATA / "bert_torchscript_opset17_dynamic.onnx", ["matmul-float32"]
  _, report = ortplugin.optimize(path, tune=True, verify=True, providers=["cpu"], skip=skip)
  made = {
    change.result for change in report.changes if change.result.endswith(("(FusedLayerNorm)", "(FusedPointwise)"))
  }
  assert {entry.node for entry in report.tuning} == made
  for entry in report.tuning:
    assert set(entry.microseconds) == {"", tune.STANDARD}
    assert all(time is not None and time >= 0 for time in entry.microseconds.values())
  assert report.passed
  stayed = [entry.node for entry in report.tuning if not entry.choice]
  for name in ("FusedLayerNorm", "FusedPointwise"):
    assert report.after.get(f"ortplugin::{name}", 0) == sum(node.endswith(f"({name})") for node in stayed)
  assert report.to_dict()["tuning"][0]["node"] == report.tuning[0].node


def test_without_a_gpu_it_says_so(patch):
  patch(tuning, "available_providers", lambda: (CPU,))
  with raises(UsageError, r"NVIDIA GPU.*'cpu'"):
    ortplugin.optimize(two_scatters()[0], tune=True)


def test_a_wrong_choice_is_blamed_on_the_tuning(patch):
  def wrong(model, *rest):
    tuned = ModelProto()
    tuned.CopyFrom(model)
    tuned.graph.node[-1].input[0] = "data"
    return tuned, [tune.TunedNode("three", "wrong", {})]

  patch(tuning, "tune_nodes", wrong)
  real = loop.run_passes

  def one_change(model, *rest):
    return real(model, *rest)[0], [Change("nothing", (), "")], []

  patch(loop, "run_passes", one_change)
  model, feeds = two_scatters()
  with raises(VerificationError, "from the tuning on"):
    ortplugin.optimize(model, tune=True, verify=True, providers=["cpu"], inputs=feeds)


def test_the_command(tmp_path, capsys):
  source, target = DATA / "rms_dynamo.onnx", tmp_path / "tuned.onnx"
  assert main([str(source), "-o", str(target), "--tune", "--provider", "cpu"]) == 0
  assert "Tuning, microseconds" in capsys.readouterr().out
  assert main([str(source), "-o", str(target), "--tune", "--provider", "cpu", "--no-verify"]) == 0
  assert main([str(target), "-o", str(tmp_path / "x.onnx"), "--restore", "--tune"]) == 2
  assert "--tune" in capsys.readouterr().err
