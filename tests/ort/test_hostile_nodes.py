"""Nodes that nobody should write: each is refused with a status that says which node and what is wrong, or runs right.

They run in processes of their own: one that crashes is a test that fails, and not the end of all tests.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from hostile_nodes import NODE, nodes, seeds

pytestmark = pytest.mark.xdist_group("hostile nodes")  # one worker makes what all ask for

SCRIPT = Path(__file__).resolve().parent.parent / "hostile_nodes.py"
PATIENCE = 30 * int(os.environ.get("ORTPLUGIN_TEST_SLOWNESS", "1"))  # seconds for one node
WORKERS = min(4, os.cpu_count() or 1)


def _work(first):
  """What became of every WORKERS-th node from `first` on. A process that ends early is followed by another."""
  found = {}
  while first < len(nodes()):
    with tempfile.TemporaryFile("w+", errors="replace") as errors:  # a pipe that nobody reads would fill
      begun, status = _run(first, errors, found)
      errors.seek(0)
      said = errors.read()
    if begun is None:
      assert status == 0, f"the process that starts at node {first} ended with {status}: {said[-2000:]}"
      break
    how = "it took too long" if status == -signal.SIGKILL else f"the process ended with {status}"
    found[begun] = {"crashed": f"{how}: {said[-3000:]}"}
    first = begun + WORKERS
  return found


def _run(first, errors, found):
  """One process: the node that was under way at its end, and its status. Adds to `found` what became of others."""
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
  command = [sys.executable, str(SCRIPT), str(first), str(WORKERS)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process:
    begun = None
    timer = threading.Timer(PATIENCE * 2, process.kill)  # until the first line: imports, and the list of nodes
    timer.start()
    for line in process.stdout:
      timer.cancel()
      timer = threading.Timer(PATIENCE, process.kill)
      timer.start()
      told = json.loads(line)
      begun = told.get("begins")
      if begun is None:
        found[told["ends"]] = told
    timer.cancel()
  return begun, process.returncode


@pytest.fixture(scope="module")
def found(library):
  """What became of each node, by its number: `refused`, `crashed`, or the `shapes` of its outputs."""
  with ThreadPoolExecutor(WORKERS) as pool:
    parts = list(pool.map(_work, range(WORKERS)))
  return {number: each for part in parts for number, each in part.items()}


def _fail(wrong):
  assert not wrong, f"{len(wrong)} nodes:\n" + "\n".join(wrong[:20])


def _title(number):
  return f"{number}: {nodes()[number].op} {nodes()[number].name}"


def test_no_node_ends_the_process(found):
  assert set(found) == set(range(len(nodes())))
  _fail([f"{_title(number)}: {each['crashed']}" for number, each in found.items() if "crashed" in each])


def test_the_seeds_run(found):
  """Else nothing would be wrong in the others but that."""
  _fail([f"{_title(number)}: {found[number]}" for number in range(len(seeds())) if "shapes" not in found[number]])


# What ONNX Runtime itself says before a node of ours is made or run, or NumPy.
NOT_OURS = re.compile(
  r"Got invalid (dimensions|rank) for input|Unexpected input data type|does not match expected type|Type Error: |"
  r"can't be converted to MLDataType|array is too big|maximum supported dimension|CustomOP type inferencing error|"
  r"array dimension is too large|not in range \[min=1"
)


def test_a_refusal_names_the_node(found):
  wrong = []
  for number, each in found.items():
    node, message = nodes()[number], each.get("refused", "")
    if "refused" not in each or NOT_OURS.search(message):
      continue
    name = f"node '{node.called[:200]}" if node.called.isprintable() else r"node '\x1b[2J\x0dculprit\x0a'"
    if name not in message or f"ortplugin.{node.op}" not in message:
      wrong.append(f"{_title(number)}: {message[:300]!r}")
  _fail(wrong)


def test_a_refusal_is_bounded_and_printable(found):
  """However long the text is that a model holds, and whatever it would do to a terminal."""
  wrong = []
  for number, each in found.items():
    message = each.get("refused", "")
    controls = [c for c in message if not c.isprintable() and c != "\n"]
    if controls or each.get("length", 0) > 2500 or "codec can't decode" in message:
      wrong.append(f"{_title(number)}: {each.get('length')} characters, {controls[:5]}: {message[:200]!r}")
  _fail(wrong)


def test_a_refusal_names_an_attribute_or_a_shape(found):
  """Of a wrong attribute: one of the node's, as it may be right and another one not, or what it leads to."""
  wrong = []
  for number, each in found.items():
    node, message = nodes()[number], each.get("refused", "")
    if "refused" not in each or node.wrong not in seeds_by_op()[node.op] or NOT_OURS.search(message):
      continue
    words = ("spatial axis", "shape", "dimensions", "channels", "inputs", "step", "epsilon", "dX", "dW")
    if not any(word in message for word in (*seeds_by_op()[node.op], *words)):
      wrong.append(f"{_title(number)}: {message[:300]!r}")
  _fail(wrong)


@cache
def seeds_by_op():
  """The attributes of each operator's seeds."""
  made = {}
  for seed in seeds():
    made.setdefault(seed.op, set()).update(seed.attributes)
  return made


# An empty list and a list of texts can't be told from an absent attribute by a kernel (runtime/ort/ort.h). The
# specification in Python is stricter there; a text of 0 characters is none.
STRICTER = re.compile(
  r"is (INTS|STRINGS) instead|has another type than the operator gives it|=\[\] must|must be 0 or 1$|"
  r"\[b'a', b'b'\]|weight_dtype=''"
)


def test_what_runs_runs_as_specified(found):
  """The shapes of the outputs are those of the operator's specification, which does not refuse the node either."""
  wrong = []
  for number, each in found.items():
    if "shapes" not in each or (isinstance(each["spec"], str) and STRICTER.search(each["spec"])):
      continue
    if each["shapes"] != each["spec"]:
      wrong.append(f"{_title(number)}: {each['shapes']}, specified: {each['spec']}")
  _fail(wrong)


def test_a_size_that_no_machine_has_is_named_in_bytes(found):
  """Of every operator whose output may be larger than its inputs."""
  refused = Counter(
    nodes()[number].op
    for number, each in found.items()
    if re.search(r"of shape \[.*\] takes \d+ bytes, more than this process may have", each.get("refused", ""))
  )
  assert {"FusedConv", "FusedConvTranspose", "FusedResize", "FusedSumTo", "FusedPointwise", "ConvGrad"} <= set(refused)


def test_out_of_memory_names_the_bytes():
  """Where the limit is above what the process gets from the system."""
  script = """if True:
        import os, resource
        import numpy as np
        import hostile_nodes as h
        node = h.Node("large", "FusedPointwise", h.seeds()[2].attributes,
                      (h.Input("float", (2**15, 1)), h.Input("float", (2**15,))), ("float", "bool"), mode="open")
        import onnxruntime
        from ort.host import make
        session = make(node.model(), 1)
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        try:
            session.run(None, node.feeds())
        except Exception as error:
            print(error)
    """
  path = os.pathsep.join(each for each in sys.path if each)
  environment = {**os.environ, "PYTHONPATH": path, "ORTPLUGIN_MEMORY_LIMIT": str(2**60)}
  if "asan" in environment.get("LD_PRELOAD", ""):
    pytest.skip("AddressSanitizer reserves terabytes, so there is no limit to run into")
  # In a folder without the package's sources, which would come before the installed one.
  ended = subprocess.run(
    [sys.executable, "-c", script], env=environment, cwd=Path(__file__).parent, capture_output=True, text=True
  )
  assert f"output 0 of shape [32768, 32768] takes {2**32} bytes" in ended.stdout, (ended.stdout, ended.stderr[-2000:])
  assert NODE in ended.stdout
