"""`make test` runs a part of what `make test-all` runs: always the same part, and it says how large the rest is."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import sample
from onnx_models import one_in

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ("tests/ort/test_sum_to.py", "tests/ort/test_scatter.py")  # one has the marker `one_in`
DTYPES = ("float16", "bfloat16", "float", "double", "int8")
CASES = itertools.product("pqrstuv", DTYPES, ("NCHW", "NHWC"))
FAMILY = [f"a.py::test[{', '.join(case)}]" for case in CASES]
SMALL = [f"a.py::test_small[{dtype}]" for dtype in DTYPES]


def test_dtypes_and_layouts_take_turns():
  found = sample.taken(dict.fromkeys([*FAMILY, *SMALL], 1))
  assert sorted(name.partition("[")[2][0] for name in found - {*SMALL}) == list("pqrstuv")
  assert found == sample.taken(dict.fromkeys(reversed([*SMALL, *FAMILY]), 1))
  assert {*SMALL} < found
  assert len({name.partition(", ")[2] for name in found}) > 3


def test_a_test_keeps_a_case(patch):
  patch(sample, "SAMPLING", True)
  assert len(sample.taken(dict.fromkeys(SMALL, 10**9))) == 1
  assert not sample.taken(dict.fromkeys(SMALL, 0))


def test_of_many_that_begin_alike_a_third_runs():
  beginnings = [*"abcdefghijkl"]
  many = {f"a.py::test[{first}, {number}]" for first in beginnings for number in range(4)}
  found = sample.taken(dict.fromkeys(many, 1))
  assert sorted(name.partition("[")[2][0] for name in found) == sorted(2 * beginnings)
  refusals = {name.replace("test[", "test_is_refused[") for name in many}
  assert sample.taken(dict.fromkeys(refusals, 1)) == refusals


GROUP = """
import os, pathlib, pytest
pytestmark = pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_writes(number):
  pathlib.Path(__file__).with_name(f"of {os.getpid()}").touch()
"""


@one_in(0)
def test_a_group_of_tests_is_one_workers(tmp_path):
  """Whose fixture takes minutes. With pytest 9.2 every worker of pytest-xdist 3.8 makes it."""
  (tmp_path / "test_group.py").write_text(GROUP)
  options = ["-p", "xdist.plugin", "-n", "2", "--dist", "loadgroup", "--rootdir", str(tmp_path)]
  environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
  command = [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)]
  subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
  assert len(list(tmp_path.glob("of *"))) == 1


def collected(sampling):
  """The tests of two files, and all that pytest prints."""
  command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *FILES]
  environment = {**os.environ, "ORTPLUGIN_SAMPLE": sampling}
  done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
  return {line for line in done.stdout.splitlines() if line.startswith(FILES)}, done.stdout


@one_in(0)
def test_pytest_runs_all_but_in_a_sample_and_counts_the_rest():
  (whole, silent), (part, told) = collected("0"), collected("1")
  assert part < whole
  assert {name.partition("[")[0] for name in part} == {name.partition("[")[0] for name in whole}
  assert f"{len(whole) - len(part)} cases are left to make test-all" in told
  assert "test-all" not in silent


def test_property_tests_try_fewer_examples(patch):
  patch(sample, "SAMPLING", False)
  assert sample.examples(150) == 150
  assert all(sample.is_taken(str(number), 5) for number in range(100))
  patch(sample, "SAMPLING", True)
  assert (sample.examples(150), sample.examples(20)) == (30, 10)
  assert 10 < sum(sample.is_taken(str(number), 5) for number in range(100)) < 30
