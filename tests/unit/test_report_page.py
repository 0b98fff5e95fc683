import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from exported import DATA
from json_schema import faults
from onnx import TensorProto, helper, numpy_helper
from test_report import HOSTILE as TERMINAL_HOSTILE, full_report, text_of

from ortplugin.optimizer import optimize
from ortplugin.passes.base import Change, NearMiss
from ortplugin.report import (
  CONVERSION,
  Dropped,
  InputComparison,
  NodeTime,
  OutputComparison,
  Profile,
  ProviderVerification,
  Report,
  TakenBack,
  Timeline,
  Timing,
  TunedNode,
  Weights,
  weigh,
)
from ortplugin.report.html import to_html
from ortplugin.report.regions import find_regions
from ortplugin.report.schema import SCHEMA

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&lt;\x1b[2J\u202e$title${x}"
SHOWN = r"""<script>alert(1)</script><img src=x onerror=alert(2)>"'&lt;\x1b[2J\u202e$title${x}"""


def named(name):
  """A report with something everywhere, and a stranger's text wherever a model, an error or a file puts one."""
  parts, label = (name, f"{name} (A)", f"{name} (B)"), f"{name} (FusedConv)"
  nodes = (NodeTime(name, f"{name}::{name}", 3.0, 8, (name,)), NodeTime("mm", "ai.onnx::MatMul", 1.0, 8, ("mm (X)",)))
  weights = Weights(1, 8, {name: 4, "float32": 4}, ({"name": name, "dtype": name, "shape": [1, 2], "bytes": 8},))
  case = InputComparison(name, (OutputComparison(name, False, 1.0, float("inf"), name),), "graph")
  return Report(
    input=f"a/{name}", output=name, before={f"ai.onnx::{name}": 3}, after={f"{name}::x": 1}, opset=(9, 11),
    changes=[Change(name, (part,), result) for part, result in zip(parts, (label, parts[1], ""), strict=True)],
    near_misses=[NearMiss(name, name, f"{name}{more}") for more in (" unknown", "")],
    functions={name: 1}, precision="fp16", seconds={name: 1.0},
    verification=[ProviderVerification("CPU", (case,), replays=3, graph_skipped=name, notes=(name,),
                                       timings=(Timing("graph", 1.0, 2.0),)),
                  ProviderVerification("CUDAExecutionProvider", (), skipped=name)],
    tuning=[TunedNode(name, name, {"": 1.0, name: None}, (name,))],
    guilty=Change(name, (name,), name), dropped=[Dropped(name, (name,), name)],
    taken_back=[TakenBack((name,), name, (Timing("plain", 1.0, 2.0, True),))],
    labels_before=frozenset(parts), labels_after=frozenset({label, parts[1]}),
    weights_before=weights, weights_after=weights,
    profile=Profile(name, name, Timeline(5.0, 9, nodes), Timeline(2.0, 9, nodes[:1])),
  )  # fmt: skip


def whole():
  report = full_report()
  report.labels_before = frozenset(node for change in report.changes for node in change.nodes)
  return report


def profiled():
  report = named("n")
  return Report(
    "profile",
    profile=Profile("CPU", "generated", report.profile.original),
    changes=report.changes,
    labels_before=report.labels_before,
    labels_after=report.labels_after,
  )


def test_names_of_a_model_are_shown_escaped():
  """Every text of a report, whatever a model or an error put there, on a terminal."""
  name = TERMINAL_HOSTILE
  report = named(name)
  report.seconds = {}  # whose names are ours
  report.near_misses.append(NearMiss(CONVERSION, f"{name} ({name})", name))
  text = text_of(report, explain=True, width=400)
  assert [each for each in text if not each.isprintable() and each != "\n"] == []
  assert text.count(r"\x1b[2J") >= 12
  assert r"\u202e" in text


REPORTS = {
  "empty": Report(),
  "restore": Report("restore"),
  "profile": profiled(),
  "full": full_report(),
  "named": named("n"),
  "hostile": named(HOSTILE),
  "skipped": Report(profile=Profile(HOSTILE, skipped=HOSTILE)),
}


def data_of(report):
  return json.loads(report.to_json())


@pytest.mark.parametrize("name", REPORTS)
def test_reports_fit_the_schema(name):
  assert list(faults(data_of(REPORTS[name]))) == []


def test_the_schema_refuses_what_is_missing_odd_or_of_another_type():
  whole = data_of(named("n"))
  assert set(SCHEMA["required"]) == set(SCHEMA["properties"]) == set(whole)
  line = {**whole["profile"]["original"], "runs": 1.5}
  wrong = {
    "next": [{"option": "x"}], "fused": "2", "action": "undo", "seconds": {"load": None},
    "regions": [{**whole["regions"][0], "size": 3}], "profile": {**whole["profile"], "original": line},
  }  # fmt: skip
  for key, value in wrong.items():
    assert list(faults({**whole, key: value})), key
  assert list(faults({key: whole[key] for key in whole if key != "memory"})) == ["report lacks memory"]


def test_a_region_is_traced_through_all_its_rewrites():
  """`d` stands on where a layout changes; the Cast belongs to the last that computes it again."""
  conv, relu, fused = "c (Conv)", "r (Relu)", "c (FusedConv)"
  changes = [
    Change("fuse-conv", (conv,), fused),
    Change("channels-last", (fused, "d (FusedConv)"), fused),
    Change("conv-epilogue", (fused, relu), fused),
    Change("dead-nodes", ("made (Reshape)", "s (Shape)"), ""),
    Change("sum-to-add", ("k (Cast)", "t (Sum)"), "t (Add)"),
    Change("p", ("k (Cast)",), "k (FusedPointwise)"),
  ]
  before = {conv, relu, "s (Shape)", "t (Sum)", "k (Cast)"}
  found = find_regions(changes, before, {fused, "d (FusedConv)", "t (Add)", "k (FusedPointwise)"})
  assert [(region.kind, region.result, region.nodes) for region in found] == [
    ("fused", fused, [conv, relu]),
    ("replaced", "t (Add)", ["t (Sum)"]),
    ("fused", "k (FusedPointwise)", ["k (Cast)"]),
    ("removed", "", ["s (Shape)"]),
  ]
  assert found[0].rewrites == {"fuse-conv": 1, "channels-last": 1, "conv-epilogue": 1}


def test_regions_of_a_real_model_hold_each_original_node_once():
  _, report = optimize(DATA / "mobilenet_torchscript_opset17.onnx")
  regions = data_of(report)["regions"]
  nodes = [node for region in regions for node in region["nodes"]]
  assert len(nodes) == len(set(nodes)) > 20
  assert set(nodes) <= report.labels_before
  fused = {region["result"]: region["nodes"] for region in regions if region["kind"] == "fused"}
  assert fused.keys() <= report.labels_after
  assert ["n2 (Conv)", "n3 (HardSwish)"] in fused.values()


def test_weights_are_counted_by_dtype():
  half = numpy_helper.from_array(np.zeros((2, 3), np.float16), "w")
  four = helper.make_tensor("i", TensorProto.INT4, [3], [1, 2, 3])
  found = weigh(helper.make_model(helper.make_graph([], "g", [], [], [four, half])))
  assert (found.weights, found.bytes, found.dtypes) == (2, 14, {"float16": 12, "int4": 2})
  assert found.largest[0] == {"name": "w", "dtype": "float16", "shape": [2, 3], "bytes": 12}


def test_a_node_is_taken_where_all_that_it_stands_for_is():
  """As ONNX Runtime's product with a factor, of which we would take the factor alone."""
  line = Timeline(1.0, 1, (NodeTime("f", "com.microsoft::FusedMatMul", 1.0, 0, ("mul (Mul)", "mm (MatMul)")),))
  assert line.to_dict({"mul (Mul)": "m"})["taken_share"] == 0
  assert line.to_dict({"mul (Mul)": "m", "mm (MatMul)": "m"})["nodes"][0]["taken_by"] == "m"
  assert data_of(named("n"))["profile"]["original"]["operators"][0]["taken_share"] == 0.75


def test_what_to_try_next_follows_from_what_happened():
  def options(report):
    return [each["option"] for each in data_of(report)["next"]]

  assert options(Report()) == []
  report = full_report()  # on generated inputs and a user's, on the CPU alone
  assert options(report) == ["change the model", "--keep-faster", "--provider cuda"]
  report.near_misses, report.verification = [NearMiss("r", "a (Add)", "the rank of 'x' is unknown")], []
  assert options(report) == ["--input-shape NAME:SIZE,...", "--verify"]
  case = InputComparison("generated", (OutputComparison("y", True),))
  report.verification = [
    ProviderVerification("CUDAExecutionProvider", (case,), timings=(Timing("plain", 1.0, 2.0, True),))
  ]
  report.guilty, report.weights_before, report.near_misses = report.changes[0], named("n").weights_before, []
  assert options(report) == ["--drop-guilty", "--precision fp16", "--keep-faster", "--inputs data.npz", "--tune"]
  assert options(profiled()) == ["-o OUT", "--explain"]


# ---- the page


class Page(HTMLParser):
  """The page's attributes and text; AssertionError where tags do not close."""

  def __init__(self, page):
    super().__init__()
    self.tags = set()
    self.attributes = []
    self._words = []
    self._open = []
    self.feed(page)
    self.close()
    assert self._open == []
    self.text = " ".join("".join(self._words).split()).replace("\N{MULTIPLICATION SIGN}", "x")

  def values(self, name):
    return [value or "" for key, value in self.attributes if key == name]

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    self.attributes += attrs
    if tag == "br":
      self._words.append(" ")
    elif tag != "meta":
      self._open.append(tag)

  def handle_endtag(self, tag):
    assert self._open.pop() == tag
    self._words.append("" if tag in ("b", "i", "code") else " ")

  def handle_data(self, data):
    self._words.append("" if self._open[-1:] == ["style"] else data)


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_is_whole_and_on_its_own(name):
  source = to_html(data_of(REPORTS[name]))
  page = Page(source)
  ids = page.values("id")
  assert len(ids) == len(set(ids)) == 7
  assert page.values("href") == [f"#{each}" for each in ids]
  known = {"id", "href", "class", "style", "lang", "charset", "name", "content", "http-equiv", "aria-label", "open"}
  assert {key for key, _ in page.attributes} <= known
  assert not page.tags & {"script", "img", "link", "iframe", "object", "form", "base", "svg"}
  assert not re.search(r"https?:|@import|url\(", source)
  assert "default-src 'none'; style-src 'unsafe-inline'" in page.values("content")
  assert all(re.fullmatch(r"width:\d+\.\d%", style) for style in page.values("style"))


def test_names_are_text():
  source = to_html(data_of(named(HOSTILE)))
  assert not re.search("<script|<img|[\x1b\u202e]", source)
  assert Page(source).text.count(SHOWN) > 40
  assert Page(source).tags == Page(to_html(data_of(named("n")))).tags


@pytest.mark.parametrize("report, words", [
  (whole(), "in.onnx → out.onnx|✓ Original and result agree|2.00x2 → 1 ms|Nodes 3 → 2|norm-prologue 1|"
   "1 x 2 Add, LayerNormalization → FusedLayerNorm|1 x fuse-layer-norm|odd (ReduceMean) the axes [1] are not|"
   "✓ agrees a remark|no kernels|y generated, batch=2|1.00e-06|Left to ONNX Runtime Add 1|passes 1.50 s"),
  (named("n"), "Upgraded from opset 9 to 11|Precision fp16|Left out the pass 'n': n|To blame: 'n' of n|"
   "all operators 4 3|n::n 3 3|MatMul 1|mm MatMul 1 25.0% 8 bytes|medians of 9 runs|n, graph|3 replays|"
   "CPU graph speed 0.50x1 → 2 ms|Took back what made it slower: n|"
   "✗ differs n 1.00e+00 inf|float32 4 bytes|1x2|written in a run 16 bytes 8 bytes|✗ Outputs differ|--drop-guilty"),
  (profiled(), "We could take 75%|One run 5 ms|would fire|n::n 3 3|MatMul 1"),
  (Report(profile=Profile("CPU", skipped="that")), "Not measured: that.|Outputs were not compared|None: nothing"),
])  # fmt: skip
def test_a_page_shows_what_the_data_say(report, words):
  page = Page(to_html(data_of(report))).text
  assert [each for each in words.split("|") if each not in page] == []


def test_a_notebook_shows_the_page_in_a_frame():
  report = named(HOSTILE)
  (frame,) = re.findall(r'^<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>$', report._repr_html_())
  assert html.unescape(frame) == report.to_html() == to_html(data_of(report))
