"""A thousand random graphs, fifty in a sample: each optimized model gives what its original gives.

`make fuzz SEEDS=first:last` tries others.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx_models import one_in, parametrize, parsed
from sample import SAMPLING, examples

from fuzz.corpus import from_text, known, to_text
from fuzz.evaluate import Evaluator
from fuzz.generate import make_case
from fuzz.narrow import walk
from fuzz.oracle import explained, quick, trials
from fuzz.run import fuzz, shrink
from fuzz.worker import TESTS, Worker, environment

pytestmark = pytest.mark.xdist_group("random graphs")  # one worker makes what all ask for

GRAPHS = 450 if SAMPLING else 1000


@pytest.fixture(scope="module")
def result():
  return fuzz(iter(range(GRAPHS)), jobs=2, minimise=40, ignore=known())


def test_random_graphs(result):
  texts = [f"---- seed {seed}\n{to_text(case, finding)}" for seed, case, finding in result.findings]
  assert not texts, "\n".join(texts)
  assert not result.counts["broken"], [each for each in result.reasons if each.startswith("broken")]


def test_the_graphs_say_something(result):
  """Nearly all run, and most passes find something to do."""
  assert result.counts["same"] > 0.9 * GRAPHS
  assert len(result.rewrites) > (25 if SAMPLING else 35)
  assert sum(result.rewrites.values()) > 5 * GRAPHS


def test_the_same_seed_makes_the_same_case():
  for seed in range(20):
    first, second = (make_case(seed, Evaluator()) for _ in range(2))
    assert first.model == second.model
    assert first.options == second.options


def test_a_graph_of_a_value_that_is_not_finite():
  """No node of this seed's came about, and its first value is infinite."""
  assert [node.op_type for node in make_case(1105219, Evaluator()).oracle.graph.node] == ["Shape"]


def test_many_operators():
  evaluator, found = Evaluator(), set()
  for seed in range(examples(1500)):
    found |= {(node.domain, node.op_type) for graph in walk(make_case(seed, evaluator).model.graph)
              for node in graph.node if node.domain != "local"}  # fmt: skip
  assert len(found) >= (120 if SAMPLING else 140), sorted(found)


class TestOracle:
  def test_a_shape_or_value_that_is_off(self):
    want = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert not quick(want, want + np.float32(1e-5), "float32")
    assert quick(want, want + np.float32(1e-3), "float32").startswith("12 of 12 differ")
    assert quick(want, want.T, "float32") == "shape [4, 3] for [3, 4]"
    assert quick(np.array([1, 2]), np.array([1, 3]), "float32")

  @parametrize("value", [np.nan, np.inf, -np.inf])
  def test_a_value_that_is_not_finite(self, value):
    want = np.float32([1, value])
    assert not quick(want, want, "float32")
    assert quick(want, np.float32([1, 2]), "float32")
    assert quick(np.float32([1, 2]), want, "float32")
    assert quick(want, np.float32([value, 1]), "float32")

  def test_only_what_moves_has_a_wide_bound(self):
    want, moved = np.float32([1, 1]), np.float32([1, 1.01])
    assert not explained([want, moved], np.float32([1, 1.05]), "float32")
    assert explained([want, moved], np.float32([1.05, 1]), "float32")
    assert explained([want, moved], np.float32([1, 1.2]), "float32")
    assert explained([want, moved], np.float32([1, np.nan]), "float32")

  def test_what_rounding_decides(self):
    assert not explained([np.array([3, 4]), np.array([3, 5])], np.array([3, 5]), "float32")
    assert explained([np.array([3, 4]), np.array([3, 5])], np.array([2, 4]), "float32")
    infinite = [np.float32([1, np.inf]), np.float32([1, 7e4])]
    assert not explained(infinite, np.float32([1, 6e4]), "float16")
    assert explained(infinite, np.float32([np.inf, 6e4]), "float16")

  def test_what_a_value_moves_by(self):
    """Each dtype by some units in its last place; in fp16 half of the runs round to it."""
    model = parsed("g (float[3] x, double[3] d) => (float[3] y, double[3] e) { y = Neg(x) e = Neg(d) }")
    feeds = {"x": np.float32([1, 1 / 3, 3]), "d": np.array([1, 1 / 3, np.inf])}
    for dtype, unit in (("float32", 2**-23), ("float16", 2**-10)):
      found = trials(model, feeds, dtype, ["y", "e"], 0)
      moves = np.stack([np.abs(each["y"] / feeds["x"] + 1) for each in found])
      assert 0 < moves.max() < 6 * unit
      assert moves.max() > unit / 2
      assert all(np.isinf(each["e"][2]) for each in found)
      wide = np.stack([np.abs(each["e"][:2] / feeds["d"][:2] + 1) for each in found])
      assert 0 < wide.max() < (1e-15 if dtype == "float32" else 1e-6)
    rounded = [each["y"].astype(np.float16) == each["y"] for each in trials(model, feeds, "float16", ["y"], 0)]
    assert [each.all() for each in rounded] == [True, False] * (len(rounded) // 2)


@one_in(0)
def test_a_mistake_is_found_and_made_small_and_its_pass_named():
  planted, clean = Worker(module="fuzz.mistaken_worker"), Worker()
  try:
    # From here on the first is made small within seconds.
    found = ((seed, planted.ask(seed).finding) for seed in range(424, 624))
    seed, first = next((seed, each) for seed, each in found if each is not None and each.kind == "values")
    case, finding = shrink(seed, first, planted, 600)
    assert finding.guilty == "channel-shuffle"
    made = [node.op_type for node in case.model.graph.node if node.op_type != "Constant"]
    assert made == ["Reshape", "Transpose", "Reshape"]
    read = from_text(to_text(case, finding))
    assert planted.ask(read).finding is not None
    assert clean.ask(read).what == "same"
  finally:
    planted.close()
    clean.close()


@one_in(0)
def test_what_is_known_when_it_is_terminated():
  command = [sys.executable, "-m", "fuzz.run", "--seeds", "0:1000000", "--jobs", "1", "--minimise", "0"]
  process = subprocess.Popen(command, cwd=TESTS, env=environment(), stdout=subprocess.PIPE, text=True)
  with pytest.raises(subprocess.TimeoutExpired):
    process.communicate(timeout=15)
  tasks = Path(f"/proc/{process.pid}/task").iterdir()
  (worker,) = (Path("/proc") / each for task in tasks for each in (task / "children").read_text().split())
  os.kill(int(worker.name), signal.SIGSTOP)  # as good as in a kernel that never returns
  process.terminate()
  told, _ = process.communicate(timeout=15)
  assert process.returncode == 1
  end = time.monotonic() + 10
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    while b"fuzz.worker" in (worker / "cmdline").read_bytes():  # empty of a process that has ended
      assert time.monotonic() < end
      time.sleep(0.1)
  assert re.search(r"^[1-9]\d* graphs, ", told, re.MULTILINE), told
