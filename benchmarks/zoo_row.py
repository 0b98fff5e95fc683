"""One row of benchmarks/zoo.py: exports a network, optimizes it, checks and times both models in this process.

`measure(job, tell)` tells what it finds as it goes, as parts of the row: who started this process keeps them when it
dies. The first part of each stage is its name.

What is checked, on two random inputs:

- the original and the optimized model against PyTorch's float32, without TF32; and PyTorch's float16 as well;
- the optimized model under a CUDA graph: REPLAYS replays on a stream of ours, queued without waiting. Before each one
  its input is copied into place (a random one of the two, so that what an earlier replay left is wrong), its outputs
  are filled with NaN, and in turn nothing or a kernel of PyTorch's runs; after it a kernel compares the outputs' bits
  with the first replay's of that input. The first replays are compared with a session without a graph.
"""

import contextlib
import copy
import ctypes
import fcntl
import gc
import io
import os
import random
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import timing
import zoo_networks

OPSETS = {"dynamo": 20, "torchscript": 17}
REPLAYS = 100
ROUNDS, MOST_ROUNDS, MOST_TIMED = 8, 40, 20  # rounds at least and at most, and the most runs of a round
ROUND_MICROSECONDS = 12_000
WAIT_CYCLES = 4_000_000  # two milliseconds, in which the host queues the runs
STEADY = 1.05  # rounds go on until half of them are within this of the shortest
SESSIONS = 3  # how many more without a graph are tried where one differs from the graph

# A row is right if its error is at most FACTOR times that of its yardstick plus FLOORS[precision]; errors are the
# largest difference from PyTorch's float32, over the output's largest magnitude. The yardstick is PyTorch's own in
# float16, and ONNX Runtime's with the original in float32. "tf32" is float32 with TF32 allowed, as sessions are by
# default; its yardstick is also what rounding factors does to PyTorch's float32, where that is more. Exporters fold
# BatchNormalization into float16 weights, which rounds these twice. That error is the exported model's, so in float16
# what is not right otherwise is compared with the exported model itself, computed in float32.
FACTOR = 2.0
FLOORS = {"fp16": 5e-4, "fp32": 1e-5, "tf32": 5e-4}
SANE = 1e-3  # in float32, an original with a larger error is another network: no yardstick
ROUNDINGS = 4  # ways to round factors to TF32
AGAIN = "again"  # the verdict of a row that ran out of memory beside others
FLAT = 1e-3  # outputs whose deviation, or whose change with the input, is less of their magnitude tell nothing


@dataclass(frozen=True)
class Job:
  """A row to measure."""

  case: str
  precision: str  # "fp16" or "fp32"
  exporter: str  # "dynamo" or "torchscript"


@dataclass(frozen=True)
class Setting:
  """How to measure: the device, the number of the GPU, the folder of its locks, and the optional contenders."""

  device: str = "cuda"
  gpu: int = 0
  locks: Path | None = None
  nhwc: bool = False
  compiled: bool = False

  @property
  def on_gpu(self):
    return self.device == "cuda"


class Gate:
  """One GPU for many processes: all may check at once, a process that times is alone.

  Whoever waits holds the first file, so that those who time are not kept waiting by ever new ones who check. Locks of
  a process that dies are gone.
  """

  def __init__(self, folder):
    self._files = (
      None if folder is None else [os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("turn", "gpu")]
    )

  @contextlib.contextmanager
  def _locked(self, operation):
    if self._files is None:
      yield
      return
    turn, gpu = self._files
    fcntl.flock(turn, fcntl.LOCK_EX)
    try:
      fcntl.flock(gpu, operation)
    finally:
      fcntl.flock(turn, fcntl.LOCK_UN)
    try:
      yield
    finally:
      fcntl.flock(gpu, fcntl.LOCK_UN)

  def shared(self):
    return self._locked(fcntl.LOCK_SH)

  def alone(self):
    return self._locked(fcntl.LOCK_EX)


class StopError(Exception):
  """The row ends here, with a reason and a verdict; without one, it is judged by what was found."""

  def __init__(self, verdict, why):
    super().__init__(why)
    self.verdict = verdict


# ---- judgement


def allowed(yardstick, precision):
  """The largest error that is right."""
  return FACTOR * yardstick + FLOORS[precision]


def judge(row):
  """(verdict, reason) of a row by its numbers: 'right', 'wrong', 'fails' or 'not judged'."""
  precision = row["precision"]
  if "error" not in row:
    return "not judged", "nothing was compared"
  if row.get("uncaptured") and not row.get("ort_uncaptured"):
    return "fails", f"can't be captured: {row['uncaptured']}"
  differed, of_original = row.get("differed", 0), row.get("differed_ort", 0)
  if differed and not of_original:
    return "wrong", f"{differed} of {REPLAYS} replays differ from the first"
  if row.get("modes") and not of_original:
    return "wrong", f"plain run and graph differ by {row['modes']:.2g}"
  error, original = row.get("error_exported", row["error"]), row["error_ort"]
  settings = [(precision, error, row["error_torch"] if precision == "fp16" else original, original)]
  if "error_tf32_ort" in row:
    rounded = max(row["error_tf32_ort"], row.get("error_rounded", 0))
    settings.append(("tf32", row["error_tf32"], rounded, row["error_tf32_ort"]))
  for name, error, yardstick, original in settings:
    if not error <= allowed(yardstick, name):  # NaN is wrong, too
      if not original <= allowed(yardstick, name) and error <= allowed(original, name):
        return "not judged", f"ONNX Runtime's error with the original is {original:.2g}"
      return "wrong", f"error {error:.2g}, where {allowed(yardstick, name):.2g} is allowed ({name})"
  if precision == "fp32" and not row["error_ort"] <= SANE:
    return "not judged", f"ONNX Runtime's error with the original is {row['error_ort']:.2g}"
  if differed or row.get("modes"):
    return "not judged", f"{of_original} of {REPLAYS} replays of the original differ as well"
  return "right", ""


def degenerate(outputs):
  """Why these float32 outputs of one network for its inputs tell nothing; '' if they do."""
  first, second = outputs[0], outputs[1]
  if not all(bool(each.isfinite().all()) for each in outputs):
    return "float32 outputs are not finite"
  scale = float(first.abs().max())
  if scale == 0 or float(first.std()) < FLAT * scale:
    return "float32 outputs are constant"
  if float((first - second).abs().max()) < FLAT * scale:
    return "outputs do not depend on the input"
  return ""


def error_of(outputs, expected):
  """The largest difference over the largest magnitude, over all inputs; infinite where a NaN is new."""
  worst = 0.0
  for found, wanted in zip(outputs, expected, strict=True):
    found = found.to(wanted.device, wanted.dtype)
    if found.shape != wanted.shape or not bool(found.isfinite().all()):
      return float("inf")
    worst = max(worst, float((found - wanted).abs().max() / wanted.abs().max()))
  return worst


def error_of_rounding(module, variants, expected):
  """The error of the float32 module when its layers' factors are rounded to TF32, in the worst of some ways to do so.

  Where a network is sensitive, errors of equal roundings differ by factors: the inputs of layers are moved by up to an
  eighth of what rounding moves them.
  """
  import torch

  def rounded(x):
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)

  module = copy.deepcopy(module)
  generator = torch.Generator(expected[0].device).manual_seed(0)

  def round_input(_, given):
    if not given:  # called by keyword
      return None
    moved = 1 + 2.0**-13 * (torch.rand(given[0].shape, generator=generator, device=given[0].device) - 0.5)
    return (rounded(given[0] * moved), *given[1:])

  for layer in module.modules():
    if isinstance(layer, torch.nn.Linear | torch.nn.modules.conv._ConvNd):
      layer.weight.data = rounded(layer.weight.data)
      layer.register_forward_pre_hook(round_input)
  return max(error_of([module(*inputs) for inputs in variants], expected) for _ in range(ROUNDINGS))


# ---- export, sessions


def export(model, inputs, exporter):
  """The module as one of PyTorch's exporters writes it, for inputs of these shapes and dtypes."""
  import torch

  names = {"input_names": [f"x{number}" for number in range(len(inputs))], "output_names": ["y"]}
  given = {"opset_version": OPSETS[exporter], **names}
  with warnings.catch_warnings(), torch.no_grad():
    warnings.simplefilter("ignore")
    if exporter == "dynamo":
      program = torch.onnx.export(model, inputs, dynamo=True, verbose=False, **given)
      torch._dynamo.reset()
      return program.model_proto
    buffer = io.BytesIO()
    torch.onnx.export(model, inputs, buffer, dynamo=False, **given)
    return onnx.load_from_string(buffer.getvalue())


def in_float32(model):
  """The model with all that is float16 in it, weights, inputs, outputs and casts, in float32."""
  half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT

  def widen_tensor(tensor):
    if tensor.data_type == half:
      tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name))

  def widen_nodes(nodes):
    for node in nodes:
      for attribute in node.attribute:
        if attribute.HasField("t"):
          widen_tensor(attribute.t)
        elif attribute.HasField("g"):
          widen_graph(attribute.g)
        elif attribute.name in ("to", "dtype") and attribute.i == half:
          attribute.i = single

  def widen_graph(graph):
    for tensor in graph.initializer:
      widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
      if value.type.tensor_type.elem_type == half:
        value.type.tensor_type.elem_type = single
    widen_nodes(graph.node)

  wide = onnx.ModelProto()
  wide.CopyFrom(model)
  widen_graph(wide.graph)
  for function in wide.functions:
    widen_nodes(function.node)
  return wide


def nodes(model):
  """Nodes but for constants, those of bodies and local functions included."""
  from ortplugin.graph.messages import walk_nodes

  return sum(node.op_type != "Constant" for node in walk_nodes(model))


def make_session(model, setting, *, plugin, **provider):
  """A silent session on the device; `provider`: options of ONNX Runtime's CUDA provider."""
  import ortplugin
  from ortplugin.session import CPU, CUDA, onnxruntime

  ort = onnxruntime()
  options = ort.SessionOptions()
  options.log_severity_level = 4
  options.intra_op_num_threads = 1
  if plugin:
    ortplugin.register(options)
  if not setting.on_gpu:
    return ort.InferenceSession(model, options, providers=[CPU])
  session = ort.InferenceSession(model, options, providers=[(CUDA, provider), CPU], enable_fallback=0)
  if CUDA not in session.get_providers():
    raise RuntimeError("ONNX Runtime could not start its CUDA provider")
  return session


class Runner:
  """A session with inputs and the output in buffers of its own on the GPU, on one stream."""

  def __init__(self, model, setting, stream, like, shape, *, plugin, **provider):
    import torch

    from ortplugin.session import element_type, onnxruntime

    provider = {"user_compute_stream": str(stream.cuda_stream), **provider}
    self.session = make_session(model, setting, plugin=plugin, **provider)
    self.stream = stream
    (out,) = self.session.get_outputs()
    element = element_type(out.type)
    dtype = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}[element[1].name]
    self.inputs = {f"x{number}": torch.empty_like(each) for number, each in enumerate(like)}
    self.output = torch.empty(tuple(shape), dtype=dtype, device=setting.device)
    self._binding = self.session.io_binding()
    for value in self.session.get_inputs():
      each, taken = self.inputs[value.name], element_type(value.type)
      self._binding.bind_input(value.name, setting.device, 0, taken[0], list(each.shape), each.data_ptr())
    self._binding.bind_output(out.name, setting.device, 0, element[0], list(shape), self.output.data_ptr())
    self._options = onnxruntime().RunOptions()
    self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

  def put(self, inputs):
    """Queues copies of the inputs into their buffers; fills the output with NaN. The stream must be current."""
    for buffer, given in zip(self.inputs.values(), inputs, strict=True):
      buffer.copy_(given)
    self.output.fill_(float("nan"))

  def queue(self):
    """Queues a run on the stream, without waiting for it.

    What such runs keep on the host is freed by the next one that waits. It must not be left to the session's end:
    ONNX Runtime 1.31 frees its pinned memory in a callback of CUDA then, which CUDA forbids, and the process dies.
    """
    self.session.run_with_iobinding(self._binding, self._options)

  def run(self):
    """Runs and waits."""
    self.session.run_with_iobinding(self._binding)
    self.stream.synchronize()

  def outputs(self, variants):
    """The output for each of the inputs, waited for."""
    import torch

    found = []
    for inputs in variants:
      with torch.cuda.stream(self.stream):
        self.put(inputs)
        self.run()
        found.append(self.output.clone())
      self.stream.synchronize()
    return found


def run_on_cpu(model, setting, variants, *, plugin):
  """The output for each of the inputs, of a session on the CPU."""
  import torch

  session = make_session(model, setting, plugin=plugin)
  names = [value.name for value in session.get_inputs()]
  found = []
  for inputs in variants:
    feeds = {f"x{number}": each.numpy() for number, each in enumerate(inputs)}
    found.append(torch.from_numpy(np.array(session.run(None, {name: feeds[name] for name in names})[0])))
  return found


# ---- replays


def _strangers(device):
  """Kernels of others, to run between replays."""
  import torch

  wide = torch.randn(1 << 20, device=device)
  square = torch.randn(512, 512, device=device, dtype=torch.float16)
  image = torch.randn(4, 16, 64, 64, device=device)
  weight = torch.randn(16, 16, 3, 3, device=device)
  order = torch.randperm(1 << 16, device=device)
  return [
    lambda: None,
    lambda: torch.matmul(square, square),
    lambda: wide.sin(),
    lambda: torch.nn.functional.conv2d(image, weight),
    lambda: None,
    lambda: wide[order].sum(),
    lambda: wide.clone(),
  ]


def replays(runner, variants, firsts):
  """(How many of REPLAYS queued replays differ in a bit from the first of their input, by how much at most)."""
  import torch

  bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[runner.output.element_size()]
  order = random.Random(0).choices(range(len(variants)), k=REPLAYS)
  with torch.cuda.stream(runner.stream):
    device = str(runner.output.device)
    strangers = _strangers(device)
    counts = torch.zeros(REPLAYS, dtype=torch.int64, device=device)
    worst = torch.zeros(REPLAYS, dtype=torch.float32, device=device)
    runner.stream.synchronize()
    torch.cuda._sleep(WAIT_CYCLES)
    for number, variant in enumerate(order):
      runner.put(variants[variant])
      strangers[number % len(strangers)]()
      runner.queue()
      counts[number] = (runner.output.view(bits) != firsts[variant].view(bits)).sum()
      worst[number] = (runner.output.float() - firsts[variant].float()).abs().amax()
  runner.stream.synchronize()
  differed = int((counts > 0).sum())
  scale = float(max(each.float().abs().max() for each in firsts))
  return differed, (float(worst.nan_to_num(float("inf")).max()) / scale if differed else 0.0)


def same_bits(first, second):
  return all(a.cpu().numpy().tobytes() == b.cpu().numpy().tobytes() for a, b in zip(first, second, strict=True))


def gpu_microseconds(queues, stream):
  """The GPU's time of one run of each contender: the shortest of rounds in which they take turns.

  Sessions of other processes are made meanwhile, and their work can only add to a round.
  """
  import torch

  def once(queue, count):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
      torch.cuda._sleep(WAIT_CYCLES)
      start.record(stream)
      for _ in range(count):
        queue()
      end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / count

  counts = {name: max(2, min(MOST_TIMED, int(ROUND_MICROSECONDS / once(queue, 2)))) for name, queue in queues.items()}
  times = {name: [] for name in queues}
  for number in range(MOST_ROUNDS):
    for name, queue in queues.items():
      times[name].append(once(queue, counts[name]))
    if number + 1 >= ROUNDS and all(is_steady(each) for each in times.values()):
      break
  return {name: min(values) for name, values in times.items()}


def is_steady(times):
  """Whether half of the rounds took about as long as the shortest."""
  return sum(each <= STEADY * min(times) for each in times) * 2 >= len(times)


def end_capture(stream):
  """Gives up a capture that a failed run has left open on the stream; nothing where there is none."""
  with contextlib.suppress(OSError):
    ctypes.CDLL("libcuda.so.1").cuStreamEndCapture(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(ctypes.c_void_p()))


# ---- the row


def brief(error):
  """An error's type and the line of its message that says most, cut."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  while error.__cause__ is not None and type(error).__name__ in ("ConversionError", "TorchExportError"):
    error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or lines
  telling = next((line for line in lines if line.startswith(("Error", "RuntimeError", "Unsupported"))), None)
  text = telling or (lines[0] if lines else "")
  text = re.sub(r" at 0x[0-9a-f]+", "", text)  # the same reason every time
  return f"{type(error).__name__}: {text}"[:400]


def measure(job, setting, tell):
  """Measures a row; all it finds goes to `tell`, its verdict last."""
  found = {"precision": job.precision}

  def report(values):
    found.update(values)
    tell(values)

  verdict, why = "", ""
  try:
    _measure(job, setting, found, report)
  except StopError as stop:
    verdict, why = stop.verdict, str(stop)
  finally:
    gc.collect()
  if not verdict:
    verdict, reason = judge(found)
    why = "; ".join(filter(None, (reason, why)))
  tell({"verdict": verdict, **({"why": why} if why else {})})


@contextlib.contextmanager
def stage(name, report, verdict):
  """A part of the row; what fails in it ends the row with this verdict."""
  report({"stage": name, "failing": verdict})
  try:
    yield
  except StopError:
    raise
  except Exception as error:
    raise StopError(AGAIN if lacks_memory(error) else verdict, f"{name}: {brief(error)}") from error


def lacks_memory(error):
  said = ("out of memory", "failed to allocate", "alloc_failed", "(err 2 != cuda_success")  # the last by cuDNN
  return any(each in str(error).lower() for each in said)


def _measure(job, setting, found, report):
  import torch

  gate = Gate(setting.locks)
  torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
  case = zoo_networks.CASES[job.case]
  half = job.precision == "fp16"
  with stage("network", report, "not run"):
    try:
      module = zoo_networks.network(case, setting.device)
      if job.exporter == "torchscript":
        zoo_networks.spell_out_attention(module)
    except zoo_networks.NotThereError as error:
      raise StopError("not there", str(error)) from error
    variants = [zoo_networks.inputs_of(case, number, setting.device) for number in range(zoo_networks.VARIANTS)]
    if half:
      module = module.half()
      variants = [tuple(x.half() if x.is_floating_point() else x for x in inputs) for inputs in variants]
  with stage("reference", report, "not run"), torch.no_grad():
    eager = [module(*inputs) for inputs in variants] if half else []
    module = module.float()
    expected = [module(*_widened(inputs)) for inputs in variants]
    if setting.on_gpu and not half:
      report({"error_rounded": error_of_rounding(module, variants, expected)})
    module = module.half() if half else module
    if not all(isinstance(each, torch.Tensor) and each.is_floating_point() for each in expected):
      raise StopError("not run", "the network does not return one floating tensor")
  if reason := degenerate(expected):
    raise StopError("not judged", reason)
  if half:
    report({"error_torch": error_of(eager, expected)})
    if not np.isfinite(found["error_torch"]):
      raise StopError("not judged", "PyTorch's own float16 outputs are not finite")
  with stage("export", report, "no export"):
    model = export(module, variants[0], job.exporter)
  report({"before": nodes(model)})
  if not setting.on_gpu:
    _compare_on_cpu(model, setting, variants, expected, report)
    return
  compiled = copy.deepcopy(module) if setting.compiled else None
  del module, eager
  gc.collect()
  torch.cuda.empty_cache()  # for the processes beside this one
  session = _Sessions(setting, torch.cuda.Stream(), variants, expected)
  timed = _compare_on_gpu(model, session, gate, found, report, exact={} if half else {"use_tf32": "0"})
  queues = {name: each.queue for name, each in timed.items()}
  if compiled is not None:
    with stage("torch.compile", report, ""):
      queues["us_compile"] = compile_queue(compiled, variants[0], session.stream)
  with stage("times", report, ""), gate.alone():
    report(gpu_microseconds(queues, session.stream))
    for each in timed.values():
      each.run()


def _widened(inputs):
  return tuple(x.float() if x.is_floating_point() else x for x in inputs)


def _optimized(model, report):
  import ortplugin

  with stage("optimize", report, "fails"):
    optimized, _ = ortplugin.optimize(model)
    report({"after": nodes(optimized)})
    return optimized.SerializeToString()


def _compare_on_cpu(model, setting, variants, expected, report):
  with stage("original", report, "not run"):
    report({"error_ort": error_of(run_on_cpu(model.SerializeToString(), setting, variants, plugin=False), expected)})
  serialized = _optimized(model, report)
  with stage("optimized", report, "fails"):
    report({"error": error_of(run_on_cpu(serialized, setting, variants, plugin=True), expected)})


@dataclass
class _Sessions:
  """Makes sessions for the inputs of a row, on one stream."""

  setting: Setting
  stream: Any
  variants: Sequence[Any]
  expected: Sequence[Any]

  def make(self, model, *, plugin, **provider):
    like, shape = self.variants[0], self.expected[0].shape
    return Runner(model, self.setting, self.stream, like, shape, plugin=plugin, **provider)

  def outputs(self, model, *, plugin, **provider):
    return self.make(model, plugin=plugin, **provider).outputs(self.variants)

  def captured(self, model, *, plugin, **provider):
    """(A session with a CUDA graph, its first outputs, ''), or (one without, its first outputs, why)."""
    import torch

    try:
      made = self.make(model, plugin=plugin, enable_cuda_graph="1", **provider)
      return made, made.outputs(self.variants), ""
    except Exception as error:
      if lacks_memory(error):
        raise
      why = brief(error)
    end_capture(self.stream)
    self.stream = torch.cuda.Stream()
    made = self.make(model, plugin=plugin, **provider)
    return made, made.outputs(self.variants), why


def _compare_on_gpu(model, session, gate, found, report, exact):
  """Compares everything; returns what is to be timed. `exact`: options that keep float32 products exact."""
  variants, expected = session.variants, session.expected
  original = model.SerializeToString()
  with stage("original", report, "not run"):
    outputs = session.outputs(original, plugin=False, cudnn_conv_algo_search="HEURISTIC", **exact)
    report({"error_ort": error_of(outputs, expected)})
  serialized = _optimized(model, report)
  with stage("optimized", report, "fails"):
    plain = session.outputs(serialized, plugin=True, **exact)
    report({"error": error_of(plain, expected)})
    if exact:  # graphs are checked as sessions are by default, with TF32
      plain = session.outputs(serialized, plugin=True)
      report({"error_tf32": error_of(plain, expected)})
  with stage("graph", report, "fails"):
    ours, firsts, why = session.captured(serialized, plugin=True)
    if why:
      report({"uncaptured": why})
    else:
      with gate.shared():
        differed, worst = replays(ours, variants, firsts)
      report({"differed": differed, **({"worst": worst} if differed else {})})
    key = "error_tf32" if exact else "error"
    report({key: max(found[key], error_of(firsts, expected))})
    tries = [plain]
    while not same_bits(tries[-1], firsts) and len(tries) <= SESSIONS:
      tries.append(session.outputs(serialized, plugin=True))
    if not same_bits(tries[-1], firsts):
      if all(same_bits(each, plain) for each in tries):
        report({"modes": error_of(firsts, [each.float() for each in plain])})
      else:  # without a graph, too, so it says nothing about the graph
        report({"sessions": "differ"})
  if not exact and not found["error"] <= allowed(found["error_torch"], found["precision"]):
    with stage("exported model in float32", report, ""):
      wide = _Sessions(session.setting, session.stream, [_widened(each) for each in variants], expected)
      exported = wide.outputs(in_float32(model).SerializeToString(), plugin=False, use_tf32="0")
      report({"export": error_of(exported, expected)})
      report({"error_exported": max(error_of(each, exported) for each in (plain, firsts))})
  with stage("original under a graph", report, ""):
    theirs, firsts, why = session.captured(original, plugin=False)
    if why:
      report({"ort_uncaptured": why})
    elif found.get("differed"):
      with gate.shared():
        report({"differed_ort": replays(theirs, variants, firsts)[0]})
    if exact:
      report({"error_tf32_ort": error_of(firsts, expected)})
    timed = {"us": ours, "us_ort": theirs}
    options = {"us": _graph(found.get("uncaptured")), "us_ort": _graph(why)}
    if session.setting.nhwc:
      timed["us_nhwc"], _, why = session.captured(original, plugin=False, prefer_nhwc="1")
      options["us_nhwc"] = {"prefer_nhwc": "1", **_graph(why)}
    for name, each in timed.items():  # contenders share a stream, and a capture that fails leaves its own
      if each.stream is not session.stream:
        is_ours = name == "us"
        timed[name] = session.make(serialized if is_ours else original, plugin=is_ours, **options[name])
        timed[name].outputs(variants)
  return timed


@contextlib.contextmanager
def allowed_tf32():
  """Allows PyTorch TF32 in float32 products and convolutions."""
  import torch

  settings = (torch.backends.cudnn, torch.backends.cuda.matmul)
  before = [each.allow_tf32 for each in settings]
  for each in settings:
    each.allow_tf32 = True
  try:
    yield
  finally:
    for each, value in zip(settings, before, strict=True):
      each.allow_tf32 = value


def _graph(why):
  """The option that captures a graph, unless there is a reason why that failed."""
  return {} if why else {"enable_cuda_graph": "1"}


def compile_queue(model, inputs, stream):
  """A function that replays the compiled module's CUDA graph on the stream."""
  import torch

  torch._dynamo.reset()
  compiled = torch.compile(model, dynamic=False)
  with torch.no_grad(), allowed_tf32():  # as sessions are timed
    return timing.torch_graph(stream, lambda: compiled(*inputs))[0]
