"""10,000 rows: an actor or the whole run is killed, and no row is lost or there twice."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import example_model
import numpy as np
import pytest

import ortplugin

for needed in ("ray", "pyarrow", "pandas"):
  pytest.importorskip(needed, reason=f"{needed} is not installed; install the extra 'examples'")
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import ray  # noqa: E402
import ray_batch  # noqa: E402

ROWS, BLOCKS = 10_000, 20
IMAGES = np.random.default_rng(0).integers(0, 8, (ROWS, 3, 4, 4), dtype=np.uint8)  # by id
OPTIONS = ["--column", "image", "picture", "--keep", "id", "--batch", "200"]
SLOW = """
import sys, time, ray_batch
class Slow(ray_batch.Infer):
  def infer(self, batch):
    time.sleep(0.1)
    return super().infer(batch)
ray_batch.Infer = Slow
ray_batch.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """Four files of five row groups; the ids in no order."""
  folder = tmp_path_factory.mktemp("ray") / "source"
  for number, ids in enumerate(np.random.default_rng(1).permutation(ROWS).reshape(4, -1)):
    path = folder / f"day{number}" / "part.parquet"
    path.parent.mkdir(parents=True)
    pictures = pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES[ids])
    pq.write_table(pa.table({"id": ids, "picture": pictures if number else pictures.storage}), path, row_group_size=500)
  return folder


@pytest.fixture(scope="module", autouse=True)
def cluster():
  """It outlives a killed run."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PYTHONPATH", f"{Path(ortplugin.__file__).parent.parent}:{example_model.EXAMPLES}")
    patch.delenv("RAY_ADDRESS", raising=False)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes into the home folder
    with ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, object_store_memory=100 << 20):
      yield


def check(target):
  """Each row once, with its values, and nothing beside."""
  files = [path for path in target.rglob("*") if path.is_file()]
  assert len(files) == BLOCKS
  table = pa.concat_tables(map(pq.read_table, files)).combine_chunks()
  ids = table["id"].to_numpy()
  assert np.array_equal(np.sort(ids), np.arange(ROWS))
  mean = table["mean"].combine_chunks().to_numpy_ndarray()
  example_model.check({"mean": mean, "top": table["top"].to_numpy()}, IMAGES[ids])


def wait(until):
  limit = time.monotonic() + 30
  while not until():
    assert time.monotonic() < limit
    time.sleep(0.05)


def test_a_killed_actor(model, source, tmp_path, monkeypatch):
  marker, target, inner = tmp_path / "killed", tmp_path / "target", ray_batch.Infer

  def torn(table, out):
    out.write(b"PAR1 and some rows")
    out.flush()
    os.kill(os.getpid(), signal.SIGKILL)

  class Dying(inner):
    def block(self, *arguments):
      if len(list(target.rglob("*.parquet"))) >= BLOCKS // 2:
        with contextlib.suppress(FileExistsError):
          marker.touch(exist_ok=False)
          pq.write_table = torn
      return super().block(*arguments)

  monkeypatch.setattr(ray_batch, "Infer", Dying)
  ray_batch.main([str(model), str(source), str(target), *OPTIONS])
  assert marker.exists()
  check(target)


def test_a_killed_run(model, source, tmp_path):
  target = tmp_path / "target"
  arguments = [str(model), str(source), str(target), *OPTIONS]
  joined = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}

  def results():
    return {path: path.stat().st_mtime_ns for path in target.rglob("*.parquet")}

  with subprocess.Popen([sys.executable, "-c", SLOW, *arguments], env=joined) as process:
    try:
      wait(lambda: len(results()) >= 5)
    finally:
      process.kill()
  wait(lambda: ray.available_resources().get("CPU") == 2)  # actors outlive their run for a moment
  before = results()
  left = BLOCKS - len(before)
  assert left > 0

  command = [sys.executable, str(example_model.EXAMPLES / "ray_batch.py"), *arguments]
  again = subprocess.run(command, env=joined, check=True, capture_output=True, text=True).stdout
  assert f"computed {left * 500} rows in {left} blocks" in again
  assert before.items() <= results().items()
  check(target)
  actor = ray_batch.Infer(str(model), {"image": "picture"}, ["id"], 200)
  assert actor.block("nothing is read", 0, next(iter(before))) == 500


def test_rows_without_a_value(model, tmp_path):
  pq.write_table(pa.table({"image": pa.array([[1.0] * 48, None], pa.list_(pa.float32(), 48))}), tmp_path / "in")
  with pytest.raises(RuntimeError, match=r"row group 0 of .*in: column 'image' has 1 rows without a value"):
    ray_batch.Infer(str(model), {}, [], 200).block(str(tmp_path / "in"), 0, tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_results_beside_the_input_are_refused(capsys):
  with pytest.raises(SystemExit):
    ray_batch.main(["fast.onnx", "images", "images/results"])
  assert "choose a folder outside" in capsys.readouterr().err
