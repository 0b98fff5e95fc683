import os
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx_models import add_weights, one_in, parametrize, parsed, raises, zeros

from ort import dying
from ort.test_verify_graphs import Rename
from ortplugin.check import judge_process, verify
from ortplugin.check.child import Child, free_memory
from ortplugin.check.inputs import CANDIDATES, generate, without_weights
from ortplugin.check.judge import Question, Side
from ortplugin.check.judge_process import JudgeProcess
from ortplugin.cli import main
from ortplugin.errors import UsageError, VerificationError
from ortplugin.optimizer import pipeline
from ortplugin.report import PLAIN
from ortplugin.session import CPU

MODEL = """(float[4,8] x) => (y) { a = Abs(x) y = Neg(a) }"""
HOW = {
  "segmentation": "died of SIGSEGV (Segmentation fault)",
  "abort": "died of SIGABRT (Aborted): terminate called after throwing an instance of 'std::bad_alloc'",
  "killed": "died of SIGKILL (Killed), as when the machine's memory runs out",
}


def saved(folder, fault, name="m.onnx"):
  model = parsed(MODEL)
  model.graph.node[0].name, model.graph.node[1].name = "abs", fault
  onnx.save(model, folder / name)
  return Side(folder / name, plugin=False)


def process(folder, fault="", kind=dying.Dying, **more):
  light = without_weights(parsed(MODEL)).SerializeToString()
  return JudgeProcess(Question(saved(folder, fault, "original.onnx"), light), judge=kind, **more)


def message(result):
  return next((output.message for each in result.inputs for output in each.outputs if not output.passed), "")


@parametrize("fault", HOW)
def test_a_death_is_a_failure_of_the_optimized_model(tmp_path, fault):
  with closing(process(tmp_path)) as judge:
    judge.load_original(CPU)
    bad = saved(tmp_path, fault, "bad.onnx")
    result = judge.verify(CPU, bad, timed=True)
    assert not result.passed
    assert message(result) == f"ONNX Runtime {HOW[fault]} while loading the optimized model on CPU"
    assert result.inputs[0].mode == PLAIN
    assert not judge.agrees(CPU, bad)
    assert judge.verify(CPU, saved(tmp_path, "", "good.onnx"), timed=False).passed, "in another process"


@parametrize("fault", HOW)
def test_a_death_of_the_original_is_an_error_that_says_so(tmp_path, fault):
  with closing(process(tmp_path, fault)) as judge, pytest.raises(VerificationError) as caught:
    judge.load_original(CPU)
  assert f"ONNX Runtime {HOW[fault]} while loading the original on CPU; choose another --provider" in str(caught.value)


def test_what_hangs_is_ended(tmp_path):
  with closing(process(tmp_path, seconds=2)) as judge:
    judge.load_original(CPU)
    begun = time.monotonic()
    result = judge.verify(CPU, saved(tmp_path, "hang", "bad.onnx"), timed=False)
    assert message(result) == "ONNX Runtime took more than 2 s while loading the optimized model on CPU"
    assert time.monotonic() - begun < 30


def test_the_time_allowed_grows_with_that_of_the_original(tmp_path):
  judge = process(tmp_path)
  assert judge._limit(None) == judge_process.ORIGINAL_SECONDS
  step = dying.Step("running the optimized model")
  assert judge._limit(step) == judge_process.LEAST_SECONDS
  judge._slowest = 100.0
  assert judge._limit(step) == 5000.0


def test_memory_is_limited(tmp_path):
  with closing(process(tmp_path, memory=2**29)) as judge:
    judge.load_original(CPU)
    result = judge.verify(CPU, saved(tmp_path, "memory", "bad.onnx"), timed=False)
    assert message(result) == "ONNX Runtime took more than 0.5 GB of memory while loading the optimized model on CPU"
  assert 2**20 < free_memory() < 2**50


def test_a_death_in_timing_costs_the_times_only(tmp_path):
  with closing(process(tmp_path, kind=dying.DyingInTiming)) as judge:
    result = judge.verify(CPU, saved(tmp_path, "", "good.onnx"), timed=True)
  assert result.passed
  assert result.original_ms is None
  (note,) = result.notes
  assert note.startswith("ONNX Runtime died of SIGABRT")
  assert note.endswith("while timing on CPU")


def test_a_death_of_the_originals_graph_is_why_it_is_not_compared(tmp_path):
  with closing(process(tmp_path, kind=dying.DyingInGraphs)) as judge:
    result = judge.verify(CPU, saved(tmp_path, "", "good.onnx"), timed=False)
  assert result.passed
  assert "it has control flow; nor can the original" in result.graph_skipped


def test_a_lost_process_is_replaced(tmp_path):
  with closing(process(tmp_path, kind=dying.Lost)) as judge:
    call = partial(judge._child.call, "number", seconds=lambda doing: 60)
    number = call()
    assert number != os.getpid()
    assert call() == number
    onnx.save(parsed(MODEL.replace("Abs", "Sin")), tmp_path / "wrong.onnx")
    assert not judge.agrees(CPU, Side(tmp_path / "wrong.onnx", plugin=False))
    assert call() != number


def test_a_defect_is_no_verdict(tmp_path):
  """It comes back as the error that it is, with the traceback of the process, and harms nothing."""
  with closing(Child(dying.Dying, Question(saved(tmp_path, ""), b""))) as child:
    for _ in range(2):
      with raises(RuntimeError, r"TypeError: .*verify") as caught:
        child.call("verify", seconds=lambda doing: 60)
    assert "Traceback" in str(caught.value.__cause__)


def test_an_object_that_can_not_be_made(tmp_path):
  child = Child(dying.Refused, Question(saved(tmp_path, ""), b""))
  with raises(UsageError, "not for you"):
    child.call("anything", seconds=lambda doing: 60)
  child.close()


def test_a_process_that_does_not_start(patch, tmp_path):
  patch(sys, "executable", "/bin/false")
  with closing(process(tmp_path)) as judge, raises(VerificationError, "ended with status 1"):
    judge.load_original(CPU)
  patch(sys, "executable", "")
  with closing(process(tmp_path)) as judge, raises(Exception, "optimize-model"):
    judge.load_original(CPU)


def test_warnings_of_the_library_are_shown(tmp_path, capfd):
  with closing(process(tmp_path)) as judge:
    assert judge.agrees(CPU, saved(tmp_path, "warning", "good.onnx"))
  assert capfd.readouterr().err == "ortplugin: a plan is not used\n"


def test_nothing_is_left_behind(tmp_path):
  judge = process(tmp_path)
  judge.load_original(CPU)
  child = judge._child._process
  judge.close()
  assert child.returncode == 0
  judge.close()  # once more does nothing


def test_it_ends_with_its_parent(tmp_path):
  saved(tmp_path, "hang", "bad.onnx")
  code = f"""
import sys; sys.path[:] = {sys.path!r}
import os, threading, time
from pathlib import Path
from ort.test_judge_process import *
judge = process(Path({str(tmp_path)!r}))
judge.load_original(CPU)
print(judge._child._process.pid, flush=True)
threading.Timer(1, lambda: os.kill(os.getpid(), 9)).start()
judge.verify(CPU, Side(Path({str(tmp_path / "bad.onnx")!r}), False), False)
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
  assert done.returncode == -9, done.stderr
  number = int(done.stdout)
  for _ in range(100):
    if not Path(f"/proc/{number}").exists() or " Z " in Path(f"/proc/{number}/stat").read_text():
      return
    time.sleep(0.1)
  raise AssertionError("it lives on")


def test_the_callers_program_is_not_run_again(tmp_path):
  """A script without `if __name__ == "__main__"`, as most are, verifies as it is."""
  saved(tmp_path, "")
  script = tmp_path / "script.py"
  script.write_text(
    f"""
import sys; sys.path[:] = {sys.path!r}
print("once")
from ortplugin.check.verify import Verifier
import onnx
model = onnx.load({str(tmp_path / "m.onnx")!r})
verifier = Verifier(model, providers=["cpu"])
print(verifier.verify(model)[0].passed)
verifier.close()
"""
  )
  done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
  assert done.stdout == "once\nTrue\n"


def test_inputs_need_no_weights():
  model = parsed("(int64[3] i, float[2,n] x) => (float[3,64] y, float[2,n] z) { y = Gather(table, i) z = Abs(x) }")
  table = zeros(7, 64)
  add_weights(model, table=table)
  light = without_weights(model)
  assert len(light.SerializeToString()) < 500
  assert [tensor.name for tensor in light.graph.initializer] == ["table"]
  for sizes in CANDIDATES:
    wanted, found = generate(model, sizes), generate(light, sizes)
    assert wanted.name == found.name
    assert all((wanted.feeds[name] == found.feeds[name]).all() for name in ("i", "x"))


# ---- the guilty rewrite


def files(folder):
  return [str(folder / "in.onnx"), "-o", str(folder / "out.onnx")]


@one_in(3)
@parametrize("fault", ["segmentation", "abort"])
def test_the_rewrite_that_makes_onnx_runtime_die_is_named(tmp_path, patch, capsys, fault):
  patch(verify, "JudgeProcess", partial(JudgeProcess, judge=dying.Dying))
  patch(pipeline, "TABLE", (Rename("rename-right", "Abs", "fine"), Rename("rename-wrong", "Neg", fault)))
  saved(tmp_path, "neg", "in.onnx")
  command = [*files(tmp_path), "--provider", "cpu"]
  assert main(command) == 1
  error = capsys.readouterr().err
  assert error.count("\n") == 1
  assert "from the rewrite 'rename-wrong'" in error
  assert HOW[fault].partition(":")[0] in error
  assert "--skip rename-wrong" in error
  assert main([*command, "--drop-guilty"]) == 0
  assert onnx.load(tmp_path / "out.onnx").graph.node[0].name == "fine"


def test_an_original_that_makes_onnx_runtime_die(tmp_path, patch, capsys):
  patch(verify, "JudgeProcess", partial(JudgeProcess, judge=dying.Dying))
  patch(pipeline, "TABLE", (Rename("rename", "Abs", "fine"),))
  saved(tmp_path, "segmentation", "in.onnx")
  assert main(files(tmp_path)) == 1
  error = capsys.readouterr().err
  assert error.count("\n") == 1
  assert "died of SIGSEGV (Segmentation fault) while loading the original on CPU" in error
  assert "--no-verify" in error
  assert not (tmp_path / "out.onnx").exists()
  assert main([*files(tmp_path), "--no-verify"]) == 0
