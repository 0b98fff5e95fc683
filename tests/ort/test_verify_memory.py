"""Verification takes a few times the memory of the inputs and outputs: once 64 MB of uint8 took 4.9 GB."""

import json
import os
import subprocess
import sys

import onnx.parser
from onnx_models import parsed

TIMES = 14  # the bytes of an input: the judge has its output as well, twice, and copies of both in blocks; measured: 9
PEAK = """
import json, resource, sys
from ortplugin.cli import main
status = main(sys.argv[1:])
print(json.dumps([status, *(resource.getrusage(who).ru_maxrss << 10
                            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))]))
"""


def peaks(folder, rows):
  """The most memory of the command and of its judge, for a model with an input of rows KiB."""
  model = parsed(
    f"""(uint8[{rows}, 1024] x) => (uint8[1024, {rows}] y) {{
            z = Identity(x)
            y = Transpose <perm=[1,0]>(z) }}""",
    18,
  )
  onnx.save(model, folder / "in.onnx")
  command = [sys.executable, "-c", PEAK, str(folder / "in.onnx"), "-o", str(folder / "out.onnx")]
  surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
  done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=300)
  status, own, judges = json.loads(done.stdout.splitlines()[-1])
  assert status == 0, done.stderr
  assert "agrees" in done.stdout
  return own, judges


def test_memory_grows_with_the_inputs_by_a_small_factor(tmp_path):
  small, large = (peaks(tmp_path, rows) for rows in (1 << 10, 16 << 10))
  added = 15 << 20
  assert large[0] - small[0] < added  # the command itself holds none of it
  assert added < large[1] - small[1] < TIMES * added
