"""torchvision's Mask R-CNN on the GPU: the model as exported against the optimized one, and where the time goes.

    python -m models.mask_rcnn mask_rcnn.onnx
    python benchmarks/mask_rcnn.py mask_rcnn.onnx

Both run in ONNX Runtime's CUDA provider without a CUDA graph, which its control flow rules out. The detections of the
two must be equal. The share of the Loop that pastes the masks comes from ONNX Runtime's profiler, in a run of its own.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime

import ortplugin
import timing
from ortplugin.graph import walk_nodes

RUNS = 10
PROFILED_RUNS = 4
SCATTERS = ("Scatter", "ScatterElements", "ScatterND", "UpdateSlice")


def scatters(model):
  """How many scatters of each domain the model has, bodies of control flow included."""
  found = Counter(
    f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in walk_nodes(model) if node.op_type in SCATTERS
  )
  return dict(sorted(found.items()))


def session_of(model, profile=""):
  """A session on the GPU; `profile` is where the profiler writes."""
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 3
  if profile:
    options.enable_profiling = True
    options.profile_file_prefix = profile
  return ortplugin.session(model, providers=["cuda"], session_options=options)


def milliseconds_by_operator(model, feeds):
  """Time of each operator of the main graph in one run, from ONNX Runtime's profiler; host time, kernels included."""
  with tempfile.TemporaryDirectory() as folder:
    session = session_of(model, str(Path(folder) / "profile"))
    for _ in range(PROFILED_RUNS):
      ortplugin.run(session, feeds)
    events = json.loads(Path(session.end_profiling()).read_text())
  total = Counter()
  for event in events:
    if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
      total[event["args"]["op_name"]] += event["dur"]
  return {name: round(value / 1e3 / PROFILED_RUNS, 3) for name, value in total.most_common(12)}


def main(arguments=None):
  """Measures and writes the record."""
  parser = argparse.ArgumentParser(description="Mask R-CNN: exported against optimized.")
  parser.add_argument("model", type=Path)
  parser.add_argument("--out", type=Path, default=timing.RESULTS, help="folder for mask_rcnn.json.xz")
  parser.add_argument("--commit", default="", help="of the measured code, where there is no git")
  options = parser.parse_args(arguments)

  import cupy
  import onnx

  original = onnx.load(options.model)
  optimized, report = ortplugin.optimize(original)
  models = {"exported": original.SerializeToString(), "optimized": optimized.SerializeToString()}
  (image,) = original.graph.input
  shape = [dimension.dim_value for dimension in image.type.tensor_type.shape.dim]
  feeds = {image.name: cupy.asarray(np.random.default_rng(0).random(shape, dtype=np.float32))}

  results = {}
  times = {name: [] for name in models}
  sessions = {name: session_of(model) for name, model in models.items()}
  for name, session in sessions.items():
    results[name] = {key: cupy.asnumpy(value) for key, value in ortplugin.run(session, feeds).items()}
  for _ in range(RUNS):
    for name, session in sessions.items():
      start = time.perf_counter()
      ortplugin.run(session, feeds)
      times[name].append((time.perf_counter() - start) * 1e3)
  equal = {key: bool(np.array_equal(value, results["optimized"][key])) for key, value in results["exported"].items()}
  record = {
    "environment": timing.environment(options.commit),
    "shapes": {key: list(value.shape) for key, value in results["exported"].items()},
    "scatters": {"exported": scatters(original), "optimized": scatters(optimized)},
    "rewrites": report.rewrites,
    "equal": equal,
    "milliseconds": {name: round(statistics.median(values), 2) for name, values in times.items()},
    "milliseconds_by_operator": {name: milliseconds_by_operator(model, feeds) for name, model in models.items()},
  }
  path = timing.write("mask_rcnn", record, options.out)
  print(json.dumps({key: value for key, value in record.items() if key != "environment"}, indent=1))
  print(f"wrote {path}")
  return 0 if all(equal.values()) else 1


if __name__ == "__main__":
  sys.exit(main())
