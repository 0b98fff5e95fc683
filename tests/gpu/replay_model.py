"""Replays a model in a CUDA graph and checks that every replay gives the bits of the plain run.

For compute-sanitizer, which sees the kernels of a captured graph as those of a stream:

    compute-sanitizer --tool racecheck python tests/gpu/replay_model.py model.onnx

The model is optimized first. Its inputs are generated, as verification does.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import onnx

import ortplugin
from ortplugin.check.inputs import CANDIDATES, generate, shifted
from ortplugin.check.judge import Side, make_session
from ortplugin.check.replays import GraphSession
from ortplugin.session import CUDA

REPLAYS = 6


def main(path):
  """Exits with a message where a replay differs; raises what a capture that fails raises."""
  model, report = ortplugin.optimize(path)
  case = generate(model, CANDIDATES[0])
  with tempfile.TemporaryDirectory() as folder:
    side = Side(Path(folder) / "model.onnx", plugin=True)
    onnx.save(model, side.path)
    with GraphSession(partial(make_session, side, CUDA, False)) as session:
      replayed = session.replay([case.feeds, shifted(case.feeds)], REPLAYS)
  different = sum(replayed.differing(name) for name in replayed.plain[0])
  print(f"{path}: {report.fused} rewrites, {replayed.count} replays, {different} differ")
  if different:
    sys.exit(f"{different} of {replayed.count} replays differ")


if __name__ == "__main__":
  main(sys.argv[1])
