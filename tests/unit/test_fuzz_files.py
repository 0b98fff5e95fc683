"""A short run of fuzz/files.py (`make fuzz-files` is the long one), and that it finds what it is for."""

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import files
from sample import examples

FUZZER = Path(files.__file__)


@pytest.mark.one_in(0)
def test_the_models_are_valid_before_they_are_altered(tmp_path):
  assert len(files.models()) == 20
  for name, data in files.models().items():
    outcome = files.run_case(data, [], tmp_path)
    assert (name, outcome.kind, outcome.failure) == (name, "optimized", "")


def test_altered_files_are_refused_or_give_a_valid_model(tmp_path):
  done = subprocess.run(
    [sys.executable, FUZZER, "--count", str(examples(50)), "--seed", "1", "--out", tmp_path],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert "'refused'" in done.stdout
  assert "'optimized'" in done.stdout
  assert not list(tmp_path.iterdir())


def test_a_case_is_determined_by_seed_and_number():
  assert files.altered(3, 14) == files.altered(3, 14)
  assert len({files.altered(3, number)[1] for number in range(50)}) > 45


FAULTS = {
  "a traceback": ("raise ZeroDivisionError", "internal error"),
  "no end": ("while True: pass", "killed by SIG"),
  "no memory": ("bytearray(1 << 40)", "enough memory"),
  "much memory": ("b'x' * (1 << 29)", "it used "),
  "a crash": ("import os; os.abort()", "killed by SIGABRT"),
  "two lines": ("import sys; print('hello', file=sys.stderr)", "on stderr: hello"),
  "an escape sequence": ("import os; os.write(2, b'optimize-model: \\x1b[2J\\n'); os._exit(1)", "control characters"),
  "an invalid output": ("import ortplugin.model.storage as s; s.check_structure = None", "the output is invalid"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, tmp_path, patch):
  statement, words = FAULTS[fault]
  patch(files, "SECONDS", 2 if fault == "no end" else 60)
  patch(files, "RESIDENT", 1 << 27)
  patch("ortplugin.optimizer.api.check_result", lambda _: exec(statement))
  outcome = files.run_case(files.models()["functions"], [], tmp_path)
  assert outcome.kind == "failed"
  assert words in outcome.failure
