import io
import json

import onnx
from onnx_models import parametrize, parsed
from rich.console import Console

from ortplugin.check.tune import TunedNode
from ortplugin.errors import OrtPluginError, one_line, printable
from ortplugin.passes.base import Change, NearMiss
from ortplugin.render import print_report
from ortplugin.report import (
  InputComparison,
  OutputComparison,
  ProviderVerification,
  Report,
  TakenBack,
  Timing,
  count_operators,
)


def full_report():
  return Report(
    input="in.onnx",
    output="out.onnx",
    before={"ai.onnx::Add": 2, "ai.onnx::LayerNormalization": 1},
    after={"ai.onnx::Add": 1, "ortplugin::FusedLayerNorm": 1},
    changes=[
      Change("remove-identities", ("id (Identity)",), ""),
      Change("fuse-layer-norm", ("ln (LayerNormalization)", "[bold]add (Add)"), "ln (FusedLayerNorm)"),
      Change("norm-prologue", ("add (Add)",), "ln (FusedLayerNorm)"),
    ],
    near_misses=[NearMiss("fuse-layer-norm", "odd (ReduceMean)", "the axes [1] are not the trailing ones")],
    seconds={"load": 0.25, "passes": 1.5},
    verification=[
      ProviderVerification(
        "CPUExecutionProvider",
        (
          InputComparison("generated, batch=2", (OutputComparison("y", True, 1e-6, 2e-6),)),
          InputComparison("data.npz", (OutputComparison("y", True, float("inf"), None, "a remark"),)),
        ),
        timings=(Timing("graph", 1.5, 2.5, True), Timing("plain", 2.0, 1.0)),
      ),
      ProviderVerification("CUDAExecutionProvider", (), skipped="no kernels"),
    ],
  )


def text_of(report, explain=False, width=160):
  stream = io.StringIO()
  print_report(report, Console(file=stream, width=width, highlight=False), explain)
  return stream.getvalue()


def test_operators_are_counted_in_bodies_and_functions():
  model = parsed(
    """(float[1] x) => (y) <bool c = {1}> {
      i = If(c) <then () => (float o) { o = Relu(x) }, else () => (float o) { o = Relu(x) }>
      y = local.Twice(i) }
    <domain: "local", opset_import: ["" : 17]> Twice (a) => (b) { b = Add(a, a) }""",
    domains=["local"],
  )
  assert count_operators(model) == {"ai.onnx::Add": 1, "ai.onnx::If": 1, "ai.onnx::Relu": 2, "local::Twice": 1}
  assert count_operators(onnx.ModelProto()) == {}


def test_counts():
  report = full_report()
  assert report.rewrites == {"remove-identities": 1, "fuse-layer-norm": 1, "norm-prologue": 1}
  assert report.fused == 2
  assert report.passed


KEYS = """
    version action input output operators opset functions precision rewrites changes near_misses
    fused seconds verification tuning guilty dropped taken_back regions memory profile next
"""


def test_json_has_the_documented_keys_and_no_others():
  data = json.loads(full_report().to_json())
  assert list(data) == KEYS.split()
  assert data["changes"][1]["nodes"] == ["ln (LayerNormalization)", "[bold]add (Add)"]
  assert data["near_misses"] == [
    {"rewrite": "fuse-layer-norm", "node": "odd (ReduceMean)", "reason": "the axes [1] are not the trailing ones"}
  ]
  first = data["verification"][0]
  keys = "provider inputs skipped replays graph_skipped notes timings original_ms optimized_ms passed"
  assert list(first) == keys.split()
  assert first["timings"][0] == {"mode": "graph", "original_ms": 1.5, "optimized_ms": 2.5, "loses": True}
  assert (first["original_ms"], data["verification"][1]["original_ms"]) == (2.0, None)
  assert list(first["inputs"][0]) == ["name", "outputs", "mode"]
  assert first["passed"] is True
  assert first["inputs"][0]["outputs"][0]["max_abs_error"] == 1e-6
  assert first["inputs"][1]["outputs"][0]["max_abs_error"] == "inf"  # JSON has no infinity
  assert list(first["inputs"][0]["outputs"][0]) == ["name", "passed", "max_abs_error", "max_rel_error", "message"]
  assert json.loads(Report().to_json())["guilty"] is None


def test_text_names_everything():
  text = text_of(full_report())
  for words in ("LayerNormalization", "ortplugin::FusedLayerNorm", "+1", "-1", "fuse-layer-norm", "1.00e-06", "2.00"):
    assert words in text
  for words in ("generated, batch=2", "a remark", "no kernels", "2.00 times as fast"):
    assert words in text
  assert "CPU, in a CUDA graph: original 1.500 ms, optimized 2.500 ms, 0.60 times as fast" in text
  assert "trailing" not in text
  assert "trailing" in text_of(full_report(), explain=True)


def test_markup_in_names_is_shown_as_it_is():
  text = text_of(Report(near_misses=[NearMiss("r", "[red]node[/red] (Add)", "[/] is odd")]), explain=True)
  assert "[red]node[/red] (Add)" in text
  assert "[/] is odd" in text


def test_what_was_tried_is_shown():
  times = {"": 3.0, "a=1": 2.0, "a=2": None, "a=3": None}
  text = text_of(Report(tuning=[TunedNode("n (FusedConv)", "a=1", times, ("a=2",))]))
  assert "a=1 2.0, a=2 wrong, a=3 not measurable" in text


def test_nothing_to_do_is_said_loudly():
  report = Report(before={"ai.onnx::Add": 1}, after={"ai.onnx::Add": 1})
  assert "Nothing to rewrite: 0 rewrites" in text_of(report)
  report.changes = [Change("dead-nodes", ("a (Add)",), "")]
  assert "Nothing was fused" in text_of(report)
  report.near_misses = full_report().near_misses
  assert "--explain says why" in text_of(report)
  assert "Nothing" not in text_of(full_report())
  text = text_of(Report(taken_back=[TakenBack(("[x]", "b"), "CPUExecutionProvider", (Timing("plain", 1, 4),))]))
  assert "the passes '[x]', 'b': with them, CPU: original 1.000 ms" in text
  assert "0.25 times as fast, within the measurements' spread" in text.replace("\n", " ")
  assert "The original stays" in text
  assert "Nothing to rewrite" not in text
  assert "Nothing to restore" in text_of(Report("restore"))


def test_a_failure_is_shown():
  failed = OutputComparison("y", False, 1.0, 1.0, "3 of 4 differ")
  report = Report(verification=[ProviderVerification("CPUExecutionProvider", (InputComparison("g", (failed,)),))])
  assert not report.passed
  assert "differs: 3 of 4 differ" in text_of(report)


HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202e\x9b31m[bold]\n"


@parametrize("kind", [OrtPluginError, *OrtPluginError.__subclasses__()])
def test_errors_hold_no_control_characters(kind):
  error = kind(f"node '{HOSTILE}' is wrong")
  assert str(error) == r"node '\x1b[2J\x1b]0;owned\x07\r\u202e\x9b31m[bold]\n' is wrong"
  assert repr(error).isprintable()
  assert one_line(ValueError(HOSTILE)).isprintable()
  assert printable("größer als 日本 ✓") == "größer als 日本 ✓"
  assert printable("\ud800\U000e0001") == r"\ud800\U000e0001"
