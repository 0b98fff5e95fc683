import contextlib
import io
import os
import pty
import re
import subprocess
import sys
from types import SimpleNamespace

import onnx
from exported import DATA
from mistakes import check_mistake
from onnx_models import parametrize, parsed

import ortplugin
from ortplugin import optimizer, progress
from ortplugin.cli import main
from ortplugin.optimizer import loop, pipeline
from ortplugin.passes.base import NearMiss, PassResult

BERT = DATA / "bert_torchscript_opset17_dynamic.onnx"


class Misses:
  """A pass that nearly fires, or fails."""

  name, summary = "fuse-nothing", "for a test"

  def __init__(self, error=None):
    self.error = error

  def __call__(self, graph, limit=None):
    if self.error is not None:
      raise self.error
    return PassResult((), (NearMiss(self.name, "abs (Abs)", "it is no Add"),))


def small_file(folder):
  onnx.save(parsed("(float[4] x) => (y) { [abs] y = Abs(x) }"), folder / "in.onnx")
  return folder / "in.onnx"


OUT = "{bert} -o {tmp}/o.onnx"
MISTAKES = {
  "no arguments": ("", 2, "no model is given"),
  "no output": ("{bert}", 2, "-o OUT"),
  "nothing to drop": (f"{OUT} --no-verify --drop-guilty", 2, "--drop-guilty is about"),
  "nothing to time": (f"{OUT} --no-verify --keep-faster", 2, "--keep-faster goes by"),
  "a restore drops nothing": (f"{OUT} --restore --drop-guilty", 2, "--drop-guilty is"),
  "missing file": ("{tmp}/none.onnx -o {tmp}/o.onnx", 2, "does not exist"),
  "truncated file": ("{tmp}/cut.onnx -o {tmp}/o.onnx", 1, "truncated"),
  "output is input": ("{bert} -o {bert}", 2, "is the input"),
  "no folder": ("{bert} -o {tmp}/no/o.onnx", 2, "create it"),
  "report is input": (f"{OUT} --report {{bert}}", 2, "is the input"),
  "report is output": (f"{OUT} --report {{tmp}}/o.onnx", 2, "same file"),
  "unknown option": ("{bert} --oops", 2, "--oops"),
  "unknown pass": (f"{OUT} --skip fuse-layernorm", 2, "did you mean fuse-layer-norm"),
  "bad shape": (f"{OUT} --input-shape x=1,2", 2, "NAME:SIZE"),
  "negative shape": (f"{OUT} --input-shape input_ids:-1,2", 2, "NAME:SIZE"),
  "endless shape": (f"{OUT} --input-shape input_ids:{'9' * 5000},2", 2, "NAME:SIZE"),
  "unknown input": (f"{OUT} --input-shape inputids:1,2", 2, "did you mean input_ids"),
  "two shapes": ("{bert} --input-shape a:1 --input-shape a:2", 2, "two shapes"),
  "bad tolerance": (f"{OUT} --rtol -1", 2, "--rtol"),
  "idle option": (f"{OUT} --no-verify --device 0", 2, "--no-verify"),
  "a profile writes no model": (f"{OUT} --profile", 2, "-o does not go with it"),
  "a profile restores nothing": ("{bert} --profile --restore", 2, "--restore does not go with it"),
  "a profile tunes nothing": ("{bert} --profile --tune", 2, "--tune does not go with it"),
  "a profile keeps nothing": ("{bert} --profile --keep-faster", 2, "--keep-faster does not go with it"),
  "a profile on a GPU": ("{bert} --profile --provider cuda", 2, "on the CPU alone"),
  "a profile verifies nothing": ("{bert} --profile --rtol 1", 2, "which --profile leaves out"),
  "restore and skip": (f"{OUT} --restore --skip a", 2, "--restore"),
}


@parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name, tmp_path, run):
  check_mistake(MISTAKES[name], BERT, tmp_path, run)


def test_nothing_is_written_in_a_dry_run(tmp_path, run):
  for arguments in ((), ("-o", tmp_path / "out.onnx")):
    status, text, _ = run(BERT, "--dry-run", "--no-verify", *arguments)
    assert status == 0
    assert "nothing was written" in text
    assert "FusedLayerNorm" in text
  assert not list(tmp_path.iterdir())


def test_passes_are_listed_and_chosen(tmp_path, run):
  status, text, _ = run("--list-passes")
  assert status == 0
  assert all(step.name in text and step.summary in text for step in optimizer.PIPELINE)
  skipped = "fuse-layer-norm,fuse-rms-norm,matmul-float32,fuse-pointwise,lone-pointwise"
  _, text, _ = run(BERT, "--dry-run", "--no-verify", "--skip", skipped)
  assert "FusedLayerNorm" not in text
  assert "Nothing was fused" in text
  _, text, _ = run(BERT, "--dry-run", "--no-verify", "--only", "fuse-layer-norm")
  assert "norm-epilogue" not in text
  assert "FusedLayerNorm" in text


def test_near_misses_are_explained(tmp_path, run, patch):
  patch(pipeline, "TABLE", (Misses(),))
  source = small_file(tmp_path)
  _, text, _ = run(source, "--dry-run")
  assert "it is no Add" not in text
  assert "--explain says why" in text
  _, text, _ = run(source, "--dry-run", "--explain")
  assert all(words in text for words in ("it is no Add", "abs (Abs)", "fuse-nothing"))


def test_an_internal_error_is_one_line_and_debug_shows_where(tmp_path, capsys, patch):
  patch(pipeline, "TABLE", (Misses(ZeroDivisionError("oh")),))
  assert main([str(BERT), "-o", str(tmp_path / "o.onnx")]) == 1
  errors = capsys.readouterr().err
  assert errors.count("\n") == 1
  assert "'fuse-nothing' failed" in errors
  assert "--skip fuse-nothing" in errors
  assert main([str(BERT), "-o", str(tmp_path / "o.onnx"), "--debug"]) == 1
  assert "ZeroDivisionError" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


@parametrize("error, status", [(KeyboardInterrupt(), 130), (MemoryError(), 1)])
def test_interruptions_and_exhaustion_are_one_line(error, status, tmp_path, run, patch):
  def fail(*_, **__):
    raise error

  patch(loop, "run_passes", fail)
  got, text, errors = run(BERT, "-o", tmp_path / "o.onnx")
  assert (got, text, errors.strip().count("\n")) == (status, "", 0)  # click ends the line that shows ^C
  assert "nothing was written" in errors
  assert not list(tmp_path.iterdir())


def test_a_hostile_name_reaches_no_terminal(tmp_path, capsys, patch):
  """Neither in a refusal nor in a report nor in a traceback."""
  source = small_file(tmp_path)
  model = onnx.load(source)
  model.graph.node[0].name = "\x1b[2Jnode\r\x9b31m"
  onnx.save(model, source)
  assert main([str(source), "--dry-run", "--explain"]) == 0
  model.graph.node[0].domain = "\x1b]0;domain\x07"
  onnx.save(model, source)
  for debug in ([], ["--debug"]):
    assert main([str(source), "--dry-run", *debug]) == 1
  patch(pipeline, "TABLE", (Misses(ValueError("\x1b[2Jvalue")),))
  assert main([str(BERT), "--dry-run", "--debug"]) == 1
  captured = capsys.readouterr()
  assert all(each.isprintable() or each == "\n" for each in captured.out + captured.err)
  for words in (r"node '\x1b[2Jnode\r\x9b31m'", r"domain '\x1b]0;domain\x07'", r"\x1b[2Jvalue"):
    assert words in captured.err


def test_help_and_version(run):
  status, text, _ = run("--help")
  assert status == 0
  for option in ("--verify", "--provider", "--input-shape", "--only", "--skip", "--list-passes", "--explain"):
    assert option in text
  for option in ("--dry-run", "--report", "--profile", "--restore", "--inputs", "--rtol", "--atol", "--version"):
    assert option in text
  assert run("--version")[1].strip().endswith(ortplugin.__version__)


def to(folder, *options):
  """The command that writes there."""
  return [sys.executable, "-m", "ortplugin.cli", str(BERT), "-o", str(folder / "o.onnx"), *options]


def test_progress_and_colours_stay_out_of_stdout(tmp_path):
  done = subprocess.run(to(tmp_path, "--no-verify"), capture_output=True, text=True, check=True)
  assert "\x1b" not in done.stdout
  assert "loading" not in done.stdout
  assert done.stderr == ""


def test_steps_and_seconds_are_shown_on_a_terminal_alone(tmp_path):
  command = to(tmp_path, "--no-verify")
  environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
  assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr == ""
  ours, theirs = pty.openpty()
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
  os.close(theirs)
  shown = b""
  with contextlib.suppress(OSError):  # how Linux says that the other end was closed
    while part := os.read(ours, 4096):
      shown += part
  os.close(ours)
  out, _ = process.communicate()
  assert process.returncode == 0
  assert b"fuse-layer-norm" in out
  assert re.search(rb"[a-z] +\d s", re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown))


def test_progress_shows_names_as_they_are_and_how_long_a_step_takes(monkeypatch):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  terminal, now = Terminal(), [0.0]
  monkeypatch.setattr(sys, "stderr", terminal)
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  with progress.shown_progress() as tell:
    now[0] = 5.2
    tell("[bold]a\x1b[2Jb")  # and it is drawn once more at the end
    now[0] = 8.3
  assert r"[bold]a\x1b[2Jb" in terminal.getvalue()
  assert "3 s of 8 s" in terminal.getvalue()
  assert "\x1b[2J" not in terminal.getvalue()
  assert progress._Seconds().render(SimpleNamespace(fields={"begun": 0.0, "step": 8.0})).plain == "8 s"


def test_a_reader_that_goes_away_is_no_traceback(tmp_path):
  process = subprocess.Popen(to(tmp_path, "--no-verify"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  process.stdout.close()
  errors = process.stderr.read()
  assert process.wait() in (0, 1)
  assert "Traceback" not in errors
  assert "Exception" not in errors
  assert (tmp_path / "o.onnx").exists()


def test_without_onnxruntime_the_rest_works(tmp_path):
  (tmp_path / "onnxruntime.py").write_text("raise ImportError('not here')\n")
  path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
  environment = {**os.environ, "PYTHONPATH": path}
  done = subprocess.run(to(tmp_path), capture_output=True, text=True, check=False, env=environment)
  assert done.returncode == 1
  assert done.stderr.count("\n") == 1
  assert "ortplugin[cpu]" in done.stderr
  done = subprocess.run(to(tmp_path, "--no-verify"), capture_output=True, text=True, check=False, env=environment)
  assert done.returncode == 0
  assert (tmp_path / "o.onnx").exists()
