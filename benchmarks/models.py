"""Whole networks in float16: ONNX Runtime, PyTorch's compiler and ortplugin, in one run.

    python benchmarks/models.py                                           # all of them
    python benchmarks/models.py --models resnet50:8,bert_base:8x128       # some; their rows replace earlier ones
    python benchmarks/models.py --models transformers --dtype bf16        # a group

A case is NAME:SIZES or NAME:SIZES:DTYPE. Sizes are those of the inputs that the network leaves open: the batch, and for
texts the number of tokens; for a step of decoding, the number of those in the cache. Convolutional networks and
transformers are two groups, each with a record and a table of its own.

Every contender computes the same network, with the same weights rounded to the dtype, on the same inputs. The ONNX
model is PyTorch's export of the module in that dtype: by TorchScript for convolutional networks, by dynamo for
transformers, and by the other where that fails, which the row says. In fp32, TF32 is allowed to all, in exact to none.
Columns:

    default    ONNX Runtime as it comes: one synchronous Run with inputs and outputs on the GPU, by the host's clock
    nchw, nhwc ONNX Runtime with its CUDA graph, and with prefer_nhwc
    ours       the optimized model, with ONNX Runtime's CUDA graph
    tuned      the same, optimized with --tune
    compile    torch.compile in its default mode under a CUDA graph; contiguous and, for images, channels last
    COLUMN     with --against COLUMN=LIBRARY: the optimized model run by another build of the library

But for `default`, a time is the GPU's from the first to the last of many replays, divided by their number. Contenders
take turns. The error of an output is the largest difference from the float32 network, over the output's largest
magnitude; that of a network, its outputs' largest.
"""

import contextlib
import copy
import gc
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx

import timing

# The package `models` lies beside this folder, and this file must not be taken for it. Appended, so that an installed
# ortplugin comes before the source folder.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(entry for entry in sys.path if Path(entry or ".").resolve() != HERE), str(HERE.parent)]

import ortplugin  # noqa: E402
from models import networks, transformers  # noqa: E402
from ortplugin.graph.messages import walk_nodes  # noqa: E402

NETWORKS = {**networks.NETWORKS, **transformers.NETWORKS}
GROUPS = {
    "models": ("resnet50:1", "resnet50:8", "resnet50:64", "densenet121:8", "efficientnet_b0:8", "mobilenet_v3_large:1",
               "convnext_tiny:8", "fcn_resnet50:4", "dcgan:64", "unet:8", "unet_up:8", "resnet50:8:fp32",
               "convnext_tiny:8:fp32"),
    "transformers": ("bert_base:1x128", "bert_base:8x128", "vit_b_16:8", "swin_t:8", "maxvit_t:8", "gpt2:1x256",
                     "llama:1x256", "t5_encoder:8x128", "whisper_encoder:1", "gpt2_decode:1x1024",
                     "llama_decode:1x1024", "gpt2_static:1x1024", "llama_static:1x1024"),
}  # fmt: skip
# Those of README.md; the whole groups are in docs/benchmarks.md.
HEADLINE = {
    "models": ("resnet50:1", "resnet50:8", "efficientnet_b0:8", "convnext_tiny:8", "fcn_resnet50:4", "unet:8",
               "resnet50:8:fp32"),
    "transformers": ("bert_base:8x128", "vit_b_16:8", "gpt2:1x256", "whisper_encoder:1", "llama_decode:1x1024"),
}  # fmt: skip
EXPORTERS = ("dynamo", "torchscript")
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "exact": "float32"}
REPLAYS = 20
ROUNDS = 15
WAIT_CYCLES = 4_000_000  # two milliseconds, in which the host queues the replays

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
  """A network, the sizes of its inputs and its dtype."""

  name: str
  sizes: tuple[int, ...]
  dtype: str = "fp16"

  @classmethod
  def parse(cls, text, dtype="fp16"):
    """'bert_base:8x128' or 'bert_base:8x128:bf16'; `dtype`: what is meant without one."""
    name, _, rest = text.partition(":")
    sizes, _, given = rest.partition(":")
    if name not in NETWORKS:
      raise SystemExit(f"'{text}' has no name of {', '.join(NETWORKS)}")
    form = NETWORKS[name].sizes
    numbers = sizes.split("x")
    if len(numbers) != len(form.split("x")) or not all(each.isdecimal() and int(each) for each in numbers):
      raise SystemExit(f"'{text}' is not {name}:{form}")
    if (given or dtype) not in DTYPES:
      raise SystemExit(f"'{text}' ends in none of {', '.join(DTYPES)}")
    return cls(name, tuple(map(int, numbers)), given or dtype)

  @property
  def network(self):
    return NETWORKS[self.name]

  @property
  def tf32(self):
    """Whether sessions may round to TF32, as they may by default."""
    return self.dtype != "exact"

  @property
  def group(self):
    return "transformers" if self.name in transformers.NETWORKS else "models"

  def __str__(self):
    sizes = "x".join(map(str, self.sizes))
    return f"{self.name}:{sizes}" + ("" if self.dtype == "fp16" else f":{self.dtype}")

  def title(self, exporter):
    """What a table calls it. `exporter`: the one that wrote it."""
    sizes = "x".join(map(str, self.sizes))
    parts = [self.network.title, sizes if len(self.sizes) > 1 else f"batch {sizes}"]
    parts += [self.dtype] if self.dtype != "fp16" else []
    return ", ".join(parts + ([f"by {exporter}"] if exporter != self.network.exporter else []))


def grouped(text, dtype):
  """The cases of a list such as 'transformers,resnet50:8', by group."""
  found = {}
  for each in filter(None, text.split(",")):
    for case in (Case.parse(one, dtype) for one in GROUPS.get(each, (each,))):
      found.setdefault(case.group, []).append(case)
  return found


# ---- contenders


def with_own_cache(inputs, outputs, in_place):
  """The inputs, with copies of those that a network of so many outputs writes to, and these."""
  names = list(inputs)[1 - outputs :] if in_place else []
  own = {name: inputs[name].clone() for name in names}
  return {**inputs, **own}, list(own.values())


def session_replay(model, inputs, like, stream, *, library, graph=True, nhwc=False, tf32=True, in_place=False):
  """A function that runs the model on the stream without waiting for it, and the tensors that its outputs go to.

  `like`: tensors of the shapes of the outputs. `library`: the path of the libortplugin.so to register. `in_place`:
  Network's.
  """
  import onnxruntime
  import torch

  from ortplugin.session import element_type

  options = onnxruntime.SessionOptions()
  options.log_severity_level = 3
  if library is not None:
    options.register_custom_ops_library(library)
  gpu = torch.cuda.current_device()
  provider = {"user_compute_stream": str(stream.ptr), "enable_cuda_graph": str(int(graph)),
              "prefer_nhwc": str(int(nhwc)), "use_tf32": str(int(tf32)), "device_id": str(gpu)}  # fmt: skip
  session = onnxruntime.InferenceSession(model, options, providers=[("CUDAExecutionProvider", provider)])
  binding = session.io_binding()
  inputs, own = with_own_cache(inputs, len(like), in_place)

  def bind(bound, value, tensor):
    element = element_type(value.type)
    bound(value.name, "cuda", gpu, element[0], list(tensor.shape), tensor.data_ptr())

  for value in session.get_inputs():
    bind(binding.bind_input, value, inputs[value.name])
  results = []
  for number, (value, tensor) in enumerate(zip(session.get_outputs(), like, strict=True)):
    dtype = getattr(torch, element_type(value.type)[1].name)
    is_own = number > 0 and in_place
    results.append(own[number - 1] if is_own else torch.empty(tensor.shape, dtype=dtype, device=tensor.device))
    bind(binding.bind_output, value, results[-1])
  run_options = onnxruntime.RunOptions()
  if graph:  # else the session's end may end the process (zoo_row.Runner.queue)
    run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
  for _ in range(3):  # compiles, allocates, captures
    session.run_with_iobinding(binding)
    stream.synchronize()
  return lambda _kept=inputs: session.run_with_iobinding(binding, run_options), results


def torch_replay(model, inputs, like, stream, *, channels_last, in_place):
  """A function that replays the compiled module's CUDA graph on the stream, and the tensors of its outputs."""
  import torch

  model = copy.deepcopy(model)  # another layout would move its parameters away from under an earlier graph
  layout = torch.channels_last if channels_last else torch.contiguous_format
  model = model.to(memory_format=layout)
  inputs, _ = with_own_cache(inputs, len(like), in_place)
  given = tuple(each.to(memory_format=layout) if each.ndim == 4 else each for each in inputs.values())
  torch._dynamo.reset()
  compiled = torch.compile(model, dynamic=False)
  outer = torch.cuda.ExternalStream(stream.ptr)
  with torch.no_grad():
    return timing.torch_graph(outer, lambda: outputs_of(compiled(*given)))


def outputs_of(found):
  """What a module returns, as a list of tensors."""
  return list(found) if isinstance(found, tuple) else [found]


def gpu_microseconds(replays, stream, rounds=ROUNDS):
  """The GPU's time of one replay of each contender: medians of rounds in which they take turns."""
  timed = {name: timing.on_the_gpu(stream, replay, REPLAYS, WAIT_CYCLES) for name, replay in replays.items()}
  times = {name: [] for name in replays}
  for number in range(rounds + 2):
    for name, once in timed.items():
      took = once() / REPLAYS
      if number >= 2:
        times[name].append(took)
  return {name: statistics.median(values) for name, values in times.items()}


def host_microseconds(replay, stream):
  """The host's time of one run that is waited for."""
  took = []
  for _ in range(50):
    begun = time.perf_counter()
    replay()
    stream.synchronize()
    took.append((time.perf_counter() - begun) * 1e6)
  return statistics.median(took[10:])


# ---- one row


def operators(model):
  """Nodes by type, those of other domains than the standard one with theirs."""
  return dict(Counter(f"{n.domain}::{n.op_type}".removeprefix("::") for n in walk_nodes(model)).most_common())


@dataclass(frozen=True)
class Subject:
  """What all contenders of a case compute: the module and its export, inputs, and the outputs of the module itself.

  `expected`: in float32. `exporter`: the one that wrote the model.
  """

  module: Any
  model: onnx.ModelProto
  inputs: Tensors
  eager: list[Any]
  expected: list[Any]
  exporter: str

  def error(self, results):
    """The largest difference from what is expected, over the magnitude of each output."""
    pairs = zip(results, self.expected, strict=True)
    return max(float((found.float() - wanted).abs().max() / wanted.abs().max()) for found, wanted in pairs)

  def on_host(self):
    """Inputs and expected outputs as NumPy's arrays by name."""
    feeds = {name: host(each) for name, each in self.inputs.items()}
    names = [output.name for output in self.model.graph.output]
    return feeds, {name: host(each) for name, each in zip(names, self.expected, strict=True)}


def host(tensor):
  """A tensor as NumPy's array, for which bfloat16 is a dtype of ml_dtypes."""
  import torch

  if tensor.dtype != torch.bfloat16:
    return tensor.cpu().numpy()
  import ml_dtypes

  return tensor.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)


def prepare(case):
  """The case on the GPU, exported by the first exporter that can."""
  import torch

  # Without TF32, until the expected outputs are there.
  torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
  dtype = getattr(torch, DTYPES[case.dtype])
  network = case.network
  module = networks.module(network, "cuda").to(dtype)
  inputs = networks.draw(network, case.sizes, "cuda", dtype)
  model, exporter = exported(module, inputs, network.exporter)
  with torch.no_grad():
    eager = outputs_of(module(*inputs.values()))
    wide = [each.float() if each.is_floating_point() else each for each in inputs.values()]
    expected = outputs_of(module.float()(*wide))
    module = module.to(dtype)
  torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = case.dtype == "fp32"
  return Subject(module, model, inputs, eager, expected, exporter)


def exported(module, inputs, first):
  """The module as ONNX, and the exporter that wrote it: the other one where the first fails."""
  failures = []
  for exporter in (first, *(each for each in EXPORTERS if each != first)):
    with tempfile.TemporaryDirectory() as folder:
      path = Path(folder) / "model.onnx"
      try:
        networks.export(module, dict(inputs), path, exporter)
        return onnx.load(path), exporter
      except Exception as error:  # exporters raise what they like
        failures.append(f"{exporter}: {type(error).__name__}: {str(error)[:300]}")
        print(f"  {failures[-1]}", flush=True)
  raise RuntimeError("; ".join(failures))


def optimized_variants(subject, *, tune):
  """The optimized models by column."""
  ours, _ = ortplugin.optimize(subject.model)
  variants = {"ours": ours}
  if tune:
    feeds, _ = subject.on_host()
    variants["tuned"], _ = ortplugin.optimize(subject.model, tune=True, providers=["cuda"], inputs=feeds)
  return variants


def contenders(case, subject, models, stream, *, compiled):
  """What makes the replay of each column but the first. `models`: of ours, with the library that runs it."""
  original, in_place = subject.model.SerializeToString(), case.network.in_place

  def session(model, library=None, **given):
    given |= {"in_place": in_place, "tf32": case.tf32}
    return lambda: session_replay(model, subject.inputs, subject.expected, stream, library=library, **given)

  makers = {"nchw": session(original), "nhwc": session(original, nhwc=True)}
  makers |= {column: session(*pair) for column, pair in models.items()}
  layouts = {"compile": False, "compile_last": True} if case.network.channels_last else {"compile": False}
  for column, last in layouts.items() if compiled else ():
    makers[column] = lambda last=last: torch_replay(
      subject.module, subject.inputs, subject.expected, stream, channels_last=last, in_place=in_place
    )
  return makers


def measure(case, *, compiled, tune, profile, against):
  """All contenders of one model: microseconds and errors. `against`: column to the path of another libortplugin.so,
  which runs the same optimized model."""
  import cupy
  import torch

  subject = prepare(case)
  failures = {}

  @contextlib.contextmanager
  def attempt(column):
    """One that does not run must not hide the others."""
    try:
      yield
    except Exception as error:
      failures[column] = f"{type(error).__name__}: {error}"[:500]
      print(f"  {column}: {failures[column]}", flush=True)

  variants = optimized_variants(subject, tune=tune)
  libraries = {**dict.fromkeys(variants, ortplugin.library_path()), **against}
  models = {
    column: (variants.get(column, variants["ours"]).SerializeToString(), library)
    for column, library in libraries.items()
  }
  stream = cupy.cuda.Stream(non_blocking=True)
  torch.cuda.synchronize()
  replays = {}
  results = {"torch": subject.eager}
  for column, make in contenders(case, subject, models, stream, compiled=compiled).items():
    with attempt(column):
      replays[column], results[column] = make()
  times = {}
  with attempt("default"):
    original = subject.model.SerializeToString()
    default, _ = session_replay(
      original, subject.inputs, subject.expected, stream, library=None, graph=False, tf32=case.tf32
    )
    times["default"] = host_microseconds(default, stream)
    del default
  times |= gpu_microseconds(replays, stream)
  stream.synchronize()
  errors = {column: subject.error(found) for column, found in results.items()}
  replays.clear()  # their sessions' memory
  results.clear()
  gc.collect()
  graphs = {}
  feeds, wanted = subject.on_host()
  for column, variant in variants.items():
    graphs[column] = timing.replayed_outputs(
      variant.SerializeToString(), feeds, wanted, plugin=True, provider_options={"use_tf32": str(int(case.tf32))}
    )
    if problem := graphs[column].get("refused") or graphs[column]["wrong"]:
      failures[f"{column}, replayed"] = problem
      print(f"  {column}, replayed: {problem}", flush=True)
  if profile is not None:
    last = variants[list(variants)[-1]].SerializeToString()
    write_profile(last, subject, profile / f"{str(case).replace(':', '_')}.json")
  other = {} if subject.exporter == case.network.exporter else {"exporter": subject.exporter}
  return {
    "case": str(case),
    "microseconds": {key: round(value, 1) for key, value in times.items()},
    "errors": errors,
    "graphs": graphs,
    "operators": operators(variants["ours"]),
    "failures": failures,
    **other,
  }


def write_profile(model, subject, path):
  """What each node of the optimized model costs: kernel times of the CUDA graph's kernels, by CUPTI through PyTorch.

  Kernels of one run without a graph, in order, with the GPU's microseconds of each (the median of several runs).
  """
  import cupy
  from torch.profiler import ProfilerActivity, profile

  stream = cupy.cuda.Stream(non_blocking=True)
  library = ortplugin.library_path()
  replay, _ = session_replay(model, subject.inputs, subject.expected, stream, library=library, graph=False)
  runs = 5
  with profile(activities=[ProfilerActivity.CUDA]) as recorded:
    for _ in range(runs):
      replay()
      stream.synchronize()
  kernels = sorted(
    (event for event in recorded.events() if event.device_type.name == "CUDA"), key=lambda e: e.time_range.start
  )
  count = len(kernels) // runs
  rows = []
  for index in range(count):
    same = [kernels[index + count * number] for number in range(runs)]
    rows.append({"kernel": same[0].name, "us": round(statistics.median(e.time_range.elapsed_us() for e in same), 2)})
  total = sum(row["us"] for row in rows)
  nodes = [
    {"name": n.name, "op": n.op_type, "output": n.output[0], **{key: _text(n, key) for key in ("program", "layout")}}
    for n in onnx.load_from_string(model).graph.node
  ]
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps({"kernels": rows, "sum": round(total, 1), "nodes": nodes}, indent=0) + "\n")


def _text(node, name):
  return next((attribute.s.decode() for attribute in node.attribute if attribute.name == name), "")


# ---- the record


def best(times, *columns):
  """The smallest of these columns that were measured."""
  return min((times[column] for column in columns if column in times), default=None)


def titles(record):
  """What the table calls its rows."""
  found = []
  for row in record["rows"]:
    case = Case.parse(row["case"])
    found.append(case.title(row.get("exporter", case.network.exporter)))
  return found


def table(record):
  """The record as a Markdown table."""
  is_tuned = any("tuned" in row["microseconds"] for row in record["rows"])
  lines = [
    "| model | ORT default | ORT best | torch.compile | **ortplugin** | "
    + ("tuned | " if is_tuned else "")
    + "times ORT best | times compile | error | error of PyTorch |",
    "|---|" + "---:|" * (9 if is_tuned else 8),
  ]
  for row, title in zip(record["rows"], titles(record), strict=True):
    times, errors = row["microseconds"], row["errors"]
    ort, torch = best(times, "nchw", "nhwc"), best(times, "compile", "compile_last")
    ours = best(times, "ours", "tuned")

    def cell(value):
      return "" if value is None else f"{value:.0f}"

    def ratio(value, ours=ours):
      return "" if value is None or ours is None else f"{value / ours:.2f}"

    cells = [cell(times.get("default")), cell(ort), cell(torch), cell(times.get("ours")),
             *([cell(times.get("tuned"))] if is_tuned else []),
             ratio(ort), ratio(torch), error_cell(row["graphs"]["ours"]), f"{errors['torch']:.1e}"]  # fmt: skip
    lines.append(f"| {title} | " + " | ".join(cells) + " |")
  note = timing.older(record["rows"], titles(record))
  return timing.page(lines, "models", record["environment"], note, "Microseconds")


def headline(records):
  """A few networks of both groups, float16 but where a row says otherwise, as a Markdown table."""
  lines = ["| network | ORT | torch.compile | **ortplugin** | times ORT | times torch.compile |",
           "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
  for group, cases in HEADLINE.items():
    rows = {row["case"]: (row["microseconds"], title)
            for row, title in zip(records[group]["rows"], titles(records[group]), strict=True)}  # fmt: skip
    for times, title in (rows[case] for case in cases):
      ort, torch = best(times, "nchw", "nhwc"), best(times, "compile", "compile_last")
      ours = times["ours"]
      lines.append(f"| {title} | {ort:.0f} | {torch:.0f} | {ours:.0f} | {ort / ours:.2f} | {torch / ours:.2f} |")
  where = records["models"]["environment"]
  others = {group: records[group]["environment"]["gpu"] for group in HEADLINE}
  gpus = [where["gpu"], *(f"({group}: {gpu})" for group, gpu in others.items() if gpu != where["gpu"])]
  versions = f"{' '.join(gpus)}, ONNX Runtime {where['onnxruntime']}, PyTorch {where['torch']}"
  said = "float16 where no other is said; each under a CUDA graph, ORT in its faster layout"
  return "\n".join([*lines, "", f"Microseconds; {versions}; {said}. By `python benchmarks/models.py`."])


def error_cell(graph):
  """The error of a plain run or the worst replay, and whether replays differ from others of their input."""
  if "refused" in graph:
    return "not captured"
  differed = f", {graph['differed']} of {graph['replays']} replays differ" if graph["differed"] else ""
  return f"{max(graph['error_plain'], graph['error']):.1e}{differed}"


def measure_group(group, cases, args, record):
  """Adds the cases to the group's rows, one by one, and yields what to print of each."""
  against = dict(each.split("=", 1) for each in args.against)
  rows = []
  for case in cases:
    begun = time.perf_counter()
    row = measure(case, compiled=not args.no_compile, tune=args.tune, profile=args.profile, against=against)
    rows.append(row)
    known = timing.merged(rows, args.out / f"{group}.json.xz", record["environment"], "case")
    order = GROUPS[group]
    record["rows"] = sorted(known, key=lambda row: order.index(row["case"]) if row["case"] in order else len(order))
    errors = f"error {row['errors'].get('ours', float('nan')):.1e}, torch {row['errors']['torch']:.1e}"
    yield f"{case} ({time.perf_counter() - begun:.0f} s): {timing.shown(row)}; {errors}"


def main():
  args = timing.arguments(__doc__, OPTIONS)
  records = {}
  if args.source:
    record = timing.read(args.source)
    records[Case.parse(record["rows"][0]["case"]).group] = record
  for group, cases in {} if args.source else grouped(args.models, args.dtype).items():
    records[group] = timing.measured(group, partial(measure_group, group, cases), args)
  for group, record in records.items():
    print(table(record))
    if args.readme:
      timing.fill_readme(args.source.name.partition(".")[0] if args.source else group, table(record))
  if args.readme:
    timing.fill_readme("headline", headline({group: timing.read(args.out / f"{group}.json.xz") for group in GROUPS}))


OPTIONS = {
  "--models": {"default": ",".join(GROUPS), "help": "NAME:SIZES,... or the name of a group"},
  "--dtype": {"default": "fp16", "choices": DTYPES, "help": "of the cases that name none"},
  "--no-compile": {"action": "store_true", "help": "leave torch.compile out"},
  "--tune": {"action": "store_true", "help": "also optimize with --tune"},
  "--against": {
    "action": "append",
    "default": [],
    "metavar": "COLUMN=LIBRARY",
    "help": "another libortplugin.so, which runs the same optimized model, beside this one",
  },
  "--profile": {"type": Path, "help": "a folder for the kernels of each optimized model"},
}

if __name__ == "__main__":
  main()
