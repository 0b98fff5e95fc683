"""Where a model spends its time: ONNX Runtime's profile, and the model's nodes that its own nodes stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from exported import DATA
from json_schema import faults

from ortplugin import optimize
from ortplugin.check.profile import profile, timeline
from ortplugin.cli import main
from ortplugin.errors import VerificationError
from ortplugin.report import Timeline

BERT = DATA / "bert_torchscript_opset17_dynamic.onnx"
Run = Callable[..., tuple[int, str, str]]


def parsed(body: str, weights: str = "", dims: str = "[2,64]") -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["" : 17]> g (float{dims} x) => (float{dims} y)'
    return onnx.parser.parse_model(f"{head} {weights} {{ {body} }}")


def profiled(model: onnx.ModelProto, **options: Any) -> Timeline:
    found = profile([model], **options)
    assert found.skipped == ""
    assert found.optimized is None
    assert found.original is not None
    return found.original


def origins(model: onnx.ModelProto) -> dict[str, set[str]]:
    return {each.operator.partition("::")[2]: set(each.origins) for each in profiled(model).nodes}


# -------------------------------------------------------------------------------------------------------- the timeline


def test_every_node_has_a_time_and_the_bytes_that_it_writes() -> None:
    line = profiled(parsed("a = Exp (x)  b = Sin (a)  y = Cos (b)"))
    assert sorted(each.operator for each in line.nodes) == ["ai.onnx::Cos", "ai.onnx::Exp", "ai.onnx::Sin"]
    assert {each.bytes for each in line.nodes} == {2 * 64 * 4}
    assert line.runs >= 3
    assert 0 < sum(each.ms for each in line.nodes) <= 1.5 * line.run_ms
    assert list(line.nodes) == sorted(line.nodes, key=lambda each: -each.ms)


def test_nodes_without_a_name_or_of_one_name_are_told_apart() -> None:
    model = parsed("a = Exp (x)  b = Exp (a)  y = Sin (b)")
    model.graph.node[1].name = model.graph.node[2].name = "twin"
    line = profiled(model)
    assert {each.origins for each in line.nodes} == {("'a' (Exp)",), ("twin (Exp)",), ("twin (Sin)",)}
    assert not model.graph.node[0].name


def test_a_fused_node_stands_for_all_that_it_computes() -> None:
    """ONNX Runtime puts a factor into a product: taking the factor alone would not take the product."""
    weights = "<float[64,64] w = {" + ",".join(["1"] * 4096) + "}, float s = {3.0}>"
    model = parsed("t = Transpose <perm = [1,0]> (x)  m = MatMul (x, t)  e = Mul (m, s)  y = MatMul (e, x)", weights)
    assert origins(model)["FusedMatMul"] == {"'e' (Mul)", "'m' (MatMul)", "'t' (Transpose)"}


def test_blocked_convolutions_are_traced_by_their_output() -> None:
    weights = "<float[16,16,3,3] w = {" + ",".join(["0.01"] * 2304) + "}>"
    body = "c = Conv <pads = [1,1,1,1]> (x, w)  r = Relu (c)  d = Conv <pads = [1,1,1,1]> (r, w)  y = Sigmoid (d)"
    found = profiled(parsed(body, weights, "[1,16,8,8]"))
    convolutions = [each for each in found.nodes if each.operator.endswith("::Conv")]
    assert {origin for each in convolutions for origin in each.origins} >= {"'r' (Relu)", "'c' (Conv)", "'d' (Conv)"}
    assert all(each.origins == () for each in found.nodes if "Reorder" in each.operator)


def test_nodes_of_bodies_do_not_count_twice() -> None:
    """By hand: a loop of 10 ms has a node of 6 ms in it, in each of two runs after one that warms up."""

    def event(name: str, ts: int, dur: int, op: str = "") -> dict[str, Any]:
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
    model = parsed("y = Exp (x)")
    model.graph.node[0].name = "after"
    line = timeline(events, model, model, 2)
    assert [(each.node, each.ms, each.bytes, each.origins) for each in line.nodes] == [
        ("in", 12.0, 8, ()), ("loop", 8.0, 8, ()), ("after", 0.2, 8, ("after (Exp)",)),
    ]  # fmt: skip
    assert (line.run_ms, line.runs) == (22.0, 2)


def test_both_models_run_on_the_same_inputs(library: Path, tmp_path: Path) -> None:
    model, report = optimize(BERT, precision="fp16", precision_io=True)
    original = onnx.load(BERT)
    report.profile = profile([original, model], BERT)
    assert report.profile.inputs == "generated, batch=2, sequence=16"
    data = json.loads(report.to_json())
    assert list(faults(data)) == []
    sides = data["profile"]["original"], data["profile"]["optimized"]
    assert all(0 < side["taken_share"] < 1 for side in sides)
    assert any(each["operator"] == "ortplugin::FusedLayerNorm" for each in sides[1]["operators"])
    norms = [each for each in sides[0]["operators"] if each["operator"] == "ai.onnx::LayerNormalization"]
    assert norms[0]["taken_share"] == pytest.approx(norms[0]["share"])


def test_a_model_that_does_not_run_says_why() -> None:
    with pytest.raises(VerificationError, match="the original does not run"):
        profile([parsed("i = Cast <to = 7> (x)  y = Gather (x, i)", dims="[2,64]")])


# ----------------------------------------------------------------------------------------------------- the command line


def test_a_profile_changes_nothing_and_shows_what_could_be_taken(library: Path, tmp_path: Path, run: Run) -> None:
    before = BERT.read_bytes()
    status, text, errors = run(BERT, "--profile", "--report", tmp_path / "r.json", "--input-shape", "input_ids:3,8")
    assert (status, errors) == (0, "")
    assert BERT.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    data = json.loads((tmp_path / "r.json").read_text())
    assert list(faults(data)) == []
    assert (data["action"], data["output"], data["verification"]) == ("profile", None, [])
    assert data["profile"]["optimized"] is None
    share = data["profile"]["original"]["taken_share"]
    assert 0 < share < 1
    words = ("Time per operator", "LayerNormalization", "Slowest nodes", "Rewrites that would apply")
    for each in (*words, "batch=3, sequence=8", f"{share:.0%} of the time", "no model was written"):
        assert each in text
    assert run(BERT, "--profile", "--dry-run", "--report", tmp_path / "r.html")[0] == 0
    assert "We could take" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("name", ["r.json", "r.html", "R.HTM"])
def test_a_report_has_times_before_and_after(name: str, library: Path, tmp_path: Path, run: Run) -> None:
    status, _, errors = run(BERT, "-o", tmp_path / "o.onnx", "--report", tmp_path / name)
    assert (status, errors) == (0, "")
    text = (tmp_path / name).read_text()
    if name == "r.json":
        data = json.loads(text)
        assert list(faults(data)) == []
        assert {side["runs"] > 2 for side in (data["profile"]["original"], data["profile"]["optimized"])} == {True}
        assert data["memory"]["written_before"] > data["memory"]["written_after"] > 0
        assert data["seconds"]["profile"] > 0
    else:
        assert "ortplugin::FusedLayerNorm<i" in text
        assert "Original and result agree" in text


def test_without_a_verification_there_is_no_profile(library: Path, tmp_path: Path, run: Run) -> None:
    assert run(BERT, "--dry-run", "--no-verify", "--report", tmp_path / "r.json")[0] == 0
    data = json.loads((tmp_path / "r.json").read_text())
    assert (list(faults(data)), data["profile"]) == ([], None)


def test_a_restored_model_is_reported_too(library: Path, tmp_path: Path, run: Run) -> None:
    run(BERT, "-o", tmp_path / "o.onnx", "--no-verify")
    assert run(tmp_path / "o.onnx", "--restore", "-o", tmp_path / "b.onnx", "--report", tmp_path / "r.json")[0] == 0
    data = json.loads((tmp_path / "r.json").read_text())
    assert list(faults(data)) == []
    assert data["profile"]["optimized"]["taken_share"] == 0


def test_a_node_named_as_a_script_is_text_in_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = parsed("a = Exp (x)  y = Sin (a)")
    name = "<script>alert(1)</script>\x1b[2J"
    model.graph.node[0].name = name
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    assert main([str(tmp_path / "in.onnx"), "--profile", "--report", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J") >= 1
    out = capsys.readouterr().out
    assert r"<script>alert(1)</script>\x1b[2J" in out
    assert "\x1b" not in out


def test_what_cannot_be_profiled_says_so_and_is_optimized(
    library: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise VerificationError("it is not to be")

    monkeypatch.setattr("ortplugin.check.profile.profile", fail)
    assert run(BERT, "-o", tmp_path / "o.onnx", "--report", tmp_path / "r.json")[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["profile"]["skipped"] == "it is not to be"
    status, text, errors = run(BERT, "--profile")
    assert (status, text) == (1, "")
    assert errors == "optimize-model: it is not to be\n"
