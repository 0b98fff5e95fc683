"""A batch job of 10,000 rows: an actor is killed in the middle, or all of it, and no row is lost or there twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from example_model import EXAMPLES, reference
from numpy.typing import NDArray

ray = pytest.importorskip("ray", reason="ray is not installed; install the extra 'examples'")
pytest.importorskip("ray.data", reason="Ray Data is not installed; install the extra 'examples'")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 10_000
BLOCKS = 20
OPTIONS = ["--column", "image=picture", "--keep", "id", "--batch", "200"]

# A run in which each batch takes a while. It is killed, so it has to be a process of its own.
SLOW = """
import sys, time
import ray_batch
class Slow(ray_batch.Infer):
  def infer(self, batch):
    time.sleep(0.1)
    return super().infer(batch)
ray_batch.Infer = Slow
ray_batch.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def images() -> NDArray[np.uint8]:
  """By id."""
  return np.random.default_rng(0).integers(0, 8, (ROWS, 3, 4, 4), dtype=np.uint8)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, images: NDArray[np.uint8]) -> Path:
  """Four files of five row groups, in two folders; the ids in no order."""
  folder = tmp_path_factory.mktemp("ray") / "source"
  for number, ids in enumerate(np.random.default_rng(1).permutation(ROWS).reshape(4, -1)):
    path = folder / f"day{number % 2}" / f"part{number}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = pa.array(images[ids].reshape(-1))
    pictures = pa.FixedSizeListArray.from_arrays(flat, 48) if number else tensors(images[ids])
    pq.write_table(pa.table({"id": ids, "picture": pictures}), path, row_group_size=500)
  return folder


def tensors(values: NDArray[Any]) -> Any:
  return pa.FixedShapeTensorArray.from_numpy_ndarray(values)


@pytest.fixture(scope="module")
def ray_batch(example: Callable[[str], ModuleType], environment: dict[str, str]) -> Iterator[ModuleType]:
  """The example, with two CPUs to run on, whose cluster outlives a killed run."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the home folder
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    try:
      yield example("ray_batch")
    finally:
      ray.shutdown()


def check(target: Path, images: NDArray[np.uint8]) -> None:
  """Each row once, with the values of its image, and nothing beside the results."""
  files = [path for path in target.rglob("*") if path.is_file()]
  assert len(files) == BLOCKS
  assert all(path.suffix == ".parquet" for path in files)
  tables = [pq.read_table(path) for path in files]
  ids = np.concatenate([table["id"].to_numpy() for table in tables])
  assert np.array_equal(np.sort(ids), np.arange(ROWS))
  for name, wanted in (("mean", reference(images)), ("largest", reference(images).max(1))):
    values = np.concatenate([values_of(table[name].combine_chunks()) for table in tables])
    np.testing.assert_allclose(values, wanted[ids], rtol=1e-5, atol=1e-6)


def values_of(column: Any) -> NDArray[Any]:
  return np.asarray(column.to_numpy_ndarray() if hasattr(column, "to_numpy_ndarray") else column.to_numpy())


def test_a_killed_actor(
  ray_batch: ModuleType,
  model: Path,
  source: Path,
  tmp_path: Path,
  images: NDArray[np.uint8],
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
) -> None:
  marker, target, inner = tmp_path / "killed", tmp_path / "target", ray_batch.Infer

  def torn(table: Any, out: Any) -> None:
    out.write(b"PAR1 and some rows")
    out.flush()
    os.kill(os.getpid(), signal.SIGKILL)

  class Dying(inner):
    def block(self, *arguments: Any) -> Any:
      if len(list(target.rglob("*.parquet"))) >= BLOCKS // 2:
        with contextlib.suppress(FileExistsError):  # once
          marker.touch(exist_ok=False)
          pq.write_table = torn
      return super().block(*arguments)

  monkeypatch.setattr(ray_batch, "Infer", Dying)
  ray.cloudpickle.register_pickle_by_value(ray_batch)
  ray_batch.main([str(model), str(source), str(target), *OPTIONS])
  assert marker.exists()
  check(target, images)
  assert f"computed {ROWS} rows in {BLOCKS} blocks" in capsys.readouterr().out


def test_a_killed_run(
  ray_batch: ModuleType,
  model: Path,
  source: Path,
  tmp_path: Path,
  images: NDArray[np.uint8],
  environment: dict[str, str],
) -> None:
  target = tmp_path / "target"
  arguments = [str(model), str(source), str(target), *OPTIONS]
  joined = {**environment, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}

  def results() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in target.rglob("*.parquet")}

  with subprocess.Popen([sys.executable, "-c", SLOW, *arguments], env=joined) as process:
    limit = time.monotonic() + 60
    while len(results()) < 5:
      assert process.poll() is None
      assert time.monotonic() < limit
      time.sleep(0.02)
    process.kill()
  while ray.available_resources().get("CPU") != 2:  # an actor may live a moment longer than its run
    assert time.monotonic() < limit
    time.sleep(0.1)
  before = results()
  assert 5 <= len(before) < BLOCKS
  (target / "day0" / ".part0-00000.parquet.1f.partial").write_bytes(b"PAR1")  # of an actor killed while it wrote

  command = [sys.executable, str(EXAMPLES / "ray_batch.py"), *arguments]
  again = subprocess.run(command, env=joined, check=True, capture_output=True, text=True).stdout
  left = BLOCKS - len(before)
  assert f"computed {left * 500} rows in {left} blocks" in again
  assert before.items() <= results().items()
  check(target, images)
  actor = ray_batch.Infer(str(model), {"image": "picture"}, ["id"], 200)
  assert actor.block("nothing is read", 0, next(iter(before))) == 500


def test_rows_without_a_value(ray_batch: ModuleType, model: Path, tmp_path: Path) -> None:
  pictures = pa.array([[1.0] * 48, None], pa.list_(pa.float32(), 48))
  pq.write_table(pa.table({"picture": pictures}), tmp_path / "in.parquet")
  actor = ray_batch.Infer(str(model), {"image": "picture"}, [], 200)
  with pytest.raises(RuntimeError, match=r"row group 0 of .*in.parquet: column 'picture': 1 rows have no value"):
    actor.block(str(tmp_path / "in.parquet"), 0, tmp_path / "target" / "out.parquet")
  assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
  ("target", "options", "words"),
  [("results", [], "choose a folder outside"), ("../results", ["--column", "image"], "write INPUT=COLUMN")],
)
def test_arguments_that_are_refused(
  ray_batch: ModuleType, source: Path, capsys: pytest.CaptureFixture[str], target: str, options: list[str], words: str
) -> None:
  with pytest.raises(SystemExit):
    ray_batch.main(["fast.onnx", str(source), str(source / target), *options])
  assert words in capsys.readouterr().err
