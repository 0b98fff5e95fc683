"""Where a model spends its time: ONNX Runtime's profile, and the model's nodes that its own nodes stand for."""

import json
from contextlib import closing

import onnx
import onnx.parser
import onnxruntime
import pytest
from exported import DATA
from json_schema import faults
from onnx_models import ones

import ortplugin
from ortplugin.check.profile import profile, timeline
from ortplugin.check.verify import Verifier
from ortplugin.report import Profile

BERT = DATA / "bert_torchscript_opset17_dynamic.onnx"


def parsed(body, weights="", dims="[2,64]"):
  head = f'<ir_version: 8, opset_import: ["" : 17]> g (float{dims} x) => (float{dims} y)'
  return onnx.parser.parse_model(f"{head} {weights} {{ {body} }}")


def profiled(model):
  with closing(Verifier(model, providers=["cpu"])) as verifier:
    found = verifier.profile()
  assert (found.skipped, found.optimized) == ("", None)
  assert found.original is not None
  return found.original


def test_every_node_has_a_time_and_the_bytes_that_it_writes():
  line = profiled(parsed("a = Exp(x)  b = Exp(a)  y = Cos(b)"))  # without names
  assert {(each.operator, each.origins) for each in line.nodes} == {
    ("ai.onnx::Exp", ("'a' (Exp)",)),
    ("ai.onnx::Exp", ("'b' (Exp)",)),
    ("ai.onnx::Cos", ("'y' (Cos)",)),
  }
  assert {each.bytes for each in line.nodes} == {2 * 64 * 4}
  assert line.runs >= 3
  assert list(line.nodes) == sorted(line.nodes, key=lambda each: -each.ms)


def test_a_fused_node_stands_for_all_that_it_computes():
  """ONNX Runtime puts a factor and a Transpose into a product."""
  body = "t = Transpose <perm=[1,0]>(x)  m = MatMul(x, t)  e = Mul(m, s)  y = MatMul(e, x)"
  model = parsed(body, "<float s = {3}>")
  fused = next(each for each in profiled(model).nodes if each.operator == "com.microsoft::FusedMatMul")
  assert set(fused.origins) == {"'e' (Mul)", "'m' (MatMul)", "'t' (Transpose)"}


def test_convolutions_of_ours_are_timed_as_a_session_has_them(tmp_path):
  weights = "<float[16,16,3,3] w = {" + ",".join(["0.01"] * 2304) + "}>"
  model, _ = ortplugin.optimize(parsed("c = Conv <pads=[1,1,1,1]>(x, w)  y = Relu(c)", weights, "[1,16,8,8]"))
  assert "FusedConv" in {node.op_type for node in model.graph.node}
  onnx.save(model, tmp_path / "model.onnx")
  options, feeds = onnxruntime.SessionOptions(), {"x": ones(1, 16, 8, 8)}
  ortplugin.register(options)
  line = profile(tmp_path / "model.onnx", tmp_path, options, lambda session: session.run(None, feeds))
  operators = {each.operator for each in line.nodes}
  assert any(each.endswith("::Conv") for each in operators), operators
  assert not any("FusedConv" in each for each in operators), operators


def test_blocked_convolutions_are_traced_by_their_output():
  weights = "<float[16,16,3,3] w = {" + ",".join(["0.01"] * 2304) + "}>"
  body = "c = Conv <pads=[1,1,1,1]>(x, w)  r = Relu(c)  d = Conv <pads=[1,1,1,1]>(r, w)  y = Sigmoid(d)"
  nodes = profiled(parsed(body, weights, "[1,16,8,8]")).nodes
  found = {origin for each in nodes if each.operator.endswith("::Conv") for origin in each.origins}
  assert found >= {"'r' (Relu)", "'c' (Conv)", "'d' (Conv)"}
  assert all(each.origins == () for each in nodes if "Reorder" in each.operator)


def test_nodes_of_bodies_do_not_count_twice():
  """By hand: a loop of 10 ms with a node of 6 ms in it, in a run that warms up and in two that count."""

  def event(name, ts, dur, op=""):
    return {"name": name, "ts": ts, "dur": dur, "args": {"op_name": op, "output_size": "8"}}

  events = [
    each
    for start, scale in ((0, 7), (100_000, 1), (200_000, 3))
    for each in (
      event("model_run", start, 11_000 * scale),
      event("loop_kernel_time", start + 10, 10_000 * scale, "Loop"),
      event("in_kernel_time", start + 20, 6_000 * scale, "Exp"),
      event("after_kernel_time", start + 10_500 * scale, 100 * scale, "Exp"),
    )
  ]
  model = parsed("y = Exp(x)")
  model.graph.node[0].name = "after"
  line = timeline(events, model, model, 2)
  assert [(each.node, each.ms, each.bytes, each.origins) for each in line.nodes] == [
    ("in", 12.0, 8, ()),
    ("loop", 8.0, 8, ()),
    ("after", 0.2, 8, ("after (Exp)",)),
  ]
  assert (line.run_ms, line.runs) == (22.0, 2)


def test_a_profile_changes_nothing_and_shows_what_could_be_taken(tmp_path, run):
  before = BERT.read_bytes()
  status, text, errors = run(BERT, "--profile", "--report", tmp_path / "r.json", "--input-shape", "input_ids:3,8")
  assert (status, errors) == (0, "")
  assert BERT.read_bytes() == before
  assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
  data = json.loads((tmp_path / "r.json").read_text())
  assert list(faults(data)) == []
  assert (data["action"], data["output"], data["profile"]["optimized"]) == ("profile", None, None)
  share = data["profile"]["original"]["taken_share"]
  assert 0 < share < 1
  rows = {each["operator"]: each for each in data["profile"]["original"]["operators"]}
  assert rows["ai.onnx::LayerNormalization"]["taken_share"] == rows["ai.onnx::LayerNormalization"]["share"] > 0
  for words in ("Time per operator", "batch=3, sequence=8", "Slowest nodes", "would apply", f"{share:.0%} of the time"):
    assert words in text


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["r.json", "R.HTM"])
def test_a_report_has_times_before_and_after(name, tmp_path, run):
  status, _, errors = run(BERT, "-o", tmp_path / "o.onnx", "--report", tmp_path / name, "--precision", "fp16")
  assert (status, errors) == (0, "")
  text = (tmp_path / name).read_text()
  if name == "r.json":
    data = json.loads(text)
    assert list(faults(data)) == []
    assert all(0 < data["profile"][side]["taken_share"] < 1 for side in ("original", "optimized"))
    assert data["memory"]["written_before"] > data["memory"]["written_after"] > 0
    assert run(BERT, "--dry-run", "--no-verify", "--report", tmp_path / name)[0] == 0
    assert json.loads((tmp_path / name).read_text())["profile"] is None
  else:
    assert "ortplugin::FusedLayerNorm<i" in text
    assert "Original and result agree" in text


def test_what_cannot_be_profiled_says_why(tmp_path, run, patch):
  (tmp_path / "in.onnx").write_bytes(parsed("i = Cast <to=7>(x)  y = Gather(x, i)").SerializeToString())
  status, text, errors = run(tmp_path / "in.onnx", "--profile")
  assert (status, text) == (1, "")
  assert "does not run on generated inputs" in errors
  with closing(Verifier(parsed("y = Exp(x)"), providers=["cpu"])) as verifier:
    verifier._providers = ["CUDAExecutionProvider"]
    assert "launches" in verifier.profile().skipped
    verifier._providers = ["CPUExecutionProvider"]
    patch(verifier._judge, "_call", lambda *_: 1 / 0)
    why = "the model can't be profiled: division by zero"
    assert verifier.profile() == Profile("CPUExecutionProvider", skipped=why)
