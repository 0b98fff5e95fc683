"""optimize-model --keep-faster. The CPU provider stands for a GPU, and given times for the clock, but at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import pytest

import ortplugin
from ort.test_verify_graphs import MODEL, HereJudge, Machine, Rename, parsed, renamed, verified
from ortplugin.cli import main
from ortplugin.optimizer import api, pipeline
from ortplugin.passes.base import Change, PassResult
from ortplugin.report import GRAPH, PLAIN, Timing

PASSES = tuple(Rename(name, kind) for name, kind in (("abs", "Abs"), ("neg", "Neg"), ("exp", "Exp"), ("sqrt", "Sqrt")))
ALL = {step.name for step in PASSES}
Takes = Callable[[Callable[[set[str], str], float]], list[str]]
Run = Callable[..., tuple[str, Any, set[str]]]


def fired(model: onnx.ModelProto) -> set[str]:
    return {node.name.removesuffix("_new") for node in model.graph.node if node.name.endswith("_new")}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(pipeline, "TABLE", PASSES)
    return Machine(monkeypatch)


@pytest.fixture
def takes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Takes:
    """Sets what a result takes, by the passes that fired and the mode; the original takes 10. Returns what is timed."""

    def setting(time: Callable[[set[str], str], float]) -> list[str]:
        asked: list[str] = []

        def times_of(model: onnx.ModelProto, mode: str) -> Timing:
            asked.append(mode)
            taken = time(fired(model), mode)
            return Timing(mode, 10, taken, taken > 10)

        monkeypatch.setattr(HereJudge, "times_of", staticmethod(times_of))
        return asked

    return setting


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command: (text, report, what fired in the model that it wrote)."""

    def command(*options: str) -> tuple[str, Any, set[str]]:
        source, out, report = (tmp_path / name for name in ("in.onnx", "out.onnx", "r.json"))
        if not source.exists():
            onnx.save(parsed(), source)
        assert main([str(source), "-o", str(out), "--report", str(report), *options]) == 0
        return capsys.readouterr().out.replace("\n", " "), json.loads(report.read_text()), fired(onnx.load(out))

    return command


@pytest.mark.parametrize("mode", [GRAPH, PLAIN])
@pytest.mark.parametrize("guilty", ["abs", "sqrt"])
def test_what_loses_in_one_mode_is_taken_back(takes: Takes, run: Run, mode: str, guilty: str) -> None:
    takes(lambda names, run_in: 20 if guilty in names and run_in == mode else 10 - len(names))
    text, report, names = run("--provider", "cuda")
    assert names == ALL - {guilty}
    (taken,) = report["taken_back"]
    assert (taken["rewrites"], taken["provider"]) == ([guilty], "CUDAExecutionProvider")
    assert [each["mode"] for each in taken["timings"] if each["loses"]] == [mode]
    times = [(each["mode"], each["optimized_ms"]) for each in report["verification"][0]["timings"]]
    assert times == [(GRAPH, 7), (PLAIN, 7)]
    assert f"Took back what made it slower, the passes '{guilty}': with them, CUDA" in text
    text, report, names = run("--provider", "cuda", "--no-keep-faster")
    assert (names, report["taken_back"]) == (ALL, [])
    assert "slower than the original; --keep-faster --provider cuda takes back what makes it so" in text


@pytest.mark.parametrize("searches", [2, -1])
def test_where_everything_loses_the_original_is_written(
    takes: Takes, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searches: int
) -> None:
    """Or where searches end; where a shape was asked for, that stays."""
    monkeypatch.setattr(api, "_SEARCHES", searches)
    takes(lambda names, mode: 10 + len(names) if searches == 2 else 20 if "abs" in names else 9)
    text, report, _ = run("--provider", "cuda")
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(tmp_path / "in.onnx")
    assert report["taken_back"]
    assert "The original stays" in text
    takes(lambda names, mode: 20)
    text, report, names = run("--provider", "cuda", "--input-shape", "x:4,8")
    assert (names, report["taken_back"]) == (ALL, [])
    assert "slower than the original; what was asked for makes it so" in text


def test_what_loses_once_and_not_again_stays(takes: Takes, run: Run) -> None:
    asked = takes(lambda names, mode: 20 if len(asked) == 1 else 9)
    _, report, names = run("--provider", "cuda")
    assert (names, report["taken_back"], report["verification"][0]["notes"]) == (ALL, [], [])
    assert asked == [GRAPH, PLAIN] * 2
    assert report["verification"][0]["timings"][0]["optimized_ms"] == 9


def test_what_can_not_be_timed(takes: Takes, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.refuse = lambda model: "it has control flow" if model.graph.name == "new" else ""
    assert [each.mode for each in verified(renamed()).timings] == [PLAIN]
    machine.refuse = lambda model: ""
    monkeypatch.setattr(HereJudge, "_time_graphs", lambda *rest: 1 // 0)
    result = verified(renamed())
    assert (result.passed, [each.mode for each in result.timings]) == (True, [PLAIN])
    assert "not timed on CUDA, in a CUDA graph: " in result.notes[0]


class Delay:
    """A pass that makes one Abs many."""

    name, summary = "delay", "for a test"

    def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
        (first, *more) = [node for node in graph.nodes if node.op == "Abs"]
        if more or limit == 0:
            return PassResult((), ())
        value, (end,) = first.inputs[0], first.outputs
        first.outputs = []
        for number in range(100):
            result = end if number == 99 else gs.Variable(f"d{number}", value.dtype, value.shape)
            graph.nodes.append(gs.Node("Abs", f"d{number}", inputs=[value], outputs=[result]))
            value = result
        graph.cleanup().toposort()
        return PassResult((Change(self.name, ("abs",), ""),), ())


def test_on_the_cpu_where_it_is_asked_for(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "TABLE", (Rename("neg", "Neg"), Delay()))
    model = parsed(MODEL.replace("4,8", "512,512"))
    onnx.save(model, tmp_path / "in.onnx")
    text, report, _ = run("--provider", "cpu")
    assert set(report["rewrites"]) == {"neg", "delay"}
    assert "--keep-faster --provider cpu takes back what makes it so" in text
    _, report, names = run("--provider", "cpu", "--keep-faster")
    assert names == {"neg"}
    assert [each["rewrites"] for each in report["taken_back"]] == [["delay"]]
    monkeypatch.setattr(pipeline, "TABLE", (Delay(),))
    told: list[str] = []
    made, _ = ortplugin.optimize(model, verify=True, keep_faster=True, providers=["cpu"], progress=told.append)
    assert made == model
    assert any("looking for the rewrites that lose" in each for each in told)
