"""What every benchmark shares: timing on the GPU, and the record of what was measured where.

A kernel of a few microseconds can't be timed by itself: a synchronous `Run` of ONNX Runtime takes 45 us, a CUDA graph
some 10. So everything is timed as a chain, `x -> f(x) -> f(f(x)) -> ...`, replayed as one CUDA graph, and the time of a
step is the slope between a long chain and a chain of one. A chain also keeps the caches honest: what a step reads is
what the step before wrote. Where a step's result can't be the next one's input, the steps work on tensors of their own
instead and the GPU's clock counts: the host, which has more to prepare for more tensors, stays ahead of it. All
contenders of a row are measured in turn, round after round, in a random order, so that what changes the GPU's
clock meets all of them; the median of the rounds counts.
"""

import argparse
import gc
import json
import lzma
import math
import platform
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
BENCHMARKS = README.parent / "docs" / "benchmarks.md"
ROUNDS = 15
LENGTH = 21  # steps of the long chain
DTYPES = {"float16": np.float16, "float": np.float32, "double": np.float64}  # as programs name them


@dataclass(frozen=True)
class Contender:
  """Two replayable chains of the same step: `short` has one, `long` has many.

  Both return when the GPU is done, with the microseconds that it took if it was asked itself.
  """

  short: Callable[[], Any]
  long: Callable[[], Any]


def microseconds(contenders, length=LENGTH, rounds=ROUNDS):
  """Median time of one step of each contender, in microseconds. `length`: steps of the long chains."""
  return {name: statistics.median(times) for name, times in by_round(contenders, length, rounds).items()}


def by_round(contenders, length, rounds):
  """Microseconds of one step of each contender in each round."""

  def once(replay):
    start = time.perf_counter()
    took = replay()
    return took if isinstance(took, float) else (time.perf_counter() - start) * 1e6

  for contender in contenders.values():
    for _ in range(3):
      contender.short()
      contender.long()
  slopes = {name: [] for name in contenders}
  for number in range(rounds):
    for name in random.Random(number).sample(list(contenders), len(contenders)):
      contender = contenders[name]
      short = min(once(contender.short) for _ in range(3))
      long = min(once(contender.long) for _ in range(3))
      slopes[name].append((long - short) / (length - 1))
  return slopes


def environment(commit, *, on_gpu=True):
  """GPU (or CPU), driver and versions, for the record that goes with the figures."""
  import onnxruntime

  torch = pytorch()
  return {
    **(_gpu() if on_gpu else _cpu()),
    "onnxruntime": onnxruntime.__version__,
    "python": platform.python_version(),
    "commit": commit or _output("git", "-C", str(README.parent), "rev-parse", "HEAD"),
    "date": time.strftime("%Y-%m-%d"),
    **({"torch": torch.__version__} if torch else {}),
  }


def pytorch():
  """The module, None where it is not installed."""
  try:
    import torch
  except ImportError:
    return None
  return torch


def _gpu():
  import cupy

  properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
  driver = cupy.cuda.runtime.driverGetVersion()
  return {
    "gpu": properties["name"].decode(),
    "cuda_driver": f"{driver // 1000}.{driver % 1000 // 10}",
    "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
    "cupy": cupy.__version__,
  }


def _cpu():
  names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
  return {"gpu": f"{len(names)} cores of {names[0] if names else platform.machine()}"}


def _output(*command):
  try:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return "unknown"


def write(name, record, folder=RESULTS):
  """Writes `<folder>/<name>.json.xz`, numbers with four digits, what holds no other object in one line."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f"{name}.json.xz"
  text = json.dumps(_shortened(record), indent=0, separators=(",", ":"))
  text = re.sub(r"[{\[][^{}\[\]]*[}\]]", lambda found: re.sub(r"\s*\n\s*", "", found[0]), text) + "\n"
  path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
  return path


def read(path):
  """The record that `write` wrote."""
  return json.loads(lzma.decompress(path.read_bytes()))


def merged(rows, earlier, environment, *keys):
  """`rows`, and those of an earlier run of the same GPU and versions whose values at `keys` no row has.

  What stays of another commit says so: its row has "commit".
  """
  known = {tuple(row[key] for key in keys): row for row in rows}
  if earlier.exists():
    record = read(earlier)
    was = record["environment"]
    for key in ("gpu", "driver", "onnxruntime", "torch"):
      if was[key] != environment[key]:
        raise SystemExit(f"{earlier} was measured with another {key}; give another --out, or remove it")
    for row in record["rows"]:
      if was["commit"] != environment["commit"]:
        row.setdefault("commit", was["commit"])
      known.setdefault(tuple(row[key] for key in keys), row)
  return list(known.values())


def older(rows, titles):
  """For a table's footer: which of the rows are of other commits."""
  commits = {}
  for row, title in zip(rows, titles, strict=True):
    commits.setdefault(row.get("commit", ""), []).append(title)
  note = ""
  for commit in filter(None, commits):
    names, others = commits[commit], [each for other in commits if other != commit for each in commits[other]]
    text = "; ".join(names) if not others or len(names) < len(others) else f"all but {'; '.join(others)}"
    note += f"; at commit {commit[:12]}: {text}"
  return note


def _shortened(value):
  """Numbers with four digits, whole ones without a point."""
  if isinstance(value, float):
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
  if isinstance(value, Mapping):
    return {key: _shortened(each) for key, each in value.items()}
  return [_shortened(each) for each in value] if isinstance(value, list | tuple) else value


def fill_readme(name, table):
  """Replaces what stands between `<!-- benchmark:NAME -->` and `<!-- /benchmark -->` in README.md or BENCHMARKS."""
  opening, closing = f"<!-- benchmark:{name} -->", "<!-- /benchmark -->"
  for path in (README, BENCHMARKS):
    before, found, rest = path.read_text().partition(opening)
    if found and closing in rest:
      path.write_text(before + opening + "\n" + table + "\n" + closing + rest.partition(closing)[2])
      return
  raise SystemExit(f"neither README.md nor docs/benchmarks.md has {opening} ... {closing}")


COMMANDS = """Writes its results into benchmarks/results, from which --readme fills the tables in docs/benchmarks.md:

    python benchmarks/NAME.py                                                     measure, write, print
    python benchmarks/NAME.py --readme                                            the same, then fill docs/benchmarks.md
    python benchmarks/NAME.py --from benchmarks/results/NAME.json.xz --readme     no measuring
"""


def arguments(doc, options):
  """A benchmark's command line: its own options, {"--flag": what add_argument takes}, and those of all.

  `source` is what --from names, or None.
  """
  parser = argparse.ArgumentParser(
    description=doc, epilog=COMMANDS, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  for flag, given in options.items():
    parser.add_argument(flag, **given)
  parser.add_argument("--readme", action="store_true", help="fill the table in README.md or docs/benchmarks.md")
  parser.add_argument("--from", dest="source", type=Path, help="use these results instead of measuring")
  parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
  parser.add_argument("--commit", default="", help="what was measured, where git can't tell")
  return parser.parse_args()


def run(name, doc, measure, table, options=None, *, on_gpu=True):
  """A benchmark as a program: measures, or reads an earlier record, and prints the table.

  `measure(args, record)` adds to record["rows"] and yields a line to print after each row; what a time limit cuts off
  is not lost, as `<name>.json.xz` is written then.
  """
  args = arguments(doc, options or {})
  record = measured(name, measure, args, on_gpu=on_gpu)
  print(table(record))
  if args.readme:
    fill_readme(name, table(record))


def measured(name, measure, args, **given):
  """The record that --from names, or the one that `measure` fills as in `run`. `given`: what `environment` takes."""
  if args.source:
    return read(args.source)
  record = {"environment": environment(args.commit, **given), "rows": []}
  for line in measure(args, record):
    print(line, flush=True)
    write(name, record, args.out)
  return record


def shown(row):
  """A row's times: 'ours 5.7, torch 46.2'."""
  return ", ".join(f"{name} {value:.1f}" for name, value in row["microseconds"].items())


def page(lines, name, where, note="", unit="Microseconds of a step, medians", libraries="onnxruntime torch"):
  """A benchmark's table with the line below it: its unit, where and with which versions it was measured, and how."""
  titles = {"cudnn": "", "onnxruntime": "ONNX Runtime ", "torch": "PyTorch ", "cupy": "CuPy "}
  versions = [titles[each] + where[each] for each in libraries.split() if each in where]
  driver = [f"driver {where['driver']}"] if "driver" in where else []
  parts = [where["gpu"], *driver, *versions, f"commit {where['commit'][:12]}", where["date"]]
  return "\n".join([*lines, "", f"{unit}; {', '.join(parts)}{note}. Measured by `python benchmarks/{name}.py`."])


def ends(rows, speed, shown=3):
  """What a table has of many rows: the slowest, the fastest, and a line on all. `speed(row)`: over theirs."""
  speeds = [(each, number) for number, row in enumerate(rows) if (each := speed(row)) is not None]
  known = [rows[number] for _, number in sorted(speeds)]
  if len(known) <= 7:
    return rows, ""
  values = [each for each, _ in speeds]
  mean = math.exp(sum(map(math.log, values)) / len(values))
  line = f"Of {len(values)}: geometric mean {mean:.2f}, {sum(x < 0.995 for x in values)} below 1."
  return known[:shown] + known[-1:], line


def to_copy(row):
  """The time over that of a copy."""
  times = row["microseconds"]
  return f"{times['ortplugin'] / times['copy']:.2f}" if "copy" in times else ""


def table(record, columns, head, rule, name, last=None):
  """A Markdown table of the record's microseconds, those of `columns` that were measured, of many rows the ends; its
  lines.

  `head`, `rule` and `name` begin the lines, each up to its first time: "| tensors", "|---|" and what names a row.
  `last`: the title of a column behind the times, and its cell for a row.
  """
  present = [column for column in columns if column in record["rows"][0]["microseconds"]]
  shown, line = ends(record["rows"], _gain)
  lines = [[head, *(columns[column] for column in present), *([last[0]] if last else [])]]
  for row in shown:
    times = row["microseconds"]
    cells = [f"{times[column]:.1f}" if column in times else "" for column in present]
    lines.append([name(row), *cells, *([last[1](row)] if last else [])])
  texts = [" | ".join(cells) + " |" for cells in lines]
  return [*([line, ""] if line else []), texts[0], rule + "---:|" * (len(lines[0]) - 1), *texts[1:]]


def _gain(row):
  """The least of the others' times, but for a copy's, over ours."""
  times = row["microseconds"]
  others = [time for name, time in times.items() if name not in ("ortplugin", "copy")]
  return min(others) / times["ortplugin"] if others and "ortplugin" in times else None


def free_memory():
  """Gives the GPU back what no array of CuPy and no tensor of PyTorch holds any more."""
  import cupy

  gc.collect()
  cupy.get_default_memory_pool().free_all_blocks()
  if torch := pytorch():
    torch.cuda.empty_cache()


def chained(step, x, length):
  """`step` applied so many times."""
  for _ in range(length):
    x = step(x)
  return x


def torch_graph(stream, step, first=None):
  """A function that replays a CUDA graph of `step` on PyTorch's stream, and what `step` returned when it was captured.

  `first`: what runs three times before, `step` itself if left out.
  """
  import torch

  with torch.cuda.stream(stream):
    for _ in range(3):
      (first or step)()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
      result = step()

  def replay(_kept=(step, result)):
    with torch.cuda.stream(stream):
      graph.replay()

  return replay, result


def torch_chain(step, x):
  """A CUDA graph of `step` applied again and again, captured by PyTorch."""
  import torch

  def capture(length):
    launch, _ = torch_graph(torch.cuda.Stream(), lambda: chained(step, x, length))

    def replay():
      launch()
      torch.cuda.synchronize()

    return replay

  return Contender(capture(1), capture(LENGTH))


def cupy_chain(step, x, *, graph):
  """CuPy's `step` again and again, captured as a CUDA graph where `graph`; else launched from Python each time."""
  import cupy

  def prepare(length):
    stream = cupy.cuda.Stream(non_blocking=True)

    def replay():
      with stream:
        chained(step, x, length)
      stream.synchronize()

    for _ in range(3):
      replay()
    if not graph:
      return replay
    with stream:
      stream.begin_capture()
      kept = chained(step, x, length)
      captured = stream.end_capture()

    def launch(_kept=kept):
      captured.launch(stream)
      stream.synchronize()

    return launch

  return Contender(prepare(1), prepare(LENGTH))


Value = tuple[str, Any, Sequence[int] | None]  # name, NumPy's dtype, shape


def model_of(nodes, inputs, outputs, constants=None, opset=17):
  """A model of ONNX's nodes and ours; `constants` are its initializers."""

  def infos(values):
    return [
      helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
      for name, dtype, shape in values
    ]

  tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
  graph = helper.make_graph(list(nodes), "steps", infos(inputs), infos(outputs), tensors)
  opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ortplugin", 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def algorithms(model):
  """Those that --tune would time for the model's first node."""
  from ortplugin.graph.shapes import TensorType
  from ortplugin.ops import find

  graph = onnx.load_from_string(model).graph
  node = graph.node[0]
  constants = {each.name: (each.data_type, tuple(each.dims)) for each in graph.initializer}
  types = {each.name: each.type.tensor_type for each in graph.input}
  known = {name: (each.elem_type, tuple(dim.dim_value for dim in each.shape.dim)) for name, each in types.items()}
  known |= constants
  operator = find(node.domain, node.op_type)
  given = [TensorType(helper.tensor_dtype_to_np_dtype(known[name][0]), known[name][1]) for name in node.input]
  listed = operator.device_variants(node, given, [name in constants for name in node.input])
  return [str(each["algorithm"]) for each in listed]


def cuda_session(model, provider, *, plugin, severity=3):
  """An ONNX Runtime session with these options of its CUDA provider. `plugin`: whether to register the library."""
  import onnxruntime

  import ortplugin

  options = onnxruntime.SessionOptions()
  options.log_severity_level = severity
  if plugin:
    ortplugin.register(options)
  return onnxruntime.InferenceSession(model, options, providers=[("CUDAExecutionProvider", provider)])


def _captured(model, feed, provider, stream=None, *, plugin):
  """A function that runs a session with a CUDA graph on the feed's arrays, and the model's first output."""
  import cupy

  gpu = cupy.cuda.Device().id
  session = cuda_session(model, {"enable_cuda_graph": "1", "device_id": str(gpu), **provider}, plugin=plugin)
  binding = session.io_binding()
  for name, array in feed.items():
    binding.bind_input(name, "cuda", gpu, array.dtype, array.shape, array.data.ptr)
  kept = []  # a captured graph writes to fixed addresses
  for output in session.get_outputs():
    dtype = {"tensor(float16)": "float16", "tensor(float)": "float32", "tensor(double)": "float64"}[output.type]
    kept.append(cupy.empty(output.shape, dtype))
    binding.bind_output(output.name, "cuda", gpu, kept[-1].dtype, kept[-1].shape, kept[-1].data.ptr)
  # The first runs compile, allocate and capture.
  for _ in range(3):
    session.run_with_iobinding(binding)
    if stream is not None:
      stream.synchronize()
  return lambda kept=kept: session.run_with_iobinding(binding), kept[0]


def session_chain(models, feeds, *, plugin):
  """ONNX Runtime sessions with CUDA graphs; `models` maps a chain's length to the model, of one output and dtype."""
  return Contender(*(_captured(models[length], feeds, {}, plugin=plugin)[0] for length in (1, LENGTH)))


# Keeps the GPU waiting while the host prepares what comes next on the stream.
_WAIT = """extern "C" __global__ void wait(long long cycles) {
  for (const long long start = clock64(); clock64() - start < cycles;) {}
}"""
_WAIT_CYCLES = 1_000_000  # half a millisecond


def on_the_gpu(stream, replay, count=1, wait_cycles=_WAIT_CYCLES):
  """A function that replays `count` times on a CuPy stream and returns the GPU's microseconds for all."""
  import cupy

  wait = cupy.RawKernel(_WAIT, "wait")
  start, end = cupy.cuda.Event(), cupy.cuda.Event()

  def timed():
    with stream:
      wait((1,), (1,), (np.int64(wait_cycles),))
      start.record()
      for _ in range(count):
        replay()
      end.record()
      end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e3

  return timed


def torch_contenders(make, feeds, copied):
  """PyTorch's eager mode, `torch.compile` and a copy: name, step and tensors of each; none where it is not installed.

  `make`: gives the step for PyTorch, which takes the feeds' CuPy arrays as tensors by name. `copied`: the name of the
  one to copy.
  """
  if (torch := pytorch()) is None:
    return []
  torch.cuda.empty_cache()
  torch._dynamo.reset()
  tensors = [{name: torch.from_dlpack(array) for name, array in feed.items()} for feed in feeds]
  eager = make(torch)
  return [
    ("eager", eager, tensors),
    ("compile", torch.compile(eager, dynamic=False), tensors),
    ("copy", lambda **feed: (feed[copied].clone(),), tensors),
  ]


def torch_steps(step, feeds):
  """CUDA graphs of `step(**feed)` for the first feed and for all, each on tensors of its own; and the first result.

  What a step reads, no other has touched, so it comes from memory and not from a cache.
  """
  import cupy
  import torch

  def capture(count):
    replay, kept = torch_graph(stream, lambda: [step(**feed) for feed in feeds[:count]], lambda: step(**feeds[0]))
    return on_the_gpu(cupy.cuda.ExternalStream(stream.cuda_stream), replay), kept[0]

  stream = torch.cuda.Stream()
  short, first = capture(1)
  long, _ = capture(len(feeds))
  short()
  return Contender(short, long), first


def session_replay(model, feeds, *, plugin, provider_options=None, stream=None):
  """A function that replays a session's CUDA graph and returns the GPU's microseconds, and the model's first output.

  `model` has an input `<name><step>` for each array of each feed.
  """
  import cupy

  stream = stream or cupy.cuda.Stream(non_blocking=True)
  provider = {"user_compute_stream": str(stream.ptr), **(provider_options or {})}
  numbered = {f"{name}{number}": array for number, feed in enumerate(feeds) for name, array in feed.items()}
  run, first = _captured(model, numbered, provider, stream, plugin=plugin)
  return on_the_gpu(stream, run), first


def replayed_outputs(model, feeds, expected=None, *, plugin, provider_options=None, replays=100):
  """What verification says of a model under a CUDA graph, for a benchmark's record (see ortplugin/check/replays.py).

  Args:
      model: with or without the plugin's operators.
      feeds: host arrays by input name; replays alternate between these and the same values shifted.
      expected: what they should give, such as the outputs of the network in float32.
      plugin: whether to register the library.
      provider_options: more options of the CUDA provider.
      replays: how many.

  Returns:
      "replays": how many there were. "differed": how many gave other bits than the first of their inputs, of outputs
      whose bits runs without a graph repeat. "plain_error": the largest difference of any replay from a run of the
      same session without a graph; "error" and "error_plain": those of the replays and of that run from `expected`,
      all over the output's largest magnitude. "wrong": what verification would object to, "" if nothing. Or
      {"refused": why it can't be captured}.
  """
  import cupy

  from ortplugin.check.inputs import shifted
  from ortplugin.check.replays import GraphSession, NotCaptured, compare_replays

  def make(given):
    return cuda_session(model, {**given, **(provider_options or {})}, plugin=plugin, severity=4)

  try:
    with GraphSession(make, cupy.cuda.Device().id) as graphs:
      found = graphs.replay([feeds, shifted(feeds)], replays)
  except NotCaptured as error:
    return {"refused": str(error)}
  judged = [output for case, plain in enumerate(found.plain) for output in compare_replays(found, case, plain)]
  names = list(found.plain[0])
  record = {
    "replays": found.count,
    "differed": max((found.differing(name) for name in names if name not in found.unsteady), default=0),
    "plain_error": max(
      relative_error(result.outputs[name], plain[name])
      for results, plain in zip(found.results, found.plain, strict=True)
      for result in results
      for name in names
    ),
    "wrong": next((f"{output.name}: {output.message}" for output in judged if not output.passed), ""),
  }
  if expected is not None:
    record["error"] = max(
      relative_error(result.outputs[name], wanted) for result in found.results[0] for name, wanted in expected.items()
    )
    record["error_plain"] = max(relative_error(found.plain[0][name], wanted) for name, wanted in expected.items())
  return record


def relative_error(found, expected):
  """The largest difference over the largest magnitude; infinite where only one of the two is finite."""
  found, expected = np.asarray(found).astype(np.float64), np.asarray(expected).astype(np.float64)
  if not (np.isfinite(found) == np.isfinite(expected)).all():
    return float("inf")
  finite = np.isfinite(expected)
  if not finite.any():
    return 0.0
  return float(np.abs(found - expected)[finite].max() / max(np.abs(expected[finite]).max(), 1e-30))


def session_steps(model, feeds, *, plugin, provider_options=None):
  """As torch_steps, in ONNX Runtime; `model(count)` has inputs `<name><step>` and outputs, first that of step 0."""
  import cupy

  stream = cupy.cuda.Stream(non_blocking=True)
  given = {"plugin": plugin, "provider_options": provider_options, "stream": stream}
  short, first = session_replay(model(1), feeds[:1], **given)
  long, _ = session_replay(model(len(feeds)), feeds, **given)
  return Contender(short, long), first


def beside_torch(case, feeds, contenders, results, make, check, rounds):
  """A row of a case with a name, a dtype, shapes and bytes: our contenders and PyTorch's, of `make` (torch_contenders).

  `check(case, feed, results)` gives the error of each. The copy's time is scaled to the case's bytes.
  """
  largest = max(case.shapes, key=lambda name: math.prod(case.shapes[name]))
  for name, step, tensors in torch_contenders(make, feeds, largest):
    contenders[name], results[name] = torch_steps(step, tensors)
  times = microseconds(contenders, len(feeds), rounds)
  results.pop("copy", None)
  errors = check(case, feeds[0], results)
  if "copy" in times:
    times["copy"] *= case.bytes / (2 * feeds[0][largest].nbytes)
  return {
    "case": case.name,
    "dtype": case.dtype,
    "shapes": {name: list(shape) for name, shape in case.shapes.items()},
    "bytes": case.bytes,
    "microseconds": times,
    "error": errors,
  }
