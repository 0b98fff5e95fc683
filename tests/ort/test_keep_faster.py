"""optimize-model --keep-faster: what makes the result slower is taken back. The CPU provider stands for a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

import ortplugin
from ort.test_verify_graphs import MODEL, HereJudge, Machine, Rename, parsed, renamed, verified
from ortplugin.cli import main
from ortplugin.optimizer import api, pipeline
from ortplugin.optimizer.options import Options
from ortplugin.passes.base import Change, PassResult
from ortplugin.report import GRAPH, PLAIN, Report, TakenBack, Timing

TYPES = ("Abs", "Neg", "Exp", "Sqrt")
Run = Callable[..., tuple[int, str, dict[str, Any], set[str]]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(pipeline, "TABLE", tuple(Rename(f"rename-{name.lower()}", name) for name in TYPES))
    return Machine(monkeypatch)


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Sets what a model takes in a mode, where the original takes 10 ms; returns the modes that are timed."""

    def setting(time: Callable[[set[str], str], float]) -> list[str]:
        asked: list[str] = []

        def times_of(model: onnx.ModelProto, mode: str) -> Timing:
            asked.append(mode)
            milliseconds = time(
                {node.name.removesuffix("_new") for node in model.graph.node if "_new" in node.name}, mode
            )
            return Timing(mode, 10, milliseconds, float(milliseconds > 10))

        monkeypatch.setattr(HereJudge, "times_of", staticmethod(times_of))
        return asked

    return setting


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command: (status, text, report, the nodes that are renamed in what was written)."""

    def command(*options: str) -> tuple[int, str, dict[str, Any], set[str]]:
        source, out, report = (tmp_path / name for name in ("in.onnx", "out.onnx", "r.json"))
        if not source.exists():
            onnx.save(parsed(), source)
        status = main([str(source), "-o", str(out), "--report", str(report), *options])
        names = {node.name for node in onnx.load(out).graph.node}
        renamed = {name.removesuffix("_new") for name in names if name.endswith("_new")}
        return status, capsys.readouterr().out.replace("\n", " "), json.loads(report.read_text()), renamed

    return command


@pytest.mark.parametrize("mode", [GRAPH, PLAIN])
@pytest.mark.parametrize("guilty", ["abs", "exp", "sqrt"])
def test_what_loses_in_one_mode_is_taken_back(
    machine: Machine, takes: Callable[..., list[str]], run: Run, mode: str, guilty: str
) -> None:
    """On a GPU that is so by default; without, it is only said."""
    takes(lambda names, run_in: 20 if guilty in names and run_in == mode else 10 - len(names))
    status, text, report, names = run("--provider", "cuda")
    assert status == 0
    assert names == {"abs", "neg", "exp", "sqrt"} - {guilty}
    (taken,) = report["taken_back"]
    assert (taken["rewrites"], taken["provider"]) == ([f"rename-{guilty}"], "CUDAExecutionProvider")
    assert [each["mode"] for each in taken["timings"] if each["loses"]] == [mode]
    (entry,) = report["verification"]
    assert [(each["mode"], each["optimized_ms"], each["loses"]) for each in entry["timings"]] == [
        (GRAPH, 7, False),
        (PLAIN, 7, False),
    ]
    assert f"Took back what made it slower, the passes 'rename-{guilty}': with them, CUDA" in text
    assert "CUDA, in a CUDA graph: original 10.000 ms, optimized 7.000 ms, 1.43 times as fast" in text
    status, text, report, names = run("--provider", "cuda", "--no-keep-faster")
    assert names == {"abs", "neg", "exp", "sqrt"}
    assert report["taken_back"] == []
    assert "slower than the original; taking rewrites back is switched off" in text


def test_where_everything_loses_the_original_is_written(
    machine: Machine, takes: Callable[..., list[str]], run: Run, tmp_path: Path
) -> None:
    takes(lambda names, mode: 10 + len(names))
    status, text, report, names = run("--provider", "cuda")
    assert (status, names) == (0, set())
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(tmp_path / "in.onnx")
    assert report["changes"] == []
    assert {name for each in report["taken_back"] for name in each["rewrites"]} == {
        f"rename-{n.lower()}" for n in TYPES
    }
    assert "The original stays" in text


def test_what_loses_once_and_not_again_stays(machine: Machine, takes: Callable[..., list[str]], run: Run) -> None:
    asked = takes(lambda names, mode: 20 if len(asked) == 1 else 9)
    _, _, report, names = run("--provider", "cuda")
    assert names == {"abs", "neg", "exp", "sqrt"}
    assert (report["taken_back"], report["verification"][0]["notes"]) == ([], [])
    assert asked == [GRAPH, PLAIN] * 2
    assert report["verification"][0]["timings"][0]["optimized_ms"] == 9


def test_what_goes_on_losing_goes_whole(
    machine: Machine, takes: Callable[..., list[str]], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where each attempt is slow in another way: after so many searches there is none."""
    takes(lambda names, mode: 20 if "abs" in names else 5)
    monkeypatch.setattr(api, "_SEARCHES", 0)
    _, text, report, names = run("--provider", "cuda")
    assert names == set()
    assert [set(each["rewrites"]) for each in report["taken_back"]] == [{f"rename-{name.lower()}" for name in TYPES}]
    assert "The original stays" in text
    monkeypatch.setattr(api, "_SEARCHES", 2)
    asked: list[tuple[Any, bool]] = []

    def once(model: onnx.ModelProto, options: Options, is_last: bool) -> tuple[onnx.ModelProto, Report, frozenset[str]]:
        asked.append((options.skip, is_last))
        left = "xyz"[len(asked) - 1 : len(asked)]
        return model, Report(taken_back=[TakenBack((left,), "p", ())] if left else []), frozenset(left)

    monkeypatch.setattr(api, "_optimize_once", once)
    _, found = ortplugin.optimize(parsed(), verify=True)
    assert asked == [((), False), (("x",), False), (("x", "y"), True), (("x", "y", "z"), True)]
    assert [each.rewrites for each in found.taken_back] == [("x",), ("y",), ("z",)]


def test_only_what_both_can_run_is_timed(machine: Machine, takes: Callable[..., list[str]]) -> None:
    asked = takes(lambda names, mode: 9)
    machine.refuse = lambda model: "it has control flow" if model.graph.name == "new" else ""
    result = verified(renamed())
    assert [each.mode for each in result.timings] == [PLAIN]
    assert asked == [PLAIN]


def test_where_times_can_not_be_taken_the_report_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *rest: Any) -> Timing:
        raise MemoryError("no room")

    monkeypatch.setattr(HereJudge, "_time_graphs", fail)
    result = verified(renamed())
    assert result.passed
    assert [each.mode for each in result.timings] == [PLAIN]
    assert result.notes == ("not timed on CUDA, in a CUDA graph: no room",)


def test_what_was_asked_for_stays(machine: Machine, takes: Callable[..., list[str]], run: Run) -> None:
    """Fixed shapes that are slower even without a rewrite."""
    takes(lambda names, mode: 20)
    _, text, report, names = run("--provider", "cuda", "--input-shape", "x:4,8")
    assert names == {"abs", "neg", "exp", "sqrt"}
    assert report["taken_back"] == []
    assert "slower than the original; what was asked for costs that" in text


# ----------------------------------------------------------------------------------- on the CPU, by the clock itself


class Delay:
    """A pass that makes one Abs many, which changes nothing but the time."""

    name, summary = "delay", "for a test"

    def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
        (first, *more) = [node for node in graph.nodes if node.op == "Abs"]
        if more or limit == 0:
            return PassResult((), ())
        (end,) = first.outputs
        value = first.inputs[0]
        first.outputs = []
        for number in range(100):
            result = end if number == 99 else gs.Variable(f"{end.name}_{number}", value.dtype, value.shape)
            graph.nodes.append(gs.Node("Abs", f"abs{number}", inputs=[value], outputs=[result]))
            value = result
        graph.cleanup().toposort()
        return PassResult((Change(self.name, ("abs (Abs)",), "abs0 (Abs)"),), ())


def test_on_the_cpu_where_it_is_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline, "TABLE", (Rename("rename-neg", "Neg"), Delay()))
    model = parsed(MODEL.replace("4,8", "512,512"))
    onnx.save(model, tmp_path / "in.onnx")
    _, text, report, names = run("--provider", "cpu")
    assert set(report["rewrites"]) == {"rename-neg", "delay"}
    assert "slower than the original; --keep-faster takes back the rewrites that make it so" in text
    _, text, report, names = run("--provider", "cpu", "--keep-faster")
    assert names == {"neg"}
    assert [each["rewrites"] for each in report["taken_back"]] == [["delay"]]
    assert not any(each["loses"] for each in report["verification"][0]["timings"])
    monkeypatch.setattr(pipeline, "TABLE", (Delay(),))
    told: list[str] = []
    made, found = ortplugin.optimize(model, verify=True, keep_faster=True, providers=["cpu"], progress=told.append)
    assert made == model
    assert [each.rewrites for each in found.taken_back] == [("delay",)]
    assert any("looking for the rewrites that lose" in each for each in told)
