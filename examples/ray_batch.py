"""Runs a model over a folder of Parquet files with Ray Data: one actor per GPU, or per CPU where there is none.

    python examples/ray_batch.py fast.onnx images/ features/ --column input image --keep id

An input block is one row group of one file. Its results get a file of their own, named after the block, written under
a temporary name and renamed; a block whose file is there is skipped. So Ray may repeat a block when an actor dies, and
a run that was killed goes on when it is started again: no row is lost, none is there twice.

A column holds numbers: one per row, a list of fixed length, or a tensor. The model's first dimension is open.
"""

import argparse
import os
import uuid
from pathlib import Path
from typing import Any

import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import ray

import ortplugin


class Infer:
  """An actor: an optimized session on the GPU that Ray gave it, or on one CPU core."""

  def __init__(self, model: str, columns: dict[str, str], keep: list[str], batch: int) -> None:
    gpu = bool(ray.get_gpu_ids())
    options = onnxruntime.SessionOptions()
    if not gpu:
      options.intra_op_num_threads = 1
    self.session = ortplugin.session(model, ["cuda" if gpu else "cpu"], session_options=options)
    self.columns = {value.name: columns.get(value.name, value.name) for value in self.session.get_inputs()}
    self.keep, self.batch = keep, batch

  def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
    """Computes blocks, which are Ray's rows; returns how many rows each has."""
    blocks = zip(rows["path"], rows["group"], rows["result"], strict=True)
    return {"count": [self.block(str(path), int(group), Path(result)) for path, group, result in blocks]}

  def block(self, path: str, group: int, result: Path) -> int:
    """Writes the results of a block, unless an earlier attempt has."""
    if result.exists():
      return int(pq.read_metadata(result).num_rows)
    try:
      with pq.ParquetFile(path) as file:
        batches = file.iter_batches(self.batch, [group], [*self.columns.values(), *self.keep])
        table = pa.Table.from_batches([self.infer(batch) for batch in batches])
    except Exception as error:
      raise RuntimeError(f"row group {group} of {path}: {error}") from error
    result.parent.mkdir(parents=True, exist_ok=True)
    partial = result.with_name(f".{result.name}.{uuid.uuid4().hex}.partial")  # readers of a folder skip such names
    with open(partial, "xb") as out:
      pq.write_table(table, out)
      out.flush()
      os.fsync(out.fileno())
    partial.replace(result)
    return len(table)

  def infer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns to keep and the model's outputs, for the rows of a batch."""
    feeds = {value.name: tensor(batch, self.columns[value.name], value) for value in self.session.get_inputs()}
    done = {name: batch.column(name) for name in self.keep}
    for value, array in zip(self.session.get_outputs(), self.session.run(None, feeds), strict=True):
      done[value.name] = (pa.FixedShapeTensorArray.from_numpy_ndarray if array.ndim > 1 else pa.array)(array)
    return pa.RecordBatch.from_pydict(done)


def tensor(batch: pa.RecordBatch, name: str, value: Any) -> Any:
  """A column in the dtype and shape of an input of the model."""
  column = batch.column(name)
  if column.null_count:
    raise ValueError(f"column '{name}' has {column.null_count} rows without a value; leave them out")
  column = getattr(column, "storage", column)
  while hasattr(column, "flatten"):
    column = column.flatten()
  element = value.type.removeprefix("tensor(").removesuffix(")")
  dtype = {"float": "float32", "double": "float64"}.get(element, element)
  shape = [size if isinstance(size, int) else -1 for size in value.shape[1:]]
  return column.to_numpy().astype(dtype).reshape(len(batch), *shape)


def missing(source: Path, target: Path) -> list[dict[str, Any]]:
  """The blocks of a folder that have no results yet."""
  found = []
  for path in sorted(source.rglob("*.parquet")):
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
      result = target / f"{path.relative_to(source).with_suffix('')}-{group:05}.parquet"
      if metadata.row_group(group).num_rows and not result.exists():
        found.append({"path": str(path), "group": group, "result": str(result)})
  return found


def main(arguments: list[str] | None = None) -> None:
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  for name in ("model", "source", "target"):
    parser.add_argument(name, type=Path)
  parser.add_argument(
    "--column", nargs=2, action="append", default=[], help="an input, and its column if not of its name"
  )
  parser.add_argument("--keep", action="append", default=[], help="a column to copy to the results")
  parser.add_argument("--batch", type=int, default=64)
  parser.add_argument("--actors", type=int, help="default: one for each GPU, else for each CPU")
  given = parser.parse_args(arguments)
  source, target = given.source.resolve(), given.target.resolve()
  if target.is_relative_to(source):
    parser.error(f"results in {target} would be read as input; choose a folder outside")
  if not ray.is_initialized():
    ray.init()
  count, blocks = 0, missing(source, target)
  if blocks:
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    actors = min(len(blocks), given.actors or gpus or int(resources["CPU"]))
    # Two calls at once: one block is read or written while the session runs another.
    pool = ray.data.ActorPoolStrategy(size=actors, max_concurrent_calls_per_actor=2, enable_true_multi_threading=True)
    data = ray.data.from_items(blocks, override_num_blocks=min(len(blocks), 100 * actors)).map_batches(
      Infer,
      fn_constructor_args=(str(given.model.resolve()), dict(given.column), given.keep, given.batch),
      batch_size=1,
      compute=pool,
      **({"num_gpus": 1} if gpus else {"num_cpus": 1}),
    )
    count = sum(row["count"] for row in data.iter_rows())
  for partial in target.rglob(".*.partial"):  # of actors that were killed
    partial.unlink(missing_ok=True)
  print(f"computed {count} rows in {len(blocks)} blocks; the others were in {target} already")


if __name__ == "__main__":
  main()
